"""The drawings of page 11. They compute nothing.

Grey, sand and brown are what fills a card, on every picture: the weights, what the layers keep, the logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.display.panels import TONES

from .lesson_11 import Size, Used
from .lesson_11_seats import CARDS, COPIES, Block, in_words, on_card

BUG, FIX, ROW = TONES["bug"][0], TONES["fix"][0], TONES["far"][0]
FILLS = {"weights": "#A9A9A9", "activations": "#E6CD96", "logits": "#8A5A2B", "the rest": "#DDDDDD"}
BLOCKS = {"policy": "#6F7F8F", "reference": "#A9A9A9", "reward": "#C9C9C9"}
RIGHT_EDGE = 40.0  # GiB: the knob's picture ends here
# GiB at the peak on one NVIDIA H200, 27 November 2026, torch 2.11: docs/h200.md has the table
H200 = {
    "at once": 10.0527,
    "4 parts": 2.9238,
    "scoring, at once": 3.5722,
    "scoring, 4 parts": 1.2702,
    "4 parts, one backward": 8.3259,
    "checkpointing": 3.9004,
    "96 answer tokens": 8.6885,
    "64 answer tokens": 7.2809,
    "LoRA rank 8": 10.0465,
    "bfloat16": 5.0552,
    "all weights, at once": 12.4221,
    "all weights, 4 parts": 4.6751,
    "2 parts": 5.3115,
}


def far_from_h200(used: Mapping[str, Used]) -> float:
    """MiB: the largest difference of those peaks that an H200 has measured, too."""
    return max(abs(run.peak - H200[name]) * 1024 for name, run in used.items() if name in H200)


def _card_line(axes: Any, card: float, at: float = 0.0) -> None:
    axes.axhline(card, color="black", ls="--", lw=1)
    place = axes.get_yaxis_transform()
    axes.text(at, card + 0.15, f" a card of {card:g} GiB", fontsize=8, va="bottom", transform=place)


def update_until_refused(used: Used, asked: float, card: float = 8.0) -> None:
    """What the update holds from allocation to allocation, until the card refuses the next one."""
    import matplotlib.pyplot as plt

    lines = used.stopped
    figure, axes = plt.subplots(figsize=(8.6, 2.9), layout="constrained")
    steps = range(len(lines["weights"]))
    colours = [FILLS[term] for term in lines]
    axes.stackplot(steps, *lines.values(), labels=list(lines), colors=colours)
    end, top = len(steps), sum(line[-1] for line in lines.values())
    axes.bar(end + 22, asked, 40, top, color="none", edgecolor=BUG, lw=1.5, ls=":")
    axes.plot(end + 22, top + asked / 2, "X", ms=10, color=BUG)
    axes.text(
        end - 4,
        top + asked,
        f"asks for {asked:.2f} GiB more ",
        ha="right",
        va="top",
        fontsize=9,
        color=BUG,
    )
    _card_line(axes, card)
    axes.set(xlim=(0, end + 48), ylim=(0, 9.2), ylabel="GiB in tensors (simulated)")
    axes.set_xlabel("allocations and frees of one update, in order")
    axes.set_title(
        "Layer after layer the forward pass fills the card; then it is refused",
        fontsize=10,
        loc="left",
        weight="bold",
    )
    axes.legend(loc="center left", fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    plt.show()


def bar_of_budget(
    axes: Any,
    size: Size,
    budgets: Mapping[Size, Mapping[str, float]],
    used: Mapping[Size, Used],
    whose: str,
    card: float = 8.0,
) -> None:
    """A budget as a bar, one row of it in red; a mark where the simulated card has run this update."""
    axes.axvline(card, color="black", ls="--", lw=1)
    axes.text(card, 0.82, f" the card, {card:g} GiB", fontsize=8, va="top")
    axes.set(xlim=(0, RIGHT_EDGE), ylim=(-0.6, 0.85), yticks=[])
    axes.set_xlabel(
        "GiB in tensors at the peak of one update (arithmetic; the mark: simulated)", fontsize=8
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    terms = budgets.get(size)
    if terms is None:
        words = f"{whose}: no three numbers for this size"
        axes.text(card + 0.6, 0.1, words, fontsize=9, va="center")
        return
    left = 0.0
    for name, gib in terms.items():
        axes.barh(0.1, gib, 0.5, left, color=FILLS[name], label=name)
        left += gib
    of_a_row = (terms["activations"] + terms["logits"]) / size[0]
    axes.barh(0.1, of_a_row, 0.5, terms["weights"], color="none", edgecolor=ROW, lw=1.4)
    fits = "fits" if left <= card else "does not fit"
    axes.text(
        min(left, RIGHT_EDGE) + 0.4,
        0.1,
        f"{left:.2f} GiB, {fits}",
        va="center",
        fontsize=9,
        weight="bold",
    )
    text = f"{whose}:  one row (red) {of_a_row:.2f} GiB"
    if size in used:
        axes.plot(used[size].peak, -0.3, "^", color="black", ms=7, clip_on=False)
        text += f";  the simulated card: {used[size].peak:.2f} GiB"
    axes.text(RIGHT_EDGE, 0.82, text, fontsize=8, ha="right", va="top")
    axes.legend(loc="lower right", ncols=3, fontsize=7.5, frameon=False)


def finding_of_budget(budgets: Mapping[Size, Mapping[str, float]], whose: str) -> str:
    """The title over the knob: what the reader's budget says of eight rows."""
    eight = budgets.get((8, 128, 128))
    if eight is None:
        return f"Arithmetic ({whose}): no three numbers"
    fit = "fit" if sum(eight.values()) <= 8 else "do not fit"
    share = "every row adds its share"
    return f"Arithmetic ({whose}): {share}; eight of 128 + 128 tokens {fit}"


