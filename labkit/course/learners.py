"""What `labkit progress` shows: a learner's pages as a table.

This file reads no notebook of a learner, and shows nothing that a learner wrote but counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

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
        pages = []
        for row in rows:
            pages.append({**asdict(row), "done": row.done})  # `done` is a property: asdict leaves it out
        return json.dumps({"pages": pages, "next": following.number if following else None}, indent=1)
    lines = [f"{file.parent.name}/{file.name}: yours alone; LABKIT_PROGRESS=off keeps none"]
    if not file.exists():
        lines = ["nothing noted yet: labkit lab opens your copy, and what you answer there is noted"]
    if following:
        lines.insert(0, f"next: {following.number} {following.title}: labkit lab {following.number}")
    else:
        lines.insert(0, "every exercise of the course is right")
    return "\n".join([_table(rows, width), "", *lines])


def _table(rows: Sequence[PageProgress], width: int) -> str:
    """One line a page. Titles are cut where the terminal is narrow."""
    head = ("exercises", "attempts", "hints", "questions")
    # what is left of the line beside the mark and the columns, each with two blanks before it
    room = max(20, width - 2 - len("  ".join(("", *head))))
    titles = [f"{row.number} {row.title}" for row in rows]
    room = min(room, max(map(len, titles)))
    lines = [_line("page", head, head, room)]
    for title, row in zip(titles, rows, strict=True):
        mark = "✓ " if row.done else "  "
        # nothing tried is left empty, so that the eye finds what was
        attempts, hints = str(row.attempts or ""), str(row.hints or "")
        numbers = (f"{row.right} of {row.exercises}", attempts, hints, f"{row.answered} of {row.questions}")
        lines.append(_line(title, numbers, head, room, mark))
    return "\n".join(lines)


def _line(title: str, numbers: Sequence[str], head: Sequence[str], room: int, mark: str = "  ") -> str:
    if len(title) > room:
        title = title[: room - 1] + "…"
    line = f"{mark}{title:<{room}}"
    for number, word in zip(numbers, head, strict=True):
        line += f"  {number:>{len(word)}}"
    return line
