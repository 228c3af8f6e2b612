"""GRPO as a generator: one `Step` per optimizer update, everything that can go wrong passed in as an argument.

    for step in train(policy="tiny", task="add", seed=0): ...

A round samples completions, scores them and fixes the old log-probabilities; `mu` inner updates then reuse
them. The KL estimator, the accumulation, the sampler and the guard are arguments, so that a lesson swaps one of
them for a bug and nothing else. This file draws nothing, saves nothing, and catches nothing.
"""

from __future__ import annotations

import copy
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch

from labkit.events import NAN, Exam, Step

from . import exam as exams
from . import grads, loss, rollout
from . import task as tasks
from .advantage import masked_advantage, reward_std, zero_std_fraction
from .grads import Snapshot, health
from .kl import AdaptiveBeta, k2
from .policy import Policy, load, token_logprobs_of_groups

KL = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (logp, ref_logp) [B, T] -> per-token KL [B, T]
Reward = Callable[[Sequence[str], Sequence[str]], Sequence[float | None]]  # (prompts, completions) -> rewards
Probe = Callable[["Batch", torch.Tensor, torch.Tensor], dict[str, float]]  # (part, logp, logits) -> numbers
# (logp [B, T], part) -> per-token loss
PerToken = Callable[[torch.Tensor, "Batch"], loss.PolicyLoss]
Parts = list[torch.Tensor]  # row indices of each micro-batch
Settings = dict[str, Any]
# Parameters. A second thread costs a policy below that more than it brings: benchmarks/bench_train.py
SMALL = 1_000_000


@dataclass(frozen=True)
class Batch:
    """Completions of one round, or some rows of them, scored. B completions of at most T tokens."""

    out: rollout.Completions
    objective: list[str]  # B, the task family of each completion
    rewards: torch.Tensor  # [B], NaN where none came
    advantages: torch.Tensor  # [B]
    counts: torch.Tensor  # [B] bool: the completion is part of the loss; see `advantage.masked_advantage`
    old_logp: torch.Tensor  # [B, T] nats
    ref_logp: torch.Tensor  # [B, T] nats

    @property
    def mask(self) -> torch.Tensor:
        return self.out.mask * self.counts[:, None]  # [B, T], 1 = counts

    @property
    def lengths(self) -> torch.Tensor:
        return self.out.mask.sum(1).float()  # [B], tokens

    def of(self, objective: str) -> torch.Tensor:
        """[B] bool: the completions of one task family."""
        return torch.tensor([o == objective for o in self.objective], device=self.rewards.device)

    def take(self, rows: torch.Tensor) -> Batch:
        """The rows of one micro-batch."""
        return Batch(
            out=self.out.take(rows),
            objective=[self.objective[i] for i in rows.tolist()],
            rewards=self.rewards[rows],
            advantages=self.advantages[rows],
            counts=self.counts[rows],
            old_logp=self.old_logp[rows],
            ref_logp=self.ref_logp[rows],
        )


@dataclass
class Tally:
    """Sums over the counted tokens of one inner update, filled as its micro-batches go by."""

    tokens: float  # counted tokens of the whole batch
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    extra: dict[str, float] = field(default_factory=dict)  # what a probe measured
    ratio_max: float = 0.0

    @torch.no_grad()
    def count(
        self, part: Batch, policy_loss: loss.PolicyLoss, kl: torch.Tensor, logits: torch.Tensor, total: torch.Tensor
    ) -> None:
        counted = part.mask.bool()
        logp = logits.log_softmax(-1)  # [B, T, V]
        self.ratio_max = max(self.ratio_max, float(policy_loss.ratio[counted].max()))
        self.sums["loss"] += float(total)
        self.sums["kl"] += float(kl[counted].sum())
        self.sums["entropy"] += float(-(logp.exp() * logp).sum(-1)[counted].sum())
        self.sums["clipped"] += float(policy_loss.clipped[counted].sum())
        if len(set(part.objective)) == 1:
            self.sums[f"kl/{part.objective[0]}"] = float(kl[counted].mean())

    def mean(self, name: str) -> float:
        return self.sums[name] / self.tokens if self.tokens else NAN


