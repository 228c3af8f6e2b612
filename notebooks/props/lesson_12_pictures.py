"""The figures of page 12: the advantages of one group, and what a judge's timeout does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from props.lesson_12 import mark

from labkit.display.panels import TONES

LONG, SHORT, FAR, GREY = TONES["three"][0], TONES["two"][0], TONES["far"][0], TONES["grey"][0]
OTHER = "#8A8A8A"
INK = "#222222"
LATE = "#E4E0D8"  # what stands right of the timeout
LAST_SECOND = 26  # the right edge of the histogram

# ------------------------------------------------------------------------------------------------------- one group


def bars_of_group(
    answers: Sequence[str], late: Sequence[bool], values: Sequence[float] | None, whose: str
) -> None:
    """A bar for the advantage of each answer of a group, late ones in red; the title has what each answer has in all.

    values  the advantages; None where a function did not come back with them
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 2.4), layout="constrained")
    axes.axhline(0, color=GREY, lw=0.8)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    names = list(answers)
    colours = [OTHER] * len(answers)
    for place, is_late in enumerate(late):
        if is_late:
            names[place] += "\nlate"
            colours[place] = FAR
    axes.set_xticks(range(len(answers)), names)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("advantage")
    title = f"{whose}: it ended by an error"
    if values is not None:
        draw_bars(axes, values, colours)
        title = f"{whose}: {sums_of(answers, values)}"
    axes.set_title(title, fontsize=10, loc="left", weight="bold")
    plt.show()


def draw_bars(axes: Any, values: Sequence[float], colours: Sequence[str]) -> None:
    """The advantages with their numbers; a NaN has a bar of height 0, and its label says nan."""
    heights = list(values)
    for place, value in enumerate(values):
        if value != value:
            heights[place] = 0.0
    bars = axes.bar(range(len(values)), heights, color=colours, width=0.6)
    labels = [f"{value:.2f}".replace("-", "−") for value in values]
    axes.bar_label(bars, labels, fontsize=8, padding=1)
    axes.margins(y=0.15)


def sums_of(answers: Sequence[str], values: Sequence[float]) -> str:
    """ "102 has −1.42, 92 has +1.42, in all"."""
    totals: dict[str, float] = {}
    for answer, value in zip(answers, values, strict=True):
        totals[answer] = totals.get(answer, 0.0) + value
    parts = []
    for answer in sorted(totals, key=len, reverse=True):
        parts.append(f"{answer} has {totals[answer]:+.2f}".replace("-", "−"))
    return ", ".join(parts) + ", in all"


# ----------------------------------------------------------------------------------------------------- the timeout


def draw_timeout(
    axes: Sequence[Any],
    timeout: float,
    seconds: Mapping[str, Sequence[float]],
    group: Sequence[tuple[str, str, float]],
    exams: Mapping[float, Sequence[float]],
    start: float,
) -> None:
    """The judge's times and the timeout; what comes of the marks; the exams of the runs at some timeouts.

    seconds  an answer -> times that the judge took for such answers; first the right one, then the wrong one
    group    (prompt, answer, seconds) of the group that the page follows
    exams    timeout -> the last exam of each seed
    """
    times, marks, ends = axes
    right, wrong = seconds
    colours = {right: LONG, wrong: SHORT}
    draw_times(times, timeout, seconds, group, colours)
    prompt = group[0][0]
    in_time = {}
    for answer, drawn in seconds.items():
        share = mean(float(second <= timeout) for second in drawn)
        in_time[answer] = mark(prompt, answer) * share
    draw_marks(marks, in_time, colours)
    draw_exams(ends, timeout, exams, start)
    for each in axes:
        each.spines[["top", "right", "left"]].set_visible(False)
        each.tick_params(labelsize=8)


def draw_times(
    axes: Any,
    timeout: float,
    seconds: Mapping[str, Sequence[float]],
    group: Sequence[tuple[str, str, float]],
    colours: Mapping[str, str],
) -> None:
    """A histogram of the judge's times for each answer, the group's as dots, and the timeout."""
    bins = [0.5 * at for at in range(2 * LAST_SECOND + 1)]
    axes.axvspan(timeout, LAST_SECOND, color=LATE, zorder=0)
    for answer, drawn in seconds.items():
        axes.hist(drawn, bins, color=colours[answer], alpha=0.55, label=f"{len(answer)} digits")
    top = axes.get_ylim()[1] * 1.3  # room for the dots
    axes.set(ylim=(0, top), xlim=(0, LAST_SECOND), yticks=[])
    for _, answer, second in group:
        axes.plot([second], [0.86 * top], "o", color=colours[answer], ms=5, mec="white", mew=0.5)
    axes.axvline(timeout, color=INK, lw=1.2)
    axes.set_xlabel("seconds of the judge (dots: the group of above)", fontsize=8)
    axes.legend(frameon=False, fontsize=7, loc="center right")


def draw_marks(axes: Any, in_time: Mapping[str, float], colours: Mapping[str, str]) -> None:
    """A bar for what each answer brings: its mark times the share that comes in time."""
    for place, (answer, worth) in enumerate(in_time.items()):
        axes.bar([place], [worth], color=colours[answer], width=0.6)
        axes.text(place, worth, f"{worth:.2f}", ha="center", va="bottom", fontsize=8)
    axes.set(xticks=[0, 1], ylim=(0, 1.15), yticks=[])
    axes.set_xticklabels(list(in_time))
    axes.set_xlabel("mark × share in time", fontsize=8)


def draw_exams(
    axes: Any, timeout: float, exams: Mapping[float, Sequence[float]], start: float
) -> None:
    """The last exams of the runs with some timeouts; grey: the exam before training."""
    axes.axhline(start, color=GREY, lw=1)
    axes.axvline(timeout, color=INK, lw=1.2)
    style = {"color": TONES["bug"][0], "ms": 4.5, "alpha": 0.85}
    for allowed, chances in exams.items():
        axes.plot([allowed] * len(chances), chances, "o", **style)
    axes.set(ylim=(0, 1), xlim=(7.5, 22.5), xticks=list(exams), yticks=[0, 0.5, 1])
    axes.set_xlabel("timeout of a run, s: its exam, three seeds", fontsize=8)
