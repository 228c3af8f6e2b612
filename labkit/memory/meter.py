"""Read the memory of a CUDA device, and limit it.

    meter().read()             a Reading: allocated, reserved, free, total, source, peaks, others
    with limit(8 * 2**30):     make a big card fail like a small one

A reading costs microseconds (allocator counters and `cudaMemGetInfo`); it does not synchronise the device. This file
names nobody's memory: an out-of-memory message does, see `owner`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.common import format_size


@dataclass(frozen=True)
class Reading:
    """Bytes. `reserved - allocated` is the cache and the holes: reserved by PyTorch, used by nobody."""

    allocated: int  # in live tensors
    reserved: int  # held by the allocator
    free: int  # what the device still has
    total: int
    source: str  # "cuda:0", "simulated", or "cpu": nothing to read
    peak_allocated: int  # since the last `reset_peak`
    others: int = 0  # on the device, but not this allocator's: other processes, CUDA contexts, NCCL, ...

    def __str__(self) -> str:
        others = f", {format_size(self.others)} is somebody else's" if self.others else ""
        return (
            f"{self.source}: {format_size(self.allocated)} allocated, {format_size(self.reserved)} reserved; "
            f"{format_size(self.free)} of {format_size(self.total)} free{others}"
        )


class Meter:
    """What reads one device. This one is a CPU's, which has no allocator to read: all of its numbers are 0."""

    def read(self) -> Reading:
        return Reading(0, 0, 0, 0, "cpu", 0)

    def reset_peak(self) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def set_fraction(self, share: float) -> float:
        """Set the share of the device that may be reserved, and return the one before."""
        return 1.0

    def host(self) -> contextlib.AbstractContextManager[None]:
        """Within it, tensors are made in the host's memory and not on the device."""
        return contextlib.nullcontext()


# Simulated cards that answer for the device while they are at work, the innermost last. A lesson's card enters itself.
stand_ins: list[Meter] = []


def meter(device: Any = "auto") -> Meter:
    """The meter of a device. "auto": the simulated card that is at work, else CUDA where there is one.

    Raises: ValueError names a device that is not here.
    """
    kind = str(device).partition(":")[0]
    if stand_ins and kind in ("auto", "cpu"):
        return stand_ins[-1]
    import torch

    if kind == "cuda" or (kind == "auto" and torch.cuda.is_available()):
        return CudaMeter("cuda" if kind == "auto" else device)
    if kind in ("auto", "cpu"):
        return Meter()
    raise ValueError(f"meter: device {str(device)!r}, expected auto, cpu, cuda or cuda:N")


@contextlib.contextmanager
def limit(nbytes: int, device: Any = "auto") -> Iterator[None]:
    """Within the block PyTorch reserves at most so many bytes of the device: `with limit(8 * 2**30):`.

    What is reserved already stays reserved: `torch.cuda.empty_cache()` first, or start early. On a CUDA device this is
    `torch.cuda.set_per_process_memory_fraction`; the fraction before is restored (1.0 on torch that cannot tell it).
    Raises: ValueError for more than the device has.
    """
    card = meter(device)
    total = card.read().total
    if type(nbytes) is not int or not 1 <= nbytes <= total:
        here = f"the device's {total}" if total else "0: a CPU has no memory that could be limited so"
        raise ValueError(f"limit: expected a whole number of bytes, 1 to {here}, got {nbytes!r}")
    before = card.set_fraction(nbytes / total)
    try:
        yield
    finally:
        card.set_fraction(before)


class CudaMeter(Meter):
    """Reads PyTorch's allocator and the driver. ValueError where torch sees no such device."""

    def __init__(self, device: Any):
        import torch

        if not torch.cuda.is_available():
            raise ValueError(f"meter: torch {torch.__version__} sees no CUDA device here; use device='cpu' or 'auto'")
        self.cuda, chosen = torch.cuda, torch.device(device)
        self.index = self.cuda.current_device() if chosen.index is None else chosen.index

    def set_fraction(self, share: float) -> float:
        get = getattr(self.cuda.memory, "get_per_process_memory_fraction", lambda index: 1.0)  # torch 2.6 lacks it
        before = get(self.index)
        self.cuda.set_per_process_memory_fraction(share, self.index)
        return before

    def read(self) -> Reading:
        free, total = self.cuda.mem_get_info(self.index)
        allocated, reserved = self.cuda.memory_allocated(self.index), self.cuda.memory_reserved(self.index)
        peak, others = self.cuda.max_memory_allocated(self.index), max(total - free - reserved, 0)
        return Reading(allocated, reserved, free, total, f"cuda:{self.index}", peak, others)

    def reset_peak(self) -> None:
        self.cuda.reset_peak_memory_stats(self.index)

    def empty_cache(self) -> None:
        with self.cuda.device(self.index):
            self.cuda.empty_cache()
