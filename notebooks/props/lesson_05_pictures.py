"""Lesson 05's pictures: staircases of what is held before an update and of the update's own need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from props.lesson_05 import UPDATES, held, needs
from props.lesson_05_arithmetic import dies_in, levels_of
from props.lesson_05_card import CARD, GIB

from labkit.display.panels import TONES
from labkit.events import Run

BUG, YOURS, FAR, GREY = (TONES[name][0] for name in ("bug", "fix", "far", "grey"))
PALE = {BUG: "#F3C9A8", YOURS: "#BFD3F2"}
DRAWN = 26  # updates of the arithmetic
CLOSE = 0.3  # GiB: so little under the card, pieces may decide


def staircase(run: Run, before: Sequence[int], title: str) -> Any:
    """Each update in two parts: held before it, and its own need. A refused one gets the need of the one before."""
    import matplotlib.pyplot as plt  # here: 0.4 s that no child of the sandbox needs

    figure, axes = plt.subplots(figsize=(8.4, 3.4), layout="constrained")
    _bars(axes, run, BUG, "")
    sizes, need = held(run), needs(run)
    if _refused(run) and need:
        last, bottom = sizes[-1] / GIB, need[-1] / GIB
        _sum_over(axes, len(sizes), last + bottom, f"{last:.3f} + {bottom:.3f}", "black", 3)
    _card(axes)
    _evaluations(axes, [step for step in before if step <= len(sizes)], 9.8)
    axes.set(xlabel="update", ylabel="GiB", ylim=(0, 12.4), xlim=(0.4, UPDATES + 0.6))
    axes.set_xticks(range(1, UPDATES + 1))
    axes.set_title(title, fontsize=10, loc="left", weight="bold")
    axes.legend(fontsize=7.5, loc="upper left", ncols=3)
    plt.close(figure)
    return figure


def redrawn(
    bugs: Mapping[int, Run],
    runs: Mapping[int, Run],
    whose: str,
    seed: int,
    before: Sequence[int],
    title: str,
) -> Any:
    """The staircase of the reader's evaluation over the bug's outline; and what was held, three seeds of both."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(8.4, 3.2), width_ratios=(1.15, 1), layout="constrained"
    )
    _bars(left, runs[seed], YOURS, whose)
    _outline(left, bugs[seed])
    if not runs[seed].outcome:
        outcome = runs[seed].outcome
        died = (
            f"{whose}, update {len(runs[seed].steps) + 1}: {outcome.exception or outcome.signature}"
        )
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        left.text(9.5, 9.7, died, fontsize=8, color=YOURS, ha="right", bbox=behind)
    _card(left)
    _evaluations(left, before, 11.6)  # below a legend of three lines
    left.set(xlabel="update", ylabel="GiB", ylim=(0, 17.5), xlim=(0.4, UPDATES + 0.6))
    left.set_xticks(range(1, UPDATES + 1))
    left.legend(fontsize=7, loc="upper left", ncols=2)
    _held_lines(right, bugs, "bug", BUG)
    _held_lines(right, runs, whose, YOURS)
    right.set(xlabel="update (a cross: it dies in this one)", ylabel="held before it, GiB")
    right.set(ylim=(0, 6), xlim=(0.4, UPDATES + 0.6), xticks=range(1, UPDATES + 1))
    seeds = f"seeds {', '.join(map(str, bugs))}"
    right.legend(fontsize=7, loc="upper left", title=seeds, title_fontsize=7)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left", weight="bold")
    plt.close(figure)
    return figure


def _refused(run: Run) -> bool:
    """Whether it died in an update, so that what was held before is known."""
    return len(held(run)) > len(run.steps)


def _bars(axes: Any, run: Run, colour: str, whose: str) -> None:
    sizes = [size / GIB for size in held(run)]
    taken = [(step["peak_bytes"] - step["held_bytes"]) / GIB for step in run.steps]
    name = f"{whose}: " if whose else ""
    axes.bar(range(1, len(sizes) + 1), sizes, color=colour, label=f"{name}held before the update")
    done, bottom = range(1, len(taken) + 1), sizes[: len(taken)]
    label = f"{name}its own need, at its peak"
    axes.bar(done, taken, bottom=bottom, color=PALE[colour], label=label)
    if len(taken) > 1 and _refused(run):
        style = {"color": "white", "edgecolor": "black", "linestyle": ":"}
        axes.bar(len(sizes), taken[-1], bottom=sizes[-1], label="the same need: refused", **style)


