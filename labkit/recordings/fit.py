"""Make a recording small enough to carry: long texts lose their middle, long lists lose entries between the extremes.

What was left out is said: in the text itself, and in the `notes` of the evidence. Nothing here is random.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

LIMIT = 300_000  # bytes a recording
LEVELS = [  # (characters a text, entries a list), from generous to tight
    (64_000, 2_000), (32_000, 1_000), (16_000, 500), (8_000, 250), (4_000, 120), (2_000, 60), (1_000, 30),
]  # fmt: skip


def fit(row: dict[str, Any], limit: int = LIMIT) -> dict[str, Any]:
    """The recording in at most `limit` bytes. ValueError names the largest evidence when that cannot be done."""
    for characters, entries in LEVELS:
        evidence = {name: _smaller(item, characters, entries) for name, item in row["evidence"].items()}
        smaller = {**row, "evidence": evidence}
        if size(smaller) <= limit:
            return smaller
    largest = max(evidence, key=lambda name: size(evidence[name]), default="")
    raise ValueError(
        f"recording of lesson {row['lesson']}: {size(smaller)} bytes where {limit} are allowed, even when cut short; "
        f"keep less, first of all in {largest!r} ({size(evidence[largest]) if evidence else 0} bytes)"
    )


def size(value: Any) -> int:
    """Bytes of `value` as JSON in UTF-8."""
    return len(text_of(value).encode())


def text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def without_middle(text: str, limit: int) -> str:
    """`text`, or its beginning and end, cut at line ends where there are any, and a line that says how much is gone."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 2], text[-(limit // 2) :]
    if (at := head.rfind("\n")) > 0:
        head = head[:at]
    if 0 <= (at := tail.find("\n")) < len(tail) - 1:
        tail = tail[at + 1 :]
    gone = len(text) - len(head) - len(tail)
    return f"{head}\n[... {gone} characters left out of the recording here ...]\n{tail}"


def thinned(rows: Sequence[Any], limit: int) -> list[Any]:
    """At most `limit` of the rows, in order: first and last, then, as far as there is room, where a number in them
    stops being finite (or being there), the lowest and highest of each, and evenly spaced ones."""
    if len(rows) <= limit:
        return list(rows)
    last = len(rows) - 1
    kept = list(dict.fromkeys([0, last, *_remarkable(rows)]))[:limit]
    room = limit - len(kept)
    taken = set(kept)
    spaced = [i for i in (round(n * last / max(1, limit - 1)) for n in range(limit)) if i not in taken]
    kept += [spaced[n * len(spaced) // room] for n in range(room)]
    return [rows[i] for i in sorted(kept)]


def _remarkable(rows: Sequence[Any]) -> list[int]:
    """Where each number is last fine before it is first not, where that is, and where it is lowest and highest."""
    columns: dict[Any, list[tuple[float, int]]] = {}
    for i, row in enumerate(rows):
        for name, value in _numbers(row):
            if math.isfinite(value):
                columns.setdefault(name, []).append((value, i))
    places: list[int] = []
    for values in columns.values():
        good = {i for _, i in values}
        broken = next((i for i in range(values[0][1], len(rows)) if i not in good), None)
        if broken is not None:
            places += [broken, broken - 1]
    for values in columns.values():
        places += [min(values)[1], max(values, key=lambda v: (v[0], -v[1]))[1]]
    return places


def _numbers(row: Any) -> list[tuple[Any, float]]:
    """The numbers of one entry, by name: of a run's event, of a row, of a list, or the number that it is."""
    if isinstance(row, dict) and set(row) in ({"step"}, {"event"}):
        row = next(iter(row.values()))
    if isinstance(row, dict) and set(row) == {"float"}:
        return [("", float("nan"))]
    if isinstance(row, dict):
        named = list(row.items())
    elif isinstance(row, list):
        named = list(enumerate(row))
    else:
        named = [("", row)]
    numbers = [(n, math.nan if isinstance(v, dict) and set(v) == {"float"} else v) for n, v in named]
    return [(n, float(v)) for n, v in numbers if isinstance(v, (int, float)) and not isinstance(v, bool)]


def _smaller(item: dict[str, Any], characters: int, entries: int) -> dict[str, Any]:
    notes: list[str] = []

    def cut(value: Any, where: str) -> Any:
        if isinstance(value, str):
            return without_middle(value, characters)
        if isinstance(value, dict):
            return {k: cut(v, f"{where}.{k}" if where else k) for k, v in value.items()}
        if isinstance(value, list):
            rows = thinned(value, entries)
            if len(rows) < len(value):
                notes.append(
                    f"{where}: {len(rows)} of {len(value)} entries (first, last, lowest, highest, evenly spaced)"
                )
            return [cut(v, f"{where}[]") for v in rows]
        return value

    smaller = cut(item, "")
    return {**smaller, "notes": notes} if notes else smaller
