"""Lesson 05: who judges the reader's evaluation, and the runs that the last exercise tells apart."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from props.diagnosis import shuffled
from props.lesson_05 import Evaluate, batches, held, owned, train
from props.lesson_05_card import CARD, GIB, at_once, model_on_card

from labkit import checks, sandbox
from labkit.checks.report import Report
from labkit.events import Run
from labkit.grpo import load
from labkit.grpo.exam import evaluating

Log = dict[str, Any]


def judge_evaluate(evaluate: Evaluate) -> Report:
    """On a simulated card what it leaves and takes; on the course's small model, its numbers and what it puts back."""
    kept: list[Any] = []
    with model_on_card("cpu", CARD) as (model, meter):
        given = batches(random.Random(71), model.device, 3)
        meter.reset_peak()
        before = meter.read().allocated
        evaluate(model, given, kept)
        after = meter.read()
        left, peak = after.allocated - before, after.peak_allocated - before
    seen = {
        "one evaluation leaves": f"{left / GIB:.2f} GiB",
        "its own peak": f"{peak / GIB:.2f} GiB",
        "kept": f"{len(kept)} for 2 batches",
    }
    claim = "an evaluation leaves nothing"
    hint = ""
    if len(kept) != 2:
        hint = "Put one number into `kept` for each batch."
    elif left > 2**20:
        hint = "Something of the evaluation is still alive. What does `kept` refer to?"
    elif not all(isinstance(one, (int, float)) for one in kept):
        hint = "What is in `kept` is no number. A tensor may bring a graph along, or a place on the card."
    elif peak > GIB / 2:
        hint = "It leaves nothing, and takes too much while it runs. What is built on the way that nobody needs?"
    if hint:
        return Report("my_evaluate", claim, False, seen, hint)
    return _judge_numbers(evaluate, seen)


def _judge_numbers(evaluate: Evaluate, seen: dict[str, Any]) -> Report:
    policy = load("tiny", "cpu")
    policy.model.loss_type = "ForCausalLM"
    given = [policy.encode(["12+34=", "98+25="])[0], policy.encode(["7+5=", "4+8="])[0]]
    with evaluating(policy.model), torch.no_grad():
        losses = [policy.model(input_ids=ids, labels=ids).loss.item() for ids in given]

    def numbers(model: Any) -> list[Any]:
        kept: list[Any] = []
        evaluate(model, given, kept)
        return kept

    report = checks.leaves_nothing(numbers, policy.model, losses=losses)
    return Report("my_evaluate", report.claim, bool(report), seen, report.hint)


# ---- runs to tell apart


def log_of(run: Run) -> Log:
    """GiB held and owned before each update, and what is held, not owned and not in the base before and after each evaluation.

    The base is what is held and not owned before the first evaluation.
    """
    events = [event for event in run.events if isinstance(event, dict)]
    readings = [event["not owned"] for event in events if "not owned" in event]
    base = readings[0][0]
    return {
        "held": [size / GIB for size in held(run)],
        "owned": [size / GIB for size in owned(run)],
        "before": [(before - base) / GIB for before, _ in readings],
        "after": [(after - base) / GIB for _, after in readings],
    }


def table_of(logs: Mapping[str, Log]) -> list[dict[str, str]]:
    """The logs as rows of a table, every number of them."""
    rows = []
    for name, log in logs.items():
        row = {"run": name}
        row["held before each update, GiB"] = " ".join(f"{size:.2f}" for size in log["held"])
        row["owned, GiB"] = " ".join(f"{size:.2f}" for size in log["owned"])
        pairs = zip(log["before"], log["after"], strict=True)
        readings = "; ".join(f"{before:.2f} → {after:.2f}" for before, after in pairs)
        row["before → after each evaluation (updates 3 and 5), GiB"] = readings
        rows.append(row)
    return rows


def logs_of(
    cases: Mapping[str, Mapping[str, Any]], seed: int, where: str, **settings: Any
) -> dict[str, Log]:
    """case -> its log. A case gives `evaluate` and `update`, and what else is its own."""
    common = {"card": CARD, "seed": seed, "where": where} | settings
    arms = {name: common | dict(case) for name, case in cases.items()}
    runs = sandbox.run_all(train, arms, at_once=at_once(where), timeout=180)
    return {name: log_of(run) for name, run in runs.items()}


def unseen_logs(
    ways: Mapping[str, Callable[..., Any]], seed: int, where: str
) -> list[tuple[str, Log]]:
    """Eight runs with other rows, layers, dtypes and times of evaluation, in an order that the seed draws.

    Of each log only what stands before and after the evaluations; of these two at least, or a leak looks like a result
    that is replaced.
    """
    sound, update = ways["sound"], ways["update"]
    small = {"evaluate": sound, "update": update, "rows": 2, "layers": 1, "updates": 5}
    half = {"kind": "bfloat16"}
    cases = {
        "evaluation 1": small | {"before": (2, 4), "evaluate": ways["only the loss"]},
        "evaluation 2": small | half | {"before": (3, 5), "evaluate": ways["a mean"]},
        "update 1": small | {"before": (2, 4), "update": ways["entropy kept"], "layers": 2},
        "update 2": small | half | {"before": (3, 4), "update": ways["entropy kept"]},
        "replaced 1": small | {"before": (3, 5), "evaluate": ways["replaced"]},
        "replaced 2": small | {"before": (2, 3, 5), "evaluate": ways["replaced"], "rows": 3},
        "nothing 1": small | {"before": (2, 4)},
        "nothing 2": small | half | {"before": (3, 4)},
    }
    logs = logs_of(cases, seed, where)
    for log in logs.values():
        del log["held"], log["owned"]
    return shuffled(logs, seed)
