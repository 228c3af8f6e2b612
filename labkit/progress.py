"""A learner's progress: a JSON line for each attempt, answer and opened hint, in a file of the learner's own.

    {"time": "2026-11-27T17:20:01+0000", "page": "02", "kind": "exercise", "name": "my_write", "attempt": 2,
     "right": true, "hints": 1, "seconds": 312}

It is written beside the pages of a learner's copy (`labkit lab`), by a kernel that a Jupyter server started for such a
page, and by that server; never by papermill, nbval or a script. It holds no code, and nothing sends it anywhere.
LABKIT_PROGRESS=off switches it off. What cannot be written is not written, and the page goes on. This file shows
nothing.
"""

from __future__ import annotations

import ast
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import lessons
from .common import kernel

FILE = "progress.jsonl"
MOST = 2**23  # bytes of a file that are read: some forty thousand lines
FIRST_CELL = time.time()  # a page's first cell imports labkit, and so this file


# ------------------------------------------------------------------------------------------------------- writing


@dataclass(frozen=True)
class Page:
    """The page that this kernel runs, and the file that its answers go to."""

    number: str
    file: Path


def page() -> Page | None:
    """The learner's page that this process is the kernel of; None where nothing is to be noted."""
    name = os.environ.get("JPY_SESSION_NAME", "")  # a Jupyter server gives it to the kernels of its pages
    if kernel() is None or not name or is_off() or os.environ.get("LABKIT_SAVED_PAGES"):
        return None
    # What a page starts, papermill in a cell say, inherits the name of the page, and is not its kernel.
    if os.environ.setdefault("LABKIT_PAGE_KERNEL", str(os.getpid())) != str(os.getpid()):
        return None
    path = Path(name)
    folder = path.parent.parent if path.parent.name == "more" else path.parent
    if not re.match(r"\d\d_.*\.ipynb$", path.name) or not lessons.is_copy(folder):
        return None
    return Page(lessons.number_of(path), folder / FILE)


def is_off() -> bool:
    """Whether LABKIT_PROGRESS says that nothing is to be noted."""
    return os.environ.get("LABKIT_PROGRESS", "").lower() in ("off", "0", "no", "false")


def note(file: Path, page: str, kind: str, name: str, began: float, **seen: Any) -> None:
    """Add a line to the file. Never raises: a full disk or a read-only folder is no reason to stop a page.

    kind    "exercise", "question" or "hint"
    began   when the page's first cell ran, in seconds since 1970
    seen    `right` of an exercise or a question; `hint`, the number of the hint that was opened
    """
    line: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "page": page,
        "kind": kind,
        "name": short(name),
    }
    try:
        if file.exists() and not file.is_file():  # a pipe would wait for a reader
            return
        before = [each for each in read(file) if (each["page"], each["name"]) == (page, line["name"])]
        if kind != "hint":
            line["attempt"] = 1 + sum(each["kind"] == kind for each in before)
        line |= seen
        if kind == "exercise":
            line["hints"] = len({each["hint"] for each in before if each["kind"] == "hint"})
        line["seconds"] = max(0, round(time.time() - began))
        _append(file, json.dumps(line) + "\n")
    except (OSError, ValueError, OverflowError):  # a time that is no time is told by a page that was tampered with
        return


def _append(file: Path, line: str) -> None:
    with file.open("ab+", buffering=0) as stream:
        # A disk that was full has left half a line: it must not spoil this one.
        if stream.seek(0, os.SEEK_END):
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                line = "\n" + line
        stream.write(line.encode())


def short(name: str) -> str:
    """A name as it stands in the file: a question is known by how it begins."""
    return " ".join(name.split())[:80]


# ------------------------------------------------------------------------------------------------------- reading


