"""Page 07's simulated cards: what they refuse, what lies on them, and how small they may be.

All of it is arithmetic of the allocator's decisions on a recorded run: nothing here starts a process that trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labkit import sandbox

from .card import Allocator, OutOfMemory
from .children import events_of
from .lesson_07 import GIB, Pieces, play, segments_of
from .lesson_07_recording import Calls, at_mark, record


def refusal_of(calls: Calls, card_gib: float, settings: str = "") -> OutOfMemory | None:
    """What a simulated card of this size refuses, or None."""
    try:
        for _ in play(calls, Allocator(int(card_gib * GIB), settings)):
            pass
    except OutOfMemory as refusal:
        return refusal
    return None


def card_after_round_1(calls: Calls, card_gib: float, settings: str = "") -> Allocator:
    """A simulated card of this size, as the first round leaves it."""
    card = Allocator(int(card_gib * GIB), settings)
    for _, phase in play(calls, card):
        if phase == "round 1, over":
            break
    return card


def in_large_segments(calls: Calls, card_gib: float, phase: str) -> str:
    """What lies in each segment of more than a GiB when this phase begins, in words."""
    card = Allocator(int(card_gib * GIB))
    for _, now in play(calls, card):
        if now == phase:
            break
    return kinds_in_large(segments_of(card))


def kinds_in_large(segments: Sequence[Pieces]) -> str:
    """What lies in each segment of more than a GiB, in words."""
    words = []
    for pieces in segments:
        if sum(size for _, size in pieces) > GIB:
            tags = {tag for tag, _ in pieces if tag != "free"}
            words.append(" and ".join(sorted(tags)) or "nothing")
    return ", ".join(words)


def at_request(
    calls: Calls, card_gib: float, asked: int, settings: str = ""
) -> tuple[int, list[Pieces], int, bool]:
    """(the call, the segments, bytes asked, False) before the refusal, if the run has one.

    Of a run that finishes the last is True, and the moment that right after the last request of `asked` bytes in
    round 2's scoring.
    """
    card = Allocator(int(card_gib * GIB), settings)
    same = last_request(calls, asked, "round 2, score", "round 2, learn")
    at, after = -1, None
    try:
        for at, _ in play(calls, card):
            if at == same:
                after = (same, segments_of(card), asked, True)
    except OutOfMemory as refusal:
        return at + 1, segments_of(card), refusal.requested, False
    assert after is not None, "the run came past round 2"
    return after


def last_request(calls: Calls, asked: int, begin: str, end: str) -> int:
    """The number of the last request of so many bytes between two marks."""
    numbers = range(at_mark(calls, begin), at_mark(calls, end))
    return max(at for at in numbers if calls[at][0] == "malloc" and calls[at][2] == asked)


def most_in_tensors(calls: Calls) -> float:
    """GiB: the most that is in tensors at one time."""
    card = Allocator(40 * GIB)
    for _ in play(calls, card):
        pass
    return card.peak_allocated_bytes / GIB


def lost_to_pieces(calls: Calls, settings: str = "") -> float:
    """GiB: the smallest simulated card on which the run finishes, to 0.02, minus the most that is in tensors."""
    peak = most_in_tensors(calls)
    low, high = peak - 0.02, 3 * peak
    while high - low > 0.02:
        middle = (low + high) / 2
        if refusal_of(calls, middle, settings) is None:
            high = middle
        else:
            low = middle
    return high - peak


Lost = dict[str, list[float]]  # arm -> GiB that each seed loses to pieces


def lost_and_peak(recorded: Sequence[Calls], arms: Mapping[str, str]) -> tuple[Lost, list[float]]:
    """Of several runs: what each loses under each of the allocator's settings, and the most that it has in tensors."""
    lost_by_arm: Lost = {}
    for arm, text in arms.items():
        lost_by_arm[arm] = [lost_to_pieces(calls, text) for calls in recorded]
    return lost_by_arm, [most_in_tensors(calls) for calls in recorded]


def lost(
    rows: Mapping[str, Mapping[str, Any]], arms: Mapping[str, str], **common: Any
) -> Iterator[tuple[str, Lost, list[float]]]:
    """For each row: its name, and what `lost_and_peak` says of its seeds. Two rows run at a time.

    rows    name -> `seeds`, `grpo_round` and what `record` takes beside; they go over the common ones
    arms    name -> the allocator's settings
    """
    names = list(rows)
    for at in range(0, len(names), 2):
        jobs = {name: {**common, **rows[name]} for name in names[at : at + 2]}
        for name, run in sandbox.run_all(_lost, jobs, timeout=300, arms=arms).items():
            by_arm, peaks = events_of(run, name)[0]
            yield name, by_arm, peaks


def _lost(
    arms: Mapping[str, str], seeds: Sequence[int], **settings: Any
) -> Iterator[tuple[Lost, list[float]]]:
    recorded = [record(seed=seed, **settings) for seed in seeds]
    yield lost_and_peak(recorded, arms)
