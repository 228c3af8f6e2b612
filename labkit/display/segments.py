"""A map of what the allocator holds: `draw(tap)`, or several on one scale, `draw({"default": a, "expandable": b})`.

This file measures nothing. It reads the segments of PyTorch's own snapshot, which a Tap and the simulator have too.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.common import format_size

from .sheet import INK, Picture, Words, png, sheet, words

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
BRIGHT = {"#E69F00", "#56B4E9", "#F0E442", "#CC79A7"}  # dark letters on these
PAPER, FRAME = "#F4F4F4", "#666666"
WIDTH, DPI = 7.4, 110  # inches; 814 pixels
_BAR, _LINE = 0.2, 0.17  # inches: a row of blocks, a line of text
_ROWS = 14  # about how many: a row holds one segment while they fit, then neighbours share one
_NAMED = 0.07  # of a row: a block that is smaller has no size written into it

Segment = Mapping[str, Any]
_short = functools.partial(format_size, short=True)


def draw(snapshot: Any, *, title: str = "") -> Picture:
    """The segments as bars, to scale: coloured blocks are in use, pale ones are free and reserved.

    snapshot   segments as in `torch.cuda.memory._snapshot()["segments"]`, that whole dict, anything with a `snapshot()`
               (Tap, Ledger, Allocator), or a dict of title -> any of these, drawn on one scale
    title      of the only one

    Blocks are coloured by their `tag` where they have one, else by their state.

    Returns a `Picture`, which Jupyter shows.
    Raises: ValueError names what is not a snapshot.
    """
    several = isinstance(snapshot, Mapping) and "segments" not in snapshot
    maps = {str(name): _segments(each) for name, each in (snapshot if several else {title: snapshot}).items()}
    if not maps:
        raise ValueError("draw: got an empty dict; expected title -> snapshot")
    width = _row_width(list(maps.values()))
    panels = {name: _pack(segments, width) for name, segments in maps.items()}
    colours = _colours([segment for segments in maps.values() for segment in segments])
    legend = _legend(maps, colours)
    tall = {name: max(len(rows), 1) * _BAR + _LINE * (1 + bool(name)) + 0.12 for name, rows in panels.items()}
    top = height = sum(tall.values()) + 0.14 + 0.2 * len(legend)
    with sheet(WIDTH, height, DPI) as figure:
        for name, rows in panels.items():
            words(figure, 0.09, top - 0.13, [(name, INK, "bold")], size=9)
            words(figure, 0.09, top - 0.13 - _LINE * bool(name), [(_summary(maps[name]), INK, "normal")])
            top -= tall[name]
            place = (0.135, (top + 0.06) / height, 0.853, max(len(rows), 1) * _BAR / height)
            _panel(figure.add_axes(place), rows, width, colours)
        for at, parts in enumerate(reversed(legend)):
            words(figure, 0.09, 0.13 + 0.2 * at, parts, size=7.6)
        small = png(figure)
    return Picture(small, f"<segment map: {len(maps)} panel{'s' * (len(maps) > 1)}>")


def _segments(snapshot: Any) -> list[Segment]:
    found = snapshot.snapshot() if callable(getattr(snapshot, "snapshot", None)) else snapshot
    found = found["segments"] if isinstance(found, Mapping) else found
    fits = lambda segment: isinstance(segment, Mapping) and {"total_size", "blocks"} <= set(segment)
    if not isinstance(found, Sequence) or not all(fits(segment) for segment in found):
        raise ValueError(
            f"draw: cannot read a {type(snapshot).__name__}; expected a Tap, an Allocator, or segments as in "
            "torch.cuda.memory._snapshot(), each with 'total_size' and 'blocks'"
        )
    return list(found)


def _holder(block: Mapping[str, Any]) -> str:
    """The block's category, or its state; "" when it is free."""
    if block["state"] == "inactive":
        return ""
    return block.get("tag") or ("in use" if block["state"] == "active_allocated" else "waiting for a stream")


def _held(segments: Iterable[Segment]) -> Counter[str]:
    """Bytes in blocks of each category; those that are free under ""."""
    counts: Counter[str] = Counter()
    for segment in segments:
        for block in segment["blocks"]:
            counts[_holder(block)] += block["size"]
    return counts


def _colours(segments: Iterable[Segment]) -> dict[str, str]:
    held = _held(segments)
    known = {name: colour for name, colour in COLOURS.items() if name in held}
    strange = [name for name, _ in held.most_common() if name and name not in known]
    spare = [colour for colour in COLOURS.values() if colour not in known.values()] or list(COLOURS.values())
    return known | {name: spare[at % len(spare)] for at, name in enumerate(strange)}


@dataclass(frozen=True)
class _Piece:
    """The part of a segment that one row shows: `size` bytes from `start` on, drawn at byte `left` of the row."""

    segment: Segment
    start: int
    size: int
    left: int


