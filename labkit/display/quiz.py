"""Predict first, then run; try it yourself, then look. Questions and exercises that also read well when saved.

A saved notebook keeps the question, the options and, folded away, the answer. Nothing here depends on a lesson, and
every text is the same in every run.
"""

from __future__ import annotations

import html
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from labkit.common import shown

from . import notebook
from .notebook import fenced, folded

NOT_ATTEMPTED, NOT_YET, RIGHT = "Not attempted yet", "Not yet", "Right"


def predict(question: str, options: Sequence[str], answer: int, why: str) -> None:
    """Ask a question whose choice is judged in the browser, also while the kernel is busy.

    question   may use `code` and **bold**, as `options` and `why`
    options    two to six different answers
    answer     the place of the right one, counted from 0
    why        shown with the verdict
    """
    question, why = " ".join(question.split()), " ".join(why.split())
    if notebook.kernel() is not None:
        text = "Predict first:"
        notebook.show(notebook.live("quiz", text, question=question, options=list(options), answer=answer, why=why))
    plain, markdown = f"Predict first: {question}", f"**Predict first.** {question}\n"
    for letter, option in zip("ABCDEF", options, strict=False):
        plain += f"\n  {letter}. {option}"
        markdown += f"\n- **{letter}.** {option}"
    markdown += "\n\n" + folded("Answer", f"**{'ABCDEF'[answer]}.** {options[answer]}\n\n{why}")
    notebook.show_markdown(markdown, plain)


def exercise(check: Callable[[Any], Any], function: Any, *, hints: Sequence[str] = ()) -> None:
    """Grade the learner's function and say how it did.

    check      takes the function and returns a report: `bool()`, `.seen`, `.hint`, `.caution`
    function   one whose body is only a docstring or `...` counts as not attempted, so that Run All goes on
    hints      unfold one at a time, and go away once the check passes
    """
    verdict, detail, evidence = _grade(check, function)
    parts = [f"**{verdict}.** {_escaped(detail)}".rstrip()]
    if evidence:
        parts.append(folded("Traceback", fenced(evidence.strip())))
    if verdict != RIGHT:
        parts += _folded_hints(hints)
    notebook.show_markdown("\n\n".join(parts), f"{verdict}. {detail}".rstrip())


def _grade(check: Callable[[Any], Any], function: Any) -> tuple[str, str, str]:
    """What became of an attempt, in a word and in a sentence; a traceback, if it raised."""
    name = getattr(function, "__name__", "the function")
    if _is_stub(function):
        return NOT_ATTEMPTED, f"Fill in `{name}`, then run its cell and this one again.", ""
    try:
        report = check(function)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return NOT_YET, f"`{name}` raised {text}", "".join(traceback.format_exception(error))
    evidence = _on_one_line(getattr(report, "seen", ""))
    sentence = evidence
    if evidence and evidence[-1] not in ".!?":
        sentence += "."
    if not report:
        hint = _on_one_line(getattr(report, "hint", ""))
        return NOT_YET, f"{sentence} {hint}".strip(), getattr(report, "traceback", "")
    if caution := getattr(report, "caution", ""):
        return RIGHT, f"{sentence} But: {_on_one_line(caution)}", ""
    return RIGHT, evidence, ""


def _is_stub(function: Any) -> bool:
    """Whether the body is only a docstring, `...` or `pass`: then its code is that of an empty function."""

    def documented() -> None:
        """Says what."""

    code = getattr(function, "__code__", None)
    if code is None or code.co_code not in (documented.__code__.co_code, (lambda: None).__code__.co_code):
        return False
    # `return 1` has the same code, and its value among the constants
    return {*code.co_consts} <= {None, function.__doc__, ...}


def _folded_hints(hints: Sequence[str]) -> list[str]:
    """Hints, each folded inside the one before; no part where there is none."""
    inner: list[str] = []
    for number, hint in reversed(list(enumerate(hints, 1))):
        name = "Hint" if len(hints) == 1 else f"Hint {number} of {len(hints)}"
        inner = [folded(name, "\n\n".join([hint.strip(), *inner]))]
    return inner


def _on_one_line(evidence: Any) -> str:
    """What a report saw: a text, or a dict of names to numbers, words and lists of them.

    A tiny number is rounding error, which differs between machines: it only says so.
    """
    if isinstance(evidence, dict):
        return ", ".join(f"{name} {_on_one_line(value)}" for name, value in evidence.items())
    if isinstance(evidence, (list, tuple)):
        return shown([_on_one_line(value) for value in evidence])
    if isinstance(evidence, float) and 0 < abs(evidence) < 1e-4:
        return "under 1e-4"
    return shown(evidence)


def _escaped(text: str) -> str:
    """Text from a check, as Markdown: `<` and `*` mean themselves, `code` stays code."""
    parts = text.split("`")
    return "`".join(
        part if i % 2 else html.escape(part, quote=False).replace("*", "\\*").replace("_", "\\_")
        for i, part in enumerate(parts)
    )
