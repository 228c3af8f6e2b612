"""What lesson 13 uses and does not teach: the folder of its files, its run, the processes in which it measures what each
remedy reaches, its diagram and tables, and the checks of its exercises.

The file that is edited stands in the notebook. A "kernel" here is a process with IPython's shell; a "worker" is a
process of its own that imports the file once and then answers.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from labkit.checks.report import Report
from labkit.events import Exam, Outcome, Run, Step
from labkit.train import train

from .children import python_path

ROUNDS = 6
HOLDERS = ("file", "module", "name", "instance", "worker")
_KEPT: list[tempfile.TemporaryDirectory[str]] = []  # removed when this kernel ends


def new_folder() -> Path:
    """A folder that this kernel imports from, until it ends."""
    _KEPT.append(tempfile.TemporaryDirectory(prefix="lesson-13-"))
    folder = Path(_KEPT[-1].name).resolve()
    sys.path.insert(0, str(folder))
    return folder


def save(file: Path, text: str) -> None:
    """Write a file, as an editor does."""
    file.write_text(text.lstrip())
    importlib.invalidate_caches()  # a new file is looked for


# ---- training


def learn(
    reward: Callable[..., Any] | Path, seed: int, *, policy: str = "tiny", device: str = "auto"
) -> Iterator[Step | Exam]:
    """Six rounds of `add` with an exam after each.

    reward   a reward function; or a file with a class `Reward`, which the process that trains then imports itself
    """
    if isinstance(reward, Path):
        sys.path.insert(0, str(reward.parent))
        reward = importlib.import_module(reward.stem).Reward()
    settings: dict[str, Any] = {"rounds": ROUNDS, "prompts": 6, "mu": 2, "lr": 1e-4, "beta": 0.04}
    yield from train(policy, "add", seed=seed, device=device, reward=reward, exam=True, **settings)


def in_this_kernel(reward: Callable[..., Any], seed: int, **settings: Any) -> Run:
    """`learn` with the code that this kernel has: no other process."""
    events: list[Any] = []
    outcome = Outcome()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            for event in learn(reward, seed, **settings):
                events.append(event)
        except NameError as error:
            text = "".join(traceback.format_exception(error))
            outcome = Outcome("exception:NameError", 1, None, "NameError", str(error), text)
    return Run(events, outcome)


def rounds_done(run: Run) -> int:
    """Rounds whose updates are all done."""
    return max((step.round for step in run.steps), default=0)


def missing_name(run: Run) -> str:
    """The name that a run died of; "" when it lived."""
    return "".join(re.findall(r"name '(\w+)' is not defined", run.outcome.message))


def last_lines(run: Run) -> str:
    """The end of the traceback: the line of the file, and the error."""
    lines = run.outcome.traceback.strip().splitlines()
    kept = [line for line in lines[-4:] if set(line.strip()) - set("^~ ")]
    return re.sub(r'File ".*[/\\]', 'File "', "\n".join(kept))  # without the folder


def without_folder(text: object) -> str:
    """Without the folder of this lesson, which has another name in each run."""
    return str(text).replace(f"{_KEPT[-1].name}{os.sep}", "")


def summary(arms: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """A row for each arm: means over seeds, the last two also over rounds (of their first updates)."""
    rows = []
    for arm, runs in arms.items():
        steps = [step for run in runs for step in run.steps if step.inner == 1]
        opening = [step.reward for step in steps if step.round == 1]
        row: dict[str, Any] = {"arm": arm}
        row["exam before"] = f"{sum(run.exam('add')[0] for run in runs) / len(runs):.2f}"
        row["reward in round 1"] = f"{sum(opening) / len(opening):.2f}"
        tied = sum(step.frac_reward_zero_std for step in steps) / len(steps)
        row["tied groups"] = f"{tied:.2f}"
        row["gradient norm"] = f"{sum(step.grad_norm for step in steps) / len(steps):.2f}"
        rows.append(row | {"exam at the end": ", ".join(f"{end:.2f}" for end in ends(runs))})
    return rows


def ends(runs: Sequence[Run]) -> list[float]:
    """The exam after the last round, for each run."""
    return [run.exam("add")[-1] for run in runs]


def largest_difference(one: Sequence[Run], other: Sequence[Run]) -> float:
    """Between two arms, over losses and rewards of all updates, and all exams."""
    pairs = []
    for a, b in zip(one, other, strict=True):
        pairs += zip(a.exam("add"), b.exam("add"), strict=True)
        for left, right in zip(a.steps, b.steps, strict=True):
            pairs += [(left.loss, right.loss), (left.reward, right.reward)]
    return max(abs(left - right) for left, right in pairs)


# ---- processes that run cells, one after the other

_SERVE = """
import json, os, sys
sys.path.insert(0, os.getcwd())
answers, sys.stdout = sys.stdout, open(os.devnull, "w")
if {shell}:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config
    shell = InteractiveShell.instance(config=Config({{"HistoryManager": {{"enabled": False}}}}))
    run, space = shell.run_cell, shell.user_ns
