"""A recording on disk: `labkit/recordings/NN.json`. Read it, check it, find it.

One file a lesson, made by `labkit course NN --record` on a machine with a GPU and by nothing else. This file writes
none and draws nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from labkit.events import Run

from .evidence import unpack
from .hashing import code_hash

FORMAT = "labkit-recording/1"
FOLDER = "LABKIT_RECORDINGS"  # another folder for recordings, mostly for tests
KINDS: dict[str, dict[str, Any]] = {
    "run": {"meta": dict, "events": list, "outcome": dict},
    "text": {"text": str},
    "data": {"data": object},
    "history": {"file": str, "events": int, "sha256": str},
}


@dataclass(frozen=True)
class Recording:
    """What one lesson did on a GPU. `evidence` maps a name to a `Run`, a text, data, or the `Path` of a memory history.

    `outdated` is true when the lesson's code has changed since, false when it has not or its notebook is not here.
    """

    lesson: str  # "01"
    title: str
    device: str  # "cuda"; "cpu" only in tests
    date: str  # ISO 8601, UTC
    environment: dict[str, Any]  # gpu (names), driver, torch, transformers, python, …
    code_hash: str
    verdicts: list[dict[str, str]]
    evidence: dict[str, Any]
    seconds: float
    parameters: dict[str, Any]
    notes: dict[str, list[str]] = field(default_factory=dict)  # evidence name -> what was left out of it
    outdated: bool = False


def folder() -> Path:
    """Where recordings lie: beside this file, or in the folder that `LABKIT_RECORDINGS` names."""
    return Path(os.environ.get(FOLDER) or Path(__file__).parent)


def number(lesson: str | int) -> str:
    """ "1", 1 and "01" as "01". ValueError for anything else."""
    text = str(lesson) if type(lesson) in (int, str) else ""
    if not re.fullmatch(r"[0-9]{1,2}", text):
        raise ValueError(f"lesson {lesson!r}: expected a lesson's number, such as '01'")
    return text.zfill(2)


def load(lesson: str | int) -> Recording | None:
    """The recording of a lesson, or None when there is none yet. ValueError names the file and the field."""
    lesson = number(lesson)
    path = folder() / f"{lesson}.json"
    if not path.is_file():
        return None
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        validate(row)
        if row["lesson"] != lesson:
            raise ValueError(f"lesson: expected {lesson!r}, got {row['lesson']!r}")
        evidence = {name: unpack(item, path.parent) for name, item in row["evidence"].items()}
        for name, item in row["evidence"].items():
            if item["kind"] == "history":
                _same_file(f"evidence[{name!r}].file", path.parent / item["file"], item["sha256"])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    notes = {name: item["notes"] for name, item in row["evidence"].items() if item.get("notes")}
    notebook = find_notebook(lesson)
    return Recording(
        **{k: row[k] for k in ("lesson", "title", "device", "date", "environment", "code_hash", "verdicts")},
        **{k: row[k] for k in ("seconds", "parameters")},
        evidence=evidence,
        notes=notes,
        outdated=notebook is not None and code_hash(notebook) != row["code_hash"],
    )


def as_run(lesson: str | int, name: str) -> Run | None:
    """A run that was kept on a GPU, to draw behind another: `labkit.watch(..., ghost=as_run("01", "bug"))`.

    None when there is no recording of this lesson yet, or only an outdated one that lacks the run. ValueError when
    the recording has no run of this name.
    """
    found = load(lesson)
    if found is None or (found.outdated and name not in found.evidence):
        return None
    run = found.evidence.get(name)
    if not isinstance(run, Run):
        runs = [n for n, thing in found.evidence.items() if isinstance(thing, Run)]
        raise ValueError(f"recording of lesson {found.lesson} has no run {name!r}; it has {runs}")
    run.meta["label"] = f"{name}, on a {'GPU' if found.device == 'cuda' else found.device}"
    return run


def find_notebook(lesson: str) -> Path | None:
    """The lesson's notebook: here, in `notebooks` here, or in the folder beside the package; None when not found."""
    beside = Path(__file__).resolve().parents[2] / "notebooks"
    for place in (Path.cwd(), Path.cwd() / "notebooks", beside):
        if found := sorted(place.glob(f"{lesson}_*.ipynb")):
            return found[0]
    return None


