"""The course's picture of learning: the chance of a right answer by round, a line a seed, a colour an arm.

This file trains nothing and sits no exam: it reads the `Exam` events of finished runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from labkit.events import Exam, Run

from .figure import DASHES as STYLES
from .panels import TONES, tone
from .sheet import GREY, GRID, INK, Picture, png, sheet, words

_WIDTH, _HEIGHT, _LINE, _DPI = 8.6, 2.6, 0.2, 125  # inches: the picture, a row of panels, a line of words; dots an inch
LINES = ("solid", "dashed", "dotted", "dash-dotted")  # what STYLES look like
_LEFT, _RIGHT, _FOOT, _GAP = 0.55, 0.1, 0.42, 0.5  # inches around and between the panels


def learning_curves(runs: Mapping[str, Any], title: str = "") -> Picture:
    """Draw the exams of several arms, a panel for each task. Let it be the last line of a cell.

    runs    arm -> its runs, one for each seed: a list, a dict of seed -> `Run`, or a single `Run`. "bug" and "fix" have
            their own colours, "no step" is grey; every run needs `train(..., exam=True)`
    title   the finding

    The grey line is the policy as it came; a cross says that a run ended there by an error. Every run is drawn.
    Raises: TypeError for what is not a run; ValueError for a run without an exam.
    """
    arms = {arm: list(_runs_of(arm, given)) for arm, given in runs.items()}
    if not arms or not all(arms.values()):
        raise ValueError("learning_curves: expected at least one arm with at least one run")
    families = _families(arms)
    names: list[str] = []
    for arm in arms:
        names.append(tone(arm, names))
    tones = {arm: TONES[name][0] for arm, name in zip(arms, names, strict=True)}
    lines = [[(title, INK, "bold")]] if title else []
    lines += [[(arm, tones[arm], "bold"), (_ends(arm_runs, families), INK, "normal")] for arm, arm_runs in arms.items()]
    above = 0.3 if len(families) > 1 else 0.1  # inches: room for the panels' names
    height = _HEIGHT + _LINE * len(lines)
    wide = (_WIDTH - _LEFT - _RIGHT - _GAP * (len(families) - 1)) / len(families)
    with sheet(_WIDTH, height, _DPI) as figure:
        for at, parts in enumerate(lines):
            words(figure, 0.1, height - _LINE * (at + 0.6), parts, size=9.5 if title and not at else 8)
        limits = _limits([v for arm_runs in arms.values() for run in arm_runs for f in families for v in run.exam(f)])
        for at, family in enumerate(families):
            left = _LEFT + at * (wide + _GAP)
            place = (left / _WIDTH, _FOOT / height, wide / _WIDTH, (_HEIGHT - _FOOT - above) / height)
            axes = figure.add_axes(place)
            _panel(axes, family, arms, tones)
            axes.set_ylim(limits)
            if len(families) > 1:
                axes.set_title(f"exam of {family}", size=8, loc="left", weight="bold")
            if not at:
                axes.set_ylabel("chance of a right answer")
        small = png(figure)
    count = sum(map(len, arms.values()))
    return Picture(small, f"<chance of a right answer by round: {count} runs>", {"width": 860})


def _runs_of(arm: str, given: Any) -> Iterable[Run]:
    several = given.values() if isinstance(given, Mapping) else [given] if isinstance(given, Run) else given
    for run in several:
        if not isinstance(run, Run):
            raise TypeError(f"learning_curves: arm {arm!r} holds a {type(run).__name__}, expected finished Runs")
        yield run


def _families(arms: Mapping[str, Sequence[Run]]) -> list[str]:
    """The tasks that every run sat an exam in, in their order."""
    every = [_exams(run) for arm_runs in arms.values() for run in arm_runs]
    return [family for family in every[0][0].chances if all(family in exams[0].chances for exams in every)]


def _exams(run: Run) -> list[Exam]:
    run.exam()  # ValueError says that there is none, and how to ask for one
    return [event for event in run.events if isinstance(event, Exam)]


def _ends(arm_runs: Sequence[Run], families: Sequence[str]) -> str:
    """Where an arm ends: "0.74 solid, 0.75 dashed, 0.73 dotted", a seed each; of many seeds the lowest and highest."""
    parts = []
    for family in families:
        ends = [run.exam(family)[-1] for run in arm_runs]
        text = ", ".join(f"{end:.2f} {line}" for line, end in zip(LINES, ends, strict=False))
        if len(ends) == 1:
            text = f"{ends[0]:.2f}"
        elif len(ends) > len(LINES):
            text = f"{min(ends):.2f} to {max(ends):.2f}, {len(ends)} seeds"
        parts.append(f"{family} {text}" if len(families) > 1 else f"ends at {text}")
    return "     ".join(parts)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """One y axis for all panels, so that they can be compared; a chance lies between 0 and 1."""
    low, high = min(values), max(values)
    gap = 0.08 * max(high - low, 0.1)
    return max(low - gap, -0.02), min(high + gap, 1.02)


def _panel(axes: Any, family: str, arms: Mapping[str, Sequence[Run]], tones: Mapping[str, str]) -> None:
    from matplotlib import ticker

    for arm, arm_runs in arms.items():
        for run, dash in zip(arm_runs, itertools.cycle(STYLES)):
            rounds, chances = [one.round for one in _exams(run)], run.exam(family)
            axes.plot(rounds, chances, ls=dash, lw=1.4, color=tones[arm], clip_on=False, zorder=3)
            if not run.outcome:
                axes.plot(rounds[-1], chances[-1], "X", ms=7, color=tones[arm], clip_on=False, zorder=4)
    start = next(iter(arms.values()))[0].exam(family)[0]
    axes.axhline(start, color=GREY, lw=1, zorder=3.5)
    last = max(_exams(run)[-1].round for arm_runs in arms.values() for run in arm_runs)
    axes.set_xlim(0, max(last, 1))
    axes.annotate("as it came", (1, start), (-2, 2), xycoords=("axes fraction", "data"), color=GREY, size=7,
                  textcoords="offset points", ha="right")  # fmt: skip
    axes.xaxis.set_major_locator(ticker.MaxNLocator(7, integer=True))
    several = max(map(len, arms.values())) > 1
    axes.set_xlabel("round (a line for each seed)" if several else "round")
    axes.grid(axis="y", color=GRID, lw=0.8, zorder=0)
    axes.tick_params(length=0, labelsize=7)
    axes.spines[["top", "left", "right"]].set_visible(False)
