"""The tap's book-keeping: blocks with a category, a timeline, the peak, and a log that can be replayed.

Standard library only. It knows blocks and bytes; which tensor is which is the recorder's business.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

from .simulator import Allocator, Block, OutOfMemory

CATEGORIES = (
    "parameter",
    "gradient",  # of a parameter
    "optimizer",  # state, and what a step allocates on the way
    "activation",  # made inside a module's forward
    "logits",  # anything as wide as the vocabulary: logits, log-probabilities, their gradients
    "kv-cache",
    "backward",  # gradients of activations, in flight
    "workspace",  # cuBLAS
    "other",  # ids, masks, losses, what was made outside any module
)


@dataclass
class Moment:
    """One point of the timeline: bytes allocated and reserved after an allocation or a free."""

    allocated: int
    reserved: int
    mark: str = ""


class Ledger:
    """A simulated card of `total_memory` bytes, and who holds which block of it.

    `log` is what happened, enough to replay it; `timeline` has a moment after every allocation and free; `oom` is the
    last refusal. With `stacks` a block knows the lines that asked for it. Raises: `OutOfMemory` comes from `malloc`.
    """

    def __init__(self, total_memory: int, settings: str = "", stacks: bool = False):
        self.total_memory, self.settings, self.stacks = total_memory, settings, stacks
        self.allocator = Allocator(total_memory, settings)
        self.log: list[tuple] = []
        self.timeline: list[Moment] = []
        self.oom: OutOfMemory | None = None
        self._live: dict[int, Block] = {}  # by number
        self._next = 0
        self._by_category: Counter[Any] = Counter()  # the keys are the blocks' tags
        self.reset_peak()

    def malloc(self, nbytes: int, category: str = "other") -> int:
        """A new block; returns its number."""
        number = self._next
        self._next += 1
        self.log.append(("malloc", number, nbytes, category))
        try:
            block = self.allocator.malloc(nbytes, tag=category)
        except OutOfMemory as error:
            self.oom = error
            self._record()  # a retry has emptied the cache
            raise
        block.frames = _frames() if self.stacks else []
        self._live[number] = block
        self._by_category[category] += block.size
        self._record()
        return number

    def free(self, number: int) -> None:
        block = self._live.pop(number, None)
        if block is None:
            return
        self.log.append(("free", number))
        # Before the block is given back: merged with its neighbours it is larger.
        self._by_category[block.tag] -= block.size
        self.allocator.free(block)
        self._record()

    def relabel(self, number: int, category: str) -> None:
        block = self._live.get(number)
        if block is None or block.tag == category:
            return
        self.log.append(("relabel", number, category))
        self._by_category[block.tag] -= block.size
        self._by_category[category] += block.size
        block.tag = category

    def empty_cache(self) -> None:
        self.log.append(("empty_cache",))
        self.allocator.empty_cache()
        self._record()

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit what may be reserved to this share of the card."""
        self.log.append(("set_memory_fraction", fraction))
        self.allocator.set_memory_fraction(fraction)

    def mark(self, text: str) -> None:
        """Put a name on this moment of the timeline."""
        if not self.timeline:
            self._record()
        self.log.append(("mark", text))
        self.timeline[-1].mark = text

    def reset_peak(self) -> None:
        """Forget the peaks so far; they start again from what is held now."""
        self.allocator.reset_peak()
        self._peak_is_here()

    def _record(self) -> None:
        self.timeline.append(Moment(self.allocated, self.reserved))
        if self.allocated > self.peak:
            self._peak_is_here()

    def _peak_is_here(self) -> None:
        self.peak, self._peak_categories = self.allocated, Counter(self._by_category)

    @property
    def allocated(self) -> int:
        """Bytes in live blocks, after the allocator's rounding, as `torch.cuda.memory_allocated`."""
        return self.allocator.allocated_bytes

    @property
    def reserved(self) -> int:
        """Bytes of the card that the allocator holds, as `torch.cuda.memory_reserved`."""
        return self.allocator.reserved_bytes

    @property
    def peak_reserved(self) -> int:
        return self.allocator.peak_reserved_bytes

    @property
    def by_category(self) -> dict[str, int]:
        """Bytes held now, by category; the sum is `allocated`."""
        return _in_order(self._by_category)

    @property
    def peak_by_category(self) -> dict[str, int]:
        """Bytes held at the moment of the peak, by category; the sum is `peak`."""
        return _in_order(self._peak_categories)

    def snapshot(self) -> list[dict[str, Any]]:
        """Segments as `torch.cuda.memory._snapshot()["segments"]` gives them; a block's `tag` is its category."""
        return self.allocator.snapshot()

    def replay(self, total_memory: int | None = None, settings: str | None = None) -> Ledger:
        """The same program on another card or with other settings. Stops at the first OutOfMemory, kept in `.oom`."""
        other = Ledger(
            self.total_memory if total_memory is None else total_memory,
            self.settings if settings is None else settings,
        )
        for event, *rest in self.log:
            try:
                getattr(other, event)(*(rest[1:] if event == "malloc" else rest))
            except OutOfMemory:
                break
        return other


def _frames() -> list[dict[str, Any]]:
    """Where this is called from, innermost first, as `torch.cuda.memory._record_memory_history` notes it."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back  # type: ignore[assignment]
    return frames


def _in_order(counts: Counter[Any]) -> dict[str, int]:
    """Without the empty ones: those of `CATEGORIES` first, in their order."""
    return {name: counts[name] for name in dict.fromkeys([*CATEGORIES, *counts]) if counts[name]}
