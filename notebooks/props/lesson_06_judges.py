"""Lesson 06: the judges of its exercises, and the unseen logs.

What is right stands here, so a page that is read from top to bottom does not import it before the exercise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from props import diagnosis
from props import lesson_06 as lab
from props.lesson_06 import HALF, Rotation
from props.lesson_06_way import AFTER, BEFORE, MADE, STORED, Way, ways
from torch import Tensor

from labkit.checks import Report

# ------------------------------------------------------------------------------------------------ the judge


def judge_rotation(
    mine: Rotation,
    rotary: Rotation,
    beside_the_bug: Callable[[Rotation], Iterator[dict[str, float]]],
) -> Report:
    """Does a rotation keep the dtype in which q and k come, with `rotary`'s numbers, rounded once; does the rollout of
    the page have its cache as planned, and the bug's logits?"""
    claim = "the cache has the planned size, and no logit moves"

    def no(hint: str, **seen: Any) -> Report:
        return Report("my_rotary", claim, False, seen, hint)

    torch.manual_seed(0)
    q, k = torch.randn(2, 2, lab.HEADS, 6, lab.HEAD_SIZE)
    cos, sin = torch.randn(2, 2, 6, lab.HEAD_SIZE)
    for dtype in (HALF, torch.float16, torch.float32):
        given = q.to(dtype), k.to(dtype)
        answer, right = mine(*given, cos, sin), rotary(*given, cos, sin)
        if not isinstance(answer, tuple) or len(answer) != 2:
            return no(f"It returned {type(answer).__name__}. Expected are two tensors, q and k.")
        for name, got, wanted in zip(("query", "key"), answer, right, strict=True):
            if got.shape != wanted.shape:
                return no(f"The {name} has the shape {list(got.shape)}, not {list(wanted.shape)}.")
            if name == "key" and got.dtype != dtype:
                return no(f"A {lab.word(dtype)} key comes out as {lab.word(got.dtype)}.")
            # attention rounds the query itself, so a query that stays wide is right, too
            if not torch.equal(got.to(dtype), wanted.to(dtype)):
                return no(
                    f"The {name} has other numbers than `rotary`'s, rounded once to {lab.word(dtype)}. "
                    "Turn first, and round what comes out."
                )
    (seen,) = beside_the_bug(mine)
    if seen["cache / plan"] != 1:
        return no("The cache has other bytes than the plan.", **seen)
    if seen["largest change of a logit"] != 0:
        return no("The cache fits, but a logit moved: something else is computed now.", **seen)
    return Report("my_rotary", claim, True, seen)


# ------------------------------------------------------------------------------------------------ unseen logs


def log_of(way: Way) -> dict[str, str]:
    """What is printed of a way: the dtype of the key at four stations, and of the value at two."""
    log = {}
    for station in (MADE, BEFORE, AFTER, STORED):
        log[f"key, {station}"] = way["key"][station][0]
    for station in (MADE, STORED):
        log[f"value, {station}"] = way["value"][station][0]
    return log


def unseen_logs(
    rotary: Rotation, cast_back: Rotation, seed: int, device: torch.device
) -> list[tuple[str, dict[str, str]]]:
    """Seven models that the page does not show so, in an order that the seed decides: (cause, log)."""
    cases: dict[str, dict[str, Any]] = {
        "rotation": {"model": "Qwen2", "rotation": rotary},
        "norm 1": {"model": "Qwen3", "rotation": rotary},
        "norm 2": {"model": "Qwen3", "rotation": cast_back},
        "nothing 1": {"model": "OLMo 2", "rotation": None},
        "nothing 2": {"model": "Cohere", "rotation": None},
        "store": {"model": "Cohere", "rotation": None, "store": "float32"},
        "no autocast": {"model": "Qwen2", "rotation": cast_back, "autocast": None},
    }
    logs = {name: log_of(way) for name, way in ways(cases, seed, device).items()}
    return diagnosis.shuffled(logs, seed)


def shown_logs(
    rotary: Rotation, mine: Rotation, seed: int, device: torch.device
) -> list[dict[str, str]]:
    """For `labkit.table`: the bug and three others whose cache is float32, with the cause in front."""
    cases: dict[str, dict[str, Any]] = {
        "rotation": {"rotation": rotary},
        "norm": {"rotation": mine, "model": "Qwen3"},
        "store": {"rotation": mine, "store": "float32"},
        "no autocast": {"rotation": mine, "autocast": None},
    }
    rows = []
    for cause, way in ways(cases, seed, device).items():
        row = {"cause": cause}
        for station in (MADE, BEFORE, AFTER, STORED):
            row[f"key, {station}"] = way["key"].get(station, ("died",))[0]
        rows.append(row)
    return rows


# ------------------------------------------------------------------------------------------------ Qwen3


def judge_norms(
    mend: Callable[[Any], None], cast_back: Rotation, seed: int, device: torch.device
) -> Report:
    """Does an answer change a Qwen3 so that its cache is as planned, and nothing else?"""
    claim = "the cache of a Qwen3 has the planned size"
    model, prompts = lab.small("Qwen3", seed, device), lab.random_prompts(seed, device)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rope = model.model.rotary_emb
    frequencies = rope.inv_freq.clone()

    def forward() -> tuple[Tensor, Any]:
        with torch.autocast(device.type, HALF), torch.no_grad():
            out = model(prompts, use_cache=True)
        return out.logits.float().log_softmax(-1), out.past_key_values

    with lab.rotating_with(cast_back, model):
        before, _ = forward()
        mend(model)
        after, cache = forward()
    ratio, moved = lab.by_plan(cache), float((after - before).abs().max())
    seen = {"cache / plan": ratio, "largest change of a log-prob, nats": moved}
    same = rope.inv_freq.dtype == torch.float32 and torch.equal(rope.inv_freq, frequencies)
    for name, tensor in model.state_dict().items():
        same = same and tensor.dtype == torch.float32 and torch.equal(tensor, weights[name])
    hint = ""
    if ratio != 1:
        hint = f"The cache has {ratio:.2f} times the bytes of the plan. Where is the key float32 first?"
    elif not same:
        hint = "The cache fits, but weights or frequencies have changed: the trainer's model is another one now."
    elif moved > 0.05:
        hint = f"The cache fits, but a log-prob moved by {moved:.2g} nats: the model computes something else now."
    return Report("my_norms", claim, not hint, seen, hint)
