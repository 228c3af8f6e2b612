"""An exercise: judge the reader's function, say how it did in words, and hand on what the cells below run.

    kl = labkit.exercise(check, my_kl, solution=k2, hints=["Which power of d has the slope d?"])

The check runs in a process of its own, so that whatever the function does ends within seconds with a
sentence. This file knows no lesson, and nothing of it decides what is right: the check does.
"""

from __future__ import annotations

import functools
import html
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit import progress
from labkit.common import shown

from . import notebook
from .notebook import fenced, folded

EMPTY, NOT_YET, RIGHT = "Not attempted yet", "Not yet", "Right"
MARKS = {EMPTY: "", NOT_YET: "✗ ", RIGHT: "✓ "}
MEMORY = 4 * 2**30  # bytes that the process of a check may have, beyond what it has when it starts
PROCESSES = 4  # that each process of a check may start
GRACE = 3.0  # a function that waits and computes nothing may take so many times as long as one that computes


class Chosen:
    """What the cells below an exercise run: the reader's function, or the solution while theirs is empty.

    It is called like the function itself. `str()` of it says whose it is, "yours" or "solution": a label for pictures,
    tables and verdicts. `attempt` counts the reader's different attempts, from 1; 0 for the solution.
    """

    def __init__(self, function: Callable[..., Any], whose: str, attempt: int):
        functools.update_wrapper(self, function)
        self.function, self.whose, self.attempt = function, whose, attempt

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __str__(self) -> str:
        return self.whose

    def __repr__(self) -> str:
        return f"<{self.whose}: {getattr(self.function, '__name__', 'a function')}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # to the sandbox goes the function alone, so that its process need not import what draws
        return functools.partial, (self.function,)


@dataclass(frozen=True)
class Feedback:
    """How an attempt did.

    result     EMPTY, NOT_YET or RIGHT
    sentence   what to tell the reader
    measured   what the check measured: name -> number or word
    trace      the traceback of a function that raised
    safe       whether it came back: only then it is run in the cells below
    """

    result: str
    sentence: str
    measured: dict[str, Any] | str = ""
    trace: str = ""
    safe: bool = True


def exercise(
    check: Callable[[Any], Any],
    mine: Any,
    *,
    solution: Callable[..., Any] | None = None,
    hints: Sequence[str] = (),
    seconds: float = 10.0,
    hand_on: bool = True,
) -> Chosen | None:
    """Judge the reader's function, say how it did, and return what the next cells run.

    check      takes the function and returns a report: `bool()`, `.seen`, `.hint`, `.caution`
    mine       the reader's function; one whose body is only a docstring or `...` counts as empty, so that Run
               All goes on
    solution   what runs below while `mine` is empty. Without one, nothing is returned, and the check runs in the kernel
    hints      unfold one at a time, and go away once the check passes
    seconds    of computing that the check may take; of waiting, three times as long
    hand_on    False where no cell below runs it, as for a diagnosis: then nothing is returned

    A wrong function is returned too, for the reader to see what it does. One that does not come back (an endless loop,
    `sys.exit`, too many processes, too much memory) is not: the cells below run the solution, and a sentence says so.
    """
    hand_on = hand_on and solution is not None
    if is_empty(mine):
        name = getattr(mine, "__name__", "the function")
        feedback = Feedback(EMPTY, f"Fill in `{name}`, then run its cell and this one again.")
        if hand_on:
            sentence = (
                f"`{name}` is still empty, so the cells below run the solution. Write yours, run its cell and "
                "this one again, and go on from there: what is blue will be yours."
            )
            feedback = Feedback(EMPTY, sentence)
    elif solution is None:
        feedback = judge(check, mine)
    else:
        feedback = judge_in_sandbox(check, mine, seconds)
    _show(feedback, hints, hand_on)
    if feedback.result != EMPTY:
        _note(mine, feedback.result == RIGHT, hints)
    if solution is None or not hand_on:
        return None
    if feedback.result == EMPTY or not feedback.safe:
        return Chosen(solution, "solution", 0)
    return Chosen(mine, "yours", _attempt(mine))


