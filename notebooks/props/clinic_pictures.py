"""The out-of-memory clinic's pictures: cards as bars, the map of the public messages, what grows in the made deaths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.display.panels import TONES

GIB, MIB = 2**30, 2**20
COLOURS = {
    "another owner": TONES["two"][0],
    "fragments": TONES["one"][0],
    "tensors": TONES["grey"][0],
}
MARKERS = {"another owner": "s", "fragments": "^", "tensors": "o"}
NAMES = ("another owner", "a leak", "fragments", "too big at once", "a longer batch")
COLOURS |= {
    "a leak": TONES["bug"][0],
    "too big at once": TONES["three"][0],
    "a longer batch": TONES["four"][0],
}
MARKERS |= {"a leak": "X", "too big at once": "D", "a longer batch": "v"}
ANSWERS = ("another owner", "fragments", "tensors")  # by one message alone
FARTHEST = 12.0  # of the axis of growth; what lies beyond stands at its end

Numbers = Mapping[str, int | None]


def of_three(answer: object) -> str:
    """A name by one message alone: those that need the steps before are "tensors". What is no name stays what it is."""
    text = str(answer)
    return "tensors" if text in NAMES and text not in ANSWERS else text


def parts_of(one: Numbers) -> dict[str, tuple[int, str]]:
    """The card in parts, from left to right: label -> (bytes, colour). What the message does not say is 0."""
    size = {name: number or 0 for name, number in one.items()}
    inside = size["allocated"] + size["unallocated"]
    outside = max(size["own"] - inside, 0)
    label, grey = "this process, past PyTorch", "#8A8A8A"
    if one["allocated"] is None:
        label, grey = "this process, no more said", "#5A5A5A"
    rest = size["total"] - size["free"] - inside - outside
    return {
        "in tensors": (size["allocated"], "#B9B9B9"),
        "unallocated": (size["unallocated"], COLOURS["fragments"]),
        label: (outside, grey),
        "free": (size["free"], "#FFFFFF"),
        "the rest: others, or this process's context": (max(rest, 0), COLOURS["another owner"]),
    }


def bar_of(axes: Any, at: float, one: Numbers, name: str) -> None:
    """One card as a bar of shares; what was asked for stands above it, and in words where that is too short to see."""
    total, asked = one["total"] or 1, one["asked"] or 0
    left = 0.0
    for label, (size, colour) in parts_of(one).items():
        width = size / total
        if width:
            axes.barh(
                at, width, left=left, height=0.5, color=colour, ec="#555555", lw=0.6, label=label
            )
        left += width
    axes.plot(
        [0, min(max(asked / total, 0.008), 1.05)], [at + 0.36] * 2, "k", lw=2, solid_capstyle="butt"
    )
    if asked < 0.02 * total:
        axes.text(0.015, at + 0.33, f"{asked / MIB:.0f} MiB", fontsize=7.5, va="center")
    if asked > 1.05 * total:
        axes.text(1.06, at + 0.36, f"{asked / GIB:.0f} GiB →", fontsize=7.5, va="center")
    axes.text(-0.01, at, f"{name}, {total / GIB:.1f} GiB", ha="right", va="center", fontsize=8.5)


def bars(rows: Sequence[tuple[str, Numbers]], title: str) -> None:
    """Cards as bars, the first on top; each is drawn as wide as the others, whatever its size."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.4, 0.55 * len(rows) + 1.0), layout="constrained")
    for place, (name, one) in enumerate(rows):
        bar_of(axes, len(rows) - 1 - place, one, name)
    handles, labels = axes.get_legend_handles_labels()
    legend = dict(zip(labels, handles, strict=True))
    axes.legend(
        legend.values(), legend.keys(), ncols=6, frameon=False, fontsize=7.5, loc="upper right",
        bbox_to_anchor=(1, -0.02),
    )  # fmt: skip
    axes.set(xlim=(-0.02, 1.18), yticks=[], xticks=[])
    axes.spines[:].set_visible(False)
    axes.set_title(
        f"{title} (black line: asked for; bars are shares of the card)",
        fontsize=10,
        loc="left",
        weight="bold",
    )
    plt.show()


