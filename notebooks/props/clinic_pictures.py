"""The out-of-memory clinic's pictures: cards as bars, the map of the public messages, the made deaths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.display.panels import TONES

GIB = 2**30
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

Numbers = Mapping[str, int]


def of_three(answer: object) -> str:
    """A name by one message alone: those that need the steps before are "tensors". What is no name stays what it is."""
    text = str(answer)
    return "tensors" if text in NAMES and text not in ANSWERS else text


def bar_of(axes: Any, at: float, one: Numbers, name: str) -> None:
    """One card as a bar of shares; what was asked for stands above it."""
    total = one["total"]
    others = max(total - one["free"] - one["allocated"] - one["unallocated"], 0)
    parts = {
        "in tensors": (one["allocated"], "#B9B9B9"),
        "unallocated": (one["unallocated"], COLOURS["fragments"]),
        "free": (one["free"], "#FFFFFF"),
        "the rest": (others, COLOURS["another owner"]),
    }
    left = 0.0
    for label, (size, colour) in parts.items():
        width = size / total
        axes.barh(at, width, left=left, height=0.5, color=colour, ec="#555555", lw=0.6, label=label)
        left += width
    asked = min(one["asked"] / total, 1.05)
    axes.plot([0, asked], [at + 0.36] * 2, color="black", lw=2, solid_capstyle="butt")
    axes.text(-0.01, at, name, ha="right", va="center", fontsize=8.5)


def bars(rows: Sequence[tuple[str, Numbers]], title: str) -> None:
    """Cards as bars, the first on top."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.4, 0.5 * len(rows) + 1.0), layout="constrained")
    for place, (name, one) in enumerate(rows):
        bar_of(axes, len(rows) - 1 - place, one, name)
    handles, labels = axes.get_legend_handles_labels()
    legend = dict(zip(labels, handles, strict=True))
    axes.legend(
        legend.values(), legend.keys(), ncols=4, frameon=False, fontsize=8, loc="upper right",
        bbox_to_anchor=(1, -0.02),
    )  # fmt: skip
    axes.set(xlim=(-0.02, 1.08), yticks=[], xticks=[])
    axes.spines[:].set_visible(False)
    axes.set_title(f"{title} (black line: asked for)", fontsize=10, loc="left", weight="bold")
    plt.show()


def place_of(one: Numbers) -> tuple[float, float]:
    """(others, less a context; unallocated), as shares of the card."""
    others = one["total"] - one["free"] - one["allocated"] - one["unallocated"] - GIB // 2
    return max(others, 0) / one["total"], min(one["unallocated"] / one["total"], 1.0)


def map_of(
    axes: Any,
    rows: Sequence[Mapping[str, Any]],
    reading: Callable[[Numbers], object],
    limits: tuple[float, float] | None = None,
    numbered: Mapping[str, str] | None = None,
) -> None:
    """The public messages by their two shares; hollow where a reading differs from the thread.

    numbered  sources that have a number in the picture
    """
    from matplotlib import patheffects

    outline = patheffects.withStroke(linewidth=2.5, foreground="white")
    named = numbered or {}
    if limits:
        right_of, above = limits
        axes.axvspan(right_of, 1.05, color=COLOURS["another owner"], alpha=0.10, lw=0)
        axes.fill_between(
            [-0.05, right_of], above, 1.05, color=COLOURS["fragments"], alpha=0.10, lw=0
        )
    agree = 0
    for row in rows:
        x, y = place_of(row["numbers"])
        same = of_three(reading(row["numbers"])) == row["cause"]
        agree += same
        colour = COLOURS[row["cause"]]
        axes.plot(
            x, y, MARKERS[row["cause"]], ms=7, mec=colour, mew=1.4, alpha=0.9,
            mfc=colour if same else "white",
        )  # fmt: skip
        if row["source"] in named:
            axes.annotate(
                named[row["source"]], (x, y), (3, 6), textcoords="offset points", fontsize=9.5,
                weight="bold", path_effects=[outline],
            )  # fmt: skip
    for name in ANSWERS:
        axes.plot([], [], MARKERS[name], ms=7, color=COLOURS[name], label=name)
    axes.legend(fontsize=8, loc="upper right")
    # The first fifth of each axis takes half of it: most messages are there.
    axes.set_xscale("symlog", linthresh=0.2)
    axes.set_yscale("symlog", linthresh=0.2)
    ticks = [0, 0.1, 0.2, 0.5, 1.0]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set(xlim=(-0.02, 1.05), ylim=(-0.02, 1.05))
    axes.set_xlabel(
        "others, without half a GiB for a context, as a share of the card", fontsize=8.5
    )
    axes.set_ylabel("unallocated, share of the card", fontsize=8.5)
    axes.text(
        0.42,
        0.9,
        f"{agree} of {len(rows)} as the threads have it",
        fontsize=9.5,
        weight="bold",
        transform=axes.transAxes,
    )


def map_of_answers(rows: Sequence[Mapping[str, Any]], given: Sequence[str], title: str) -> None:
    """The map with answers that were given before, in the order of the rows."""
    import matplotlib.pyplot as plt

    by_figures = {}
    for row, answer in zip(rows, given, strict=True):
        by_figures[tuple(row["numbers"].values())] = answer
    figure, axes = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
    map_of(axes, rows, lambda one: by_figures[tuple(one.values())])
    axes.set_title(title, fontsize=10, loc="left", weight="bold")
    plt.show()


def left_over(deaths: Sequence[Mapping[str, Any]], title: str) -> None:
    """Made deaths, a row for each cause, by what is unallocated; filled where what nobody owns would have been enough."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    rows = []
    for place, cause in enumerate(NAMES):
        some = [death for death in deaths if death["cause"] == cause]
        rows.append(f"{cause} ({len(some)})")
        for number, death in enumerate(some):
            x = death["numbers"]["unallocated"] / death["numbers"]["total"]
            y = place + 0.24 * (number % 3 - 1)  # three lines in a row: fewer marks cover others
            filling = COLOURS[cause] if over(death) >= 1 else "white"
            axes.plot(x, y, MARKERS[cause], ms=6, mec=COLOURS[cause], mfc=filling)
    axes.axvline(0.1, color="#444444", lw=1, ls=":")
    axes.set_yticks(range(len(NAMES)), rows)
    axes.set_xlim(left=-0.01)
    axes.invert_yaxis()
    axes.set_xlabel("unallocated, as a share of the card (dotted: a tenth)")
    axes.set_title(title, fontsize=10, loc="left", weight="bold")
    plt.show()


def over(death: Mapping[str, Any]) -> float:
    """Held before the step and owned by nobody, in units of what the request was short of; 80 at most."""
    short = max(death["numbers"]["asked"] - death["numbers"]["free"], 1)
    return min(max(death["held"][-1] - death["owned"], 0) / short, 80.0)
