"""Runs of labkit's trainer that fail so that their log shows it, for made_runs.py: seven failures, and a sound run.

    for step in played("greedy decoding", seed=0): ...
    FAILURES["greedy decoding"]                       its cause in triage's vocabulary, and the settings that make it

Each failure is code that people wrote. Those that no log shows are in lesson 18.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from flat_train import train  # beside this file

from labkit.events import Step
from labkit.grpo import grads, rollout
from labkit.grpo.policy import Policy, load

Settings = dict[str, Any]

# what all these runs share; a failure's own settings go over them
COMMON: Settings = {"rounds": 5, "prompts": 8, "num_samples": 8, "mu": 2, "micro_batches": 2, "lr": 2e-4}
NO_CLAMPS: Settings = {"log_ratio_max": None, "logit_max": None, "advantage_max": None, "check": "off"}


def k3_as_written(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """exp() of a log-ratio that nothing bounds."""
    delta = ref_logp - logp
    return delta.exp() - delta - 1


def one_for_all(logits: torch.Tensor, num_samples: int, sample: rollout.Sampler) -> torch.Tensor:
    """The first token is drawn once for each prompt, and copied to all completions."""
    return sample(logits).repeat_interleave(num_samples)


def likeliest(logits: torch.Tensor, *_: Any) -> torch.Tensor:
    """`do_sample` was forgotten, so the likeliest token is taken."""
    return logits.argmax(-1)


def step_of_a_copy(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> grads.Update:
    """The optimizer has the parameters of a copy: there is a gradient, and the policy never moves."""
    torch.optim.SGD(copy.deepcopy(model).parameters(), lr=0.01).step()
    return grads.Update(grads.global_norm(grads.trainable(model)))


def with_the_end_token(policy: Policy, prompts: list[str], **settings: Any) -> rollout.Completions:
    """The texts are decoded with the end token in them, and the grader wants a number and nothing else."""
    out = rollout.generate(policy, prompts, **settings)
    return replace(out, texts=policy.tokenizer.batch_decode(out.tokens))


@dataclass(frozen=True)
class Failure:
    """A cause of triage, and the settings of `flat_train` that make it."""

    cause: str
    settings: Settings = field(default_factory=dict)


FAILURES = {
    "nothing is wrong": Failure("healthy-normal"),
    "the gradient exploded": Failure(
        "gradient-explosion",
        {
            "update": grads.plain_step, "kl": k3_as_written,
            "optimizer": "sgd", "lr": 0.2, "mu": 8, "rounds": 3, **NO_CLAMPS,
        },
    ),
    "the optimizer steps a copy of the model": Failure(
        "overwritten-or-lost-gradient", {"update": step_of_a_copy}
    ),
    "the KL term outweighs the reward": Failure(
        "kl-blowup",
        {"kl": k3_as_written, "optimizer": "sgd", "lr": 0.02, "beta": 0.5, "mu": 4, "update": grads.guard(1e9, 1e9)},
    ),
    "one first token for the whole group": Failure(
        "identical-completions", {"generate": partial(rollout.generate, first_token=one_for_all)}
    ),
    "greedy decoding": Failure(
        "identical-completions", {"generate": partial(rollout.generate, sample_tokens=likeliest)}
    ),
    "the grader cannot read the text": Failure("tied-rewards", {"generate": with_the_end_token}),
    "the learning rate is far too high": Failure("learning-rate", {"lr": 0.05}),
}  # fmt: skip


def played(name: str, seed: int) -> Iterator[Step]:
    """The steps of a run with this failure, on the CPU. Raises: KeyError for an unknown name; what the run dies of."""
    yield from train(load("tiny", "cpu"), "add", seed=seed, **COMMON | FAILURES[name].settings)
