"""The tap's book-keeping: blocks with a category, a timeline, the peak, and a log that can be replayed.

Standard library only. It knows blocks and bytes; which tensor is which is the recorder's business.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..allocator import Allocator, Block, OutOfMemory

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


@dataclass(frozen=True)
class Moment:
    """One point of the timeline: bytes allocated and reserved after event number `event`."""

    event: int
    allocated: int
    reserved: int
    mark: str = ""


class Ledger:
    """A simulated card, and who holds which block of it.

        total_memory   bytes of the card
        settings       as in PYTORCH_CUDA_ALLOC_CONF

    `log` is what happened, enough to replay it; `oom` the last refusal. Raises: `OutOfMemory` comes from `malloc`.
    """

    def __init__(self, total_memory: int, settings: str = ""):
        self.total_memory, self.settings = int(total_memory), settings
        self.allocator = Allocator(self.total_memory, settings)
        self.log: list[tuple] = []
        self.marks: dict[int, str] = {}  # event -> text
        self.oom: OutOfMemory | None = None
        self._live: dict[int, tuple[Block, str]] = {}  # number -> the block, and the module that made it
        self._next = 0
        self._allocated, self._reserved = array("q"), array("q")
        self._by_category: Counter[Any] = Counter()  # the keys are the blocks' tags
        self.reset_peak()

    # what happens

    def malloc(self, nbytes: int, category: str = "other", where: str = "") -> int:
        """A new block; returns its number."""
        number = self._next
        self._next += 1
        self.log.append(("malloc", number, nbytes, category, where))
        try:
            block = self.allocator.malloc(nbytes, tag=category)
        except OutOfMemory as error:
            self.oom = error
            self._record()  # a retry has emptied the cache
            raise
        self._live[number] = block, where
        self._by_category[category] += block.size
        self._record()
        return number

    def free(self, number: int) -> None:
        if number not in self._live:
            return
        self.log.append(("free", number))
        block, _ = self._live.pop(number)
        # Before the block is given back: merged with its neighbours it is larger.
        self._by_category[block.tag] -= block.size
        self.allocator.free(block)
        self._record()

    def relabel(self, number: int, category: str) -> None:
        block, _ = self._live.get(number, (None, ""))
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
        self.log.append(("set_memory_fraction", fraction))
        self.allocator.set_memory_fraction(fraction)

    def mark(self, text: str) -> None:
        """Put a name on this moment of the timeline."""
        if not self._allocated:
            self._record()
        self.log.append(("mark", text))
        self.marks[len(self._allocated) - 1] = text

    def _record(self) -> None:
        allocated = self.allocator.allocated_bytes
        self._allocated.append(allocated)
        self._reserved.append(self.allocator.reserved_bytes)
        if allocated > self.peak:
            self._peak_is_here()

    def _peak_is_here(self) -> None:
        self.peak, self._peak_log = self.allocated, len(self.log)
        self._peak_categories = Counter(self._by_category)

    # what can be read

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

    @property
    def timeline(self) -> list[Moment]:
        """A moment after every allocation and free."""
        rows = zip(self._allocated, self._reserved, strict=True)
        return [Moment(i, a, r, self.marks.get(i, "")) for i, (a, r) in enumerate(rows)]

    def reset_peak(self) -> None:
        """Forget the peaks so far; they start again from what is held now."""
        self.allocator.reset_peak()
        self._peak_is_here()

    def snapshot(self, at: str = "now") -> list[dict[str, Any]]:
        """Segments as `torch.cuda.memory._snapshot()["segments"]` gives them, and two more keys in every block.

        `tag` is the category, `where` the module that was running when the block was made; None when free.
        `at`: "now" or "peak" (the log is replayed up to the peak).
        """
        if at == "peak":
            return self.replay(upto=self._peak_log).snapshot()
        if at != "now":
            raise ValueError(f"snapshot: at = {at!r}, expected 'now' or 'peak'")
        held = {block.address: where for block, where in self._live.values()}
        segments = self.allocator.snapshot()
        for segment in segments:
            for block in segment["blocks"]:
                block["where"] = held.get(block["address"]) if block["tag"] is not None else None
        return segments

    def replay(self, total_memory: int | None = None, settings: str | None = None, upto: int | None = None) -> Ledger:
        """The same program on another card or with other settings. Stops at the first OutOfMemory, kept in `.oom`."""
        other = Ledger(
            self.total_memory if total_memory is None else total_memory, self.settings if settings is None else settings
        )
        numbers: dict[int, int] = {}
        for event, *rest in self.log[:upto]:
            if event == "malloc":
                try:
                    numbers[rest[0]] = other.malloc(*rest[1:])
                except OutOfMemory:
                    break
            elif event in ("free", "relabel"):
                getattr(other, event)(numbers.get(rest[0], -1), *rest[1:])
            else:
                getattr(other, event)(*rest)
        return other


def _in_order(counts: Counter[Any]) -> dict[str, int]:
    """Without the empty ones: those of `CATEGORIES` first, in their order."""
    return {name: counts[name] for name in dict.fromkeys([*CATEGORIES, *counts]) if counts[name]}
