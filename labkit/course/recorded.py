"""What a lesson did on a real GPU, for readers who have none: its executed copy, in `docs/recorded`.

`labkit course NN --device cuda --record` keeps the copy of each lesson that passed. Its first cell says on which card
it ran, when, and with which versions. A recording is a notebook like the lesson: texts, numbers and pictures stand
where the run put them. Nothing is recorded where torch sees no GPU. This file runs no lesson.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.common import write_whole


def check(device: str, facts: dict[str, Any]) -> None:
    """Raises: ValueError where nothing can be recorded, before any lesson runs.

    device   what the lessons run on: auto, cpu or cuda
    facts    `labkit.doctor.environment()`
    """
    if device == "cpu":
        raise ValueError("--record with --device cpu: recordings are made on a GPU; use --device cuda")
    if not facts["gpu"]:
        raise ValueError("--record: torch sees no GPU on this machine; recordings are made on a GPU and nowhere else")


def write(copy: Path, facts: dict[str, Any], place: Path) -> Path:
    """Keep the executed copy of a lesson that passed, and return the path of the recording.

    copy    the executed notebook
    facts   as for `check`
    place   where the recording goes
    """
    text = _without_paths(copy.read_text(encoding="utf-8"))
    book = json.loads(text.replace("(../docs/", "(../"))  # a recording lies in docs/recorded, its lesson in notebooks
    for cell in book["cells"]:
        cell["metadata"].pop("papermill", None)  # when the cell began and ended
    versions = [f"{name} {facts[name]}" for name in ("driver", "torch", "transformers", "python") if facts.get(name)]
    date = datetime.now(UTC).date().isoformat()
    label = f"**Recorded on {' + '.join(facts['gpu'])}**, {', '.join(versions)}, {date}."
    book["cells"].insert(0, {"cell_type": "markdown", "id": "recorded-on", "metadata": {}, "source": label})
    return write_whole(place, json.dumps(book, indent=1, ensure_ascii=False) + "\n")


def _without_paths(text: str) -> str:
    """The text of a notebook with this machine's own folders shortened, as a traceback has them."""
    places = {str(Path(__file__).resolve().parents[2]): "<lab>", sys.prefix: "<python>", sys.base_prefix: "<python>"}
    places[str(Path.home())] = "~"
    for place in sorted(places, key=len, reverse=True):  # a folder before the one that holds it
        text = text.replace(json.dumps(place)[1:-1] + "/", places[place] + "/")
    return text
