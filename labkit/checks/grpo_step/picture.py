"""The tokens of a report as a picture: a row for each completion, a cell for each token. Text
only, SVG.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from .probe import EOS


class TokenWeight(NamedTuple):
    """d loss / d log-prob of one token: as found, and as the published form has it."""

    row: int
    token: int
    id: int
    counts: bool  # inside the completion mask
    found: float
    expected: float


CELL, LABEL, TOP = 64, 58, 26
UP, DOWN = "#2f8f5b", "#c0504d"  # the token's log-prob rises with a step, or falls


def length_of(tokens: Sequence[TokenWeight]) -> float:
    """How many times as long the weights are as expected: what most tokens say."""
    both = [one for one in tokens if one.found and one.expected]
    ratios = sorted(one.found / one.expected for one in both)
    if not ratios:
        return 1.0
    return ratios[len(ratios) // 2]


def apart(one: TokenWeight, length: float, largest: float) -> bool:
    return abs(one.found - length * one.expected) > 0.01 * largest


def svg(tokens: Sequence[TokenWeight], says: str) -> str:
    """Each cell: the weight found, times 1,000; below it the expected one where the two differ."""
    largest = max(
        [abs(one.found) for one in tokens] + [abs(one.expected) for one in tokens] + [1e-12]
    )
    length = length_of(tokens)
    rows = 1 + max((one.row for one in tokens), default=0)
    columns = 1 + max((one.token for one in tokens), default=0)
    width, height = LABEL + columns * CELL + 8, TOP + rows * 34 + 56
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11" fill="currentColor" role="img" '
        f'aria-label="{escape(says)}">'
    ]
    for column in range(columns):
        x = LABEL + column * CELL + CELL / 2
        parts.append(f'<text x="{x}" y="16" text-anchor="middle">token {column + 1}</text>')
    for one in tokens:
        parts += _cell(one, length, largest)
    for row in range(rows):
        parts.append(f'<text x="4" y="{TOP + row * 34 + 20}">row {row + 1}</text>')
    foot = TOP + rows * 34 + 16
    legend = [
        f'd loss / d log-prob × 1000: <tspan fill="{UP}">green</tspan> raises the token, '
        f'<tspan fill="{DOWN}">red</tspan> lowers it',
        f"framed: not as published (the weight below){_longer(length)}",
        "dashed: behind the end",
    ]
    for line, text in enumerate(legend):
        parts.append(f'<text x="4" y="{foot + 16 * line}">{text}</text>')
    parts.append("</svg>")
    return "".join(parts)


def _longer(length: float) -> str:
    if abs(length - 1) < 0.01:
        return ""
    return f", all else {length:.3g} times as long"


def _cell(one: TokenWeight, length: float, largest: float) -> list[str]:
    x, y = LABEL + one.token * CELL, TOP + one.row * 34
    colour = DOWN
    if one.found < 0:  # a step goes down the gradient
        colour = UP
    strength = 0.65 * min(abs(one.found) / largest, 1) ** 0.5  # small ones show, too
    odd = apart(one, length, largest)
    frame = 'stroke="none"'
    if odd:
        frame = f'stroke="{DOWN}" stroke-width="2.5"'
    elif not one.counts:
        frame = 'stroke="currentColor" stroke-opacity="0.35" stroke-dasharray="3 3"'
    cell = (
        f'<rect x="{x + 2}" y="{y + 2}" width="{CELL - 4}" height="30" rx="3" fill="{colour}" '
        f'fill-opacity="{strength:.2f}" {frame}/>'
    )
    found, expected = _thousandths(one.found), _thousandths(one.expected)
    place = f'<text x="{x + CELL / 2}" text-anchor="middle"'
    if one.id == EOS:
        cell += f'<text x="{x + 6}" y="{y + 12}" font-size="8" opacity="0.6">end</text>'
    if not odd:
        return [cell, f'{place} y="{y + 21}">{found}</text>']
    return [
        cell,
        f'{place} y="{y + 15}" font-weight="bold">{found}</text>',
        f'{place} y="{y + 28}" font-size="10" opacity="0.75">({expected})</text>',
    ]


def _thousandths(weight: float) -> str:
    value = 1000 * weight
    if abs(value) < 0.05:
        return "0"
    return f"{value:.1f}"
