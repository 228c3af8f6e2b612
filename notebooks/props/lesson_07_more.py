"""What `more/07` uses and does not teach: a card after a round, a table of it, and the judge of its exercise."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from labkit.checks.report import Report

from . import lesson_07
from .card import Allocator
from .lesson_07 import GIB, MIB, Calls, emptied, play


def card_after_round_1(calls: Calls, card_gib: float) -> Allocator:
    """A simulated card of this size, as the first round leaves it."""
    card = Allocator(int(card_gib * GIB))
    for _, phase, _ in play(calls, card):
        if phase == "round 1, over":
            break
    return card


def figures(card: Allocator) -> dict[str, float]:
    """What the driver's counters and PyTorch's say of a card, in GiB."""
    sizes = {
        "allocated": card.allocated_bytes,
        "reserved": card.reserved_bytes,
        "free for others": card.free_bytes,
    }
    return {name: round(size / GIB, 2) for name, size in sizes.items()}


def segments_asked_for(calls: Calls, phase: str, card_gib: float) -> int:
    """How often a run asks the driver for memory, with `empty_cache` where a phase begins; "" is never."""
    card = Allocator(int(card_gib * GIB))
    for _ in play(emptied(calls, phase) if phase else calls, card):
        pass
    return card.num_device_alloc


def smallest(calls: Calls, phase: str) -> float:
    """The smallest simulated card, GiB, for a run with `empty_cache` where a phase begins; "" is never."""
    return lesson_07.smallest(emptied(calls, phase) if phase else calls)


def situations(seed: int) -> Iterator[tuple[dict[str, Any], bool]]:
    """Requests that are in trouble, and whether `empty_cache` just before them decides."""
    dice = random.Random(seed)
    for number in range(60):
        by = ("PyTorch", "NCCL", "vLLM")[number % 3]
        free = dice.randrange(100) * MIB
        segments = [
            {"size": size, "in tensors": dice.choice([0, 0, size // 4, size])}
            for size in (dice.randrange(2, 400) * MIB for _ in range(5))
        ]
        whole = sum(segment["size"] for segment in segments if segment["in tensors"] == 0)
        asked = free + dice.choice(
            [dice.randrange(1, 200) * MIB, max(whole, MIB), whole + MIB, -MIB * (free > MIB)]
        )
        helps = by != "PyTorch" and free < asked <= free + whole
        yield {"asked": asked, "by": by, "free": free, "segments": segments}, helps


def decides(answer: Callable[..., Any]) -> Report:
    """Judge `answer(asked, by, free, segments)`."""
    claim = "it says when empty_cache decides"
    for number, (given, helps) in enumerate(situations(0)):
        said = answer(**given)
        if bool(said) != helps:
            whole = sum(
                segment["size"] for segment in given["segments"] if segment["in tensors"] == 0
            )
            case = f"{given['by']} asks for {given['asked'] // MIB} MiB, {given['free'] // MIB} are free"
            hint = f"Case {number}: {case}, {whole // MIB} in segments without a tensor; returned {said!r}."
            return Report("decides", claim, False, {}, hint)
    return Report("decides", claim, True)
