"""One way to read memory, and to limit it: a CUDA device's allocator, or a simulated card.

    meter().read()             a Reading: allocated, reserved, free, total, source, peaks, others
    with limit(8 * 2**30):     make a big card fail like a small one

A reading costs microseconds on CUDA (allocator counters and `cudaMemGetInfo`); it does not synchronise the device.
This file names nobody's memory: an out-of-memory message does, see `owner`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.common import format_size

from .allocator import Allocator


@dataclass(frozen=True)
class Reading:
    """Bytes. `reserved - allocated` is the cache and the holes: reserved by PyTorch, used by nobody."""

    allocated: int  # in live tensors
    reserved: int  # held by the allocator
    free: int  # what the device still has
    total: int
    source: str  # "cuda:0" or "simulated"
    peak_allocated: int  # since the last `reset_peak`
    others: int = 0  # on the device, but not this allocator's: other processes, CUDA contexts, NCCL, ...

    def __str__(self) -> str:
        others = f", {format_size(self.others)} is somebody else's" if self.others else ""
        return (
            f"{self.source}: {format_size(self.allocated)} allocated, {format_size(self.reserved)} reserved; "
            f"{format_size(self.free)} of {format_size(self.total)} free{others}"
        )


def meter(device: Any = "auto", *, tap: Any = None, allocator: Any = None) -> Meter:
    """The meter for a device.

        device           "auto": the tap that is recording, else CUDA where there is one
        tap, allocator   a `Tap` or an `Allocator` to read instead

    The CPU without a tap has no allocator to read: it is a simulated card of 0 bytes.
    Raises: ValueError names a device that is not here.
    """
    import torch

    kind = str(device).partition(":")[0]
    if tap is None and allocator is None and kind in ("auto", "cpu"):
        tap = recording_tap()
    if tap is not None or allocator is not None:
        return SimulatorMeter(tap if tap is not None else allocator)
    if kind == "cuda" or (kind == "auto" and torch.cuda.is_available()):
        return CudaMeter("cuda" if kind == "auto" else device)
    if kind in ("auto", "cpu"):
        return SimulatorMeter(Allocator(0))
    raise ValueError(f"meter: device {str(device)!r}, expected auto, cpu, cuda or cuda:N (or pass tap= or allocator=)")


@contextlib.contextmanager
def limit(nbytes: int, device: Any = "auto") -> Iterator[None]:
    """Within the block PyTorch reserves at most so many bytes of the device: `with limit(8 * 2**30):`.

    What is reserved already stays reserved: `torch.cuda.empty_cache()` first, or start early. On a CUDA device this is
    `torch.cuda.set_per_process_memory_fraction`; the fraction before is restored (1.0 on torch that cannot tell it).
    Raises: ValueError for more than the device has; without one, simulate it: `Tap(total_memory=...)`.
    """
    card = meter(device)
    total = card.read().total
    if type(nbytes) is not int or not 1 <= nbytes <= total:
        here = "the device's" if total else "what a CPU without a labkit.memory.Tap has:"
        raise ValueError(f"limit: expected a whole number of bytes, 1 to {here} {total}, got {nbytes!r}")
    before = card.set_fraction(nbytes / total)
    try:
        yield
    finally:
        card.set_fraction(before)


class SimulatorMeter:
    """Reads a tap or a bare simulated allocator."""

    def __init__(self, simulated: Any):
        self.simulated = simulated

    def set_fraction(self, share: float) -> float:
        """Set the share of the card that may be reserved; returns the one before."""
        before = self._card().memory_fraction
        self.simulated.set_memory_fraction(share)
        return before

    def read(self) -> Reading:
        card = self._card()
        held, room = (card.allocated_bytes, card.reserved_bytes), (card.free_bytes, card.total_memory)
        return Reading(*held, *room, "simulated", card.peak_allocated_bytes, card.others + card.context)

    def reset_peak(self) -> None:
        self.simulated.reset_peak()

    def empty_cache(self) -> None:
        self.simulated.empty_cache()

    def _card(self) -> Any:
        # A tap's own `allocator` brings the tap up to date first.
        return getattr(self.simulated, "allocator", self.simulated)


class CudaMeter:
    """Reads PyTorch's allocator and the driver. ValueError where torch sees no such device."""

    def __init__(self, device: Any):
        import torch

        if not torch.cuda.is_available():
            raise ValueError(
                f"meter: torch {torch.__version__} sees no CUDA device here; use device='cpu', or a tap "
                "(labkit.memory.Tap) to simulate a card"
            )
        self.cuda, chosen = torch.cuda, torch.device(device)
        self.index = self.cuda.current_device() if chosen.index is None else chosen.index

    def set_fraction(self, share: float) -> float:
        """Set the share of the device that may be reserved; returns the one before (1.0 where torch cannot tell)."""
        get = getattr(self.cuda.memory, "get_per_process_memory_fraction", lambda index: 1.0)
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


Meter = CudaMeter | SimulatorMeter


def recording_tap() -> Any:
    """The tap that is recording, without importing anything: no tap records before its module is loaded."""
    taps = sys.modules.get("labkit.memory.tap")
    return taps.current() if taps is not None else None
