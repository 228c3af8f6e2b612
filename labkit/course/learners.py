"""What `labkit progress` shows: a learner's pages as a table, and how such a table is written.

This file reads no notebook of a learner, and shows nothing that a learner wrote but counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit import lessons, progress
from labkit.progress import PageProgress, Tasks


def asked(folder: Path) -> list[Tasks]:
    """What each page of the lessons in `folder` asks, in their order."""
    return list(map(progress.tasks, lessons.choose(folder)))


def of_one(folder: Path, as_json: bool = False, width: int = 100) -> str:
    """The progress of the learner whose copy stands beside the lessons in `folder`, as a table or as JSON."""
    file = lessons.copy_of(folder) / progress.FILE
    rows = progress.summed(asked(folder), progress.read(file))
    following = progress.next_page(rows)
    if as_json:
        pages = list(map(as_row, rows))
        return json.dumps({"pages": pages, "next": following.number if following else None}, indent=1)
    lines = [f"{file.parent.name}/{file.name}: yours alone; LABKIT_PROGRESS=off keeps none"]
    if not file.exists():
        lines = ["nothing noted yet: labkit lab opens your copy, and what you answer there is noted"]
    if following:
        lines.insert(0, f"next: {following.number} {following.title}: labkit lab {following.number}")
    else:
        lines.insert(0, "every exercise of the course is right")
    return "\n".join([_table(rows, width), "", *lines])


def as_row(row: PageProgress) -> dict[str, Any]:
    """A page's progress as JSON has it."""
    return {**asdict(row), "done": row.done}  # `done` is a property: asdict leaves it out


def _table(rows: Sequence[PageProgress], width: int) -> str:
    lines = []
    for row in rows:
        mark = "✓" if row.done else " "
        # nothing tried is left empty, so that the eye finds what was
        attempts, hints = str(row.attempts or ""), str(row.hints or "")
        numbers = (f"{row.right} of {row.exercises}", attempts, hints, f"{row.answered} of {row.questions}")
        lines.append((f"{mark} {row.number} {row.title}", numbers))
    return table("  page", ("exercises", "attempts", "hints", "questions"), lines, width)


def table(first: str, head: Sequence[str], lines: Sequence[tuple[str, Sequence[str]]], width: int) -> str:
    """A text with columns: names to the left, which are cut where the terminal is narrow, and numbers to the right."""
    # what is left of a line beside the columns, each with two blanks before it
    room = max(20, width - len("  ".join(("", *head))))
    room = min(room, max(len(name) for name, _ in [(first, head), *lines]))
    text = []
    for name, numbers in [(first, head), *lines]:
        if len(name) > room:
            name = name[: room - 1] + "…"
        line = f"{name:<{room}}"
        for number, word in zip(numbers, head, strict=True):
            line += f"  {number:>{len(word)}}"
        text.append(line.rstrip())
    return "\n".join(text)
