"""What a check answers, a `Report`, and how it runs a stranger's function without being hurt by it.

A wrong answer is never an exception: whatever the function raises or returns, the report says so and is
false. This file knows no check.
"""

from __future__ import annotations

import html
import random
import sys
import traceback as tracebacks
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from labkit.common import shown


@dataclass(frozen=True)
class Report:
    """The verdict of one check. `bool(report)` is True when it passed.

    `seen` holds the evidence: names to numbers, words, or short lists of them. `hint` is the likely cause of
    a failure (likely, not certain), empty when the check passed. `traceback` is the function's own, if it
    raised. The text forms have the same lines whatever happened and show three digits of a number, so that a
    saved notebook compares equal across machines; `seen` itself keeps every digit.
    """

    check: str
    claim: str
    passed: bool
    seen: dict[str, Any] = field(default_factory=dict)
    hint: str = ""
    traceback: str = ""

    def __bool__(self) -> bool:
        return self.passed

    @property
    def word(self) -> str:
        return "PASS" if self.passed else "FAIL"

    def __repr__(self) -> str:
        return f"{self.word}  {self.check}: {self.claim}\nseen  {self._seen()}\nhint  {self.hint or 'none'}"

    def _seen(self) -> str:
        return ", ".join(f"{name} {_shown(value)}" for name, value in self.seen.items()) or "nothing"

    def _repr_markdown_(self) -> str:
        evidence = f"- seen: {self._seen()}\n- hint: {self.hint or 'none'}"
        return f"**{self.word}** `{self.check}`: {self.claim}\n\n{evidence}"

    def _repr_html_(self) -> str:
        colour = "#2da44e" if self.passed else "#cf222e"  # readable on light and dark
        rows = "".join(
            f'<tr><td style="text-align:left">{_escape(name)}</td>'
            f'<td style="text-align:left"><code>{_escape(_shown(value))}</code></td></tr>'
            for name, value in self.seen.items()
        )
        return (
            f'<div style="border-left:4px solid {colour};padding:2px 12px">'
            f'<div><b style="color:{colour}">{self.word}</b> <code>{_escape(self.check)}</code>: '
            f"{_escape(self.claim)}</div><table>{rows}</table>"
            f"<div><b>hint</b> {_escape(self.hint or 'none')}</div></div>"
        )


class RelativeError(float):
    """Rounding noise in it, different on every machine, is shown as ~0."""


def _shown(value: Any) -> str:
    return "~0" if isinstance(value, RelativeError) and abs(value) < 1e-4 else shown(value)


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


class Raised(Exception):  # noqa: N818 - not an error of ours: it carries the stranger's
    """The judged function raised `cause`."""

    def __init__(self, cause: BaseException):
        super().__init__(str(cause))
        self.cause = cause


class CannotJudge(Exception):  # noqa: N818 - ends in a report, never reaches the caller
    """The judged function returned something that cannot be judged; the message is the hint."""

    def __init__(self, hint: str, **seen: Any):
        super().__init__(hint)
        self.seen = seen


# Fills in what was seen, and returns the likely cause of the failure: "" when the function passes.
Judge = Callable[[dict[str, Any]], str]


def judged(check: str, claim: str, function: Any, judge: Judge) -> Report:
    """Let `judge` call `function` through `attempt`, and turn whatever happens into a Report.

    `None` or `...` in place of a function is an exercise nobody has tried yet: a false report. Anything else
    that cannot be called is a TypeError. KeyboardInterrupt passes through.
    """
    if function is None or function is ...:
        return Report(check, claim, False, {"function": "none"}, "There is no function yet.")
    if not callable(function):
        raise TypeError(f"{check}: expected a function, got {type(function).__name__}")
    seen: dict[str, Any] = {}
    try:
        with undisturbed():
            hint = judge(seen)
    except Raised as raised:
        return _of_exception(check, claim, raised.cause)
    except CannotJudge as reason:
        return Report(check, claim, False, reason.seen, str(reason))
    except Exception as error:  # it left something behind that no judge foresaw
        report = _of_exception(check, claim, error)
        return replace(report, hint="The check could not read what the function left behind.")
    return Report(check, claim, not hint, seen, hint)


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the judged function; what it raises arrives as `Raised`."""
    try:
        return function(*args, **kwargs)
    except (Exception, SystemExit) as error:
        raise Raised(error) from error


def described(error: BaseException) -> str:
    """`RuntimeError: message`, on one line and not longer than 200 characters."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 200 else text[:197] + "..."


def _of_exception(check: str, claim: str, error: BaseException) -> Report:
    frames = tracebacks.extract_tb(error.__traceback__)
    where = f"{frames[1].name}, line {frames[1].lineno}" if len(frames) > 1 else "the call itself"
    hint = "The function raised; `.traceback` has the whole story."
    if isinstance(error, NotImplementedError):
        hint = "Likely not written yet: the function raised NotImplementedError."
    elif isinstance(error, TypeError) and len(frames) <= 1:
        hint = "Likely a different signature than the one in the check's docstring; wrap it in a lambda."
    text = "".join(tracebacks.format_exception(error))
    return Report(check, claim, False, {"exception": described(error), "where": where}, hint, text)


@contextmanager
def undisturbed(seed: int = 0) -> Iterator[None]:
    """Seed the global random generators inside, put them back after; gradients on, inference mode off."""
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    devices = list(range(torch.cuda.device_count())) if cuda else []
    with torch.random.fork_rng(devices=devices), torch.inference_mode(False), torch.enable_grad():
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)


def tensor_of(value: Any, expected: str) -> torch.Tensor:
    """`value` as a tensor (the first entry of a tuple). `CannotJudge` otherwise, naming what was expected."""
    if isinstance(value, tuple) and value:
        value = value[0]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = torch.tensor(float(value))
    if not isinstance(value, torch.Tensor):
        cause = "Likely not written yet, or the return is missing." if value is None else ""
        raise CannotJudge(f"Expected {expected}. {cause}".strip(), returned=type(value).__name__)
    return value
