"""Make a big card fail like a small one: a limit on what PyTorch may reserve, for as long as a block of code runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .meter import CudaMeter, SimulatorMeter, meter


@contextlib.contextmanager
def limit(amount: int | float, device: Any = "auto", *, tap: Any = None) -> Iterator[int]:
    """Within the block PyTorch reserves at most this much of the device: `with limit(8 * 2**30):`. Yields the bytes.

    `amount`: a whole number of bytes, or a float up to 1.0, a share of the device. What is reserved already stays
    reserved: `torch.cuda.empty_cache()` first, or start early. On a CUDA device this is
    `torch.cuda.set_per_process_memory_fraction`; the fraction before is restored (1.0 on torch that cannot tell it).
    ValueError without a device that has an allocator: a process has no such limit.
    """
    found = meter(device, tap=tap)
    if not isinstance(found, (CudaMeter, SimulatorMeter)):
        raise ValueError(
            "limit: there is no CUDA device here, and a CPU process has no allocator limit; "
            "simulate the card with labkit.memory.tap.Tap(total_memory=...), or pass tap="
        )
    total = found.read().total
    fraction = _fraction(amount, total)
    if isinstance(found, CudaMeter):
        from torch import cuda

        get = getattr(cuda, "get_per_process_memory_fraction", None)
        get = get or getattr(cuda.memory, "get_per_process_memory_fraction", None)
        before = get(found.index) if get is not None else 1.0

        def put(value: float) -> None:
            cuda.set_per_process_memory_fraction(float(value), found.index)
    else:
        card = found.simulated
        before = card.memory_fraction if hasattr(card, "memory_fraction") else 1.0
        put = card.set_memory_fraction
    put(fraction)
    try:
        yield int(fraction * total)
    finally:
        put(before)


def _fraction(amount: int | float, total: int) -> float:
    if isinstance(amount, bool) or not isinstance(amount, (int, float)):
        raise TypeError(f"limit: expected bytes (int) or a share of the device (float), got {amount!r}")
    if isinstance(amount, float):
        if not 0.0 < amount <= 1.0:
            raise ValueError(
                f"limit: a share of {amount}, expected one above 0 and up to 1.0; write bytes as an int"
            )
        return amount
    if amount < 1 or amount > total:
        raise ValueError(
            f"limit: {amount} bytes, expected 1 to the device's {total}; write a share as a float"
        )
    return amount / total
