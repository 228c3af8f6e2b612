"""A simulated card as `labkit.memory.meter` gives it: the same readings as of a CUDA device."""

from __future__ import annotations

import contextlib
from typing import Any

from labkit.memory.meter import Reading


class CardMeter:
    """Reads a `Tap` or a bare `Allocator`."""

    def __init__(self, simulated: Any):
        self.simulated = simulated

    def read(self) -> Reading:
        card = self._card()
        held, room = (
            (card.allocated_bytes, card.reserved_bytes),
            (card.free_bytes, card.total_memory),
        )
        return Reading(
            *held, *room, "simulated", card.peak_allocated_bytes, card.others + card.context
        )

    def reset_peak(self) -> None:
        self.simulated.reset_peak()

    def empty_cache(self) -> None:
        self.simulated.empty_cache()

    def set_fraction(self, share: float) -> float:
        before = self._card().memory_fraction
        self.simulated.set_memory_fraction(share)
        return before

    def host(self) -> contextlib.AbstractContextManager[None]:
        """Within it, CPU tensors do not stand for the card's."""
        return self.simulated.host()

    def _card(self) -> Any:
        # a tap's own `allocator` brings the tap up to date first
        return getattr(self.simulated, "allocator", self.simulated)
