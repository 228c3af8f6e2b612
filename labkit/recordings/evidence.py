"""What a lesson carries home from a GPU: `keep(name, thing)`, and how a thing is made small enough to carry.

Unless a recording is going on, `keep` only makes sure that the thing could be kept. What is left out is said where it
was; nothing here is random. This file reads and writes no recording and draws nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from labkit.events import Run, Step, decode, encode

# Names the file that kept things go to, while a recording is going on.
KEEP = "LABKIT_KEEP"


def keep(name: str, thing: Any) -> None:
    """Keep `thing` as evidence `name` of this lesson, if it is being recorded; otherwise nothing happens.

    name    one short line; a second thing of the same name takes the place of the first
    thing   whatever `labkit.events.encode` carries (a `Run`, an `Outcome`, texts, numbers, lists, dicts), with tensors,
            arrays and tuples as lists

    Raises, also where nothing is recorded: ValueError for the name; TypeError names the place in `thing` that cannot be
    carried.
    """
    if not name.strip() or "\n" in name or len(name) > 80:
        raise ValueError(f"keep: the name must be one line of at most 80 characters, got {name!r}")
    row = {"name": name, "value": encode(_as_lists(thing), f"keep({name!r})")}
    if kept := os.environ.get(KEEP):
        with open(kept, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


@contextlib.contextmanager
def collecting(path: Path) -> Iterator[None]:
    """While this lasts, what lessons keep goes to `path`, which starts empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("", encoding="utf-8")
    os.environ[KEEP] = str(path.resolve())
    try:
        yield
    finally:
        del os.environ[KEEP]


def collected(path: Path) -> dict[str, Any]:
    """Name -> the thing kept, in the order of their names' first appearance."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["name"]: decode(row["value"]) for row in rows}


def smaller(thing: Any, characters: int, events: int, change: Callable[[str], str]) -> Any:
    """`thing`, encoded: a run with at most so many events, every text changed and with at most so many characters."""
    if isinstance(thing, Run) and len(thing.events) > events:
        note = f"{events} of {len(thing.events)} events (first, last, lowest, highest, evenly spaced)"
        thing = Run(thinned(thing.events, events), thing.outcome, {**thing.meta, "thinned": note})
    return _texts(encode(thing), lambda text: without_middle(change(text), characters))


def without_middle(text: str, limit: int) -> str:
    """`text`, or its beginning and end, and between them a line that says how much is gone."""
    if len(text) <= limit:
        return text
    half = limit // 2
    gone = len(text) - 2 * half
    return f"{text[:half]}\n[... {gone} characters left out here ...]\n{text[-half:]}"


def thinned(rows: Sequence[Any], limit: int) -> list[Any]:
    """At most `limit` of the rows, in order, whatever they are: steps, dicts or numbers.

    Kept are the first and the last; as far as there is room, where a number stops being finite (or being there) and
    the row before that, then the lowest and highest of each number; then evenly spaced ones.
    """
    if len(rows) <= limit:
        return list(rows)
    kept = list(dict.fromkeys([0, len(rows) - 1, *_remarkable(rows)]))[:limit]
    rest, room = sorted(set(range(len(rows))) - set(kept)), limit - len(kept)
    kept += [rest[i * len(rest) // room] for i in range(room)]
    return [rows[i] for i in sorted(kept)]


def _remarkable(rows: Sequence[Any]) -> list[int]:
    """Where each number is first not there after it was, the place before that, and where it is lowest and highest."""
    columns: dict[str, dict[int, float]] = {}
    for i, row in enumerate(rows):
        for name, value in _numbers(row).items():
            columns.setdefault(name, {})[i] = value
    broken = [next((i for i in range(min(c), len(rows)) if i not in c), 0) for c in columns.values()]
    extremes = [end(c, key=c.__getitem__) for c in columns.values() for end in (min, max)]
    return [place for i in broken if i for place in (i, i - 1)] + extremes


def _numbers(row: Any) -> dict[str, float]:
    """The finite numbers of a step or a dict by name, or the one that `row` is."""
    if isinstance(row, Step):
        row = {**vars(row), **row.extra}
    named = row if isinstance(row, dict) else {"": row}
    return {n: v for n, v in named.items() if type(v) is int or (type(v) is float and math.isfinite(v))}


def _as_lists(thing: Any) -> Any:
    """Tensors, arrays and tuples as lists, wherever they stand in lists, dicts and the events of a run."""
    if callable(getattr(thing, "tolist", None)):
        return thing.tolist()
    if isinstance(thing, (list, tuple)):
        return [_as_lists(v) for v in thing]
    if isinstance(thing, dict):
        return {k: _as_lists(v) for k, v in thing.items()}
    if isinstance(thing, Run):
        return Run(_as_lists(thing.events), thing.outcome, _as_lists(thing.meta))
    return thing


def _texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same plain data with every text changed, but for the keys of dicts."""
    if isinstance(value, dict):
        return {k: _texts(v, change) for k, v in value.items()}
    if isinstance(value, list):
        return [_texts(v, change) for v in value]
    return change(value) if isinstance(value, str) else value
