"""Lesson 05's pictures: staircases of what is held before an update and of the update's own need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from props.lesson_05 import CARD, GIB, UPDATES, held, needs

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
    if len(sizes) > len(run.steps) and need:
        last, bottom = sizes[-1] / GIB, need[-1] / GIB
        text = f"{last:.3f} + {bottom:.3f}"
        axes.annotate(
            text,
            (len(sizes), last + bottom),
            (0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    _card(axes)
    _evaluations(axes, [step for step in before if step <= len(sizes)])
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
    heights = [size / GIB for size in held(bugs[seed])]
    left.step(
        [at + 0.5 for at in range(len(heights) + 1)],
        [heights[0], *heights],
        color=BUG,
        lw=1.8,
        label="bug: held",
    )
    if len(heights) > len(bugs[seed].steps):
        top = heights[-1] + needs(bugs[seed])[-1] / GIB
        left.vlines(len(heights), heights[-1], top, color=BUG, linestyle=":")
        left.plot(len(heights), top, color=BUG, marker="X", markersize=8, label="bug: held + need")
    _card(left)
    _evaluations(left, before)
    left.set(xlabel="update", ylabel="GiB", ylim=(0, 15), xlim=(0.4, UPDATES + 0.6))
    left.set_xticks(range(1, UPDATES + 1))
    left.legend(fontsize=7, loc="upper left", ncols=2)
    for name, arm, colour in (("bug", bugs, BUG), (whose, runs, YOURS)):
        for at, run in enumerate(arm.values()):
            sizes = [size / GIB for size in held(run)]
            numbers = range(1, len(sizes) + 1)
            right.plot(
                numbers, sizes, color=colour, marker=".", alpha=0.8, label=name if at == 0 else None
            )
            if len(sizes) > len(run.steps):
                right.plot(len(sizes), sizes[-1], color=colour, marker="X", markersize=10)
    right.set(
        xlabel="update (a cross: it dies in this one)",
        ylabel="held before it, GiB",
        ylim=(0, 6),
        xlim=(0.4, UPDATES + 0.6),
        xticks=range(1, UPDATES + 1),
    )
    right.legend(
        fontsize=7, loc="upper left", title=f"seeds {', '.join(map(str, bugs))}", title_fontsize=7
    )
    figure.suptitle(title, fontsize=10, x=0.01, ha="left", weight="bold")
    plt.close(figure)
    return figure


def _bars(axes: Any, run: Run, colour: str, whose: str) -> None:
    sizes = [size / GIB for size in held(run)]
    taken = [(step["peak_bytes"] - step["held_bytes"]) / GIB for step in run.steps]
    name = f"{whose}: " if whose else ""
    axes.bar(range(1, len(sizes) + 1), sizes, color=colour, label=f"{name}held before the update")
    done = range(1, len(taken) + 1)
    axes.bar(
        done,
        taken,
        bottom=sizes[: len(taken)],
        color=PALE[colour],
        label=f"{name}its own need, at its peak",
    )
    if len(taken) > 1 and len(sizes) > len(taken):
        style = {"color": "white", "edgecolor": "black", "linestyle": ":"}
        axes.bar(len(sizes), taken[-1], bottom=sizes[-1], label="the same need: refused", **style)


def _card(axes: Any) -> None:
    axes.axhline(CARD / GIB, color="#444444", linestyle="--", linewidth=1)
    axes.annotate("the card", (0.45, CARD / GIB), (0, 2), textcoords="offset points", fontsize=7.5)
    axes.spines[["top", "right"]].set_visible(False)


def _evaluations(axes: Any, before: Sequence[int]) -> None:
    for step in before:
        axes.axvline(step - 0.5, color=GREY, linewidth=1, linestyle=":")
        axes.annotate("evaluation", (step - 0.5, 8.3), ha="center", fontsize=6, rotation=90)


# ---- arithmetic


def dies_in(left: int, base: int, need: int) -> int | None:
    """The update in which held + need passes the card, if an evaluation before every second update leaves so much."""
    for step in range(1, 1000):
        if base + _evaluations_before(step) * left + need > CARD:
            return step
    return None


def _evaluations_before(step: int) -> int:
    return max(0, (step - 1) // 2)


def draw_arithmetic(
    axes: Any, left: int, first: Sequence[int], need: int, run: Run | None, title: str
) -> None:
    """The staircase that follows from one measured evaluation and one measured update; dots: a run, where one was made.

    first  bytes held before updates 1 and 2
    """
    dies = dies_in(left, first[1], need)
    numbers = range(1, min(dies or DRAWN, DRAWN) + 1)
    levels = [(first[1] + _evaluations_before(step) * left) / GIB for step in numbers]
    levels[0] = first[0] / GIB  # AdamW's state comes in update 1
    axes.bar(numbers, levels, color=BUG)
    axes.bar(numbers, [need / GIB] * len(levels), bottom=levels, color=PALE[BUG])
    _card(axes)
    top = levels[-1] + need / GIB
    fate = "the card is not passed in this picture"
    if dies is not None and dies <= DRAWN:
        fate = f"update {dies} passes the card"
        text = f"{levels[-1]:.2f} + {need / GIB:.2f}"
        axes.annotate(
            text,
            (dies, top),
            (0, 2 if run is None else 6),  # above the cross
            textcoords="offset points",
            ha="center",
            fontsize=7.5,
            color=FAR,
        )
        if len(levels) > 1 and levels[-2] + need / GIB > CARD / GIB - CLOSE:
            fate += "; the evaluation before comes close: pieces may decide (lesson 07)"
    if run is not None:
        sizes = [size / GIB for size in held(run)]
        axes.plot(range(1, len(sizes) + 1), sizes, "o", color="black", ms=4, label="a run: held")
        peaks = [(step["peak_bytes"]) / GIB for step in run.steps]
        axes.plot(
            range(1, len(peaks) + 1),
            peaks,
            "_",
            color="black",
            ms=11,
            mew=1.8,
            label="a run: held + need",
        )
        if len(sizes) > len(run.steps):
            axes.plot(
                len(sizes), sizes[-1] + need / GIB, "X", color="black", ms=9, label="it dies here"
            )
        axes.legend(fontsize=7, loc="upper right", ncols=3)
    axes.set(xlabel="update; an evaluation before every second one, from 3 on", ylabel="GiB")
    axes.set(ylim=(0, 10.8), xlim=(0.4, DRAWN + 0.6), xticks=range(1, DRAWN + 1, 2))
    axes.set_title(
        f"{title}: one evaluation leaves {left / GIB:.2f} GiB; {fate}", fontsize=8.5, loc="left"
    )


def rows_of(
    measured: Mapping[str, Mapping[str, int]], ways: Mapping[str, Any], base: int, need: int
) -> list[dict[str, str]]:
    """A row for each way: what one evaluation leaves and takes, and where that leads. A way that did not return is said."""
    rows = []
    for name in ways:
        if name not in measured:
            rows.append({"what is done": name, "one evaluation leaves, GiB": "it did not return"})
            continue
        left, peak = measured[name]["left"], measured[name]["peak"]
        fate = "never"
        if "kind" in ways[name]:
            fate = "not computed: its update differs"
        elif left > 2**20:
            dies = dies_in(left, base, need)
            fate = f"{_evaluations_before(dies)}" if dies else "never"
        row = {"what is done": name, "one evaluation leaves, GiB": f"{left / GIB:.2f}"}
        row["its own peak, GiB"] = f"{peak / GIB:.2f}"
        row["evaluations until held + need pass the card (arithmetic)"] = fate
        rows.append(row)
    return rows
