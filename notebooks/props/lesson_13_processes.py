"""Page 13: processes that run cells one after the other, as a kernel does, and what they answer.

Each is a Python of its own. It has the standard library and the folder of the file, and starts within some 20 ms.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from props.children import python_path

# what a trainer keeps; every process has it
_TRAINER = """
class Trainer:
    def __init__(self, reward_funcs):
        self.reward_funcs = reward_funcs
"""
# "kernel" imports IPython, for its %autoreload; "bare" has no packages
_SERVE = """
import json, os, sys
sys.path.insert(0, os.getcwd())
answers, sys.stdout = sys.stdout, open(os.devnull, "w")
if sys.argv[1] == "kernel":
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config
    settings = Config({"HistoryManager": {"enabled": False}})
    shell = InteractiveShell.instance(config=settings)
    run, names = shell.run_cell, shell.user_ns
else:
    names = {"__name__": "__main__"}
    run = lambda cell: exec(cell, names)
for line in sys.stdin:
    names["answer"] = None
    run(json.loads(line))
    print(json.dumps(names["answer"]), file=answers, flush=True)
"""


class Python:
    """A process that runs cells. It imports from its folder first.

    kind  "bare": the standard library alone; "packages": what is installed, too; "kernel": in IPython's shell
    """

    def __init__(self, folder: Path, kind: str = "bare"):
        command = [sys.executable, "-B", "-c", _SERVE, kind]
        if kind == "bare":
            command[1:1] = ["-I", "-S"]
        places = {"IPYTHONDIR": str(folder / "ipython"), "PYTHONPATH": python_path()}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            env=os.environ | places,
        )

    def run(self, cell: str) -> Any:
        """What the cell put into `answer`.

        Raises: RuntimeError where the process ended.
        """
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(cell) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended in the cell {cell!r}")
        return json.loads(line)

    def version(self, thing: str) -> int:
        """Which version scores: `thing` is called, and its code writes `version`. Its count is put back."""
        self.run(f"asked = {thing}; rounds = asked.rounds; asked.rounds = 0; asked([], [])")
        return self.run("asked.rounds = rounds; answer = asked.version")

    def end(self) -> None:
        self._process.communicate()

    def __enter__(self) -> Python:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def save_in(folder: Path, text: str, name: str = "rewards") -> None:
    (folder / f"{name}.py").write_text(text.lstrip())
    importlib.invalidate_caches()


# ------------------------------------------------------------------------------------ the chain of boxes, and its knob

ORDERS = ("as listed", "last first")
RESTARTS = ("nothing", "kernel", "both")


def pressed(buttons: Sequence[str], checked: Sequence[bool], order: str) -> tuple[str, ...]:
    """The buttons that are on, in the order in which they are pressed."""
    chosen = tuple(itertools.compress(buttons, checked))
    if order == "last first":
        return chosen[::-1]
    return chosen


class Chain:
    """Who has which version after which presses, asked of real processes.

    start    the cells that a process runs first, with the old text on disk
    buttons  name -> cell
    press    (kernel, names of buttons) -> box -> version: presses them, and asks
    """

    def __init__(
        self,
        press: Callable[[Python, Sequence[str]], dict[str, int]],
        start: str,
        buttons: Sequence[str],
        old: str,
        new: str,
    ):
        sequences = {
            pressed(buttons, checked, order)
            for checked in itertools.product((False, True), repeat=len(buttons))
            for order in ORDERS
        }
        with tempfile.TemporaryDirectory() as at, contextlib.ExitStack() as stack:
            folder = Path(at).resolve()

            def start_one() -> Python:
                return stack.enter_context(Python(folder))

            save_in(folder, old)
            # all are started before the first is waited for
            kernels = {sequence: start_one() for sequence in sorted(sequences)}
            worker = start_one()
            for process in (*kernels.values(), worker):
                process.run(_TRAINER + start)
            save_in(folder, new)
            later_kernel, later_worker = start_one(), start_one()
            for process in (later_kernel, later_worker):
                process.run(_TRAINER + start)

            self.kept = {sequence: press(kernel, sequence) for sequence, kernel in kernels.items()}
            self.restarted = press(later_kernel, ())
            # asked last: whatever was pressed in a kernel has been pressed
            self.worker = worker.version("reward")
            self.later_worker = later_worker.version("reward")

    def boxes(self, sequence: Sequence[str], restart: str = "nothing") -> dict[str, int]:
        """Box -> version. A kernel that is restarted runs the first cells again; what was pressed is gone with it."""
        boxes = dict(self.kept[tuple(sequence)])
        if restart in ("kernel", "both"):
            boxes = dict(self.restarted)
        boxes["worker"] = self.worker
        if restart in ("worker", "both"):
            boxes["worker"] = self.later_worker
        return boxes

    def number_new(self, sequence: Sequence[str], new: int) -> int:
        """How many boxes of the kernel have the new version after these presses."""
        return sum(number == new for number in self.kept[tuple(sequence)].values())

    def table(self, buttons: Sequence[str]) -> list[dict[str, Any]]:
        """Some sequences as rows of versions."""
        every = tuple(buttons)
        sequences = {
            "nothing": (),
            "reload": ("reload",),
            "reload, new instance": ("reload", "new_instance"),
            "all but reload": every[1:],
            "all four, as listed": every,
            "all four, last first": every[::-1],
        }
        rows = []
        for name, sequence in sequences.items():
            rows.append({"after the save": name} | self.boxes(sequence))
        for restart in RESTARTS[1:]:
            rows.append({"after the save": f"restart: {restart}"} | self.boxes((), restart))
        return rows
