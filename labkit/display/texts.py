"""Texts in the notebook: the source behind a name, so that no cell hides its work; and a small table.

This file runs nothing, computes nothing, and rounds only what it shows.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.common import shown

from . import notebook


def show(thing: Any, *more: Any) -> None:
    """Display the source of one or more functions or classes, syntax-highlighted; in a script print it.

    Methods, partials, cached and decorated functions show what they wrap. There are no line numbers, so that the output
    changes only when the source does.

    Raises: TypeError says why there is nothing to show.
    """
    parts = [_source(one) for one in (thing, *more)]
    text = "source of " + ", ".join(name for name, _, _ in parts)
    if notebook.kernel() is None:
        text = "\n\n".join(f"# {where} · {name}\n{code}" for name, where, code in parts)
    sources = [f"`{where} · {name}`\n\n{notebook.fenced(code, 'python')}" for name, where, code in parts]
    notebook.show_markdown("\n\n".join(sources), text)


def _source(thing: Any) -> tuple[str, str, str]:
    """(qualified name, the file, its source without indentation)."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    thing = inspect.unwrap(thing) if callable(thing) else thing
    if not (inspect.isfunction(thing) or inspect.ismethod(thing) or inspect.isclass(thing)):
        raise TypeError(f"show: expected a function or class written in Python, got {thing!r:.80}")
    name = thing.__qualname__.replace("<locals>.", "")
    try:
        code = textwrap.dedent(inspect.getsource(thing)).rstrip()
    except (OSError, TypeError) as error:
        raise TypeError(f"show: no Python source for {name}, compiled or typed at a prompt: {error}") from error
    module = thing.__module__
    return name, "this notebook" if module == "__main__" else f"{module.replace('.', '/')}.py", code


def table(rows: Sequence[Mapping[str, Any]], caption: str = "") -> None:
    """Display a table; outside a notebook the same text is printed.

    rows      one mapping per row, with the first row's keys as columns; floats show three digits
    caption   a line above

    Raises: ValueError when there is no row.
    """
    text = f"{caption}\n\n" * bool(caption) + markdown_table(rows)
    notebook.show_markdown(text, text)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table: the first row's keys are the columns, and numbers stand at the right."""
    if not rows:
        raise ValueError("table: got no rows")
    names = list(rows[0])
    values = [[row.get(name, "") for name in names] for row in rows]
    numeric = [all(isinstance(v, (int, float)) or v == "" for v in column) for column in zip(*values, strict=True)]
    lines = [names, ["---:" if right else "---" for right in numeric]]
    lines += [[shown(value).replace("|", "\\|") for value in row] for row in values]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
