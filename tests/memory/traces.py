"""Replay a recording of PyTorch's own allocator on the simulator and count where the two disagree.

`replay(path)` reads `.jsonl` or `.jsonl.gz`, one JSON object per line, a header first. Two formats:

`allocator-trace/1`: a header with `total_memory`, `settings` and the names in `stats`, then the events `malloc`
(`id`, `bytes`, `oom`, optional `stream`), `free` (`id`), `empty_cache` and `set_fraction` (`fraction`), each with
PyTorch's statistics after it. Every statistic is compared after every event. A free after a refusal does nothing.

`torch-memory-history/1`: a header with `total_memory` and `settings`, then the events of
`torch.cuda.memory._snapshot()["device_traces"][device]`, less `snapshot`: `action`, `addr`, `size`, optional `stream`.
`alloc` and `free_requested` are the caller's and are replayed; `segment_alloc`, `segment_free`, `segment_map` and
`segment_unmap` are the allocator's own doing and must follow: the same segments at the same moment, every block at the
same address. Where the driver puts a segment is taken from the history. Not said there:

- `empty_cache()` has no event. Segments given back are read as one, unless the request that follows, tried on a
  copy of the simulator, gives back just these by itself.
- Steps have no mark. The header's `step_stats` (the numbers of `STEP_STATS` after each step) must turn up in order.
- A block that another stream still uses (`free_requested` now, `free_completed` later) stays allocated in between.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from props.card.simulator import Allocator, Block, BlockPool, OutOfMemory, in_pages

STEP_STATS = ("allocated_bytes", "peak_allocated_bytes", "reserved_bytes", "inactive_split_bytes")
GIVES_BACK = {"segment_free", "segment_unmap"}
CALLS = {"alloc", "oom", "free_requested", "free_completed"}  # the caller's, or the answer to it

Row = dict[str, Any]  # the header, or an event, as it stands in the file
Event = tuple[str, int, int]  # action, address (0 for oom), bytes
Place = Callable[[str, int, int], int | None]  # action, bytes, number of the event -> address, or None: anywhere
Mismatch = tuple[int, str]  # the index of its event (-1 for the header), and what it was


@dataclass(frozen=True)
class Replay:
    """True when every event agreed."""

    events: int
    mismatches: int  # events that differ, plus step statistics that never turned up
    first_mismatch: str | None  # file, line, what was expected and what came
    steps: int = 0  # step statistics that turned up, in a memory history

    def __bool__(self) -> bool:
        return self.mismatches == 0


def replay(path: str | Path) -> Replay:
    """Replay one recording."""
    path = Path(path)
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    header, *events = [json.loads(line) for line in text.splitlines()]
    mismatches = list(_PLAYERS[header["format"]](header, events))
    where = f"{path}, line {mismatches[0][0] + 2}: {mismatches[0][1]}" if mismatches else None
    steps = len(header.get("step_stats", [])) - sum(index == -1 for index, _ in mismatches)
    return Replay(len(events), len(mismatches), where, steps)


def _play_trace(header: Row, events: list[Row]) -> Iterator[Mismatch]:
    """allocator-trace/1: every statistic after every event; where recorded, the error's text and the snapshot too."""
    gpu, blocks = Allocator(header["total_memory"], header["settings"]), {}
    for index, event in enumerate(events):
        op, message = event["op"], None
        if op == "malloc":
            try:
                blocks[event["id"]] = gpu.malloc(event["bytes"], event.get("stream", 0))
            except OutOfMemory as error:
                message = str(error)
        elif op == "free":
            if event["id"] in blocks:
                gpu.free(blocks.pop(event["id"]))
        elif op == "empty_cache":
            gpu.empty_cache()
        else:
            gpu.set_memory_fraction(event["fraction"])
        expected = dict(zip(header["stats"], event["stats"], strict=True))
        came = {name: getattr(gpu, name) for name in expected} | {"out of memory": message is not None}
        expected["out of memory"] = event.get("oom", False)
        if "message" in event:
            expected["message"], came["message"] = event["message"], message
        if "segments" in event:
            expected["segments"], came["segments"] = event["segments"], _segments(gpu)
        wrong = [f"{name} {want} expected, got {came[name]}" for name, want in expected.items() if came[name] != want]
        if wrong:
            what = " ".join(f"{k}={v}" for k, v in event.items() if k != "stats")
            yield index, f"{what}: {'; '.join(wrong)}"


def _segments(gpu: Allocator) -> list[list[Any]]:
    """The snapshot as a recording has it."""
    segments = []
    for s in gpu.snapshot():
        blocks = [[b["size"], b["requested_size"], b["state"] == "active_allocated"] for b in s["blocks"]]
        segments.append([s["stream"], s["segment_type"] == "large", s["is_expandable"], blocks])
    return segments


