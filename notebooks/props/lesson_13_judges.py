"""Page 13: the judges of its exercises."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from props.lesson_13_holders import REMEDIES, read, right_cells
from props.lesson_13_processes import save_in
from props.lesson_13_trainer import Trainer, imported, version_of

from labkit.checks.report import Report

# ------------------------------------------------------------------------------------------------ refresh

_GRADING = """
def score(prompt, answer):
    return {version}


class Reward:
    def __init__(self):
        self.rounds = 0

    def __call__(self, prompts, answers):
        self.rounds += 1
        self.version = {version}
        return [float({version}) for _ in answers]
"""
ROUNDS = 5  # that the trainer's instance has counted before the save


def judge_refresh(refresh: Callable[[Trainer], Any]) -> Report:
    """Do module, instance and worker run the new file, is the count kept, and is one worker started?"""
    with imported(_GRADING.format(version=2)) as (folder, module):
        trainer = Trainer(folder, module)
        trainer.reward.rounds = ROUNDS
        save_in(folder, "# edited\n" + _GRADING.format(version=3))
        try:
            refresh(trainer)
            hint = _fault_of(trainer)
        finally:
            trainer.end_worker()
    return Report("my_refresh", "all three run the file", not hint, {}, hint)


def _fault_of(trainer: Trainer) -> str:
    """What is wrong with the trainer after the reader's function; empty where nothing is."""
    if version_of(lambda: trainer.module.Reward()) != 3:
        return "A new `trainer.module.Reward()` still scores with version 2."
    rounds = getattr(trainer.reward, "rounds", None)
    if version_of(lambda: trainer.reward) != 3:
        return "The module has version 3; `trainer.reward` does not score with it."
    if trainer.version_of_worker() != 3:
        return "The instance is new; `trainer.worker` does not score with version 3."
    if rounds != ROUNDS:
        return f"`trainer.reward` had counted {ROUNDS} rounds; now it says {rounds}."
    started = trainer.workers_started - 1
    if started > 1:
        return f"All three are new; but {started} workers were started, and one is enough."
    return ""


# ------------------------------------------------------------------------------------------------ the table


def judge_table(fill: Callable[[], Any], measured: Mapping[str, Mapping[str, str]]) -> Report:
    """How many cells are as the processes answered; the hint names a holder, and not its answer."""
    total = len(measured) * len(REMEDIES)
    try:
        mine = read(fill())
    except (TypeError, ValueError):
        return Report(
            "my_table", "as measured", False, {}, "Return a dict: holder -> four letters."
        )
    right = right_cells(mine, measured)
    hint = ""
    for holder, row in measured.items():
        if mine.get(holder) != row:
            hint = f"Not all four of {holder!r} are as the processes answered."
            break
    return Report("my_table", "as measured", right == total, {"right": f"{right} of {total}"}, hint)


# ------------------------------------------------------------------------------------------------ find_holders

Kernel = dict[str, Any]
# which names hold old code in each of the unseen kernels
OLD_NAMES: tuple[set[str], ...] = (
    set(),
    {"score"},
    {"reward"},
    {"reward_funcs"},
    {"judges"},
    {"Reward", "judges"},
    {"reward", "reward_funcs"},
)


def _kernels() -> Iterator[tuple[Kernel, set[str]]]:
    """(the names of a kernel after the reload, those that still run old code)."""
    stranger: dict[str, Any] = {"__name__": "notes"}
    exec(_GRADING.format(version=7), stranger)
    holders: dict[str, Callable[[Any], Any]] = {
        "score": lambda module: module.score,
        "Reward": lambda module: module.Reward,
        "reward": lambda module: module.Reward(),
        "reward_funcs": lambda module: [stranger["score"], module.score],
        "judges": lambda module: [module.Reward()],
    }
    for old in OLD_NAMES:
        with imported(_GRADING.format(version=1), "grading") as (folder, module):
            kernel: Kernel = {"grading": module, "SEED": 0, "prompts": ["62+45="], "json": json}
            kernel |= {"note": stranger["score"], "losses": []}
            before = {name: make(module) for name, make in holders.items()}
            save_in(folder, "# edited\n" + _GRADING.format(version=2), "grading")
            importlib.reload(module)
            for name, make in holders.items():
                kernel[name] = before[name]
                if name not in old:
                    kernel[name] = make(module)
            yield kernel, old


def judge_holders(find: Callable[[Kernel, ModuleType], Any]) -> Report:
    """How many of the unseen kernels are right: the names that run old code, and no other."""
    right = 0
    hint = ""
    for number, (kernel, old) in enumerate(_kernels(), 1):
        fault = _fault_of_names(find(kernel, kernel["grading"]), old)
        if not fault:
            right += 1
        elif not hint:
            hint = f"Kernel {number}: {fault}"
    total = len(OLD_NAMES)
    counted = {"right": f"{right} of {total}"}
    return Report("my_holders", "the names that run old code", right == total, counted, hint)


def _fault_of_names(names: Any, old: set[str]) -> str:
    if isinstance(names, str) or names is None:
        return f"it returned {names!r}; expected a list or a set of names."
    missed = sorted(old - set(names))
    if missed:
        return f"{missed[0]!r} still runs old code, and it was not named."
    wrong = sorted(set(names) - old)
    if wrong:
        return f"{wrong[0]!r} runs no old code, and it was named."
    return ""
