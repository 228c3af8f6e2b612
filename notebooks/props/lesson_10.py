"""What lesson 10 uses and does not teach: its batch, ways to deal it out, two real processes, a training run, and the
gradients of its diagnosis.

The loss, the update of a process and the micro-batches stand in the notebook and come in as arguments.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labkit import sandbox
from labkit.grpo import exam, loss, rollout, task
from labkit.grpo.advantage import group_advantage
from labkit.checks.report import Report
from labkit.events import Exam, Run
from labkit.grpo.policy import Policy, load, token_logprobs

from .children import events_of

TASKS = ("max", "add")
PROMPTS, GROUP = 4, 8  # prompts of each task; answers to each prompt
CAME = 3  # rewards that came for `max`, of 32, where its judge is slow
ROUNDS, UPDATES, RATE = 6, 2, 1e-4  # of a training run
EXAM_EVERY = 2  # rounds

Halves = tuple[Tensor, Tensor]  # the rows of process 0, and those of process 1


@dataclass(frozen=True)
class Batch:
    """64 answers, the same in every process that draws them with the same seed. Rows 0 to 31 are those to `max`."""

    out: rollout.Completions
    mask: Tensor  # [64, T], 1 = a token that counts in the loss
    advantages: Tensor  # [64]
    old: Tensor  # [64, T] nats: the log-probabilities before the first update
    prompts: list[str]  # 64
    rewards: Tensor  # [64]


class Draws:
    """Batches of one seed, one after the other."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self.policy, self.rng = policy, random.Random(seed)
        self.dice = torch.Generator(policy.device).manual_seed(seed)

    def batch(self) -> Batch:
        policy = self.policy
        asked = task.get("max").sample(PROMPTS, self.rng) + self._sums()
        out = rollout.generate(
            policy, asked, num_samples=GROUP, max_new_tokens=4, generator=self.dice
        )
        prompts = [prompt for prompt in asked for _ in range(GROUP)]
        rewards = torch.tensor(task.rewards(prompts, out.texts), device=policy.device)
        with torch.no_grad():
            old = _logp(policy.model, out)
        return Batch(out, out.mask, group_advantage(rewards, GROUP), old, prompts, rewards)

    def _sums(self) -> list[str]:
        """Prompts of `add`: for two of the four the sum has three digits, so that answers are of unlike length."""
        few: dict[bool, list[str]] = {False: [], True: []}
        while any(len(prompts) < PROMPTS // 2 for prompts in few.values()):
            (prompt,) = task.get("add").sample(1, self.rng)
            few[len(task.get("add").answer(prompt)) == 3].append(prompt)
        return few[False][: PROMPTS // 2] + few[True][: PROMPTS // 2]


def start(seed: int, policy: str) -> tuple[Any, Batch]:
    """The policy's model as it came, and its first batch. On the CPU, where gloo's processes are."""
    model, batch = _as_it_came(seed, policy)
    return copy.deepcopy(model), batch


@functools.cache
def _as_it_came(seed: int, policy: str) -> tuple[Any, Batch]:
    """Loaded and drawn once for all cases of a process."""
    torch.set_num_threads(1)
    loaded = load(policy, "cpu")
    return loaded.model, Draws(loaded, seed).batch()


def _logp(model: Any, out: rollout.Completions) -> Tensor:
    return token_logprobs(model, out.ids, out.attention_mask, out.tokens.shape[1])[0]


def per_token_loss(model: Any, batch: Batch, rows: Tensor) -> Tensor:
    """GRPO's loss of each token of these rows, [n, T]: labkit's, clipped at 0.2, without a KL."""
    logp = _logp(model, batch.out.take(rows))
    return loss.grpo(logp, batch.old[rows], batch.advantages[rows]).loss


def flat(model: Any) -> Tensor:
    """All parameters, end to end, as a copy."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()


def of_each_length(batch: Batch) -> list[dict[str, Any]]:
    """For each length: how many answers have it, and the first of them."""
    lengths = batch.mask.sum(1)
    rows = []
    for length in lengths.unique():
        (at,) = (lengths == length).nonzero(as_tuple=True)
        first = int(at[0])
        rows.append(
            {
                "tokens": int(length),
                "answers": len(at),
                "the first: prompt": batch.prompts[first],
                "answer": batch.out.texts[first],
                "advantage": float(batch.advantages[first]),
            }
        )
    return rows


# ---- ways to deal 64 rows to two processes


def shuffled(batch: Batch) -> Halves:
    """Four prompts for each process, whichever the shuffle gives, with all their answers."""
    prompts = torch.randperm(2 * PROMPTS, generator=torch.Generator().manual_seed(0))
    first, second = prompts.chunk(2)
    answers = torch.arange(GROUP)
    return tuple((GROUP * half[:, None] + answers).flatten() for half in (first, second))


def sorted_by_length(batch: Batch) -> Halves:
    """The 32 shorter answers for process 0."""
    return tuple(batch.mask.sum(1).argsort(stable=True).chunk(2))


def one_task_each(batch: Batch) -> Halves:
    """The answers to `max` for process 0, those to `add` for process 1."""
    return tuple(torch.arange(len(batch.mask)).chunk(2))


def twins(batch: Batch) -> Halves:
    """As many answers of each length for both processes; of a length with an odd count one answer is left out."""
    first, second = [], []
    lengths = batch.mask.sum(1)
    for length in lengths.unique():
        rows = (lengths == length).nonzero().flatten()
        pairs = len(rows) // 2
        first.append(rows[:pairs])
        second.append(rows[pairs : 2 * pairs])
    return torch.cat(first), torch.cat(second)


def every_other(batch: Batch) -> Halves:
    """Four answers to each prompt for both, as a sampler does that deals out rows and knows of no groups."""
    rows = torch.arange(len(batch.mask))
    return rows[0::2], rows[1::2]


def same_rows(batch: Batch) -> Halves:
    """The 32 longer answers for both."""
    longer = sorted_by_length(batch)[1]
    return longer, longer


def not_wrapped(model: Any) -> Any:
    """In place of DistributedDataParallel: the model itself, whose gradients nobody averages."""
    return model


def few_came(batch: Batch) -> Batch:
    """The first three of the 32 answers to `max` stay in the loss, with the advantages of their full groups."""
    mask = batch.mask.clone()
    mask[CAME : len(mask) // 2] = 0
    return replace(batch, mask=mask)


def own_groups(batch: Batch, rows: Tensor) -> Batch:
    """Advantages as a process finds them that knows the rewards of its own rows only."""
    advantages = batch.advantages.clone()
    for prompt in {batch.prompts[row] for row in rows.tolist()}:
        mine = [row for row in rows.tolist() if batch.prompts[row] == prompt]
        advantages[mine] = group_advantage(batch.rewards[mine], len(mine)) if len(mine) > 1 else 0.0
    return replace(batch, advantages=advantages)


# ---- two real processes


Work = Callable[
    ..., Iterator[Tensor]
]  # (model, batch, rows, loss_of, wrap) -> the parameters after each update
# `deal` and `loss_of`; `few`, whether few rewards came; `wrap` in place of DDP; `own_groups`, whether a process knows
# the rewards of its own rows only; `updates`, how many of `work`'s updates are made
Case = Mapping[str, Any]


def one_process(
    work: Work,
    seed: int,
    policy: str,
    loss_of: Any,
    deal: Callable[[Batch], Halves] = one_task_each,
    few: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """The parameters before the first update, and what `work` yields where one process has both halves of the rows."""
    model, batch = start(seed, policy)
    before = flat(model)
    batch = few_came(batch) if few else batch
    return before, list(work(model, batch, torch.cat(deal(batch)), loss_of, not_wrapped))


def _join(rank: int, meeting: str) -> None:
    # what torchrun tells a process; accelerate reads it
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }  # asked for, and not used: the group is there
    os.environ["OMP_NUM_THREADS"] = "1"  # else accelerate sets it, and says so
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=2)


def _process(
    rank: int, meeting: str, work: Work, seed: int, policy: str, cases: Mapping[Any, Case]
) -> Iterator[dict[str, Any]]:
    _join(rank, meeting)
    for name, case in cases.items():
        model, batch = start(seed, policy)  # the same 64 answers in both processes
        batch = few_came(batch) if case.get("few") else batch
        rows = case["deal"](batch)[rank]
        batch = own_groups(batch, rows) if case.get("own_groups") else batch
        wrap = case.get("wrap", torch.nn.parallel.DistributedDataParallel)
        every = work(model, batch, rows, case["loss_of"], wrap)
        for parameters in itertools.islice(every, case.get("updates")):
            yield {"case": name, "parameters": parameters}
        every.close()  # frees DistributedDataParallel before its process group goes
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()  # without it one of the two may abort as it ends


def two_processes(
    work: Work, seed: int, policy: str, cases: Mapping[Any, Case]
) -> dict[Any, list[list[Tensor]]]:
    """Run `work` for each case in two real processes that have joined a gloo process group.

    They meet in a file of a folder of their own and talk over the loopback interface.
    Returns: case -> what process 0 yielded, what process 1 yielded. Raises: RuntimeError when a process fails.
    """
    loopback = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    with tempfile.TemporaryDirectory() as folder:
        ranks = {rank: {"rank": rank, "meeting": f"{folder}/meeting"} for rank in (0, 1)}
        common = {"work": work, "seed": seed, "policy": policy, "cases": cases}
        runs = sandbox.run_all(_process, ranks, at_once=2, timeout=120, env=loopback, **common)
    events = {rank: events_of(run, f"process {rank}") for rank, run in runs.items()}
    return {
        name: [[e["parameters"] for e in events[rank] if e["case"] == name] for rank in (0, 1)]
        for name in cases
    }


def apart(pair: list[list[Tensor]]) -> float:
    """The largest difference of a parameter between the two processes, after any update."""
    return max(float((a - b).abs().max()) for a, b in zip(*pair, strict=True))


# ---- a training run


def learn(
    backward: Callable[..., None],
    seed: int,
    own_tokens: bool,
    *,
    slow_judge: bool = False,
    policy: str = "tiny",
    device: str = "auto",
) -> Iterator[Exam]:
    """Six rounds of two updates on `max` and `add`, and the exam of both after every second round.

    backward    (model, batch, halves, own_tokens): adds the gradients of both halves to `.grad`
    slow_judge  the halves are one task each, and few rewards come for `max`; otherwise they are sorted by length
    """
    torch.set_num_threads(1)
    loaded = load(policy, device)
    model, draws = loaded.model, Draws(loaded, seed)
    papers = {name: exam.paper(loaded.tokenizer, name) for name in TASKS}
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    yield Exam(0, {name: paper.mean(model) for name, paper in papers.items()})
    for round_ in range(1, ROUNDS + 1):
        batch = draws.batch()
        if slow_judge:
            batch = few_came(batch)
        halves = one_task_each(batch) if slow_judge else sorted_by_length(batch)
        for _ in range(UPDATES):
            optimizer.zero_grad()
            backward(model, batch, halves, own_tokens)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
        if round_ % EXAM_EVERY == 0:
            yield Exam(round_, {name: paper.mean(model) for name, paper in papers.items()})


def ends(runs: Mapping[int, Run], family: str) -> list[float]:
    """The exam after the last round, for each seed."""
    return [run.exam(family)[-1] for run in runs.values()]


def differences(some: Mapping[int, Run], others: Mapping[int, Run], family: str) -> list[float]:
    """Seed by seed: the last exam of `some` less that of `others`."""
    return [a - b for a, b in zip(ends(some, family), ends(others, family), strict=True)]


# ---- the picture, and the diagnosis


def off(some: Tensor, alone: Tensor, start_: Tensor) -> float:
    """How far `some` is from `alone`, as a share of the way that `alone` has gone from the start."""
    return float((some - alone).norm() / (alone - start_).norm())


def agreement(
    pairs: Mapping[str, list[list[Tensor]]],
    one: Sequence[Tensor],
    before: Tensor,
    reordered: Tensor,
) -> list[dict[str, Any]]:
    """A row for each pair: how far its processes are apart, and how far from one process; and the rounding's row."""
    rows = [
        {
            "dealt": name,
            "apart": apart(pair),
            "off from one process": off(pair[0][-1], one[-1], before),
        }
        for name, pair in pairs.items()
    ]
    return [
        *rows,
        {
            "dealt": "one process, rows in another order",
            "apart": "",
            "off from one process": off(reordered, one[-1], before),
        },
    ]


def table_of_deals(
    deals: Mapping[str, Mapping[str, Any]],
    pairs: Mapping[tuple[str, str], list[list[Tensor]]],
    alone: Callable[..., tuple[Tensor, list[Tensor]]],
    two_micro_batches: Callable[..., None],
    seed: int,
    policy: str,
) -> list[dict[str, Any]]:
    """A row for each way to deal: counted tokens, their weight with the bug, and how far off each run is.

    pairs   ("bug" or "fix", deal) -> what `two_processes` returned for it
    alone   `one_process` but for the deal
    """
    rows = []
    for name, deal in deals.items():
        before, every = alone(**deal)
        distances = {}
        for arm in ("bug", "fix"):
            model, batch = start(seed, policy)
            batch = few_came(batch) if deal.get("few") else batch
            halves = deal["deal"](batch)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for _ in every:
                optimizer.zero_grad()
                two_micro_batches(model, batch, halves, own_tokens=arm == "bug")
                optimizer.step()
            distances[arm] = off(pairs[arm, name][0][-1], every[-1], before)
            distances[f"{arm}, micro-batches"] = off(flat(model), every[-1], before)
        tokens = [int(batch.mask[half].sum()) for half in halves]
        rows.append(
            {
                "dealt": name,
                "tokens": f"{tokens[0]}, {tokens[1]}",
                "weight": ", ".join(f"{sum(tokens) / (2 * own):.2f}" for own in tokens),
                **distances,
            }
        )
    return rows


def compared(
    cases: Mapping[str, Mapping[str, Any]],
    pairs: Mapping[str, list[list[Tensor]]],
    one: Tensor,
    before: Tensor,
    batch: Batch,
) -> list[dict[str, Any]]:
    """A row for each pair: the first update of process 0 beside that of one process, `one`."""
    rows = []
    alone = one - before
    for name, case in cases.items():
        first, second = (pairs[name][rank][0] for rank in (0, 1))
        dealt = [set(half.tolist()) for half in case["deal"](batch)]
        went = first - before
        cosine = float(torch.cosine_similarity(went.double(), alone.double(), dim=0))
        rows.append(
            {
                "pair": name,
                "rows in common": len(dealt[0] & dealt[1]),
                "apart": float((first - second).abs().max()),
                "turned by": round(math.degrees(math.acos(min(cosine, 1.0))), 1),
                "length": round(float(went.norm() / alone.norm()), 2),
            }
        )
    return rows


def summary(arms: Mapping[str, Mapping[int, Run]]) -> list[dict[str, Any]]:
    """A row for each arm: the exam at the end, seed by seed. The first row is the policy as it came."""
    (came, *_) = next(iter(arms.values())).values()
    return [
        {"arm": "as it came"} | {f"exam of {name}": f"{came.exam(name)[0]:.3f}" for name in TASKS}
    ] + [
        {"arm": arm}
        | {f"exam of {name}": "  ".join(f"{e:.3f}" for e in ends(runs, name)) for name in TASKS}
        for arm, runs in arms.items()
    ]


def draw_deals(
    pairs: Mapping[tuple[str, str], list[list[Tensor]]],
    deals: Mapping[str, Mapping[str, Any]],
    alone: Callable[..., tuple[Tensor, list[Tensor]]],
    rounding: float,
    title: str,
) -> None:
    """How far process 0 is from one process after the last update: a row for each deal, a dot for bug and for fix."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.6, 2.4), layout="constrained")
    for at, (name, deal) in enumerate(deals.items()):
        before, every = alone(**deal)
        for arm, colour, up in (("bug", "#d55e00", -0.2), ("fix", "#0072b2", 0.2)):
            distance = max(off(pairs[arm, name][0][-1], every[-1], before), 1e-8)
            axes.plot(distance, at + up, "o", ms=7, color=colour)
            axes.annotate(arm, (distance, at + up), (7, 0), textcoords="offset points",
                          color=colour, fontsize=8, va="center")  # fmt: skip
    axes.axvline(rounding, color="0.6", lw=1)
    axes.annotate("one process, rows in another order", (rounding, -0.72), (5, 0),
                  textcoords="offset points", color="0.4", fontsize=7, va="center")  # fmt: skip
    axes.set(xscale="log", xlim=(1e-7, 2), ylim=(len(deals) - 0.5, -1), yticks=range(len(deals)))
    axes.set_yticklabels(list(deals), fontsize=9)
    axes.set_xlabel("off from one process after four updates, as a share of the way", fontsize=8)
    axes.set_title(title, fontsize=9.5, loc="left", weight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    plt.show()


# ---- the diagnosis of exercise B


def _gradient(
    seed: int,
    policy: str,
    rows: Tensor,
    divide: Callable[[Tensor, Tensor], Tensor],
    seen: Callable[[Batch, Tensor], Batch] = lambda batch, rows: batch,
) -> Tensor:
    model, batch = start(seed, policy)
    loss_ = divide(per_token_loss(model, seen(batch, rows), rows), batch.mask[rows])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss_, list(model.parameters()))])


def causes(seed: int, policy: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, arguments of the diagnosis): gradients of two processes before DDP's mean, computed in one process."""
    _, batch = start(seed, policy)
    halves = sorted_by_length(batch)
    counts = [int(batch.mask[rows].sum()) for rows in halves]
    own = lambda per_token, mask: (per_token * mask).sum() / mask.sum()
    of_all = lambda per_token, mask: 2 * (per_token * mask).sum() / sum(counts)
    alone = _gradient(seed, policy, torch.arange(len(batch.mask)), own)
    local = [_gradient(seed, policy, rows, own) for rows in halves]
    right = [_gradient(seed, policy, rows, of_all) for rows in halves]
    split = every_other(batch)
    groups = [_gradient(seed, policy, rows, of_all, own_groups) for rows in split]
    of_split = [int(batch.mask[rows].sum()) for rows in split]
    for name, gradients, tokens in (
        ("own tokens", local, counts),
        ("advantages from its own answers", groups, of_split),
        ("a constant", [gradient / 4 for gradient in right], counts),
        ("own tokens and a constant", [gradient / 4 for gradient in local], counts),
        ("the fix", right, counts),
    ):
        yield name, {"local": gradients, "tokens": tokens, "alone": alone}


def tells_own_tokens(own_tokens: Callable[..., Any]) -> Report:
    """The check of the diagnosis: True for own tokens and for nothing else, on two seeds that no run has used."""
    claim = "True for own tokens, False for the other causes"
    for seed in (1001, 1002):
        for name, given in causes(seed, "tiny"):
            said = own_tokens(**given)
            if not isinstance(said, bool) or said != (name == "own tokens"):
                return Report(
                    "tells_own_tokens", claim, False, {}, f"For '{name}' it returned {said!r}."
                )
    return Report("tells_own_tokens", claim, True)
