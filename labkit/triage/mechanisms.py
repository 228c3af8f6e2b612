"""Which mechanism the signs of a log support best: signs.py says what is seen, mechanisms.toml what each is worth.

This is asked last but for health, and its answers are `possible`: a table of six rows seldom names its own cause. The
next best mechanism goes with the answer, and the test that tells the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .log import Log, Seen
from .signs import SIGNS

LEAST = 2.5  # weight below which nothing is said
POSSIBLE = "possible"


@dataclass(frozen=True)
class Mechanism:
    """A row of mechanisms.toml. `against` holds negative weights."""

    name: str
    cause: str
    needs: Sequence[str]
    weights: Mapping[str, float]
    against: Mapping[str, float] = field(default_factory=dict)
    least: float = LEAST

    def weight(self, seen: Mapping[str, str]) -> float:
        """How much of what was seen speaks for it; 0 where none of the signs that it needs is there."""
        if not any(name in seen for name in self.needs):
            return 0.0
        total = 0.0
        for name, weight in [*self.weights.items(), *self.against.items()]:
            if name in seen:
                total += weight
        return total

    def look(self, log: Log) -> Seen | None:
        """What speaks for it, the weightiest first; None where that is too little."""
        seen = signs_of(log)
        if self.weight(seen) < self.least:
            return None
        found = [name for name in self.weights if name in seen]
        found.sort(key=lambda name: -self.weights[name])
        return Seen(list(dict.fromkeys(seen[name] for name in found))[:5], POSSIBLE)


def signs_of(log: Log) -> Mapping[str, str]:
    """The signs that a log shows, in words. They are asked once for each log."""
    if log.signs is None:
        log.signs = {}
        for name, look in SIGNS.items():
            words = look(log)
            if words:
                log.signs[name] = words
    return log.signs