def validate(row: Any) -> None:
    """ValueError names the first field of a recording that is not as it must be."""
    _fits("the recording", row, dict)
    _equal("format", row.get("format"), FORMAT)
    for name in ("lesson", "title", "notebook", "device", "date", "code_hash"):
        _fits(name, row.get(name), str)
    _matches("lesson", row["lesson"], r"\d\d")
    _matches("device", row["device"], "cuda|cpu")
    _matches("code_hash", row["code_hash"], "sha256:[0-9a-f]{64}")
    try:
        datetime.fromisoformat(row["date"])
    except ValueError:
        raise ValueError(f"date: expected an ISO 8601 date, got {row['date']!r}") from None
    _fits("seconds", row.get("seconds"), (int, float))
    _fits("parameters", row.get("parameters"), dict)
    check_environment(row.get("environment"), row["device"])
    _fits("verdicts", row.get("verdicts"), list)
    for i, verdict in enumerate(row["verdicts"]):
        _fits(f"verdicts[{i}]", verdict, dict)
        for name in ("result", "claim", "seen"):
            _fits(f"verdicts[{i}].{name}", verdict.get(name), str)
        _matches(f"verdicts[{i}].result", verdict["result"], "pass|fail")
    _fits("evidence", row.get("evidence"), dict)
    for name, item in row["evidence"].items():
        _item(f"evidence[{name!r}]", item)


def _same_file(where: str, path: Path, digest: str) -> None:
    if not path.is_file():
        raise ValueError(f"{where}: {path} is missing")
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise ValueError(f"{where}: {path} is not the file that was recorded (its sha256 differs)")


def check_environment(facts: Any, device: str) -> None:
    """ValueError unless the facts name what a recording must name: versions, and on CUDA the GPU and its driver."""
    _fits("environment", facts, dict)
    for name in ("python", "torch", "transformers"):
        _fits(f"environment.{name}", facts.get(name), str)
    _fits("environment.gpu", facts.get("gpu"), list)
    if device == "cuda":
        if not facts["gpu"]:
            raise ValueError("environment.gpu: expected the name of a GPU, got []")
        _fits("environment.gpu[0]", facts["gpu"][0], str)
        _fits("environment.driver", facts.get("driver"), str)


def _item(where: str, item: Any) -> None:
    _fits(where, item, dict)
    _matches(f"{where}.kind", item.get("kind"), "|".join(KINDS))
    for name, kind in KINDS[item["kind"]].items():
        if name not in item:
            raise ValueError(f"{where}.{name}: is missing")
        _fits(f"{where}.{name}", item[name], kind)
    _fits(f"{where}.notes", item.get("notes", []), list)
    if item["kind"] == "history":
        _matches(f"{where}.file", item["file"], r"[\w.-]+\.jsonl\.gz")
    if item["kind"] == "run":
        _fits(f"{where}.outcome.signature", item["outcome"].get("signature"), str)
        for i, event in enumerate(item["events"]):
            if not isinstance(event, Mapping) or len(event) != 1 or not {"step", "event"} & set(event):
                raise ValueError(
                    f"{where}.events[{i}]: expected {{'step': ...}} or {{'event': ...}}, got {event!r}"
                )
        try:
            unpack(item)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"{where}: cannot be read as a run ({error})") from None


def _fits(where: str, value: Any, kind: Any) -> None:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind == (int, float)):
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise ValueError(f"{where}: expected {names}, got {value!r}"[:300])


def _equal(where: str, value: Any, expected: str) -> None:
    if value != expected:
        raise ValueError(f"{where}: expected {expected!r}, got {value!r}"[:300])


def _matches(where: str, value: Any, pattern: str) -> None:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise ValueError(f"{where}: expected {pattern}, got {value!r}"[:300])
