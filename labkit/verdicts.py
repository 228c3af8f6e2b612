"""One line a claim: what was measured, the relation, the limit. Printed when it holds, raised when it does not.

    verdict("the first objective's KL stands still", kl, "<", fix_kl / 10, "nats")
    PASS  the first objective's KL stands still | 0.00033 < 0.0064 nats

A verdict line is what a lesson asserts, so it is compared by nbval and collected by `labkit course`.
Keep device, time and version out of its text. This file draws nothing and knows no lesson.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from .common import number

RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}
Interval = tuple[float, float]
Value = float | str | Interval  # a number, a word, or for "in" the two ends of an interval

_LINE = re.compile(r"^(PASS|FAIL) {2}(.+?)(?: \| (.*))?$", re.MULTILINE)
_NUMBER = r"-?(?:[\d.]+(?:e-?\d+)?|inf)|NaN"
_COMPARED = re.compile(rf"(.+?) (<=|>=|==|<|>|in) (\[.*?\]|(?:{_NUMBER})(?= |$)|.+?)(?: (.+))?")


class VerdictError(AssertionError):
    """A lesson's claim did not hold. Fields: `claim`, and `seen`: "0.02 < 0.01 nats"."""

    def __init__(self, claim: str, seen: str):
        super().__init__(claim, seen)
        self.claim, self.seen = claim, seen

    def __str__(self) -> str:
        return f"FAIL  {self.claim} | {self.seen}" if self.seen else f"FAIL  {self.claim}"

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this: the line says all, and a traceback through labkit would hide it
        return [str(self)]


def verdict(claim: str, measured: Any, relation: str, limit: Any, unit: str = "") -> None:
    """Print `PASS  claim | measured relation limit unit` when the relation holds; raise `VerdictError` otherwise.

    claim      one line that says what the relation says
    measured   a number, a tensor of one number, or for "==" a word
    relation   "<", "<=", "==", ">=", ">", or "in": from the low end of the limit to the high one, both included
    limit      as `measured`; for "in" a pair (low, high)
    unit       what both are counted in: "nats", "MiB", "of 3 seeds"

    NaN fails every relation. Raises: VerdictError; ValueError names what is no number and no word.
    """
    if not isinstance(claim, str) or not claim.strip() or "\n" in claim:
        raise ValueError(f"verdict: the claim must be one non-empty line, got {claim!r}")
    left, right = plain("measured", measured), plain("limit", limit)
    text = compared(left, relation, right, unit)
    if not holds(left, relation, right):
        raise VerdictError(claim, text)
    print(f"PASS  {claim} | {text}")


def holds(measured: Any, relation: str, limit: Any) -> bool:
    """Whether the relation holds. Raises: ValueError for an unknown one, or for words with another than "=="."""
    if relation == "in":
        low, high = limit
        return low <= measured <= high
    if relation not in RELATIONS:
        raise ValueError(f"verdict: relation {relation!r}: expected one of {', '.join(RELATIONS)} or in")
    if relation != "==" and (isinstance(measured, str) or isinstance(limit, str)):
        raise ValueError(f'verdict: {measured!r} {relation} {limit!r}: words can only be compared with "=="')
    return RELATIONS[relation](measured, limit)


def compared(measured: Value, relation: str, limit: Value, unit: str = "") -> str:
    """`0.00033 < 0.0064 nats`. Numbers that differ are written with so many digits that they differ on paper too."""
    left, right = _written(measured), _written(limit)
    digits = 3
    while left == right and measured != limit and digits < 17:
        digits += 1
        left, right = _written(measured, digits), _written(limit, digits)
    return " ".join(f"{left} {relation} {right} {unit}".split())


def plain(name: str, value: Any) -> Any:
    """`value` as a plain number or word, or as a pair of two numbers. ValueError names the operand."""
    if isinstance(value, tuple):
        return tuple(plain(name, end) for end in value)
    if hasattr(value, "item"):  # a tensor, or a number of numpy
        value = value.item()
    if not isinstance(value, (bool, int, float, str)):
        raise ValueError(f"verdict: {name} = {value!r} is a {type(value).__name__}: expected a number or a word")
    return value


def _written(value: Value, digits: int = 3) -> str:
    if isinstance(value, tuple):
        return f"[{_written(value[0], digits)}, {_written(value[1], digits)}]"
    if isinstance(value, (bool, str)):
        return str(value)
    if isinstance(value, int) and abs(value) < 10**9:
        return str(value)  # a count is written whole
    small = 1e-4 <= abs(value) < 1e-3  # 0.00033, where a picture has 3.3e-4
    return f"{value:.{digits}g}" if small or digits > 3 else number(value)


def parse(text: str) -> list[dict[str, str]]:
    """The verdict lines in a cell's output: `{"result", "claim", "seen"}`.

    Where `seen` is a comparison, "measured", "relation", "limit" and "unit" stand there by themselves too.
    """
    rows = []
    for line in _LINE.finditer(text):
        row = {"result": line[1].lower(), "claim": line[2], "seen": line[3] or ""}
        if parts := _COMPARED.fullmatch(row["seen"]):
            row |= {"measured": parts[1], "relation": parts[2], "limit": parts[3], "unit": parts[4] or ""}
        rows.append(row)
    return rows
