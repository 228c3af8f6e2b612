"""The static picture of one or more runs: the same panels as the live dashboard, drawn once by matplotlib.

It is what a saved notebook keeps, so it is small: a palette PNG. This file does not display anything, and
matplotlib is imported only when a picture is drawn.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Sequence
from typing import Any

from .panels import GHOST, TONES, Panel, written
from .tracks import Track

INK, GRID = "#333333", "#e3e3e3"
WIDTH, ROW, HEAD = 8.6, 1.75, 0.2  # inches: the picture, a row of panels, a line of text above
DPI, PIXELS = 125, 100  # drawn at 125 dots an inch, shown at 100, so that it is sharp on a dense screen
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
STYLE: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.linewidth": 0.8,
    "axes.unicode_minus": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.usetex": False,
    "svg.fonttype": "path",
    "path.simplify": True,
    "axes.xmargin": 0.0,
}

_one_at_a_time = threading.Lock()  # matplotlib's settings are global to the process

# A transparent pixel: what the slot holds until the picture is there.
BLANK = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def picture(panels: Sequence[Panel], tracks: Sequence[Track], title: str = "") -> bytes:
    """The PNG of these runs: two panels a row, a line with the title, one line a run that says how it ended."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with _one_at_a_time, matplotlib.rc_context(STYLE):
        across = min(2, len(panels))
        down = math.ceil(len(panels) / across)
        heads = bool(title) + len(tracks)
        height = HEAD * heads + 0.1 + ROW * down
        figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
        canvas = FigureCanvasAgg(figure)
        _heads(figure, tracks, title, height)
        x_range = _x_range(tracks)
        for number_, panel in enumerate(panels):
            row, column = divmod(number_, across)
            cell = WIDTH / across
            axes = figure.add_axes(
                (
                    (column * cell + 0.52) / WIDTH,
                    1 - (HEAD * heads + 0.1 + row * ROW + ROW - 0.26) / height,
                    (cell - 0.70) / WIDTH,
                    (ROW - 0.58) / height,
                )
            )
            _draw(axes, panel, tracks, x_range)
        canvas.draw()
        return _small(canvas, [t.tone for t in tracks])


def shown_size(png: bytes) -> dict[str, int]:
    """Width and height in CSS pixels for a picture made by `picture` (`metadata` of an `image/png` output)."""
    wide, high = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    return {"width": round(wide * PIXELS / DPI), "height": round(high * PIXELS / DPI)}


LEAST = 1e-290  # what lies below counts as this on a logarithmic axis: the edges must not round to 0


def y_limits(panel: Panel, values: Sequence[float]) -> tuple[bool, float, float]:
    """(logarithmic?, low, high) for a panel with these finite values; its thresholds always lie inside.

    On a logarithmic axis values that are not positive stand at the bottom edge, which is then labelled so.

    `web/dashboard.js` has the same rule; a browser test compares the two.
    """
    lines = [level for level, _ in panel.lines]
    top = max(values, default=math.nan)
    log = panel.log or top > panel.log_above
    if log:
        inside = [max(v, LEAST) for v in (*values, *lines) if v > 0] or [0.1, 10.0]
        high = max(inside) * 1.3
        # six decades below the thresholds are enough: a KL of 1e-12 must not squash the rest
        low = max(min(inside) / 1.3, min([max(inside), *(v for v in lines if v > 0)]) * 1e-6)
        if high / low < 10:
            middle = math.sqrt(high) * math.sqrt(low)  # not of the product, which is 0 for 1e-200
            low, high = middle / math.sqrt(10), middle * math.sqrt(10)
        if values and min(values) <= 0:
            low /= 20  # the bottom edge stands for zero, well below what is positive
        return True, low, high
    inside = [*values, *lines] or [0.0, 1.0]
    low, high = min(inside), max(inside)
    if panel.zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high == low:
        low, high = (0.0, 1.0) if low == 0 else (low - abs(low) / 2, high + abs(high) / 2)
    gap = 0.06 * (high - low)
    return False, low - (gap if low < 0 or not panel.zero else 0.0), high + gap


