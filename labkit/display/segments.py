"""Draw what the allocator holds: a map of its segments, and allocated against reserved over time.

    draw(tap)                                  # or an Allocator, a snapshot, torch.cuda.memory._snapshot()
    draw({"default": a, "expandable": b})      # several, on one scale
    timeline(tap)

Both return a `Picture`: Jupyter shows it, `save` writes it. matplotlib is imported when something is drawn. This file
measures nothing.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Okabe and Ito's colours, and greys
COLOURS = {
    "parameter": "#0072B2",
    "gradient": "#D55E00",
    "optimizer": "#E69F00",
    "activation": "#009E73",
    "logits": "#CC79A7",
    "kv-cache": "#56B4E9",
    "backward": "#F0E442",
    "workspace": "#8C8C8C",
    "other": "#4D4D4D",
    "in use": "#0072B2",
    "waiting for a stream": "#E69F00",
}
_MORE = ("#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#E69F00", "#8C8C8C")  # for tags of one's own
_STATES = {
    "active_allocated": "in use",
    "active_awaiting_free": "waiting for a stream",
    "active_pending_free": "waiting for a stream",
}
_BRIGHT = {"#E69F00", "#56B4E9", "#F0E442", "#CC79A7"}  # dark letters on these
_INK, _PAPER, _FRAME = "#222222", "#F4F4F4", "#666666"
_WIDTH, _DPI = 7.4, 110  # inches; 814 pixels


@dataclass(frozen=True)
class _Piece:
    """The part of a segment that one row shows: bytes `start` to `end` of it."""

    segment: Mapping[str, Any]
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Picture:
    """A PNG. Its text form is the same on every machine."""

    def __init__(self, png: bytes, text: str):
        self.png, self._text = png, text

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return self._text

    def save(self, path: str | Path) -> Path:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.png)
        return path


def draw(snapshot: Any, *, title: str = "", rows: int = 14, labels: bool = True) -> Picture:
    """The segments as bars, to scale: coloured blocks are in use, pale ones are free and reserved.

    `snapshot`: segments as in `torch.cuda.memory._snapshot()["segments"]`, that whole dict, anything with a
    `snapshot()` (Tap, Ledger, Allocator), or a dict of title -> any of these, drawn on one scale. Blocks are coloured
    by their `tag` where they have one, else by their state. A row holds one segment; with more segments than `rows`,
    neighbours share a row. `labels`: write sizes into the blocks. ValueError for what is not a snapshot.
    """
    panels = _panels(snapshot, title)
    width = _row_width(panels, rows)
    packed = [(name, segments, _pack(segments, width, rows)) for name, segments in panels]
    colours = _colours(segments for _, segments in panels)

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bar, line, foot = 0.2, 0.17, 0.34  # inches
    heads = [line * (2 if name else 1) + 0.06 for name, *_ in packed]
    tall = [max(len(found), 1) * bar + head + 0.06 for (*_, found), head in zip(packed, heads, strict=True)]
    top = height = sum(tall) + foot
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    for (name, segments, found), panel, head in zip(packed, tall, heads, strict=True):
        figure.text(
            0.012, (top - 0.13) / height, name, fontsize=9, fontweight="bold", color=_INK, va="center"
        )
        summary = (top - head + 0.1) / height
        figure.text(0.012, summary, _summary(segments), fontsize=8, color=_INK, va="center")
        axes = figure.add_axes((0.135, (top - panel + 0.06) / height, 0.853, (panel - head - 0.06) / height))
        _panel(axes, found, width, colours, labels)
        top -= panel
    _legend(figure, panels, colours, 0.13 / height)
    return Picture(_png(figure), f"<segment map: {len(panels)} panel{'s' * (len(panels) > 1)}>")


def timeline(moments: Any, *, title: str = "", total_memory: int | None = None) -> Picture:
    """Allocated and reserved over the allocator's events; the gap between them is shaded.

    `moments`: a Tap, a Ledger, or rows of (event, allocated, reserved) with an optional mark. `total_memory` draws the
    card's size where it is near (a Tap's or Ledger's own, if it has one). ValueError for an empty timeline.
    """
    if hasattr(moments, "timeline"):
        if total_memory is None:
            total_memory = moments.total_memory
        moments = moments.timeline
    rows = [
        (m.event, m.allocated, m.reserved, m.mark) if hasattr(m, "event") else (*m, "")[:4] for m in moments
    ]
    if not rows:
        raise ValueError("timeline: there is no event; record something first")
    events, allocated, reserved = ([row[i] for row in rows] for i in range(3))
    unit, name = _unit(max(reserved))
    a, r = ([v / unit for v in column] for column in (allocated, reserved))

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, 2.9), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.085, 0.15, 0.9, 0.68))
    axes.fill_between(events, a, r, step="post", color="#E69F00", alpha=0.28, linewidth=0)
    axes.step(events, r, where="post", color="#D55E00", linewidth=1.3)
    axes.step(events, a, where="post", color="#0072B2", linewidth=1.3)
    top = max(r) * 1.04
    if total_memory is not None and total_memory / unit <= max(r) * 1.6:
        axes.axhline(total_memory / unit, color=_FRAME, linewidth=1, linestyle=(0, (4, 3)))
        axes.text(
            events[-1],
            total_memory / unit,
            f"the card: {_short(total_memory)} ",
            fontsize=7.5,
            ha="right",
            va="bottom",
            color=_FRAME,
        )
        top = max(top, total_memory / unit * 1.08)
    _marks(axes, rows, top)
    axes.set_xlim(events[0], max(events[-1], events[0] + 1))
    axes.set_ylim(0, top)
    axes.set_ylabel(name, fontsize=8, color=_INK)
    axes.set_xlabel("allocator events", fontsize=8, color=_INK, labelpad=1)
    axes.tick_params(labelsize=7.5, length=3, color=_FRAME)
    axes.spines[["top", "right"]].set_visible(False)
    gap = max(reserved[i] - allocated[i] for i in range(len(rows)))
    parts = [
        (title, _INK, "bold"),
        (f"allocated, peak {_short(max(allocated))}", "#0072B2", "normal"),
        (f"reserved, peak {_short(max(reserved))}", "#D55E00", "normal"),
        (f"reserved and unused, at most {_short(gap)}", "#9A6A00", "normal"),
    ]
    _line_of_text(figure, parts, 0.085, 0.955)
    return Picture(_png(figure), "<memory timeline>")


# ---- the map --------------------------------------------------------------------------------------------


def _panels(snapshot: Any, title: str) -> list[tuple[str, list[dict[str, Any]]]]:
    if isinstance(snapshot, Mapping) and "segments" not in snapshot:
        if not snapshot:
            raise ValueError("draw: got an empty dict; expected title -> snapshot")
        return [(str(name), _segments(each)) for name, each in snapshot.items()]
    return [(title, _segments(snapshot))]


def _segments(snapshot: Any) -> list[dict[str, Any]]:
    found = snapshot.snapshot() if callable(getattr(snapshot, "snapshot", None)) else snapshot
    if isinstance(found, Mapping):
        found = found.get("segments")
    if not isinstance(found, Sequence) or isinstance(found, (str, bytes)):
        raise ValueError(
            f"draw: cannot read a {type(snapshot).__name__}; expected a Tap, an Allocator, a list of segments, or "
            "torch.cuda.memory._snapshot()"
        )
    for segment in found:
        if not isinstance(segment, Mapping) or not {"total_size", "blocks"} <= set(segment):
            raise ValueError(
                "draw: a segment needs 'total_size' and 'blocks', as in torch.cuda.memory._snapshot()"
            )
    return [dict(s) for s in found]


def _holder(block: Mapping[str, Any]) -> str | None:
    """The block's category, or its state; None when it is free."""
    if block["state"] == "inactive":
        return None
    return block.get("tag") or _STATES.get(block["state"], "in use")


