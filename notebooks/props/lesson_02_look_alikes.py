"""What page 02 compares its fault with: runs whose log looks the same, known ones and those of its last exercise."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from props.arms import side_by_side
from props.children import events_of
from props.diagnosis import shuffled
from props.lesson_02 import Distance

from labkit.grpo import Hooks, Sampling, grads, load, task, train
from labkit.grpo.advantage import zero_std_fraction

SAMPLING = Sampling(prompts=4)

# ------------------------------------------------------------------------------------------------- what may be wrong


def looks_for_a_word(prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
    """A reward whose pattern never matches: these answers are digits."""
    return [float("answer" in answer) for answer in answers]


def short_enough(prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
    """A reward that is 1 up to eight characters: no answer here is longer."""
    return [float(len(answer) <= 8) for answer in answers]


def step_of_a_copy(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> grads.Update:
    """The step of an optimizer that was made with the parameters of a copy: none of them has a gradient."""
    torch.optim.AdamW(copy.deepcopy(model).parameters(), lr=5e-5).step()
    return grads.Update(grads.global_norm(grads.trainable(model)))


# ------------------------------------------------------------------------------------------------- what the log says


class Watch:
    """Does what a run's hooks do, and keeps what its log needs.

    parameters  those that are trained
    rewards     objective -> the rewards of its answers, groups of adjacent ones
    distances   of `.grad` from the gradient of the summed loss, before each step
    """

    def __init__(self, model: torch.nn.Module, hooks: Hooks, distance: Distance):
        self.hooks = hooks
        self.distance = distance
        self.parameters = grads.trainable(model)
        self.rewards: dict[str, list[float]] = {}
        self.distances: list[float] = []

    def reward(self, prompts: Sequence[str], answers: Sequence[str]) -> Sequence[float | None]:
        rewards = self.hooks.reward(prompts, answers)
        for prompt, reward in zip(prompts, rewards, strict=True):
            objective = task.of_prompt(prompt).name
            self.rewards.setdefault(objective, []).append(float(reward))
        return rewards

    def inner_update(
        self, model: Any, optimizer: Any, losses: Iterable[torch.Tensor], limit_and_step: Any
    ) -> grads.Update:
        losses = list(losses)
        total: Any = sum(losses)
        # before the update, which frees the graphs
        wanted = torch.autograd.grad(total, self.parameters, retain_graph=True)

        def look_and_step(model: Any, optimizer: Any) -> grads.Update:
            self.distances.append(self.distance(self.parameters, wanted))
            return limit_and_step(model, optimizer)

        return self.hooks.inner_update(model, optimizer, losses, look_and_step)

    def tied(self, objective: str) -> float:
        """The share of an objective's groups whose rewards are all equal."""
        rewards = torch.tensor(self.rewards[objective])
        return zero_std_fraction(rewards, SAMPLING.num_samples)


def log_of(
    policy: str,
    device: str,
    seed: int,
    distance: Distance,
    objectives: Sequence[str] = ("add", "copy"),
    lr: float = 5e-5,
    dtype: torch.dtype = torch.float32,
    **hooks: Any,
) -> Iterator[dict[str, float]]:
    """A round of two updates; yields one dictionary, what its log says.

    hooks  what replaces a part of the loop, by the names of `labkit.grpo.Hooks`
    """
    loaded = load(policy, device)
    loaded.model.to(dtype)
    watch = Watch(loaded.model, Hooks(**hooks), distance)
    before = [parameter.detach().clone() for parameter in watch.parameters]
    watched = dataclasses.replace(watch.hooks, reward=watch.reward, inner_update=watch.inner_update)
    settings = {"seed": seed, "rounds": 1, "mu": 2, "lr": lr, "sampling": SAMPLING}
    update_1, update_2 = train(objectives, policy=loaded, hooks=watched, **settings)
    first, last = objectives
    yield {
        "KL of the first": update_2[f"kl/{first}"],
        "norm": update_1.grad_norm,
        "tied, first": watch.tied(first),
        "tied, last": watch.tied(last),
        "changed": share_changed(before, watch.parameters),
        "distance": watch.distances[0],
    }


def share_changed(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> float:
    """The share of all entries that are not what they were."""
    changed = total = 0
    for old, new in zip(before, after, strict=True):
        changed += int((old != new).sum())
        total += old.numel()
    return changed / total


def logs_of(
    cases: Mapping[str, Mapping[str, Any]], seed: int, **common: Any
) -> dict[str, dict[str, float]]:
    """Case -> what its log says."""
    runs = side_by_side(cases, [seed], log_of, **common)
    logs = {}
    for name, (run,) in runs.items():
        (logs[name],) = events_of(run, name)
    return logs


def unseen_logs(
    seed: int, write_over: Any, zero_grad_inside: Any, **common: Any
) -> list[tuple[str, Mapping[str, float]]]:
    """Twelve runs in an order that the seed decides: (cause, what its log says).

    Two of each cause; and a sound and an overwritten one whose first objective is solved: nobody can tell them apart.
    """
    cases: dict[str, dict[str, Any]] = {
        "overwritten 1": {"objectives": ("max", "add"), "inner_update": write_over},
        "overwritten 2": {"objectives": ("add", "max"), "inner_update": zero_grad_inside},
        "reward 1": {"objectives": ("max", "add"), "reward": short_enough},
        "reward 2": {"objectives": ("add", "max"), "reward": short_enough},
        "optimizer 1": {"objectives": ("max", "add"), "update": step_of_a_copy},
        "optimizer 2": {"objectives": ("max", "copy"), "update": step_of_a_copy},
        "rate 1": {"objectives": ("add", "max"), "lr": 1e-6},
        "rate 2": {"lr": 3e-7},
        "healthy 1": {"objectives": ("max", "add")},
        "healthy 2": {"lr": 2e-5},
        "cannot tell 1": {"objectives": ("copy", "add")},
        "cannot tell 2": {"objectives": ("copy", "add"), "inner_update": write_over},
    }
    return shuffled(logs_of(cases, seed, **common), seed)
