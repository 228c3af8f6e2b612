"""A map of what the allocator holds: `draw(tap)`, or several on one scale, `draw({"default": a, "expandable": b})`.

This file measures nothing. It reads the segments of PyTorch's own snapshot, which a Tap and the simulator have too.
"""

from __future__ import annotations

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
# for tags of one's own
_MORE = ("#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#E69F00", "#8C8C8C")
_STATES = {
    "active_allocated": "in use",
    "active_awaiting_free": "waiting for a stream",
    "active_pending_free": "waiting for a stream",
}
_BRIGHT = {"#E69F00", "#56B4E9", "#F0E442", "#CC79A7"}  # dark letters on these
_PAPER, _FRAME = "#F4F4F4", "#666666"
_WIDTH, _DPI = 7.4, 110  # inches; 814 pixels
_BAR, _LINE = 0.2, 0.17  # inches: a row of blocks, a line of text

Segment = Mapping[str, Any]


def draw(snapshot: Any, *, title: str = "", rows: int = 14, labels: bool = True) -> Picture:
    """The segments as bars, to scale: coloured blocks are in use, pale ones are free and reserved.

    snapshot   segments as in `torch.cuda.memory._snapshot()["segments"]`, that whole dict, anything with a `snapshot()`
               (Tap, Ledger, Allocator), or a dict of title -> any of these, drawn on one scale
    title      of the only one
    rows       about how many to draw: a row holds one segment while they fit, then neighbours share one
    labels     write sizes into the blocks

    Blocks are coloured by their `tag` where they have one, else by their state.

    Returns a `Picture`, which Jupyter shows.
    Raises: ValueError names what is not a snapshot.
    """
    several = isinstance(snapshot, Mapping) and "segments" not in snapshot
    if several and not snapshot:
        raise ValueError("draw: got an empty dict; expected title -> snapshot")
    maps = {str(name): _segments(each) for name, each in (snapshot if several else {title: snapshot}).items()}
    width = _row_width(list(maps.values()), rows)
    panels = {name: _pack(segments, width, rows) for name, segments in maps.items()}
    colours = _colours([segment for segments in maps.values() for segment in segments])
    heads = {name: _LINE * (1 + bool(name)) + 0.06 for name in maps}
    tall = {name: max(len(lines), 1) * _BAR + heads[name] + 0.06 for name, lines in panels.items()}
    legend = _legend(maps, colours)
    top = height = sum(tall.values()) + 0.14 + 0.2 * len(legend)
    with sheet(_WIDTH, height, _DPI) as figure:
        for name, lines in panels.items():
            words(figure, 0.09, top - 0.13, [(name, INK, "bold")], size=9)
            words(figure, 0.09, top - heads[name] + 0.1, [(_summary(maps[name]), INK, "normal")])
            foot, high = top - tall[name] + 0.06, tall[name] - heads[name] - 0.06
            axes = figure.add_axes((0.135, foot / height, 0.853, high / height))
            _panel(axes, lines, width, colours, labels)
            top -= tall[name]
        for at, parts in enumerate(reversed(legend)):
            words(figure, 0.09, 0.13 + 0.2 * at, parts, size=7.6)
        small = png(figure, colours.values())
    return Picture(small, f"<segment map: {len(maps)} panel{'s' * (len(maps) > 1)}>")


def _segments(snapshot: Any) -> list[Segment]:
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
            raise ValueError("draw: a segment needs 'total_size' and 'blocks', as in torch.cuda.memory._snapshot()")
    return list(found)


def _holder(block: Mapping[str, Any]) -> str:
    """The block's category, or its state; "" when it is free."""
    if block["state"] == "inactive":
        return ""
    return block.get("tag") or _STATES.get(block["state"], "in use")


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
    spare = [colour for colour in _MORE if colour not in known.values()] or _MORE
    return known | {name: spare[at % len(spare)] for at, name in enumerate(strange)}


def _short(size: float) -> str:
    return format_size(size, short=True)


# ---- rows of blocks