def _held(segments: Iterable[Mapping[str, Any]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for segment in segments:
        for block in segment["blocks"]:
            if (holder := _holder(block)) is not None:
                counts[holder] += block["size"]
    return counts


def _colours(everything: Iterable[Iterable[Mapping[str, Any]]]) -> dict[str, str]:
    names: Counter[str] = Counter()
    for segments in everything:
        names += _held(segments)
    strange = [n for n, _ in names.most_common() if n not in COLOURS]
    order = [n for n in COLOURS if n in names] + strange
    return {n: COLOURS.get(n) or _MORE[strange.index(n) % len(_MORE)] for n in order}


def _row_width(panels: list[tuple[str, list[dict[str, Any]]]], rows: int) -> int:
    """Bytes in a full row: the largest fixed segment, or more if that would take far more than `rows` rows.

    Expandable segments may be larger: they run over several rows.
    """
    segments = [s for _, found in panels for s in found]
    fixed = [s["total_size"] for s in segments if not s.get("is_expandable")]
    reserved = max((sum(s["total_size"] for s in found) for _, found in panels), default=0)
    longest = max((s["total_size"] for s in segments), default=1)
    return max([*fixed, -(-longest // (4 if fixed else max(rows // 2, 1))), reserved // rows, 1])


def _pack(segments: list[dict[str, Any]], width: int, rows: int) -> list[list[_Piece]]:
    """Segments in rows: one a row while they fit, else several a row where there is room. Large ones first."""
    ordered = sorted(segments, key=lambda s: (-s["total_size"], s.get("address", 0)))
    pieces = [
        _Piece(s, start, min(start + width, s["total_size"]))
        for s in ordered
        for start in range(0, s["total_size"], width)
    ]
    if len(pieces) <= rows:
        return [[piece] for piece in pieces]
    gap = width // 160
    lines: list[list[_Piece]] = []
    room = 0
    for piece in pieces:
        if not lines or piece.size + gap > room:
            lines.append([])
            room = width
        lines[-1].append(piece)
        room -= piece.size + gap
    return lines


def _panel(axes: Any, lines: list[list[_Piece]], width: int, colours: dict[str, str], labels: bool) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    gap = width // 160
    bars: list[tuple[int, int, int, str, str, float]] = []  # left, row, size, face, edge, line width
    for row, line in enumerate(lines):
        left = 0
        for piece in line:
            bars += _piece(axes if labels else None, left, row, piece, width, colours)
            left += piece.size + gap
        axes.text(
            -width * 0.008, -row - 0.44, _row_name(line), fontsize=7, ha="right", va="center", color=_INK
        )
    if not lines:
        axes.text(0, -0.45, "nothing reserved", fontsize=8, va="center", color=_FRAME)
    patches = [Rectangle((left, -row - 0.84), size, 0.84) for left, row, size, *_ in bars]
    faces, edges, widths = ([bar[i] for bar in bars] for i in (3, 4, 5))
    axes.add_collection(PatchCollection(patches, facecolors=faces, edgecolors=edges, linewidths=widths))
    axes.set_xlim(-width * 0.002, width * 1.002)
    axes.set_ylim(-max(len(lines), 1), 0.06)
    axes.axis("off")


def _piece(
    axes: Any, left: int, row: int, piece: _Piece, width: int, colours: dict[str, str]
) -> list[tuple[int, int, int, str, str, float]]:
    """The bars of a segment, or of the part of it in this row. Sizes are written on `axes` where there is room."""
    bars = [(left, row, piece.size, _PAPER, "none", 0.0)]
    at = 0
    for block in piece.segment["blocks"]:
        start, end = max(at, piece.start), min(at + block["size"], piece.end)
        at += block["size"]
        if start >= end:
            continue
        here, size, holder = left + start - piece.start, end - start, _holder(block)
        share = size / width
        if holder is not None:
            bars.append((here, row, size, colours[holder], "white" if share > 0.004 else "none", 0.4))
        words = _short(block["size"]) if holder is not None else f"free {_short(block['size'])}"
        if axes is not None and share > max(0.0105 * len(words), 0.07) and size > block["size"] / 2:
            ink = _FRAME if holder is None else _INK if colours[holder] in _BRIGHT else "white"
            style = {"fontsize": 6.6, "ha": "center", "va": "center", "color": ink}
            axes.text(here + size / 2, -row - 0.44, words, **style)
    return [*bars, (left, row, piece.size, "none", _FRAME, 0.7)]


def _row_name(line: list[_Piece]) -> str:
    if len(line) == 1:
        return _short(line[0].segment["total_size"]) if line[0].start == 0 else ""
    sizes = [piece.size for piece in line]
    low, high = _short(min(sizes)), _short(max(sizes))
    if low == high:
        return f"{len(line)} x {high}"
    number, _, unit = low.partition(" ")
    return f"{len(line)} x {number if high.endswith(unit) else low}-{high}"


def _summary(segments: list[dict[str, Any]]) -> str:
    reserved = sum(s["total_size"] for s in segments)
    free = [b["size"] for s in segments for b in s["blocks"] if b["state"] == "inactive"]
    used = reserved - sum(free)
    text = f"{_short(used)} in use, {_short(sum(free))} free, of {_short(reserved)} reserved"
    return f"{text}; largest free block {_short(max(free))}" if free else text


def _legend(
    figure: Any, panels: list[tuple[str, list[dict[str, Any]]]], colours: dict[str, str], y: float
) -> None:
    held = _held(s for _, segments in panels for s in segments)
    single = len(panels) == 1
    parts = [
        (f"\u25a0 {name}" + (f" {_short(held[name])}" if single else ""), colour, "normal")
        for name, colour in colours.items()
    ]
    free = sum(
        b["size"] for _, segments in panels for s in segments for b in s["blocks"] if b["state"] == "inactive"
    )
    parts.append(("\u25a1 free" + (f" {_short(free)}" if single else ""), _FRAME, "normal"))
    _line_of_text(figure, parts, 0.012, y, size=7.6)


# ---- shared ---------------------------------------------------------------------------------------------


def _line_of_text(
    figure: Any, parts: list[tuple[str, str, str]], x: float, y: float, size: float = 8.2
) -> None:
    """Coloured words side by side."""
    renderer = figure.canvas.get_renderer()
    for text, colour, weight in parts:
        if not text:
            continue
        shown = figure.text(x, y, text, fontsize=size, color=colour, fontweight=weight, va="center")
        x += shown.get_window_extent(renderer).width / (figure.get_figwidth() * figure.dpi) + 0.016


def _marks(axes: Any, rows: list[tuple], top: float) -> None:
    clear = -1e9  # where the last word ends
    span = max(rows[-1][0] - rows[0][0], 1)
    for event, _, _, mark in rows:
        if not mark:
            continue
        axes.axvline(event, color=_FRAME, linewidth=0.6, linestyle=(0, (1, 2)))
        if event > clear:
            axes.text(event, top, f" {mark}", fontsize=7, color=_FRAME, va="bottom", ha="left")
            clear = event + span * 0.0088 * (len(mark) + 2)


def _unit(largest: int) -> tuple[int, str]:
    return (2**30, "GiB") if largest >= 2**30 else (2**20, "MiB")


def _short(nbytes: float) -> str:
    """Three digits: `148 MiB`, `2.05 GiB`, `1 GiB`."""
    size, units = float(nbytes), ["bytes", "KiB", "MiB", "GiB"]
    while size >= 1023.5 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.3g} {units[0]}" if size < 999.5 else f"{size:.0f} {units[0]}"


def _png(figure: Any) -> bytes:
    """A palette of 128 colours is enough here, and a third of the size."""
    from PIL import Image

    figure.canvas.draw()
    picture = Image.frombuffer("RGBA", figure.canvas.get_width_height(), figure.canvas.buffer_rgba()).convert(
        "RGB"
    )
    buffer = io.BytesIO()
    picture.quantize(128, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
