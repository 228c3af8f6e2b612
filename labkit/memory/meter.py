"""One way to read memory, and to limit it: a CUDA device's allocator, a simulated card, or this process.

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


@dataclass(frozen=True)
class Reading:
    """Bytes. `reserved - allocated` is the cache and the holes: reserved by PyTorch, used by nobody."""

    allocated: int  # in live tensors
    reserved: int  # held by the allocator; equal to `allocated` where there is no cache (a process)
    free: int  # what the device, or the machine, still has
    total: int
    source: str  # "cuda:0", "tap", "allocator" or "process"
    peak_allocated: int = 0  # since the last `reset_peak`
    peak_reserved: int = 0
    others: int = 0  # on the device, but not this allocator's: other processes, CUDA contexts, NCCL, ...

    @property
    def unallocated(self) -> int:
        return self.reserved - self.allocated

    def __str__(self) -> str:
        cached = f", {format_size(self.unallocated)} of it in no tensor" if self.source != "process" else ""
        others = f", {format_size(self.others)} is somebody else's" if self.others else ""
        return (
            f"{self.source}: {format_size(self.allocated)} allocated, {format_size(self.reserved)} reserved{cached}; "
            f"{format_size(self.free)} of {format_size(self.total)} free{others}"
        )


def meter(device: Any = "auto", *, tap: Any = None, allocator: Any = None) -> Meter:
    """The meter for a device.

        device           "auto": the tap that is recording, else CUDA where there is one, else this process
        tap, allocator   a `Tap` or an `Allocator` to read instead

    Raises: ValueError names a device that is not here.
    """
    if tap is not None and allocator is not None:
        raise ValueError("meter: got both tap= and allocator=; pass one of them")
    if tap is not None or allocator is not None:
        return SimulatorMeter(tap if tap is not None else allocator)
    name = str(device)
    if name in ("auto", "cpu") and (recording := recording_tap()) is not None:
        return SimulatorMeter(recording)
    if name == "cpu" or (name == "auto" and not _cuda_is_there()):
        return ProcessMeter()
    if name == "auto" or name.startswith("cuda"):
        return CudaMeter("cuda" if name == "auto" else device)
    raise ValueError(f"meter: device {name!r}, expected auto, cpu, cuda or cuda:N (or pass tap= or allocator=)")


@contextlib.contextmanager
def limit(amount: int | float, device: Any = "auto", *, tap: Any = None) -> Iterator[int]:
    """Within the block PyTorch reserves at most this much of the device: `with limit(8 * 2**30):`. Yields the bytes.

        amount        a whole number of bytes, or a float up to 1.0: a share of the device
        device, tap   as in `meter`

    What is reserved already stays reserved: `torch.cuda.empty_cache()` first, or start early. On a CUDA device this is
    `torch.cuda.set_per_process_memory_fraction`; the fraction before is restored (1.0 on torch that cannot tell it).
    Raises: ValueError without a device that has an allocator: a process has no such limit.
    """
    card = meter(device, tap=tap)
    if isinstance(card, ProcessMeter):
        raise ValueError(
            "limit: there is no CUDA device here, and a CPU process has no allocator limit; "
            "simulate the card with labkit.memory.Tap(total_memory=...), or pass tap="
        )
    total, before = card.read().total, card.fraction
    card.fraction = fraction = _fraction(amount, total)
    try:
        yield int(fraction * total)
    finally:
        card.fraction = before


def _fraction(amount: int | float, total: int) -> float:
    if isinstance(amount, bool) or not isinstance(amount, (int, float)):
        raise TypeError(f"limit: expected bytes (int) or a share of the device (float), got {amount!r}")
    if isinstance(amount, int):
        if not 1 <= amount <= total:
            raise ValueError(f"limit: {amount} bytes, expected 1 to the device's {total}; a share is a float")
        return amount / total
    if not 0.0 < amount <= 1.0:
        raise ValueError(f"limit: a share of {amount}, expected above 0 and up to 1.0; write bytes as an int")
    return amount


class SimulatorMeter:
    """Reads a tap or a bare simulated allocator."""

    def __init__(self, simulated: Any):
        self.simulated = simulated
        self.source = "tap" if hasattr(simulated, "ledger") else "allocator"
        if self.source == "allocator" and not hasattr(simulated, "reserved_bytes"):
            raise TypeError(f"meter: expected a labkit Tap or Allocator, got {type(simulated).__name__}")

    @property
    def allocator(self) -> Any:
        # A tap's own `allocator` brings the tap up to date first.
        return self.simulated.allocator if self.source == "tap" else self.simulated

    @property
    def fraction(self) -> float:
        """The share of the card that may be reserved."""
        return self.allocator.memory_fraction

    @fraction.setter
    def fraction(self, value: float) -> None:
        self.simulated.set_memory_fraction(value)

    def read(self) -> Reading:
        card = self.allocator
        held = card.allocated_bytes, card.reserved_bytes
        peaks = card.peak_allocated_bytes, card.peak_reserved_bytes
        return Reading(*held, card.free_bytes, card.total_memory, self.source, *peaks, card.others + card.context)

    def reset_peak(self) -> None:
        if self.source == "tap":
            self.simulated.reset_peak()
        else:
            self.simulated.reset_peak_stats()

    def empty_cache(self) -> None:
        self.simulated.empty_cache()


class CudaMeter:
    """Reads PyTorch's allocator and the driver. ValueError where torch sees no such device."""

    def __init__(self, device: Any = "cuda"):
        import torch

        if not _cuda_is_there():
            raise ValueError(
                f"meter: torch {torch.__version__} sees no CUDA device here; use device='cpu', or a tap "
                "(labkit.memory.Tap) to simulate a card"
            )
        self.cuda, chosen = torch.cuda, torch.device(device)
        self.index = self.cuda.current_device() if chosen.index is None else chosen.index
        if self.index >= self.cuda.device_count():
            raise ValueError(f"meter: device cuda:{self.index}, but this machine has {self.cuda.device_count()}")

    @property
    def fraction(self) -> float:
        """The share of the device that may be reserved; 1.0 where torch cannot tell."""
        name = "get_per_process_memory_fraction"
        get = getattr(self.cuda, name, None) or getattr(self.cuda.memory, name, None)
        return get(self.index) if get is not None else 1.0

    @fraction.setter
    def fraction(self, value: float) -> None:
        self.cuda.set_per_process_memory_fraction(float(value), self.index)

    def read(self) -> Reading:
        stats = self.cuda.memory_stats(self.index)
        free, total = self.cuda.mem_get_info(self.index)
        reserved = stats.get("reserved_bytes.all.current", 0)
        return Reading(
            stats.get("allocated_bytes.all.current", 0),
            reserved,
            free,
            total,
            f"cuda:{self.index}",
            stats.get("allocated_bytes.all.peak", 0),
            stats.get("reserved_bytes.all.peak", 0),
            max(total - free - reserved, 0),
        )

    def reset_peak(self) -> None:
        self.cuda.reset_peak_memory_stats(self.index)

    def empty_cache(self) -> None:
        with self.cuda.device(self.index):
            self.cuda.empty_cache()


class ProcessMeter:
    """Reads this process: resident memory against the machine's. The peak is the highest reading, not the true peak."""

    def __init__(self) -> None:
        import psutil

        self.process, self._machine = psutil.Process(), psutil.virtual_memory
        self.peak = 0

    def read(self) -> Reading:
        resident, machine = self.process.memory_info().rss, self._machine()
        self.peak = max(self.peak, resident)
        return Reading(resident, resident, machine.available, machine.total, "process", self.peak, self.peak)

    def reset_peak(self) -> None:
        self.peak = 0

    def empty_cache(self) -> None:
        """A process has no cache that this lab could empty."""


Meter = CudaMeter | SimulatorMeter | ProcessMeter


def _cuda_is_there() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def recording_tap() -> Any:
    """The tap that is recording, without importing anything: no tap records before its module is loaded."""
    taps = sys.modules.get("labkit.memory.tap")
    return taps.current() if taps is not None else None
