"""The ways to seat policy, reference and reward model on cards, and the bytes that each way takes per card."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from labkit.memory import Shape, predict

FROZEN = ("reference", "reward")
_CALLED = {"parameter": "weights", "optimizer": "optimizer state"}


@dataclass(frozen=True)
class Card:
    """One GPU: what it has, who sits there, and the bytes at its fullest moment, by owner and kind."""

    total: int
    residents: tuple[str, ...]
    parts: dict[str, int]  # "policy weights", "policy optimizer state", "reference weights", "logits", ...
    phase: str  # of that moment; "" on an empty card

    @property
    def bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def share(self) -> float:
        """Of the card."""
        return self.bytes / self.total

    def __str__(self) -> str:
        return f"{' + '.join(self.residents)}, {self.phase}" if self.residents else "nobody"


@dataclass(frozen=True)
class Layout:
    """A seat for everybody. The copies of the policy share the prompts of a step: `share` is the most that one has."""

    cards: tuple[Card, ...]
    copies: int
    share: int

    @property
    def fullest(self) -> float:
        """The largest share of a card that is taken."""
        return max(card.share for card in self.cards)

    def fits(self, spare: float) -> bool:
        """Whether every card leaves `spare` of itself free."""
        return self.fullest <= 1 - spare


@dataclass(frozen=True)
class _Resident:
    """What somebody holds all the time, and on top of it in each phase of a step: bytes by kind."""

    standing: dict[str, int]
    phases: dict[str, dict[str, int]]


def layouts(totals: tuple[int, ...], shape: Shape, settings: dict[str, Any]) -> Iterator[Layout]:
    """Every way to seat them: the policy on some cards, each frozen model beside every copy of it or on one card."""
    work = {**settings}
    frozen = [name for name in FROZEN if work.pop(name)]
    if work.get("lora"):
        # The policy without its adapter is the reference.
        frozen = [name for name in frozen if name != "reference"]
    for copies in range(1, min(len(totals), work["batch"]) + 1):
        share = -(-work["batch"] // copies)
        passes = min(work.get("micro_batches", 1), share * work["group"])
        if share * work["group"] % passes:
            continue
        residents = _residents(shape, tuple(sorted({**work, "batch": share, "micro_batches": passes}.items())))
        card = functools.cache(functools.partial(_card, residents))
        for holders in _holders(totals, copies):
            places = [holders, *((at,) for at in range(len(totals)) if (at,) != holders)]
            for seats in itertools.product(places, repeat=len(frozen)):
                where = {"policy": holders, **dict(zip(frozen, seats, strict=True))}
                here = [tuple(name for name, cards in where.items() if at in cards) for at in range(len(totals))]
                yield Layout(tuple(map(card, totals, here)), copies, share)


def _holders(totals: tuple[int, ...], copies: int) -> list[tuple[int, ...]]:
    """Which cards may hold the policy; of choices that differ in nothing but the number of a card, the first."""
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for holders in itertools.combinations(range(len(totals)), copies):
        found.setdefault(tuple(sorted(totals[at] for at in holders)), holders)
    return list(found.values())


def _card(residents: dict[str, _Resident], total: int, here: tuple[str, ...]) -> Card:
    """The phases of a step come one after the other, and so do the residents within one."""
    if not here:
        return Card(total, (), {}, "")
    busy = [(name, phase, terms) for name in here for phase, terms in residents[name].phases.items()]
    name, phase, terms = max(busy, key=lambda at: sum(at[2].values()))
    standing = {f"{owner} {_CALLED[kind]}": size for owner in here for kind, size in residents[owner].standing.items()}
    parts = {kind: size for kind, size in (standing | terms).items() if size}
    return Card(total, here, parts, phase if name == "policy" else f"score ({name})")


@functools.lru_cache(maxsize=256)
def _residents(shape: Shape, settings: tuple[tuple[str, Any], ...]) -> dict[str, _Resident]:
    """Policy, reference and reward model, each with the rows of one copy of the policy at a time."""
    work = dict(settings)
    alone = {**work, "optimizer": "sgd", "lora": 0}
    # A reward model has the policy's layers and its whole embedding table, and a head of one number, not of logits.
    reward = _frozen(replace(shape, vocab=1), alone)
    reward.standing["parameter"] += 4 * (shape.vocab - 1) * shape.width
    phases = {phase.name: phase.by_category for phase in predict(shape, **work).phases}
    # The optimizer's step takes scratch memory of its own, under the name of its state: the least is what stands.
    standing = {kind: min(held.get(kind, 0) for held in phases.values()) for kind in ("parameter", "optimizer")}
    beyond = {
        name: {kind: size - standing.get(kind, 0) for kind, size in held.items()} for name, held in phases.items()
    }
    return {"policy": _Resident(standing, beyond), "reference": _frozen(shape, alone), "reward": reward}


def _frozen(shape: Shape, work: dict[str, Any]) -> _Resident:
    score = next(phase for phase in predict(shape, **work).phases if phase.name == "score").by_category
    return _Resident({"parameter": score.pop("parameter")}, {"score": score})
