"""The last exercise of a page: cases that nobody has seen, in an order of the seed's, and how many the reader names.

Shared by the pages; what is in a case is a page's own business.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from labkit import checks

Log = Mapping[str, Any]


def shuffled(logs: Mapping[str, Log], seed: int) -> list[tuple[str, Log]]:
    """Logs by name, "cause" or "cause 2" -> (cause, log) pairs in an order that the seed decides."""
    names = sorted(logs)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).tolist()
    return [(names[place].rstrip("0123456789").strip(), logs[names[place]]) for place in order]


def judge(
    diagnosis: Callable[[Any], str], logs: Sequence[tuple[str, Any]], what: str = "Run"
) -> checks.Report:
    """How many of the unseen logs the reader's function names; the hint has the first that it does not."""
    faults = [fault_of(diagnosis(copy.deepcopy(log)), cause) for cause, log in logs]
    return report_of(faults, "my_diagnosis", "names the unseen logs", what)


def fault_of(answer: Any, cause: str) -> str:
    """What is wrong with the name of a cause; empty where nothing is."""
    if answer == cause:
        return ""
    return f"it says {answer!r}, and it was {cause!r}."


def report_of(faults: Sequence[str], exercise: str, claim: str, what: str) -> checks.Report:
    """What is wrong with each answer, empty where nothing is -> how many are right; the hint has the first that is not.

    what   a case's name in the hint, before its number
    """
    hint = ""
    right = 0
    for number, fault in enumerate(faults, 1):
        if not fault:
            right += 1
        elif not hint:
            hint = f"{what} {number}: {fault}"
    counted = {"right": f"{right} of {len(faults)}"}
    return checks.Report(exercise, claim, right == len(faults), counted, hint)
