"""Lesson 02: runs side by side, rows of its tables, the losses of one batch, and logs of runs with one known cause.

The bug, its fix and the distance that tells them apart stand in the notebook and come in as arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from labkit import sandbox
from labkit.grpo import grads
from labkit.grpo import task as tasks
from labkit.checks import Report
from labkit.events import Run
from labkit.grpo.policy import load
from labkit.train import train

Settings = dict[str, Any]  # of `labkit.train`; "dtype" besides: of the policy's parameters
Log = dict[str, float]
Update = Callable[..., grads.Update]  # (model, optimizer, losses, clip_and_step)
Distance = Callable[..., float]  # of two lists of gradients

TEMPERATURE = 0.6  # of one batch and of the logs: a wrong answer to `copy` is then very unlikely
CANNOT_TELL = "cannot tell"


def side_by_side(arms: Mapping[str, Settings], seeds: Sequence[int]) -> dict[str, dict[int, Run]]:
    """Train every arm on every seed, as many at once as there are cores: arm -> seed -> run."""
    jobs = {
        (arm, seed): settings | {"seed": seed} for arm, settings in arms.items() for seed in seeds
    }
    runs = sandbox.run_all(train, jobs)
    return {arm: {seed: runs[arm, seed] for seed in seeds} for arm in arms}


def gain(run: Run, family: str) -> float:
    """By how much the exam of `family` rose from before the first round to after the last one."""
    chances = run.exam(family)
    return chances[-1] - chances[0]


def gains(runs: Mapping[int, Run], family: str) -> list[float]:
    """`gain` of each seed's run, in the order of the seeds."""
    return [gain(run, family) for run in runs.values()]


def mean(run: Run, column: str) -> float:
    """The mean of one of the log's columns over all updates."""
    return sum(run[column]) / len(run[column])


def rows_of(
    arms: Mapping[str, Mapping[int, Run]], task: Sequence[str], *columns: str
) -> list[dict[str, Any]]:
    """A row for each run: the gain and the mean KL of each objective, and each of `columns` on request.

    columns   "smallest norm", of all updates
    """
    rows = []
    for arm, runs in arms.items():
        for seed, run in runs.items():
            row = {"arm": arm, "seed": seed}
            row |= {f"{family} gains": gain(run, family) for family in task}
            row |= {f"KL of {family}": mean(run, f"kl/{family}") for family in task}
            rows.append(row | {name: min(run["grad_norm"]) for name in columns})
    return rows


def one_batch(
    task: Sequence[str], seed: int, policy: str, device: str
) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """A policy as it came, and the losses of its first batch, one for each objective, in the order of `task`."""
    seen: list[tuple[torch.nn.Module, list[torch.Tensor]]] = []

    def keep(model: Any, optimizer: Any, losses: Iterable[torch.Tensor], step: Any) -> grads.Update:
        seen.append((model, list(losses)))
        return grads.Update(0.0)

    settings = {"prompts": 4, "rounds": 1, "mu": 1, "temperature": TEMPERATURE, "seed": seed}
    list(train(policy, task, device=device, inner_update=keep, **settings))
    return seen[0]


