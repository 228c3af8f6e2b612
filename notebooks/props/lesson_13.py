"""What page 13 uses and does not teach: the folder of its file, runs in the page's own kernel, and the rows of its
tables. The processes that it asks are in `lesson_13_processes.py`, the trainer in
`lesson_13_trainer.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from props.arms import last_exam
from props.lesson_13_processes import save_in
from props.lesson_13_trainer import Trainer, imported, version_of

from labkit.events import Outcome, Run

_KEPT: list[tempfile.TemporaryDirectory[str]] = []  # removed when this kernel ends


def new_folder() -> Path:
    """A folder that this kernel imports from, until it ends."""
    # two saves within a second may leave bytecode that looks new and is not
    sys.dont_write_bytecode = True
    _KEPT.append(tempfile.TemporaryDirectory(prefix="lesson-13-"))
    folder = Path(_KEPT[-1].name).resolve()
    sys.path.insert(0, str(folder))
    return folder


def save(file: Path, text: str) -> None:
    """Write a file, as an editor does."""
    file.write_text(text.lstrip())
    importlib.invalidate_caches()  # a new file is looked for


# ------------------------------------------------------------------------------------------------ in this kernel


def run_here(events: Iterable[Any]) -> Run:
    """A run with the code that this kernel has: no other process. A missing name ends it."""
    happened: list[Any] = []
    outcome = Outcome()
    try:
        for event in events:
            happened.append(event)
    except NameError as error:
        text = "".join(traceback.format_exception(error))
        outcome = Outcome("exception:NameError", 1, None, "NameError", str(error), text)
    return Run(happened, outcome)


def rounds_done(run: Run) -> int:
    """Rounds whose updates are all done."""
    return max((step.round for step in run.steps), default=0)


def end_of(run: Run) -> str:
    """The rounds that were done, and the end of the traceback: the line of the file, and the error."""
    lines = run.outcome.traceback.strip().splitlines()[-4:]
    kept = [line for line in lines if set(line.strip()) - set("^~ ")]
    short = re.sub(r'File ".*[/\\]', 'File "', "\n".join(kept))  # without the folder
    return f"{rounds_done(run)} rounds done. Then:\n{short}"


def line_of(run: Run) -> int:
    """The number of the line that the traceback names last; 0 where there is none."""
    numbers = re.findall(r'rewards\.py", line (\d+)', run.outcome.traceback)
    if not numbers:
        return 0
    return int(numbers[-1])


# ------------------------------------------------------------------------------- a process of its own, which trains


class Beside:
    """A trainer in this process, which imported one version of the file; with another one saved later."""

    def __init__(self, trainer: Trainer, folder: Path):
        self.trainer = trainer
        self.folder = folder

    def save(self, text: str) -> None:
        save_in(self.folder, text)

    def mended(self, refresh: Callable[[Trainer], Any]) -> dict[str, Any]:
        """What `refresh(trainer)` left: box -> version, 0 where none answers; the rounds; and its error, if any."""
        trainer = self.trainer
        error = ""
        try:
            refresh(trainer)
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
        vars(trainer).setdefault("reward", None)
        versions = {
            "module": version_of(lambda: trainer.module.Reward()),
            "trainer": version_of(lambda: trainer.reward),
            "worker": trainer.version_of_worker(),
        }
        rounds = getattr(trainer.reward, "rounds", "gone")
        return {"versions": versions, "rounds": rounds, "error": error}


@contextlib.contextmanager
def trainer_with(text: str, rounds: int = 0) -> Iterator[Beside]:
    """For `with`: a process that has imported this text, and a worker that has, too."""
    with imported(text) as (folder, module):
        trainer = Trainer(folder, module)
        trainer.reward.rounds = rounds
        try:
            yield Beside(trainer, folder)
        finally:
            trainer.end_worker()


# ------------------------------------------------------------------------------------------------ what is compared


def frame_of(run: Run) -> dict[str, Any] | None:
    """What `Beside.mended` found; None where the run did not come so far."""
    for event in run.events:
        if isinstance(event, dict):
            return event
    return None


def least_version(runs: Sequence[Run]) -> int:
    """The oldest version that module, trainer or worker have, over all runs."""
    oldest = []
    for run in runs:
        frame = frame_of(run) or {"versions": {"none": 0}}
        oldest.append(min(frame["versions"].values()))
    return min(oldest)


def largest_difference(one: Run, other: Run) -> float:
    """Of two runs with equally many updates: over losses, rewards and exams."""
    pairs = list(zip(one.exam(), other.exam(), strict=False))
    for name in ("loss", "reward"):
        pairs += zip(one[name], other[name], strict=False)
    return max(abs(left - right) for left, right in pairs)


def first_reward(run: Run) -> float:
    """The mean reward of round 1; 0 where the run ended before."""
    rewards = [step.reward for step in run.steps if step.round == 1]
    if not rewards:
        return 0.0
    return rewards[0]


def rows_of(arms: Mapping[str, Sequence[Run]]) -> list[dict[str, str]]:
    """A row for each arm, with a number for each seed."""
    rows = []
    for arm, runs in arms.items():
        tied = []
        for run in runs:
            shares = run["frac_reward_zero_std"]
            tied.append(sum(shares) / max(len(shares), 1))
        columns = {
            "reward in round 1": [first_reward(run) for run in runs],
            "tied groups": tied,
            "exam before": [run.exam()[0] for run in runs],
            "exam at the end": [last_exam(run) for run in runs],
        }
        row = {"arm": arm}
        for name, values in columns.items():
            row[name] = " ".join(f"{value:.2f}" for value in values)
        rows.append(row)
    return rows


def least_difference(high: Sequence[float], low: Sequence[float]) -> float:
    """The least of the differences, seed by seed."""
    return min(one - other for one, other in zip(high, low, strict=True))