def map_of(
    axes: Any,
    rows: Sequence[Mapping[str, Any]],
    reading: Callable[[Numbers], object],
    others_of: Callable[[Numbers], float],
    limits: tuple[float, float] | None = None,
    numbered: Mapping[str, str] | None = None,
) -> None:
    """The public messages by their two shares; hollow where a reading differs from the thread.

    numbered  sources that have a number in the picture
    """
    named = numbered or {}
    if limits:
        right_of, above = limits
        axes.axvspan(right_of, 1.05, color=COLOURS["another owner"], alpha=0.10, lw=0)
        axes.fill_between(
            [-0.05, right_of], above, 1.05, color=COLOURS["fragments"], alpha=0.10, lw=0
        )
    agree = 0
    for number, row in enumerate(rows):
        total = row["numbers"]["total"]
        x = max(others_of(row["numbers"]), 0) / total
        y = min(row["numbers"]["unallocated"] / total, 1.0)
        same = of_three(reading(row["numbers"])) == row["cause"]
        agree += same
        colour = COLOURS[row["cause"]]
        if x == 0:
            x = -0.012 * (number % 4)  # many have no others at all: beside each other
        axes.plot(
            x, y, MARKERS[row["cause"]], ms=6, mec=colour, mew=1.3, alpha=0.85,
            mfc=colour if same else "white",
        )  # fmt: skip
        if row["source"] in named:
            axes.annotate(
                named[row["source"]], (x, y), (14, 12), textcoords="offset points", fontsize=9.5,
                weight="bold", arrowprops={"arrowstyle": "-", "lw": 0.8, "shrinkB": 4},
            )  # fmt: skip
    for name in ANSWERS:
        axes.plot([], [], MARKERS[name], ms=7, color=COLOURS[name], label=name)
    axes.legend(fontsize=8, loc="upper right")
    # The first fifth of each axis takes half of it: most messages are there.
    axes.set_xscale("symlog", linthresh=0.2)
    axes.set_yscale("symlog", linthresh=0.2)
    ticks = [0, 0.1, 0.2, 0.5, 1.0]
    axes.set_xticks(ticks, [f"{100 * tick:.0f} %" for tick in ticks])
    axes.set_yticks(ticks, [f"{100 * tick:.0f} %" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlim=(-0.06, 1.05), ylim=(-0.02, 1.05))
    axes.set_xlabel("others, share of the card (both axes bend at 20 %)", fontsize=8.5)
    axes.set_ylabel("unallocated, share of the card", fontsize=8.5)
    axes.text(
        0.36,
        0.9,
        f"{agree} of {len(rows)} as the threads have it",
        fontsize=9.5,
        weight="bold",
        transform=axes.transAxes,
    )


def map_of_answers(
    rows: Sequence[Mapping[str, Any]],
    given: Sequence[str],
    others_of: Callable[[Numbers], float],
    title: str,
) -> None:
    """The map with answers that were given before, in the order of the rows."""
    import matplotlib.pyplot as plt

    by_figures = {}
    for row, answer in zip(rows, given, strict=True):
        by_figures[tuple(row["numbers"].values())] = answer
    figure, axes = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
    map_of(axes, rows, lambda one: by_figures[tuple(one.values())], others_of)
    axes.set_title(title, fontsize=10, loc="left", weight="bold")
    plt.show()


def leaks_beside(
    deaths: Sequence[Mapping[str, Any]],
    value: Callable[[Mapping[str, Any]], float],
    label: str,
    title: str,
    given: Sequence[str] = (),
) -> None:
    """Made deaths by a number that should tell leaks, a row for each thing that lives beside the run.

    given   a reading's names: a mark is filled where it says "a leak"; without them, where the number is 1 or more
    """
    import matplotlib.pyplot as plt

    besides = list(dict.fromkeys(death["beside"] for death in deaths))
    figure, axes = plt.subplots(figsize=(8.4, 3.2), layout="constrained")
    counted = dict.fromkeys(besides, 0)
    leaks_last = sorted(enumerate(deaths), key=lambda pair: "a leak" in pair[1]["causes"])
    for at, death in leaks_last:
        leak = "a leak" in death["causes"]
        colour = COLOURS["a leak"] if leak else COLOURS["tensors"]
        x = min(max(value(death), 0.0), FARTHEST)
        filled = given[at] == "a leak" if given else x >= 1
        if x == FARTHEST:
            x -= 0.5 * (at % 4)  # several lie at the end: beside each other
        place = besides.index(death["beside"]) + 0.1 * (counted[death["beside"]] % 7 - 3)
        counted[death["beside"]] += 1
        axes.plot(
            x, place, "X" if leak else "o", ms=6, mec=colour, mfc=colour if filled else "white"
        )
    for name, mark in (("a leak", "X"), ("no leak", "o")):
        axes.plot([], [], mark, color=COLOURS.get(name, COLOURS["tensors"]), label=name)
    axes.plot([], [], "o", mec="#444444", mfc="white", label="hollow: not\ncalled a leak")
    axes.axvline(1, color="#444444", lw=1, ls=":")
    axes.set_xscale("symlog", linthresh=2)
    axes.set_xticks([0, 1, 2, 5, 10], ["0", "1", "2", "5", "10"])
    axes.set(xlim=(-0.1, FARTHEST * 1.1), xlabel=f"{label} (bends at 2; farther ones at its end)")
    axes.set_yticks(
        range(len(besides)), [f"beside it: {name} ({counted[name]})" for name in besides]
    )
    axes.invert_yaxis()
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axes.set_title(title, fontsize=10, loc="left", weight="bold")
    plt.show()
