"""What can be wrong with a mystery run: real bugs, each in one part of a run that is sound otherwise, and the fixes.

A run is made of parts: how tokens are drawn, what is counted, how gradients are added, the KL, the rate, and so on.
A failure puts one wrong part in; a fix puts a sound one in its place, whether or not that was the guilty one.
Every bug is the code that people wrote. This file runs nothing.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from labkit import grads, kl, rollout, task
from labkit.policy import token_logprobs

Settings = dict[str, Any]


# ------------------------------------------------------------------------------------- bugs, one function each


def one_for_all(logits, num_samples, sample):
    """Lesson 04: the first token is drawn once per prompt, and copied to all completions."""
    return sample(logits).repeat_interleave(num_samples)


def likeliest(logits, *_):
    """Lesson 08: `do_sample` was forgotten, so the temperature is ignored."""
    return logits.argmax(-1)


def cooled_twice(logits, temperature, top_k, top_p, logit_max, generator):
    """Lesson 08: a warper divides by the temperature, and the sampler does so again."""
    return rollout.sample_tokens(logits / temperature, temperature, top_k, top_p, logit_max, generator)


class FirstWeights:
    """The sampler has a copy of the policy, made at the start, and nobody sends it the new weights."""

    def __init__(self):
        self.kept = None

    def __call__(self, policy):
        self.kept = self.kept or replace(policy, model=copy.deepcopy(policy.model))
        return self.kept


def count_all(out, policy):
    """The mask of the completion is all ones: padding after the end is trained on."""
    return replace(out, mask=torch.ones_like(out.mask))


def with_special_tokens(out, policy):
    """The texts are decoded with the end token in them, and the grader wants a number and nothing else."""
    return replace(out, texts=policy.tokenizer.batch_decode(out.tokens))


def overwrite(params, gradients):
    """Lesson 02: `copy_` where `add_` belongs, called once per micro-batch."""
    for p, g in zip(params, gradients, strict=True):
        p.grad = torch.empty_like(p) if p.grad is None else p.grad
        p.grad.copy_(g)


class StepsACopy:
    """The optimizer was built on a copy of the model: there is a gradient, and the policy never moves."""

    def __call__(self, model, optimizer):
        norm = grads.global_norm(grads.trainable(model))
        other = copy.deepcopy(model)  # made here, so that the run needs no second model to begin with
        torch.optim.SGD(other.parameters(), lr=0.01).step()
        return grads.Update(norm)


def k3_as_written(logp, ref_logp):
    """Lesson 03: exp() of a log-ratio that nothing bounds."""
    delta = ref_logp - logp
    return delta.exp() - delta - 1


def evaluate_and_keep(policy, prompts, kept):
    """Lesson 05: an evaluation that records its graph, and a list that keeps the result for a plot."""
    kept.append(chance(policy, prompts))
    return float(kept[-1])


def evaluate(policy, prompts, kept):
    """The same, for a number and nothing else."""
    with torch.inference_mode():
        return float(chance(policy, prompts))


def chance(policy, prompts):
    """The exact chance of a right answer, mean over the prompts: a scalar tensor. No sampling."""
    answers = [task.of_prompt(p).answer(p) for p in prompts]
    texts = [p + a + policy.tokenizer.eos_token for p, a in zip(prompts, answers, strict=True)]
    ids, mask = policy.encode(texts)  # padded on the left
    logp, _ = token_logprobs(policy.model, ids, mask, 4)
    rows = [row[-len(a) - 1 :].sum().exp() for row, a in zip(logp, answers, strict=True)]
    return torch.stack(rows).mean()


# ------------------------------------------------------------------------------------- the parts, and their sound forms

DRAWING: Settings = {"first_token": rollout.each_row, "draw": rollout.sample_tokens, "weights": None, "finish": ()}


def sampler(first_token, draw, weights, finish) -> Callable[..., rollout.Completions]:
    """`rollout.generate` with four of its parts put in."""

    def generate(policy, prompts, **settings):
        other = weights(policy) if weights else policy
        out = rollout.generate(other, prompts, first_token=first_token, sample_tokens=draw, **settings)
        return functools.reduce(lambda so_far, change: change(so_far, policy), finish, out)

    return generate


# What can be put in its place: name -> what the learner reads, and the settings
FIXES: dict[str, tuple[str, Settings]] = {
    "first token": ("draw the first token of every completion on its own", {"first_token": rollout.each_row}),
    "drawing": ("draw each token from logits / temperature, divided once", {"draw": rollout.sample_tokens}),
    "weights": ("sample with the weights that are trained", {"weights": None}),
    "completions": ("count tokens up to the end; hand the grader plain text", {"finish": ()}),
    "prompts": ("other prompts, which the policy has not solved", {"prompts": 8}),
    "accumulation": ("add the gradients of micro-batches", {"inner_update": grads.inner_update}),
    "optimizer": ("clip the norm to 0.3, skip above 10, step the model itself", {"update": grads.guard()}),
    "KL": ("an estimator whose slope is bounded by the log-ratio itself (k2)", {"kl": kl.k2}),
    "evaluation": ("evaluate in inference mode, and keep numbers, not tensors", {"evaluate": evaluate}),
    "rate": ("a small learning rate: AdamW at 3e-5", {"optimizer": "adamw", "lr": 3e-5}),
}


@dataclass(frozen=True)
class Failure:
    """One kind of mystery.

    name      what it is called once it is known
    cause     its word in triage's vocabulary
    lesson    the lesson that shows it, or ""
    fix       the name of the fix that takes it away, "" for a healthy run
    wrong     settings with the bug
    scene     settings that the run has with and without the bug
    code      the bug, for `labkit.show`; None where it is a mere setting
    """

    name: str
    cause: str
    lesson: str
    fix: str
    wrong: Settings = field(default_factory=dict)
    scene: Settings = field(default_factory=dict)
    code: Any = None


EXAM = task.get("add").sample(96, random.Random(1)) + task.get("max").sample(96, random.Random(1))
LONG = grads.guard(skip_above=1e3)  # gradients are 1 / temperature as long
NO_CLAMPS: Settings = {"log_ratio_max": None, "logit_max": None, "advantage_max": None, "check": "off"}
SOLVED = ["27:82=", "18:42=", "25:73=", "93:58=", "44:39=", "12:13=", "93:79=", "97:37="]
LAST_SOLVED = ["94<75=", "92<31=", "80<87=", "17<71=", *SOLVED[:4]]

FAILURES = [
    Failure("nothing is wrong", "healthy-normal", "00", ""),
    Failure(
        "the gradient exploded", "gradient-explosion", "01", "optimizer", {"update": grads.plain_step},
        {"kl": k3_as_written, "optimizer": "sgd", "lr": 0.02, "beta": 0.3, "mu": 8, "rounds": 3, "task": "max",
         "num_samples": 8, "prompts": 8, **NO_CLAMPS}, grads.plain_step,
    ),
    Failure(
        "the KL term blew up", "kl-blowup", "03", "KL", {"kl": k3_as_written},
        {"optimizer": "sgd", "lr": 0.01, "beta": 0.25, "mu": 4, "rounds": 6, "num_samples": 4, "task": "max",
         "update": grads.guard(1e9, 1e9)}, k3_as_written,
    ),
    Failure(
        "micro-batches overwrite each other", "overwritten-or-lost-gradient", "02", "accumulation",
        {"inner_update": functools.partial(grads.inner_update, accumulate=overwrite)},
        {"task": ("max", "copy"), "prompts": LAST_SOLVED, "temperature": 0.3, "beta": 0.0,
         "optimizer": "sgd", "lr": 0.01, "update": LONG}, overwrite,
    ),
    Failure(
        "the optimizer steps a copy of the model", "overwritten-or-lost-gradient", "02", "optimizer",
        {"update": StepsACopy()}, {"rounds": 12, "lr": 1e-4}, StepsACopy,
    ),
    Failure(
        "one first token for the whole group", "identical-completions", "04", "first token",
        {"first_token": one_for_all}, {"task": "max"}, one_for_all,
    ),
    Failure(
        "greedy decoding", "identical-completions", "08", "drawing", {"draw": likeliest}, {"temperature": 0.9},
        likeliest,
    ),
    Failure(
        "the temperature is divided out twice", "temperature-or-sampling", "08", "drawing", {"draw": cooled_twice},
        {"temperature": 0.6, "task": "add", "prompts": 12, "num_samples": 10}, cooled_twice,
    ),
    Failure(
        "the sampler keeps its first weights", "sync-or-logprob-mismatch", "", "weights", {"weights": FirstWeights()},
        {"lr": 3e-4, "rounds": 8}, FirstWeights,
    ),
    Failure(
        "padding is counted", "padding-or-mask", "", "completions", {"finish": (count_all,)},
        {"task": "add", "max_new_tokens": 6}, count_all,
    ),
    Failure(
        "the grader cannot read the text", "tied-rewards", "", "completions", {"finish": (with_special_tokens,)}, {},
        with_special_tokens,
    ),
    Failure(
        "the prompts are solved", "tied-rewards", "02", "prompts", {"prompts": SOLVED},
        {"temperature": 0.3, "lr": 3e-5, "mu": 1, "update": LONG},
    ),
    Failure(
        "every evaluation stays in memory", "references-kept", "05", "evaluation", {"evaluate": evaluate_and_keep},
        {"rounds": 10, "mu": 1}, evaluate_and_keep,
    ),
    Failure(
        "the learning rate is far too high", "learning-rate", "01", "rate", {"lr": 0.3}, {"task": "max", "rounds": 8},
    ),
]  # fmt: skip


def surface(dice: random.Random) -> Settings:
    """What a run is besides its failure: drawn by lot."""
    chosen = {"task": dice.choice(["add", "max"]), "prompts": dice.choice([8, 10, 12]), "mu": dice.choice([1, 2, 2, 3])}
    chosen |= {"num_samples": dice.choice([6, 8, 8, 10]), "beta": dice.choice([0.02, 0.04, 0.1])}
    return chosen | {"rounds": dice.choice([6, 7, 8]), "lr": dice.choice([3e-5, 5e-5, 1e-4])}
