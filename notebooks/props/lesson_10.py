"""What lesson 10 uses and does not teach: answers and their loss, processes that meet over gloo, their events.

How rows are dealt, how a loss is divided and the loop that trains stand in the notebook.
"""

from __future__ import annotations

import datetime
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit import sandbox
from labkit.events import Exam, Run, Step
from labkit.grpo import exam, load, rollout, task
from labkit.grpo.advantage import group_advantage
from labkit.grpo.policy import Policy, token_logprobs

GROUP, LONGEST = 8, 4  # answers to a prompt; tokens of an answer, its end included
ROUNDS, RATE = 16, 1.5e-4
LIMIT = 60.0  # seconds of a pair: a reader's function that does not come back ends there

# (rank, world, seed) -> prompts, the generator that draws their answers
Deal = Callable[[int, int, int], tuple[list[str], torch.Generator]]


# ------------------------------------------------------------------------------------------------ answers and their loss


@dataclass(frozen=True)
class Answers:
    """Answers to some prompts, eight to each, scored; B rows."""

    ids: Tensor  # [B, T0 + T] prompt and answer
    attention: Tensor  # [B, T0 + T] 1 = counts
    mask: Tensor  # [B, T] 1 = a token that counts in the loss
    advantages: Tensor  # [B]
    rewards: Tensor  # [B]
    prompts: list[str]  # B
    texts: list[str]  # B

    def take(self, rows: Tensor) -> Answers:
        """Some of the rows."""
        places = rows.tolist()
        return Answers(
            self.ids[rows],
            self.attention[rows],
            self.mask[rows],
            self.advantages[rows],
            self.rewards[rows],
            [self.prompts[row] for row in places],
            [self.texts[row] for row in places],
        )


def drawn(policy: Policy, prompts: list[str], generator: torch.Generator) -> Answers:
    """Eight answers to each prompt, their rewards, and their advantages in the group."""
    out = rollout.generate(
        policy, prompts, num_samples=GROUP, max_new_tokens=LONGEST, generator=generator
    )
    asked = [prompt for prompt in prompts for _ in range(GROUP)]
    rewards = torch.tensor(task.rewards(asked, out.texts))
    # as wide as the longest answer can be, so that two processes' answers fit together
    missing = LONGEST - out.tokens.shape[1]
    wide = [
        torch.nn.functional.pad(each, (0, missing))
        for each in (out.ids, out.attention_mask, out.mask)
    ]
    ids, attention, mask = wide
    advantages = group_advantage(rewards, GROUP)
    return Answers(ids, attention, mask, advantages, rewards, asked, out.texts)


def together(parts: Sequence[Answers]) -> Answers:
    """All rows of several processes, one process after the other."""
    tensors = []
    for name in ("ids", "attention", "mask", "advantages", "rewards"):
        tensors.append(torch.cat([getattr(part, name) for part in parts]))
    prompts = [prompt for part in parts for prompt in part.prompts]
    texts = [text for part in parts for text in part.texts]
    ids, attention, mask, advantages, rewards = tensors
    return Answers(ids, attention, mask, advantages, rewards, prompts, texts)


def per_token_loss(model: Any, answers: Answers) -> Tensor:
    """[B, T]: GRPO's loss of each token where the ratio is 1, as in the first update of a round, without a KL."""
    length = answers.mask.shape[1]
    logp, _ = token_logprobs(model, answers.ids, answers.attention, length)
    return -answers.advantages[:, None] * logp


def total(value: Any) -> Tensor:
    """The sum of a tensor over all processes, without a graph."""
    summed = torch.as_tensor(value).detach().clone()
    if dist.is_initialized():
        dist.all_reduce(summed)
    return summed


# ------------------------------------------------------------------------------------------------------- real processes


def processes(
    work: Callable[..., Iterator[Any]], jobs: Mapping[str, Mapping[str, Any]], world: int = 2
) -> dict[str, list[Run]]:
    """Run `work(rank, world, **jobs[name])` in `world` real processes for each name: name -> their runs, by rank.

    The processes are forked by labkit's sandbox and given rank and world as arguments; they meet in a file of a folder
    of their own, and talk over gloo and the loopback interface. One that dies is a run like any other.
    """
    with tempfile.TemporaryDirectory(prefix="lesson-10-") as folder:
        every = {}
        for number, (name, settings) in enumerate(jobs.items()):
            meeting = f"{folder}/{number}"
            for rank in range(world):
                place = {"rank": rank, "world": world, "meeting": meeting}
                every[name, rank] = place | {"settings": dict(settings)}
        # a pair at a time: the jobs are in order, so no process waits for one that cannot start
        done = sandbox.run_all(_joined, every, at_once=world, work=work, timeout=LIMIT)
    return {name: [done[name, rank] for rank in range(world)] for name in jobs}


