"""The y axis of a panel and the room for a label, from plain numbers. Nothing is drawn here.

`web/dashboard.js` has the same rules for the live panels; a browser test compares the axes case by case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .panels import Panel

LEAST = 1e-290  # what lies below counts as this on a logarithmic axis: the edges must not round to 0


def y_limits(panel: Panel, values: Sequence[float]) -> tuple[bool, float, float]:
    """(logarithmic?, low, high) for a panel with these finite values; its thresholds always lie inside."""
    lines = [level for level, _ in panel.lines]
    log = panel.log or max(values, default=-math.inf) > panel.log_above
    return log, *(_log_limits(values, lines) if log else _linear_limits(values, lines, panel.zero))


def _log_limits(values: Sequence[float], lines: Sequence[float]) -> tuple[float, float]:
    """Values that are not positive stand at the bottom edge, which is then labelled so."""
    inside = [max(v, LEAST) for v in (*values, *lines) if v > 0] or [0.1, 10.0]
    high = max(inside) * 1.3
    # six decades below the thresholds are enough: a KL of 1e-12 must not squash the rest
    low = max(min(inside) / 1.3, min([max(inside), *(v for v in lines if v > 0)]) * 1e-6)
    if high / low < 10:
        middle = math.sqrt(high) * math.sqrt(low)  # not of the product, which is 0 for 1e-200
        low, high = middle / math.sqrt(10), middle * math.sqrt(10)
    if values and min(values) <= 0:
        low /= 20  # the bottom edge stands for zero, well below what is positive
    return low, high


def _linear_limits(values: Sequence[float], lines: Sequence[float], zero: bool) -> tuple[float, float]:
    """There is a gap above and below, so that a curve that stays at zero does not lie on the frame."""
    inside = [*values, *lines] or [0.0, 1.0]
    low, high = min(inside), max(inside)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high == low:
        low, high = (0.0, 1.0) if low == 0 else (low - abs(low) / 2, high + abs(high) / 2)
    gap = 0.06 * (high - low)
    return low - gap, high + gap


def log_ticks(low: float, high: float, zero: bool) -> list[float]:
    """Decades, five at most, or 1, 2, 5 where there is only one; none next to a bottom edge that stands for zero."""
    low = low * (high / low) ** 0.15 if zero else low
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first >= 1:
        return [10.0**e for e in range(first, last + 1, math.ceil((last - first + 1) / 5))]
    found = [m * 10.0**e for e in range(first - 1, last + 2) for m in (1, 2, 5)]
    return [v for v in found if low <= v <= high]


def stacked(spans: Sequence[tuple[float, float]]) -> list[int]:
    """The line of text for each (left, right), so that no two on one line touch: the first line that is free."""
    ends: list[float] = []
    lines = [0] * len(spans)
    for at in sorted(range(len(spans)), key=lambda at: spans[at][0]):
        line = next((i for i, end in enumerate(ends) if end < spans[at][0]), len(ends))
        ends[line : line + 1] = [spans[at][1]]
        lines[at] = line
    return lines


Box = tuple[float, float, float, float]  # left, bottom, right, top


def clearest(boxes: Sequence[Box], curves: Sequence[tuple[Any, Any]], taken: Sequence[Box]) -> int:
    """The first of `boxes` that no curve (its xs and ys) crosses and no box of `taken` overlaps, else the least bad."""

    def hits(at: int) -> int:
        return sum(_crosses(boxes[at], *curve) for curve in curves) + sum(_meet(boxes[at], b) for b in taken)

    return min(range(len(boxes)), key=hits)


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _crosses(box: Box, xs: Any, ys: Any) -> bool:
    import numpy as np

    left, bottom, right, top = box
    inside = xs[(xs > left) & (xs < right)]
    y = np.interp(np.union1d(np.linspace(left, right, 20), inside), xs, ys, left=math.nan, right=math.nan)
    ends = np.sort(np.stack([y[:-1], y[1:]]), axis=0)
    return bool(((ends[0] < top) & (ends[1] > bottom)).any())  # a gap in the curve is NaN, which is neither
