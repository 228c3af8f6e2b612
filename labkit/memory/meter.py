"""One way to read memory: a CUDA device's allocator, a simulated card, or this process.

    meter().read()  ->  Reading(allocated, reserved, free, total, source, ...)

A reading costs microseconds on CUDA (allocator counters and `cudaMemGetInfo`); it does not synchronise the device.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Protocol

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


class Meter(Protocol):
    """What every meter can do."""

    def read(self) -> Reading: ...

    def reset_peak(self) -> None: ...

    def empty_cache(self) -> None: ...


def meter(device: Any = "auto", *, tap: Any = None, allocator: Any = None) -> Meter:
    """The meter for a device.

    `tap`, `allocator`: a `Tap` or an `Allocator` to read instead. "auto": the tap that is
    recording, else CUDA where there is one, else this process. ValueError for a device that is not here.
    """
    if tap is not None or allocator is not None:
        if tap is not None and allocator is not None:
            raise ValueError("meter: got both tap= and allocator=; pass one of them")
        return SimulatorMeter(tap if tap is not None else allocator)
    name = str(device)
    if name in ("auto", "cpu") and (recording := _recording_tap()) is not None:
        return SimulatorMeter(recording)
    if name == "cpu":
        return ProcessMeter()
    if name == "auto" and not _cuda_is_there():
        return ProcessMeter()
    if name == "auto" or name.startswith("cuda"):
        return CudaMeter("cuda" if name == "auto" else device)
    raise ValueError(
        f"meter: device {name!r}, expected auto, cpu, cuda or cuda:N (or pass tap= or allocator=)"
    )


class SimulatorMeter:
    """Reads a tap or a bare simulated allocator."""

    def __init__(self, simulated: Any):
        # A tap's `allocator` is a property that brings it up to date first.
        self.simulated = simulated
        self.source = "tap" if hasattr(simulated, "ledger") else "allocator"
        if self.source == "allocator" and not hasattr(simulated, "reserved_bytes"):
            raise TypeError(f"meter: expected a labkit Tap or Allocator, got {type(simulated).__name__}")

    @property
    def allocator(self) -> Any:
        return self.simulated.allocator if self.source == "tap" else self.simulated

    def read(self) -> Reading:
        card = self.allocator
        if self.source == "tap":
            peaks = self.simulated.peak, self.simulated.peak_reserved
        else:
            peaks = card.peak_allocated_bytes, card.peak_reserved_bytes
        free = card.total_memory - card.reserved_bytes
        return Reading(
            card.allocated_bytes, card.reserved_bytes, free, card.total_memory, self.source, *peaks
        )

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
                "(labkit.memory.tap.Tap) to simulate a card"
            )
        chosen = torch.device(device)
        index = torch.cuda.current_device() if chosen.index is None else chosen.index
        if index >= torch.cuda.device_count():
            raise ValueError(f"meter: device cuda:{index}, but this machine has {torch.cuda.device_count()}")
        self.index = index

    def read(self) -> Reading:
        from torch import cuda

        stats = cuda.memory_stats(self.index)
        free, total = cuda.mem_get_info(self.index)
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
        from torch import cuda

        cuda.reset_peak_memory_stats(self.index)

    def empty_cache(self) -> None:
        from torch import cuda

        with cuda.device(self.index):
            cuda.empty_cache()

    def processes(self) -> dict[int, int]:
        """Bytes by process id on this device, this process included, as the driver tells it; {} where it does not.

        In a container the ids may be the host's. Needs `nvidia-ml-py`.
        """
        import torch

        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # not installed, or no NVML in this driver: what it would have said is unknown
            return {}
        try:
            uuid = getattr(torch.cuda.get_device_properties(self.index), "uuid", None)
            handle = (
                pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
                if uuid is not None
                else pynvml.nvmlDeviceGetHandleByIndex(self.index)
            )
            found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            return {p.pid: p.usedGpuMemory or 0 for p in found}
        except pynvml.NVMLError:
            return {}
        finally:
            pynvml.nvmlShutdown()


class ProcessMeter:
    """Reads this process: resident memory against the machine's. The peak is the highest reading, not the true peak."""

    def __init__(self) -> None:
        import psutil

        self.process, self._virtual = psutil.Process(os.getpid()), psutil.virtual_memory
        self.peak = 0

    def read(self) -> Reading:
        resident, machine = self.process.memory_info().rss, self._virtual()
        self.peak = max(self.peak, resident)
        return Reading(resident, resident, machine.available, machine.total, "process", self.peak, self.peak)

    def reset_peak(self) -> None:
        self.peak = 0

    def empty_cache(self) -> None:
        """A process has no cache that this lab could empty."""


def _cuda_is_there() -> bool:
    import sys

    try:
        import torch
    except ImportError:
        return False
    return "torch" in sys.modules and torch.cuda.is_available()


def _recording_tap() -> Any:
    """The tap that is recording, without importing anything: no tap records before its module is loaded."""
    import sys

    taps = sys.modules.get("labkit.memory.tap")
    return taps.current() if taps is not None else None
