"""Out-of-memory messages of public threads, carried as figures, and how `labkit.memory.owner` reads them.

`out_of_memory.jsonl` has a case on each line: the thread, the figures as it gives them, the form of the message, and the
cause that the thread gives. The message is rendered anew, in the words of that version's
c10/cuda/CUDACachingAllocator.cpp. `scripts/out_of_memory.py` writes docs/out-of-memory.md from them.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from labkit import memory

CASES = Path(__file__).with_name("out_of_memory.jsonl")
OLD = (
    "CUDA out of memory. Tried to allocate {tried} (GPU 0; {total} total capacity; "
    "{allocated} already allocated; {free} free; "
)
NEW = (
    "CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total {capacity} of {total} of which {free} is free. "
    "Of the allocated memory {allocated} is allocated by PyTorch, {pools}and {unallocated} is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting {setting} to avoid fragmentation."
)
EXPANDABLE = "=expandable_segments:True"
FORMS = {
    "torch 1.0 to 1.3": OLD + "{unallocated} cached)",
    "torch 1.4 to 2.0": OLD + "{reserved} reserved in total by PyTorch)",
    "torch 2.1": NEW.replace("{capacity}", "capacty").replace("{setting}", "max_split_size_mb"),
    "torch 2.2 to 2.8": NEW.replace("{capacity}", "capacity").replace(
        "{setting}", f"PYTORCH_CUDA_ALLOC_CONF{EXPANDABLE}"
    ),
    "torch 2.9 and later": NEW.replace("{capacity}", "capacity").replace(
        "{setting}", f"PYTORCH_ALLOC_CONF{EXPANDABLE}"
    ),
}
SETS = {
    "carried": "the limits were chosen on these",
    "fresh": "came later",
    "last": "came last, scored once",
}
CAUSES = {"references, or simply too big": "tensors"}  # by one message alone


def cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]


def message(case: dict[str, Any]) -> str:
    """The case's figures in the words of its form."""
    pools = case.get("pools", "")
    pools = f"with {pools} allocated in private pools (e.g., CUDA Graphs), " if pools else ""
    return FORMS[case["form"]].format(**case | {"pools": pools})


def named(case: dict[str, Any]) -> str:
    """What `owner` makes of its message: "tensors", "fragments" or "another owner"."""
    verdict = memory.owner(message(case)).verdict
    return CAUSES.get(verdict, verdict)


def score(cases: list[dict[str, Any]]) -> tuple[int, int]:
    """(as the thread says, all)."""
    return sum(named(case) == case["cause"] for case in cases), len(cases)


def best_constant(cases: list[dict[str, Any]]) -> int:
    """How many are right by giving one and the same answer every time, whichever answer is best for these."""
    return max(Counter(case["cause"] for case in cases).values())


def beside_a_constant(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row of a table for each set: those that the rule's limits were chosen on, and the two looked up afterwards."""
    rows = []
    for name, title in SETS.items():
        those = [case for case in cases if case["set"] == name]
        right, every = score(those)
        rows.append(
            {"messages": f"{every}: {title}", "read as the thread does": right}
            | {"the best single answer": best_constant(those)}
        )
    return rows
