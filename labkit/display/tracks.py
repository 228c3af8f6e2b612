"""Keep what a run measured, in columns, at a constant cost a step; and say when a draw is affordable.

The recorder does not draw and does not know a notebook. The renderers read it: `dashboard.py` sends the rows that
are new, `figure.py` draws all of them once.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.events import NAN, Outcome, Step

from .panels import STEP_FIELDS

# In these fields NaN, once a number was seen, is a fact about the training. In the other fields of `Step`
# NaN says "not measured at this step".
MEASURED = frozenset({"loss", "grad_norm", "kl", "entropy", "ratio_max"})


class Recorder:
    """Rows of one run: the step number and then one value for each of `names`.

    `append` costs the same at the ten-thousandth step as at the tenth. A value that is not there is NaN.

    `seen`: the names that had a finite value. `bad`: name -> (step, "NaN" | "inf" | "-inf"), where the series first
    stopped being a number. `skipped`: updates that a guard dropped. `round`, `inner`: those of the newest step.
    """

    def __init__(self, names: Sequence[str]):
        self.names = tuple(names)
        self.width = 1 + len(self.names)
        self.rows = array("d")  # row-major: len(self) x width
        self.seen: set[str] = set()
        self.bad: dict[str, tuple[int, str]] = {}
        self.skipped = 0
        self.round = 0
        self.inner = 0
        self.last = 0  # x of the newest row
        self._columns = [(name, name in STEP_FIELDS, name in MEASURED) for name in self.names]

    def __len__(self) -> int:
        return len(self.rows) // self.width

    def append(self, step: Step) -> None:
        """Record one step. Its x is `step.step`, or one more than the last where that does not increase."""
        if not isinstance(step, Step):
            raise TypeError(f"Recorder.append: expected a Step, got {type(step).__name__}")
        x = step.step if step.step > self.last or not self.rows else self.last + 1
        row = [float(x)]
        extra, fields = step.extra, step.__dict__
        for name, is_field, measured in self._columns:
            if name in extra:
                raw, measured = extra[name], True
            elif is_field:
                raw = fields[name]
                if raw == -1 and name == "nonfinite_params":
                    raw = NAN
            else:
                row.append(NAN)  # a key that this step does not have: not measured
                continue
            try:
                value = float(raw)
            except (TypeError, ValueError):
                value = NAN
            if value - value == 0.0:
                self.seen.add(name)
            elif name not in self.bad and (math.isinf(value) or (measured and name in self.seen)):
                self.bad[name] = (x, "NaN" if value != value else "inf" if value > 0 else "-inf")
            row.append(value)
        self.rows.extend(row)
        self.last = x
        self.round, self.inner = step.round, step.inner
        self.skipped += bool(step.skipped)

    def packed(self, start: int = 0) -> bytes:
        """Rows from `start` on, as little-endian float32, for the wire. A float64 beyond float32 becomes inf."""
        part = array("f", self.rows[start * self.width :])
        if part.itemsize != 4:  # pragma: no cover - every platform that CPython supports has 4
            raise RuntimeError("this platform's float is not 32 bits")
        if _BIG_ENDIAN:
            part.byteswap()
        return part.tobytes()

    def column(self, name: str) -> list[float]:
        """One column, or the step numbers for "step"."""
        at = 0 if name == "step" else 1 + self.names.index(name)
        return self.rows[at :: self.width].tolist()


class Budget:
    """When may the next draw begin: drawing takes at most `share` of the wall time.

    After work that took `t` seconds the next is due no sooner than `max(shortest, t * (1 - share) / share)` later.
    `t` is the processor time of this thread: on a busy machine waiting for one's turn costs the run nothing.
    """

    def __init__(
        self,
        share: float = 0.01,
        shortest: float = 0.1,
        clock: Callable[[], float] = time.perf_counter,
        meter: Callable[[], float] = time.thread_time,
    ):
        if not 0 < share < 1 or shortest < 0:
            raise ValueError(
                f"Budget: expected 0 < share < 1 and shortest >= 0, got {share!r} and {shortest!r}"
            )
        self.share, self.shortest, self.clock, self.meter = share, shortest, clock, meter
        self.next = -math.inf
        self.spent = 0.0  # seconds, all draws together
        self.draws = 0

    def due(self) -> bool:
        return self.clock() >= self.next

    def run(self, work: Callable[[], Any]) -> Any:
        """Do `work`, charge what it took, and set when the next is due."""
        start = self.meter()
        try:
            return work()
        finally:
            took = self.meter() - start
            self.spent += took
            self.draws += 1
            self.next = self.clock() + max(self.shortest, took * (1 - self.share) / self.share)


@dataclass
class Track:
    """One run on a dashboard: its label and colour, its rows, and how it ended."""

    label: str
    tone: str  # a key of `panels.TONES`
    recorder: Recorder
    ghost: bool = False  # a finished run that is drawn behind
    started: float = NAN  # clock reading
    seconds: float = NAN  # of the whole run
    outcome: Outcome | None = None
    mu: int | None = None  # inner updates a round, where known: then a run that dies between rounds is placed
    round: int = 0  # the newest round that an event other than a step announced

    def feed(self, events: Iterable[Any]) -> None:
        """Record the steps; of other events only a `round` number is kept."""
        for event in events:
            if isinstance(event, Step):
                self.recorder.append(event)
            elif isinstance(event, dict) and isinstance(event.get("round"), int):
                self.round = max(self.round, event["round"])

    def note(self, name: str, several: bool = False) -> str:
        """Where the series `name` stopped being a number, e.g. "bug: NaN at step 12"."""
        step, what = self.recorder.bad[name]
        return f"{self.label}: {name + ' ' if several else ''}{what} at step {step}"

    def status(self, now: float = NAN) -> str:
        """One line: how far it is, or how it ended."""
        rec, steps = self.recorder, len(self.recorder)
        count = f"{steps} step{'s' * (steps != 1)}" + (f", {rec.skipped} skipped" if rec.skipped else "")
        if self.outcome is None:
            place = f", round {rec.round}" if rec.round > 1 else ""
            clock = f", {now - self.started:.1f} s" if now == now else ""
            return f"{count}{place}{clock}"
        sign = self.outcome.signature
        clock = f", {self.seconds:.1f} s" if self.seconds == self.seconds else ""
        if sign == "ok":
            return f"finished: {count}{clock}"
        if sign == "stopped":
            return f"stopped after {count}{clock}"
        word = "timed out" if sign == "timeout" else "crashed"
        if not steps:
            return f"{word} before the first step: {sign}"
        if self.mu is None and self.round <= rec.round:
            return f"{word} after {count} (round {rec.round}): {sign}"
        complete = self.mu is not None and rec.inner >= self.mu
        return f"{word} in round {max(self.round, rec.round + complete)}, after {count}: {sign}"


_BIG_ENDIAN = array("H", [1]).tobytes() == b"\x00\x01"
