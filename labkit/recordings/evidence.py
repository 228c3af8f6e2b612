"""What a lesson carries home from a GPU: `keep(name, thing)`, and the plain form that a thing travels in.

A kept thing is a `Run` (its events and how it ended), a text, plain data, or the file of a memory history, which
`labkit.memory.allocator.replay` reads. Unless a recording is going on, `keep` only makes sure that the thing could be
kept. This file reads and writes no recording and draws nothing.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import gzip
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labkit.events import Outcome, Run, Step, decode, encode

KEEP = "LABKIT_KEEP"  # names the file that kept things go to, while a recording is going on
HISTORIES = ("torch-memory-history/1", "allocator-trace/1")  # formats of labkit.memory.allocator.traces
LARGEST_HISTORY = 300_000  # bytes, compressed


def keep(name: str, thing: Any) -> None:
    """Keep `thing` as evidence `name` of this lesson, if it is being recorded; otherwise nothing happens.

    `thing` is a `Run`, an `Outcome`, a text, numbers, texts, lists and dicts (tensors and arrays become lists), or a
    `labkit.memory.record_history` that has ended, or the path of its file. A second thing of the same name takes the
    place of the first. ValueError for a name that is not one short line or a file that is no history, TypeError for a
    thing that cannot be written down, with its place: also where nothing is recorded.
    """
    if not isinstance(name, str) or not name.strip() or "\n" in name or len(name) > 80:
        raise ValueError(f"keep: the name must be one line of at most 80 characters, got {name!r}")
    item = pack(thing, f"keep({name!r})")
    if path := os.environ.get(KEEP):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "item": item}) + "\n")


@contextlib.contextmanager
def collecting(path: Path) -> Iterator[None]:
    """While this lasts, what lessons keep goes to `path`, which starts empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("", encoding="utf-8")
    before = os.environ.get(KEEP)
    os.environ[KEEP] = str(path.resolve())
    try:
        yield
    finally:
        os.environ.pop(KEEP)
        if before is not None:
            os.environ[KEEP] = before


def collected(path: Path) -> dict[str, dict[str, Any]]:
    """Name -> item, in the order of their names' first appearance; empty when nothing was kept."""
    if not path.is_file():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["name"]: line["item"] for line in lines}


def pack(thing: Any, where: str = "evidence") -> dict[str, Any]:
    """`thing` as a JSON object with a `kind`: run, text, data or history. TypeError names the place that does not fit.

    A history goes as text (`gz`); in a recording it is a file of its own.
    """
    path = thing if isinstance(thing, Path) else getattr(thing, "path", None)
    if isinstance(path, Path):
        return {"kind": "history", **_history(path, where)}
    if isinstance(thing, Outcome):
        thing = Run(outcome=thing)
    if isinstance(thing, Run):
        return {
            "kind": "run",
            "meta": encode(_loosely(thing.meta)),
            "events": [_event(e) for e in thing.events],
            "outcome": encode(dataclasses.asdict(thing.outcome)),
        }
    if isinstance(thing, str):
        return {"kind": "text", "text": thing}
    return {"kind": "data", "data": encode(_strictly(thing, where))}


def unpack(item: Mapping[str, Any], folder: Path | None = None) -> Any:
    """What `pack` was given: a `Run`, a text, data, or the path of a history in `folder`."""
    if item["kind"] == "history":
        return (folder or Path()) / item["file"]
    if item["kind"] == "run":
        rows = decode(item["events"])
        events = [Step.from_log(row["step"]) if "step" in row else row["event"] for row in rows]
        return Run(events, Outcome(**decode(item["outcome"])), dict(decode(item["meta"])))
    return item["text"] if item["kind"] == "text" else decode(item["data"])


def _history(path: Path, where: str) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        header = json.loads(text.split("\n", 1)[0])
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{where}: {path} cannot be read as a memory history ({error})") from None
    if not isinstance(header, dict) or header.get("format") not in HISTORIES:
        raise ValueError(
            f"{where}: {path} is no memory history: expected the format {' or '.join(HISTORIES)}"
        )
    packed = gzip.compress(text.encode(), mtime=0)
    if len(packed) > LARGEST_HISTORY:
        raise ValueError(
            f"{where}: {path} is {len(packed)} bytes compressed, at most {LARGEST_HISTORY} can be kept"
        )
    return {"events": len(text.splitlines()) - 1, "gz": base64.b64encode(packed).decode("ascii")}


def _event(event: Any) -> dict[str, Any]:
    return {"step": encode(event.log())} if isinstance(event, Step) else {"event": encode(_loosely(event))}


def _strictly(value: Any, where: str) -> Any:
    """Plain data; TypeError where a value is none."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Step):
        return value.log()
    if isinstance(value, Mapping):
        if set(value) == {"float"}:
            raise ValueError(
                f"{where}: a dict whose only key is 'float' stands for a NaN in the file; rename it"
            )
        return {_key(k, where): _strictly(v, f"{where}[{k!r}]") for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strictly(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if callable(getattr(value, "tolist", None)):  # numpy and torch, scalars included
        return value.tolist()
    raise TypeError(
        f"{where} is a {type(value).__name__}: expected a Run, a text, or numbers, texts, lists and dicts"
    )


def _key(key: Any, where: str) -> str:
    if isinstance(key, (str, int)):
        return str(key)
    raise TypeError(f"{where} has the key {key!r}: expected texts or whole numbers as keys")


def _loosely(value: Any) -> Any:
    """Plain data; where a value is none, what it prints as. For a run's settings and odd events."""
    if isinstance(value, Mapping):
        return {str(k): _loosely(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_loosely(v) for v in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)
