"""Whose memory is it? Read the numbers of an out-of-memory message and apply one rule to them.

    print(owner(error))              # an exception or a text: of torch 1 or 2, or of the simulator
    print(owner(error, held))        # and what was allocated before each step: tells a leak from a run too big

PyTorch counts what it allocated, and what it reserved and did not allocate. The driver counts what is free. What is
missing from the sum is somebody else's: `others = total - free - allocated - unallocated`. The rule, in this order:

    another owner                   others, less a CUDA context, are over a tenth of the device and more than the
                                    request is short of
    fragments                       tried <= free + unallocated: there is room, in pieces. Unallocated is at least
                                    3 % of the device and 60 % of the request: less is crumbs, which every full card has
    references, or simply too big   else: live tensors fill the device
    cannot be told                  the message is cut short

One message cannot say more. With `held`, where the owner is not another one:

    a leak                          held has grown since step 2 by what the request was short of, or more
    fragments                       as above
    too big at once                 the first or second step was refused (AdamW's state comes in the first)
    a longer batch                  else: as many bytes were held as before, and this step asked for more

Under a memory fraction ("6.00 GiB allowed") that is the device, and only the rest of it is free. The processes that a
message lists are not believed: in a container they have other numbers, or 0 bytes each. The rule on real messages:
docs/out-of-memory.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from labkit.common import format_size

CONTEXT = 512 << 20  # bytes: what a CUDA context takes, about
CRUMBS = 0.03, 0.6  # unallocated below these shares, of the device and of the request, is no fragmentation
TENSORS = "references, or simply too big"

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = r"([\d.]+) (bytes|[KMG]iB)"
_MESSAGE = re.compile(r"out of memory\. Tried to allocate(?:(?!out of memory).)*")
# What stands around each number: in torch 2.1 and later ("capacty" in 2.0 and 2.1), and before.
_WORDINGS = {
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
    allowed: int | None = None  # under a memory fraction: bytes that it leaves this process
    listed: tuple[tuple[int, int], ...] = ()  # the number and the bytes of each process that the message lists

    def __str__(self) -> str:
        return f"{self.verdict}: {self.why}"

    @property
    def card(self) -> int | None:
        """Bytes of the device that this process may use: what a memory fraction allows, or all."""
        return self.allowed or self.total

    @property
    def listed_others(self) -> list[int]:
        """What the listed processes hold, less the one whose size is nearest to what this allocator has.

        In a message that is cut short the largest is as likely this process as any.
        """
        sizes = sorted(size for _, size in self.listed)
        ours = self.allocated
        if ours is None:
            return sizes[:-1]
        own = min(sizes, key=lambda size: abs(size - ours), default=None)
        return [size for size in sizes if size != own]


def owner(message: object, held: Sequence[int] | None = None) -> Refusal:
    """Whose memory was in the way of a request.

        message  an exception, or a text with its words; of several messages the first counts
        held     bytes allocated before each training step, the refused one included

    Raises: ValueError names what is no out-of-memory message.
    Source: the words of `DeviceCachingAllocator::malloc` in c10/cuda/CUDACachingAllocator.cpp.
    """
    sizes = _sizes(" ".join(str(message).split()))
    if "tried" not in sizes:
        raise ValueError(
            f"owner: {str(message)[:80]!r} is no message of an allocator that ran out; "
            "expected '... out of memory. Tried to allocate 2.00 GiB ...'"
        )
    names = ("tried", "total", "free", "allocated", "unallocated")
    numbers: dict[str, Any] = {name: sizes.get(name) for name in names}
    missing = ", ".join(name for name in names if name not in sizes)
    if missing:
        others, verdict, why = None, "cannot be told", f"the message is cut short and does not say: {missing}"
    else:
        others = max(sizes["total"] - sizes["free"] - sizes["allocated"] - sizes["unallocated"], 0)
        verdict, why = _rule(sizes, others - CONTEXT)
    rest = {"allowed": sizes.get("allowed"), "listed": sizes["listed"]}
    refusal = Refusal(**numbers, others=others, verdict=verdict, why=why, **rest)
    if held and verdict in ("fragments", TENSORS):
        return _with_history(refusal, list(held), sizes["tried"] - _room(sizes))
    return refusal


def _room(sizes: dict[str, int]) -> int:
    """Bytes that the allocator could still ask the device for."""
    allowed = max(sizes.get("allowed", sizes["total"]) - sizes["allocated"] - sizes["unallocated"], 0)
    return min(sizes["free"], allowed)


def _with_history(refusal: Refusal, held: list[int], short: int) -> Refusal:
    """The refusal of one step, read beside what was held before each. `short`: bytes that the device lacked."""
    growth = held[-1] - held[1] if len(held) > 2 else 0
    since = f"held before a step since step 2: {format_size(growth)} more"
    if growth >= max(short, 1):
        return replace(refusal, verdict="a leak", why=f"{since}, and the request was {format_size(short)} short")
    if refusal.verdict == "fragments":
        return refusal
    if len(held) <= 2:
        return replace(refusal, verdict="too big at once", why=f"step {len(held)} was refused; {refusal.why}")
    return replace(refusal, verdict="a longer batch", why=f"level before the steps, step {len(held)} asked for more")


def _rule(sizes: dict[str, int], foreign: int) -> tuple[str, str]:
    """The verdict, and why. `foreign`: bytes of others, less the CUDA context."""
    size, allocated = format_size, sizes["allocated"]
    rest = _room(sizes) + sizes["unallocated"]
    short = sizes["tried"] - sizes["free"]
    # Free by now and refused all the same: then somebody took it in between, unless a limit of one's own refused.
    raced = short <= 0 and "allowed" not in sizes
    if (raced or 0 < short < foreign) and sizes["total"] / 10 < foreign:
        whose = f"{size(foreign)} of {size(sizes['total'])} are somebody else's"
        lack = "more is free now than was asked for" if raced else f"the request is {size(short)} short"
        return "another owner", f"{whose}, and {lack}: another process, NCCL, a CUDA context, graph pools"
    of_device, of_request = CRUMBS
    pieces = sizes["unallocated"] >= max(of_device * sizes.get("allowed", sizes["total"]), of_request * sizes["tried"])
    if sizes["tried"] <= rest and pieces and allocated <= sizes["total"]:
        return "fragments", f"{size(rest)} are free or reserved and unallocated: enough, but in pieces"
    if sizes["tried"] <= rest:
        loose = f"the {size(sizes['unallocated'])} unallocated are too little to be the cause"
        return TENSORS, f"{size(allocated)} are in tensors; {loose}"
    lack = f"what is left, {size(rest)}, is {size(sizes['tried'] - rest)} short"
    return TENSORS, f"{size(allocated)} are in tensors; {lack}"


def _sizes(text: str) -> dict[str, Any]:
    """The numbers of the first message in a text, in bytes, by the names of `_WORDINGS`."""
    match = _MESSAGE.search(text)
    message = match[0] if match else ""
    sizes: dict[str, Any] = {}
    for name, wordings in _WORDINGS.items():
        size = re.search("|".join(wordings).replace("SIZE", _SIZE), message)
        if size:
            amount, unit = filter(None, size.groups())
            sizes[name] = round(float(amount) * _UNITS[unit])
    processes = re.findall(rf"Process (\d+) has {_SIZE}", message)
    sizes["listed"] = tuple((int(number), round(float(amount) * _UNITS[unit])) for number, amount, unit in processes)
    if "reserved" in sizes and "allocated" in sizes:
        sizes["unallocated"] = max(sizes["reserved"] - sizes["allocated"], 0)
    return sizes