def is_empty(function: Any) -> bool:
    """Whether the body is only a docstring, `...` or `pass`: then its code is that of an empty function."""

    def documented() -> None:
        """Says what."""

    code = getattr(function, "__code__", None)
    if code is None or code.co_code not in (documented.__code__.co_code, (lambda: None).__code__.co_code):
        return False
    # `return 1` has the same code, and its value among the constants
    return {*code.co_consts} <= {None, function.__doc__, ...}


def judge(check: Callable[[Any], Any], function: Any) -> Feedback:
    """What the check says of an attempt. Whatever the check or the function raises is feedback, too."""
    name = getattr(function, "__name__", "the function")
    try:
        report = check(function)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return Feedback(NOT_YET, f"`{name}` raised {text}", "", "".join(traceback.format_exception(error)))
    measured = getattr(report, "seen", "")
    sentence = ""
    if isinstance(measured, str):  # a judge of a lesson may say it in a sentence
        sentence, measured = _sentence(measured), ""
    if report:
        caution = _sentence(getattr(report, "caution", ""))
        sentence += f" But: {caution}" if caution else ""
        return Feedback(RIGHT, sentence.strip(), measured)
    sentence = f"{sentence} {_sentence(getattr(report, 'hint', ''))}".strip()
    return Feedback(NOT_YET, sentence, measured, getattr(report, "traceback", ""))


# ---------------------------------------------------------------------------------- an attempt that may do anything


def judge_in_sandbox(check: Callable[[Any], Any], function: Any, seconds: float) -> Feedback:
    """`judge` in a process of its own, which is ended where it computes, waits, grows or multiplies too much."""
    from labkit import sandbox

    name = getattr(function, "__name__", "the function")
    child = sandbox.start(_judge_within_limits, check, function, timeout=GRACE * seconds)
    try:
        stopped = _hold_to_limits(child, seconds)
    finally:
        child.stop()
    run = child.result()
    answers = [event for event in run.events if isinstance(event, Feedback)]
    if answers:
        return answers[-1]
    if stopped:
        reason = stopped
    elif run.outcome.signature == "timeout":
        reason = f"did not come back within {GRACE * seconds:g} s"
    elif run.outcome.exception:
        reason = f"ended with {run.outcome.exception}: {run.outcome.message}".rstrip(": ")
    else:
        reason = f"ended its process ({run.outcome.signature})"
    sentence = f"`{name}` {reason}."
    return Feedback(NOT_YET, sentence, trace=run.outcome.traceback, safe=False)


def _judge_within_limits(check: Callable[[Any], Any], function: Any) -> Feedback:
    """In the sandbox's process."""
    started = [0]

    def refuse(event: str, _: Any) -> None:
        # a process that a check starts inherits this hook, and the count as it was: so few become few times few
        if event in ("os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"):
            started[0] += 1
            if started[0] > PROCESSES:
                raise RuntimeError(f"more than {PROCESSES} processes were started")

    sys.addaudithook(refuse)
    name, parent = getattr(function, "__name__", "the function"), os.getpid()
    exited = Feedback(NOT_YET, f"`{name}` called `sys.exit`.", safe=False)
    try:
        feedback = judge(check, function)
    except SystemExit:
        feedback = exited
    if os.getpid() != parent:  # a copy that the function made of this process by `os.fork`
        os._exit(0)
    if "SystemExit" in feedback.trace:  # the check caught it, as labkit's own do
        feedback = exited
    if started[0] > PROCESSES:
        sentence = f"`{name}` started more than {PROCESSES} processes."
        feedback = Feedback(NOT_YET, sentence, safe=False)
    return feedback


def _hold_to_limits(child: Any, seconds: float) -> str:
    """Wait for the end of the child. What ended it, in words, where it was this; else an empty text."""
    import psutil

    first: float | None = None
    while child.alive:
        time.sleep(0.02)
        if child.pid is None:
            continue
        try:
            process = psutil.Process(child.pid)
            tree = [process, *process.children(recursive=True)]
            memory = sum(each.memory_info().rss for each in tree)
            computed = sum(sum(each.cpu_times()[:2]) for each in tree)
        except psutil.Error:  # it has just ended
            continue
        first = memory if first is None else first
        if memory - first > MEMORY:
            child.stop()
            return f"took more than {MEMORY // 2**30} GiB of memory"
        if computed > seconds:
            child.stop()
            return f"was still computing after {seconds:g} s"
    return ""


