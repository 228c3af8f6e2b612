"""`labkit.preflight`: each item on a model and arguments that fit, and on ones that do not."""

from types import SimpleNamespace

import pytest

import labkit
from labkit.grpo import task

FITS = {
    "num_generations": 8,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "max_prompt_length": 8,
    "max_completion_length": 4,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "learning_rate": 1e-6,
    "beta": 0.04,
    "max_grad_norm": 1.0,
    "logging_nan_inf_filter": False,
}


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in ("WORLD_SIZE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


def check(policy, reward=None, prompts=None, **changes):
    args = SimpleNamespace(**{**FITS, **changes})
    report = labkit.preflight(policy.model, policy.tokenizer, args, reward=reward, prompts=prompts)
    return report, {item.name: item for item in report.items}


def test_what_fits_is_ok_throughout(tiny):
    report, items = check(tiny, prompts=["12+34=", "57+42="], reward=task.rewards)
    assert report and {item.level for item in items.values()} == {"ok"}, str(report)
    assert "ok    token ids: largest id 15, 16 input rows" in str(report)
    assert "0, 0, 0" in items["reward"].measured and {"completions", "end of text"} <= set(items)


def own_settings(policy):
    policy.model.generation_config.update(top_p=0.8, repetition_penalty=1.05)


def a_token_without_a_row(policy):
    policy.tokenizer.add_special_tokens({"additional_special_tokens": ["<think>"]})


def half_with_a_frozen_embedding(policy):
    policy.model.bfloat16().get_input_embeddings().weight.requires_grad_(False)


def nan_of(completion):
    return float("nan" if completion == "NaN" else 0)


COLD = {"prompts": ["12+34="], "temperature": 1e-3, "max_completion_length": 1}
UNFIT = [  # the item, its level, what it measured, the changed arguments, what was done to model and tokenizer
    ("group", "stop", "1 completion", {"num_generations": 1}, None),
    ("group", "stop", "groups of 5", {"num_generations": 5}, None),
    ("group", "look", "groups of 32", {"num_generations": 32}, None),
    ("lengths", "stop", "8 + 512 of", {"max_completion_length": 512}, None),
    ("sampling", "stop", "temperature 0.0", {"temperature": 0.0}, None),
    ("sampling", "look", "top_p 0.9", {"top_p": 0.9}, None),
    ("sampling", "look", "top_k 50", {"top_k": 50}, None),
    ("learning rate", "look", "0.3", {"learning_rate": 0.3}, None),
    ("clipping", "look", "1e9", {"max_grad_norm": 1e9}, None),
    ("NaN in the log", "look", "", {"logging_nan_inf_filter": True}, None),
    ("the model's own settings", "look", "top_p 0.8, repetition_penalty 1.05", {}, own_settings),
    ("token ids", "stop", "<think>", {}, a_token_without_a_row),
    ("token ids", "look", "24 input rows", {}, lambda policy: policy.model.resize_token_embeddings(24)),
    ("padding", "stop", "pad None", {}, lambda policy: setattr(policy.tokenizer, "pad_token", None)),
    ("weights", "stop", "none", {}, lambda policy: policy.model.requires_grad_(False)),
    ("weights", "stop", "float16", {}, lambda policy: policy.model.half()),
    ("weights", "look", "median weight", {"learning_rate": 1e-9}, half_with_a_frozen_embedding),
    ("checkpointing", "look", "re-entrant", {"gradient_checkpointing": True}, half_with_a_frozen_embedding),
    ("reward", "stop", "ValueError", {"reward": lambda prompts, completions: [float(c) for c in completions]}, None),
    ("reward", "stop", "'NaN'", {"reward": lambda prompts, completions: [nan_of(c) for c in completions]}, None),
    ("reward", "stop", "1 rewards for 5", {"reward": lambda prompts, completions: [0.0]}, None),
    ("reward", "stop", "TypeError", {"reward": lambda prompts, completions: [None for c in completions]}, None),
    ("completions", "look", "1 distinct of 8", COLD, None),
    ("end of text", "look", "100% of 1 tokens", COLD, None),
]


@pytest.mark.parametrize(("name", "level", "measured", "changes", "spoil"), UNFIT)
def test_what_does_not_fit_is_named_with_the_way_out(fresh, name, level, measured, changes, spoil):
    if spoil:
        spoil(fresh)
    report, items = check(fresh, **changes)
    assert items[name].level == level and measured in items[name].measured and items[name].way_out
    assert level != "stop" or not report


def test_several_processes_make_the_batch(tiny, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "7")
    _, items = check(tiny, per_device_train_batch_size=1)  # open-r1#249
    assert items["group"].level == "stop" and "7 completions" in items["group"].measured
