"""The game: which failure a seed hides, the run and its repaired twin, what probes cost, and the score."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit import sandbox
from labkit.events import Run
from labkit.triage import CAUSES, Diagnosis, diagnose

from .failures import DRAWING, FAILURES, FIXES, Failure, Settings, evaluate, surface
from .probes import PROBES, Found
from .scene import Scene

BUDGET = 8
ORDER = random.Random(14).sample(FAILURES, len(FAILURES))


def hidden(seed: int) -> Failure:
    """What the run of this seed has. So many seeds in a row as there are failures have each of them once."""
    return ORDER[seed % len(ORDER)]


def settings(failure: Failure, seed: int, fix: str = "") -> Settings:
    """The settings of a run, with the failure in; with a fix, that part of it is made sound."""
    base = surface(random.Random(seed)) | DRAWING | {"evaluate": evaluate}
    return base | failure.scene | failure.wrong | (FIXES[fix][1] if fix else {})


def played(failure: int, seed: int, fix: str = "", device: str = "cpu") -> Iterator[Any]:
    """A run, step by step; at its end, or at its death, a dict: probe -> what it measured.

    failure  its place in `FAILURES`
    """
    scene = Scene(settings(FAILURES[failure], seed, fix) | {"device": device}, seed)
    try:
        yield from scene.steps()
    except RuntimeError:
        yield _measured(scene)
        raise
    yield _measured(scene)


def _measured(scene: Scene) -> dict[str, Found]:
    return {name: probe.look(scene) for name, probe in PROBES.items()}


@dataclass(frozen=True)
class Answer:
    """What became of an answer.

    cause      the cause was named
    recovered  the run with the fix in ends, has nothing to act on in its log, and every probe of it reads as usual
    points     of 10: six for the cause, two for a fix that recovers, two for the budget that is left
    truth      the failure; `truth.code` is the bug, for `labkit.show`
    repaired   the run with the fix in
    unusual    the probes that read unusual on it
    triage     what `labkit.diagnose` makes of the log alone, as it was
    """

    cause: bool
    recovered: bool
    points: float
    truth: Failure
    repaired: Run
    unusual: list[str]
    triage: Diagnosis

    @property
    def asked_by_triage(self) -> str:
        """The first finding of triage, and what it would have asked next."""
        found = self.triage.findings
        return f"{found[0].cause} ({found[0].confidence}): {found[0].next}" if found else "nothing found"

    def __str__(self) -> str:
        words = f"{'right' if self.cause else 'no'}: {self.truth.name} ({self.truth.cause}"
        words += f", lesson {self.truth.lesson})" if self.truth.lesson else ")"
        fixed = "recovers" if self.recovered else "does not recover"
        return f"{words}; with your fix the run {fixed}; {self.points:.1f} of 10 points\ntriage: {self.asked_by_triage}"


class Mystery:
    """A run with something hidden in it.

    seed    chooses the failure, and what the run is besides
    device  the CPU: on a GPU a device-side assert leaves nothing that a probe could measure
    run     the run, as a dashboard has it; it may have died
    left    points that are left for probes
    asked   probe -> what it measured, of those paid for
    Raises: ValueError names a probe, cause or fix that there is not, or that the budget does not buy.
    """

    def __init__(self, seed: int, device: str = "cpu"):
        self.seed, self._device = seed, device
        self.left = BUDGET
        self.asked: dict[str, Found] = {}
        self.run, self._found = self._played()

    def probe(self, name: str) -> Found:
        """What a probe measured on the run, at its price. Asking again costs nothing."""
        _known("probe", name, PROBES)
        if name not in self.asked:
            if PROBES[name].price > self.left:
                raise ValueError(f"probe {name!r} costs {PROBES[name].price}, and {self.left} points are left")
            self.left -= PROBES[name].price
            self.asked[name] = self._found[name]
        return self.asked[name]

    def prices(self) -> list[dict[str, Any]]:
        """The probes as rows of a table."""
        return [{"probe": n, "price": p.price, "measures": p.measures, "usual": p.usual} for n, p in PROBES.items()]

    def answer(self, cause: str, fix: str = "") -> Answer:
        """Name the cause, a word of `labkit.triage.CAUSES`, and the part to make sound, one of `FIXES` or ""."""
        _known("cause", cause, CAUSES)
        if fix:
            _known("fix", fix, FIXES)
        truth = hidden(self.seed)
        repaired, found = self._played(fix)
        unusual = [name for name, probe in PROBES.items() if not probe.is_usual(found[name])]
        recovered = bool(repaired.outcome) and not diagnose(repaired) and not unusual
        named = cause == truth.cause
        points = 6 * named + 2 * recovered + 2 * self.left / BUDGET * named
        return Answer(named, recovered, points, truth, repaired, unusual, diagnose(self.run))

    def _played(self, fix: str = "") -> tuple[Run, dict[str, Found]]:
        place = FAILURES.index(hidden(self.seed))
        run = sandbox.run(played, place, self.seed, fix=fix, device=self._device, timeout=600)
        found = [event for event in run.events if isinstance(event, dict)]
        if not found:
            raise RuntimeError(f"the run of seed {self.seed} ended before it was measured: {run.outcome.message}")
        run.events.remove(found[0])
        return run, found[0]


def _known(kind: str, name: str, names: Any) -> None:
    if name not in names:
        raise ValueError(f"{kind} {name!r}: expected one of {', '.join(names)}")
