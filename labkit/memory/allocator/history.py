"""Replay a memory history: what `torch.cuda.memory._record_memory_history()` saw a real program do.

The file (`torch-memory-history/1`) is a header with `total_memory` and `settings`, then the events of
`torch.cuda.memory._snapshot()["device_traces"][device]`, one a line: `action`, `addr`, `size`, optional `stream`.

A history tells what the allocator did, not what it was asked. `alloc` and `free_requested` are the caller's;
`segment_alloc`, `segment_free`, `segment_map`, `segment_unmap` are the allocator's own doing. So the caller's part is
replayed, and the allocator's part must follow: the same segments, of the same size, at the same moment, and every
block at the same address. Where the driver puts a segment is taken from the history, since it is not the allocator's
choice. Three things a history does not say:

- `empty_cache()` has no event. Segments given back are read as one, unless the request that follows, tried on a
  copy of the simulator, gives back just these by itself.
- Steps have no mark. The header's `step_stats` (allocated, peak allocated, reserved and inactive split bytes after
  each step) must turn up in their order; one that never does counts as a mismatch.
- `set_per_process_memory_fraction` has no event. A header key `fraction` gives the one in force throughout.

A block that another stream still uses (`free_requested` now, `free_completed` later) stays allocated in between.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from .settings import Settings
from .simulator import Allocator, Block, BlockPool, Expandable, OutOfMemory, pages

STEP_STATS = ("allocated_bytes", "peak_allocated_bytes", "reserved_bytes", "inactive_split_bytes")
GIVES_BACK = {"segment_free", "segment_unmap"}
CALLS = {"alloc", "oom", "free_requested", "free_completed"}  # the caller's, or the answer to it
ACTIONS = GIVES_BACK | CALLS | {"segment_alloc", "segment_map", "snapshot"}

Event = tuple[str, int, int]  # action, address (0 for oom), bytes


def whole_numbers(row: dict[str, Any], *keys: str) -> None:
    """KeyError or ValueError unless each of these keys holds a whole number from 0 to 2**63 - 1."""
    for key in keys:
        if type(row[key]) is not int or not 0 <= row[key] < 1 << 63:
            raise ValueError(f"{key!r} must be a whole number from 0 to 2**63 - 1, got {row[key]!r}")


def checker(header: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    """Checks events in order: a known action with its fields, and no free where no block is in use."""
    for step in header.get("step_stats", []):
        whole_numbers(step, *STEP_STATS)
    Allocator(1).set_memory_fraction(header.get("fraction", 1))  # raises for a bad one
    live: set[int] = set()

    def check(event: dict[str, Any]) -> None:
        action = event["action"]
        if action not in ACTIONS:
            raise ValueError(f"unknown action {action!r}; expected one of {', '.join(sorted(ACTIONS))}")
        whole_numbers({"stream": 0, **event}, "size", "stream")
        if action not in ("oom", "snapshot"):
            whole_numbers(event, "addr")
        if action == "alloc":
            if event["addr"] in live:
                raise ValueError(f"alloc at {event['addr']}, where a block is in use")
            live.add(event["addr"])
        elif action in ("free_requested", "free_completed"):
            if event["addr"] not in live:
                raise ValueError(f"{action} at {event['addr']}, where no block is in use")
            if action == "free_completed":
                live.remove(event["addr"])

    return check


class Recording(Allocator):
    """An allocator that logs what it does, as PyTorch's `record_trace` does, and puts segments where it is told."""

    def __init__(self, total_memory: int, settings: str | Settings) -> None:
        super().__init__(total_memory, settings)
        self.log: list[Event] = []
        self.held: dict[int, int] = {}  # segments from cudaMalloc: address -> size
        self.place: Callable[[str, int, int], int | None] = _nowhere  # where the driver puts this, as event n

    def request(self, size: int, stream: int) -> Block | None:
        """`malloc`, with its outcome in the log."""
        try:
            block = self.malloc(size, stream)
        except OutOfMemory:
            self.log.append(("oom", 0, size))
            return None
        self.log.append(("alloc", block.address, size))
        return block

    def _new_address(self, size: int) -> int:
        told = self.place("segment_alloc", size, len(self.log))
        if told is None or any(a < told + size and told < a + s for a, s in self.held.items()):
            return super()._new_address(size)  # no advice, or (after a mismatch) memory that is held here
        self._next_address = max(self._next_address, told + size)
        return told

    def _alloc_block(self, pool: BlockPool, stream: int, size: int, segment_size: int) -> Block | None:
        block = super()._alloc_block(pool, stream, size, segment_size)
        if block is not None and block.segment is None:
            self.log.append(("segment_alloc", block.address, block.size))
            self.held[block.address] = block.size
        return block

    def _release_block(self, block: Block) -> None:
        self.log.append(("segment_free", block.address, block.size))
        del self.held[block.address]
        super()._release_block(block)

    def _map(self, block: Block, size: int) -> bool:
        segment = block.segment
        assert segment is not None
        if block.size == segment.size:  # nothing mapped in it yet: now its place is known
            told = self.place("segment_map", pages(size, segment.page) * segment.page, len(self.log))
            if told is not None:
                unmapped = block.pool.unmapped[block.stream]
                del unmapped[block.address]
                block.address = segment.address = told
                unmapped[told] = block
        address, before = block.address, self.reserved_bytes
        done = super()._map(block, size)
        if done:
            self.log.append(("segment_map", address, self.reserved_bytes - before))
        return done

    def _unmap(self, block: Block) -> None:
        before, segment = self.reserved_bytes, block.segment
        assert segment is not None
        first_page = segment.address + pages(block.address - segment.address, segment.page) * segment.page
        super()._unmap(block)
        if self.reserved_bytes != before:
            self.log.append(("segment_unmap", first_page, before - self.reserved_bytes))

    def copy(self) -> Recording:
        """The same state in other objects, to try something on. (`copy.deepcopy` would recurse along the blocks.)"""
        other = Recording(self.total_memory, self.settings)
        twins: dict[Block, Block] = {}
        segments: dict[Expandable, Expandable] = {}

        def twin(block: Block) -> Block:
            segment = block.segment
            if segment is not None and segment not in segments:
                segments[segment] = Expandable(segment.address, segment.size, segment.page)
            pool = other._small if block.pool.is_small else other._large
            new = Block(block.address, block.size, block.stream, pool, segments[segment] if segment else None)
            for name in ("requested_size", "allocated", "mapped", "born"):
                setattr(new, name, getattr(block, name))
            twins[block] = new
            return new

        for name, value in vars(self).items():
            if isinstance(value, int):
                setattr(other, name, value)
        other._allowed, other.place, other.held = self._allowed, self.place, dict(self.held)
        other._active = {address: twin(block) for address, block in self._active.items()}
        for theirs, ours in ((other._small, self._small), (other._large, self._large)):
            theirs.calls = ours.calls
            theirs.free = {s: [(size, at, twin(b)) for size, at, b in ours.free[s]] for s in ours.free}
            theirs.unmapped = {
                s: {a: twin(b) for a, b in group.items()} for s, group in ours.unmapped.items()
            }
        for block, new in twins.items():
            new.prev = twins[block.prev] if block.prev is not None else None
            new.next = twins[block.next] if block.next is not None else None
        return other