def train(
    policy: str | Policy = "tiny",
    task: str | Sequence[str] = "add",
    *,
    seed: int = 0,
    device: str = "auto",
    rounds: int = 12,
    prompts: int | Sequence[str] = 8,
    num_samples: int = 8,
    mu: int = 4,
    micro_batches: int = 1,
    optimizer: str = "adamw",
    lr: float = 5e-5,
    beta: float | AdaptiveBeta = 0.04,
    kl: KL = k2,
    clip: float = 0.2,
    dual_clip: float | None = None,
    log_ratio_max: float | None = 5.0,
    logit_max: float | None = 100.0,
    advantage_max: float | None = 10.0,
    max_new_tokens: int = 4,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    generate: Callable[..., rollout.Completions] = rollout.generate,
    reward: Reward = tasks.rewards,
    inner_update: Callable[..., grads.Update] = grads.inner_update,
    update: grads.Updater | None = None,
    policy_loss: PerToken | None = None,
    probe: Probe | None = None,
    reference: torch.nn.Module | None = None,
    check: str = "restore",
    exam: bool = False,
) -> Iterator[Step | Exam]:
    """Train with GRPO and yield a `Step` after every optimizer update.

    The defaults learn, and survive: on the tiny policy twelve rounds of `add` lift the chance of a right answer by 0.22
    or more on each of seeds 0 to 19 (docs/decisions/002-a-policy-that-learns.md).

    policy         a name for `labkit.policy.load`, or a loaded `Policy`, which is then trained in place
    task           a family of `labkit.task`, or several: then each family is one micro-batch
    prompts        how many to draw per round and family; or a list of prompts, used every round
    num_samples    completions per prompt: the group
    mu             inner updates per round
    micro_batches  split one family's batch this many times; the gradients must add up to the same
    optimizer      "adamw" or "sgd", with learning rate `lr`
    beta           weight of the per-token KL `kl(logp, ref_logp)`; an `AdaptiveBeta` is updated after every step
    clip           of the ratio; `dual_clip` bounds it for negative advantages too
    log_ratio_max, logit_max, advantage_max   clamps of the prevent layer; None switches one off
    generate       the sampler: called as `labkit.rollout.generate` is
    reward         the judge: (prompts, completions) -> a reward for each; None or NaN where none came, and such a
                   completion is left out of its group and of the loss
    inner_update   losses of the micro-batches -> one optimizer update: see `labkit.grads.inner_update`
    update         gradients -> step; default `grads.guard()`: clip to 0.3, skip above 10
    policy_loss    another per-token loss, of the log-probs [B, T] and the micro-batch, a `Batch`: for example one that
                   calls `loss.gspo`; then `clip` and its like are yours to apply. Default `loss.grpo`
    probe          a measurement of your own: called with each micro-batch, its log-probs [B, T] and logits
                   [B, T, V], all detached; the numbers it returns go to `Step.extra`, the last micro-batch's win
    reference      the model that `kl` compares with, on the policy's device; None: a copy of the policy as it came
    check          after each round, "restore" the last healthy parameters if any is not finite; or "off"
    exam           yield an `Exam` too, before the first round and after every round: see `labkit.exam`

    A policy below a million parameters has one CPU thread; that holds for the whole process.

    ValueError names a setting that cannot be. Whatever the policy raises while sampling passes through.
    """
    families = [task] if isinstance(task, str) else list(task)
    if not families:
        raise ValueError(f"task: got an empty list; expected one or more of {', '.join(tasks.TASKS)}")
    rollout.check_settings(rounds=rounds, mu=mu, micro_batches=micro_batches, lr=lr, clip=clip)
    if check not in ("restore", "off"):
        raise ValueError(f"check {check!r}: expected 'restore' or 'off'")
    policy = policy if isinstance(policy, Policy) else load(policy, device)
    model, update = policy.model, update or grads.guard()
    if sum(p.numel() for p in model.parameters()) < SMALL:
        torch.set_num_threads(1)
    rng, generator = random.Random(seed), torch.Generator(policy.device).manual_seed(seed)
    if reference is None:
        reference = copy.deepcopy(model).requires_grad_(False)  # the policy as it came
    healthy = Snapshot(model) if check == "restore" else None
    opt = _optimizer(optimizer, model, lr)
    sampling = {"num_samples": num_samples, "max_new_tokens": max_new_tokens, "top_k": top_k, "top_p": top_p}
    clipping: Settings = {"clip": clip, "log_ratio_max": log_ratio_max, "dual_clip": dual_clip}
    per_token = policy_loss or (lambda logp, part: loss.grpo(logp, part.old_logp, part.advantages, **clipping))
    scaling: Settings = {"temperature": temperature, "logit_max": logit_max}

    def loss_of(part: Batch, tally: Tally) -> torch.Tensor:
        """A micro-batch's share of the whole batch's loss: a scalar. What a dashboard shows of it goes to `tally`."""
        rows = part.out.ids, part.out.attention_mask, part.mask.shape[1]
        logp, logits = token_logprobs_of_groups(model, *rows, **scaling)
        policy_part, kl_part = per_token(logp, part), kl(logp, part.ref_logp)  # [B, T]
        weight = beta.value if isinstance(beta, AdaptiveBeta) else beta
        total = loss.token_mean(policy_part.loss + weight * kl_part, part.mask, tally.tokens)
        tally.count(part, policy_part, kl_part, logits, total)
        if probe is not None:
            tally.extra.update(probe(part, logp.detach(), logits.detach()))
        return total

    number, process = 0, psutil.Process()
    papers = {name: exams.paper(policy.tokenizer, name) for name in families} if exam else {}
    if exam:
        yield Exam(0, {name: paper.mean(model) for name, paper in papers.items()})
    for round_ in range(1, rounds + 1):
        if isinstance(prompts, int):
            asked = [p for name in families for p in tasks.get(name).sample(prompts, rng)]
        else:
            asked = list(prompts)
        out = generate(policy, asked, **sampling, **scaling, generator=generator)
        batch = _score(policy, reference, out, asked, reward, advantage_max, scaling)
        parts = _micro_batches(batch, families, micro_batches)
        for inner in range(1, mu + 1):
            began, tally = time.perf_counter(), Tally(tokens=float(batch.mask.sum()))
            # made when they are asked for, so that one graph is alive at a time
            losses = (loss_of(batch.take(rows), tally) for rows in parts)
            result = inner_update(model, opt, losses, update)
            number += 1
            now = {
                "step": number,
                "round": round_,
                "inner": inner,
                "learning_rate": lr,
                "grad_norm": result.norm,
                "skipped": result.skipped,
                "nonfinite_params": health(model).nonfinite,
                "process_memory": float(process.memory_info().rss),
                "seconds": time.perf_counter() - began,
            }
            if isinstance(beta, AdaptiveBeta):
                tally.extra["beta"] = beta.value
                beta.update(tally.mean("kl"))
            yield _step(batch, tally, now)
        if healthy is not None and health(model):
            healthy.save(model)
        elif healthy is not None:
            healthy.restore(model, opt)
        if exam:
            yield Exam(round_, {name: paper.mean(model) for name, paper in papers.items()})


