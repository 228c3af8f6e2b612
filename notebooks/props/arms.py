"""Arms and seeds: the same run with one thing changed, on several seeds, side by side in children.

Shared by the pages that train. This file knows no lesson and draws nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from labkit import sandbox
from labkit.events import Run
from labkit.grpo import Hooks, train
from labkit.grpo.batch import Batch
from labkit.grpo.grads import Update

LIMIT = 60.0  # seconds of a run: a reader's function that does not come back ends there


def side_by_side(
    arms: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    function: Callable[..., Any] = train,
    **common: Any,
) -> dict[str, list[Run]]:
    """Run every arm on every seed, as many at once as there are cores.

    arms      name -> the settings that make it; they go over the common ones
    function  a generator of events, `labkit.grpo.train` where none is named

    Returns name -> its runs, one for each seed. A run that died is a run like any other.
    """
    jobs = {}
    for name, settings in arms.items():
        for seed in seeds:
            jobs[f"{name}, seed {seed}"] = {**common, **settings, "seed": seed}
    done = sandbox.run_all(function, jobs, timeout=LIMIT)
    return {name: [done[f"{name}, seed {seed}"] for seed in seeds] for name in arms}


def first_batch(task: str, **settings: Any) -> Batch:
    """The batch of round 1 of a run with these settings. Nothing is learned from it."""
    batches: list[Batch] = []

    def keep(part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
        batches.append(part)
        return {}

    hooks = Hooks(probe=keep, update=lambda model, optimizer: Update(0.0))
    for _ in train(task, **settings | {"rounds": 1, "mu": 1, "hooks": hooks}):
        pass
    (batch,) = batches
    return batch


def last_exam(run: Run, family: str | None = None) -> float:
    """The chance of a right answer after the last round; 0 where the run died or its policy gives NaN.

    Of the family named, or the mean over all.
    """
    if not run.outcome:
        return 0.0
    chance = run.exam(family)[-1]
    return 0.0 if chance != chance else chance


def gain(run: Run, family: str | None = None) -> float:
    """By how much the exam rose, from before training to the last one; 0 where the run died or its policy gives NaN.

    Of the family named, or the mean over all.
    """
    if not run.outcome:
        return 0.0
    exams = run.exam(family)
    rise = exams[-1] - exams[0]
    return 0.0 if rise != rise else rise


def largest(run: Run, series: str) -> float:
    """The largest value of a series; inf where one was no number."""
    values = [float(value) for value in run[series]]
    return max(
        (value if value == value else float("inf") for value in values), default=float("inf")
    )
