"""A small table in the notebook: Markdown from a list of rows. It computes nothing and rounds only what it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.common import shown

from . import notebook


def table(rows: Sequence[Mapping[str, Any]], caption: str = "") -> None:
    """Display `rows`, one mapping a row, with the first row's keys as columns. Floats show three digits.

    Outside a notebook the same text is printed. ValueError when there is nothing to show.
    """
    if not rows:
        raise ValueError("table: got no rows")
    names = list(rows[0])
    cells = [[cell(row.get(name, "")) for name in names] for row in rows]
    numeric = [all(isinstance(row.get(n), (int, float)) for row in rows) for n in names]
    rule = ["---:" if right else "---" for right in numeric]
    lines = [*([f"{caption}\n"] if caption else []), _line(names), _line(rule), *map(_line, cells)]
    notebook.show_markdown("\n".join(lines), "\n".join(lines))


def cell(value: Any) -> str:
    return shown(value).replace("|", "\\|")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
