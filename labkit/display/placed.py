"""Who sits on which GPU, drawn: `cards(plan)`, or several on one scale, `cards({"two cards": a, "three": b})`.

This file plans nothing. It reads the cards of a `labkit.placement.Plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.common import format_size

from .segments import BRIGHT, COLOURS, DPI, FRAME, PAPER, WIDTH
from .sheet import INK, Picture, Words, png, sheet, words

_OWN = {"policy weights": COLOURS["parameter"], "policy optimizer state": COLOURS["optimizer"]}
_OWN |= {"reference weights": "#8C8C8C", "reward weights": "#A65628"}
_ROW, _LINE, _LEFT = 0.36, 0.2, 0.09  # inches: a card, a line of text, the margin
_OVER = "#B00020"


def cards(plans: Any) -> Picture:
    """A bar per GPU, to scale: what is held there at its fullest moment. The frame is the card.

    plans   a `labkit.placement.Plan`, or a dict of title -> plan, drawn on one scale

    Returns a `Picture`, which Jupyter shows.
    Raises: ValueError names what is not a plan.
    """
    named = dict(plans) if isinstance(plans, Mapping) else {"": plans}
    if not named or not all(hasattr(plan, "cards") and hasattr(plan, "spare") for plan in named.values()):
        raise ValueError(f"cards: cannot read {plans!r:.60}; expected a labkit.placement.Plan, or title -> Plan")
    every = [card for plan in named.values() for card in plan.cards]
    scale = max(max(card.total, card.bytes) for card in every)
    kinds = list(dict.fromkeys(kind for card in every for kind in card.parts))
    legend = _legend(kinds)
    height = sum(_ROW * len(plan.cards) + _LINE * bool(name) for name, plan in named.items())
    height += 0.15 + 0.2 * len(legend)
    with sheet(WIDTH, height, DPI) as figure:
        top = height - 0.04
        for name, plan in named.items():
            if name:
                words(figure, _LEFT, top - 0.11, [(name, INK, "bold")], size=9)
                top -= _LINE
            for number, card in enumerate(plan.cards):
                _draw_card(figure, top, height, number, card, plan.spare, scale)
                top -= _ROW
        for at, parts in enumerate(reversed(legend)):
            words(figure, _LEFT, 0.13 + 0.2 * at, parts, size=7.6)
        small = png(figure)
    return Picture(small, f"<placement: {', '.join(f'{len(plan.cards)} cards' for plan in named.values())}>")


def _draw_card(figure: Any, top: float, height: float, number: int, card: Any, spare: float, scale: int) -> None:
    """A line of words, and under it the bar: its parts, the frame of the card, a mark where the spare begins."""
    over = card.share > 1 - spare
    used = f"{format_size(card.bytes, short=True)} of {format_size(card.total, short=True)}, {card.share:.0%}"
    said: list[Words] = [
        (f"GPU {number}", INK, "bold"),
        (str(card), INK, "normal"),
        (used, _OVER if over else INK, "bold"),
    ]
    words(figure, _LEFT, top - 0.08, said, size=7.6)
    axes = figure.add_axes((_LEFT / WIDTH, (top - _ROW + 0.03) / height, 1 - 2 * _LEFT / WIDTH, 0.16 / height))
    axes.set_xlim(-scale * 0.001, scale * 1.001)
    axes.set_ylim(-0.06, 1.06)
    axes.axis("off")
    axes.broken_barh([(0, card.total)], (0, 1), facecolors=PAPER)
    left = 0
    for kind, size in card.parts.items():
        axes.broken_barh([(left, size)], (0, 1), facecolors=_colour(kind), edgecolors="white", linewidths=0.4)
        text = format_size(size, short=True)
        if size / scale > 0.012 * len(text):
            ink = INK if _colour(kind) in BRIGHT else "white"
            axes.text(left + size / 2, 0.46, text, size=6.4, ha="center", va="center", color=ink)
        left += size
    axes.broken_barh([(0, card.total)], (0, 1), facecolors="none", edgecolors=_OVER if over else FRAME, linewidths=0.9)
    axes.plot([card.total * (1 - spare)] * 2, [0, 1], "--", color=_OVER if over else FRAME, linewidth=0.8)


def _colour(kind: str) -> str:
    return _OWN.get(kind) or COLOURS.get(kind, COLOURS["other"])


def _legend(kinds: list[str]) -> list[list[Words]]:
    """What each colour is, in lines of four; the dashed mark last."""
    signs: list[list[Words]] = [[("\u25a0", _colour(kind), "bold"), (kind, INK, "normal")] for kind in kinds]
    signs.append([("\u2506", FRAME, "bold"), ("kept free from here on", INK, "normal")])
    return [sum(signs[at : at + 4], []) for at in range(0, len(signs), 4)]
