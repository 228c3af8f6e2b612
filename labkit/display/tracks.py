"""One run on a dashboard: its rows in columns, at a constant cost per step; how it ended; what is marked.

This file draws nothing: `dashboard.py` sends the rows that are new, `figure.py` draws all of them once.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.common import number
from labkit.events import NAN, Exam, Outcome, Step

# In these fields NaN, once a number was seen, is a fact about the training. In the other fields of `Step`
# NaN says "not measured at this step".
MEASURED = frozenset({"loss", "grad_norm", "kl", "entropy", "ratio_max"})


class Rows:
    """What a run measured: row by row the step number and then one value for each of `names`.

    `append` costs the same at the ten-thousandth step as at the tenth. A value that is not there is NaN.

    finite    the names that had a finite value
    broken    name -> (step, "NaN" | "inf" | "-inf"), where the series first stopped being a number
    steps     how many were recorded; an exam is a row too
    skipped   updates that a guard dropped
    round, inner, last   of the newest step: its round, its inner update, its place on the x axis
    """

    def __init__(self, names: Sequence[str]):
        self.names = tuple(names)
        self.width = 1 + len(self.names)
        self.data = array("d")  # row-major: len(self) x width
        self.finite: set[str] = set()
        self.broken: dict[str, tuple[int, str]] = {}
        self.exam: dict[str, float] = {}  # "exam", and "exam/add" and its like: the newest
        self.steps = self.skipped = self.round = self.inner = self.last = 0

    def __len__(self) -> int:
        return len(self.data) // self.width

    def append(self, step: Step) -> None:
        """Record one step. Its x is `step.step`, or one more than the last where that does not increase."""
        x = step.step if step.step > self.last or not self.data else self.last + 1
        row = [float(x)]
        for name in self.names:
            value = self.exam[name] if name in self.exam else _value(step, name)
            row.append(value)
            if math.isfinite(value):
                self.finite.add(name)
            elif math.isinf(value) or (name in self.finite and (name in MEASURED or name in step.extra)):
                self.broken.setdefault(name, (x, number(value)))
        self.data.extend(row)
        self.last, self.round, self.inner = x, step.round, step.inner
        self.steps += 1
        self.skipped += bool(step.skipped)

    def sit(self, exam: Exam) -> None:
        """Record an exam, where one of the names is its: at the newest step, or at 0. It holds until the next one."""
        self.exam = {"exam": exam.mean, **{f"exam/{family}": value for family, value in exam.chances.items()}}
        names = [name for name in self.names if name in self.exam]
        if not names:
            return
        row = self.data[-self.width :] or array("d", [0.0] + [NAN] * len(self.names))
        for name in names:
            row[1 + self.names.index(name)] = self.exam[name]
            self.finite.add(name)
        self.data.extend(row)

    def packed(self, start: int = 0) -> bytes:
        """Rows from `start` on, as float32, for the wire. A float64 beyond float32 becomes inf."""
        return array("f", self.data[start * self.width :]).tobytes()

    def column(self, name: str) -> list[float]:
        """One column, or the step numbers for "step"."""
        at = 0 if name == "step" else 1 + self.names.index(name)
        return self.data[at :: self.width].tolist()

    def latest(self, name: str) -> float | None:
        """The newest value of a series: NaN when it stopped being a number, None when it was never measured."""
        return next((v for v in reversed(self.column(name)) if v == v or name in self.broken), None)


def _value(step: Step, name: str) -> float:
    """The value of a series at a step; NaN where it was not measured."""
    value = float(step.extra.get(name, getattr(step, name, NAN)))
    return NAN if name == "nonfinite_params" and value == -1 else value


@dataclass
class Track:
    """One run on a dashboard: its label and colour, its rows, and how it ended."""

    label: str
    tone: str  # a key of `panels.TONES`
    rows: Rows
    ghost: bool = False  # a finished run that is drawn behind
    started: float | None = None  # clock reading
    outcome: Outcome | None = None
    mu: int | None = None  # inner updates per round, where known: then a run that dies between rounds is placed
    sent: int = 0  # rows that the browser has

    def feed(self, events: Iterable[Any]) -> None:
        """Record steps and exams; other events are not drawn."""
        for event in events:
            if isinstance(event, Step):
                self.rows.append(event)
            elif isinstance(event, Exam):
                self.rows.sit(event)

    def restart(self) -> None:
        """Forget what was recorded, to run anew."""
        self.rows, self.outcome, self.sent = Rows(self.rows.names), None, 0

    def status(self, now: float | None = None) -> str:
        """One line: how far it is at the clock reading `now`, or how it ended."""
        count = "1 step" if self.rows.steps == 1 else f"{self.rows.steps} steps"
        if self.rows.skipped:
            count += f", {self.rows.skipped} skipped"
        if self.outcome is not None:
            return self._ending(self.outcome, count)
        place = f", round {self.rows.round}" if self.rows.round > 1 else ""
        clock = f", {now - self.started:.1f} s" if now is not None and self.started is not None else ""
        return f"{count}{place}{clock}"

    def _ending(self, outcome: Outcome, count: str) -> str:
        sign, rows = outcome.signature, self.rows
        if sign in ("ok", "stopped"):
            clock = "" if math.isnan(outcome.seconds) else f", {outcome.seconds:.1f} s"
            return f"{'finished:' if sign == 'ok' else 'stopped after'} {count}{clock}"
        verb = "timed out" if sign == "timeout" else "crashed"
        if not rows.steps:
            return f"{verb} before the first step: {sign}"
        if self.mu is None:
            return f"{verb} after {count} (round {rows.round}): {sign}"
        # after the last inner update of a round it died in the next one
        return f"{verb} in round {rows.round + (rows.inner >= self.mu)}, after {count}: {sign}"


@dataclass(frozen=True)
class Mark:
    """An event at a step: a hairline, with a few words beside it.

    series   the series that stopped being a number there; None for a mark in every panel
    run      place of its run among the tracks, for the colour; None for grey
    """

    step: int
    text: str
    series: str | None = None
    run: int | None = None


def marks_of(tracks: Sequence[Track]) -> Iterator[Mark]:
    """Where a series stopped being a number.

    Where the gradient norm did, every panel has the hairline, so that one sees what the other series did there.
    """
    for run, track in enumerate(tracks):
        for name, (step, word) in track.rows.broken.items():
            if name == "grad_norm":
                yield Mark(step, "", run=run)
            yield Mark(step, f"{track.label}: {word} at step {step}", name, run)
