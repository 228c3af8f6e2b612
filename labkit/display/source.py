"""Show the source of a function or class in the notebook: no cell hides its work behind a name that cannot be opened.

This file reads source; it does not run anything.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from pathlib import Path
from typing import Any

from . import notebook


def show(thing: Any, *more: Any) -> None:
    """Display the source of one or more functions or classes, syntax-highlighted; in a script print it.

    Methods, partials, cached and decorated functions show what they wrap. The file name is relative to the package;
    a function from a cell is said to be from this notebook. There are no line numbers, so that the output changes
    only when the source does.

    Raises: TypeError says why there is nothing to show.
    """
    parts = [_source(one) for one in (thing, *more)]
    if notebook.kernel() is None:
        print("\n\n".join(f"# {where}\n{code}" for _, where, code in parts))
        return
    markdown = "\n\n".join(f"`{where}`\n\n{notebook.fenced(code, 'python')}" for _, where, code in parts)
    notebook.show_markdown(markdown, "source of " + ", ".join(name for name, _, _ in parts))


def _source(thing: Any) -> tuple[str, str, str]:
    """(qualified name, where it stands, its source without indentation)."""
    given = thing
    while isinstance(thing, functools.partial):
        thing = thing.func
    if isinstance(thing, property):
        thing = thing.fget
    if inspect.ismodule(thing):
        raise TypeError(f"show: {given.__name__} is a whole module; pass a function or class of it")
    thing = inspect.unwrap(thing) if callable(thing) else thing
    if not (inspect.isfunction(thing) or inspect.ismethod(thing) or inspect.isclass(thing)):
        raise TypeError(_why_not(given))
    name = thing.__qualname__.replace("<locals>.", "")
    try:
        code = textwrap.dedent(inspect.getsource(thing)).rstrip()
    except (OSError, TypeError) as error:
        raise TypeError(
            f"show: no Python source for {name}: {error}. It may be compiled, or typed at a prompt"
        ) from error
    return name, f"{_where(thing)} · {name}", code


def _why_not(thing: Any) -> str:
    if inspect.isbuiltin(thing) or inspect.ismethoddescriptor(thing):
        name = getattr(thing, "__qualname__", repr(thing))
        return f"show: {name} is compiled code, it has no Python source; pass a function written in Python"
    return (
        f"show: expected a function or class, got an instance of {type(thing).__name__}; "
        f"pass its class, {type(thing).__qualname__}"
    )


def _where(thing: Any) -> str:
    """The file, from the package's own folder on: "labkit/kl.py"; or "this notebook"."""
    module = getattr(thing, "__module__", "") or ""
    file = inspect.getsourcefile(thing)
    if file is None or module == "__main__" and not Path(file).is_file():
        return "this notebook"
    top = module.split(".")[0]
    parts = Path(file).parts
    if top in parts:  # the last folder of that name: a checkout may lie in one too
        return "/".join(parts[len(parts) - 1 - parts[::-1].index(top) :])
    return parts[-1]
