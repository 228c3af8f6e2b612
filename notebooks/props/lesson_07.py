"""What page 07 uses and does not teach: the processes that play a recorded run to a card, and what they report.

A process reads its allocator variables as torch does, and plays the list to a card: on CUDA to the device's own allocator,
else to a simulated card that has the settings that torch read in that process. The recordings stand in
`lesson_07_recording`, what needs no process in `lesson_07_cards`, the judges in `lesson_07_judges`, the pictures in
`lesson_07_pictures`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from labkit import memory, sandbox
from labkit.events import Run

from .card import Allocator, OutOfMemory
from .lesson_07_recording import Calls

GIB, MIB = 2**30, 2**20
OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
ON = "expandable_segments:True"

Settings = Mapping[str, str]  # variables of a process
Pieces = Sequence[tuple[str, int]]  # a segment in order: (what lies there, or "free"; bytes)


class Device:
    """A CUDA device, limited by `memory.limit`, with the methods of the simulated card that are used here."""

    def __init__(self) -> None:
        self.uses: dict[int, str] = {}  # address -> what for

    def malloc(self, nbytes: int, tag: str) -> torch.Tensor:
        block = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        self.uses[block.data_ptr()] = tag
        return block

    def free(self, block: torch.Tensor) -> None: ...  # the caller has let go of it

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()

    @property
    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated()

    @property
    def reserved_bytes(self) -> int:
        return torch.cuda.memory_reserved()

    def snapshot(self) -> list[dict[str, Any]]:
        segments = torch.cuda.memory._snapshot()["segments"]
        for block in (block for segment in segments for block in segment["blocks"]):
            live = block["state"] == "active_allocated"
            block["tag"] = self.uses.get(block["address"], "other") if live else None
        return segments


def is_cuda(device: str, card_gib: float = 0.0) -> bool:
    """Whether the device is a GPU with room for such a card."""
    if device == "cpu" or not torch.cuda.is_available():
        return False
    return torch.cuda.mem_get_info()[0] > (card_gib + 1) * GIB


def first_use(cuda: bool) -> str:
    """What torch reads from its allocator variables when the device is used for the first time in a process.

    A build without CUDA has torch's reader of these variables and no allocator; there the reader is asked.
    """
    if not cuda:
        return torch._C._accelerator_getAllocatorSettings()
    torch.ones(1, device="cuda")
    return torch.cuda.memory._snapshot()["allocator_settings"].get(OLD, "")


def segments_of(card: Any) -> list[Pieces]:
    """Every segment of a card. Neighbours that are alike are one piece."""
    rows: list[Pieces] = []
    for segment in card.snapshot():
        pieces: list[tuple[str, int]] = []
        for block in segment["blocks"]:
            tag, size = block["tag"] or "free", block["size"]
            if pieces and pieces[-1][0] == tag:
                size += pieces.pop()[1]
            pieces.append((tag, size))
        rows.append(pieces)
    return rows


def play(calls: Calls, card: Any) -> Iterator[tuple[int, str]]:
    """Play a recorded run to a card; yields (the call's number, the phase) after every call."""
    live: dict[int, Any] = {}
    phase = "build"
    for at, (call, *rest) in enumerate(calls):
        if call == "mark":
            phase = rest[0]
        elif call == "malloc":
            live[rest[0]] = card.malloc(rest[1], tag=rest[2])
        elif call == "free" and rest[0] in live:
            card.free(live.pop(rest[0]))
        elif call == "relabel" and rest[0] in live and hasattr(live[rest[0]], "tag"):
            live[rest[0]].tag = rest[1]  # the recorder learns later what it was for
        elif call == "empty_cache":
            card.empty_cache()
        yield at, phase


def training(
    calls: Calls, card_gib: float, cuda: bool, later: Settings, watch: Collection[int]
) -> Iterator[dict[str, Any]]:
    """In a process of its own: read the settings, then play the run to a card of this size.

    later   variables that the script sets after the first use of the device
    """
    read = first_use(cuda)
    yield {"read": read}
    os.environ.update(later)
    size = int(card_gib * GIB)
    card = Device() if cuda else Allocator(size, read)
    at, phase = -1, "build"
    with memory.limit(size, "cuda") if cuda else contextlib.nullcontext():
        try:
            for at, phase in play(calls, card):
                if at + 1 in watch:
                    yield {"call": at + 1, "phase": phase, **_seen(card)}
        except (OutOfMemory, torch.OutOfMemoryError):
            before, asked = card.reserved_bytes, calls[at + 1][2]
            yield {"call": at + 1, "phase": phase, **_seen(card)}
            yield {"refused": at + 1, "asked": asked, "free": size - before}
            card.empty_cache()
            yield {"given back": before - card.reserved_bytes}
            raise
    yield {"served": at + 1}


def _seen(card: Any) -> dict[str, Any]:
    return {"reserved": card.reserved_bytes, "segments": segments_of(card)}


def start(
    environment: Settings,
    *,
    calls: Calls,
    card_gib: float,
    device: str,
    later: Settings | None = None,
    watch: Collection[int] = (),
) -> Run:
    """Start the training in a process that has these allocator variables and no others, and wait for its end.

    watch   the calls before which it reports what lies on the card
    """
    cuda = is_cuda(device, card_gib)
    env = {OLD: None, NEW: None, **environment}
    return sandbox.run(
        training, calls, card_gib, cuda, later or {}, set(watch), env=env, fresh=cuda, timeout=300
    )


def start_with(make: Callable[..., Any], inherited: Settings, **settings: Any) -> Run:
    """`start`, in the environment that a reader's function makes. One that makes none has a run that ended at once."""
    made = sandbox.run(_environment, make, inherited, timeout=30)
    return start(made.events[0], **settings) if made.outcome else made


def _environment(make: Callable[..., Any], inherited: Settings) -> Iterator[dict[str, str]]:
    made = make(dict(inherited))
    if fault := fault_of(made):
        raise TypeError(fault)
    yield dict(made)


def fault_of(environment: Any) -> str:
    """Why no process can have this environment, in words; "" where one can."""
    if not isinstance(environment, Mapping):
        return f"a dict of variables is expected, it returned {environment!r}"
    for name, text in environment.items():
        if not isinstance(name, str) or not isinstance(text, str):
            return f"names and values are texts; it has {name!r}: {text!r}"
        if not name or "=" in name or "\0" in name + text:
            return f"no process can have a variable {name!r}: {text!r}"
    return ""


def value(run: Run, word: str) -> Any:
    """What the process reported under this word; 0 where it did not come so far."""
    return next((event[word] for event in run.events if word in event), 0)


def moments(run: Run) -> dict[int, dict[str, Any]]:
    """Call -> what lay on the card before it; at a refusal after PyTorch had given back what it could."""
    return {event["call"]: event for event in run.events if "call" in event}


def end_of(run: Run) -> str:
    """How a process ended, in words."""
    if value(run, "served"):
        return "all four rounds"
    if value(run, "refused"):
        last = max(moments(run))
        return f"out of memory in {moments(run)[last]['phase']}"
    return f"does not start: {run.outcome.message}"


def rows_of(runs: Mapping[str, Run]) -> list[dict[str, str]]:
    """A row for each process: what torch read there, and its end."""
    rows = []
    for name, run in runs.items():
        row = {"the process has": name, "torch read": value(run, "read") or "nothing"}
        rows.append(row | {"its end": end_of(run)})
    return rows


def longest_free(segments: Sequence[Pieces]) -> int:
    """Bytes of the longest free piece."""
    return max((size for pieces in segments for tag, size in pieces if tag == "free"), default=0)


def beside_the_longest(segments: Sequence[Pieces]) -> dict[str, int]:
    """What lies in the segment that has the longest free piece: what for -> MiB."""
    longest = longest_free(segments)
    segment = next(pieces for pieces in segments if ("free", longest) in pieces)
    sizes: dict[str, int] = {}
    for tag, size in segment:
        sizes[tag] = sizes.get(tag, 0) + size
    return {tag: round(size / MIB) for tag, size in sorted(sizes.items()) if tag != "free"}
