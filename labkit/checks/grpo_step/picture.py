"""The tokens of a report as a picture: a row for each completion, a cell for each token. Text
only, SVG.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple


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


def apart(one: TokenWeight, largest: float) -> bool:
    return abs(one.found - one.expected) > 0.01 * largest


def svg(tokens: Sequence[TokenWeight], says: str) -> str:
    """Each cell: the weight found, times 1,000; below it the expected one where the two differ."""
    largest = max(
        [abs(one.found) for one in tokens] + [abs(one.expected) for one in tokens] + [1e-12]
    )
    rows = 1 + max((one.row for one in tokens), default=0)
    columns = 1 + max((one.token for one in tokens), default=0)
    width, height = LABEL + columns * CELL + 8, TOP + rows * 34 + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11" fill="currentColor" role="img" '
        f'aria-label="{escape(says)}">'
    ]
    for column in range(columns):
        x = LABEL + column * CELL + CELL / 2
        parts.append(f'<text x="{x}" y="16" text-anchor="middle">token {column + 1}</text>')
    for one in tokens:
        parts += _cell(one, largest)
    for row in range(rows):
        parts.append(f'<text x="4" y="{TOP + row * 34 + 20}">row {row + 1}</text>')
    foot = TOP + rows * 34 + 16
    parts.append(
        f'<text x="4" y="{foot}">d loss / d log-prob × 1000: <tspan fill="{UP}">green</tspan> '
        f'raises the token, <tspan fill="{DOWN}">red</tspan> lowers it</text>'
        f'<text x="4" y="{foot + 16}">framed: not as expected (below: the published weight); '
        "dashed: behind the end</text></svg>"
    )
    return "".join(parts)


def _cell(one: TokenWeight, largest: float) -> list[str]:
    x, y = LABEL + one.token * CELL, TOP + one.row * 34
    colour = DOWN
    if one.found < 0:  # a step goes down the gradient
        colour = UP
    strength = 0.65 * min(abs(one.found) / largest, 1)
    odd = apart(one, largest)
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