def log_ticks(low: float, high: float, zero: bool) -> list[float]:
    """Decades, five at most, or 1, 2, 5 where there is only one; none next to a bottom edge that stands for zero."""
    low = 4 * low if zero else low
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first >= 1:
        return [10.0**e for e in range(first, last + 1, math.ceil((last - first + 1) / 5))]
    found = [m * 10.0**e for e in range(first - 1, last + 2) for m in (1, 2, 5)]
    return [v for v in found if low <= v <= high]


def _heads(figure: Any, tracks: Sequence[Track], title: str, height: float) -> None:
    at = height - HEAD * 0.75
    if title:
        figure.text(0.1 / WIDTH, at / height, title, weight="bold", size=9.5, parse_math=False)
        at -= HEAD
    for track in tracks:
        x = 0.1 / WIDTH
        label = figure.text(
            x, at / height, track.label, color=TONES[track.tone][0], weight="bold", parse_math=False
        )
        wide = label.get_window_extent(figure.canvas.get_renderer()).width / (DPI * WIDTH)
        text = track.status() if track.outcome is not None else ""
        figure.text(x + wide + 0.1 / WIDTH, at / height, text, parse_math=False)
        at -= HEAD


def _x_range(tracks: Sequence[Track]) -> tuple[float, float]:
    ends = [(t.recorder.rows[0], float(t.recorder.last)) for t in tracks if len(t.recorder)]
    low, high = min((a for a, _ in ends), default=0.0), max((b for _, b in ends), default=1.0)
    return (low, high) if high > low else (low - 1, high + 1)


def _draw(axes: Any, panel: Panel, tracks: Sequence[Track], x_range: tuple[float, float]) -> None:
    data = [(track, {name: _finite(track, name) for name in panel.series}) for track in tracks]
    values = [v for _, ys in data for y in ys.values() for v in y if v == v]
    log, low, high = y_limits(panel, values)
    axes.set_xlim(*x_range)
    broken = sum(name in track.recorder.bad for track in tracks for name in panel.series)
    if broken:  # room for text
        high = high * (high / low) ** (0.14 * broken) if log else high + 0.14 * broken * (high - low)
    _axis(axes, panel, log, low, high, min(values, default=1.0))
    for level, text in panel.lines:
        axes.axhline(level, color="#8a8a8a", lw=0.8, ls=(0, (4, 3)), zorder=1)
        room = (axes.bbox.y1 - axes.transData.transform((x_range[0], level))[1]) * 72 / DPI
        axes.annotate(
            text, (x_range[0], level), (3, 2 if room > 9 else -8), textcoords="offset points", color="#6a6a6a",
            size=7, zorder=5,
        )  # fmt: skip
    notes: list[tuple[str, str]] = []
    for order, (track, ys) in enumerate(sorted(data, key=lambda item: not item[0].ghost)):
        colour, alpha = TONES[track.tone][0], GHOST if track.ghost else 1.0
        x = track.recorder.column("step")
        marks = "." if len(x) <= 30 else None
        for at, name in enumerate(panel.series):
            y = [max(v, low) if v == v else v for v in ys[name]] if log else ys[name]
            axes.plot(
                x,
                y,
                color=colour,
                alpha=alpha,
                lw=1.3,
                ls=DASHES[at % 4],
                marker=marks,
                ms=3,
                zorder=3 + order,
            )
            if name in track.recorder.bad:
                notes.append((track.note(name, several=len(panel.series) > 1), colour))
        if panel.band:
            first, second = (ys[name] for name in panel.series[:2])
            axes.fill_between(x, first, second, color=colour, alpha=0.15 * alpha, lw=0, zorder=2)
    for line, (text, colour) in enumerate(notes):
        axes.annotate(
            text, (1, 1), (-3, -9 - 10 * line), xycoords="axes fraction", textcoords="offset points", ha="right",
            color=colour, size=7.5, zorder=6, bbox={"fc": "white", "ec": "none", "alpha": 0.8, "pad": 0.8},
            parse_math=False,
        )  # fmt: skip
    if not any(v == v for _, ys in data for y in ys.values() for v in y) and any(
        len(t.recorder) for t in tracks
    ):
        axes.text(
            0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color="#767676"
        )
    _title(axes, panel, log, data)