def _nowhere(action: str, size: int, number: int) -> int | None:
    return None


def run(
    header: dict[str, Any], events: list[dict[str, Any]], allocator: Any
) -> tuple[int, tuple[int, str] | None, float, int]:
    """Mismatches, the first one (event index and text), the simulator's seconds, the steps whose statistics turned up.

    What the simulator logs for one request is compared, event by event, with what the history has for it.
    """
    if "fraction" in header:
        allocator.set_memory_fraction(header["fraction"])
    kept = [n for n, e in enumerate(events) if e["action"] != "snapshot"]
    expected: list[Event] = [
        (events[n]["action"], 0 if events[n]["action"] == "oom" else events[n]["addr"], events[n]["size"])
        for n in kept
    ]
    streams = [events[n].get("stream", 0) for n in kept]
    blocks: dict[int, Block] = {}  # the history's address -> our block
    pending = list(header.get("step_stats", []))
    at, mismatches, first, seconds = 0, 0, None, 0.0

    def place(action: str, size: int, number: int) -> int | None:
        """Where the history has this event, if it is the one that comes next."""
        index = at + number
        same = index < len(expected) and (expected[index][0], expected[index][2]) == (action, size)
        return expected[index][1] if same else None

    allocator.place = place
    while at < len(expected):
        allocator.log.clear()
        action, end = _request(expected, streams, at, allocator)
        want = expected[at:end]
        _, address, size = want[-1]
        start = perf_counter()
        if action in ("alloc", "oom"):
            block = allocator.request(size, streams[end - 1])
            if block is not None:
                blocks[address] = block
        elif action == "empty_cache":
            allocator.empty_cache()
        elif address in blocks:  # a free; else memory ran out here at its alloc, and was counted there
            block = blocks[address]
            allocator.log += [(name, block.address, block.requested_size) for name, _, _ in want]
            if want[-1][0] == "free_completed":
                allocator.free(blocks.pop(address))
        seconds += perf_counter() - start

        got = allocator.log
        for n in range(max(len(got), len(want))):
            ours, theirs = got[n] if n < len(got) else None, want[n] if n < len(want) else None
            if ours != theirs:
                mismatches += 1
                text = f"{_say(theirs)} expected, got {_say(ours)}"
                first = first or (kept[min(at + n, len(kept) - 1)], text)
        at = end
        while pending and all(getattr(allocator, name) == pending[0][name] for name in STEP_STATS):
            del pending[0]
    steps = len(header.get("step_stats", [])) - len(pending)
    if pending:
        mismatches += len(pending)
        first = first or (-1, f"the statistics of step {steps + 1} never turned up: {pending[0]}")
    return mismatches, first, seconds, steps


def _request(expected: list[Event], streams: list[int], at: int, allocator: Recording) -> tuple[str, int]:
    """What the caller did to produce the events from `at` on, and the index behind the last of them."""
    given_back = at
    while given_back < len(expected) and expected[given_back][0] in GIVES_BACK:
        given_back += 1
    end = given_back
    while end < len(expected) and expected[end][0] not in CALLS:
        end += 1
    action, address, size = expected[end] if end < len(expected) else ("", 0, 0)
    if (
        given_back > at
    ):  # the next request's own doing, or an empty_cache before it? Try the request on a copy
        trial = allocator.copy()
        if action in ("alloc", "oom"):
            trial.request(size, streams[end])
        if trial.log != expected[at : end + 1]:
            return "empty_cache", given_back
    if action == "free_requested" and expected[end + 1 : end + 2] == [("free_completed", address, size)]:
        end += 1
    return action, min(end + 1, len(expected))


def _say(event: Event | None) -> str:
    return "no event" if event is None else f"{event[0]} of {event[2]} bytes at {event[1]:#x}"
