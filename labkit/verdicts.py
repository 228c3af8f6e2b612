"""One line a claim: printed when it holds, raised when it does not, skipped where it cannot be tried.

A verdict line is what a lesson asserts, so it is compared by nbval and collected by `labkit course`.
Keep device, time and version out of its text. This file draws nothing and knows no lesson.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LINE = re.compile(r"^(PASS|FAIL|SKIP) {2}(.+?)(?: \| (.*))?$", re.MULTILINE)


class VerdictError(AssertionError):
    """A lesson's claim did not hold. Fields: `claim`, `seen`."""

    def __init__(self, claim: str, seen: str):
        super().__init__(claim, seen)
        self.claim, self.seen = claim, seen

    def __str__(self) -> str:
        return f"FAIL  {self.claim} | {self.seen}" if self.seen else f"FAIL  {self.claim}"


def verdict(claim: str, condition: object, seen: object = "") -> None:
    """Print `PASS  claim | seen` when `condition` is true; raise `VerdictError` otherwise.

    `condition` may be a bool, or anything with a truth value (an `Outcome`, a check's `Report`).
    `seen` is the evidence, in words that are the same on every machine.
    """
    if not isinstance(claim, str) or not claim.strip() or "\n" in claim:
        raise ValueError(f"verdict: the claim must be one non-empty line, got {claim!r}")
    text = " ".join(str(seen).split())
    if not bool(condition):
        raise VerdictError(claim, text)
    print(f"PASS  {claim} | {text}" if text else f"PASS  {claim}")


def skip(claims: Sequence[str], why: str) -> None:
    """Print `SKIP  claim | why` for claims that cannot be tried here, for want of a package or the like.

    `labkit course` says what was skipped and why, and does not fail for it. A committed lesson has no such line.
    """
    for claim in claims:
        print(f"SKIP  {claim} | {why}")


def parse(text: str) -> list[dict[str, str]]:
    """The verdict lines in a cell's output, as `{"result", "claim", "seen"}`."""
    return [{"result": m[1].lower(), "claim": m[2], "seen": m[3] or ""} for m in _LINE.finditer(text)]
