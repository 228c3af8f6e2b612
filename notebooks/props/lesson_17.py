"""What lesson 17 uses and does not teach: TRL's trainer as a run of events, and what labkit says of such a run.

The judges of its exercises and the unseen logs are in lesson_17_cases.py, what is said and drawn of a run in
lesson_17_pictures.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import labkit
from labkit import sandbox
from labkit.events import Exam, Run, Step
from labkit.findings import OK
from labkit.grpo import exam

AT_ONCE = 64  # calls of the judge, in a row, whose times all differ
FIRST_ROWS = "completions_00001.parquet"  # TRL's name for the rows of update 1, if log_completions
TURNS = 400  # of the event loop: the longest time of a call

# seconds of a run, which takes about one: an endless function of the reader's ends at its exercise's check before
LIMIT = 300.0

Words = dict[str, Any]

# ---- the judge that takes its time


class Clock:
    """Draws how long each call takes: no two of 64 calls take the same time, so the order is the seed's alone."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.times: list[int] = []
        self.calls = 0

    def turns(self) -> int:
        """The time of the next call, in turns of the event loop."""
        if not self.times:
            self.times = self.random.sample(range(1, TURNS), AT_ONCE)
        self.calls += 1
        return self.times.pop()


clock = Clock(0)


def set_clock(seed: int) -> Clock:
    """A new clock for the calls from now on."""
    global clock
    clock = Clock(seed)
    return clock


async def _later(value: float, turns: int) -> float:
    for _ in range(turns):
        await asyncio.sleep(0)
    return value


def after_a_while(value: float) -> Any:
    """To be awaited: gives the value after a time that the clock draws now, when the call is made."""
    return _later(value, clock.turns())


# ---- a run


def _recorder(trainer: Any) -> Any:
    """A callback of the trainer that keeps exams, log rows, and the rows of the first update."""
    from transformers import TrainerCallback  # here: the kernel itself trains nothing

    paper = exam.paper(trainer.processing_class, "add")

    class Recorder(TrainerCallback):
        def __init__(self) -> None:
            self.events: list[Any] = [Exam(0, {"add": paper.mean(trainer.model)})]
            self.first: list[Words] = []

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.events.append(Exam(state.global_step, {"add": paper.mean(trainer.model)}))
            if self.first:
                return
            logs = trainer._logs
            (rewards,) = logs["rewards"].values()
            columns = (logs["prompt"], logs["completion"], rewards, logs["advantages"])
            for prompt, completion, reward, advantage in zip(*columns, strict=True):
                row = {"prompt": prompt, "completion": completion}
                self.first.append(row | {"reward": reward, "advantage": advantage})

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in (logs or {}):
                row = {name: value for name, value in logs.items() if value is not None}
                self.events.append(Step.from_log(row | {"step": state.global_step}))

    return Recorder()


def trained(
    build: Callable[..., Any], *, seed: int = 0, checked: bool = False, **settings: Any
) -> Iterator[Any]:
    """Train what `build(seed=seed, **settings)` returns, a GRPOTrainer: Exams, Steps, and then a dict.

    checked   have labkit's preflight, guard and triage say what they see. Where the guard skips an update, the run is
              made again without it: its log is TRL's own
    The dict has the log as TRL keeps it ("log"), the first update's rows ("first"), for a checked run "says", and with
    `log_completions=True` the bytes of the file that TRL writes after the first update ("parquet").
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        guard = labkit.GuardCallback() if checked else None
        trainer = build(seed=seed, **settings)
        says: dict[str, Any] = {}
        if checked:
            says["preflight"] = preflight_of(trainer, seed)
        record = _recorder(trainer)
        yield record.events[0]  # at once: a run that is stopped has sat an exam, too
        error = _train(trainer, record, seed, guard)
        guarded = {"exam": _last(record), "skipped": list(guard.skipped) if guard else []}
        if guarded["skipped"]:
            trainer = build(seed=seed, **settings)
            record = _recorder(trainer)
            error = _train(trainer, record, seed, None)
        yield from sorted(record.events[1:], key=_when)
        answer: Words = {"log": trainer.state.log_history, "first": record.first}
        if guard is not None:
            says |= {"guard": list(guard.alarms), "triage": _causes(trainer, error)}
            answer |= {"says": says, "with guard": guarded}
        written = Path(trainer.args.output_dir, "completions", FIRST_ROWS)
        if written.is_file():
            answer["parquet"] = written.read_bytes()
        yield answer
        if error is not None:
            raise error


def _train(trainer: Any, record: Any, seed: int, guard: Any) -> Exception | None:
    """Train; what ended it early, if anything did."""
    set_clock(seed)
    trainer.add_callback(record)
    if guard is not None:
        trainer.add_callback(guard)
    try:
        trainer.train()
    except Exception as error:
        return error
    return None


def _when(event: Exam | Step) -> tuple[int, bool]:
    """An update's log row stands before the exam that follows the update; the trainer tells them the other way."""
    if isinstance(event, Exam):
        return event.round, True
    return event.step, False


def _last(record: Any) -> float:
    """The last exam; 0 where the policy gives NaN."""
    exams = [event.mean for event in record.events if isinstance(event, Exam)]
    return 0.0 if exams[-1] != exams[-1] else exams[-1]


def _causes(trainer: Any, error: Exception | None) -> list[str]:
    """The causes that labkit's triage names for TRL's own trainer_state.json, and the error if there was one."""
    trainer.state.save_to_json("trainer_state.json")
    sources: list[Any] = [Path("trainer_state.json")]
    if error is not None:
        sources.append(f"{type(error).__name__}: {error}")
    return [finding.cause for finding in labkit.triage.diagnose(sources).findings]


def preflight_of(trainer: Any, seed: int) -> dict[str, str]:
    """What labkit's preflight asks to look at before the run: item -> what it measured."""
    set_clock(seed)
    with torch.random.fork_rng():  # it samples; the run must not see that
        found = labkit.preflight(
            trainer.model,
            trainer.processing_class,
            trainer.args,
            reward=trainer.reward_funcs[0],
            prompts=trainer.train_dataset["prompt"][:2],
            optimizer=trainer.optimizer,
        )
    return {item.name: item.measured for item in found.items if item.level != OK}


def side_by_side(
    build: Callable[..., Any],
    arms: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    checked: bool = False,
) -> dict[str, list[Run]]:
    """Every arm on every seed in children: name -> its runs. A run that died is a run like any other."""
    jobs = {}
    for name, settings in arms.items():
        for seed in seeds:
            jobs[f"{name}, {seed}"] = {"seed": seed, "checked": checked, **settings}
    done = sandbox.run_all(trained, jobs, build=build, timeout=LIMIT)
    return {name: [done[f"{name}, {seed}"] for seed in seeds] for name in arms}


def exams_of(run: Run) -> list[float]:
    """The exam before training and after each update; none of a run that died before."""
    return [event.mean for event in run.events if isinstance(event, Exam)]


def told(run: Run) -> Words:
    """The dicts that a run left, as one; an empty log where it died before."""
    words: Words = {"log": [], "first": [], "mend": [], "says": {}}
    for event in run.events:
        if isinstance(event, dict):
            words |= event
    return words


def values_of(runs: Sequence[Run], column: str) -> list[float]:
    """What TRL logged in a column, of all runs one after another."""
    values = []
    for run in runs:
        values += [row[column] for row in told(run)["log"] if row.get(column) is not None]
    return values
