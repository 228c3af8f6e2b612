"""One gradient of a pair, beside that of one process: lesson 10's fault, and others that look like it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from props.lesson_10 import GROUP, Answers, drawn, per_token_loss, processes
from props.lesson_10_simulated import halves
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from labkit.events import Run
from labkit.grpo import load, task
from labkit.grpo.advantage import group_advantage
from labkit.grpo.policy import Policy

from .children import events_of

ADD = task.get("add")
Rows = tuple[Tensor, Tensor]  # of process 0, and of process 1
MICRO_BATCHES = "one process, two micro-batches, a mean of each"
DIFFERENCE = (
    "One gradient of the pair, minus that of one process with the same answers: "
    "the norm of the difference, over the norm of the latter."
)
LOOKS = (
    "One gradient of process 0 beside that of one process with all 64 answers: the angle between them, its length "
    "over the other's, and the norm of their difference over the other's norm. *Processes differ*: the norm of the "
    "difference of both processes' gradients, over the norm of one process's."
)


# ------------------------------------------------------------------------------------- one gradient, in a pair and alone


def sums_of_unlike_length(seed: int) -> list[str]:
    """Eight sums, four with an answer of three digits: one among the first four sums, three among the others."""
    rng = random.Random(seed)
    short: list[str] = []
    long: list[str] = []
    while len(short) < 4 or len(long) < 4:
        (prompt,) = ADD.sample(1, rng)
        kind = long if len(ADD.answer(prompt)) == 3 else short
        kind.append(prompt)
    return short[:3] + long[:1] + short[3:4] + long[1:4]


def first_answers(policy: Policy, seed: int) -> Answers:
    """64 answers to these sums, the same in every process that draws them with the same seed."""
    return drawn(policy, sums_of_unlike_length(seed), torch.Generator().manual_seed(seed))


def as_drawn(mask: Tensor) -> Rows:
    """Four sums for each process, with all their answers: process 1 has three of the long ones."""
    return halves(mask, "as drawn")


def sorted_by_length(mask: Tensor) -> Rows:
    """The shorter half for process 0, as a loader deals that groups by length."""
    return halves(mask, "sorted by length")


def as_many_tokens(mask: Tensor) -> Rows:
    """As many answers of each length for both; of a length with an odd count one answer is left out."""
    first, second = [], []
    lengths = mask.sum(1)
    for length in lengths.unique():
        (rows,) = torch.nonzero(lengths == length, as_tuple=True)
        pairs = len(rows) // 2
        first.append(rows[:pairs])
        second.append(rows[pairs : 2 * pairs])
    return torch.cat(first), torch.cat(second)


def every_other(mask: Tensor) -> Rows:
    """Four answers to each sum for both, as a sampler deals that knows of no groups."""
    rows = torch.arange(len(mask))
    return rows[0::2], rows[1::2]


def the_same_rows(mask: Tensor) -> Rows:
    """The first 32 answers for both."""
    first, _ = as_drawn(mask)
    return first, first


def not_wrapped(model: Any) -> Any:
    """In place of DistributedDataParallel: the model itself, whose gradients nobody averages."""
    return model


def own_groups(answers: Answers, rows: Tensor) -> Answers:
    """Advantages as a process finds them that knows the rewards of its own rows only."""
    advantages = answers.advantages.clone()
    for prompt in set(answers.prompts):
        mine = [row for row in rows.tolist() if answers.prompts[row] == prompt]
        if mine:
            advantages[mine] = group_advantage(answers.rewards[mine], len(mine))
    return replace(answers, advantages=advantages)


def gradient(model: Any) -> Tensor:
    """What stands in `.grad`, end to end."""
    return torch.cat([weight.grad.flatten() for weight in model.parameters()]).clone()


def gradients(
    rank: int, world: int, cases: Mapping[str, Mapping[str, Any]], seed: int
) -> Iterator[dict[str, Any]]:
    """One gradient of this process for each case.

    A case has `deal` (mask -> rows of both), `loss_of`, and, where it is another, `wrap` in place of DDP; with
    `own_groups` a process knows the rewards of its own rows only.
    """
    for name, case in cases.items():
        policy = load("tiny", "cpu")
        answers = first_answers(policy, seed)
        rows = case["deal"](answers.mask)[rank]
        if case.get("own_groups"):
            answers = own_groups(answers, rows)
        part = answers.take(rows)
        model = case.get("wrap", DistributedDataParallel)(policy.model)
        # kept until the gradient is read: with the model goes what averages
        case["loss_of"](per_token_loss(model, part), part.mask).backward()
        yield {"case": name, "gradient": gradient(policy.model), "rows": set(rows.tolist())}
        del model


def one_process(seed: int, deal: Callable[[Tensor], Rows] = as_drawn) -> Tensor:
    """The gradient of one process that has all dealt rows, each token with the same weight."""
    policy = load("tiny", "cpu")
    answers = first_answers(policy, seed)
    answers = answers.take(torch.cat(deal(answers.mask)))
    per_token = per_token_loss(policy.model, answers)
    ((per_token * answers.mask).sum() / answers.mask.sum()).backward()
    return gradient(policy.model)


def two_micro_batches(seed: int, deal: Callable[[Tensor], Rows]) -> Tensor:
    """The gradient of one process that takes the rows of both as two micro-batches, each with a mean of its own."""
    policy = load("tiny", "cpu")
    answers = first_answers(policy, seed)
    for rows in deal(answers.mask):
        part = answers.take(rows)
        per_token = per_token_loss(policy.model, part)
        ((per_token * part.mask).sum() / part.mask.sum() / 2).backward()  # .grad adds up
    return gradient(policy.model)


def compared(cases: Mapping[str, Mapping[str, Any]], seed: int) -> list[dict[str, Any]]:
    """A row for each case: what the two processes have in common, and their gradient beside that of one process.

    The last row has no second process: its two micro-batches are what a pair with local means has.
    """
    (pair,) = processes(gradients, {"cases": {"cases": dict(cases), "seed": seed}}).values()
    both = [events_of(run, f"process {rank}") for rank, run in enumerate(pair)]
    alone = one_process(seed)
    table = []
    for first, second in zip(*both, strict=True):
        difference = first["gradient"] - second["gradient"]
        row: dict[str, Any] = {"fault": first["case"]}
        row["answers in common"] = len(first["rows"] & second["rows"])
        row["processes differ by"] = float(difference.norm() / alone.norm())
        table.append(row | _beside(first["gradient"], alone))
    one = {"fault": MICRO_BATCHES, "answers in common": "", "processes differ by": ""}
    table.append(one | _beside(two_micro_batches(seed, sorted_by_length), alone))
    return table


def _beside(found: Tensor, alone: Tensor) -> dict[str, float]:
    """How far one gradient is turned from another, how long it is beside it, and the difference by its norm."""
    cosine = float(torch.cosine_similarity(found.double(), alone.double(), dim=0))
    degrees = math.degrees(math.acos(min(cosine, 1.0)))
    length = float(found.norm() / alone.norm())
    difference = float((found - alone).norm() / alone.norm())
    turned = {"turned by, degrees": round(degrees, 1), "length": round(length, 2)}
    return turned | {"difference": difference}


def rows_of_gradients(pairs: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """A row for each way to deal: answers, tokens and weights of both processes, and each arm's difference."""
    table: dict[str, dict[str, Any]] = {}
    for arm, (first, second) in pairs.items():
        for one, other in zip(first.events, second.events, strict=False):
            tokens = (one["tokens"], other["tokens"])
            weights = [sum(tokens) / (2 * count) for count in tokens]
            row = table.setdefault(one["dealt"], {"dealt": one["dealt"]})
            row["answers"] = f"{one['answers']}, {other['answers']}"
            row["tokens"] = f"{tokens[0]}, {tokens[1]}"
            row["weight"] = f"{weights[0]:.2f}, {weights[1]:.2f}"
            row[f"difference: {arm}"] = one["difference"]
    return list(table.values())


def answers_side_by_side(
    runs: Sequence[Run], left: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A row a process: the first prompt of its first round, its eight answers, and its loss of that round."""
    table = []
    for rank, (run, one) in enumerate(zip(runs, left, strict=True)):
        row: dict[str, Any] = {"process": rank, "first prompt": one["prompts"][0]}
        row["its eight answers"] = " ".join(one["texts"][:GROUP])
        table.append(row | {"loss of round 1": f"{run['loss'][0]:.7f}"})
    return table
