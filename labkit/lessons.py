"""The lessons as files: where they are, and what a notebook says of itself: number, title, claims.

This file runs no lesson and knows nothing of what one teaches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .verdicts import parse

BESIDE = Path(__file__).resolve().parent.parent / "notebooks"
RECORD = ".labkit-copy.json"  # in a learner's copy: what was copied; course/working_copy.py writes it


@dataclass
class Lesson:
    """One notebook and, after a run, what it showed.

    number     "01"; of the page in `notebooks/more` that goes with it, "01-more"
    title      its heading, without the number
    path       the notebook
    expected   the claims in its committed outputs
    verdicts   what a run claimed, as `verdicts.parse` reads it: result, claim, measured, relation, limit, unit
    seconds    of that run
    error      what ended it early, on one line; empty when nothing did
    """

    number: str
    title: str
    path: Path
    expected: list[str] = field(default_factory=list)
    verdicts: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""

    @property
    def ok(self) -> bool:
        """It ran to the end, made every claim of the committed outputs, and every claim held."""
        return not self.error and not self.missing and all(v["result"] != "fail" for v in self.verdicts)

    @property
    def missing(self) -> list[str]:
        """Claims that the committed notebook makes and this run did not make."""
        made = {v["claim"] for v in self.verdicts}
        return [claim for claim in self.expected if claim not in made]


def folder(named: str | Path | None = None) -> Path:
    """The folder of lessons: the one named, else `notebooks` here, else the one beside the package.

    Raises: ValueError names the folders that hold no lesson.
    """
    places = [Path(named)] if named else [Path("notebooks"), BESIDE]
    for path in places:
        if _by_number(path):
            return path.resolve()
    where = " or ".join(str(path) for path in places)
    raise ValueError(f"notebooks: no lessons in {where}; name the folder with --notebooks")


def pages(folder: Path) -> list[Path]:
    """The notebooks of a folder of lessons, unread, in the order of their numbers."""
    return list(_by_number(folder).values())


def copy_of(folder: Path) -> Path:
    """Where the learner's own copy of the lessons in `folder` stands; of a copy, itself."""
    return folder if is_copy(folder) else folder.parent / "my-notebooks"


def is_copy(folder: Path) -> bool:
    """Whether `folder` is a learner's copy."""
    return (folder / RECORD).is_file()


def choose(folder: Path, numbers: Sequence[str] = ()) -> list[Lesson]:
    """The lessons of these numbers, in that order; all when none is named.

    Raises: ValueError names an unknown lesson, or a notebook that cannot be read.
    """
    paths = _by_number(folder)
    wanted = [n.zfill(2) if n.isdecimal() else n for n in numbers] or list(paths)
    for n in wanted:
        if n not in paths:
            raise ValueError(f"lesson {n!r}: expected one of {', '.join(paths)}")
    return [read(paths[n]) for n in dict.fromkeys(wanted)]


def read(path: Path) -> Lesson:
    """A lesson that has not run yet. Raises: ValueError when the file is no notebook."""
    title = path.stem
    try:
        prose = "".join("".join(cell["source"]) + "\n" for cell in _cells(path) if cell["cell_type"] == "markdown")
        claims = [verdict["claim"] for verdict in verdicts(path)]
    except Exception as error:  # a file may hold anything
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"notebook {path}: cannot be read as a notebook ({why})") from None
    if heading := re.search(r"^# (\d\d\s*[·.:-]\s*)?(.*)", prose, re.MULTILINE):
        title = heading[2]
    return Lesson(number_of(path), title, path, claims)


def verdicts(path: Path) -> Iterator[dict[str, str]]:
    """The verdicts in the outputs of a notebook file, in order; one that failed was raised."""
    for cell in _cells(path):
        for output in cell.get("outputs", []):
            if output["output_type"] == "stream" and output["name"] == "stdout":
                yield from parse("".join(output["text"]))
            elif output["output_type"] == "error" and output["ename"] == "VerdictError":
                yield from parse(output["evalue"])


def sources(path: Path) -> Iterator[str]:
    """What each code cell of a notebook file holds."""
    for cell in _cells(path):
        if cell["cell_type"] == "code":
            yield "".join(cell["source"])


def _cells(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def _by_number(folder: Path) -> dict[str, Path]:
    paths = [*folder.glob("[0-9][0-9]_*.ipynb"), *folder.glob("more/[0-9][0-9]_*.ipynb")]
    return {number_of(path): path for path in sorted(paths)}


def number_of(path: Path) -> str:
    """The number of a page: "03"; of the page in `more` that goes with lesson 03, "03-more"."""
    return path.name[:2] + ("-more" if path.parent.name == "more" else "")