def _outline(axes: Any, run: Run) -> None:
    """What the bug held, as a line over another run's bars."""
    heights = [size / GIB for size in held(run)]
    edges = [at + 0.5 for at in range(len(heights) + 1)]
    axes.step(edges, [heights[0], *heights], color=BUG, lw=1.8, label="bug: held")
    if _refused(run):
        top = heights[-1] + needs(run)[-1] / GIB
        axes.vlines(len(heights), heights[-1], top, color=BUG, linestyle=":")
        axes.plot(len(heights), top, color=BUG, marker="X", ms=8, label="bug: held + need")


def _held_lines(axes: Any, runs: Mapping[int, Run], name: str, colour: str) -> None:
    """A line for each seed; a cross in the update that died, or whose evaluation did."""
    axes.plot([], [], color=colour, marker=".", alpha=0.8, label=name)
    for run in runs.values():
        sizes = [size / GIB for size in held(run)]
        axes.plot(range(1, len(sizes) + 1), sizes, color=colour, marker=".", alpha=0.8)
        if sizes and not run.outcome:
            axes.plot(len(run.steps) + 1, sizes[-1], color=colour, marker="X", ms=10)


def _sum_over(axes: Any, at: int, top: float, text: str, colour: str, gap: float) -> None:
    """held + need, written over their bar."""
    style = {"textcoords": "offset points", "ha": "center", "fontsize": 7.5, "color": colour}
    axes.annotate(text, (at, top), (0, gap), **style)


def _card(axes: Any) -> None:
    axes.axhline(CARD / GIB, color="#444444", linestyle="--", linewidth=1)
    axes.annotate("the card", (0.45, CARD / GIB), (0, 2), textcoords="offset points", fontsize=7.5)
    axes.spines[["top", "right"]].set_visible(False)


def _evaluations(axes: Any, before: Sequence[int], height: float) -> None:
    """A dotted line between two updates, with its word over the bars and their sums, at so many GiB."""
    style = {"ha": "center", "va": "bottom", "fontsize": 6.5}
    for step in before:
        axes.vlines(step - 0.5, 0, height, color=GREY, linewidth=1, linestyle=":")
        axes.text(step - 0.5, height, "evaluation", **style)


def draw_arithmetic(
    axes: Any, left: int, first: Sequence[int], need: int, run: Run | None, title: str
) -> None:
    """The staircase that follows from one measured evaluation and one measured update; dots: a run, where one was made.

    first  bytes held before updates 1 and 2
    """
    dies = dies_in(left, first[1], need)
    levels = [level / GIB for level in levels_of(left, first, min(dies or DRAWN, DRAWN))]
    numbers = range(1, len(levels) + 1)
    axes.bar(numbers, levels, color=BUG)
    axes.bar(numbers, [need / GIB] * len(levels), bottom=levels, color=PALE[BUG])
    _card(axes)
    fate = "the card is not passed in this picture"
    if dies is not None and dies <= DRAWN:
        fate = f"update {dies} passes the card"
        text = f"{levels[-1]:.2f} + {need / GIB:.2f}"
        gap = 2 if run is None else 6  # above the cross
        _sum_over(axes, dies, levels[-1] + need / GIB, text, FAR, gap)
        if len(levels) > 1 and levels[-2] + need / GIB > CARD / GIB - CLOSE:
            fate += "; the evaluation before comes close: pieces may decide (lesson 07)"
    if run is not None:
        _marks(axes, run, need)
    axes.set(xlabel="update; an evaluation before every second one, from 3 on", ylabel="GiB")
    axes.set(ylim=(0, 10.8), xlim=(0.4, DRAWN + 0.6), xticks=range(1, DRAWN + 1, 2))
    leaves = f"{title}: one evaluation leaves {left / GIB:.2f} GiB; {fate}"
    axes.set_title(leaves, fontsize=8.5, loc="left")


def _marks(axes: Any, run: Run, need: int) -> None:
    """A measured run over the arithmetic."""
    sizes = [size / GIB for size in held(run)]
    axes.plot(range(1, len(sizes) + 1), sizes, "o", color="black", ms=4, label="a run: held")
    peaks = [step["peak_bytes"] / GIB for step in run.steps]
    style = {"color": "black", "ms": 11, "mew": 1.8, "label": "a run: held + need"}
    axes.plot(range(1, len(peaks) + 1), peaks, "_", **style)
    if _refused(run):
        top = sizes[-1] + need / GIB
        axes.plot(len(sizes), top, "X", color="black", ms=9, label="it dies here")
    axes.legend(fontsize=7, loc="upper right", ncols=3)
