"""Page 16's pictures: the row that it follows, as boxes and bars; and the chart of the last exams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from props.chart import ExamChart
from props.lesson_16 import ANSWER, PADS, PROMPT

from labkit.common import number
from labkit.display.panels import TONES
from labkit.events import Run

FAR, GREY, INK = TONES["far"][0], TONES["grey"][0], "#444444"
LOWEST = -15.5  # nats: the bottom of the bars
TOKENS = [*PROMPT, *ANSWER, "end"]


def draw_row(
    axes: Sequence[Any],
    frame: Mapping[str, Any] | None,
    alone: Sequence[float],
    tone: str = "bug",
    with_the_bug: Sequence[float] = (),
) -> None:
    """The row as boxes, its positions below; and the log-probs of its answer, alone and in the batch.

    `with_the_bug`, where given, are drawn as empty bars around those in the batch.
    """
    boxes, bars = axes
    boxes.set(xlim=(-max(PADS) - 0.3, 10.4), ylim=(-1.4, 1.5), xticks=[], yticks=[])
    boxes.spines[:].set_visible(False)
    if frame is None:
        boxes.text(-max(PADS), 0.5, "ended by an error", fontsize=9)
        bars.set_axis_off()
        return
    draw_boxes(boxes, frame["pads"], frame["positions"])
    set_bars(bars, TOKENS[-len(alone) :])
    draw_bars(bars, alone, -0.2, TONES["healthy"][0], "alone")
    draw_bars(bars, frame["logp"], 0.2, TONES[tone][0], "in the batch")
    if with_the_bug:
        draw_empty_bars(bars, with_the_bug, 0.2)
    look = {"frameon": False, "fontsize": 7.5, "ncols": 3, "columnspacing": 1}
    bars.legend(loc="lower right", bbox_to_anchor=(1, 0.93), **look)


def draw_boxes(axes: Any, pads: int, positions: Sequence[int]) -> None:
    """Grey boxes are pads. The row's first token always stands at 0; a position is red where it is another one."""
    from matplotlib.patches import Rectangle

    centred = {"ha": "center", "va": "center"}
    tokens = [""] * pads + TOKENS
    for place, (token, position) in enumerate(zip(tokens, positions, strict=True), -pads):
        face, look = "#FFFFFF", {"color": "#222222"}
        if not token:
            face, look = "#D9D9D9", {"color": GREY}
        elif position != place:
            look = {"color": FAR, "weight": "bold"}
        axes.add_patch(Rectangle((place + 0.04, 0.04), 0.92, 0.92, fc=face, ec=INK, lw=0.8))
        size = 6 if token == "end" else 9
        axes.text(place + 0.5, 0.48, token, fontsize=size, **centred)
        axes.text(place + 0.5, -0.5, position, fontsize=7.5, **centred, **look)


def set_bars(axes: Any, tokens: Sequence[str]) -> None:
    axes.set(ylim=(LOWEST, 1.2), xlim=(-0.6, len(tokens) - 0.4))
    axes.set(xticks=range(len(tokens)), xticklabels=tokens)
    axes.set_ylabel("log-prob, nats", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axhline(0, color=INK, lw=0.8)


def draw_bars(axes: Any, logp: Sequence[float], shift: float, colour: str, label: str) -> None:
    """A bar for each token, this far beside its tick, and its number below."""
    for place, value in enumerate(logp):
        end = bar_end(value)
        bar = axes.bar(place + shift, end, 0.38, color=colour)
        text = f"{value:.1f}"
        if value > -0.05:  # a bar too low to be seen has its 0
            text = "0"
        height = max(end, -14) - 0.2
        axes.text(place + shift, height, text, ha="center", va="top", fontsize=7)
    bar.set_label(label)  # once for all, or the legend has a line for each


def draw_empty_bars(axes: Any, logp: Sequence[float], shift: float) -> None:
    places = [place + shift for place in range(len(logp))]
    ends = [bar_end(value) for value in logp]
    edge = {"fc": "none", "ec": TONES["bug"][0], "lw": 1.2}
    axes.bar(places, ends, 0.38, label="with the bug", **edge)


def bar_end(value: float) -> float:
    """Where the bar of a log-prob ends: what is lower than the picture, and NaN, at its bottom."""
    return value if value > LOWEST else LOWEST


def how_far(whose: Any, run: Run, alone: torch.Tensor) -> str:
    """A title: what these positions leave of the difference from the row alone, over all numbers of pads."""
    positions = "the solution's positions"
    if str(whose) == "yours":
        positions = "your positions"
    if not run.outcome:
        error = run.outcome.exception or run.outcome.signature
        return f"With {positions} the run ended by an error ({error})"
    differences = [torch.tensor(frame["logp"]) - alone for frame in run.events]
    largest = number(float(torch.stack(differences).abs().max()))
    row = f"With {positions} the row behind 0 to 16 pads"
    return f"{row} is at most {largest} nats from the row alone"


def chart(start: float, whose: str) -> ExamChart:
    """The chart of the last exams; `whose` positions are the mended ones."""
    tones = {"bug": "bug", whose: "fix", "without pads": "without", "no mask": "two"}
    title = (
        "With the bug in all groups the exam hardly rises; with it in every second group it does"
    )
    return ExamChart(tones, start=start, title=title)
