"""The static picture of runs: the panels of the live dashboard, drawn once by matplotlib, small, for a saved notebook.

`web/dashboard.js` has the same rules for the axes; a browser test compares them case by case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .panels import DASHES, GHOST, TONES, Panel, short
from .sheet import GREY, GRID, INK, extent, png, sheet, write_line
from .tracks import Mark, Track, marks_of

WIDTH, ROW, HEAD = 8.6, 1.75, 0.2  # inches: the picture, a row of panels, a line of text above
DPI = 125
LINE, TITLE = 10.5, 6.5  # points: a line of text in a panel, the title above it
POINT = DPI / 72  # pixels
LEAST = 1e-290  # what lies below counts as this on a logarithmic axis: the edges must not round to 0


def picture(
    panels: Sequence[Panel], tracks: Sequence[Track], title: str = "", marks: Mapping[int, str] | None = None
) -> bytes:
    """The PNG of these runs: the title, a line per run that says how it ended, two panels per row.

    marks   step -> a few words: a grey hairline through every panel
    """
    across = min(2, len(panels))
    head = HEAD * (bool(title) + len(tracks)) + 0.1
    height = head + ROW * math.ceil(len(panels) / across)
    cell = WIDTH / across
    every = [Mark(step, text) for step, text in (marks or {}).items()] + list(marks_of(tracks))
    with sheet(WIDTH, height, DPI) as figure:
        _heads(figure, tracks, title, height)
        for at, panel in enumerate(panels):
            left, foot = at % across * cell + 0.52, height - head - (at // across + 1) * ROW + 0.32
            place = (left / WIDTH, foot / height, (cell - 0.7) / WIDTH, (ROW - 0.58) / height)
            here = [mark for mark in every if mark.series in (None, panel.series)]
            draw(figure.add_axes(place), panel, tracks, here)
        return png(figure)


def _heads(figure: Any, tracks: Sequence[Track], title: str, height: float) -> None:
    lines = [[(title, INK, "bold")]] if title else []
    for track in tracks:
        status = track.status() if track.outcome is not None else ""
        lines.append([(track.label, TONES[track.tone][0], "bold"), (status, INK, "normal")])
    for at, parts in enumerate(lines):
        write_line(figure, 0.1, height - HEAD * (at + 0.6), parts, size=9.5 if title and not at else 8)


def _x_range(tracks: Sequence[Track]) -> tuple[float, float]:
    ends = [(t.rows.data[0], float(t.rows.last)) for t in tracks if len(t.rows)]
    low, high = min((a for a, _ in ends), default=0.0), max((b for _, b in ends), default=1.0)
    return (low, high) if high > low else (low - 1, high + 1)


def draw(axes: Any, panel: Panel, tracks: Sequence[Track], marks: Sequence[Mark]) -> None:
    """One panel on its axes. Texts are placed in pixels: so they can be measured before the y axis is known."""
    from matplotlib import ticker

    frame, x_range = axes.bbox, _x_range(tracks)
    axes.set_xlim(*x_range)
    curves = []
    for track in tracks:
        curves.append([v if math.isfinite(v) else math.nan for v in track.rows.column(panel.series)])
    values = [v for curve in curves for v in curve if v == v]
    log, low, high = y_limits(panel, values)

    # 1. The row above: the panel's name, and at the right every run's newest value, as far as there is room.
    y, gap, far_left = frame.y1 + TITLE * POINT, 8 * POINT, frame.x0 - 30 * POINT
    name = _write(axes, far_left, y, panel.title + (" (log)" if log else ""), INK, 8, weight="bold")
    right = frame.x1
    for track in reversed(tracks):
        latest = track.rows.latest(panel.series)
        if latest is None:
            continue
        text = f"{track.label} {short(latest, panel.unit)}"
        note = _write(axes, right, y, text, TONES[track.tone][0], 7.5, ha="right")
        if extent(note).x0 < extent(name).x1 + gap:
            note.remove()
        else:
            right = extent(note).x0 - gap

    # 2. Captions at the top: the threshold, and what is marked, each at its hairline. Where two would touch, in lines.
    gap = 3 * POINT
    captions = [_write(axes, frame.x0 + gap, 0, panel.legend, GREY)] if panel.legend else []
    for mark in marks:
        if not x_range[0] <= mark.step <= x_range[1]:
            continue
        colour = GREY if mark.run is None else TONES[tracks[mark.run].tone][0]
        axes.axvline(mark.step, color=colour, lw=0.8, ls=(0, (1, 2)), zorder=1)
        if mark.text:
            x = axes.transData.transform((mark.step, 1))[0]
            caption = _write(axes, x + gap, 0, mark.text, colour)
            if extent(caption).x1 > frame.x1:
                caption.set_x(max(frame.x0, x - gap - extent(caption).width))
            captions.append(caption)
    lines = stacked([(extent(caption).x0 - gap, extent(caption).x1 + gap) for caption in captions])
    for caption, line in zip(captions, lines, strict=True):
        caption.set_y(frame.y1 - (8 + LINE * line) * POINT)

    # 3. The axes, with room for the captions above the highest value.
    least = min(values, default=1.0)
    places = log_ticks(low, high, least <= 0) if log else _ticks(low, high, panel.unit)
    names = [short(place, panel.unit) if place else "0" for place in places]
    if log and least <= 0:
        places, names = [low, *places], ["0" if least == 0 else "≤ 0", *names]
    share = min((max(lines, default=-1) + 1) * LINE * POINT / frame.height, 0.6)
    more = share / (1 - share)
    axes.set_yscale("log" if log else "linear")
    axes.set_ylim(low, (high / low) ** more * high if log else (high - low) * more + high)
    axes.yaxis.set_major_locator(ticker.FixedLocator(places if values else []))
    axes.yaxis.set_major_formatter(ticker.FixedFormatter(names))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    axes.tick_params(length=0, labelsize=7, pad=3)
    axes.tick_params(axis="x", pad=5.5)
    _write(axes, far_left, frame.y0 - 11 * POINT, "step", INK)
    axes.grid(axis="y", color=GRID, lw=0.8, zorder=0)
    if panel.threshold is not None:
        axes.axhline(panel.threshold, color="#8a8a8a", lw=0.8, ls=(0, (4, 3)), zorder=1)
    axes.set_axisbelow(True)
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.spines["bottom"].set_visible(log or not values)

    # 4. The runs: those that stay behind first.
    for front in (False, True):
        for track, curve in zip(tracks, curves, strict=True):
            if track.ghost is front:
                continue
            if log:  # what is not positive stands at the bottom
                curve = [max(v, low) if v == v else v for v in curve]
            x, alpha = track.rows.column("step"), GHOST if track.ghost else 1.0
            style: Any = {"color": TONES[track.tone][0], "marker": "." if len(x) <= 30 else None, "clip_on": False}
            if track.tone in DASHES:
                style["dashes"] = DASHES[track.tone]
            axes.plot(x, curve, lw=1.3, ms=3, alpha=alpha, zorder=3 + front, **style)


def _write(axes: Any, x: float, y: float, text: str, colour: str, size: float = 7, **style: Any) -> Any:
    paper = {"fc": "white", "ec": "none", "alpha": 0.8, "pad": 0.6}
    return axes.text(x, y, text, transform=None, color=colour, size=size, zorder=6, bbox=paper, **style)


def _ticks(low: float, high: float, unit: str) -> list[float]:
    """Round places on a linear axis; bytes are round in their binary unit."""
    from matplotlib import ticker

    power = min(int(math.log2(max(high, 1)) // 10), 3) if unit == "bytes" else 0
    places = ticker.MaxNLocator(3 if unit == "bytes" else 4).tick_values(low / 1024**power, high / 1024**power)
    return [v for v in (float(place) * 1024**power for place in places) if low <= v <= high]


def y_limits(panel: Panel, values: Sequence[float]) -> tuple[bool, float, float]:
    """(logarithmic?, low, high) for a panel with these finite values; its threshold always lies inside."""
    lines = [] if panel.threshold is None else [panel.threshold]
    if panel.log or max(values, default=-math.inf) > panel.log_above:
        return True, *_log_limits(values, [level for level in lines if level > 0])
    return False, *_linear_limits([*values, *lines])


def _log_limits(values: Sequence[float], lines: Sequence[float]) -> tuple[float, float]:
    """Values that are not positive stand at the bottom edge, which is then labelled so."""
    inside = [max(v, LEAST) for v in (*values, *lines) if v > 0] or [0.1, 10.0]
    high = max(inside) * 1.3
    # six decades below the threshold are enough: a KL of 1e-12 must not squash the rest
    low = max(min(inside) / 1.3, min([max(inside), *lines]) * 1e-6)
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
    ticks = [m * 10.0**e for e in range(first - 1, last + 2) for m in (1, 2, 5)]
    return [v for v in ticks if low <= v <= high]


def stacked(spans: Sequence[tuple[float, float]]) -> list[int]:
    """The line of text for each (left, right), so that no two on one line touch: the first line that is free."""
    ends: list[float] = []
    lines = [0] * len(spans)
    for at in sorted(range(len(spans)), key=lambda at: spans[at][0]):
        line = next((i for i, end in enumerate(ends) if end < spans[at][0]), len(ends))
        ends[line : line + 1] = [spans[at][1]]
        lines[at] = line
    return lines