class _History:
    """torch-memory-history/1: what the simulator logs for each request, against what the history has for it."""

    def __init__(self, header: Row, events: list[Row]) -> None:
        self.pending = list(header.get("step_stats", []))
        self.allocator = LoggingAllocator(header["total_memory"], header["settings"], self._place)
        self.expected = [(e["action"], 0 if e["action"] == "oom" else e["addr"], e["size"]) for e in events]
        self.streams = [e.get("stream", 0) for e in events]
        self.at = 0  # the event that comes next
        self.blocks: dict[int, Block] = {}  # the history's address -> our block

    def play(self) -> Iterator[Mismatch]:
        while self.at < len(self.expected):
            self.allocator.log.clear()
            action, end = self._request()
            self._act(action, end)
            pairs = zip_longest(self.allocator.log, self.expected[self.at : end])
            for n, (ours, theirs) in enumerate(pairs, self.at):
                if ours != theirs:
                    yield min(n, len(self.expected) - 1), f"{_say(theirs)} expected, got {_say(ours)}"
            self.at = end
            while self.pending and all(getattr(self.allocator, n) == self.pending[0][n] for n in STEP_STATS):
                del self.pending[0]
        for step in self.pending:
            yield -1, f"the statistics of a step never turned up: {step}"

    def _request(self) -> tuple[str, int]:
        """What the caller did to produce the next events, and the index behind the last of them."""
        expected, end = self.expected, self.at
        while end < len(expected) and expected[end][0] in GIVES_BACK:
            end += 1
        given_back = end
        while end < len(expected) and expected[end][0] not in CALLS:
            end += 1
        action, address, size = expected[end] if end < len(expected) else ("", 0, 0)
        # What was given back: the next request's own doing, or an empty_cache before it? Try the request on a copy.
        if given_back > self.at:
            trial = copy.copy(self.allocator)
            if action in ("alloc", "oom"):
                trial.request(size, self.streams[end])
            if trial.log != expected[self.at : end + 1]:
                return "empty_cache", given_back
        if action == "free_requested" and expected[end + 1 : end + 2] == [("free_completed", address, size)]:
            end += 1
        return action, min(end + 1, len(expected))

    def _act(self, action: str, end: int) -> None:
        want = self.expected[self.at : end]
        last, address, size = want[-1]
        if action in ("alloc", "oom"):
            block = self.allocator.request(size, self.streams[end - 1])
            if block is not None:
                self.blocks[address] = block
        elif action == "empty_cache":
            self.allocator.empty_cache()
        elif address in self.blocks:  # a free; else memory ran out here at its alloc, and was counted there
            block = self.blocks[address]
            self.allocator.log += [(name, block.address, block.requested_size) for name, _, _ in want]
            if last == "free_completed":
                self.allocator.free(self.blocks.pop(address))

    def _place(self, action: str, size: int, number: int) -> int | None:
        """Where the driver puts a segment: where the history has it, if that is event `number` of this request."""
        index = self.at + number
        same = index < len(self.expected) and self.expected[index][::2] == (action, size)
        return self.expected[index][1] if same else None


_PLAYERS: dict[str, Callable[[Row, list[Row]], Iterator[Mismatch]]] = {
    "allocator-trace/1": _play_trace,
    "torch-memory-history/1": lambda header, events: _History(header, events).play(),
}


def _say(event: Event | None) -> str:
    return "no event" if event is None else f"{event[0]} of {event[2]} bytes at {event[1]:#x}"


class LoggingAllocator(Allocator):
    """An allocator that logs what it does, as PyTorch's `record_trace` does, and puts segments where it is told."""

    def __init__(self, total_memory: int, settings: str, place: Place = lambda *_: None) -> None:
        super().__init__(total_memory, settings)
        self.place = place
        self.log: list[Event] = []
        self.held: dict[int, int] = {}  # segments from cudaMalloc: address -> size

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
        address = self.place("segment_alloc", size, len(self.log))
        if address is None or any(a < address + size and address < a + s for a, s in self.held.items()):
            return super()._new_address(size)  # no advice, or (after a mismatch) memory that is held here
        self._next_address = max(self._next_address, address + size)
        return address

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
            place = self.place("segment_map", in_pages(size, segment.page), len(self.log))
            if place is not None:
                unmapped = block.pool.unmapped[block.stream]
                del unmapped[block.address]
                block.address = segment.address = place
                unmapped[place] = block
        address, before = block.address, self.reserved_bytes
        done = super()._map(block, size)
        if done:
            self.log.append(("segment_map", address, self.reserved_bytes - before))
        return done

    def _unmap(self, block: Block) -> None:
        before, segment = self.reserved_bytes, block.segment
        assert segment is not None
        first_page = segment.address + in_pages(block.address - segment.address, segment.page)
        super()._unmap(block)
        if self.reserved_bytes != before:
            self.log.append(("segment_unmap", first_page, before - self.reserved_bytes))

    def __copy__(self) -> LoggingAllocator:
        """The same state in other objects, to try something on. (`copy.deepcopy` would recurse along the blocks.)"""
        pools = (self._small, self._large)
        unmapped = [b for pool in pools for by_address in pool.unmapped.values() for b in by_address.values()]
        blocks = [*self._active.values(), *unmapped, *(b for pool in pools for b in pool.in_order())]
        twins = {id(block): copy.copy(block) for block in blocks}
        memo: dict[int, Any] = {**twins, id(self.place): self.place}
        for twin in twins.values():
            for name in ("prev", "next", "pool", "segment"):
                setattr(twin, name, copy.deepcopy(getattr(twin, name), memo))
        other = LoggingAllocator.__new__(LoggingAllocator)
        vars(other).update(copy.deepcopy(vars(self), memo))
        return other
