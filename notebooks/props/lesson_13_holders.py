"""Page 13: the table of who has which code after which remedy, and the seven situations after an edit."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from props.lesson_13_processes import Python, save_in

from labkit.events import Run

REMEDIES = ("reload", "reload, import", "%autoreload 2", "new kernel")
WORKER = "worker"  # the holder that is no name of the kernel: a process of its own
_AUTORELOAD = "%load_ext autoreload\n%autoreload 2"
_RELOAD = "import importlib; importlib.reload(grading)"

Answers = dict[str, str]  # remedy -> "old" or "new", of one holder


# ---------------------------------------------------------------------------------------------- the table of holders


def ask(
    text: str, start: str, holders: Mapping[str, str], import_again: str, later: str
) -> dict[str, Answers]:
    """Asks every holder, in real processes, after each remedy.

    text          the file `grading.py`, with {version} where its number stands
    start         the cells that every process runs first
    holders       name -> what is evaluated in the kernel, and in the worker
    import_again  the cell of the second remedy, after the reload
    later         a cell that every kernel runs after the remedy
    """
    old, new = text.format(version=1), text.format(version=2)
    with tempfile.TemporaryDirectory() as at, contextlib.ExitStack() as stack:
        folder = Path(at).resolve()

        def start_one(kind: str = "bare") -> Python:
            return stack.enter_context(Python(folder, kind))

        save_in(folder, old, "grading")
        kernels = {
            "reload": start_one(),
            "reload, import": start_one(),
            "%autoreload 2": start_one("kernel"),
        }
        worker = start_one()
        kernels["%autoreload 2"].run(_AUTORELOAD)
        for process in (*kernels.values(), worker):
            process.run(start)

        save_in(folder, new, "grading")
        kernels["reload"].run(_RELOAD)
        kernels["reload, import"].run(_RELOAD)
        kernels["reload, import"].run(import_again)
        kernels["%autoreload 2"].run("pass")  # any cell: IPython reloads before it
        kernels["new kernel"] = start_one()
        kernels["new kernel"].run(start)
        for kernel in kernels.values():
            kernel.run(later)

        answers: dict[str, Answers] = {}
        for holder, thing in holders.items():
            answers[holder] = {}
            for remedy, kernel in kernels.items():
                asked = kernel
                if holder == WORKER:
                    asked = worker
                number = asked.run(f"answer = {thing}")
                answers[holder][remedy] = {1: "old", 2: "new"}[number]
        return answers


def read(table: Any) -> dict[str, dict[str, str]]:
    """A reader's table, with its letters as words: holder -> remedy -> "old", "new", or "?" for anything else."""
    words = {"o": "old", "n": "new"}
    found: dict[str, dict[str, str]] = {}
    for holder, row in dict(table).items():
        letters = row
        if isinstance(row, str):
            letters = row.replace(",", " ").split()
        found[holder] = {}
        for remedy, letter in zip(REMEDIES, letters, strict=False):
            found[holder][remedy] = words.get(str(letter)[:1].lower(), "?")
    return found


def written(run: Run) -> dict[str, dict[str, str]]:
    """The table that the reader's function returned in a run of its own; empty where it is none."""
    if not run.events:
        return {}
    try:
        return read(run.events[0])
    except (TypeError, ValueError):
        return {}


def right_cells(mine: Mapping[str, Mapping[str, str]], measured: Mapping[str, Any]) -> int:
    """How many cells of the reader's table are as measured."""
    right = 0
    for holder, row in measured.items():
        for remedy, word in row.items():
            right += mine.get(holder, {}).get(remedy) == word
    return right


def old_after(measured: Mapping[str, Mapping[str, str]], remedy: str) -> int:
    """How many holders have old code after a remedy."""
    return sum(row[remedy] == "old" for row in measured.values())


# ------------------------------------------------------------------------------------------------ what looks the same

_START = """
import importlib, inspect, sys
sys.path.insert(0, {first!r})
import rewards
reward = rewards.Reward()
"""
_SCORE = """
answer = {"a wrong 97 gets": reward(["62+45="], ["97"])[0], "version in the log": reward.version}
"""
_ASK = """
from labkit.loaded import loaded
shown = {mark!r} in inspect.getsource(type(reward).__call__)
answer = {{"getsource shows the fix": "yes" if shown else "no"}}
answer["doctor.loaded, where you type"] = loaded("rewards").word
"""
_ASK_SCORER = """
from labkit.loaded import loaded
answer = {"where it scores": loaded("rewards").word}
"""


_COLUMNS = (
    "a wrong 97 gets",
    "getsource shows the fix",
    "doctor.loaded, where you type",
    "where it scores",
    "version in the log",
)


class Case(NamedTuple):
    """What a process finds, and what happens after it has imported `rewards`."""

    text: str  # of the edited file, when the process starts
    later: str = ""  # saved after that
    reload: bool = False
    copy: str = ""  # the text of another copy, which is found first
    worker: bool = False  # a new kernel is asked; the process from before the save scores


def situations(old: str, new: str, others: Mapping[str, str], mark: str) -> list[dict[str, Any]]:
    """A row for each situation after an edit, asked of processes of its own.

    others   the situations that a restart leaves: name -> the text of the file that was edited
    mark     what only the mended line contains
    """
    cases = {
        "the fix runs": Case(new),
        "saved, nothing restarted": Case(old, later=new),
        "reloaded, the instance kept": Case(old, later=new, reload=True),
        "kernel restarted, the worker scores": Case(old, later=new, worker=True),
        "restarted, another copy is imported": Case(new, copy=old),
    }
    for name, text in others.items():
        cases[name] = Case(text)
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda case: _situation(case, mark), cases.values())
        return [{"situation": name} | row for name, row in zip(cases, found, strict=True)]


def _situation(case: Case, mark: str) -> dict[str, Any]:
    with _processes() as (folder, start_one):
        (folder / "site").mkdir()
        save_in(folder, case.text)
        first = folder
        if case.copy:
            first = folder / "site"
            save_in(first, case.copy)
        start = _START.format(first=str(first))
        scorer = start_one()
        scorer.run(start)
        if case.later:
            save_in(folder, case.later)
        if case.reload:
            scorer.run("importlib.reload(rewards)")
        kernel = scorer
        if case.worker:
            kernel = start_one()
            kernel.run(start)
        answers = scorer.run(_SCORE) | kernel.run(_ASK.format(mark=mark)) | scorer.run(_ASK_SCORER)
    return {column: answers[column] for column in _COLUMNS}


@contextlib.contextmanager
def _processes() -> Iterator[tuple[Path, Any]]:
    with tempfile.TemporaryDirectory() as at, contextlib.ExitStack() as stack:
        folder = Path(at).resolve()
        yield folder, lambda: stack.enter_context(Python(folder, "packages"))
