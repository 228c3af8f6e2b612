"""What lesson 06 says of its rotation, of transformers, of TRL and of labkit's check, run or read."""

import functools
import json
import sys

import pytest
import torch
from cut import FOLDER, bug_cells, installed, path_of
from transformers.models.llama import modeling_llama

from labkit import checks

sys.path.append(str(FOLDER))
from props import lesson_06 as props

HALF, CPU = torch.bfloat16, torch.device("cpu")


@pytest.fixture(scope="module")
def lesson():
    """The lesson's `rotary` and `cast_back`, cut out of it."""
    space = bug_cells("06")
    (fix,) = [
        "".join(cell["source"])
        for cell in json.loads(path_of("06").read_text())["cells"]
        if "fix" in cell["metadata"].get("tags", [])
    ]
    exec(fix.split("modeling_llama.")[0], space)
    return space


def test_the_bug_is_what_transformers_calls(lesson):
    q, k = torch.randn(2, 2, 4, 6, 32, dtype=HALF)
    cos, sin = torch.randn(2, 2, 6, 16).repeat(1, 1, 1, 2)
    ours, theirs = lesson["rotary"](q, k, cos, sin), modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
    assert all(torch.equal(a, b) and a.dtype == torch.float32 for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name, passes", [("rotary", False), ("cast_back", True)])
def test_labkits_check_refuses_the_bug_and_accepts_the_fix(lesson, name, passes):
    rope = props.small("Llama", 0, CPU).model.rotary_emb
    # as under autocast: the tables take the dtype of a float32 hidden state
    report = checks.rotary(
        lambda q, k, p: lesson[name](q, k, *rope(q.float(), p)), head_dim=32, length=1024, dtypes=(torch.float32, HALF)
    )
    assert report.passed is passes, report


def test_labkits_check_names_rounded_angles_and_rounded_frequencies(lesson):
    rope = props.small("Llama", 0, CPU).model.rotary_emb
    judged = functools.partial(checks.rotary, head_dim=32, length=1024)

    def rounded_angles(q, k, positions):
        angle = (positions[..., None].float() * rope.inv_freq).to(q.dtype).repeat(1, 1, 2)
        return lesson["rotary"](q, k, angle.cos(), angle.sin())

    assert "compute angles in float32" in judged(rounded_angles).hint
    rope.bfloat16()
    assert "inv_freq" in judged(lambda q, k, p: lesson["rotary"](q, k, *rope(q, p))).hint


def test_loading_in_bfloat16_keeps_the_frequencies_and_casting_the_model_does_not(tmp_path):
    model = props.small("Llama", 0, CPU)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=HALF)
    assert loaded.dtype == HALF and loaded.model.rotary_emb.inv_freq.dtype == torch.float32
    assert model.bfloat16().model.rotary_emb.inv_freq.dtype == HALF


def test_the_fix_gives_the_same_gradients_to_the_bit(lesson):
    model, prompts = props.small("Llama", 0, CPU), props.random_prompts(0, CPU)
    gradients = {}
    for name in ("rotary", "cast_back"):
        model.zero_grad()
        with props.rotating_with(lesson[name], modeling_llama), torch.autocast("cpu", HALF):
            loss = model(prompts, labels=prompts).loss
        loss.backward()
        gradients[name] = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert gradients["rotary"].norm() > 0 and torch.equal(gradients["rotary"], gradients["cast_back"])


@pytest.mark.parametrize("answer, words", [
    (lambda model: None, "2.00 times"),
    (lambda model: model.bfloat16() and None, "have changed"),
    (lambda model: [setattr(b.self_attn, n, torch.nn.Identity())
                    for b in model.model.layers for n in ("q_norm", "k_norm")], "2.00|changed|something else"),
])  # fmt: skip
def test_the_exercise_refuses_what_it_forbids(lesson, answer, words):
    report = props.halves_qwen3(lesson["cast_back"], 0, CPU)(answer)
    assert report.passed is False and any(word in report.hint for word in words.split("|")), report


