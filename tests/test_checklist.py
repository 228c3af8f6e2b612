"""`labkit.preflight`: each item on a model and arguments that fit, and on ones that do not."""

import copy
from types import SimpleNamespace

import pytest
import torch
from transformers.training_args import OptimizerNames

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


def check(policy, reward=None, prompts=None, reference=None, optimizer=None, **changes):
    args = SimpleNamespace(**{**FITS, **changes})
    models = {"reference": reference, "optimizer": optimizer}
    report = labkit.preflight(policy.model, policy.tokenizer, args, reward=reward, prompts=prompts, **models)
    return report, {item.name: item for item in report.items}


def test_what_fits_is_ok_throughout(tiny):
    def reward(prompts, completions, **_):
        return task.rewards(prompts, completions)

    report, items = check(tiny, prompts=["12+34=", "57+42="], reward=reward)
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


def a_second_beginning(policy):
    """A template has written one into the text, and the tokenizer adds one."""
    policy.tokenizer.add_special_tokens({"bos_token": "<bos>"})
    policy.model.resize_token_embeddings(len(policy.tokenizer))
    plain = policy.tokenizer.__class__.__call__

    class Adds(policy.tokenizer.__class__):
        def __call__(self, text, **options):
            return plain(self, self.bos_token + text, **options)

    policy.tokenizer.__class__ = Adds


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
    ("reward", "look", "'NaN'", {"reward": lambda prompts, completions: [nan_of(c) for c in completions]}, None),
    ("reward", "stop", "infinite", {"reward": lambda completions, **_: [float("inf") for c in completions]}, None),
    ("reward", "look", "'solution'", {"reward": lambda completions, solution, **_: [0.0]}, None),
    ("reward order", "stop", "another order", {"reward": lambda completions, **_: [*range(len(completions))]}, None),
    ("reward's arguments", "look", "alone", {"reward": lambda prompts, completions: [0.0 for c in completions]}, None),
    ("reward", "stop", "1 rewards for 5", {"reward": lambda prompts, completions: [0.0]}, None),
    ("reward", "stop", "TypeError", {"reward": lambda prompts, completions: None}, None),
    ("dropout", "look", "drop 0.1", {}, lambda policy: setattr(policy.model.transformer.drop, "p", 0.1)),
    ("beginning", "stop", "two of", {"prompts": ["<bos>12+34="]}, a_second_beginning),
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


QUESTION = [{"role": "user", "content": "12+34="}]


def test_a_reward_gets_the_data_sets_columns_and_a_conversations_messages(tiny):
    seen = []

    async def reward(completions, solution, completion_ids, **_):
        seen.append((completions[0], solution[0]))
        return [None, 0.0, 1.0, 0.5, 0.25]

    async def by_row(completions, solution, **_):
        seen.append((completions[0], solution[0]))
        return [None if not c[0]["content"] else float(len(c[0]["content"])) for c in completions]

    tiny.tokenizer.chat_template = "{{ messages[0]['content'] }}"
    rows = [{"prompt": QUESTION, "solution": "46"}]
    report, items = check(tiny, reward=by_row, prompts=rows)
    assert seen[0] == ([{"role": "assistant", "content": ""}], "46")
    assert items["reward"].level == "ok" and items["reward"].measured.startswith("none, 6,")
    assert "reward order" not in items and items["completions"].level == "ok"
    _, items = check(tiny, reward=reward, prompts=rows)
    assert items["reward order"].level == "stop"


def test_a_reference_with_the_policys_memory_and_an_optimizer_of_another_model_are_stopped(fresh):
    other = copy.deepcopy(fresh.model)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (fresh.model, other)]
    _, items = check(fresh, reference=other, optimizer=optimizers[0])
    assert items["reference"].level == items["optimizer"].level == "ok"
    _, items = check(fresh, reference=fresh.model, optimizer=optimizers[1])
    assert items["reference"].level == items["optimizer"].level == "stop"
    assert "not in it" in items["optimizer"].measured
    # an adapter's reference shares the frozen base, and may
    fresh.model.requires_grad_(False)
    fresh.model.lm_head.weight = torch.nn.Parameter(fresh.model.lm_head.weight.detach().clone())
    _, items = check(fresh, reference=other)
    assert items["reference"].level == "ok"


def test_sgd_is_not_told_about_adamw_however_transformers_spells_it(tiny):
    for name in (OptimizerNames.SGD, "sgd"):
        _, items = check(tiny, learning_rate=0.02, optim=name)
        assert items["learning rate"].level == "ok"
    _, items = check(tiny, learning_rate=0.02, optim=OptimizerNames.ADAMW_TORCH)
    assert items["learning rate"].level == "look"
