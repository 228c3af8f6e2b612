"""The static picture of runs: the panels of the live dashboard, drawn once by matplotlib, small, for a saved notebook.

`web/dashboard.js` has the same rules for the axes; a browser test compares them case by case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .panels import GHOST, TONES, Panel, written
from .sheet import GREY, GRID, INK, extent, png, sheet, words
from .tracks import Mark, Track, marks_of

WIDTH, ROW, HEAD = 8.6, 1.75, 0.2  # inches: the picture, a row of panels, a line of text above
DPI = 125
SHOWN = {"width": 860}  # CSS pixels: 100 per inch, so that it is sharp on a dense screen
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
LINE, TITLE = 10.5, 6.5  # points: a line of text in a panel, the title above it
POINT = DPI / 72  # pixels
LEAST = 1e-290  # what lies below counts as this on a logarithmic axis: the edges must not round to 0


def picture(
    panels: Sequence[Panel], tracks: Sequence[Track], title: str = "", marks: Mapping[int, str] | None = None
) -> bytes:
    """The PNG of these runs: the title, a line per run that says how it ended, two panels per row."""
    across = min(2, len(panels))
    head = HEAD * (bool(title) + len(tracks)) + 0.1
    height = head + ROW * math.ceil(len(panels) / across)
    cell = WIDTH / across
    marks_drawn = list(marks_of(panels, tracks, marks or {}))
    x_range = _x_range(tracks)
    with sheet(WIDTH, height, DPI) as figure:
        _heads(figure, tracks, title, height)
        for at, panel in enumerate(panels):
            left, foot = at % across * cell + 0.52, height - head - (at // across + 1) * ROW + 0.32
            place = (left / WIDTH, foot / height, (cell - 0.7) / WIDTH, (ROW - 0.58) / height)
            here = [m for m in marks_drawn if m.panel in (None, panel.key)]
            _draw(figure.add_axes(place), panel, tracks, x_range, here)
        return png(figure)


def _heads(figure: Any, tracks: Sequence[Track], title: str, height: float) -> None:
    lines = [[(title, INK, "bold")]] if title else []
    for track in tracks:
        status = track.status() if track.outcome is not None else ""
        lines.append([(track.label, TONES[track.tone][0], "bold"), (status, INK, "normal")])
    for at, parts in enumerate(lines):
        words(figure, 0.1, height - HEAD * (at + 0.6), parts, size=9.5 if title and not at else 8)


def _x_range(tracks: Sequence[Track]) -> tuple[float, float]:
    ends = [(t.rows.data[0], float(t.rows.last)) for t in tracks if len(t.rows)]
    low, high = min((a for a, _ in ends), default=0.0), max((b for _, b in ends), default=1.0)
    return (low, high) if high > low else (low - 1, high + 1)


def _draw(
    axes: Any, panel: Panel, tracks: Sequence[Track], x_range: tuple[float, float], marks: Sequence[Mark]
) -> None:
    chart = _Chart(axes, panel, tracks, x_range)
    chart.title()
    chart.scale(chart.captions(marks))
    chart.curves()


class _Chart:
    """One panel on its axes. Texts are placed in pixels: so they can be measured before the y axis is known."""

    def __init__(self, axes: Any, panel: Panel, tracks: Sequence[Track], x_range: tuple[float, float]):
        self.axes, self.panel, self.tracks, self.frame = axes, panel, tracks, axes.bbox
        self.x_range = x_range
        finite = lambda values: [v if math.isfinite(v) else math.nan for v in values]
        self.columns = [[finite(track.rows.column(name)) for name in panel.series] for track in tracks]
        self.values = [v for columns in self.columns for column in columns for v in column if v == v]
        self.log, self.low, self.high = y_limits(panel, self.values)
        axes.set_xlim(*x_range)

    def write(self, x: float, y: float, text: str, colour: str, size: float = 7, **style: Any) -> Any:
        paper = {"fc": "white", "ec": "none", "alpha": 0.8, "pad": 0.6}
        style |= {"transform": None, "color": colour, "size": size, "zorder": 6, "bbox": paper}
        return self.axes.text(x, y, text, **style)

    def title(self) -> None:
        """The row above: the panel's name, and at the right every run's newest values, as far as there is room."""
        y, gap = self.frame.y1 + TITLE * POINT, 8 * POINT
        name = self.panel.title + " (log)" * self.log
        left = extent(self.write(self.frame.x0 - 30 * POINT, y, name, INK, 8, weight="bold")).x1 + gap
        right = self.frame.x1
        for track in reversed(self.tracks):
            values = [track.rows.latest(series) for series in self.panel.series]
            text = " / ".join(written(v, self.panel.unit) for v in values if v is not None)
            note = self.write(right, y, f"{track.label} {text}", TONES[track.tone][0], 7.5, ha="right")
            if not text or extent(note).x0 < left:
                note.remove()
            else:
                right = extent(note).x0 - gap

    def captions(self, marks: Sequence[Mark]) -> int:
        """Lines of text at the top: which dash is which, and what is marked, each at its hairline. Returns how many."""
        left, right, gap = self.frame.x0, self.frame.x1, 3 * POINT
        texts = [self.write(left + gap, 0, self.panel.legend, GREY)] if self.panel.legend else []
        for mark in marks:
            if not self.x_range[0] <= mark.step <= self.x_range[1]:
                continue
            colour = GREY if mark.run is None else TONES[self.tracks[mark.run].tone][0]
            self.axes.axvline(mark.step, color=colour, lw=0.8, ls=(0, (1, 2)), zorder=1)
            if mark.text:
                texts.append(self.write(0, 0, mark.text, colour))
                at, wide = self.axes.transData.transform((mark.step, 1))[0], extent(texts[-1]).width
                texts[-1].set_x(at + gap if at + gap + wide <= right else max(left, at - gap - wide))
        lines = stacked([(extent(text).x0 - gap, extent(text).x1 + gap) for text in texts])
        for text, line in zip(texts, lines, strict=True):
            text.set_y(self.frame.y1 - (8 + LINE * line) * POINT)
        return max(lines, default=-1) + 1

    def scale(self, lines: int) -> None:
        """The y axis, its ticks and thresholds, with room for this many lines of text at the top."""
        from matplotlib import ticker

        axes, unit, least = self.axes, self.panel.unit, min(self.values, default=1.0)
        places = log_ticks(self.low, self.high, least <= 0) if self.log else _ticks(self.low, self.high, unit)
        names = [written(v, unit) if v else "0" for v in places]
        if self.log and least <= 0:
            places, names = [self.low, *places], ["0" if least == 0 else "≤ 0", *names]
        share = min(lines * LINE * POINT / self.frame.height, 0.6)
        more = share / (1 - share)
        grown = (self.high / self.low) ** more * self.high if self.log else (self.high - self.low) * more + self.high
        axes.set_yscale("log" if self.log else "linear")
        axes.set_ylim(self.low, grown)
        axes.yaxis.set_major_locator(ticker.FixedLocator(places if self.values else []))
        axes.yaxis.set_major_formatter(ticker.FixedFormatter(names))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
        axes.tick_params(length=0, labelsize=7, pad=3)
        axes.tick_params(axis="x", pad=5.5)
        self.write(self.frame.x0 - 30 * POINT, self.frame.y0 - 11 * POINT, "step", INK)
        axes.grid(axis="y", color=GRID, lw=0.8, zorder=0)
        for level, _ in self.panel.lines:
            axes.axhline(level, color="#8a8a8a", lw=0.8, ls=(0, (4, 3)), zorder=1)
        axes.set_axisbelow(True)
        axes.spines[["top", "left", "right"]].set_visible(False)
        axes.spines["bottom"].set_visible(self.log or not self.values)

    def curves(self) -> None:
        """The runs: those that stay behind first."""
        both = zip(self.tracks, self.columns, strict=True)
        for order, (track, columns) in enumerate(sorted(both, key=lambda pair: not pair[0].ghost)):
            x, alpha = track.rows.column("step"), GHOST if track.ghost else 1.0
            style: Any = {"color": TONES[track.tone][0], "clip_on": False}
            for at, column in enumerate(columns):
                line = {"ls": DASHES[at % 4], "marker": "." if len(x) <= 30 else None, "zorder": 3 + order}
                if self.log:  # what is not positive stands at the bottom
                    column = [max(v, self.low) if v == v else v for v in column]
                self.axes.plot(x, column, lw=1.3, ms=3, alpha=alpha, **line, **style)


def _ticks(low: float, high: float, unit: str) -> list[float]:
    """Round places on a linear axis; bytes are round in their binary unit."""
    from matplotlib import ticker

    power = min(int(math.log2(max(high, 1)) // 10), 3) if unit == "bytes" else 0
    places = ticker.MaxNLocator(3 if unit == "bytes" else 4).tick_values(low / 1024**power, high / 1024**power)
    return [v for v in (float(place) * 1024**power for place in places) if low <= v <= high]


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