def read(file: Path) -> list[dict[str, Any]]:
    """The lines of a file, oldest first. What is no such line is left out; a file that is not there has none."""
    try:
        if not file.is_file():
            return []
        with file.open("rb") as stream:
            content = stream.read(MOST)
    except OSError:
        return []
    lines = []
    for text in content.splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if fits(line):
            lines.append(line)
    return lines


def fits(line: Any) -> bool:
    """Whether it is a line as `note` writes it."""
    if not isinstance(line, dict) or not all(isinstance(line.get(key), str) for key in ("time", "page", "name")):
        return False
    if line.get("kind") == "hint":
        return type(line.get("hint")) is int
    return line.get("kind") in ("exercise", "question") and isinstance(line.get("right"), bool)


@dataclass
class PageProgress:
    """What a learner has done of a page.

    number, title         of the page
    exercises, right      how many it has, and how many of them are right
    attempts              at its exercises, each up to the first right one
    hints                 different ones that were opened
    questions, answered   how many it has, and how many of them got the right answer at some time
    last                  when it was last worked at, as in the file; empty: never
    """

    number: str
    title: str
    exercises: int
    right: int = 0
    attempts: int = 0
    hints: int = 0
    questions: int = 0
    answered: int = 0
    last: str = ""

    @property
    def done(self) -> bool:
        """Every exercise is right."""
        return self.right == self.exercises


@dataclass(frozen=True)
class Tasks:
    """What a page asks: its number, its title, the names of its exercises, and how many questions it has."""

    number: str
    title: str
    exercises: tuple[str, ...]
    questions: int


def tasks(lesson: lessons.Lesson) -> Tasks:
    """What a page asks, read off its code; none of it is run."""
    exercises, questions = [], 0
    for name, call in _calls(lesson.path):
        if name == "exercise" and len(call.args) > 1:
            exercises.append(ast.unparse(call.args[1]))
        elif name == "predict":
            questions += 1
    return Tasks(lesson.number, lesson.title, tuple(exercises), questions)


def _calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every `labkit.name(...)` in the code of a notebook."""
    for source in lessons.sources(path):
        try:
            tree = ast.parse(source)
        except SyntaxError:  # IPython's own, `%time` say
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of_labkit = ast.unparse(node.func.value) == "labkit"
                if of_labkit:
                    yield node.func.attr, node


def summed(asked: Sequence[Tasks], lines: Sequence[dict[str, Any]]) -> list[PageProgress]:
    """What the lines say of each page. Lines of pages and exercises that are not asked do not count."""
    rows = []
    for page in asked:
        row = PageProgress(page.number, page.title, len(page.exercises), questions=page.questions)
        right, answered = set(), set()  # names of exercises, and of questions
        hints = set()  # name and number
        for line in lines:
            kind, name = line["kind"], line["name"]
            if line["page"] != page.number or (kind != "question" and name not in page.exercises):
                continue
            row.last = line["time"]
            if kind == "hint":
                hints.add((name, line["hint"]))
            elif kind == "question":
                if line["right"]:
                    answered.add(name)
            elif name not in right:
                row.attempts += 1
                if line["right"]:
                    right.add(name)
        row.right, row.hints = len(right), len(hints)
        row.answered = min(len(answered), page.questions)  # a newer page may ask in other words
        rows.append(row)
    return rows


def total(rows: Sequence[PageProgress]) -> PageProgress:
    """The counts of several rows together; `last` is the latest."""
    whole = PageProgress("", "", 0)
    for row in rows:
        whole.exercises += row.exercises
        whole.right += row.right
        whole.attempts += row.attempts
        whole.hints += row.hints
        whole.questions += row.questions
        whole.answered += row.answered
        whole.last = max(whole.last, row.last)
    return whole


def next_page(rows: Sequence[PageProgress]) -> PageProgress | None:
    """The first page, in the order of the course, with an exercise that is not right yet; None: none is left."""
    for row in rows:
        # the pages in `more` are no part of the order
        if not row.done and row.number.isdecimal():
            return row
    return None
