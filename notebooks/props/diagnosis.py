"""The last exercise of a page: logs that nobody has seen, in an order of the seed's, and how many the reader names.

Shared by the pages; what is in a log is a page's own business.
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
) -> Any:
    """How many of the unseen logs the reader's function names; the hint has the first that it does not."""
    right, hint = 0, ""
    for number, (cause, log) in enumerate(logs, 1):
        answer = diagnosis(copy.deepcopy(log))
        right += answer == cause
        if answer != cause and not hint:
            hint = f"{what} {number}: it says {answer!r}, and it was {cause!r}."
    counted = {"right": f"{right} of {len(logs)}"}
    return checks.Report("my_diagnosis", "names the unseen logs", right == len(logs), counted, hint)
