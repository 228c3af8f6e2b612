"""Lesson 05: what follows from one measured evaluation and one measured update. Nothing here runs or draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from props.lesson_05_card import CARD, GIB

LAST = 1000  # updates after which a run counts as one that never passes the card


def evaluations_before(step: int) -> int:
    """With an evaluation before updates 3, 5, 7 and so on."""
    return max(0, (step - 1) // 2)


def levels_of(left: int, first: Sequence[int], updates: int) -> list[int]:
    """Bytes held before each update, if an evaluation leaves so much.

    first  before updates 1 and 2: AdamW's state comes in update 1
    """
    levels = [first[0]]
    for step in range(2, updates + 1):
        levels.append(first[1] + evaluations_before(step) * left)
    return levels


def dies_in(left: int, base: int, need: int) -> int | None:
    """The update in which held + need passes the card, if an evaluation leaves so much; None: none of a thousand."""
    for step in range(1, LAST):
        if base + evaluations_before(step) * left + need > CARD:
            return step
    return None


def rows_of(
    measured: Mapping[str, Mapping[str, int]], ways: Mapping[str, Any], base: int, need: int
) -> list[dict[str, str]]:
    """A row for each way: what one evaluation leaves and takes, and where that leads. A way that did not return is named."""
    rows = []
    for name, way in ways.items():
        row = {"what is done": name}
        rows.append(row)
        if name not in measured:
            row["one evaluation leaves, GiB"] = "it did not return"
            continue
        left = measured[name]["left"]
        row["one evaluation leaves, GiB"] = f"{left / GIB:.2f}"
        row["its own peak, GiB"] = f"{measured[name]['peak'] / GIB:.2f}"
        fate = "never"
        if "kind" in way:
            fate = "not computed: its update differs"
        elif left > 2**20:
            dies = dies_in(left, base, need)
            fate = f"{evaluations_before(dies)}" if dies else "never"
        row["evaluations until held + need pass the card (arithmetic)"] = fate
    return rows