def test_what_is_wide_and_who_casts_decide_together(lesson):
    rows = props.one_thing_changed(lesson["rotary"], lesson["cast_back"], 0, CPU)
    assert [row["cache / plan"] for row in rows] == ["2.00", "1.00", "1.00", "2.00", "–", "–", "1.00"]
    assert "float != c10::BFloat16" in rows[4]["error"] and "index_copy_" in rows[5]["error"]


def test_cast_tables_move_log_probs_and_the_fix_does_not(lesson):
    rows = props.prices({"bug": lesson["rotary"], "fix": lesson["cast_back"], "cast": cast_tables(lesson)}, 0, "cpu")
    moved = {row[""]: row["trainer to the bug's"] for row in rows}
    assert moved["fix"] == 0 and moved["cast"] > 1e-3


def cast_tables(lesson):
    return lambda q, k, cos, sin, **settings: lesson["rotary"](q, k, cos.to(q.dtype), sin.to(q.dtype), **settings)


def test_the_diagnosis_refuses_one_name_for_all(lesson):
    check = props.names_each(lesson["rotary"], lesson["cast_back"], 0, CPU)
    assert not any(check(lambda log, name=name: name).passed for name in props.NAMES)


def test_generation_after_accelerate_s_prepare_is_under_autocast_and_caches_float32():
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare(props.small("Llama", 0, CPU))
    ids = props.random_prompts(0, CPU)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, return_dict_in_generate=True)
    layer = out.past_key_values.layers[0]
    assert (layer.keys.dtype, layer.values.dtype) == (torch.float32, torch.float32)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers', of TRL's arguments
@pytest.mark.parametrize("dtype, handed_over, kept", [
    (None, ("float32", "bfloat16"), ("float32", "float32")),
    ("bfloat16", ("bfloat16", "bfloat16"), ("bfloat16", "bfloat16")),
])  # fmt: skip
def test_trls_trainer_caches_float32_with_its_defaults(tmp_path, monkeypatch, dtype, handed_over, kept):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    from transformers import DynamicCache

    from labkit.policy import load

    policy = props.new_policy(0, "cpu")
    llama = props.LlamaForCausalLM(policy.model.config)
    llama.save_pretrained(tmp_path)
    load("tiny", "cpu").tokenizer.save_pretrained(tmp_path)
    seen, update = set(), DynamicCache.update

    def noted(self, key, value, *args, **settings):
        stored = update(self, key, value, *args, **settings)
        seen.add(tuple(props.word(tensor.dtype) for tensor in (key, value, *stored)))
        return stored

    monkeypatch.setattr(DynamicCache, "update", noted)
    sizes = {"max_steps": 1, "per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 4}
    given = {"model_init_kwargs": {"dtype": dtype}} if dtype else {}
    config = trl.GRPOConfig(
        output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[], save_strategy="no", **sizes, **given
    )
    assert config.bf16
    rows = datasets.Dataset.from_dict({"prompt": ["12+34="] * 4})
    trainer = trl.GRPOTrainer(
        model=str(tmp_path), reward_funcs=lambda completions, **_: [1.0] * len(completions), args=config,
        train_dataset=rows,
    )  # fmt: skip
    trainer.train()
    assert seen == {handed_over + kept}


def test_transformers_casts_where_the_lesson_says():
    for model in ("llama", "qwen2", "qwen3"):
        source = installed("transformers", f"models/{model}/modeling_{model}.py")
        assert "return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)" in source
        assert "return q_embed, k_embed" in source
    assert "return q_embed.to(q_type), k_embed.to(k_type)" in installed(
        "transformers", "models/olmo2/modeling_olmo2.py"
    )
    cohere = installed("transformers", "models/cohere/modeling_cohere.py")
    assert "return q_embed.to(dtype=dtype), k_embed.to(dtype=dtype)" in cohere
    assert ".to(value.dtype)" in installed("transformers", "models/gptj/modeling_gptj.py")
    attention = installed("transformers", "integrations/flash_attention.py")
    assert "silently" in attention or "silently" in installed("transformers", "modeling_flash_attention_utils.py")