@dataclass(frozen=True)
class _Piece:
    """The part of a segment that one row shows: bytes `start` to `end` of it."""

    segment: Segment
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def _row_width(maps: Sequence[Sequence[Segment]], rows: int) -> int:
    """Bytes in a full row: the largest fixed segment, or more if that would take far more than `rows` rows.

    Expandable segments may be larger: they run over several rows.
    """
    segments = [s for found in maps for s in found]
    fixed = [s["total_size"] for s in segments if not s.get("is_expandable")]
    reserved = max((sum(s["total_size"] for s in found) for found in maps), default=0)
    longest = max((s["total_size"] for s in segments), default=1)
    return max([*fixed, -(-longest // (4 if fixed else max(rows // 2, 1))), reserved // rows, 1])


def _pack(segments: Sequence[Segment], width: int, rows: int) -> list[list[_Piece]]:
    """Segments in rows: one per row while they fit, else several where there is room. Large ones first."""
    ordered = sorted(segments, key=lambda s: (-s["total_size"], s.get("address", 0)))
    pieces = [
        _Piece(s, start, min(start + width, s["total_size"]))
        for s in ordered
        for start in range(0, s["total_size"], width)
    ]
    if len(pieces) <= rows:
        return [[piece] for piece in pieces]
    lines: list[list[_Piece]] = []
    room = 0
    for piece in pieces:
        if not lines or piece.size + _gap(width) > room:
            lines.append([])
            room = width
        lines[-1].append(piece)
        room -= piece.size + _gap(width)
    return lines


def _gap(width: int) -> int:
    """Bytes left white between two segments in one row."""
    return width // 160


# ---- drawing


@dataclass(frozen=True)
class _Bar:
    left: int
    size: int
    face: str
    edge: str = "none"
    words: str = ""


def _panel(axes: Any, lines: list[list[_Piece]], width: int, colours: dict[str, str], labels: bool) -> None:
    for row, line in enumerate(lines):
        bars: list[_Bar] = []
        left = 0
        for piece in line:
            bars += _bars(piece, left, width, colours)
            left += piece.size + _gap(width)
        _row(axes, -row - 0.84, bars, labels)
        axes.text(-width * 0.008, -row - 0.44, _row_name(line), size=7, ha="right", va="center", color=INK)
    if not lines:
        axes.text(0, -0.45, "nothing reserved", size=8, va="center", color=_FRAME)
    axes.set_xlim(-width * 0.002, width * 1.002)
    axes.set_ylim(-max(len(lines), 1), 0.06)
    axes.axis("off")


def _row(axes: Any, foot: float, bars: Sequence[_Bar], labels: bool) -> None:
    faces, edges = [bar.face for bar in bars], [bar.edge for bar in bars]
    pixel = 72 / _DPI  # a frame of exactly one has sharp edges
    lines = [pixel if edge == _FRAME else 0.6 * pixel for edge in edges]
    places = [(bar.left, bar.size) for bar in bars]
    axes.broken_barh(places, (foot, 0.84), facecolors=faces, edgecolors=edges, linewidths=lines)
    for bar in bars:
        if labels and bar.words:
            ink = _FRAME if bar.face == _PAPER else INK if bar.face in _BRIGHT else "white"
            style: Any = {"size": 6.6, "ha": "center", "va": "center", "color": ink}
            axes.text(bar.left + bar.size / 2, foot + 0.4, bar.words, **style)


def _bars(piece: _Piece, left: int, width: int, colours: dict[str, str]) -> Iterable[_Bar]:
    """The bars of a segment, or of the part of it in this row: its blocks, and a frame."""
    end = 0
    for block in piece.segment["blocks"]:
        start, end = end, end + block["size"]
        first, last = max(start, piece.start), min(end, piece.end)
        if first >= last:
            continue
        size, holder = last - first, _holder(block)
        name = _short(block["size"]) if holder else f"free {_short(block['size'])}"
        fits = size / width > max(0.0105 * len(name), 0.07) and size > block["size"] / 2
        edge = "white" if holder and size / width > 0.004 else "none"
        yield _Bar(left + first - piece.start, size, colours.get(holder, _PAPER), edge, name * fits)
    yield _Bar(left, piece.size, "none", _FRAME)


def _row_name(line: list[_Piece]) -> str:
    if len(line) == 1:
        return _short(line[0].segment["total_size"]) if line[0].start == 0 else ""
    sizes = [piece.size for piece in line]
    low, high = _short(min(sizes)), _short(max(sizes))
    if low == high:
        return f"{len(line)} x {high}"
    number, _, unit = low.partition(" ")
    return f"{len(line)} x {number if high.endswith(unit) else low}-{high}"


def _summary(segments: Sequence[Segment]) -> str:
    reserved = sum(s["total_size"] for s in segments)
    free = [b["size"] for s in segments for b in s["blocks"] if not _holder(b)]
    used = reserved - sum(free)
    text = f"{_short(used)} in use, {_short(sum(free))} free, of {_short(reserved)} reserved"
    return f"{text}; largest free block {_short(max(free))}" if free else text


def _legend(maps: Mapping[str, Sequence[Segment]], colours: dict[str, str]) -> list[list[Words]]:
    """What each colour is, in lines of five; with one map, how much of it there is."""
    held = _held(s for segments in maps.values() for s in segments)
    size = lambda name: f" {_short(held[name])}" if len(maps) == 1 else ""
    parts = [(f"\u25a0 {name}{size(name)}", colour, "normal") for name, colour in colours.items()]
    parts.append((f"\u25a1 free{size('')}", _FRAME, "normal"))
    return [parts[at : at + 5] for at in range(0, len(parts), 5)]