def _joined(
    work: Callable[..., Iterator[Any]],
    *,
    rank: int,
    world: int,
    meeting: str,
    settings: dict[str, Any],
) -> Iterator[Any]:
    torch.set_num_threads(1)
    # nothing outside this machine can reach the pair
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    # what torchrun tells a process; accelerate reads it, and asks for an address that is not used
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    os.environ.update(LOCAL_WORLD_SIZE=str(world), OMP_NUM_THREADS="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    if world > 1:
        patience = datetime.timedelta(seconds=LIMIT)
        dist.init_process_group(
            "gloo", f"file://{meeting}", rank=rank, world_size=world, timeout=patience
        )
    yield from work(rank, world, **settings)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()  # without it a process may abort as it ends


class Pair:
    """A pair to be watched: `labkit.watch` draws process 0, process 1 runs beside it.

    with Pair(work, **settings) as pair: labkit.watch(pair.process_0, ...)
    """

    def __init__(self, work: Callable[..., Iterator[Any]], **settings: Any) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="lesson-10-")
        meeting = f"{self.folder.name}/meeting"
        joined = functools.partial(_joined, work, world=2, meeting=meeting, settings=settings)
        self.process_0 = functools.partial(joined, rank=0)
        self.other = functools.partial(joined, rank=1)

    def __enter__(self) -> Pair:
        self.started = sandbox.start(self.other, timeout=LIMIT)
        return self

    def process_1(self) -> Run:
        """The run of process 1, once it has ended."""
        return self.started.result()

    def __exit__(self, *_: Any) -> None:
        self.started.stop()
        self.folder.cleanup()


# ------------------------------------------------------------------------------------------------------------ the runs


def followed(
    rank: int,
    world: int,
    train: Callable[..., Iterator[tuple[Any, dict[str, Any]]]],
    deal: Deal,
    loss_of: Callable[..., Tensor],
    seed: int,
    every: int = 4,
) -> Iterator[Any]:
    """A page's `train` as events: a `Step` a round, an `Exam` of process 0 after every few; last, what stands at the end.

    A step has loss and counted tokens of each process, as `loss_0`, `loss_1`, `tokens_0`, `tokens_1`.
    """
    paper = exam.paper(load("tiny", "cpu").tokenizer, "add")
    first: dict[str, Any] = {}
    for number, (model, log) in enumerate(train(deal, loss_of, rank, world, seed)):
        if log:
            extra: dict[str, float] = {}
            for name in ("loss", "tokens"):
                for process, value in enumerate(_of_all(log[name], world)):
                    extra[f"{name}_{process}"] = value
            yield Step(number, round=number, loss=log["loss"], extra=extra)
            first = first or {name: log[name] for name in ("prompts", "texts")}
        if rank == 0 and number % every == 0:
            yield Exam(number, {"add": paper.mean(model)})
    yield first | {"parameters": flat(model)}


def log_of(loss: Tensor, answers: Answers) -> dict[str, Any]:
    """What a process tells of its round."""
    log = {"loss": float(loss), "tokens": float(answers.mask.sum())}
    return log | {"prompts": answers.prompts[::GROUP], "texts": answers.texts}


def _of_all(value: float, world: int) -> list[float]:
    if world == 1:
        return [value]
    every = [torch.zeros(1, dtype=torch.float64) for _ in range(world)]
    dist.all_gather(every, torch.tensor([value], dtype=torch.float64))
    return [float(one) for one in every]


def flat(model: Any) -> Tensor:
    """All parameters, end to end, as a copy."""
    return torch.cat([weight.detach().flatten() for weight in model.parameters()]).clone()


def at_end(run: Run) -> dict[str, Any]:
    """What a process left: prompts and answers of its first round, and its parameters; empty where it died."""
    left = [event for event in run.events if isinstance(event, dict)]
    return left[-1] if left and run.outcome else {}
