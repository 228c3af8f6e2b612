"""`labkit.preflight`: each item on a model and arguments that fit, and on ones that do not."""

import copy
from types import SimpleNamespace

import pytest
import torch

import labkit
from labkit import policy, task
from labkit.checklist import Preflight

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


@pytest.fixture
def tiny(monkeypatch):
    for name in ("WORLD_SIZE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    return policy.load("tiny", "cpu")


def check(tiny, model=None, tokenizer=None, **changes) -> Preflight:
    args = SimpleNamespace(**{**FITS, **changes})
    return labkit.preflight(model or tiny.model, tokenizer or tiny.tokenizer, args)


def test_what_fits_is_ok_throughout(tiny):
    report = check(tiny)
    assert report and {item.level for item in report.items} == {"ok"}, str(report)
    assert "ok    token ids: largest id 15, 16 input rows" in str(report)


@pytest.mark.parametrize(
    ("item", "word", "changes"),
    [
        ("group", "stop", {"num_generations": 1}),
        ("group", "stop", {"num_generations": 5}),
        ("group", "look", {"num_generations": 32}),
        ("lengths", "stop", {"max_completion_length": 512}),
        ("sampling", "stop", {"temperature": 0.0}),
        ("sampling", "look", {"top_p": 0.9}),
        ("sampling", "look", {"top_k": 50}),
        ("learning rate", "look", {"learning_rate": 0.3}),
        ("clipping", "look", {"max_grad_norm": 1e9}),
        ("NaN in the log", "look", {"logging_nan_inf_filter": True}),
    ],
)
def test_an_argument_that_does_not_fit(tiny, item, word, changes):
    report = check(tiny, **changes)
    assert report[item].level == word and report[item].way_out
    assert bool(report) == (word != "stop")


def test_several_processes_make_the_batch(tiny, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "7")
    report = check(tiny, per_device_train_batch_size=1)  # open-r1#249
    assert report["group"].level == "stop" and "7 completions" in report["group"].measured


def test_tokens_without_a_row_and_rows_without_a_token(tiny):
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>"]})
    report = check(tiny, tokenizer=tokenizer)
    assert report["token ids"].level == "stop" and "<think>" in report["token ids"].measured
    padded = copy.deepcopy(tiny.model)
    padded.resize_token_embeddings(24)
    assert check(tiny, model=padded)["token ids"].level == "look"
    tokenizer.pad_token = None
    assert check(tiny, tokenizer=tokenizer)["padding"].level == "stop"


def test_weights_that_cannot_train(tiny):
    frozen = copy.deepcopy(tiny.model).requires_grad_(False)
    assert check(tiny, model=frozen)["weights"].level == "stop"
    assert check(tiny, model=copy.deepcopy(tiny.model).to(torch.float16))["weights"].level == "stop"
    half = copy.deepcopy(tiny.model).to(torch.bfloat16)
    assert check(tiny, model=half, learning_rate=1e-9)["weights"].level == "look"
    half.get_input_embeddings().weight.requires_grad_(False)
    assert check(tiny, model=half, gradient_checkpointing=True)["checkpointing"].level == "look"


def test_settings_of_the_models_own_are_told(tiny):
    own = copy.deepcopy(tiny.model)
    own.generation_config.update(top_p=0.8, repetition_penalty=1.05)
    assert check(tiny, model=own)["the model's own settings"].measured == "top_p 0.8, repetition_penalty 1.05"


@pytest.mark.parametrize(
    ("reward", "word", "seen"),
    [
        (lambda prompts, completions: task.rewards(prompts, completions), "ok", "0, 0, 0"),
        (lambda prompts, completions: [float(c) for c in completions], "stop", "ValueError"),
        (lambda prompts, completions: [float("nan") if c == "NaN" else 0.0 for c in completions], "stop", "'NaN'"),
        (lambda prompts, completions: [0.0], "stop", "1 rewards for 5"),
        (lambda prompts, completions: [None for c in completions], "stop", "TypeError"),
    ],
)
def test_a_reward_function_is_called_on_answers_that_break_careless_ones(tiny, reward, word, seen):
    report = labkit.preflight(tiny.model, tiny.tokenizer, SimpleNamespace(**FITS), reward=reward, prompts=None)
    assert report["reward"].level == word and seen in report["reward"].measured


def test_a_group_is_sampled_and_its_ends_are_counted(tiny):
    args = SimpleNamespace(**FITS)
    report = labkit.preflight(tiny.model, tiny.tokenizer, args, prompts=["12+34=", "57+42="])
    assert report["completions"].level == "ok" and report["end of text"].level == "ok"
    cold = SimpleNamespace(**{**FITS, "temperature": 1e-3, "max_completion_length": 1})
    report = labkit.preflight(tiny.model, tiny.tokenizer, cold, prompts=["12+34="])
    assert report["completions"].level == "look" and "1 distinct of 8" in report["completions"].measured
    assert report["end of text"].level == "look"


def test_a_name_that_is_no_item_and_a_model_that_is_none(tiny):
    with pytest.raises(KeyError, match="no item 'xyz'; there are token ids"):
        check(tiny)["xyz"]
    with pytest.raises(TypeError, match="model must be a torch module"):
        labkit.preflight("gpt2", tiny.tokenizer, SimpleNamespace())
