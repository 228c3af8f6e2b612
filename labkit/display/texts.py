"""Texts in the notebook: the source behind a name, so that no cell hides its work; and a small table.

This file runs nothing, computes nothing, and rounds only what it shows.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.common import shown

from . import notebook


def show(thing: Any) -> None:
    """Display the source of a function or a class, syntax-highlighted; in a script print it.

    There are no line numbers, so that the output changes only when the source does.
    Raises: TypeError and OSError, from `inspect`, where there is no Python source.
    """
    code = textwrap.dedent(inspect.getsource(thing)).rstrip()
    name = thing.__qualname__.replace("<locals>.", "")
    where = "this notebook" if thing.__module__ == "__main__" else f"{thing.__module__.replace('.', '/')}.py"
    text = f"# {where} · {name}\n{code}" if notebook.kernel() is None else f"source of {name}"
    notebook.show_markdown(f"`{where} · {name}`\n\n{notebook.fenced(code, 'python')}", text)


def table(rows: Sequence[Mapping[str, Any]], caption: str = "", *, folded: str = "") -> None:
    """Display a table; outside a notebook the same text is printed.

    rows      one mapping per row, with the first row's keys as columns; floats show three digits
    caption   a line above
    folded    a line behind which the table opens on a click, for what a reader should try first
    """
    text = markdown_table(rows)
    if caption:
        text = f"{caption}\n\n{text}"
    notebook.show_markdown(notebook.folded(folded, text) if folded else text, text)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The same as Markdown. Columns of numbers stand right."""
    names = list(rows[0])
    cells = [[row.get(name, "") for name in names] for row in rows]
    rule = []
    for column in zip(*cells, strict=True):
        numbers = all(isinstance(value, (int, float)) or value == "" for value in column)
        rule.append("---:" if numbers else "---")
    lines = [names, rule]
    lines += [[shown(value).replace("|", "\\|") for value in row] for row in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