else:
    space = {{}}
    run = lambda cell: exec(cell, space)
for line in sys.stdin:
    space["answer"] = None
    run(json.loads(line))
    print(json.dumps(space["answer"]), file=answers, flush=True)
"""


class Python:
    """A Python process that runs cells; `shell`: IPython's, as in a kernel. Imports from its folder first."""

    def __init__(self, folder: Path, shell: bool = False):
        settings: dict[str, Any] = {"cwd": folder, "text": True, "stderr": subprocess.DEVNULL}
        places = {"IPYTHONDIR": str(folder / "ipython"), "PYTHONPATH": python_path()}
        settings["env"] = os.environ | places
        command = [sys.executable, "-B", "-c", _SERVE.format(shell=shell)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, **pipes, **settings)

    def run(self, cell: str) -> Any:
        """What the cell put into `answer`."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(cell) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended in the cell {cell!r}")
        return json.loads(line)

    def __enter__(self) -> Python:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


_STORY = "import rewards; from rewards import Reward; reward = Reward()"
_KERNEL = {"module": "rewards.Reward()", "name": "Reward()", "instance": "reward"}


def _version(process: Python, thing: str) -> int:
    return process.run(f"asked = {thing}; asked.rounds = 0; asked([], []); answer = asked.version")


def reached(old: str, new: str) -> dict[str, dict[str, bool]]:
    """remedy -> holder -> whether it runs the new text: asked of real processes, by calling each holder."""
    table: dict[str, dict[str, bool]] = {}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name).resolve()
        file = folder / "rewards.py"
        file.write_text(old)
        kernel, auto, anew = (stack.enter_context(Python(folder, shell=True)) for _ in range(3))
        worker, second = (stack.enter_context(Python(folder)) for _ in range(2))
        auto.run("%load_ext autoreload\n%autoreload 2")
        for process in (kernel, auto, worker):
            process.run(_STORY)
        before = _version(kernel, "reward")
        file.write_text(new)

        def row(remedy: str, kernel: Python, worker: Python) -> None:
            asked = {"file": file.read_text() == new}
            for holder, thing in _KERNEL.items():
                asked[holder] = _version(kernel, thing) != before
            table[remedy] = asked | {"worker": _version(worker, "reward") != before}

        row("save the file", kernel, worker)
        second.run(_STORY)
        row("restart the worker", kernel, second)
        kernel.run("import importlib; importlib.reload(rewards)")
        row("importlib.reload", kernel, worker)
        kernel.run("from rewards import Reward; reward = Reward()")
        row("reload, and all made anew", kernel, worker)
        row("%autoreload 2", auto, worker)
        anew.run(_STORY)
        row("restart the kernel", anew, worker)
        row("restart both", anew, second)
    order = (
        "save the file",
        "importlib.reload",
        "reload, and all made anew",
        "%autoreload 2",
        "restart the worker",
        "restart the kernel",
    )
    return {remedy: table[remedy] for remedy in (*order, "restart both")}


def number_new(table: Mapping[str, Mapping[str, bool]], remedy: str) -> int:
    """How many of the four holders that run code have the new one."""
    return sum(table[remedy][holder] for holder in HOLDERS[1:])


def diagram(table: Mapping[str, Mapping[str, bool]]) -> None:
    """Who took the code from whom, and under it what each remedy reached."""
    import matplotlib.pyplot as plt

    old, new = "#D55E00", "#0072B2"
    codes = {
        "file": "rewards.py",
        "module": "import\nrewards",
        "name": "from rewards\nimport Reward",
        "instance": "reward =\nReward()",
        "worker": "a process with\nits own import",
    }
    figure = plt.figure(figsize=(8.6, 4.5), dpi=110, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-2.2, 4.6), ylim=(-len(table) - 0.05, 2.9))
    axes.axis("off")
    for x, holder in enumerate(HOLDERS):
        axes.add_patch(plt.Rectangle((x - 0.42, 0.2), 0.84, 1.1, fc="#F2F2F2", ec="black", lw=1))
        axes.text(x, 1.08, holder, ha="center", va="center", weight="bold", size=9, color="black")
        axes.text(
            x,
            0.56,
            codes[holder],
            ha="center",
            va="center",
            size=7,
            family="monospace",
            color="black",
        )
    arrow = {"arrowstyle": "->", "color": "black", "lw": 1.3}
    for source in range(3):
        axes.annotate("", (source + 0.59, 0.75), (source + 0.41, 0.75), arrowprops=arrow)
    axes.plot([0, 0, 4, 4], [1.3, 1.95, 1.95, 1.5], color="black", lw=1.3)
    axes.annotate("", (4, 1.3), (4, 1.7), arrowprops=arrow)
    axes.text(2, 2.03, "read once, when the process starts", ha="center", size=8, color="black")
    axes.plot(
        [0.54, 0.54, 3.46, 3.46, 0.54], [0.08, 1.45, 1.45, 0.08, 0.08], color="grey", ls=":", lw=1
    )
    axes.text(0.56, 1.55, "the kernel", color="dimgrey", size=8)
    for y, (remedy, row) in enumerate(table.items()):
        axes.text(-0.55, -y - 0.45, remedy, ha="right", va="center", size=9, color="black")
        for x, holder in enumerate(HOLDERS):
            axes.add_patch(
                plt.Rectangle((x - 0.44, -y - 0.82), 0.88, 0.74, color=new if row[holder] else old)
            )
            word = "new" if row[holder] else "OLD"
            axes.text(
                x, -y - 0.45, word, ha="center", va="center", color="white", weight="bold", size=9
            )
    title = "A save reaches only the file. Of these remedies only the last reaches all four holders"
    axes.text(-2.15, 2.55, title, size=10.5, weight="bold", color="black")
    plt.show()


# ---- what it is not

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
answer = {{"getsource shows the fix": "yes" if shown else "no", "VERSION": rewards.VERSION}}
answer |= {{"doctor.loaded": loaded("rewards").word}}
"""


