"""What lesson 06 says of rotary functions, of transformers and of TRL, run or read."""

import functools
import json

import pytest
import torch
from cut import bug_cells, installed, path_of

from labkit import checks

HALF = torch.bfloat16
SHORT = functools.partial(checks.rotary, length=1024)


@pytest.fixture(scope="module")
def lesson():
    """The lesson's rotary functions and its policy, cut out of it."""
    space = bug_cells("06")
    wanted = (
        "def angles(",
        "class Linear(",
        "@dataclass",
        "class Cache:",
        "class Block(",
        "class Policy(",
        "def cast_tables(",
    )
    for cell in json.loads(path_of("06").read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and source.startswith(wanted):
            exec(compile(source, "lesson 06", "exec"), space)
    return space


def test_the_check_that_passes_on_the_fix_fails_on_the_bug_cut_out_of_the_lesson(lesson):
    bug = SHORT(lesson["promoted"])
    assert bug.passed is False and bug.seen["bfloat16"] == "float32" and "out.to(x.dtype)" in bug.hint
    assert SHORT(lambda x, p: lesson["promoted"](x, p).to(x.dtype))
    assert SHORT(lesson["cast_tables"])


def test_the_wrong_fix_is_refused_and_named(lesson):
    report = SHORT(lesson["cast_angles"])
    assert report.passed is False and "compute angles in float32" in report.hint


def test_the_policy_with_a_cache_gives_what_it_gives_without(lesson):
    torch.manual_seed(0)
    policy, ids = lesson["Policy"](), torch.randint(32, (2, 12))
    parts = lesson["Parts"](dtype=torch.float32)
    with torch.no_grad():
        whole, caches = policy(ids, parts), [lesson["Cache"]() for _ in range(2)]
        policy(ids[:, :8], parts, caches=caches)
        steps = [policy(ids[:, t : t + 1], parts, start=t, caches=caches)[:, -1] for t in range(8, 12)]
    torch.testing.assert_close(torch.stack(steps, 1), whole[:, 8:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("place, twin", [(31, 32), (1023, 1024)])
def test_powers_of_two_are_the_lucky_positions_of_rounded_angles(lesson, place, twin):
    x, positions = torch.randn(1, 64, 1, 64).to(HALF).expand(-1, -1, 2, -1), torch.tensor([[place, twin]])
    exact = lesson["promoted"](x.double(), positions)
    off = (lesson["cast_angles"](x, positions).double() - exact).square().sum((0, 1, 3)).sqrt()
    assert off[0] > 1.5 * off[1]


@pytest.mark.parametrize("cast_to", ["bfloat16", "half"])
def test_casting_a_llama_rounds_its_frequencies_and_loading_it_in_that_dtype_does_not(tmp_path, cast_to):
    model, _ = tiny_llama()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=HALF)
    assert loaded.model.rotary_emb.inv_freq.dtype == torch.float32 and loaded.dtype == HALF
    assert getattr(model, cast_to)().model.rotary_emb.inv_freq.dtype.itemsize == 2


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 1, "vocab_size": 32}
    return LlamaForCausalLM(LlamaConfig(**small, intermediate_size=32)).eval(), torch.randint(3, 32, (1, 5))


@pytest.mark.parametrize("weights, autocast", [(torch.float32, True), (HALF, False), (torch.float32, False)])
def test_transformers_dynamic_cache_takes_the_dtype_of_the_keys_for_both(weights, autocast):
    model, ids = tiny_llama()
    with torch.no_grad(), torch.autocast("cpu", HALF, enabled=autocast):
        layer = model.to(weights)(ids, use_cache=True).past_key_values.layers[0]
    assert (layer.keys.dtype, layer.values.dtype) == (weights, weights)


def test_transformers_static_cache_refuses_v_under_autocast():
    from transformers import StaticCache

    model, ids = tiny_llama()
    cache = StaticCache(config=model.config, max_cache_len=8)
    with torch.no_grad(), torch.autocast("cpu", HALF), pytest.raises(RuntimeError, match="Float and .* BFloat16"):
        model(ids, past_key_values=cache, use_cache=True)


def test_generation_after_accelerate_s_prepare_is_under_autocast_and_caches_float32():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(mixed_precision="bf16", cpu=True)
    model, ids = tiny_llama()
    model = accelerator.prepare(model)
    out = accelerator.unwrap_model(model).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, return_dict_in_generate=True, pad_token_id=0
    )
    layer = out.past_key_values.layers[0]
    assert (layer.keys.dtype, layer.values.dtype) == (torch.float32, torch.float32)


def test_transformers_casts_where_the_lesson_says():
    llama = installed("transformers", "models/llama/modeling_llama.py")
    assert "return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)" in llama
    assert "position_embeddings = self.rotary_emb(hidden_states" in llama
    cohere = installed("transformers", "models/cohere/modeling_cohere.py")
    assert "q = q.float()" in cohere and "return q_embed.to(dtype=dtype), k_embed.to(dtype=dtype)" in cohere
    llama4 = installed("transformers", "models/llama4/modeling_llama4.py")
    assert "return xq_out.type_as(xq), xk_out.type_as(xk)" in llama4


def test_trl_casts_the_policy_for_continuous_batching():
    trainer = installed("trl", "trainer/grpo_trainer.py")
    branch = trainer.split("elif self.use_transformers_continuous_batching:")[1].split("generate_batch(")[0]
    assert "if self.args.bf16:" in branch and "unwrapped_model.to(torch.bfloat16)" in branch
    assert "use_transformers_continuous_batching" in installed("trl", "trainer/grpo_config.py")


WRONG = {
    "nothing rotates": (lambda x, p, of: x, "Nothing rotates"),
    "all dims rotate": (lambda x, p, of: of["cast_tables"](x, p), "64 dims rotate"),
    "cat promotes": (lambda x, p, of: torch.cat((of["promoted"](x[..., :32], p), x[..., 32:]), -1), "back as float32"),
    "rounded angles": (
        lambda x, p, of: torch.cat((of["cast_angles"](x[..., :32], p), x[..., 32:]), -1),
        "compute angles in float32",
    ),
    "the last ones rotate, too": (
        lambda x, p, of: torch.cat((of["cast_tables"](x[..., :16], p), x[..., 16:]), -1),
        "16 dims rotate",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_exercise_refuses_what_it_forbids(lesson, name):
    attempt, words = WRONG[name]
    report = SHORT(lambda x, p: attempt(x, p, lesson), rotary_dim=32)
    assert report.passed is False and words in report.hint, report
