"""Numbers in a lesson's prose that no cell of the page prints: each is a claim that a reader cannot check.

    python scripts/prose_numbers.py            every page of the fourth edition
    python scripts/prose_numbers.py 00 03      these pages

A number counts as printed where an output of the page (text or table) shows it, rounded or not, or an open code
cell has it as a literal. A percentage may be printed as a share. Passed over: the title, whole numbers up to 12,
years, minutes, versions, issue numbers, links, code, and what stands beside the link of somebody's real run.

Exit status 1 where a number is left.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NUMBER = re.compile(r"(?<![\w.#/-])[−-]?\d[\d,]*(?:\.\d+)?(?:e[−-]?\d+)?")
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")  # may stand inside a link
# What may hold a number that is no claim of this page.
PASSED_OVER = re.compile(
    r"[^.:;!?\n]*\[[^\]]*\]\(https?://[^)]*\)[^.:;!?\n]*"  # the clause around a link to somebody's run
    r"|\[[^\]]*\]\([^)]*\)"  # other links
    r"|^# .*"
    r"|`[^`]*`|https?://\S+|<[^>]+>"
    r"|#\d+|\b[Ll]essons? \d+|\b(?:19|20)\d\d\b|\b\d+ minutes\b"
    r"|\b(?:TRL|torch|transformers|verl|OpenRLHF|JupyterLab|Python|IPython|trl) \d+\.\d+(?:\.\d+)?"
)
SMALL = 12  # a count that a reader takes in at a glance


@dataclass(frozen=True)
class Missing:
    """A sentence with a number that no cell prints."""

    cell: int
    numbers: tuple[str, ...]
    sentence: str


def moved(book: nbformat.NotebookNode) -> bool:
    """Whether a page has the form of the fourth edition: all its verdicts stand in its last cell."""
    return "checked" in book.cells[-1].metadata.get("tags", [])


def missing(book: nbformat.NotebookNode) -> Iterator[Missing]:
    """The sentences of an executed notebook with numbers that no cell prints, from top to bottom."""
    printed = _printed(book)
    for place, cell in enumerate(book.cells):
        if cell.cell_type != "markdown":
            continue
        text = PASSED_OVER.sub(" ", IMAGE.sub("", cell.source))
        for sentence in re.split(r"(?<=[.:;!?])\s+|\n", text):
            unknown = [word for word in NUMBER.findall(sentence) if not _is_printed(word, printed)]
            if unknown:
                yield Missing(place, tuple(unknown), " ".join(sentence.split()))


def _printed(book: nbformat.NotebookNode) -> set[float]:
    """Every number that a code cell shows: in its outputs, and in its source where that is open."""
    numbers: set[float] = set()
    for cell in book.cells:
        if cell.cell_type != "code":
            continue
        folded = cell.metadata.get("jupyter", {}).get("source_hidden", False)
        texts = [] if folded else [cell.source]
        for output in cell.get("outputs", []):
            texts.append(_text(output.get("text", "")))
            for kind, value in output.get("data", {}).items():
                if kind.startswith("text/"):
                    texts.append(_text(value))
        for word in NUMBER.findall(" ".join(texts)):
            numbers.add(_value(word))
    return numbers


def _text(value: Any) -> str:
    return "".join(value) if isinstance(value, list) else str(value)


def _value(word: str) -> float:
    return float(word.replace(",", "").replace("−", "-"))


def _is_printed(word: str, printed: set[float]) -> bool:
    """Whether a printed number rounds to this one; a share to its percentage, and either sign."""
    claimed = _value(word)
    if claimed == int(claimed) and abs(claimed) <= SMALL:
        return True
    decimals = len(word.partition(".")[2].partition("e")[0])
    unit = 10.0**-decimals
    if not decimals and abs(claimed) >= 1000:  # 5,900 of 5,903.4: two digits are given
        unit = 10.0 ** (len(str(int(abs(claimed)))) - 2)
    for number in printed:
        for scale in (1, 100, -1):
            if abs(number * scale - claimed) <= 0.51 * unit:
                return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", nargs="*", metavar="NN")
    wanted = parser.parse_args().lessons
    left = 0
    for path in sorted([*FOLDER.glob("[0-9][0-9]_*.ipynb"), *FOLDER.glob("more/*.ipynb")]):
        book = nbformat.read(path, as_version=4)
        if path.name[:2] not in wanted if wanted else not moved(book):
            continue
        rows = list(missing(book))
        left += len(rows)
        print(f"{path.stem}: {len(rows)} sentences with a number that no cell prints")
        for row in rows:
            print(f"  cell {row.cell}: {', '.join(row.numbers)}   in: {row.sentence[:110]}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