def _with_version(text: str) -> str:
    (number,) = re.findall(r"version = (\d+)", text)
    return f"VERSION = {number}\n\n\n{text.lstrip()}"


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

    Every text also gets a `VERSION` at its top, the number that its `self.version` has.
    """
    old, new, *rest = map(_with_version, (old, new, *others.values()))
    cases = {
        "the fix runs": Case(new),
        "saved, nothing restarted": Case(old, later=new),
        "reloaded, the instance kept": Case(old, later=new, reload=True),
        "kernel restarted, the worker scores": Case(old, later=new, worker=True),
        "restarted, another copy is imported": Case(new, copy=old),
    }
    cases |= {name: Case(text) for name, text in zip(others, rest, strict=True)}
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda name: _situation(name, cases[name], mark), cases))


def _situation(name: str, case: Case, mark: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as at, contextlib.ExitStack() as stack:
        folder = Path(at).resolve()
        (folder / "site").mkdir()
        edited = folder / "rewards.py"
        edited.write_text(case.text)
        if case.copy:
            (folder / "site" / "rewards.py").write_text(case.copy)
        start = _START.format(first=str(folder / "site") if case.copy else str(folder))
        kernel = scorer = stack.enter_context(Python(folder))
        kernel.run(start)
        if case.later:
            edited.write_text(case.later)
        if case.reload:
            kernel.run("importlib.reload(rewards)")
        if case.worker:
            kernel = stack.enter_context(Python(folder))
            kernel.run(start)
        said = scorer.run(_SCORE) | kernel.run(_ASK.format(mark=mark))
    order = ("getsource shows the fix", "doctor.loaded", "VERSION", "version in the log")
    row = {"situation": name, "a wrong 97 gets": said["a wrong 97 gets"]}
    return row | {column: said[column] for column in order}


# ---- names


def _ruff(file: Path, select: str) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--output-format=json",
    ]
    done = subprocess.run(
        [*command, f"--select={select}", str(file)], capture_output=True, text=True
    )
    return sorted({row["code"] for row in json.loads(done.stdout)})


def _mypy(folder: Path, files: Sequence[str], *options: str) -> dict[str, list[str]]:
    """file -> the codes of mypy's errors in it, with no settings but these."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file=",
        "--no-incremental",
        f"--cache-dir={os.devnull}",  # what runs beside it shares no database
        "--follow-imports=skip",
        "--no-color-output",
    ]
    done = subprocess.run([*command, *options, *files], cwd=folder, capture_output=True, text=True)
    if done.returncode > 1:
        raise RuntimeError(f"mypy: {done.stdout}{done.stderr}")
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    return {
        file: sorted(
            {line.rsplit("[", 1)[1].rstrip("]") for line in lines if line.startswith(f"{file}:")}
        )
        for file in files
    }


