"""The y axis of a panel and the lines of its captions, from plain numbers. Nothing is drawn here.

`web/dashboard.js` has the same rules for the live panels; a browser test compares the axes case by case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .panels import Panel

LEAST = 1e-290  # what lies below counts as this on a logarithmic axis: the edges must not round to 0


def y_limits(panel: Panel, values: Sequence[float]) -> tuple[bool, float, float]:
    """(logarithmic?, low, high) for a panel with these finite values; its thresholds always lie inside."""
    lines = [level for level, _ in panel.lines]
    log = panel.log or max(values, default=-math.inf) > panel.log_above
    return log, *(_log_limits(values, lines) if log else _linear_limits([*values, *lines]))


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


def _linear_limits(values: Sequence[float]) -> tuple[float, float]:
    """Zero is inside, with a gap above and below: a curve that stays at zero does not lie on the frame."""
    low, high = min([*values, 0.0]), max([*values, 0.0])
    if high == low:
        high = 1.0
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
