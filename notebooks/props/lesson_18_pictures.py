"""The pictures of lesson 18: a log over the band of sound runs, an instrument's dots, and a doctor's nine visits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.common import number
from labkit.display.panels import TONES
from labkit.display.sheet import INK, Picture, png, sheet

from .asks import NOTHING, Case

GREY, SOUND, BUG, RIGHT = (TONES[name][0] for name in ("grey", "healthy", "bug", "fix"))
WIDTH, DPI = 8.6, 125

# -------------------------------------------------------------------------------------------------------------- the log


def log_over_sound(
    log: Mapping[str, Sequence[float]], sound: Sequence[Case], title: str
) -> Picture:
    """Each column of a run's log as a line, over the lowest and the highest value of the sound runs."""
    with sheet(WIDTH, 3.0, DPI) as figure:
        figure.set_layout_engine("constrained", rect=(0, 0, 1, 0.92))
        figure.text(0.01, 0.985, title, va="top", size=9.5, weight="bold", color=INK)
        panels = figure.subplots(2, 3).flatten()
        for axes, (column, values) in zip(panels, log.items(), strict=True):
            rounds = range(1, len(values) + 1)
            by_round = list(zip(*(run.log[column] for run in sound), strict=True))
            low, high = [min(each) for each in by_round], [max(each) for each in by_round]
            axes.fill_between(rounds, low, high, color=SOUND, alpha=0.3, lw=0)
            axes.plot(rounds, values, "o-", color=INK, ms=3, lw=1.4)
            axes.set_title(column, fontsize=8, loc="left")
            axes.set_xticks(rounds)
            axes.tick_params(labelsize=7)
            axes.spines[["top", "right"]].set_visible(False)
            axes.margins(x=0.04)
        for axes in panels[3:]:
            axes.set_xlabel("round", fontsize=7)
        return Picture(png(figure), f"six columns of a log over those of {len(sound)} sound runs")


# ------------------------------------------------------------------------------------------------------ instruments

# button -> instrument, round, lowest and highest value of the axis, whether small values are suspicious, its own faults
DOTS: dict[str, tuple[str, int, float, float, bool, tuple[str, ...]]] = {
    "surprise, round 1, 8 draws": ("surprise, 8 draws", 1, 0.05, 50, False, ("temperature",)),
    "surprise, round 1": ("surprise", 1, 0.05, 50, False, ("temperature",)),
    "surprise, round 5": ("surprise", 5, 0.05, 50, False, ("temperature", "stale sampler")),
    "gradient handed over": ("gradient handed over", 1, 0.3, 1.1, True, ("lost gradient",)),
    "behind the end": ("behind the end", 5, -2, 60, False, ("padding",)),
    "first tokens": ("first tokens", 1, 0.4, 1.3, True, ("first token",)),
    "grade again": ("grade again", 5, -2, 50, False, ("kind grader", "order")),
    "weights moved": ("weights moved", 5, -0.001, 0.019, True, ("copy",)),
    "exam": ("exam", 5, -0.3, 0.3, True, ()),
}
NOTCHES = list(range(1, 10))  # where the limit may stand
# the limit at each notch
LIMITS: dict[str, tuple[float, ...]] = {
    "surprise": (0.5, 1, 2, 3, 5, 8, 12, 20, 30),
    "gradient handed over": (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.05),
    "behind the end": (0, 5, 10, 15, 20, 25, 30, 40, 50),
    "first tokens": (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 1, 1.1, 1.2),
    "grade again": (0, 3, 5, 10, 15, 20, 25, 30, 40),
    "weights moved": (0.001, 0.003, 0.005, 0.007, 0.009, 0.01, 0.011, 0.012, 0.013),
    "exam": (-0.1, 0, 0.05, 0.1, 0.15, 0.18, 0.205, 0.22, 0.24),
}


def limit_at(button: str, notch: int) -> float:
    """The limit at one of the nine notches; all surprises have the same."""
    what, *_ = DOTS[button]
    return LIMITS["surprise" if what.startswith("surprise") else what][notch - 1]


def beyond(value: float, limit: float, small_is_suspicious: bool) -> bool:
    """Whether a number is on the suspicious side; one that is no number is not."""
    return value < limit if small_is_suspicious else value > limit


def counted(
    cases: Mapping[str, Sequence[Case]], button: str, limit: float
) -> dict[str, tuple[int, int]]:
    """How many runs are beyond the limit, of how many: the instrument's own faults together, each other name alone."""
    what, at, _, _, small, own = DOTS[button]
    counts = {"its own": (0, 0)}
    for name, runs in cases.items():
        is_own = name in own or (not own and name != NOTHING)
        kind = "its own" if is_own else name
        caught = sum(beyond(run.said[what][at], limit, small) for run in runs)
        before, of = counts.get(kind, (0, 0))
        counts[kind] = (before + caught, of + len(runs))
    return counts


