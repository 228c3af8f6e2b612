"""Write what a lesson did on this machine's GPU: `NN.json`, and `summary.json` over all lessons.

Called by `labkit course --record`. A file appears whole or not at all, and only for a lesson that passed. Paths of the
machine are shortened (`<lab>`, `<python>`, `<cell>`, `~`); apart from that and from what `fit` leaves out and names,
texts are the process's own. This file runs nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from labkit.common import write_whole

from . import schema
from .evidence import collected
from .fit import fit, text_of
from .hashing import code_hash

SUMMARY = "labkit-recordings-summary/1"
ON_CPU = (
    "LABKIT_RECORD_ON_CPU"  # tests only: allow a recording, labelled as such, into a folder that is not ours
)

_HERE = Path(__file__).resolve().parent


class Lesson(Protocol):
    """What is needed of `labkit.course.Lesson`."""

    number: str
    title: str
    path: Path
    verdicts: list[dict[str, str]]
    seconds: float
    error: str

    @property
    def ok(self) -> bool: ...
    @property
    def missing(self) -> list[str]: ...


def check(device: str, facts: dict[str, Any]) -> str:
    """The device that a recording here would be of: "cuda". ValueError where none can be made."""
    if device != "cpu" and facts.get("gpu"):
        schema.check_environment(facts, "cuda")
        return "cuda"
    if os.environ.get(ON_CPU) and schema.folder().resolve() != _HERE:
        return "cpu"
    if device == "cpu":
        raise ValueError("--record with --device cpu: recordings are made on a GPU; use --device cuda")
    raise ValueError(
        "--record: torch sees no GPU on this machine; recordings are made on a GPU and nowhere else"
    )


def kept_file(lesson: Lesson, out: Path) -> Path:
    """Where things kept during a run of this lesson go."""
    return out / f"{lesson.number}.kept.jsonl"


def write(
    lesson: Lesson,
    out: Path,
    facts: dict[str, Any],
    *,
    device: str = "cuda",
    parameters: dict[str, Any] | None = None,
) -> Path:
    """Write the recording of a lesson that has just run, and return its path.

    `out` holds the things kept (`kept_file`), `facts` is `labkit.doctor.environment()`. ValueError when the lesson
    did not pass, the recording does not fit its limit, or `device` is not "cuda" and the folder is the package's.
    """
    if not lesson.ok:
        raise ValueError(f"lesson {lesson.number} did not pass, so no recording was written")
    folder = schema.folder()
    if device != "cuda" and folder.resolve() == _HERE:
        raise ValueError(f"lesson {lesson.number}: a recording of device {device!r} has no place in {folder}")
    kept, files = _apart(lesson.number, collected(kept_file(lesson, out)))
    row = {
        "format": schema.FORMAT,
        "lesson": lesson.number,
        "title": lesson.title,
        "notebook": lesson.path.name,
        "device": device,
        "date": _now(),
        "environment": facts,
        "code_hash": code_hash(lesson.path),
        "parameters": parameters or {},
        "seconds": round(lesson.seconds, 2),
        "verdicts": lesson.verdicts,
        "evidence": without_paths(kept),
    }
    row = fit(row)
    schema.validate(row)
    for name, data in files.items():
        write_whole(folder / name, data)
    path = write_whole(folder / f"{lesson.number}.json", laid_out(row, "evidence"))
    for older in folder.glob(f"{lesson.number}.*.jsonl.gz"):
        if older.name not in files:
            older.unlink()
    return path


def summarise(lessons: Iterable[Lesson], facts: dict[str, Any], device: str = "cuda") -> Path:
    """Write `summary.json`: the verdicts of these lessons, failed ones too; lessons not among them stay as they are."""
    path = schema.folder() / "summary.json"
    rows = summary()
    for lesson in lessons:
        rows[lesson.number] = {
            "title": lesson.title,
            "ok": lesson.ok,
            "error": without_paths(lesson.error),
            "missing": lesson.missing,
            "verdicts": lesson.verdicts,
            "seconds": round(lesson.seconds, 2),
            "date": _now(),
            "device": device,
            "environment": facts,
        }
    whole = {"format": SUMMARY, "lessons": dict(sorted(rows.items()))}
    return write_whole(path, laid_out(whole, "lessons"))


def summary() -> dict[str, dict[str, Any]]:
    """Lesson number -> how its last recording run went; empty when there was none. ValueError for a damaged file."""
    path = schema.folder() / "summary.json"
    if not path.is_file():
        return {}
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: is not JSON ({error})") from None
    if not isinstance(row, dict) or row.get("format") != SUMMARY or not isinstance(row.get("lessons"), dict):
        raise ValueError(f"{path}: expected the format {SUMMARY!r} with 'lessons'")
    return row["lessons"]


def _apart(
    number: str, kept: dict[str, dict[str, Any]]
) -> tuple[dict[str, dict[str, Any]], dict[str, bytes]]:
    """The items, with each memory history as the name of a file; and the files."""
    files: dict[str, bytes] = {}
    items = {}
    for name, item in kept.items():
        if item["kind"] == "history":
            data = base64.b64decode(item["gz"])
            file = f"{number}.{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-') or 'history'}.jsonl.gz"
            if file in files:
                raise ValueError(
                    f"lesson {number}: two histories would be written to {file}; rename {name!r}"
                )
            files[file] = data
            digest = hashlib.sha256(data).hexdigest()
            item = {"kind": "history", "file": file, "events": item["events"], "sha256": digest}
        items[name] = item
    return items, files


def laid_out(row: dict[str, Any], open_field: str) -> str:
    """JSON with one line a field, and in `open_field` one line an entry."""
    lines = []
    for name, value in row.items():
        text = text_of(value)
        if name == open_field and value:
            entries = [f"  {text_of(k)}: {text_of(v)}" for k, v in value.items()]
            text = "{\n" + ",\n".join(entries) + "\n }"
        lines.append(f" {text_of(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def without_paths(value: Any) -> Any:
    """The same with this machine's own paths shortened in every text."""
    if isinstance(value, str):
        for found, name in _paths():
            value = found.sub(name, value)
        return value
    if isinstance(value, dict):
        return {k: without_paths(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_paths(v) for v in value]
    return value


def _paths() -> list[tuple[re.Pattern[str], str]]:
    lab, home = _HERE.parents[1], Path.home()
    pythons = {sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), sys.prefix, sys.base_prefix}
    places = [(str(lab), "<lab>"), *((str(p), "<python>") for p in pythons), (str(home), "~")]
    places.sort(key=lambda place: -len(place[0]))
    cells = (re.compile(r"[^\s\"']*/ipykernel_\d+/\d+\.py"), "<cell>")
    return [cells, *((re.compile(re.escape(p) + r"(?=/)"), name) for p, name in places if len(p) > 4)]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
