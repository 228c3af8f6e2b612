"""What `more/07` uses and does not teach: a card after a round, a table of it, and the judge of its exercise."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from labkit.checks.report import Report

from . import lesson_07
from .card import Allocator
from .lesson_07 import GIB, MIB, Calls, play


def card_at(calls: Calls, moment: str, card_gib: float) -> tuple[Allocator, dict[int, str]]:
    """A simulated card of this size when the run comes to this mark; and address -> phase in which a block was made."""
    card, born = Allocator(int(card_gib * GIB)), {}
    for _, phase, born in play(calls, card):  # noqa: B007 where it stopped
        if phase == moment:
            break
    return card, born


def card_after_round_1(calls: Calls, card_gib: float) -> Allocator:
    """A simulated card of this size, as the first round leaves it."""
    return card_at(calls, "round 1, over", card_gib)[0]


def two_largest(calls: Calls, card_gib: float) -> list[dict[str, Any]]:
    """The two largest segments before the learning of round 1 and at its end, and what lies in them."""
    rows = []
    for words, moment in {"before the learning": "learn", "at the end": "over"}.items():
        card, born = card_at(calls, f"round 1, {moment}", card_gib)
        segments = sorted(lesson_07.rows_of(card, born), key=lambda row: -row["size"])[:2]
        for number, segment in enumerate(segments, 1):
            inside = [
                f"{lesson_07.WORDS.get(name, name)}, {size / MIB:.0f} MiB"
                for name, size in lesson_07.sums(segment["in"])
            ]
            row = {"round 1": words, "segment": number, "MiB": round(segment["size"] / MIB)}
            rows.append(row | {"in it": "; ".join(inside) or "nothing: it can go back"})
    return rows


def figures(card: Allocator) -> dict[str, float]:
    """What the driver's counters and PyTorch's say of a card, in GiB."""
    sizes = {
        "allocated": card.allocated_bytes,
        "reserved": card.reserved_bytes,
        "free for others": card.free_bytes,
    }
    return {name: round(size / GIB, 2) for name, size in sizes.items()}


def price_of(calls: Calls, card_gib: float) -> dict[str, int]:
    """How often a run that ends on a card of this size asks the driver for memory, and gives it back."""
    card = Allocator(int(card_gib * GIB))
    for _ in play(calls, card):
        pass
    return {
        "segments asked of the driver": card.num_device_alloc,
        "given back": card.num_device_free,
    }


def smallest(calls: Calls) -> float:
    """The smallest simulated card for a run, GiB, also for a run that leaks for many rounds."""
    return lesson_07.smallest(calls, high=30.0)


def peak(calls: Calls) -> float:
    """The most GiB that are in tensors at one time: no card can be smaller."""
    card = Allocator(40 * GIB)
    for _ in play(calls, card):
        pass
    return card.peak_allocated_bytes / GIB


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
