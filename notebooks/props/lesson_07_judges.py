"""Page 07's two exercises: who judges them, and the processes that a reader's `which_is_read` asks for.

A judge starts no process: inside the judge's own process that would take a second server and many seconds. It plays what
a torch would do; the page then starts real processes with the reader's function.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from labkit import sandbox
from labkit.checks.report import Report
from labkit.common import shown

from .card import Allocator
from .lesson_07 import GIB, MIB, NEW, OLD, ON, Settings, fault_of, first_use, is_cuda
from .lesson_07_cards import refusal_of
from .lesson_07_recording import Calls

OFF = "expandable_segments:False"
CANARY = (
    "max_split_size_mb:1"  # a torch that reads the variable must refuse it: at least 20 is allowed
)
MOST_PROCESSES = 8  # that `which_is_read` may ask for: two are enough

Starts = Callable[[Settings], bool]


def text_read(environment: Settings, reads: Sequence[str]) -> str:
    """The text that a torch takes its settings from; it reads the first of these names that is set."""
    return next((environment[name] for name in reads if name in environment), "")


def names_read(device: str) -> tuple[str, ...]:
    """The names that torch reads here, the first that is set: found by processes that should refuse to start."""
    cuda = is_cuda(device)
    cases: dict[str, dict[str, Settings | Mapping[str, None]]] = {}
    for others in (ON, None):  # first with both names set, then with one alone
        for name in (OLD, NEW):
            cases[f"{name}, {others}"] = {"env": {OLD: others, NEW: others, name: CANARY}}
    runs = sandbox.run_all(first_use, cases, timeout=300, cuda=cuda, fresh=cuda)
    refused = [case.partition(",")[0] for case, run in runs.items() if not run.outcome]
    return tuple(dict.fromkeys(refused))


# ------------------------------------------------------------------------------------------- which name is read?

# What a process may have, and which names its torch reads, the first that is set: the kinds that there are, and two that
# there may be.
ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {OLD: OFF, NEW: ON, "HOME": "/root"},
    {NEW: ON},
    {OLD: ON, "LANG": "C"},
    {"HOME": "/root"},
)
KINDS: tuple[tuple[str, ...], ...] = ((OLD,), (OLD, NEW), (NEW, OLD), ())


def judge_which_is_read(which_is_read: Callable[..., Any]) -> Report:
    """In four environments, with four kinds of torch: does it name the variable that the settings come from?"""
    claim = "names the variable that torch takes its settings from"
    right = 0
    for reads in KINDS:
        for environment in ENVIRONMENTS:
            asked: list[str] = []
            starts = _played(reads, asked)
            answer = which_is_read(dict(environment), starts)
            expected = next((name for name in reads if name in environment), None)
            if answer != expected:
                words = f"In {environment}, with a torch that reads {' before '.join(reads) or 'neither name'}: "
                words += (
                    f"the settings come from {expected or 'neither'}; it says {shown(answer)}. "
                )
                words += " ".join(asked) or "It asked for no process."
                return Report("which_is_read", claim, False, {"right": right}, words)
            right += 1
    return Report("which_is_read", claim, True, {"right": f"{right} of {right}"})


def _played(reads: Sequence[str], asked: list[str]) -> Starts:
    """`starts` with a torch that reads these names; what was asked is added to the list, in words."""

    def starts(variables: Settings) -> bool:
        if fault := fault_of(variables):
            raise TypeError(fault)
        if len(asked) == MOST_PROCESSES:
            raise RuntimeError(f"it asks for more than {MOST_PROCESSES} processes")
        try:
            Allocator(GIB, text_read(variables, reads))
        except ValueError:
            asked.append(f"A process with {dict(variables)} refuses to start.")
            return False
        asked.append(f"A process with {dict(variables)} starts.")
        return True

    return starts


class _Asks(BaseException):
    """Ends the reader's function: it asks for a process that has not been started yet."""


