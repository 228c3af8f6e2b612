"""What each range does to one answer: page 14's picture, with a bar for each token and for their mean; and its table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from props.lesson_14 import Answer, Frames, held_since, moved_tokens

from labkit.display.panels import TONES

FAR, GREY, MIDDLE = TONES["far"][0], TONES["grey"][0], "#8A8A8A"
LOWEST, HIGHEST = -6.5, 1.3  # nats: bottom and top of the picture


def bars(
    panels: Sequence[Any],
    frames: Frames,
    update: int,
    answer: Answer,
    label: str,
    below: float = 1.0,
    behind: Frames = (),
) -> None:
    """A bar for each token of the answer: how far it has moved. At the right their mean, and its limit, dashed.

    below   how far below 1 the ratio may go; 1: there is no limit to draw
    behind  the frames of another run, drawn as empty bars around these
    """
    tokens, mean = panels
    set_axes(tokens, mean, answer)
    if len(frames) <= update:
        words = f"{label}: the run ended before this update"
        tokens.text(7, -3, words, ha="center", fontsize=10)
        return
    colour, colour_of_mean = FAR, MIDDLE
    if behind:
        colour = colour_of_mean = TONES["fix"][0]
        draw_behind(panels, in_the_picture(behind[update], answer))
    draw_moves(panels, in_the_picture(frames[update], answer), answer, colour, colour_of_mean)
    if below < 1:
        mean.axhline(math.log(1 - below), color=TONES["without"][0], lw=1.3, ls=(0, (4, 2)))
    held = held_since(frames, answer)
    state = "pushed"
    if held is not None and held <= update:
        state = f"held since update {held}"
    tokens.text(-0.6, LOWEST + 0.3, f"{label}: {state}", fontsize=9, weight="bold")


def set_axes(tokens: Any, mean: Any, answer: Answer) -> None:
    """The mean has a scale of its own: one token's fall is a sixteenth there."""
    count = len(answer.tokens)
    tokens.set(ylim=(LOWEST, HIGHEST), xlim=(-0.7, count - 0.3))
    tokens.set_ylabel("moved, nats", fontsize=8)
    tokens.set_xticks(range(count), answer.tokens, fontsize=10)
    mean.set(ylim=(-0.32, 0.064), xlim=(-1, 1))
    mean.set_xticks([0], ["mean"], fontsize=9)
    for axes in (tokens, mean):
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(axis="x", length=0)
        axes.axhline(0, color=GREY, lw=0.8)


def draw_moves(
    panels: Sequence[Any], moved: Sequence[float], answer: Answer, colour: str, colour_of_mean: str
) -> None:
    """Full bars, with the number at the first wrong token and at the mean."""
    tokens, mean = panels
    average = sum(moved) / len(moved)
    tokens.bar(range(len(moved)), moved, width=0.65, color=colour)
    mean.bar([0], [average], width=0.65, color=colour_of_mean)
    words = {"ha": "center", "fontsize": 9}
    wrong = f"{moved[answer.wrong_at]:+.2f}"
    tokens.text(answer.wrong_at, 0.2, wrong, color=colour, **words)
    mean.text(0, 0.01, f"{average:+.3f}", **words)


def draw_behind(panels: Sequence[Any], moved: Sequence[float]) -> None:
    """Wider, empty bars."""
    tokens, mean = panels
    edge = {"fill": False, "edgecolor": TONES["bug"][0], "lw": 1.3, "width": 0.85}
    tokens.bar(range(len(moved)), moved, **edge)
    mean.bar([0], [sum(moved) / len(moved)], **edge)


def in_the_picture(frame: Mapping[str, Any], answer: Answer) -> list[float]:
    """How far each token has moved, as far as the picture has room for it; NaN stands at its bottom."""
    moved = torch.tensor(moved_tokens(frame, answer))
    return moved.nan_to_num(LOWEST).clamp(LOWEST, HIGHEST).tolist()


def rows_of_walks(
    walks: Mapping[str, Frames], answer: Answer, order: Iterable[str]
) -> list[dict[str, Any]]:
    """What each range does to the answer's first wrong token, and to the gradient of all answers."""
    rows = []
    for name in order:
        frames = walks[name]
        digit = moved_tokens(frames[8], answer)[answer.wrong_at]
        row = {"range": name}
        row["held since update"] = str(held_since(frames, answer) or "never")
        row["wrong digit after 8 updates"] = f"{digit:.2f}"
        norms = " ".join(f"{frame['norm']:.2f}" for frame in frames[:8])
        row["norm of the gradient, updates 1 to 8"] = norms
        rows.append(row)
    return rows