def _axis(axes: Any, panel: Panel, log: bool, low: float, high: float, least: float) -> None:
    from matplotlib import ticker

    axes.set_yscale("log" if log else "linear")
    axes.set_ylim(low, high)
    if log:
        axes.yaxis.set_major_locator(
            ticker.FixedLocator([low] * (least <= 0) + log_ticks(low, high, least <= 0))
        )
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    elif panel.unit == "bytes":
        power = min(int(math.log2(max(high, 1)) // 10), 3)
        scale, name = 1024.0**power, ("B", "KiB", "MiB", "GiB")[power]
        ticks = ticker.MaxNLocator(3).tick_values(low / scale, high / scale)
        axes.yaxis.set_major_locator(
            ticker.FixedLocator([t * scale for t in ticks if low <= t * scale <= high])
        )
        axes.yaxis.set_major_formatter(lambda v, _: f"{v / scale:g} {name}" if v else "0")
    else:
        axes.yaxis.set_major_locator(ticker.MaxNLocator(4))
    if panel.unit != "bytes" or log:
        bottom = "0" if least == 0 else "≤ 0"
        axes.yaxis.set_major_formatter(lambda v, _: bottom if log and v <= low else written(v, panel.unit))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    axes.tick_params(length=0, labelsize=7, pad=3)
    axes.annotate("step", (0, 0), (-30, -8.5), xycoords="axes fraction", textcoords="offset points", size=7)
    axes.grid(axis="y", color=GRID, lw=0.8, zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _title(axes: Any, panel: Panel, log: bool, data: Sequence[tuple[Track, dict[str, list[float]]]]) -> None:
    """The title row: the panel's name, and at the right every run's newest values in its colour."""
    name = panel.title + (" (log)" if log else "")
    axes.annotate(
        name, (0, 1), (-30, 4), xycoords="axes fraction", textcoords="offset points", weight="bold", size=8,
        parse_math=False,
    )  # fmt: skip
    right = 0.0
    for track, _ in reversed(data):
        values = [latest(track, name) for name in panel.series]
        text = " / ".join(written(v, panel.unit) for v in values if v is not None)
        if not text:
            continue
        note = axes.annotate(
            f"{track.label} {text}", (1, 1), (-right, 4), xycoords="axes fraction", textcoords="offset points",
            ha="right", size=7.5, color=TONES[track.tone][0], parse_math=False,
        )  # fmt: skip
        right += note.get_window_extent(axes.figure.canvas.get_renderer()).width * 72 / DPI + 8


def latest(track: Track, name: str) -> float | None:
    """The newest value of a series: NaN when it stopped being a number, None when it was never measured."""
    if name not in track.recorder.seen and name not in track.recorder.bad:
        return None
    column = track.recorder.column(name)
    bad = track.recorder.bad.get(name)
    for value in reversed(column):
        if value == value or bad:
            return value
    return None


def _finite(track: Track, name: str) -> list[float]:
    return [v if math.isfinite(v) else math.nan for v in track.recorder.column(name)]


def _small(canvas: Any, tones: Sequence[str]) -> bytes:
    """The canvas as a PNG with a palette: a third of the size. The palette holds what was drawn with, mixed with
    white in steps, so that a colour that is rare in the picture keeps its hue."""
    from PIL import Image

    white = (255, 255, 255)
    colours = [_mixed((51, 51, 51), white, i / 15) for i in range(16)]
    used = [tuple(int(TONES[tone][0][at : at + 2], 16) for at in (1, 3, 5)) for tone in dict.fromkeys(tones)]
    for at, colour in enumerate(used[:4]):
        colours += [_mixed(colour, white, i / 10) for i in range(10)]
        colours += [_mixed(colour, other, 0.5) for other in used[:at]]
    image = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba(), "raw", "RGBA", 0, 1)
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for colour in colours for channel in colour])
    small = image.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE)
    out = io.BytesIO()
    small.save(out, "PNG")  # optimize=True takes 27 ms more for 5 % less
    return out.getvalue()


def _mixed(one: Sequence[int], other: Sequence[int], share: float) -> tuple[int, ...]:
    return tuple(round(a + share * (b - a)) for a, b in zip(one, other, strict=True))
