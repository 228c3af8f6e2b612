"""A small table in the notebook: Markdown from a list of rows. It computes nothing and rounds only what it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.common import shown

from . import notebook


def table(rows: Sequence[Mapping[str, Any]], caption: str = "") -> None:
    """Display a table; outside a notebook the same text is printed.

    rows      one mapping per row, with the first row's keys as columns; floats show three digits
    caption   a line above

    Raises: ValueError when there is no row.
    """
    text = f"{caption}\n\n" * bool(caption) + markdown(rows)
    notebook.show_markdown(text, text)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table: the first row's keys are the columns, and numbers stand at the right.

    Raises: ValueError when there is no row.
    """
    if not rows:
        raise ValueError("table: got no rows")
    names = list(rows[0])
    values = [[row.get(name, "") for name in names] for row in rows]
    numeric = [all(isinstance(v, (int, float)) or v == "" for v in column) for column in zip(*values, strict=True)]
    lines = [names, ["---:" if right else "---" for right in numeric]]
    lines += [[shown(value).replace("|", "\\|") for value in row] for row in values]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
