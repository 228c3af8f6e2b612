"""The lessons as files: where they are, and what a notebook says of itself: number, title, parameters, claims.

This file runs no lesson and knows nothing of what one teaches.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .verdicts import parse

BESIDE = Path(__file__).resolve().parent.parent / "notebooks"


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


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook, with its source as one text."""

    kind: str  # "code", "markdown" or "raw"
    source: str
    tags: frozenset[str]
    outputs: list[dict[str, Any]]


def folder(named: str | Path | None = None) -> Path:
    """The folder of lessons: the one named, else `notebooks` here, else the one beside the package.

    Raises: ValueError names the folders that hold no lesson.
    """
    tried = [Path(named)] if named else [Path("notebooks"), BESIDE]
    for path in tried:
        if path.is_dir() and _by_number(path):
            return path.resolve()
    where = " or ".join(str(p) for p in tried)
    raise ValueError(f"notebooks: no lessons in {where}; name the folder with --notebooks")


def choose(folder: Path, numbers: Sequence[str] = ()) -> list[Lesson]:
    """The lessons asked for, in that order; all when none is named.

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
    book = cells(path)
    with _reading(path):
        claims = [v["claim"] for v in verdicts(book)]
    prose = [line for cell in book if cell.kind == "markdown" for line in cell.source.splitlines()]
    heading = next((line for line in prose if line.startswith("# ")), path.stem)
    title = re.sub(r"^#\s*(\d\d\s*[·.:-]\s*)?", "", heading)
    return Lesson(_number_of(path), title, path, claims)


def cells(path: Path) -> list[Cell]:
    """The cells of a notebook file. Raises: ValueError when it is none."""
    with _reading(path):
        rows = json.loads(path.read_text(encoding="utf-8"))["cells"]
        book = []
        for row in rows:
            tags = frozenset(row.get("metadata", {}).get("tags", []))
            book.append(Cell(row["cell_type"], "".join(row["source"]), tags, row.get("outputs", [])))
        return book


def parameters(path: Path) -> set[str]:
    """The names that cells tagged `parameters` assign. Raises: ValueError when the file is no notebook."""
    book = cells(path)
    with _reading(path):
        trees = [ast.parse(cell.source) for cell in book if "parameters" in cell.tags]
    names = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def verdicts(book: Sequence[Cell]) -> Iterator[dict[str, str]]:
    """The verdicts in the outputs of cells, in order; one that failed was raised."""
    for output in (output for cell in book for output in cell.outputs):
        if output["output_type"] == "stream" and output["name"] == "stdout":
            yield from parse("".join(output["text"]))
        elif output["output_type"] == "error" and output["ename"] == "VerdictError":
            yield from parse(output["evalue"])


def _by_number(folder: Path) -> dict[str, Path]:
    paths = [*folder.glob("[0-9][0-9]_*.ipynb"), *folder.glob("more/[0-9][0-9]_*.ipynb")]
    return {_number_of(path): path for path in sorted(paths)}


def _number_of(path: Path) -> str:
    """ "03"; of the page in `more` that goes with lesson 03, "03-more"."""
    return path.name[:2] + ("-more" if path.parent.name == "more" else "")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever is wrong with a notebook file is a ValueError that names it."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError, SyntaxError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"notebook {path}: cannot be read as a notebook ({why})") from None
