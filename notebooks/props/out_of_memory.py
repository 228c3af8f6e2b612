"""Out-of-memory messages of public runs, carried as figures, and how rules read them.

`out_of_memory.jsonl` has a case on each line: the thread, the figures as it gives them, the form of the message, and the
cause that the thread gives. The message is rendered anew, in the words of that version's
c10/cuda/CUDACachingAllocator.cpp, as far as the thread quotes it. `scripts/out_of_memory.py` writes
docs/out-of-memory.md from them, and page 15 shows them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from labkit import memory

CASES = Path(__file__).with_name("out_of_memory.jsonl")
Case = Mapping[str, Any]
# A message's parts, and the figure without which a part is not there.
OLD = [
    ("Tried to allocate {tried} (GPU 0; {total} total capacity; ", "total"),
    ("{allocated} already allocated; {free} free; ", "allocated"),
    ("{unallocated} cached)", "unallocated"),
    ("{reserved} reserved in total by PyTorch)", "reserved"),
]
NEW = [
    ("Tried to allocate {tried}. ", "tried"),
    ("GPU 0 has a total capacity of {total}", "total"),
    (" of which {free} is free. ", "free"),
    ("{processes}", "listed"),
    ("Including non-PyTorch memory, this process has {own} memory in use. ", "own"),
    ("Of the allocated memory {allocated} is allocated by PyTorch", "allocated"),
    (", with {pools} allocated in private pools (e.g., CUDA Graphs)", "pools"),
    (", and {unallocated} is reserved by PyTorch but unallocated. ", "unallocated"),
    (
        "If reserved but unallocated memory is large try setting {setting} to avoid fragmentation.",
        "unallocated",
    ),
]
RAY = "Task was killed due to the node running low on memory."
WORDS = {
    "Ray": f"{RAY}\nMemory on the node was {{used}} / {{node}} ({{share}}), "
    "which exceeds the memory usage threshold of {threshold}.",
    "Ray, its first sentence": RAY,
    "Ray's list of causes": "The process is killed by SIGKILL by OOM killer due to high memory usage.",
    "Ray, its advice": "set the environment variable `RAY_memory_usage_threshold` when starting Ray",
    "the kernel": "python3 invoked oom-killer: gfp_mask=0x1100cca, order=0, oom_score_adj=0",
    "an exit code": "exits with return code = -9",
    "an engine's pool": "CUDA Error: out of memory at /csrc/cumem_allocator.cpp:139",
    "an engine's share": "Free memory on device ({free}/{total} GiB) on startup is less than desired "
    "GPU memory utilization ({share}, {wanted} GiB).",
    "no message": "{told}",
}
EXPANDABLE = "=expandable_segments:True"
SETTINGS = {
    "torch 1.0 to 1.3": "",
    "torch 1.4 to 2.0": "",
    "torch 2.1": "max_split_size_mb",
    "torch 2.2 to 2.8": f"PYTORCH_CUDA_ALLOC_CONF{EXPANDABLE}",
    "torch 2.9 and later": f"PYTORCH_ALLOC_CONF{EXPANDABLE}",
}
FORMS = [*SETTINGS, *WORDS]
TUNED_ON = {  # the sets that the limits of today's rules were chosen on
    "carried": "met first",
    "fresh": "looked up later",
    "last": "looked up last",
}
CAUSES = {"references, or simply too big": "tensors"}  # by one message alone
NOT_NAMED = (memory.CANNOT_TELL, "not read")


def cases(*sets: str) -> list[dict[str, Any]]:
    """The cases of these sets, or all."""
    every = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    return [case for case in every if case["set"] in sets or not sets]


def message(case: Case) -> str:
    """The case's figures in the words of its form."""
    form = case["form"]
    if form in WORDS:
        return WORDS[form].format(**case)
    processes = [
        f"Process {pid} has {size} memory in use. " for pid, size in case.get("listed", [])
    ]
    figures = {**case, "processes": "".join(processes), "setting": SETTINGS[form]}
    parts = NEW if SETTINGS[form] else OLD
    text = "CUDA out of memory. "
    for part, figure in parts:
        if figure in case:
            text += part.format(**figures)
    if form == "torch 2.1":
        text = text.replace("capacity", "capacty")
    return text.rstrip()


def by_owner(text: str) -> str:
    """What `labkit.memory.owner` makes of a text: four names, "cannot be told", or "not read"."""
    try:
        verdict = memory.owner(text).verdict
    except ValueError:
        return "not read"
    return CAUSES.get(verdict, verdict)


def named(case: Case) -> str:
    return by_owner(message(case))


def count(cases: Iterable[Case], rule: Callable[[str], str] = by_owner) -> Counter[str]:
    """How many are "right" and "wrong" as their threads have it, and how many are "not named"."""
    counted: Counter[str] = Counter(right=0, wrong=0)
    counted["not named"] = 0
    for case in cases:
        answer = rule(message(case))
        if answer in NOT_NAMED:
            counted["not named"] += 1
        elif answer == case["cause"]:
            counted["right"] += 1
        else:
            counted["wrong"] += 1
    return counted


def always_tensors(text: str) -> str:
    """The yardstick: the answer that is most often right on the messages that the rules were tuned on."""
    return "tensors"


def best_constant(cases: Iterable[Case]) -> int:
    """How many are right by giving one and the same answer every time, whichever answer is best for these."""
    return max(Counter(case["cause"] for case in cases).values())
