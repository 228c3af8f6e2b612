import ast
import dataclasses
import functools
import inspect
import json
from types import SimpleNamespace

import pytest
import torch
from cut import bug_cells, installed, path_of

import labkit
from labkit.checks import memory_budget

GIB = 2**30
GIVEN = {"batch": 24, "group": 8, "prompt": 256, "new_tokens": 768, "reference": True}  # the lesson's
SMALL = {"batch": 4, "group": 2, "prompt": 32, "new_tokens": 96}


def cell(text, **space):
    """The names that the lesson's one code cell with this text defines, run in `space`."""
    cells = json.loads(path_of("11").read_text())["cells"]
    (source,) = ["".join(c["source"]) for c in cells if c["cell_type"] == "code" and text in "".join(c["source"])]
    exec(compile(source, "lesson 11", "exec"), space)
    return space


def smaller(given):
    return {**given, "micro_batches": 12, "checkpointing": True, "amp": True}


def test_the_solution_can_be_pasted_and_passes():
    quiet = type("quiet", (), {"exercise": staticmethod(lambda *_, **__: None)})
    solution = cell("def solution(", labkit=quiet, judge=None, my_settings=None)["solution"]
    assert solution(GIVEN) == smaller(GIVEN)
    assert memory_budget(solution, GIVEN, 16 * GIB, spare=0.25, prove=False)


def test_the_report_s_recipe_is_another_training_run_though_its_accumulation_is_not():
    report = memory_budget(bug_cells("11")["report_settings"], GIVEN, 16 * GIB, prove=False)
    assert not report and report.seen["changed"] == ["new_tokens", "lora"]
    split = memory_budget(lambda given: {**given, "micro_batches": 2}, GIVEN, 16 * GIB, prove=False)
    assert not split and "changed" not in split.seen


def test_the_chunked_loss_of_the_lesson_gives_the_usual_log_probabilities_and_gradients(tiny):
    from torch.utils.checkpoint import checkpoint

    names = {"labkit": labkit, "torch": torch, "functools": functools, "checkpoint": checkpoint}
    cells = [c for c in json.loads(path_of("11").read_text())["cells"] if c["cell_type"] == "code"]
    for source in ("".join(c["source"]) for c in cells):
        defs = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)] if "def " in source else []
        for found in (n for n in defs if n.name in ("head_logprobs", "usual", "chunked")):
            exec(compile(ast.Module([found], []), "lesson 11", "exec"), names)
    ids = torch.randint(tiny.vocab, (6, 12), generator=torch.Generator().manual_seed(0))
    made = []
    for logprobs in (names["usual"], names["chunked"]):
        tiny.model.zero_grad()
        logp = logprobs(tiny.model, ids, torch.ones_like(ids), 5)
        logp.mean().backward()
        made.append((logp.detach(), torch.cat([p.grad.flatten() for p in tiny.model.parameters()])))
        tiny.model.zero_grad()
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("names", [("activation", "gradient"), ("gradient",)], ids=["5.23", "5.17"])
def test_checkpointing_is_switched_on_by_the_name_that_transformers_has(names):
    asked = []
    methods = {f"{name}_checkpointing_enable": functools.partial(asked.append, name) for name in names}
    model = SimpleNamespace(**methods, train=lambda: model)
    auto = SimpleNamespace(from_config=lambda config, dtype: model)
    build = cell("def build(", torch=torch, GPT2Config=dict, AutoModelForCausalLM=auto)["build"]
    assert build(SimpleNamespace(dtype=torch.float32), checkpointing=True) is model and asked == [names[0]]


def test_what_the_lesson_says_about_grouped_queries_under_a_mask():
    text = installed("transformers", "integrations/sdpa_attention.py")
    assert "return attention_mask is None and key.shape[-1] == value.shape[-1] <= 256" in text
    assert "key = repeat_kv(key, module.num_key_value_groups)" in text


def test_what_the_lesson_says_about_the_options_of_transformers_and_trl():
    from transformers import TrainingArguments

    fields = {f.name: f for f in dataclasses.fields(TrainingArguments)}
    assert not fields["activation_checkpointing"].default and not fields["bf16"].default
    assert {"per_device_train_batch_size", "gradient_accumulation_steps"} <= set(fields)
    trl = pytest.importorskip("trl")
    fields = {f.name: f for f in dataclasses.fields(trl.GRPOConfig)}
    assert fields["gradient_checkpointing"].default is True
    trainer = installed("trl", "trainer/grpo_trainer.py")
    assert "add_fused_lm_head(" in trainer and "labels=labels, fused_lm_head=True)" in trainer
    head = inspect.getsource(pytest.importorskip("trl.trainer.utils").add_fused_lm_head)
    assert "without materializing the `(batch, seq_len, vocab)` logits" in head


def test_splitting_alone_leaves_the_cache_of_the_rollout_and_the_check_names_it():
    report = memory_budget(lambda given: {**given, "micro_batches": 96}, GIVEN, 16 * GIB, prove=False)
    assert not report and report.seen["in"] == "generate" and "kv-cache" in report.hint


@pytest.mark.parametrize(
    "wrong, words",
    [
        (lambda given: given, "largest term"),
        (lambda given: {"micro_batches": 4, "amp": True}, "another training run"),
        (lambda given: {**given, "optimizer": "sgd"}, "another training run"),
        (lambda given: {**given, "reference": False}, "another training run"),
        (lambda given: {**given, "micro_batches": 7}, "does not divide"),
        (lambda given: {**given, "checkpoint": True}, "cannot be"),
        (lambda given: given.update(amp=True), "Expected a dict"),
        (None, "no function yet"),
    ],
)
def test_settings_that_change_the_run_or_do_not_fit_are_refused_and_say_why(wrong, words):
    report = memory_budget(wrong, GIVEN, 16 * GIB, prove=False)
    assert not report and words in f"{report.seen} {report.hint}", report


def test_a_proof_runs_the_step_on_a_card_of_that_size():
    """No tenth to spare, and a limit that the prediction just meets: the allocator has the last word."""
    from labkit.memory import Shape, predict

    shape = Shape(layers=2, width=128, heads=4, vocab=8000, positions=128)
    split = {**SMALL, "micro_batches": 2}
    need = predict(shape, **split).peak
    tight = memory_budget(lambda given: split, SMALL, need, spare=0.0, model=shape)
    assert not tight and tight.seen["measured"] == "out of memory"
    roomy = memory_budget(lambda given: split, SMALL, int(need * 1.4), spare=0.0, model=shape)
    assert roomy and roomy.seen["measured"].endswith("MiB")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_solution_of_the_exercise_really_runs_on_a_16_gib_card():
    assert memory_budget(smaller, GIVEN, 16 * GIB, spare=0.25)
