"""What lesson 05 uses and does not teach: the loop around the update, one evaluation alone, and what a run says.

The evaluation and the update are arguments everywhere, and stand in the notebook. Beside this file:

    lesson_05_card      the model, and the card that it is on
    lesson_05_judges    what judges the reader's evaluation, and the runs of the last exercise
    lesson_05_pictures  the drawings, and what is computed for them
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from labkit import memory, sandbox
from labkit.events import Run, Step

from .lesson_05_card import CARD, at_once, model_on_card, tokens

UPDATES = 9
ROWS, LENGTH = 8, 448  # completions of an update, and their tokens
SHORTEST, LONGEST = 340, 372  # tokens of an evaluation's batches: the seed draws them

Evaluate = Callable[[Any, Sequence[torch.Tensor], list[Any]], None]
Update = Callable[[Any, Any, torch.Tensor], Any]


def batches(dice: random.Random, where: Any, rows: int) -> list[torch.Tensor]:
    """The two batches of an evaluation."""
    sizes = [dice.randrange(SHORTEST, LONGEST) for _ in range(2)]
    return [tokens(where, rows, size) for size in sizes]


def train(
    evaluate: Evaluate,
    update: Update,
    *,
    rows: int,
    before: Sequence[int],
    card: int,
    seed: int,
    where: str,
    updates: int = UPDATES,
    layers: int = 3,
    kind: str = "float32",
) -> Iterator[dict[str, Any] | Step]:
    """Updates of 8 completions each, and before some of them an evaluation of two batches of `rows` rows.

    Yields {"held": bytes, "owned": bytes} before each update. After an evaluation that has "evaluation", its peak over
    what was held, and "not owned": bytes held minus owned right before and right after it. And after each update a
    `Step`: "held_bytes", "peak_bytes".
    """
    dice = random.Random(seed)
    with model_on_card(where, card, kind, layers) as (model, meter):
        kept: list[Any] = []
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
        for step in range(1, updates + 1):
            evaluation = {}
            if step in before:
                evaluation = _evaluated(evaluate, kept, dice, rows, model, optimizer, meter)
            held = meter.read().allocated
            yield {"held": held, "owned": memory.owned(model, optimizer)} | evaluation
            meter.reset_peak()
            update(model, optimizer, tokens(model.device, ROWS, LENGTH))
            now = meter.read()
            used = {"memory_allocated": now.allocated, "memory_reserved": now.reserved}
            more = {"peak_bytes": now.peak_allocated, "held_bytes": held}
            yield Step(step=step, round=step, **used, extra=more)


def _evaluated(
    evaluate: Evaluate,
    kept: list[Any],
    dice: random.Random,
    rows: int,
    model: Any,
    optimizer: Any,
    meter: Any,
) -> dict[str, Any]:
    """Evaluate once, and read the card right before and right after it."""
    meter.reset_peak()
    held = meter.read().allocated
    not_owned = held - memory.owned(model, optimizer)
    evaluate(model, batches(dice, model.device, rows), kept)
    now = meter.read()
    not_owned_after = now.allocated - memory.owned(model, optimizer)
    return {"evaluation": now.peak_allocated - held, "not owned": (not_owned, not_owned_after)}


def one_evaluation(
    evaluate: Evaluate,
    seed: int,
    rows: int,
    where: str,
    kind: str = "float32",
    look: Callable[[Any, list[Any]], Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """What one evaluation leaves, and its peak over what was held before it: bytes.

    look  called with the model and `kept` while the card is there; what it returns is "seen"
    """
    with model_on_card(where, CARD, kind) as (model, meter):
        kept: list[Any] = []
        meter.reset_peak()
        before = meter.read().allocated
        evaluate(model, batches(random.Random(seed), model.device, rows), kept)
        after = meter.read()
        seen = look(model, kept) if look else None
        yield {
            "left": after.allocated - before,
            "peak": after.peak_allocated - before,
            "seen": seen,
        }


def segments_after(
    evaluate: Evaluate, update: Update, rows: int, seed: int, where: str
) -> Iterator[Any]:
    """The allocator's segments after two updates and an evaluation, each block with the stack of whoever asked for it.

    The frames of the simulation itself are left out.
    """
    with model_on_card(where, CARD, stacks=True) as (model, meter):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        kept: list[Any] = []
        for _ in range(2):
            update(model, optimizer, tokens(model.device, ROWS, LENGTH))
        evaluate(model, batches(random.Random(seed), model.device, rows), kept)
        if where == "cuda":
            segments = torch.cuda.memory._snapshot()["segments"]
        else:
            segments = meter.simulated.snapshot()
        for segment in segments:
            for block in segment["blocks"]:
                frames = [frame for frame in block.get("frames", []) if not _simulates(frame)]
                block["frames"] = frames
        yield segments


def _simulates(frame: Mapping[str, Any]) -> bool:
    here = frame["name"] == "__torch_dispatch__"
    return here or f"props{os.sep}card" in frame["filename"]


def measured(
    ways: Mapping[Any, Mapping[str, Any]], rows: int, seed: int, where: str
) -> dict[Any, dict[str, int]]:
    """name -> what one evaluation leaves and takes, each on a card of its own; a way that did not return has none.

    A way gives `one_evaluation` its "evaluate", a "kind" if it has one, and "rows" if they are others.
    """
    settings = {"rows": rows, "seed": seed, "where": where}
    runs = sandbox.run_all(one_evaluation, ways, at_once=at_once(where), timeout=180, **settings)
    return {name: run.events[0] for name, run in runs.items() if run.events}


# ---- what a run says


def held(run: Run) -> list[int]:
    """Bytes allocated before each update, the refused one included."""
    return [event["held"] for event in run.events if isinstance(event, dict)]


def owned(run: Run) -> list[int]:
    """Bytes of model, gradients and optimizer state before each update."""
    return [event["owned"] for event in run.events if isinstance(event, dict)]


def needs(run: Run) -> list[int]:
    """What each update took at its peak over what was held before it; without the first, in which AdamW's state comes."""
    return [int(step["peak_bytes"] - step["held_bytes"]) for step in run.steps[1:]]


def evaluations(run: Run) -> list[int]:
    """What each evaluation took at its peak over what was held before it."""
    events = [event for event in run.events if isinstance(event, dict)]
    return [event["evaluation"] for event in events if "evaluation" in event]
