"""Replay a recording of PyTorch's own allocator on the simulator and count where the two disagree.

`replay(path)` reads `.jsonl` or `.jsonl.gz`, one JSON object a line, a header first. Two formats:

`allocator-trace/1`: a header with `total_memory`, `settings` and the names in `stats`, then the events `malloc`
(`id`, `bytes`, `oom`, optional `stream`), `free` (`id`), `empty_cache` and `set_fraction` (`fraction`), each with
PyTorch's statistics after it. Every statistic is compared after every event. A malloc that ran out of memory may
be freed: that does nothing.

`torch-memory-history/1`: the events of `torch.cuda.memory._snapshot()["device_traces"]`; see `history.py`.

This file does not record. The recordings come from PyTorch's compiled allocator.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from . import history
from .simulator import STATS, Allocator, Block, OutOfMemory

TRACE = "allocator-trace/1"
HISTORY = "torch-memory-history/1"


@dataclass(frozen=True)
class Replay:
    """The result of a replay. True when every event agreed."""

    events: int
    mismatches: int  # events that differ, plus step statistics that never turned up
    first_mismatch: str | None  # file, line, what was expected and what came
    seconds: float  # the simulator alone, without reading and comparing
    parse_seconds: float = 0.0  # reading and checking the file
    steps: int = 0  # step statistics that turned up, in a memory history

    def __bool__(self) -> bool:
        return self.mismatches == 0


def replay(path: str | Path) -> Replay:
    """Replay one recording. ValueError names the file and the line of anything that does not fit the format."""
    path = Path(path)
    start = perf_counter()
    header, events = _read(path)
    kind = header.get("format")
    make: Any = Allocator
    check, run = _checker, _run
    if kind == HISTORY:
        make, check, run = history.Recording, history.checker, history.run
    elif kind != TRACE:
        raise ValueError(f"{path}, line 1: expected the format {TRACE!r} or {HISTORY!r}, got {kind!r}")
    with _Line(path) as line:
        allocator = make(header["total_memory"], header["settings"])
        check_event = check(header)
        for line.number, event in enumerate(events, 2):
            check_event(event)
    parse_seconds = perf_counter() - start
    mismatches, first, seconds, steps = run(header, events, allocator)
    where = None if first is None else f"{path}, line {first[0] + 2}: {first[1]}"
    return Replay(len(events), mismatches, where, seconds, parse_seconds, steps)


def _read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the events; events[n] stands in line n + 2."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = raw.decode("utf-8").splitlines()
    except OSError as error:  # a missing file, or one that is not gzip
        raise ValueError(f"{path}: cannot be read: {error}") from error
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: damaged or cut short: {error}") from error
    if not lines:
        raise ValueError(f"{path}: the file is empty; expected a header line")
    rows = []
    with _Line(path) as line:
        for line.number, text in enumerate(lines, 1):
            row = json.loads(text)
            if not isinstance(row, dict):
                raise ValueError(f"expected a JSON object, got {text[:60]!r}")
            rows.append(row)
    return rows[0], rows[1:]


class _Line:
    """Turns an error inside the `with` into a ValueError that names the file and the line in `number`."""

    def __init__(self, path: Path) -> None:
        self.path, self.number = path, 1

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        where = f"{self.path}, line {self.number}"
        if isinstance(error, json.JSONDecodeError):
            raise ValueError(f"{where}: not JSON: {error}") from error
        if isinstance(error, KeyError):
            raise ValueError(f"{where}: the key {error} is missing") from error
        if isinstance(error, (TypeError, ValueError, RecursionError)):
            raise ValueError(f"{where}: {error}") from error


# ---- allocator-trace/1 ----------------------------------------------------------------------------------


def _checker(header: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    """Checks events in order: a known op with its fields, and no free of an id that is not in use."""
    names = header["stats"]
    if not isinstance(names, list) or not names or not set(names) <= set(STATS):
        raise ValueError(f"'stats' must list some of {', '.join(STATS)}; got {names!r}")
    live: set[int] = set()
    refused: set[int] = set()  # ran out of memory: may be freed, which does nothing

    def check(event: dict[str, Any]) -> None:
        op = event["op"]
        if op == "malloc":
            history.whole_numbers(event, "id", "bytes")
            history.whole_numbers({"stream": 0, **event}, "stream")
            if type(event["oom"]) is not bool:
                raise ValueError(f"'oom' must be true or false, got {event['oom']!r}")
            if event["id"] in live:
                raise ValueError(f"malloc of id {event['id']}, which is in use")
            (refused if event["oom"] else live).add(event["id"])
        elif op == "free":
            history.whole_numbers(event, "id")
            if event["id"] not in live and event["id"] not in refused:
                raise ValueError(
                    f"free of id {event['id']}, which is not in use: freed twice, or never allocated"
                )
            live.discard(event["id"])
            refused.discard(event["id"])
        elif op == "set_fraction":
            if type(event["fraction"]) not in (int, float) or not 0 <= event["fraction"] <= 1:
                raise ValueError(f"'fraction' must be a number from 0 to 1, got {event['fraction']!r}")
        elif op != "empty_cache":
            raise ValueError(f"unknown op {op!r}; expected malloc, free, empty_cache or set_fraction")
        values = event["stats"]
        if (
            not isinstance(values, list)
            or len(values) != len(names)
            or any(type(v) is not int for v in values)
        ):
            raise ValueError(f"'stats' must be {len(names)} whole numbers, got {values!r}")

    return check


def _run(
    header: dict[str, Any], events: list[dict[str, Any]], allocator: Any
) -> tuple[int, tuple[int, str] | None, float, int]:
    """Mismatches, the first one (event index and text), seconds, 0.

    All events run first, with a row of statistics kept for each, and are compared afterwards.
    """
    program = [
        (e["op"], e.get("id", -1), e.get("bytes", 0), e.get("stream", 0), e.get("fraction", 1.0))
        for e in events
    ]
    rows: list[tuple[int, ...]] = []
    ran_out: set[int] = set()  # events that ran out of memory here
    blocks: dict[int, Block] = {}
    malloc, free, row, keep = allocator.malloc, allocator.free, allocator.stats_row, rows.append
    start = perf_counter()
    for op, name, size, stream, fraction in program:
        if op == "malloc":
            try:
                blocks[name] = malloc(size, stream)
            except OutOfMemory:
                ran_out.add(len(rows))
        elif op == "free":
            if name in blocks:  # else memory ran out at its malloc, and freeing it does nothing
                free(blocks.pop(name))
        elif op == "empty_cache":
            allocator.empty_cache()
        else:
            allocator.set_memory_fraction(fraction)
        keep(row())
    seconds = perf_counter() - start

    columns = [(name, STATS.index(name)) for name in header["stats"]]
    mismatches, first = 0, None
    for index, (event, got) in enumerate(zip(events, rows, strict=True)):
        different = [
            f"{name} {want} expected, got {got[at]}"
            for (name, at), want in zip(columns, event["stats"], strict=True)
            if got[at] != want
        ]
        if event.get("oom", False) != (index in ran_out):
            different.append(f"out of memory {event['oom']} expected, got {index in ran_out}")
        if different:
            mismatches += 1
            what = " ".join(f"{k}={v}" for k, v in event.items() if k != "stats")
            first = first or (index, f"{what}: {'; '.join(different)}")
    return mismatches, first, seconds, 0
