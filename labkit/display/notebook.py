"""What every display needs from a notebook: a slot that keeps a picture, Markdown, a live widget.

nbval compares the `text/plain` of an output and the number of outputs, so every text here is the same in every run.
What needs no kernel is HTML (`show_page`), what lives while one serves it is a widget (`live`). This file
knows no chart and no question.
"""

from __future__ import annotations

import functools
import html
import json
import os
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from labkit import progress
from labkit.common import kernel

# A transparent pixel: what a slot holds until the picture is there.
BLANK = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="

NO_SHORTCUTS = "data-lm-suppress-shortcuts"  # an attribute: JupyterLab does not hear the keys pressed inside


class Slot:
    """One output that can be replaced later, also in a saved notebook. Its `text/plain` never changes."""

    def __init__(self, text: str):
        self.text = text
        self._handle: Any = None

    def show(self, data: dict[str, str] | None = None) -> None:
        """Display it: `data` is a mime bundle without text/plain; a transparent pixel where there is none."""
        from IPython.display import display

        bundle = {"text/plain": self.text, **(data or {"image/png": BLANK})}
        self._handle = display(bundle, raw=True, display_id=True)

    def show_thing(self, thing: Any) -> None:
        """Display an object, a widget say, in whose place `put` puts what stays."""
        from IPython.display import display

        self._handle = display(thing, display_id=True)

    def put(self, data: dict[str, str], metadata: dict[str, Any] | None = None) -> None:
        """Replace what the slot holds, if it is displayed."""
        if self._handle is not None:
            self._handle.update({"text/plain": self.text, **data}, raw=True, metadata=metadata or {})


def show(thing: Any, **options: Any) -> None:
    from IPython.display import display

    display(thing, **options)


def show_markdown(markdown: str, text: str) -> None:
    """Display Markdown; `text` is its `text/plain`. Outside a notebook the text is printed."""
    if kernel() is None:
        print(text)
    else:
        show({"text/markdown": markdown, "text/plain": text}, raw=True)


def show_page(script: str, static: str, spec: Mapping[str, Any], markdown: str, text: str) -> None:
    """Display HTML that needs no kernel: `web/<script>.js` makes `static` into something to turn or to answer.

    static     HTML for readers without script, as in a page that JupyterLab does not trust yet
    spec       what the script is given, as JSON
    markdown   the same for whom HTML cannot be shown, and all that a committed page holds (`saved_pages`)
    text       the `text/plain`, printed outside a notebook
    """
    if kernel() is None:
        print(text)
        return
    bundle = {"text/markdown": markdown, "text/plain": text}
    if not saved_pages():
        bundle["text/html"] = page(script, static, spec)
    show(bundle, raw=True)


def told(name: str) -> dict[str, Any] | None:
    """What a script says of itself when it tells of an answer; None where no progress is noted (`labkit.progress`)."""
    page = progress.page()
    if page is None:
        return None
    return {"page": page.number, "name": progress.short(name), "began": progress.FIRST_CELL}


def saved_pages() -> bool:
    """Whether this page is executed to be committed or checked, where nobody clicks: LABKIT_SAVED_PAGES is set."""
    return bool(os.environ.get("LABKIT_SAVED_PAGES"))


def page(script: str, static: str, spec: Mapping[str, Any]) -> str:
    """The self-contained HTML of `show_page`. The script also gets `web/tell.js`, where it has to tell of answers."""
    given = json.dumps(spec).replace("</", "<\\/")  # else a text could end the script
    tell = f", {web('tell.js')}" if spec.get("told") else ""
    head = f'<div class="labkit-page" {NO_SHORTCUTS}="true"><style>{web("page.css")}</style>'
    # The root is looked up first: scripts that wait have no `currentScript`. Its attribute covers rules of JupyterLab
    # for what is around it; those for the focused element itself, as for ArrowUp and ArrowDown, ask that element.
    call = (
        f"(() => {{ const root = document.currentScript.parentElement; ({web(script + '.js')})(root, {given}{tell}); "
        f'root.querySelectorAll("input, button").forEach((each) => each.setAttribute("{NO_SHORTCUTS}", "true")); }})();'
    )
    return f"{head}{static}<script>{call}</script></div>"


def fenced(code: str, language: str = "text") -> str:
    """Text exactly as it is, as a Markdown code block whose fence it cannot close."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
    return f"{fence}{language}\n{code}\n{fence}"


def folded(summary: str, markdown: str) -> str:
    """Markdown that opens on a click, in JupyterLab, VS Code, Colab and on GitHub."""
    return f"<details><summary>{html.escape(summary)}</summary>\n\n{markdown}\n\n</details>"


def live(script: str, text: str, **state: Any) -> Any:
    """A widget that runs `web/<script>.js` with this state, not yet displayed. `text` is its `text/plain`."""
    widget = _classes()[0](_code=_code(script), spec=state)
    widget.text = text
    return widget


def web(name: str) -> str:
    """The text of a file in `labkit/display/web`."""
    return files("labkit.display").joinpath("web", name).read_text(encoding="utf-8")


@functools.cache
def _classes() -> tuple[Any, Any]:
    """The widget that shows something, and the model that holds its code."""
    import anywidget
    import traitlets
    from ipywidgets import Widget, widget_serialization

    class Code(Widget):
        js = traitlets.Unicode().tag(sync=True)
        css = traitlets.Unicode().tag(sync=True)

    class Live(anywidget.AnyWidget):
        """One live display. `spec` is what it shows; everything that moves goes by messages."""

        _esm = web("loader.js")
        _code = traitlets.Instance(Widget).tag(sync=True, **widget_serialization)
        spec = traitlets.Dict().tag(sync=True)
        text = ""

        def __repr__(self) -> str:
            return self.text

    return Live, Code


@functools.cache
def _code(script: str) -> Any:
    """The model that holds the code: one per kernel and script."""
    return _classes()[1](js=web(f"{script}.js"), css=web("labkit.css"))
