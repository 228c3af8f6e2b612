"""The figures of page 04: groups of answers with the pushes on their first tokens, and shares by kind of sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from props.lesson_04 import ADD, FIRST, SUMS

from labkit.display.panels import TONES

BEGINS_RIGHT, BEGINS_WRONG = TONES["three"][0], TONES["two"][0]
INK = "#333333"


def draw_position(axes: Sequence[Any], groups: Any, arm: Any, own: Any, tone: str) -> None:
    """One position of the page's figure: groups on the left, shares on the right."""
    draw_groups(axes[0], groups)
    draw_shares(axes[1], arm, own, tone)


# ------------------------------------------------------------------------------------------------------- groups


def draw_groups(axes: Any, groups: Sequence[Mapping[str, Any]], left: str = "") -> None:
    """A line for each group: its answers, coloured by their first token, and that token's pushes behind them.

    groups  as `answer_in_groups` yields them, each with its "pushes": first token -> the sum of its advantages
    left    a heading
    """
    axes.set(xlim=(-1.9, 14.4), ylim=(len(groups) - 0.4, -0.9), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    write = partial(axes.text, va="center", in_layout=False)
    write(-1.8, -0.7, left, weight="bold", fontsize=8.5)
    if not groups:
        write(0, -0.2, "the run ended before an answer", fontsize=8)
        return
    write(0.35, -0.7, "olive: begins right", color=BEGINS_RIGHT, fontsize=8)
    write(4.6, -0.7, "purple: wrong", color=BEGINS_WRONG, fontsize=8)
    write(8.2, -0.7, "push on the first token", color=TONES["grey"][0], fontsize=8)
    for line, group in enumerate(groups):
        write(-1.8, line, group["prompt"], family="monospace", fontsize=8)
        draw_answers(write, line, group)
        write(8.2, line, words_of(group["pushes"]), fontsize=7.5)


def draw_answers(write: Any, line: int, group: Mapping[str, Any]) -> None:
    """The answers of a group, each in a box with the colour of its first token."""
    right = ADD.answer(group["prompt"])[0]
    style = {"ha": "center", "color": "white", "family": "monospace", "fontsize": 7.5}
    for place, answer in enumerate(group["answers"]):
        colour = BEGINS_WRONG
        if answer[:1] == right:
            colour = BEGINS_RIGHT
        box = {"boxstyle": "square,pad=0.25", "facecolor": colour, "edgecolor": "none"}
        write(place + 0.5, line, answer or "–", bbox=box, **style)


def words_of(pushes: Mapping[str, float]) -> str:
    """ "9: +1.73  8: −1.73", the largest first."""
    largest_first = sorted(pushes.items(), key=lambda pair: -pair[1])
    texts = [f"{token or '–'}: {signed(push)}" for token, push in largest_first]
    if len(texts) > 3:  # there is room for no more: the two largest and the smallest
        texts = [*texts[:2], "…", texts[-1]]
    return "  ".join(texts)


def signed(push: float) -> str:
    """Two digits and a sign; a sum that is only rounding is 0."""
    if abs(push) <= 0.005:
        return "0"
    return f"{push:+.2f}".replace("-", "−")


# ------------------------------------------------------------------------------------------------------- shares


def draw_shares(axes: Any, arm: Mapping[str, Mapping[str, float]], own: Any, tone: str) -> None:
    """A bar for each measure and kind of sum; a black tick: the same with own draws.

    arm, own  kind of sum -> measure -> its share
    """
    axes.set(xlim=(0, 1.3), xticks=[0, 0.5, 1])
    axes.tick_params(labelsize=7.5, left=False)
    axes.spines[["top", "right"]].set_visible(False)
    heights: list[float] = []
    names: list[str] = []
    for measure, name in enumerate(arm[FIRST]):
        for below, kind in enumerate(SUMS):
            height = 2.3 * measure + below  # 0.3 between two measures
            value, tick = arm[kind][name], own[kind][name]
            alpha = 0.4
            if kind == FIRST:
                alpha = 1.0
            axes.barh(height, value, 0.8, color=TONES[tone][0], alpha=alpha)
            axes.plot([tick, tick], [height - 0.45, height + 0.45], color=INK, lw=1.6)
            axes.text(1.3, height, f"{value:.2f}", va="center", ha="right", fontsize=7.5)
            heights.append(height)
            names.append(f"{name}, {kind.removesuffix(' sums')}")
    axes.set(yticks=heights, yticklabels=names, ylim=(heights[-1] + 0.6, -0.6))