def saw(whole: Used, mine: Used, whose: str, card: float = 8.0) -> None:
    """The update of all rows at once, and the reader's in parts over it."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.6, 2.9), layout="constrained")
    for used, label, colour, style in (
        (whole, "bug: all 32 rows at once", BUG, "--"),
        (mine, f"{whose}: in 4 parts", FIX, "-"),
    ):
        if used.died:
            axes.text(
                0.98,
                0.6,
                f"{label}: {used.died[:70]}",
                color=colour,
                ha="right",
                transform=axes.transAxes,
                fontsize=8,
            )
            continue
        total = [sum(column) for column in zip(*used.over_time.values(), strict=True)]
        axes.plot(
            total, color=colour, ls=style, lw=1.6, label=f"{label}, at most {used.peak:.2f} GiB"
        )
    _card_line(axes, card, 0.4)
    axes.set(
        ylim=(0, 11.2),
        ylabel="GiB in tensors (simulated)",
        xlabel="allocations and frees of one update, in order",
    )
    axes.set_xlim(left=0)
    axes.set_title(
        "The same rows at once, and a few at a time", fontsize=10, loc="left", weight="bold"
    )
    axes.legend(loc="upper right", fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    plt.show()


def chart_of_cuts(used: Mapping[str, Used], card: float = 8.0) -> None:
    """A bar for each way to run the update; a ring where an H200 has run it."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.6, 0.32 * len(used) + 1.0), layout="constrained")
    for at, (name, run) in enumerate(used.items()):
        if run.died:
            axes.text(0.1, at, run.died[:80], va="center", fontsize=8)
            continue
        left = 0.0
        for term, gib in run.terms.items():
            axes.barh(at, gib, 0.7, left, color=FILLS[term], label=term if at == 0 else None)
            left += gib
        axes.text(left + 0.15, at, f"{left:.2f}", va="center", fontsize=8)
        if name in H200:
            axes.plot(
                H200[name],
                at,
                "o",
                mfc="none",
                mec="black",
                ms=6,
                label="H200" if at == 0 else None,
            )
    axes.set_yticks(range(len(used)), list(used), fontsize=8)
    axes.axvline(card, color="black", ls="--", lw=1)
    axes.set_ylim(len(used) - 0.4, -0.6)
    axes.set_xlim(0, 15)
    axes.set_xlabel(
        "GiB at the peak of one update, simulated; ring: measured on an H200; dashed: the card",
        fontsize=8,
    )
    axes.legend(loc="center right", fontsize=7.5, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    parts = "Parts, checkpointing" if used["4 parts"].peak < card else "Checkpointing"
    title = f"{parts}, bfloat16, 64 tokens fit; one backward, 96 tokens, half the rank do not"
    axes.set_title(title, fontsize=10, loc="left", weight="bold")
    plt.show()


def cards(
    axes: Any,
    way: str,
    copies: str,
    places: Sequence[int],
    filled: Mapping[Any, Sequence[float]],
    found: Mapping[Any, Block],
    card: float = 8.0,
) -> None:
    """Four cards with their blocks, how full the reader's rule says they are, and whether that leaves a tenth."""
    reference, reward = places
    seats = {"policy": COPIES[copies], "reference": (reference,), "reward": (reward,)}
    fullest = filled.get((way, in_words(seats)), [math.nan] * 4)
    for at in CARDS:
        here, left = on_card(at, way, seats, found), 0.0
        for model, block in here.items():
            axes.barh(at, block.standing, 0.7, left, color=BLOCKS[model], edgecolor="white")
            left += block.standing
        moment = fullest[at] - left
        if here and math.isfinite(moment) and moment > 0:
            axes.barh(at, moment, 0.7, left, color=FILLS["activations"])
        names = ", ".join(here) or "empty"
        number = f"{fullest[at]:.2f} GiB" if math.isfinite(fullest[at]) else "no number"
        colour = BUG if fullest[at] > 0.9 * card else "black"
        words = f"{names}  {number}" if here else names
        axes.text(15.6, at, words, va="center", ha="right", fontsize=8, color=colour)
    axes.axvline(card, color="black", lw=1)
    axes.axvline(0.9 * card, color="black", ls="--", lw=1)
    axes.set_yticks(CARDS, [f"GPU {at}" for at in CARDS], fontsize=8)
    axes.set_ylim(3.6, -0.6)
    axes.set_xlim(0, 15.7)
    axes.set_xlabel(
        "GiB: grey stands all the time, sand is the largest moment; dashed: a tenth stays free",
        fontsize=8,
    )
    axes.spines[["top", "right"]].set_visible(False)
