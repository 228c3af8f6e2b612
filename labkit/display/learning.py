"""The course's picture of learning: the chance of a right answer by round, a line a seed, a colour an arm.

This file trains nothing and sits no exam: it reads the `Exam` events of finished runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.events import Exam, Run

from .bench import Chosen, earlier
from .panels import TONES, tone
from .sheet import GREY, GRID, INK, Picture, png, sheet, write_line

_WIDTH, _HEIGHT, _LINE, _DPI = 8.6, 2.6, 0.2, 125  # inches: the picture, a row of panels, a line of words; dots an inch
_LEFT, _RIGHT, _FOOT, _GAP = 0.55, 0.1, 0.42, 0.5  # inches around and between the panels
STYLES: dict[str, Any] = {
    "solid": "-",
    "dashed": (0, (4, 1.5)),
    "dotted": (0, (1, 1.2)),
    "dash-dotted": (0, (6, 1.5, 1, 1.5)),
}


def learning_curves(runs: Mapping[str, Any], title: str = "") -> Picture:
    """Draw the exams of several arms, a panel for each task. Let it be the last line of a cell.

    runs    arm -> its runs, one for each seed: a list, a dict of seed -> `Run`, or a single `Run`. The words of
            `panels.MEANINGS` have their own colours; what `labkit.exercise` returned may be an arm: it is
            called "yours" or "solution", and the attempt before is drawn behind, paler. Every run needs
            `train(..., exam=True)`
    title   the finding

    The grey line is the policy before training; a cross says that a run ended there by an error. Every run is drawn,
    a NaN as 0.
    Raises: ValueError for a run without an exam, and where an arm has no run.
    """
    arms: dict[str, list[Run]] = {}
    tones: dict[str, str] = {}  # arm -> colour name
    paler: list[list[Run]] = []  # the runs of the reader's attempt before this one
    for arm, value in runs.items():
        name = str(arm)
        arms[name] = _list(value)
        tones[name] = tone(name, tones.values())
        if isinstance(arm, Chosen):
            paler += earlier((title, "learning curves"), arm, arms[name])
    if not arms or not all(arms.values()):
        raise ValueError("learning_curves: expected at least one arm, and at least one run in each")
    every = [run for arm_runs in arms.values() for run in arm_runs]
    if paler:
        every += itertools.chain(*paler)
    families = _families(every)
    lines = [[(title, INK, "bold")]] if title else []
    for arm, arm_runs in arms.items():
        lines.append([(arm, TONES[tones[arm]][0], "bold"), (_ends(arm_runs, families), INK, "normal")])
    above = 0.3 if len(families) > 1 else 0.1  # inches: room for the panels' names
    height = _HEIGHT + _LINE * len(lines)
    wide = (_WIDTH - _LEFT - _RIGHT - _GAP * (len(families) - 1)) / len(families)
    with sheet(_WIDTH, height, _DPI) as figure:
        for at, parts in enumerate(lines):
            write_line(figure, 0.1, height - _LINE * (at + 0.6), parts, size=9.5 if title and not at else 8)
        limits = _limits([chance for run in every for family in families for chance in _chances(run, family)])
        for at, family in enumerate(families):
            left = _LEFT + at * (wide + _GAP)
            place = (left / _WIDTH, _FOOT / height, wide / _WIDTH, (_HEIGHT - _FOOT - above) / height)
            axes = figure.add_axes(place)
            for run in itertools.chain(*paler):
                axes.plot(_rounds(run), _chances(run, family), lw=1.2, color=TONES["fix"][0], alpha=0.35, zorder=2)
            _panel(axes, family, arms, tones)
            axes.set_ylim(limits)
            if len(families) > 1:
                axes.set_title(f"exam of {family}", size=8, loc="left", weight="bold")
            if not at:
                axes.set_ylabel("chance of a right answer")
        small = png(figure)
    count = sum(map(len, arms.values()))
    return Picture(small, f"<chance of a right answer by round: {count} runs>")


def _list(value: Any) -> list[Run]:
    """The runs of an arm, however they were given."""
    if isinstance(value, Run):
        return [value]
    return list(value.values() if isinstance(value, Mapping) else value)


def _families(runs: Sequence[Run]) -> list[str]:
    """The tasks that every run sat an exam in, in their order."""
    families: dict[str, int] = {}
    for run in runs:
        run.exam()  # ValueError says that there is none, and how to ask for one
        first = next(event for event in run.events if isinstance(event, Exam))
        for family in first.chances:
            families[family] = families.get(family, 0) + 1
    return [family for family, count in families.items() if count == len(runs)]


def _ends(arm_runs: Sequence[Run], families: Sequence[str]) -> str:
    """Where an arm ends: "0.74 solid, 0.75 dashed, 0.73 dotted", a seed each; of many seeds the lowest and highest."""
    parts = []
    for family in families:
        ends = [_chances(run, family)[-1] for run in arm_runs]
        text = ", ".join(f"{end:.2f} {style}" for style, end in zip(STYLES, ends, strict=False))
        if len(ends) == 1:
            text = f"{ends[0]:.2f}"
        elif len(ends) > len(STYLES):
            text = f"{min(ends):.2f} to {max(ends):.2f}, {len(ends)} seeds"
        parts.append(f"{family} {text}" if len(families) > 1 else f"ends at {text}")
    return "     ".join(parts)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """One y axis for all panels, so that they can be compared; a chance lies between 0 and 1."""
    low, high = min(values), max(values)
    gap = 0.08 * max(high - low, 0.1)
    return max(low - gap, -0.02), min(high + gap, 1.02)


def _rounds(run: Run) -> list[int]:
    """After how many rounds its exams were sat."""
    return [event.round for event in run.events if isinstance(event, Exam)]


def _chances(run: Run, family: str) -> list[float]:
    """Its exams; 0 for a policy whose parameters are NaN: it can give no answer."""
    return [0.0 if chance != chance else chance for chance in run.exam(family)]


def _panel(axes: Any, family: str, arms: Mapping[str, Sequence[Run]], tones: Mapping[str, str]) -> None:
    from matplotlib import patheffects, ticker

    for arm, arm_runs in arms.items():
        colour = TONES[tones[arm]][0]
        for run, dash in zip(arm_runs, itertools.cycle(STYLES.values())):
            rounds, chances = _rounds(run), _chances(run, family)
            axes.plot(rounds, chances, ls=dash, lw=1.4, color=colour, clip_on=False, zorder=3)
            if not run.outcome:
                axes.plot(rounds[-1], chances[-1], "X", ms=7, color=colour, clip_on=False, zorder=4)
    start = next(iter(arms.values()))[0].exam(family)[0]
    axes.axhline(start, color=GREY, lw=1, zorder=3.5)
    last = max(_rounds(run)[-1] for arm_runs in arms.values() for run in arm_runs)
    axes.set_xlim(0, max(last, 1))
    axes.annotate(
        "before training",
        (1, start),
        xytext=(-2, 2),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        color=GREY,
        size=7,
        zorder=5,
        # runs may pass behind the words
        path_effects=[patheffects.withStroke(linewidth=2.5, foreground="white")],
    )
    axes.xaxis.set_major_locator(ticker.MaxNLocator(7, integer=True))
    several = max(map(len, arms.values())) > 1
    axes.set_xlabel("round (a line for each seed)" if several else "round")
    axes.grid(axis="y", color=GRID, lw=0.8, zorder=0)
    axes.tick_params(length=0, labelsize=7)
    axes.spines[["top", "left", "right"]].set_visible(False)