def _row_width(maps: Sequence[Sequence[Segment]]) -> int:
    """Bytes in a full row: the largest fixed segment, or more if that would take far more than `_ROWS` rows.

    Expandable segments may be larger: they run over several rows.
    """
    segments = [s for found in maps for s in found]
    fixed = [s["total_size"] for s in segments if not s.get("is_expandable")]
    reserved = max(sum(s["total_size"] for s in found) for found in maps)
    longest = max((s["total_size"] for s in segments), default=1)
    return max([*fixed, -(-longest // (4 if fixed else _ROWS // 2)), reserved // _ROWS, 1])


def _pack(segments: Sequence[Segment], width: int) -> list[list[_Piece]]:
    """Segments in rows: one per row while they fit, else several where there is room. Large ones first."""
    ordered = sorted(segments, key=lambda s: (-s["total_size"], s.get("address", 0)))
    parts = [(s, start) for s in ordered for start in range(0, s["total_size"], width)]
    rows: list[list[_Piece]] = []
    left = 0
    for segment, start in parts:
        size = min(width, segment["total_size"] - start)
        if not rows or left + size > width or len(parts) <= _ROWS:
            rows.append([])
            left = 0
        rows[-1].append(_Piece(segment, start, size, left))
        left += size + width // 160  # left white between two segments in one row
    return rows


def _panel(axes: Any, rows: list[list[_Piece]], width: int, colours: dict[str, str]) -> None:
    for at, row in enumerate(rows):
        for piece in row:
            _draw_piece(axes, piece, -at - 0.84, width, colours)
        axes.text(-width * 0.008, -at - 0.44, _row_name(row), size=7, ha="right", va="center", color=INK)
    if not rows:
        axes.text(0, -0.45, "nothing reserved", size=8, va="center", color=FRAME)
    axes.set_xlim(-width * 0.002, width * 1.002)
    axes.set_ylim(-max(len(rows), 1), 0.06)
    axes.axis("off")


def _draw_piece(axes: Any, piece: _Piece, foot: float, width: int, colours: dict[str, str]) -> None:
    """The blocks of a segment, or of the part of it in this row, with their sizes where there is room; and a frame."""
    places, faces, edges = [], [], []
    end = -piece.start
    for block in piece.segment["blocks"]:
        start, end = end, end + block["size"]
        left, size = max(start, 0), min(end, piece.size) - max(start, 0)
        if size <= 0:
            continue
        holder = _holder(block)
        places.append((piece.left + left, size))
        faces.append(colours.get(holder, PAPER))
        edges.append("white" if holder and size / width > 0.004 else "none")
        name = _short(block["size"]) if holder else f"free {_short(block['size'])}"
        if size / width > max(0.0105 * len(name), _NAMED) and size > block["size"] / 2:
            ink = FRAME if not holder else INK if faces[-1] in BRIGHT else "white"
            axes.text(piece.left + left + size / 2, foot + 0.4, name, size=6.6, ha="center", va="center", color=ink)
    pixel = 72 / DPI  # a frame of exactly one has sharp edges
    axes.broken_barh(places, (foot, 0.84), facecolors=faces, edgecolors=edges, linewidths=0.6 * pixel)
    frame = [(piece.left, piece.size)]
    axes.broken_barh(frame, (foot, 0.84), facecolors="none", edgecolors=FRAME, linewidths=pixel)


def _row_name(line: list[_Piece]) -> str:
    if len(line) == 1:
        return _short(line[0].segment["total_size"]) if line[0].start == 0 else ""
    low, high = _short(min(piece.size for piece in line)), _short(max(piece.size for piece in line))
    return f"{len(line)} x {high}" if low == high else f"{len(line)} up to {high}"


def _summary(segments: Sequence[Segment]) -> str:
    reserved = sum(s["total_size"] for s in segments)
    free = [b["size"] for s in segments for b in s["blocks"] if not _holder(b)]
    used = reserved - sum(free)
    text = f"{_short(used)} in use, {_short(sum(free))} free, of {_short(reserved)} reserved"
    return f"{text}; largest free block {_short(max(free))}" if free else text


def _legend(maps: Mapping[str, Sequence[Segment]], colours: dict[str, str]) -> list[list[Words]]:
    """What each colour is, in lines of five; with one map, how much of it there is."""
    held = _held(s for segments in maps.values() for s in segments)
    lines: list[list[Words]] = []
    for at, (name, colour) in enumerate([*colours.items(), ("", FRAME)]):
        if at % 5 == 0:
            lines.append([])
        size = f" {_short(held[name])}" if len(maps) == 1 else ""
        lines[-1] += [("\u25a0" if name else "\u25a1", colour, "bold"), (f"{name or 'free'}{size}", INK, "normal")]
    return lines
