"""The eight faults of lesson 18, one function each, as one easily writes them; and the hooks that put one into a run.

    SUSPECTS["stale sampler"]       a `labkit.grpo.Hooks`, for `train(hooks=...)` or `mystery.play`
    FAULTS["stale sampler"]         what is wrong, for the page

Nothing here runs or draws.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from labkit.grpo import Hooks, Policy, generate, grads, rollout, task
from labkit.grpo.rollout import Completions, Sampler

from .asks import NOTHING

ADD = task.get("add")
GROUP = 8


def drawn_at_1(logits: torch.Tensor, temperature: float, *filters: Any) -> torch.Tensor:
    return rollout.sample_tokens(logits, 1.0, *filters)


class FirstWeights:
    kept: Policy | None = None

    def __call__(self, policy: Policy, prompts: list[str], **settings: Any) -> Completions:
        if self.kept is None:  # a copy, made before the first round; nobody sends it new weights
            self.kept = replace(policy, model=copy.deepcopy(policy.model))
        return generate(self.kept, prompts, **settings)


def copied_first_token(logits: torch.Tensor, num_samples: int, sample: Sampler) -> torch.Tensor:
    return sample(logits).repeat_interleave(num_samples)


def mask_of_ones(policy: Policy, prompts: list[str], **settings: Any) -> Completions:
    out = generate(policy, prompts, **settings)
    return replace(out, mask=torch.ones_like(out.mask))


def overwrite(parameters: Sequence[torch.nn.Parameter], gradients: Sequence[Any]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient  # once for each micro-batch


def step_of_a_copy(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> grads.Update:
    torch.optim.AdamW(copy.deepcopy(model).parameters(), lr=2e-4).step()
    return grads.Update(grads.global_norm(grads.trainable(model)))


def within_ten(prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
    rewards = []
    for prompt, answer in zip(prompts, answers, strict=True):
        right = int(ADD.answer(prompt))
        rewards.append(float(answer.isdecimal() and abs(int(answer) - right) <= 10))
    return rewards


def as_they_come(prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
    rewards = task.rewards(prompts, answers)
    rng = random.Random(str(answers))  # which row's reward comes back first is chance
    for start in range(0, len(rewards), GROUP):  # one request holds one group
        group = rewards[start : start + GROUP]
        rewards[start : start + GROUP] = rng.sample(group, GROUP)
    return rewards


@dataclass(frozen=True)
class Fault:
    """What the page says of a fault.

    code      the function, for `inspect.getsource`
    line      the line that is wrong
    right     what should stand there
    harm      what it does to learning, in a sentence
    lesson    where it is treated
    """

    code: Callable[..., Any]
    line: str
    right: str
    harm: str
    lesson: str


FAULTS = {
    "temperature": Fault(
        drawn_at_1,
        "`sample_tokens(logits, 1.0, *filters)`",
        "`temperature` in place of `1.0`",
        "The answers are drawn at 1, the loss computes with 0.5: rare tokens come more often than it assumes.",
        "08",
    ),
    "stale sampler": Fault(
        FirstWeights,
        "`generate(first_copy, prompts)`",
        "`policy`, this round's weights",
        "The answers are the first policy's. The old log-probs come from this round's policy, so the ratio begins at 1.",
        "",
    ),
    "first token": Fault(
        copied_first_token,
        "`sample(logits).repeat_interleave(n)`",
        "repeat the logits, then sample",
        "All eight answers begin alike, so the first token is not compared.",
        "04",
    ),
    "padding": Fault(
        mask_of_ones,
        "`mask = torch.ones_like(mask)`",
        "1 up to the end of the answer",
        "What follows the end of an answer is trained, too.",
        "",
    ),
    "lost gradient": Fault(
        overwrite,
        "`parameter.grad = gradient`",
        "add, for each micro-batch",
        "Of two micro-batches the second one's gradient is left.",
        "02",
    ),
    "copy": Fault(
        step_of_a_copy,
        "`AdamW(copy_of_model.parameters())`",
        "the model's parameters",
        "There is a gradient, and no weight of the policy moves.",
        "02",
    ),
    "kind grader": Fault(
        within_ten,
        "`abs(answer - right) <= 10`",
        "`==`",
        "An answer up to ten too low or too high is paid like the right one.",
        "",
    ),
    "order": Fault(
        as_they_come,
        "`rng.sample(group, 8)`",
        "each reward to its own row",
        "A row gets the reward of another row of its group.",
        "",
    ),
}


def _two_micro_batches(**changed: Any) -> Hooks:
    return Hooks(micro_batches=2, **changed)


SUSPECTS = {
    NOTHING: _two_micro_batches(),
    "temperature": _two_micro_batches(generate=partial(generate, sample_tokens=drawn_at_1)),
    "stale sampler": _two_micro_batches(generate=FirstWeights()),
    "first token": _two_micro_batches(generate=partial(generate, first_token=copied_first_token)),
    "padding": _two_micro_batches(generate=mask_of_ones),
    "lost gradient": _two_micro_batches(
        inner_update=partial(grads.inner_update, accumulate=overwrite)
    ),
    "copy": _two_micro_batches(update=step_of_a_copy),
    "kind grader": _two_micro_batches(reward=within_ten),
    "order": _two_micro_batches(reward=as_they_come),
}