def draw_dots(axes: Any, cases: Mapping[str, Sequence[Case]], button: str, notch: int) -> None:
    """One instrument on all runs, a row for each name; what the limit catches, counted above."""
    what, at, low, high, small, own = DOTS[button]
    limit = limit_at(button, notch)
    names = list(cases)
    for height, name in enumerate(reversed(names)):
        colour = GREY
        if name == NOTHING:
            colour = SOUND
        elif name in own or not own:
            colour = BUG
        # filled beyond the limit, hollow where not: two calls for a row of dots
        for caught, face in ((True, colour), (False, "white")):
            dots = []
            for place, run in enumerate(cases[name]):
                value = run.said[what][at]
                if value == value and beyond(value, limit, small) == caught:
                    jitter = 0.5 * (place / max(1, len(cases[name]) - 1) - 0.5)
                    # at the edge, what lies outside
                    dots.append((min(max(value, low), high), height + jitter))
            if dots:
                axes.plot(
                    *zip(*dots, strict=True),
                    "o",
                    ms=3.4,
                    mec=colour,
                    mfc=face,
                    mew=0.8,
                    clip_on=False,
                )
    if what.startswith("surprise"):
        axes.set_xscale("log")
        axes.set_xticks([0.05, 0.5, 5, 50], ["0.05 or less", "0.5", "5", "50"])
        axes.minorticks_off()
    edge = high if not small else low
    axes.axvspan(min(limit, edge), max(limit, edge), color=BUG, alpha=0.08, lw=0)
    axes.axvline(limit, color=INK, lw=1)
    axes.set(xlim=(low, high), ylim=(-0.6, len(names) - 0.4))
    axes.set_yticks(range(len(names)), list(reversed(names)), fontsize=7.5)
    axes.set_title(beyond_in_words(cases, button, notch), fontsize=8, loc="left")


def beyond_in_words(cases: Mapping[str, Sequence[Case]], button: str, notch: int) -> str:
    """What the limit at this notch catches."""
    limit, own = limit_at(button, notch), DOTS[button][-1]
    return heading(counted(cases, button, limit), own, limit)


def heading(counts: Mapping[str, tuple[int, int]], own: Sequence[str], limit: float) -> str:
    """The counts in words; of the other names only those of which a run is beyond the limit."""
    whose = " and ".join(own) if own else "any fault"
    parts = [f"beyond {number(limit)}"]
    for kind, name in {"its own": whose, NOTHING: "sound runs"}.items():
        caught, of = counts[kind]
        parts.append(f"{name}: {caught} of {of}")
    for name, (caught, of) in counts.items():
        if caught and name not in ("its own", NOTHING):
            parts.append(f"{name}: {caught} of {of}")
    return "; ".join(parts)


# ------------------------------------------------------------------------------------------------------ nine visits

COLUMNS = (0.0, 2.0, 4.4, 6.8, 9.2)  # where each part of a visit stands


def nine_visits(rows: Sequence[Mapping[str, Any]], whose: str, title: str) -> Picture:
    """A line for each run: what the doctor asked, in order, with the number; its answer; what was in the run."""
    with sheet(WIDTH, 0.3 * len(rows) + 0.95, DPI) as figure:
        figure.text(0.01, 0.985, title, va="top", size=9.5, weight="bold", color=INK)
        axes = figure.add_axes((0.01, 0.0, 0.98, 0.9))
        axes.set(xlim=(-0.1, 13.4), ylim=(len(rows) - 0.4, -1.2))
        axes.set_axis_off()
        heads = ("in the run", "first", "second", "third", f"answer ({whose})")
        for x, head in zip(COLUMNS, heads, strict=True):
            colour = RIGHT if x == COLUMNS[-1] else GREY
            axes.text(x, -0.75, head, color=colour, fontsize=8, weight="bold")
        for height, row in enumerate(rows):
            axes.text(COLUMNS[0], height, row["fault"], fontsize=8, va="center")
            for x, (what, at, value) in zip(COLUMNS[1:4], row["asked"], strict=False):
                shown = "no number" if math.isnan(value) else number(value)
                short = what.replace("gradient handed over", "gradient")
                text = f"{short}, {at}: {shown}"
                box = {"boxstyle": "round,pad=0.25", "fc": "#F1F1F1", "ec": "#BBBBBB", "lw": 0.6}
                axes.text(x, height, text, fontsize=7.5, va="center", bbox=box)
            is_right = row["answer"] == row["fault"]
            sign = "✓ " if is_right else "✗ "
            axes.text(
                COLUMNS[4],
                height,
                sign + row["answer"],
                fontsize=8,
                va="center",
                weight="bold",
                color=RIGHT if is_right else BUG,
            )
        return Picture(png(figure), f"the visits of {len(rows)} runs by the doctor: {whose}")
