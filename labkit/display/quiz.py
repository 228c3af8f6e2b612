"""Predict first, then run; try it yourself, then look. Questions and exercises that also read well when saved.

A saved notebook keeps the question, the options and, folded away, the answer. Nothing here depends on a lesson, and
every text is the same in every run.
"""

from __future__ import annotations

import functools
import html
import inspect
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

    Raises: ValueError names what does not fit.
    """
    if isinstance(options, str) or not 2 <= len(options) <= 6 or len(set(options)) < len(options):
        raise ValueError(f"predict: expected 2 to 6 different options, got {options!r}")
    if answer not in range(len(options)):
        raise ValueError(f"predict: answer must be a place from 0 to {len(options) - 1}, got {answer!r}")
    question, why = " ".join(question.split()), " ".join(why.split())
    if notebook.kernel() is not None:
        text = "Predict first:"
        notebook.show(notebook.live("quiz", text, question=question, options=list(options), answer=answer, why=why))
    lettered = list(zip("ABCDEF", options, strict=False))
    plain = "\n".join([f"Predict first: {question}", *(f"  {letter}. {text}" for letter, text in lettered)])
    listed = "\n".join(f"- **{letter}.** {text}" for letter, text in lettered)
    answered = folded("Answer", f"**{lettered[answer][0]}.** {options[answer]}\n\n{why}")
    notebook.show_markdown(f"**Predict first.** {question}\n\n{listed}\n\n{answered}", plain)


def exercise(check: Callable[[Any], Any], function: Any, *, hints: Sequence[str] = ()) -> None:
    """Grade the learner's function and say how it did.

    check      takes the function and returns a report: `bool()`, `.seen`, `.hint`, `.caution`
    function   one that returns or raises NotImplemented(Error), or whose body is only `...`, counts as not attempted,
               so that Run All goes on
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
    untried = (NOT_ATTEMPTED, f"Fill in `{name}`, then run its cell and this one again.", "")
    if _is_stub(function):
        return untried
    watched, attempt = _watched(function)
    try:
        report = check(watched)
    except Exception as error:
        if attempt["missing"] or isinstance(error, NotImplementedError):
            return untried
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return NOT_YET, f"`{name}` raised {text}", "".join(traceback.format_exception(error))
    seen, hint = _words(getattr(report, "seen", None) or ""), _words(getattr(report, "hint", None) or "")
    ended = f"{seen}." if seen and seen[-1] not in ".!?" else seen
    if report:
        caution = _words(getattr(report, "caution", None) or "")
        return RIGHT, f"{ended} But: {caution}" if caution else seen, ""
    if attempt["missing"]:
        return untried
    return NOT_YET, f"{ended} {hint}".strip(), str(getattr(report, "traceback", "") or "")


def _watched(function: Any) -> tuple[Any, dict[str, bool]]:
    """The function, and a note of whether it ever said that it is not implemented. Classes go as they are."""
    attempt = {"missing": False}
    if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
        return function, attempt

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            value = function(*args, **kwargs)
        except NotImplementedError:
            attempt["missing"] = True
            raise
        if value is NotImplemented or value is ...:
            attempt["missing"] = True
        return value

    return watched, attempt


def _is_stub(function: Any) -> bool:
    """Whether the body is only a docstring, `...` or `pass`: then its code is that of an empty function."""
    if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
        return False

    def documented() -> None:
        """Says what."""

    empty = (documented.__code__.co_code, (lambda: None).__code__.co_code)
    return function.__code__.co_code in empty and {*function.__code__.co_consts} <= {None, function.__doc__, ...}


def _folded_hints(hints: Sequence[str]) -> list[str]:
    """Hints, each folded inside the one before; no part where there is none."""
    inner = ""
    for number, hint in reversed(list(enumerate(hints, 1))):
        name = "Hint" if len(hints) == 1 else f"Hint {number} of {len(hints)}"
        inner = folded(name, f"{hint.strip()}\n\n{inner}".rstrip())
    return [inner] if inner else []


def _words(evidence: Any) -> str:
    """What a report saw, on one line: a text, or a dict of names to numbers, words and lists of them.

    A tiny number is rounding error, which differs between machines: it only says so.
    """
    if isinstance(evidence, dict):
        return ", ".join(f"{name} {_words(value)}" for name, value in evidence.items())
    if isinstance(evidence, (list, tuple)):
        return shown([_words(value) for value in evidence])
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