# ----------------------------------------------------------------------------------------------------- in the page

_attempts: dict[str, list[Any]] = {}  # name of an exercise's function -> the codes that were tried


def _attempt(mine: Any) -> int:
    """The number of this attempt: the same for the same code."""
    code = getattr(getattr(mine, "__code__", None), "co_code", None), getattr(mine, "__code__", mine)
    tried = _attempts.setdefault(getattr(mine, "__name__", ""), [])
    if code not in tried:
        tried.append(code)
    return tried.index(code) + 1


def _note(mine: Any, right: bool, hints: Sequence[str]) -> None:
    """Note a new attempt, and have the hints that are opened noted, where progress is kept."""
    name = getattr(mine, "__name__", "")
    page = progress.page()
    if page is None:
        return
    known = len(_attempts.get(name, []))
    if _attempt(mine) > known:
        progress.note(page.file, page.number, "exercise", name, progress.FIRST_CELL, right=right)
    if hints and not right:
        notebook.show_page("hints", "", {"told": notebook.told(name)}, "", "")


_drawn: dict[Any, dict[int, Any]] = {}  # a picture -> attempt -> what was drawn for it


def earlier(picture: Any, chosen: Chosen, value: Any) -> list[Any]:
    """What a picture drew for the reader's attempt before this one, to be drawn paler; empty where there is none.

    picture   tells this picture from others, in every run of its cell
    value     what it draws now
    """
    if chosen.attempt == 0:
        return []
    drawn = _drawn.setdefault((getattr(chosen, "__name__", ""), picture), {})
    drawn[chosen.attempt] = value
    before = [attempt for attempt in drawn if attempt != chosen.attempt]
    return [drawn[before[-1]]] if before else []


def _show(feedback: Feedback, hints: Sequence[str], handed_on: bool) -> None:
    head = f"{MARKS[feedback.result]}{feedback.result}."
    sentence = feedback.sentence
    if feedback.result == NOT_YET and handed_on and feedback.safe:
        sentence += " The cells below run yours all the same: see what it does."
    if not feedback.safe and handed_on:
        sentence += " So the cells below run the solution until it comes back."
    parts = [f"**{head}** {_escaped(sentence)}".rstrip()]
    measured = _measured(feedback.measured)
    if measured:
        parts.append(folded("What was measured", _escaped(measured)))
    if feedback.trace:
        parts.append(folded("Traceback", fenced(feedback.trace.strip())))
    if feedback.result != RIGHT:
        parts += _folded_hints(hints)
    words = [part for part in (head, sentence, measured) if part]
    notebook.show_markdown("\n\n".join(parts), " ".join(words))


def _folded_hints(hints: Sequence[str]) -> list[str]:
    """Hints, each folded inside the one before; no part where there is none."""
    inner: list[str] = []
    for number, hint in reversed(list(enumerate(hints, 1))):
        name = "Hint" if len(hints) == 1 else f"Hint {number} of {len(hints)}"
        inner = [folded(name, "\n\n".join([hint.strip(), *inner]))]
    return inner


def _measured(seen: Any) -> str:
    """What a check measured, in words: `from_none 0.6` is "from none: 0.6"."""
    if isinstance(seen, dict):
        return "; ".join(f"{name.replace('_', ' ')}: {_value(value)}" for name, value in seen.items())
    return _value(seen)


def _value(value: Any) -> str:
    """A tiny number is rounding error, which differs between machines: it only says so."""
    if isinstance(value, (list, tuple)):
        return shown([_value(one) for one in value])
    if isinstance(value, float) and 0 < abs(value) < 1e-4:
        return "under 1e-4"
    return shown(value)


def _sentence(text: Any) -> str:
    """On one line, with a full stop."""
    line = " ".join(str(text).split())
    if line and line[-1] not in ".!?":
        line += "."
    return line


def _escaped(text: str) -> str:
    """Text from a check, as Markdown: `<` and `*` mean themselves, `code` stays code."""
    parts = text.split("`")
    for at in range(0, len(parts), 2):
        parts[at] = html.escape(parts[at], quote=False).replace("*", "\\*").replace("_", "\\_")
    return "`".join(parts)
