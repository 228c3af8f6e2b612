"""Whose memory is it? Read the numbers of an out-of-memory message and apply one rule to them.

    print(owner(error))      # an exception or a text: of torch 1 or 2, or of the simulator

PyTorch counts what it allocated, and what it reserved and did not allocate. The driver counts what is free. What is
missing from the sum is somebody else's: `others = total - free - allocated - unallocated`. The rule, in this order:

    another owner                   others, less a CUDA context, are over a tenth of the device and more than the
                                    request is short of
    fragments                       tried <= free + unallocated: there is room, in pieces
    references, or simply too big   else: live tensors fill the device
    cannot be told                  the message is cut short

Under a memory fraction ("6.00 GiB allowed") only the rest of that counts as free. The processes that a message lists
are not believed: in a container they have other numbers, or 0 bytes each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from labkit.common import format_size

CONTEXT = 512 << 20  # bytes: what a CUDA context takes, about

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MESSAGE = re.compile(r"out of memory\. Tried to allocate(?:(?!out of memory).)*")
# What stands around each number: in torch 2.1 and later ("capacty" in 2.0 and 2.1), and before.
_WORDS = {
    "tried": ["Tried to allocate SIZE"],
    "total": ["total capaci?ty of SIZE", "SIZE total capacity"],
    "free": ["of which SIZE", "SIZE free;"],
    "allowed": ["SIZE allowed;"],
    "allocated": ["SIZE is allocated by PyTorch", "SIZE already allocated"],
    "unallocated": ["SIZE is reserved by PyTorch but unallocated", "SIZE cached"],
    "reserved": ["SIZE reserved in total by PyTorch"],
}


@dataclass(frozen=True)
class Refusal:
    """What an out-of-memory message says, in bytes, and whose memory it is. None: the message is cut short there."""

    tried: int
    total: int | None
    free: int | None
    allocated: int | None
    unallocated: int | None  # reserved by PyTorch, and in no tensor
    others: int | None  # on the device, and not in this allocator
    verdict: str
    why: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.why}"


def owner(message: object) -> Refusal:
    """Whose memory was in the way of a request: `message` is an exception, or a text with its words; the first counts.

    Raises: ValueError names what is no out-of-memory message.
    Source: the words of `DeviceCachingAllocator::malloc` in c10/cuda/CUDACachingAllocator.cpp.
    """
    said = _sizes(" ".join(str(message).split()))
    if "tried" not in said:
        raise ValueError(
            f"owner: {str(message)[:80]!r} is no message of an allocator that ran out; "
            "expected '... out of memory. Tried to allocate 2.00 GiB ...'"
        )
    names = ("tried", "total", "free", "allocated", "unallocated")
    numbers: dict[str, Any] = {name: said.get(name) for name in names}
    if missing := ", ".join(name for name in names if name not in said):
        why = f"the message is cut short and does not say: {missing}"
        return Refusal(**numbers, others=None, verdict="cannot be told", why=why)
    others = max(said["total"] - said["free"] - said["allocated"] - said["unallocated"], 0)
    verdict, why = _rule(said, others - CONTEXT)
    return Refusal(**numbers, others=others, verdict=verdict, why=why)


def _rule(said: dict[str, int], foreign: int) -> tuple[str, str]:
    """The verdict, and why. `foreign`: bytes of others, less the CUDA context."""
    size, allocated = format_size, said["allocated"]
    allowed = max(said.get("allowed", said["total"]) - allocated - said["unallocated"], 0)
    rest = min(said["free"], allowed) + said["unallocated"]
    short = said["tried"] - said["free"]
    if 0 < short < foreign and said["total"] / 10 < foreign:
        whose = f"{size(foreign)} of {size(said['total'])} are somebody else's, and the request is {size(short)} short"
        return "another owner", f"{whose}: another process, NCCL, a CUDA context, graph pools"
    if said["tried"] <= rest:
        return "fragments", f"{size(rest)} are free or reserved and unallocated: enough, but in pieces"
    lack = f"what is left, {size(rest)}, is {size(said['tried'] - rest)} short"
    return "references, or simply too big", f"{size(allocated)} are in tensors; {lack}"


def _sizes(text: str) -> dict[str, Any]:
    """The numbers of the first message in a text, in bytes, by the names of `_WORDS`."""
    found: dict[str, Any] = {}
    message = _MESSAGE.search(text)
    for name, wordings in _WORDS.items():
        pattern = "|".join(wordings).replace("SIZE", r"([\d.]+) (bytes|[KMG]iB)")
        size = re.search(pattern, message[0] if message else "")
        if size:
            amount, unit = filter(None, size.groups())
            found[name] = round(float(amount) * _UNITS[unit])
    if "reserved" in found and "allocated" in found:
        found["unallocated"] = max(found["reserved"] - found["allocated"], 0)
    return found
