"""Does each process of a launch get its own part of the rows: none lost, none left to two, as many for each?

A part that is one batch longer than the others makes its process wait for a collective call that nobody else makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from .report import PASS, CannotJudge, Report, Verdict, attempt, fail, judged

CLAIM = "each row to one process, as many rows for each"
# (rows, processes). Even ones first; in the last ones more has to be filled up than there are rows.
CASES = [(16, 2), (12, 3), (8, 8), (7, 1), (13, 4), (5, 2), (3, 4), (1, 2), (1, 4), (3, 7)]


def rows_split(split: Callable[[list[Any], int, int], Sequence[Any]]) -> Report:
    """Judge `split(rows, rank, world)`: the rows of process `rank` of `world`, as a list.

    Every row is in some part, all parts are equally long, and a row stands twice only where the last round has to be
    filled up to one row for each process. Any order will do. `rows` is a list of texts, which stays as it is.
    """

    def judge(evidence: dict[str, Any]) -> Verdict:
        for count, world in CASES:
            rows = [f"row {n}" for n in range(count)]
            parts = [_part(split, rows, rank, world) for rank in range(world)]
            verdict = _judge(rows, parts, evidence)
            if verdict is not None:
                return verdict
        return PASS

    return judged("rows_split", CLAIM, split, judge)


def _judge(rows: list[str], parts: list[list[Any]], evidence: dict[str, Any]) -> Verdict | None:
    lengths = [len(part) for part in parts]
    owners = Counter(str(row) for part in parts for row in part)
    evidence |= {"rows": len(rows), "processes": len(parts), "rows of each": lengths}
    if not set(owners) <= set(rows):
        return fail("Some of what it returned is none of the rows: return rows, not indices.")
    if len(set(lengths)) > 1:
        return fail("Parts of unequal length: the longer one waits for ever. Fill up the shorter.")
    lost = len(rows) - len(owners)
    if lost:
        return fail("Rows are lost: the rest of the division, or a shuffle that differs between the processes.")
    fill = -len(rows) % len(parts)
    extra = sum(lengths) - len(rows) - fill
    if extra > 0:
        if all(Counter(part) == Counter(parts[0]) for part in parts):
            return fail("Every process sees all of it: not split.")
        return fail("Rows are seen more often than needed.")
    return None


def _part(split: Callable[..., Sequence[Any]], rows: list[str], rank: int, world: int) -> list[Any]:
    lent = list(rows)
    part = attempt(split, lent, rank, world)
    if isinstance(part, (str, set)) or not hasattr(part, "__iter__"):
        raise CannotJudge("Expected a list of rows.", returned=type(part).__name__)
    if lent != rows:
        raise CannotJudge("The list of rows was changed in place: in a process all of it is shared.", rows=len(rows))
    return list(part)
