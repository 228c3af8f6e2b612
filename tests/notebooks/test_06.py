"""What lesson 06 says of its rotation, of transformers, of TRL and of labkit's check, run or read."""

import pytest
import torch
from cut import Page
from props import lesson_06 as props
from transformers.models.llama import modeling_llama

from labkit import checks

HALF, CPU = torch.bfloat16, torch.device("cpu")


@pytest.fixture(scope="module")
def page():
    return Page("06")


def test_the_bug_is_what_transformers_calls(page):
    q, k = torch.randn(2, 2, 4, 6, 32, dtype=HALF)
    cos, sin = torch.randn(2, 2, 6, 16).repeat(1, 1, 1, 2)
    ours, theirs = page["rotary"](q, k, cos, sin), modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
    assert all(torch.equal(a, b) and a.dtype == torch.float32 for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name, passes", [("rotary", False), ("cast_back", True)])
def test_labkits_check_refuses_the_bug_and_accepts_the_fix(page, name, passes):
    rope = props.small("Llama", 0, CPU).model.rotary_emb
    # as under autocast: the tables take the dtype of a float32 hidden state
    report = checks.rotary(
        lambda q, k, p: page[name](q, k, *rope(q.float(), p)), head_dim=32, length=1024, dtypes=(torch.float32, HALF)
    )
    assert report.passed is passes, report


def test_what_is_wide_and_who_casts_decide_together(page):
    rows = props.one_thing_changed(page["rotary"], page["cast_back"], 0, CPU)
    assert [row["cache / plan"] for row in rows] == ["2.00", "1.00", "1.00", "2.00", "–", "–", "1.00"]
    assert "float != c10::BFloat16" in rows[4]["error"] and "index_copy_" in rows[5]["error"]


def test_cast_tables_move_log_probs_and_the_fix_does_not(page):
    rotations = {"bug": page["rotary"], "fix": page["cast_back"], "cast": page["cast_tables"]}
    moved = {row[""]: row["trainer to the bug's"] for row in props.prices(rotations, 0, "cpu")}
    assert moved["fix"] == 0 and moved["cast"] > 1e-3


def test_generation_after_accelerate_s_prepare_is_under_autocast_and_caches_float32():
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare(props.small("Llama", 0, CPU))
    ids = props.random_prompts(0, CPU)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, return_dict_in_generate=True)
    layer = out.past_key_values.layers[0]
    assert (layer.keys.dtype, layer.values.dtype) == (torch.float32, torch.float32)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers', of TRL's arguments
@pytest.mark.parametrize("dtype, keys_and_values, stored", [
    (None, ("float32", "bfloat16"), ("float32", "float32")),
    ("bfloat16", ("bfloat16", "bfloat16"), ("bfloat16", "bfloat16")),
])  # fmt: skip
def test_trls_trainer_caches_float32_with_its_defaults(tmp_path, monkeypatch, tiny, dtype, keys_and_values, stored):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    from transformers import DynamicCache

    props.LlamaForCausalLM(props.new_policy(0, "cpu").model.config).save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    dtypes, update = set(), DynamicCache.update

    def noted(self, key, value, *args, **settings):
        in_cache = update(self, key, value, *args, **settings)
        dtypes.add(tuple(props.word(tensor.dtype) for tensor in (key, value, *in_cache)))
        return in_cache

    monkeypatch.setattr(DynamicCache, "update", noted)
    settings = {"max_steps": 1, "per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 4}
    settings |= {"model_init_kwargs": {"dtype": dtype}} if dtype else {}
    config = trl.GRPOConfig(str(tmp_path / "out"), use_cpu=True, report_to=[], save_strategy="no", **settings)
    assert config.bf16
    rows = datasets.Dataset.from_dict({"prompt": ["12+34="] * 4})
    trl.GRPOTrainer(str(tmp_path), lambda completions, **_: [1.0] * len(completions), config, rows).train()
    assert dtypes == {keys_and_values + stored}
