"""Replay a recording of PyTorch's own allocator on the simulator, up to the first event where the two disagree.

`replay(path)` reads `.jsonl` or `.jsonl.gz`, one JSON object per line, a header first. Two formats:

`allocator-trace/1`: a header with `total_memory`, `settings` and the names in `stats`, then the events `malloc`
(`id`, `bytes`, `oom`, optional `stream`), `free` (`id`), `empty_cache` and `set_fraction` (`fraction`), each with
PyTorch's statistics after it. Every statistic is compared after every event. A free after a refusal does nothing.

`torch-memory-history/1`: a header with `total_memory` and `settings`, then the events of
`torch.cuda.memory._snapshot()["device_traces"][device]`, less `snapshot`: `action`, `addr`, `size`, optional `stream`.
`alloc` and `free_completed` are replayed (until then another stream may use a block), and after each `alloc` the
address and the bytes reserved are compared. Where the driver puts a segment is taken from the history. Not said there:

- `empty_cache()` has no event. Segments given back are read as one, so a history in which memory runs short does not
  replay; the traces have that.
- Steps have no mark. The header's `step_stats` (four statistics after each step) must turn up in order.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from props.card.simulator import Allocator, OutOfMemory

Row = dict[str, Any]  # the header, or an event, as it stands in the file


@dataclass(frozen=True)
class Replay:
    """True when every event agreed."""

    events: int
    first_mismatch: str | None  # file, line, what was expected and what came

    def __bool__(self) -> bool:
        return self.first_mismatch is None


def replay(path: str | Path) -> Replay:
    """Replay one recording."""
    path = Path(path)
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    header, *events = [json.loads(line) for line in text.splitlines()]
    play = {"allocator-trace/1": _play_trace, "torch-memory-history/1": _play_history}[header["format"]]
    for line, came, expected in play(header, events):
        wrong = [f"{name} {want} expected, got {came[name]}" for name, want in expected.items() if came[name] != want]
        if wrong:
            return Replay(len(events), f"{path}, line {line}: {'; '.join(wrong)}")
    return Replay(len(events), None)


def _play_trace(header: Row, events: list[Row]) -> Iterator[tuple[int, Row, Row]]:
    """After each event its line, what the simulator has and what the recording has."""
    gpu, blocks = Allocator(header["total_memory"], header["settings"]), {}
    for line, event in enumerate(events, 2):
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
        came = {name: getattr(gpu, name) for name in expected}
        expected["out of memory"], came["out of memory"] = event.get("oom", False), message is not None
        if "message" in event:
            expected["message"], came["message"] = event["message"], message
        if "segments" in event:
            expected["segments"], came["segments"] = event["segments"], _segments(gpu)
        yield line, came, expected


def _segments(gpu: Allocator) -> list[list[Any]]:
    """The snapshot as a recording has it."""
    segments = []
    for s in gpu.snapshot():
        blocks = [[b["size"], b["requested_size"], b["state"] == "active_allocated"] for b in s["blocks"]]
        segments.append([s["stream"], s["segment_type"] == "large", s["is_expandable"], blocks])
    return segments


def _play_history(header: Row, events: list[Row]) -> Iterator[tuple[int, Row, Row]]:
    gpu, blocks, reserved = _Placed(header["total_memory"], header["settings"]), {}, 0
    steps, pending = 0, list(header.get("step_stats", []))
    for line, event in enumerate(events, 2):
        action, address, size = event["action"], event["addr"], event["size"]
        if action in ("segment_alloc", "segment_map"):
            gpu.place = gpu.place or address
            reserved += size
        elif action in ("segment_free", "segment_unmap"):
            gpu.empty_cache()  # the first of several gives all back
            reserved -= size
        elif action == "alloc":
            block = blocks[address] = gpu.malloc(size, event.get("stream", 0))
            gpu.place = None
            came = {"address": block.address, "reserved": gpu.reserved_bytes}
            yield line, came, {"address": address, "reserved": reserved}
        elif action == "free_completed":
            gpu.free(blocks.pop(address))
        if pending and all(getattr(gpu, name) == value for name, value in pending[0].items()):
            del pending[0]
            steps += 1
    yield 1, {"steps that turned up": steps}, {"steps that turned up": steps + len(pending)}
    yield line, {"reserved at the end": gpu.reserved_bytes}, {"reserved at the end": reserved}


class _Placed(Allocator):
    """Its next new segment goes where it is told."""

    place: int | None = None

    def _new_address(self, size: int) -> int:
        return super()._new_address(size) if self.place is None else self.place