def death(text: str) -> str:
    """In which of twelve calls of the file's `Reward` a name is missing, and the message."""
    space: dict[str, Any] = {}
    exec(compile(text, "rewards.py", "exec"), space)
    reward = space["Reward"]()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        for call in range(1, 13):
            try:
                reward(["62+45="] * 2, ["107", "97"])
            except NameError as error:  # UnboundLocalError is one
                return f"round {call}: {error}"
    return "lives"


MYPY = "mypy --check-untyped-defs"


def tools(texts: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each tool: what it says of each file without running it."""
    options = ("--enable-error-code=possibly-undefined", "--check-untyped-defs")
    with tempfile.TemporaryDirectory() as at, ThreadPoolExecutor(1) as pool:
        folder = Path(at).resolve()
        for file, text in texts.items():
            (folder / file).write_text(text)
        asked = pool.submit(_mypy, folder, list(texts), *options)
        found: dict[str, Mapping[str, list[str]]] = {
            f"ruff --select {select}": {file: _ruff(folder / file, select) for file in texts}
            for select in ("F", "PLC0415")
        }
        found[MYPY] = asked.result()
    rows = [{"": "dies in"} | {file: death(text) for file, text in texts.items()}]
    for tool, codes in found.items():
        rows.append({"": tool} | {file: ", ".join(codes[file]) or "nothing" for file in texts})
    return rows


def found_in(rows: Sequence[Mapping[str, Any]], tool: str) -> str:
    """The files in which the tool found something."""
    (row,) = [row for row in rows if row[""] == tool]
    return ", ".join(file for file, said in row.items() if file and said != "nothing")


# ---- exercise A: a trainer with an instance and a worker

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


class Trainer:
    """Has a module, an instance of its `Reward`, and a worker process with an instance of its own."""

    def __init__(self, folder: Path, module: ModuleType):
        self._folder = folder
        self._started: list[Python] = []
        self.module = module
        self.reward = module.Reward()
        self.restart_worker()

    def restart_worker(self) -> None:
        """Put a new worker process in the place of `worker`, which is ended."""
        while self._started:
            self._started.pop().__exit__()
        self.worker = Python(self._folder)
        self.worker.run(f"import {self.module.__name__} as rewards; reward = rewards.Reward()")
        self._started.append(self.worker)


@contextlib.contextmanager
def _imported(name: str, text: str) -> Iterator[tuple[Path, ModuleType]]:
    """The folder and the module of a file that this process imports, until the end of the block."""
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at).resolve()
        (folder / f"{name}.py").write_text(text)
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        try:
            yield folder, importlib.import_module(name)
        finally:
            sys.path.remove(str(folder))
            sys.modules.pop(name, None)


def _edit(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(f"# edited\n{text}")  # another size: no old bytecode fits it
    importlib.invalidate_caches()


def refreshed(refresh: Callable[[Trainer], Any]) -> Report:
    """The check of exercise A: both holders run the new file, and the count of rounds is kept."""

    def report(problem: str) -> Report:
        return Report("refreshed", "every holder runs the file", not problem, {}, problem)

    name = "grading_of_a"
    with _imported(name, _GRADING.format(version=1)) as (folder, module):
        trainer = Trainer(folder, module)
        for _ in range(5):
            trainer.reward([], [])
        _edit(folder, name, _GRADING.format(version=2))
        try:
            refresh(trainer)
            rounds = trainer.reward.rounds
            trainer.reward(["1+1="], ["2"])
            if trainer.reward.version != 2:
                return report("`trainer.reward` still runs the code from before the edit.")
            if _version(trainer.worker, "reward") != 2:
                return report(
                    "The instance is new; `trainer.worker` still runs the code from before the edit."
                )
            if rounds != 5:
                return report(f"`trainer.reward` had counted 5 rounds; now it says {rounds}.")
        finally:
            for worker in trainer._started:
                worker.__exit__()
    return report("")


# ---- exercise B: kernels after a reload

Kernel = dict[str, Any]


def _kernels() -> Iterator[tuple[Kernel, set[str]]]:
    """(the names of a kernel after the reload, those that still run old code)."""
    stranger: dict[str, Any] = {"__name__": "notes"}
    exec(_GRADING.format(version=7), stranger)
    plain = {
        "SEED": 0,
        "prompts": ["62+45="],
        "note": stranger["score"],
        "losses": [],
        "json": json,
    }
    holders: dict[str, Callable[[Any], Any]] = {
        "score": lambda m: m.score,
        "Reward": lambda m: m.Reward,
        "reward": lambda m: m.Reward(),
        "reward_funcs": lambda m: [stranger["score"], m.score],
        "judges": lambda m: [m.Reward()],
    }
    for old in (
        set(),
        {"score"},
        {"reward"},
        {"reward_funcs"},
        {"judges"},
        {"Reward", "judges"},
        {"reward", "reward_funcs"},
    ):
        name = "grading_of_b"
        with _imported(name, _GRADING.format(version=1)) as (folder, module):
            kernel = {key: make(module) for key, make in holders.items()}
            _edit(folder, name, _GRADING.format(version=2))
            importlib.reload(module)
            kernel |= {key: make(module) for key, make in holders.items() if key not in old}
            yield {"grading": module} | plain | kernel, old


def finds_the_holders(find: Callable[[Kernel, ModuleType], Any]) -> Report:
    """The check of exercise B: in seven kernels, the names that run old code and no other."""

    def report(passed: bool, problem: str = "") -> Report:
        return Report(
            "finds_the_holders", "the names that run old code, and no other", passed, {}, problem
        )

    for number, (kernel, old) in enumerate(_kernels(), 1):
        said = find(kernel, kernel["grading"])
        if isinstance(said, str) or said is None:
            return report(False, f"It returned {said!r}; expected a list or a set of names.")
        if missed := sorted(old - set(said)):
            return report(
                False, f"Kernel {number}: {missed[0]!r} still runs old code, and it was not named."
            )
        if wrong := sorted(set(said) - old):
            return report(
                False, f"Kernel {number}: {wrong[0]!r} runs no old code, and it was named."
            )
    return report(True)
