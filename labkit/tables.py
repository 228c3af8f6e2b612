"""A small table in the notebook: Markdown from a list of rows. It computes nothing and rounds only what it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import notebook


def table(rows: Sequence[Mapping[str, Any]], caption: str = "") -> None:
    """Display `rows`, one mapping a row, with the first row's keys as columns. Floats show three digits.

    Outside a notebook the same text is printed. ValueError when there is nothing to show.
    """
    if not rows:
        raise ValueError("table: got no rows")
    names = list(rows[0])
    cells = [[shown(row.get(name, "")) for name in names] for row in rows]
    numeric = [all(isinstance(row.get(n), (int, float)) for row in rows) for n in names]
    rule = ["---:" if right else "---" for right in numeric]
    lines = [*([f"{caption}\n"] if caption else []), _line(names), _line(rule), *map(_line, cells)]
    notebook.show_markdown("\n".join(lines), "\n".join(lines))


def shown(value: Any) -> str:
    """Three significant digits for a float, yes/no for a bool, `nan` and `inf` as words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value == round(value, 0) and abs(value) < 1e4 else f"{value:.3g}"
    return " ".join(str(value).split()).replace("|", "\\|")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
