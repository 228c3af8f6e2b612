"""What a check answers, a `Report`, and how it runs a stranger's function without being hurt by it.

A wrong answer is never an exception. This file knows no check.
"""

from __future__ import annotations

import inspect
import os
import random
import sys
import sysconfig
import traceback as tracebacks
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from labkit.common import shown


@dataclass(frozen=True)
class Report:
    """What one check found. `bool(report)` is True only when the function passed.

    check, claim  the check's name, and what holds when it passes
    passed        True, False, or None: inconclusive, the evidence speaks neither for the function nor against it
    word          PASS, FAIL or INCONCLUSIVE
    seen          the evidence: names to numbers, words, or short lists of them
    hint          the likely cause of a failure (likely, not certain), or what would decide; "" when it passed
    traceback     the function's own, if it raised
    caution       what to know although it passed; mostly ""

    The text always has the same lines (a caution adds one) and shows three digits of a number.
    """

    check: str
    claim: str
    passed: bool | None
    seen: dict[str, Any] = field(default_factory=dict)
    hint: str = ""
    traceback: str = ""
    caution: str = ""

    def __bool__(self) -> bool:
        return self.passed is True

    @property
    def word(self) -> str:
        if self.passed is None:
            return "INCONCLUSIVE"
        return "PASS" if self.passed else "FAIL"

    def __repr__(self) -> str:
        evidence = ", ".join(f"{name} {shown(value)}" for name, value in self.seen.items()) or "nothing"
        text = f"{self.word}  {self.check}: {self.claim}\nseen  {evidence}\nhint  {self.hint or 'none'}"
        return f"{text}\ncaution  {self.caution}" if self.caution else text


@dataclass(frozen=True)
class Verdict:
    """What a judge concludes: the kind, and the text that goes with it.

    pass          nothing to say
    caution       it passes, and there is something to know
    inconclusive  the evidence decides nothing; the text says what would
    fail          the text is the likely cause
    """

    kind: Literal["pass", "caution", "inconclusive", "fail"]
    text: str = ""


PASS = Verdict("pass")


def caution(text: str) -> Verdict:
    return Verdict("caution", text)


def inconclusive(text: str) -> Verdict:
    return Verdict("inconclusive", text)


def fail(text: str) -> Verdict:
    return Verdict("fail", text)


# A judge writes its evidence into the dict. The single questions of a judge answer None where they find nothing.
Judge = Callable[[dict[str, Any]], Verdict]


class Raised(Exception):  # noqa: N818 - not an error of ours
    """The judged function raised what is the `__cause__` of this. The message, if any, is the hint."""


class CannotJudge(Exception):  # noqa: N818 - ends in a report, never reaches the caller
    """The judged function returned something that cannot be judged; the message is the hint."""

    def __init__(self, hint: str, **evidence: Any):
        super().__init__(hint)
        self.evidence = evidence


def judged(check: str, claim: str, function: Any, judge: Judge) -> Report:
    """Let `judge` call `function` through `attempt`, and turn whatever happens into a Report.

    `None` or `...` is an exercise nobody has tried yet: a false report. What else cannot be called is a TypeError.
    """
    if function is None or function is ...:
        return Report(check, claim, False, {"function": "none"}, "There is no function yet.")
    if not callable(function):
        raise TypeError(f"{check}: expected a function, got {type(function).__name__}")
    evidence: dict[str, Any] = {}
    try:
        with undisturbed():
            verdict = judge(evidence)
    except Raised as raised:
        return _of_exception(check, claim, raised.__cause__ or raised, str(raised))
    except CannotJudge as reason:
        return Report(check, claim, False, reason.evidence or evidence or {"returned": "see the hint"}, str(reason))
    except Exception as error:  # it left something behind that no judge foresaw
        return _of_exception(check, claim, error, "The check could not read what the function left behind.")
    if verdict.kind in ("pass", "caution"):
        return Report(check, claim, True, evidence, caution=verdict.text)
    return Report(check, claim, None if verdict.kind == "inconclusive" else False, evidence, verdict.text)


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the judged function; what it raises arrives as `Raised`."""
    try:
        return function(*args, **kwargs)
    except (Exception, SystemExit) as error:
        raise Raised from error


def _of_exception(check: str, claim: str, error: BaseException, hint: str = "") -> Report:
    where = _where(error)
    if not hint and isinstance(error, NotImplementedError):
        hint = "Likely not written yet: the function raised NotImplementedError."
    elif not hint and isinstance(error, TypeError) and not where:
        # no frame of the caller's own: the call itself failed
        hint = "Likely a different signature than the one in the check's docstring; wrap it in a lambda."
    hint = hint or "The function raised; `.traceback` has the whole story."
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if len(text) > 200:
        text = text[:197] + "..."
    evidence = {"exception": text, "where": where or "the call itself"}
    return Report(check, claim, False, evidence, hint, "".join(tracebacks.format_exception(error)))


PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep
OURS = tuple(PACKAGE + name + os.sep for name in ("checks", "display"))
LIBRARIES = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "purelib", "platlib"))


def _where(error: BaseException) -> str:
    """`file:line in function` of the deepest frame that is the caller's own, else labkit's (a function of labkit's that
    is judged itself); "" when there is none. An exception raised in place of another one is looked through."""
    frames = [frame for frame in tracebacks.extract_tb(error.__traceback__) if not _of_library(frame.filename)]
    if not frames:
        behind = error.__cause__ or error.__context__
        return "" if behind is None else _where(behind)
    callers = [frame for frame in frames if not frame.filename.startswith(PACKAGE)]
    frame = (callers or frames)[-1]  # the deepest comes last
    name = os.path.basename(frame.filename)
    if "ipykernel" in frame.filename or name.startswith("<ipython"):
        name = "cell"
    return f"{name}:{frame.lineno} in {frame.name}"


def _of_library(file: str) -> bool:
    """Whether a frame's file is Python's, an installed package's, or of the checks and exercises themselves."""
    path = os.path.realpath(file)
    if path.startswith(PACKAGE):  # also where labkit is installed
        return path.startswith(OURS)
    installed = any(f"{os.sep}{name}{os.sep}" in path for name in ("site-packages", "dist-packages"))
    return installed or file.startswith("<frozen") or path.startswith(LIBRARIES)


@contextmanager
def undisturbed(seed: int = 0) -> Iterator[None]:
    """Seed the global random generators inside, put them back after; gradients on, inference mode off."""
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    # Asking a driver that nobody has used yet would initialise it.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
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
    """`value` as a tensor (the first entry of a tuple); a number, a list of numbers and an array are taken too.

    `CannotJudge` otherwise, naming what was expected.
    """
    if isinstance(value, tuple) and value:
        value = value[0]
    if not isinstance(value, (torch.Tensor, bool, str, type(None))):
        with suppress(TypeError, ValueError, RuntimeError):
            value = torch.as_tensor(value)
            value = value if value.is_floating_point() else value.float()
    if not isinstance(value, torch.Tensor):
        cause = "Likely not written yet, or the return is missing." if value is None else ""
        raise CannotJudge(f"Expected {expected}. {cause}".strip(), returned=type(value).__name__)
    return value


def parameters_of(function: Any) -> list[inspect.Parameter]:
    """The parameters in a function's signature; none where it has no signature."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
