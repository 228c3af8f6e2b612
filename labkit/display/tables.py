"""A small table in the notebook: Markdown from a list of rows. It computes nothing and rounds only what it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.common import shown

from . import notebook


def table(rows: Sequence[Mapping[str, Any]], caption: str = "") -> None:
    """Display `rows` as `markdown` writes them, below a caption; outside a notebook the same text is printed.

    Raises: ValueError when there is no row.
    """
    text = "\n".join([*([f"{caption}\n"] if caption else []), markdown(rows)])
    notebook.show_markdown(text, text)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table in Markdown, one row per mapping, with the first row's keys as columns. Floats show three digits.

    Raises: ValueError when there is no row.
    """
    if not rows:
        raise ValueError("table: got no rows")
    names = list(rows[0])
    cells = [[_cell(row.get(name, "")) for name in names] for row in rows]
    numeric = [all(isinstance(row.get(n), (int, float)) for row in rows) for n in names]
    rule = ["---:" if right else "---" for right in numeric]
    return "\n".join([_line(names), _line(rule), *map(_line, cells)])


def _cell(value: Any) -> str:
    return shown(value).replace("|", "\\|")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
