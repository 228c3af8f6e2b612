"""Page 13: a trainer in this process, with a module, an instance of its `Reward`, and a worker."""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from props.lesson_13_processes import Python, save_in


class Trainer:
    """Has a module, an instance of its `Reward`, and a worker process with an instance of its own."""

    def __init__(self, folder: Path, module: ModuleType):
        self._folder = folder
        self.module = module
        self.reward = module.Reward()
        self.workers_started = 0
        self._alive: list[Python] = []  # a reader's function may delete `worker`
        self.restart_worker()

    def restart_worker(self) -> None:
        """Put a new worker process, which imports the file for itself, in the place of `worker`."""
        self.end_worker()
        self.worker = Python(self._folder)
        self._alive.append(self.worker)
        self.workers_started += 1
        self.worker.run(f"import {self.module.__name__} as rewards; reward = rewards.Reward()")

    def version_of_worker(self) -> int:
        """0 where it does not answer."""
        try:
            return self.worker.version("reward")
        except Exception:
            return 0

    def end_worker(self) -> None:
        while self._alive:
            self._alive.pop().end()


def version_of(give: Callable[[], Any]) -> int:
    """Which version the reward scores by that `give()` returns; 0 where it does not answer."""
    try:
        reward = give()
        rounds, reward.rounds = reward.rounds, 0
        reward([], [])
        reward.rounds = rounds
        return int(reward.version)
    except Exception:
        return 0


@contextlib.contextmanager
def imported(text: str, name: str = "rewards") -> Iterator[tuple[Path, ModuleType]]:
    """The folder and the module of a file that this process imports, until the end of the block."""
    before = sys.modules.pop(name, None)
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at).resolve()
        save_in(folder, text, name)
        sys.path.insert(0, str(folder))
        bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            yield folder, importlib.import_module(name)
        finally:
            sys.dont_write_bytecode = bytecode
            sys.path.remove(str(folder))
            sys.modules.pop(name, None)
            if before is not None:
                sys.modules[name] = before
