"""Page 07's pictures: a card as one strip, several of them one under another, and who is served after `empty_cache`.

The chart of what is lost to pieces stands in `lesson_07_chart`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from labkit.common import format_size
from labkit.display.panels import TONES
from labkit.events import Run

from .lesson_07 import GIB, MIB, ON, Pieces, longest_free, moments, segments_of
from .lesson_07_cards import card_after_round_1
from .lesson_07_recording import FOLLOWED, Calls

SMALL = 70 * MIB  # segments below are drawn as one box
KINDS = {  # what a block is for -> the words, and the colour
    "parameter": ("weights", "#B9B9B9"),
    "optimizer": ("AdamW's state", TONES["three"][1]),
    FOLLOWED: ("the followed tensor", TONES["far"][0]),
    "logits": ("logits, log-softmax", TONES["two"][1]),
    "activation": ("activations", TONES["one"][1]),
    "gradient": ("gradients", TONES["four"][1]),
}
OTHERS = ("other", "#D9D2C4")
ORDER = [*KINDS, "other"]
INK = "#333333"
NOT_RESERVED = "#EDEDED"


def kind_of(tag: str) -> str:
    return tag if tag in KINDS or tag == "free" else "other"


def strip(axes: Any, at: float, segments: Sequence[Pieces], card: int, height: float = 0.5) -> None:
    """A card as one bar: its small segments as one box, every large one with its pieces, then what is not reserved."""
    small, large = by_size(segments)
    left = _box(axes, at, 0.0, _summed(small), height, hatch="////")
    for pieces in large:
        left = _box(axes, at, left, pieces, height)
    rest = card / GIB - left
    if rest > 0:
        axes.barh(at, rest, left=left, height=height, color=NOT_RESERVED, ec=INK, lw=0.6, ls=":")
        if rest > 0.3:
            words = f"not reserved\n{rest * GIB / MIB:,.0f} MiB"
            axes.text(left + rest / 2, at, words, ha="center", va="center", size=6.5, color=INK)


def by_size(segments: Sequence[Pieces]) -> tuple[list[Pieces], list[Pieces]]:
    """The small segments, and the large ones, in their order."""
    small: list[Pieces] = []
    large: list[Pieces] = []
    for pieces in segments:
        size = sum(size for _, size in pieces)
        (small if size < SMALL else large).append(pieces)
    return small, large


def _summed(segments: Sequence[Pieces]) -> list[tuple[str, int]]:
    sizes: dict[str, int] = {}
    for pieces in segments:
        for tag, size in pieces:
            sizes[kind_of(tag)] = sizes.get(kind_of(tag), 0) + size
    return [(tag, sizes[tag]) for tag in [*ORDER, "free"] if tag in sizes]


def _box(
    axes: Any, at: float, left: float, pieces: Pieces, height: float, hatch: str | None = None
) -> float:
    """One segment; returns its right end. Free pieces are white (hatched: over several small segments)."""
    begin = left
    for tag, size in pieces:
        width = size / GIB
        if tag == "free":
            axes.barh(
                at, width, left=left, height=height, color="white", hatch=hatch, ec="#999999", lw=0
            )
            if width > 0.22 and not hatch:
                words = f"free\n{size / MIB:,.0f}"
                axes.text(left + width / 2, at, words, ha="center", va="center", size=6.5)
        else:
            _, colour = KINDS.get(tag, OTHERS)
            axes.barh(at, width, left=left, height=height, color=colour, lw=0)
        left += width
    axes.barh(at, left - begin, left=begin, height=height, fill=False, ec=INK, lw=1.1)
    return left


def request_bar(axes: Any, at: float, nbytes: int, segments: Sequence[Pieces], words: str) -> None:
    """A request, dotted, above a card: where the longest free piece begins, or behind the segments if there is more."""
    card = axes.get_xlim()[1]
    width = nbytes / GIB
    left = min(start_of_longest(segments, card), max(card - width, 0))
    axes.barh(at, width, left=left, height=0.16, fill=False, ec=INK, lw=1.1, ls=":")
    if left + width < 0.7 * card:
        axes.text(left + width + 0.03, at, words, va="center", size=7)
    else:
        axes.text(left - 0.03, at, words, va="center", ha="right", size=7)


def _frame(axes: Any, card: int, low: float, high: float) -> None:
    axes.set(xlim=(-0.01, card / GIB + 0.01), ylim=(low, high), yticks=[])
    axes.set_xlabel("GiB of the card", fontsize=7)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right", "left"]].set_visible(False)


def key(axes: Any, where: tuple[float, float]) -> None:
    """What the colours mean."""
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=words) for words, colour in [*KINDS.values(), OTHERS]]
    patches.append(Patch(fc="white", ec="#999999", hatch="////", label="free, in small segments"))
    patches.append(Patch(fc=NOT_RESERVED, ec=INK, lw=0.6, ls=":", label="not reserved"))
    axes.legend(
        handles=patches, ncols=len(patches), fontsize=6.3, frameon=False, loc="lower left", bbox_to_anchor=where,
        handlelength=1, columnspacing=0.8, borderpad=0,
    )  # fmt: skip


def start_of_longest(segments: Sequence[Pieces], card_gib: float) -> float:
    """Where the longest free piece of a large segment begins in the strip, GiB; or what is not reserved, if that is longer."""
    small, large = by_size(segments)
    longest, start = 0, 0
    left = sum(size for pieces in small for _, size in pieces)
    for pieces in large:
        for tag, size in pieces:
            if tag == "free" and size > longest:
                longest, start = size, left
            left += size
    if card_gib * GIB - left > longest:
        start = left
    return start / GIB


def moment(axes: Any, run: Run, call: int, card_gib: float, wanted: int, asked: int) -> None:
    """What lies on the card at this call; until the wanted call, what that will ask for stands above."""
    card, shown = int(card_gib * GIB), moments(run)
    _frame(axes, card, -0.32, 0.98)
    if not shown:
        axes.text(0.1, 0.3, f"this process did not start: {run.outcome.message[:90]}", size=8)
        return
    at = max((one for one in shown if one <= call), default=min(shown))
    seen = shown[at]
    strip(axes, 0, seen["segments"], card)
    if call <= wanted:
        words = f"{asked / MIB:,.0f} MiB: what call {wanted:,} asks for"
        request_bar(axes, 0.42, asked, seen["segments"], words)
    ended = call > at  # every call of the slider is watched, up to the run's end
    state = f"the run has ended, at call {at:,}" if ended else seen["phase"]
    tensors = sum(size for pieces in seen["segments"] for tag, size in pieces if tag != "free")
    reserved = sum(size for pieces in seen["segments"] for _, size in pieces)
    text = f"{state}:  in tensors {format_size(tensors)}, reserved {format_size(reserved)}"
    text += f", longest free piece {longest_free(seen['segments']) / MIB:,.0f} MiB"
    axes.text(0, 0.62, text, size=7.5, va="center")
    key(axes, (0.0, 0.86))


def cards(
    rows: Sequence[tuple[str, int, Sequence[Pieces], int, bool]],
    card_gib: float,
    title: str,
    below: str,
) -> None:
    """Several runs, each at a moment: (name, the call, the segments, bytes asked, whether it is served).

    below   which moment that is, a line under the title
    """
    import matplotlib.pyplot as plt

    card = int(card_gib * GIB)
    figure, axes = plt.subplots(figsize=(8.6, 0.95 * len(rows) + 0.95), layout="constrained")
    _frame(axes, card, -0.4, len(rows) * 1.1 - 0.25)
    for place, (name, call, segments, asked, is_served) in enumerate(rows):
        at = (len(rows) - 1 - place) * 1.1
        strip(axes, at, segments, card)
        words = f"{asked / MIB:,.0f} MiB, call {call:,}"
        if is_served:  # it lies there, so no bar
            name = f"{name}: {words}, served"
        else:
            request_bar(axes, at + 0.38, asked, segments, f"{words}: refused")
        axes.text(0, at + 0.56, name, size=8, weight="bold", va="center")
    key(axes, (0.0, 1.0))
    figure.suptitle(title, fontsize=10, x=0.01, ha="left", weight="bold")
    axes.set_title(below, fontsize=8, loc="left", x=0.0, y=1.04)
    plt.show()


def who_is_served(
    axes: Any,
    calls: Calls,
    gib: float,
    served: Callable[[str, float, bool, str], str],
    card_gib: float,
) -> None:
    """The card after round 1 in four states, a request above each, and who is served."""
    _frame(axes, int(card_gib * GIB), -0.35, 4.65)
    key(axes, (0.0, 0.97))
    states = {
        "default": (3.45, False, ""),
        "default, after empty_cache": (2.3, True, ""),
        "expandable segments": (1.15, False, ON),
        "expandable segments, after empty_cache": (0.0, True, ON),
    }
    for name, (at, empty_first, settings) in states.items():
        card = card_after_round_1(calls, card_gib, settings)
        if empty_first:
            card.empty_cache()
        segments = segments_of(card)
        strip(axes, at, segments, card.total_memory)
        request_bar(axes, at + 0.36, int(gib * GIB), segments, "")
        ends = []
        for by in ("another program", "PyTorch"):
            ends.append(f"{by} is {served(by, gib, empty_first, settings)}")
        axes.text(0, at + 0.6, f"{gib:.2f} GiB, {name}:  {', '.join(ends)}", size=8, va="center")