def stepped_a_copy(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> grads.Update:
    """The step of an optimizer that was built for a copy of the model: the copy has no gradient."""
    other = torch.optim.AdamW(copy.deepcopy(model).parameters(), lr=5e-5)
    other.step()
    return grads.Update(grads.global_norm(grads.trainable(model)))


def all_equal(prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
    """A reward function that gives every answer 1."""
    return [1.0] * len(answers)


def causes_of_a_zero(bug: Update, fix: Update) -> dict[str, Settings]:
    """Cause -> the settings that bring it about. `bug` and `fix` are the lesson's inner updates."""
    causes = {
        "overwritten": {"inner_update": bug},
        "nothing wrong": {},
        "all rewards equal": {"reward": all_equal},
        "optimizer holds a copy": {"update": stepped_a_copy},
        "rate 1e-6": {"lr": 1e-6},
        "rate 1e-6, bf16": {"lr": 1e-6, "dtype": torch.bfloat16},
    }
    return {name: {"inner_update": fix} | settings for name, settings in causes.items()}


def measured(
    update: Update,
    distance: Distance,
    seen: list[float],
    model: torch.nn.Module,
    optimizer: Any,
    losses: Iterable[torch.Tensor],
    step: grads.Updater,
) -> grads.Update:
    """The inner update `update`; the distance of its gradients from those of the summed loss is appended to `seen`."""
    losses, parameters = list(losses), grads.trainable(model)
    wanted = torch.autograd.grad(sum(losses), parameters, retain_graph=True)

    def measure_and_step(model: torch.nn.Module, optimizer: Any) -> grads.Update:
        seen.append(distance([parameter.grad for parameter in parameters], wanted))
        return step(model, optimizer)

    return update(model, optimizer, losses, measure_and_step)


def tied(rewards: Sequence[Sequence[float]]) -> float:
    """The share of groups whose rewards are all equal."""
    return sum(len(set(group)) == 1 for group in rewards) / len(rewards)


def log_of(
    cause: Settings, distance: Distance, task: Sequence[str], seed: int, policy: str, device: str
) -> Log:
    """Two updates of one round, as numbers. `cause` is a value of `causes_of_a_zero`."""
    chosen = dict(cause)
    loaded = load(policy, device)
    loaded.model.to(chosen.pop("dtype", torch.float32))
    before = [parameter.detach().clone() for parameter in loaded.model.parameters()]
    distances: list[float] = []
    judge, rewards = chosen.pop("reward", tasks.rewards), []

    def reward(prompts: Sequence[str], answers: Sequence[str]) -> Sequence[float]:
        rewards.extend(judge(prompts, answers))
        return rewards

    settings = {"prompts": 4, "rounds": 1, "mu": 2, "temperature": TEMPERATURE, "seed": seed}
    chosen["inner_update"] = partial(measured, chosen["inner_update"], distance, distances)
    first, second = train(loaded, task, reward=reward, **settings | chosen)
    pairs = list(zip(before, loaded.model.parameters(), strict=True))
    changed = sum(int((old != new).sum()) for old, new in pairs)
    groups = [rewards[at : at + 8] for at in range(0, len(rewards), 8)]  # 4 of each objective
    return {
        "KL, first": second[f"kl/{task[0]}"],
        "KL, last": second[f"kl/{task[1]}"],
        "norm": first.grad_norm,
        "tied, first": tied(groups[:4]),
        "tied, last": tied(groups[4:]),
        "changed": changed / sum(old.numel() for old, _ in pairs),
        "distance": distances[0],
    }


def unseen_logs(
    cases: Mapping[str, Settings], distance: Distance, seed: int, policy: str, device: str
) -> Iterable[tuple[str, Log]]:
    """(right answer, log): every cause on two pairs of objectives, and two logs that do not differ."""
    for at, task in enumerate([("add", "copy"), ("max", "add")]):
        for cause, settings in cases.items():
            yield cause, log_of(settings, distance, task, seed + at, policy, device)
    for cause in ("nothing wrong", "overwritten"):
        yield CANNOT_TELL, log_of(cases[cause], distance, ("copy", "add"), seed + 2, policy, device)


def judge_of_causes(logs: Callable[[], Iterable[tuple[str, Log]]]) -> Callable[..., Report]:
    """A check for `labkit.exercise`: it asks a diagnosis for the cause of each log, and stops at the first wrong one.

    logs   makes (cause, log) pairs, one at a time, so that a stub costs one log
    """

    def names_every_cause(diagnosis: Callable[[Log], str]) -> Report:
        right = 0
        for cause, log in logs():
            answer = diagnosis(dict(log))
            if answer != cause:
                numbers = ", ".join(f"{name} {value:.3g}" for name, value in log.items())
                hint = f"Another answer is right for this log: {numbers}."
                return Report(
                    "my_diagnosis", "names the cause", False, {"you said": str(answer)}, hint
                )
            right += 1
        return Report("my_diagnosis", "names the cause", True, {"logs named": right})

    return names_every_cause
