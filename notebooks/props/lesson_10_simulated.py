"""Lesson 10's runs in one process: it draws the answers of all processes, and weighs each token as the pair would."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import torch
from props.lesson_10 import GROUP, RATE, ROUNDS, Deal, drawn, per_token_loss, together
from torch import Tensor

from labkit.events import Exam, Step
from labkit.grpo import exam, load, task
from labkit.grpo.advantage import group_advantage
from labkit.grpo.policy import Policy

LATE_ROUNDS = 12  # with the slow judge
CAME = 3  # marks that came, of 32, where the judge of `max` is slow


def simulated(
    deal: Deal, seed: int, *, world: int = 2, prompts: int = 4, own_tokens: str = ""
) -> Iterator[Any]:
    """The page's training in one process: it draws the answers of all processes, and takes one step with them.

    own_tokens  "": each token has the same weight. Else local means: the weights that tokens have where each of
                two processes divides by its own, dealt "as drawn" or "sorted by length"; then a `Step` a round has
                the counts
    """
    policy, optimizer = _begun()
    paper = exam.paper(policy.tokenizer, "add")
    dealt = [deal(rank, world, seed) for rank in range(world)]
    yield Exam(0, {"add": paper.mean(policy.model)})
    for number in range(ROUNDS):
        parts = []
        for rows, generator in dealt:
            parts.append(drawn(policy, rows[prompts * number : prompts * (number + 1)], generator))
        answers = together(parts)
        weights = token_weights(answers.mask, own_tokens)
        if own_tokens:
            yield counted(number + 1, answers.mask, own_tokens)
        _step(policy, optimizer, (per_token_loss(policy.model, answers) * weights).sum())
    yield Exam(ROUNDS, {"add": paper.mean(policy.model)})


def judged_late(seed: int, own_tokens: bool, turned: bool = False) -> Iterator[Any]:
    """Simulated, like `simulated`: process 0 has four prompts of `max`, whose judge is slow, process 1 four of `add`.

    Of the 32 answers to `max` the first three have a mark; the others are left out of the loss. Their advantages are
    those of the full groups.

    turned  the judge of `max` gives 1 for a wrong answer and 0 for a right one
    """
    policy, optimizer = _begun()
    papers = {name: exam.paper(policy.tokenizer, name) for name in ("max", "add")}
    rng = random.Random(seed)
    generators = [torch.Generator().manual_seed(seed + 1000 * rank) for rank in (0, 1)]
    dealt = "as drawn" if own_tokens else ""
    yield Exam(0, {name: paper.mean(policy.model) for name, paper in papers.items()})
    for number in range(LATE_ROUNDS):
        parts = []
        for name, generator in zip(papers, generators, strict=True):
            parts.append(drawn(policy, task.get(name).sample(4, rng), generator))
        if turned:
            wrong = group_advantage(1 - parts[0].rewards, GROUP)
            parts[0] = dataclasses.replace(parts[0], advantages=wrong)
        answers = together(parts)
        answers.mask[CAME : len(answers.mask) // 2] = 0
        yield counted(number + 1, answers.mask, "as drawn")
        weights = token_weights(answers.mask, dealt)
        _step(policy, optimizer, (per_token_loss(policy.model, answers) * weights).sum())
    yield Exam(LATE_ROUNDS, {name: paper.mean(policy.model) for name, paper in papers.items()})


def counted(number: int, mask: Tensor, dealt: str) -> Step:
    """A round's counted tokens of both processes, as `followed` has them."""
    extra = {}
    for process, rows in enumerate(halves(mask, dealt)):
        extra[f"tokens_{process}"] = float(mask[rows].sum())
    return Step(number, round=number, extra=extra)


def _begun() -> tuple[Policy, torch.optim.Optimizer]:
    torch.set_num_threads(1)
    policy = load("tiny", "cpu")
    return policy, torch.optim.AdamW(policy.model.parameters(), lr=RATE, weight_decay=0.0)


def _step(policy: Policy, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def token_weights(mask: Tensor, own_tokens: str = "") -> Tensor:
    """[B, T]: what a token weighs in the step, by the tokens of all processes or by those of its own."""
    weights = mask / mask.sum()
    if own_tokens:
        weights = torch.zeros_like(weights)
        for rows in halves(mask, own_tokens):
            weights[rows] = mask[rows] / mask[rows].sum() / 2
    return weights


def halves(mask: Tensor, dealt: str) -> tuple[Tensor, Tensor]:
    """The rows of process 0 and of process 1: "as drawn", or "sorted by length", the shorter half for process 0."""
    rows = torch.arange(len(mask))
    if dealt == "sorted by length":
        rows = mask.sum(1).argsort(stable=True)
    first, second = rows.chunk(2)
    return first, second