def ask(
    which_is_read: Callable[..., Any], environment: Settings, device: str
) -> tuple[list[dict[str, str]], str]:
    """Run the reader's function, and start each process that it asks for.

    The function runs in the sandbox and the processes beside it: whenever it asks for one more, it is ended, the process
    is started, and it runs again with all that is known by then.

    Returns a row for each process, in the order asked for, and the answer; or why there is none.
    """
    known: list[tuple[Settings, bool]] = []
    while True:
        run = sandbox.run(_asked, which_is_read, environment, known, timeout=30)
        if not run.outcome:
            return _rows(known), f"? (no answer: {run.outcome.message})"
        (event,) = run.events
        if "answer" in event:
            return _rows(known), event["answer"]
        if len(known) == MOST_PROCESSES:
            return _rows(known), f"? (no answer: it asks for more than {MOST_PROCESSES} processes)"
        known.append((event["asks"], _process_starts(event["asks"], device)))


def _asked(
    which_is_read: Callable[..., Any], environment: Settings, known: Sequence[tuple[Settings, bool]]
) -> Iterator[dict[str, Any]]:
    """What the function answers, or the process that it asks for and that is not known yet."""
    wanted: list[Settings] = []

    def starts(variables: Settings) -> bool:
        if fault := fault_of(variables):
            raise TypeError(fault)
        for before, started in known:
            if before == dict(variables):
                return started
        wanted.append(dict(variables))
        raise _Asks

    answer = None
    with contextlib.suppress(_Asks):
        answer = which_is_read(dict(environment), starts)
    # an `except:` of the reader's may have caught it
    if wanted:
        yield {"asks": wanted[0]}
    elif answer is None:
        yield {"answer": "neither name"}
    else:
        yield {"answer": shown(answer)}


def _process_starts(variables: Settings, device: str) -> bool:
    cuda = is_cuda(device)
    env = {OLD: None, NEW: None, **variables}
    return bool(sandbox.run(first_use, cuda, env=env, fresh=cuda, timeout=300).outcome)


def _rows(known: Sequence[tuple[Settings, bool]]) -> list[dict[str, str]]:
    rows = []
    for variables, started in known:
        row = {"the old name": variables.get(OLD, ""), "the new name": variables.get(NEW, "")}
        row["the process"] = "starts" if started else "refuses to start"
        rows.append(row)
    return rows or [{"the old name": "", "the new name": "", "the process": "none was asked for"}]


# ------------------------------------------------------------------------------------------------ the environment

INHERITED: tuple[dict[str, str], ...] = (
    {OLD: OFF, "HOME": "/root", "NCCL_DEBUG": "WARN"},
    {OLD: OFF, NEW: OFF, "LANG": "C"},
    {"HOME": "/root"},
)


def judge_environment(
    my_environment: Callable[..., Any], *, calls: Calls, card_gib: float, reads: Sequence[str]
) -> Report:
    """From three launchers: is every call served on a simulated card, and every other variable as it was?"""
    claim = "every call is served, and no other variable has changed"
    for inherited in INHERITED:
        made = my_environment(dict(inherited))
        if hint := _wrong(made, inherited, calls, card_gib, reads):
            return Report("environment", claim, False, {}, hint)
    return Report("environment", claim, True, {"served": len(calls), "launchers": len(INHERITED)})


def _wrong(
    made: Any, inherited: Settings, calls: Calls, card_gib: float, reads: Sequence[str]
) -> str:
    """What is wrong with an environment, in words; "" if nothing is."""
    if fault := fault_of(made):
        return f"Here {fault}."
    if _others(made) != _others(inherited):
        return f"From {inherited} it makes {made}. Leave the other variables as they are."
    allocator = {name: made[name] for name in (OLD, NEW) if name in made}
    text = text_read(allocator, reads)
    try:
        refusal = refusal_of(calls, card_gib, text)
    except ValueError as error:
        return f"Started with {allocator}, torch refuses to start: {error}."
    if refusal is None:
        return ""
    words = f"{refusal.requested / MIB:,.0f} MiB are refused"
    return f"Inherited: {inherited}. It makes {allocator}, torch reads {text!r}, and {words}."


def _others(environment: Settings) -> dict[str, str]:
    """All variables but the allocator's."""
    return {name: text for name, text in environment.items() if name not in (OLD, NEW)}
