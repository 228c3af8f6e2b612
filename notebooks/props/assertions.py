"""Which operation is behind the text of a bad index: the rows of docs/assertions.md, looked up by a pasted line."""

from __future__ import annotations

import re
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "docs" / "assertions.md"
NOT_KNOWN = {
    "the operation": "not known",
    "what printed it": "–",
    "look at": "the traceback; on a GPU with `CUDA_LAUNCH_BLOCKING=1`, or on the CPU",
}

Row = dict[str, str]


def rows() -> list[Row]:
    """The table's rows: column -> its text, Markdown as it stands there."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, cells, strict=True)) for cells in body]


def row_of(text: str) -> Row:
    """The first row that fits a pasted text, without its first column; "not known" where none does.

    A row fits if all texts of its first column stand in the pasted one. Blanks do not count: builds differ in them.
    """
    pasted = without_blanks(text)
    for row in rows():
        wanted = re.findall(r"`([^`]+)`", row["in the line"])
        if all(without_blanks(part) in pasted for part in wanted):
            return {name: row[name] for name in NOT_KNOWN}
    return NOT_KNOWN


def without_blanks(text: str) -> str:
    return re.sub(r"\s", "", text)
