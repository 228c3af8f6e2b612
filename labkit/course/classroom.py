"""What `labkit progress --class DIR` shows: the progress of many learners, as tables and as a picture.

It reads the learners' `progress.jsonl` and nothing else of theirs: no page and no code is opened, run or shown, and of
what stands in their files only counts are.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit import progress
from labkit.progress import PageProgress

from .learners import as_row, asked, table

Class = dict[str, list[PageProgress]]  # learner -> a row for each page
PLACES = (progress.FILE, f"*/{progress.FILE}", f"*/*/{progress.FILE}")  # in a learner's folder: home or copy


def of_class(root: Path, folder: Path, as_json: bool = False, picture: Path | None = None, width: int = 100) -> str:
    """The progress of all learners, as two tables or as JSON.

    root      has a folder for each learner; in it, or at most two folders deeper, stands `progress.jsonl`
    folder    the lessons
    picture   a PNG file to write: learners by pages

    Raises: ValueError where no learner is found.
    """
    learners = _learners(root, folder)
    if picture:
        draw(learners, picture)
    if as_json:
        every: dict[str, list[dict[str, Any]]] = {}
        for name, rows in learners.items():
            every[name] = list(map(as_row, rows))
        return json.dumps(every, indent=1)
    return f"{_by_learner(learners, width)}\n\n{_by_page(learners, width)}"


def _learners(root: Path, folder: Path) -> Class:
    if not root.is_dir():
        raise ValueError(f"--class {root}: expected a folder that has a folder for each learner")
    pages = asked(folder)
    learners: Class = {}
    for home in sorted(root.iterdir()):
        files = []
        for place in PLACES:
            files += sorted(home.glob(place))
        lines: list[dict[str, Any]] = []
        for file in files:
            lines += progress.read(file)
        if files:
            learners[_printable(home.name)] = progress.summed(pages, lines)
    if not learners:
        raise ValueError(f"--class {root}: no {progress.FILE} in a folder of it, nor two folders deeper")
    return learners


def _printable(name: str) -> str:
    """A name of a folder may hold what moves a terminal's cursor."""
    for letter in name:
        if not letter.isprintable():
            name = name.replace(letter, "?")
    return name


def _by_learner(learners: Class, width: int) -> str:
    lines = []
    for name, rows in learners.items():
        done = [row for row in rows if row.done]
        whole = progress.total(rows)
        # the file is the learner's, and may say anything for a time: only a date is shown
        day = re.match(r"\d{4}-\d\d-\d\d", whole.last)
        numbers = (
            f"{len(done)} of {len(rows)}",
            f"{whole.right} of {whole.exercises}",
            str(whole.attempts),
            str(whole.hints),
            f"{whole.answered} of {whole.questions}",
            day[0] if day else "",
        )
        lines.append((name, numbers))
    head = ("pages done", "exercises", "attempts", "hints", "questions", "last day  ")
    return table("learner", head, lines, width)


def _by_page(learners: Class, width: int) -> str:
    """Where a class is, and where it is stuck: many attempts and hints, few who are done."""
    lines = []
    for rows in zip(*learners.values(), strict=True):
        began = [row for row in rows if row.last]
        done = [row for row in began if row.done]
        whole = progress.total(began)
        numbers = (str(len(began)), str(len(done)), str(whole.attempts), str(whole.hints))
        lines.append((f"{rows[0].number} {rows[0].title}", numbers))
    return table("page", ("learners", "done", "attempts", "hints"), lines, width)


def draw(learners: Class, file: Path) -> None:
    """Write the picture: a row for each learner, a column for each page; the darker, the more exercises are right."""
    from matplotlib.figure import Figure

    first: Sequence[PageProgress] = next(iter(learners.values()))
    figure = Figure(figsize=(2 + 0.5 * len(first), 1.2 + 0.3 * len(learners)), dpi=125, layout="constrained")
    axes = figure.add_subplot()
    shares = []
    for at, rows in enumerate(learners.values()):
        shares.append([row.right / max(row.exercises, 1) for row in rows])
        for column, row in enumerate(rows):
            if row.last:  # an empty field: not begun
                ink = "white" if row.done else "black"
                axes.text(column, at, f"{row.right}/{row.exercises}", ha="center", va="center", size=7, color=ink)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1.15, aspect="auto")
    axes.set_xticks(range(len(first)), [row.number for row in first], size=7, rotation=45)
    axes.set_yticks(range(len(learners)), learners, size=7, parse_math=False)
    axes.set_title("Exercises that are right, by learner and page; empty: not begun", size=9, loc="left")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a name in letters that the font does not have
        figure.savefig(file, format="png")
