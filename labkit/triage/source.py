"""Where a log comes from: a path, a text, standard input, a packed file, a Run. In blocks of whole lines.

A source is read once. Up to WHOLE bytes of it are given as they are; of a larger one the first EDGE and the last EDGE,
and how many lines lie between them. This file knows nothing of what stands in a line.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import os
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

WHOLE = 64 << 20  # bytes of a source that is read whole
EDGE = 16 << 20  # bytes at the start and at the end of a larger one that are read
BLOCK = 1 << 18  # bytes that are read at once
START = 8192  # bytes by which it is told whether a source is text
GZIP = b"\x1f\x8b"  # how a packed file begins
# control characters that no log has; a tab, a bell, a backspace, line ends and an escape (colour) it may have
NOT_OF_TEXT = bytes(set(range(32)) - set(b"\t\a\b\n\r\f\x1b"))


class Block(NamedTuple):
    """Some whole lines, and how many lines before them were left out."""

    text: str
    left_out: int = 0


class SavedRun(NamedTuple):
    """A run of labkit: rows of numbers, the settings, and what its process wrote when it ended."""

    rows: list[dict[str, float]]
    settings: dict[str, Any]
    text: str


def name_of(source: Any) -> str:
    """What a source is called in the answer."""
    if source == "-":
        return "standard input"
    if is_text(source):
        return "a text"
    return str(source)


def is_text(source: Any) -> bool:
    """Whether a string is the log itself: it has a line's end, or there is no such file."""
    return isinstance(source, str) and source != "-" and ("\n" in source or not os.path.exists(source))


def blocks(source: Any, notes: list[str]) -> Iterator[Block]:
    """The lines of a source. `notes` gets what a reader should know of it.

    Raises: OSError when a file cannot be opened.
    """
    if is_text(source):
        yield from _edges(io.BytesIO(source.encode("utf-8", "replace")), notes, "a text")
        return
    name = name_of(source)
    with _opened(source) as file:
        try:
            yield from _text_of(file, notes, name)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            notes.append(f"{name} is a damaged gzip file: it was read up to the damage")


def _opened(source: Any) -> contextlib.AbstractContextManager[IO[bytes]]:
    if source == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    return open(source, "rb")


def _text_of(file: Any, notes: list[str], name: str) -> Iterator[Block]:
    """The lines of an open file, unpacked where it is packed. Where it is no text there are none, and a note."""
    if file.peek(len(GZIP))[: len(GZIP)] == GZIP:
        file = gzip.GzipFile(fileobj=file)
    start = file.peek(START)[:START]
    wide = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if not start.strip() and len(start) < START:
        notes.append(f"{name} is empty")
    elif b"\0" in start and not wide:
        notes.append(f"{name} is no text: it has null bytes")
    elif len(start) - len(start.translate(None, NOT_OF_TEXT)) > 0.03 * len(start) and not wide:
        notes.append(f"{name} is no text: it is full of control characters")
    else:
        text = codecs.EncodedFile(file, "utf-8", "utf-16", "replace") if wide else file
        yield from _edges(text, notes, name)


def _edges(file: Any, notes: list[str], name: str) -> Iterator[Block]:
    """The first EDGE bytes at once; what follows is held until it is clear how much of it is given."""
    size_of_start, size_of_rest, left_out = 0, 0, 0
    rest: deque[bytes] = deque()
    for block in _whole_lines(file):
        if size_of_start < EDGE:
            size_of_start += len(block)
            yield Block(_decoded(block))
            continue
        rest.append(block)
        size_of_rest += len(block)
        most = EDGE if left_out else WHOLE - EDGE
        if size_of_rest > most:
            while size_of_rest > EDGE:
                dropped = rest.popleft()
                size_of_rest -= len(dropped)
                left_out += dropped.count(b"\n")
    if left_out:
        edge = EDGE >> 20
        notes.append(f"{name} is long: its first and last {edge} MiB were read, {left_out} lines between were not")
    for block in rest:
        yield Block(_decoded(block), left_out)
        left_out = 0


def _whole_lines(file: Any) -> Iterator[bytes]:
    """Blocks that end where a line ends. A line longer than a block is cut into several."""
    rest = b""
    while block := file.read(BLOCK):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield whole + newline
        elif len(rest) > BLOCK:
            yield rest
            rest = b""
    if rest:
        yield rest


def _decoded(block: bytes) -> str:
    return block.decode("utf-8", "replace")


def saved_run(source: Any) -> SavedRun | None:
    """A run of labkit, or what it saved in a file; None where the source is something else, or damaged."""
    if hasattr(source, "steps") and hasattr(source, "outcome"):
        ended = source.outcome
        words = "\n".join([ended.stderr, ended.traceback, ended.message])
        return SavedRun([step.log() for step in source.steps], dict(source.meta), words)
    if not isinstance(source, str | Path) or is_text(source) or source == "-" or not os.path.isfile(source):
        return None
    with open(source, "rb") as file:
        if not file.read(40).startswith(b'{"format": "labkit-run/'):
            return None
        file.seek(0)
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            return _from_lines([json.loads(line) for line in file])
    return None


def _from_lines(lines: list[dict[str, Any]]) -> SavedRun:
    """A saved run: a line with the settings, one for each event, and one that says how it ended.

    Raises: ValueError when no such end is there.
    """
    rows, words, ended = [], "", False
    for line in lines[1:]:
        event = line.get("event")
        if isinstance(event, dict) and "$step" in event:
            rows.append(event["$step"] | event["$step"].get("extra", {}))
        if "outcome" in line:
            outcome = line["outcome"]["$outcome"]
            words = "\n".join(outcome.get(name, "") for name in ("stderr", "traceback", "message"))
            ended = True
    if not ended:
        raise ValueError("no outcome follows: the file is cut short")
    return SavedRun(rows, lines[0]["meta"], words)
