"""Run a stranger's function that may never come back, and find the line that a finding is about."""

from __future__ import annotations

import ctypes
import inspect
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType
from typing import Any

from ..report import LIBRARIES, Raised

PATIENCE = 10.0  # seconds; torch.compile in a first call takes some of them


SCORES = re.compile(r"attention_mask|position_?ids|cumsum|\bmodel\(")
SETS_NUMBERS = re.compile(r"[\w, ]+= *[-+\d., e]+$")


class TooLong(Exception):  # noqa: N818 - the report says it
    """The function did not come back."""


class _Stop(BaseException):
    """Raised inside a function that takes too long. No Exception: it may catch those."""


def within(seconds: float, function: Callable[..., Any], *args: Any) -> Any:
    """Call it in a thread of its own. `Raised` from what it raises, `TooLong` when it does not
    come back.

    What waits inside a system call cannot be stopped: such a thread is left behind, and ends
    with the process.
    """
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["value"] = function(*args)
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=work, daemon=True, name="grpo_step")
    thread.start()
    try:
        thread.join(seconds)
    finally:  # also when somebody interrupts the waiting
        if thread.is_alive():
            stop = ctypes.py_object(_Stop)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), stop)
            thread.join(0.2)
    error = outcome.get("error")
    if isinstance(error, _Stop) or not outcome:
        raise TooLong
    if isinstance(error, (Exception, SystemExit)):
        raise Raised from error
    if error is not None:
        raise error
    return outcome["value"]


def line_with(function: Any, pattern: str) -> str:
    """`file:line  text` of the first line of the function, or of what it calls, that
    matches; or "".
    """
    # The patterns before an " or " are looked for everywhere before those behind it.
    first_choice, _, others = pattern.partition(" or ")
    return _line_with(function, first_choice) or (others and line_with(function, others))


def _line_with(function: Any, pattern: str) -> str:
    if not pattern:
        return ""
    for code in _codes(function):
        try:
            lines, first = inspect.getsourcelines(code)
        except (OSError, TypeError):
            continue
        for number, line in enumerate(lines, first):
            text = line.split("#")[0].strip()
            if text.startswith(("def ", "@", '"""', "class ", "if ", "import ", "from ")):
                continue
            if text.startswith("for ") and "range" not in pattern:
                continue
            if _elsewhere(text, pattern):
                continue
            if re.search(pattern, text, re.IGNORECASE):
                name = os.path.basename(code.co_filename)
                if "ipykernel" in code.co_filename or name.startswith("<ipython"):
                    name = "cell"
                return f"{name}:{number}  {text}"
    return ""


def _elsewhere(text: str, pattern: str) -> bool:
    """Whether a line only scores tokens or sets a number, and the pattern is about neither."""
    if not re.search("attention|position|logits|model", pattern) and SCORES.search(text):
        return True
    return "temperature" not in pattern and bool(SETS_NUMBERS.match(text))


def _codes(function: Any, depth: int = 4, most: int = 40) -> Iterator[CodeType]:
    """The code of a function and of the caller's own functions that it names, nearest first."""
    waiting = [(function, depth)]
    seen: set[CodeType] = set()
    while waiting and len(seen) < most:
        thing, left = waiting.pop(0)
        thing = inspect.unwrap(getattr(thing, "func", thing))
        if not hasattr(thing, "__code__"):  # an object that can be called
            thing = type(thing).__call__
        code = getattr(getattr(thing, "__func__", thing), "__code__", None)
        if code is None or code in seen or _installed(code.co_filename):
            continue
        seen.add(code)
        yield code
        if left:
            waiting += [(named, left - 1) for named in _named_by(thing, code)]


def _named_by(function: Any, code: CodeType) -> list[Any]:
    """Functions behind the names that a function uses: globals, and what it closes over."""
    spaces = [getattr(function, "__globals__", {})]
    with suppress(TypeError, ValueError):
        spaces.append(inspect.getclosurevars(function).nonlocals)
    found = []
    for name in (*code.co_names, *code.co_freevars):
        for space in spaces:
            thing = space.get(name)
            if callable(thing) and not inspect.isclass(thing):
                found.append(thing)
    return found


def _installed(file: str) -> bool:
    path = os.path.realpath(file)
    return path.startswith(LIBRARIES) or "site-packages" in path or file.startswith("<frozen")