@torch.no_grad()
def _score(
    policy: Policy,
    reference: torch.nn.Module,
    out: rollout.Completions,
    asked: list[str],
    reward: Reward,
    advantage_max: float | None,
    scaling: Settings,
) -> Batch:
    """Rewards, advantages, old and reference log-probabilities of a rollout."""
    repeated = [p for p in asked for _ in range(out.num_samples)]
    scores = _rewards(reward(repeated, out.texts), len(repeated)).to(policy.device)
    rows = out.ids, out.attention_mask, out.tokens.shape[1]
    old_logp, _ = token_logprobs_of_groups(policy.model, *rows, **scaling)
    ref_logp, _ = token_logprobs_of_groups(reference, *rows, **scaling)
    advantages, counts = masked_advantage(scores, out.num_samples, limit=advantage_max)
    return Batch(out, [tasks.of_prompt(p).name for p in repeated], scores, advantages, counts, old_logp, ref_logp)


def _rewards(answers: Sequence[float | None], expected: int) -> torch.Tensor:
    """What a reward function returned, as a float32 tensor with NaN for None."""
    rewards = torch.tensor([NAN if r is None else float(r) for r in answers])
    if len(rewards) != expected:
        raise ValueError(f"reward: got {len(rewards)} rewards for {expected} completions; return one per completion")
    return rewards


def _micro_batches(batch: Batch, families: list[str], micro_batches: int) -> Parts:
    """Row indices of each micro-batch: one per family, or `micro_batches` equal runs of rows. Those without a counted
    row are left out; with none at all an update does nothing."""
    rows = torch.arange(len(batch.rewards), device=batch.rewards.device)
    parts = [rows[batch.of(name)] for name in families] if len(families) > 1 else rows.chunk(micro_batches)
    return [p for p in parts if batch.counts[p].any()]


def _step(batch: Batch, tally: Tally, now: dict[str, Any]) -> Step:
    n, device = batch.out.num_samples, batch.rewards.device
    extra = dict(tally.extra)
    if len(families := sorted(set(batch.objective))) > 1:
        extra |= {k: v for k, v in tally.sums.items() if "/" in k}  # KL of each objective
        for name in families:
            extra[f"reward/{name}"] = float(batch.rewards[batch.of(name)].nanmean())
            extra[f"length/{name}"] = float(batch.lengths[batch.of(name)].mean())
    if missing := int(batch.rewards.isnan().sum()):
        extra["missing"] = missing / len(batch.rewards)
    if device.type == "cuda":
        now["memory_allocated"] = float(torch.cuda.memory_allocated(device))
        now["memory_reserved"] = float(torch.cuda.memory_reserved(device))
    first = batch.out.tokens[:, 0].view(-1, n).tolist()
    return Step(
        loss=tally.sums["loss"],
        reward=float(batch.rewards.nanmean()),
        reward_std=reward_std(batch.rewards, n),
        frac_reward_zero_std=zero_std_fraction(batch.rewards, n),
        kl=tally.mean("kl"),
        entropy=tally.mean("entropy"),
        mean_length=float(batch.lengths.mean()),
        ratio_max=tally.ratio_max,
        clip_fraction=tally.mean("clipped"),
        first_token_unique=sum(len(set(group)) for group in first) / len(first),
        extra=extra,
        **now,
    )


def _optimizer(name: str, model: torch.nn.Module, lr: float) -> torch.optim.Optimizer:
    params = grads.trainable(model)
    if name == "sgd":
        return torch.optim.SGD(params, lr=lr)
    if name == "adamw":
        return torch.optim.AdamW(params, lr=lr, weight_decay=0.0, fused=True)
    raise ValueError(f"optimizer {name!r}: expected 'adamw' or 'sgd'")
