"""GRPO as a generator, from top to bottom: the file to open first.

    for step in train("add"):
        print(step.round, step.reward, step.kl)

A round samples a group of completions for each prompt, rewards them, and fixes the
log-probabilities that they were drawn with. Then `mu` inner updates learn from them. One `Step` is
yielded after each. Every part that a lesson breaks or mends is an argument, so that a call shows
all that differs from the loop of lesson 00. This file draws nothing, saves nothing, and catches
nothing.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import torch

from labkit.events import Exam, Step

from . import exam as exams
from . import grads, loss, rollout
from . import task as tasks
from .advantage import masked_advantage
from .batch import Advantage, Batch, Reward, Scorer, micro_batches, score
from .grads import Snapshot, health
from .kl import AdaptiveBeta, k3
from .policy import Policy, load, token_logprobs_of_groups
from .record import Record

# (logp, ref_logp) [B, T] -> per-token KL [B, T]
KL = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# (logp [B, T], micro-batch) -> per-token loss
PolicyLoss = Callable[[torch.Tensor, Batch], loss.PolicyLoss]
# (micro-batch, logp [B, T], logits [B, T, V]) -> numbers
Probe = Callable[[Batch, torch.Tensor, torch.Tensor], dict[str, float]]

# Parameters. A second thread costs a policy below that more than it brings:
# benchmarks/bench_train.py
SMALL = 1_000_000


@dataclass(frozen=True)
class Sampling:
    """How a round's completions are drawn. ValueError names a number that cannot be.

    prompts      how many to draw for each round and task family; or a list of prompts, used in
                 every round
    num_samples  completions per prompt: the group
    top_k, top_p 0 and 1.0 switch these filters off
    """

    prompts: int | Sequence[str] = 8
    num_samples: int = 8
    max_new_tokens: int = 4
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.prompts, str):
            raise TypeError(f"prompts: got the text {self.prompts!r}; expected a list of prompts")
        if isinstance(self.prompts, int):
            rollout.check_settings(prompts=self.prompts)
        rollout.check_settings(num_samples=self.num_samples, max_new_tokens=self.max_new_tokens)
        rollout.check_settings(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)


@dataclass(frozen=True)
class Safety:
    """What keeps a run alive that would die without it. All off, as in lesson 00.

    log_ratio_max  clamp of the log-ratio to the old policy, before `exp`
    logit_max      clamp of the logits, where they are sampled and where they are scored
    advantage_max  clamp of the advantages
    restore        after a round that left a parameter NaN or Inf, go back to the last healthy ones
    """

    log_ratio_max: float | None = None
    logit_max: float | None = None
    advantage_max: float | None = None
    restore: bool = False

    def __post_init__(self) -> None:
        for name in ("log_ratio_max", "logit_max", "advantage_max"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ValueError(f"{name} = {limit}: must be above 0; None switches the clamp off")

    @classmethod
    def recommended(cls) -> Safety:
        """All on, with labkit's values.

        Take `Hooks(update=grads.guard())` with them: it skips the update that ruins the others.
        """
        return cls(log_ratio_max=5.0, logit_max=100.0, advantage_max=10.0, restore=True)


@dataclass(frozen=True)
class Hooks:
    """What replaces a part of the loop.

    generate       the sampler: called as `rollout.generate` is
    scorer         the log-probs of the completions, new, old and reference: called as
                   `policy.token_logprobs` is, with temperature and clamp by name
    reward         the judge: (prompts, completions) -> a reward for each. None or NaN where none
                   came; such a completion is left out of its group and of the loss
    advantage      (rewards [B], NaN where none came; group size) -> advantages [B], and mask [B],
                   1 = part of the loss; then `Safety.advantage_max` is its own business
    inner_update   losses of the micro-batches -> one optimizer update: see `grads.inner_update`
    update         gradients -> step, for example `grads.guard()`; it replaces the limit `max_norm`
                   too
    policy_loss    (log-probs [B, T], the micro-batch) -> per-token loss, for example one that calls
                   `loss.gspo`; then `clip` and `Safety.log_ratio_max` are its own business
    probe          a measurement: (micro-batch, log-probs [B, T], logits [B, T, V]), all detached ->
                   numbers, which go to `Step.extra`; those of the last micro-batch win
    reference      the model that `kl` compares with, on the policy's device; None: a copy of the
                   policy as it came
    micro_batches  split a batch of one family so many times; the gradients must add up to the same
    """

    generate: Callable[..., rollout.Completions] = rollout.generate
    scorer: Scorer = token_logprobs_of_groups
    reward: Reward = tasks.rewards
    advantage: Advantage | None = None
    inner_update: Callable[..., grads.Update] = grads.inner_update
    update: grads.Updater | None = None
    policy_loss: PolicyLoss | None = None
    probe: Probe | None = None
    reference: torch.nn.Module | None = None
    micro_batches: int = 1

    def __post_init__(self) -> None:
        rollout.check_settings(micro_batches=self.micro_batches)


def train(
    task: str | Sequence[str] = "add",
    *,
    policy: str | Policy = "tiny",
    seed: int = 0,
    device: str = "auto",
    rounds: int = 12,
    mu: int = 4,
    optimizer: str = "adamw",
    lr: float = 5e-5,
    beta: float | AdaptiveBeta = 0.04,
    kl: KL = k3,
    clip: float = 0.2,
    max_norm: float | None = 1.0,
    sampling: Sampling = Sampling(),
    safety: Safety = Safety(),
    hooks: Hooks = Hooks(),
    exam: bool | Sequence[str] = False,
) -> Iterator[Step | Exam]:
    """Train with GRPO; yield a `Step` after every optimizer update.

    The defaults are the loop of lesson 00. Its exam rises from 0.455 by 0.23 or more on each of
    seeds 0 to 19 (docs/decisions/002).

    task       a family of `labkit.grpo.task`, or several: then each family is one micro-batch
    policy     a name for `labkit.grpo.load`, or a loaded `Policy`, which is then trained in place
    rounds     each samples anew
    mu         inner updates per round
    optimizer  "adamw" or "sgd", with learning rate `lr`
    beta       weight of the per-token KL `kl(logp, ref_logp)`; an `AdaptiveBeta` is updated after
               every step
    clip       how far from 1 the ratio to the old policy may go
    max_norm   limit of the gradient's norm; None: no limit
    sampling   how completions are drawn: `Sampling(num_samples=16, temperature=0.8)`
    safety     clamps, and going back to healthy parameters: off; `Safety.recommended()`
    hooks      what replaces a part of the loop: `Hooks(reward=my_reward)`
    exam       yield an `Exam` too, before the first round and after every round: see
               `labkit.grpo.exam`. True asks all held-out prompts of each family, a list these

    A policy below a million parameters gets one CPU thread; that holds for the whole process.
    Raises: ValueError or TypeError names a setting that cannot be. What the policy raises while
    sampling passes through.
    """
    families = _families(task)
    rollout.check_settings(rounds=rounds, mu=mu, lr=lr, clip=clip)
    if max_norm is not None:
        rollout.check_settings(max_norm=max_norm)
    _check_kind("sampling", sampling, Sampling)
    _check_kind("safety", safety, Safety)
    _check_kind("hooks", hooks, Hooks)
    policy = policy if isinstance(policy, Policy) else load(policy, device)
    model = policy.model
    if sum(p.numel() for p in model.parameters()) < SMALL:
        torch.set_num_threads(1)
    # prompts and tokens have generators of their own: nothing else in the process moves them
    prompt_rng, token_rng = random.Random(seed), torch.Generator(policy.device).manual_seed(seed)
    reference = hooks.reference
    if reference is None:
        # the policy as it came; it never learns
        reference = copy.deepcopy(model).requires_grad_(False)
    healthy = Snapshot(model) if safety.restore else None
    opt = _optimizer(optimizer, model, lr)
    update = hooks.update or grads.limited_step(max_norm)
    # sampling and scoring must scale the logits alike, else the ratio does not begin at 1
    scaling: dict[str, Any] = {"temperature": sampling.temperature, "logit_max": safety.logit_max}
    advantage = hooks.advantage or partial(masked_advantage, limit=safety.advantage_max)
    policy_loss = hooks.policy_loss or _clipped_loss(clip, safety.log_ratio_max)
    scorer = partial(hooks.scorer, **scaling)
    objective = Objective(model, scorer, policy_loss, kl, beta, hooks.probe)
    papers: dict[str, exams.Paper] = {}
    if exam:
        asked = None if exam is True else exam
        papers = {name: exams.paper(policy.tokenizer, name, asked) for name in families}
        yield _exam(0, papers, model)

    number, process = 0, psutil.Process()
    for round_ in range(1, rounds + 1):
        # 1. draw prompts, and sample a group of completions for each
        prompts = _prompts(sampling.prompts, families, prompt_rng)
        completions = hooks.generate(
            policy,
            prompts,
            num_samples=sampling.num_samples,
            max_new_tokens=sampling.max_new_tokens,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            **scaling,
            generator=token_rng,
        )

        # 2. reward them, compare each with its group, and fix two log-probs of each token: that
        #    of the policy which drew it, the old policy, and that of the reference
        batch = score(policy, reference, completions, prompts, hooks.reward, advantage, scorer)
        parts = micro_batches(batch, families, hooks.micro_batches)

        for inner in range(1, mu + 1):
            began = time.perf_counter()
            record = Record(tokens=float(batch.mask.sum()))

            # 3. the loss of each micro-batch, its gradients, and one step of the optimizer.
            #    At inner = 1 the policy is still the old one: every ratio is 1, no clip takes
            #    effect, and the loss is near 0 while its gradient is not
            losses = objective.losses(batch, parts, record)
            result = hooks.inner_update(model, opt, losses, update)
            number += 1

            # 4. what a log shows of it
            if isinstance(beta, AdaptiveBeta):
                record.extra["beta"] = beta.value  # the one of this update
                beta.update(record.mean("kl"))
            yield record.step(
                batch,
                step=number,
                round=round_,
                inner=inner,
                learning_rate=lr,
                grad_norm=result.norm,
                skipped=result.skipped,
                nonfinite_params=health(model).nonfinite,
                process_memory=float(process.memory_info().rss),
                seconds=time.perf_counter() - began,
            )

        # 5. the next round samples from these parameters: a NaN in one of them ends the run there
        if healthy is not None and health(model):
            healthy.save(model)
        elif healthy is not None:
            healthy.restore(model, opt)
        if exam:
            yield _exam(round_, papers, model)


@dataclass(frozen=True)
class Objective:
    """What an inner update makes smaller: policy loss plus beta times KL, mean over the tokens."""

    model: torch.nn.Module
    scorer: Scorer
    policy_loss: PolicyLoss
    kl: KL
    beta: float | AdaptiveBeta
    probe: Probe | None

    def losses(
        self, batch: Batch, parts: list[torch.Tensor], record: Record
    ) -> Iterator[torch.Tensor]:
        """Each micro-batch's share of the whole batch's loss: a scalar.

        They are computed when they are asked for, so that one graph is alive at a time.
        """
        beta = self.beta.value if isinstance(self.beta, AdaptiveBeta) else self.beta
        for rows in parts:
            part = batch.take(rows)
            length = part.mask.shape[1]
            # [B, T] of the sampled tokens, and [B, T, V] of all
            logp, logits = self.scorer(self.model, part.out.ids, part.out.attention_mask, length)
            policy_loss = self.policy_loss(logp, part)
            kl = self.kl(logp, part.ref_logp)  # [B, T]
            # divided by the tokens of the whole batch, not of the part: so the parts add up
            total = loss.token_mean(policy_loss.loss + beta * kl, part.mask, record.tokens)
            record.count(part, policy_loss, kl, logits, total)
            if self.probe is not None:
                record.extra.update(self.probe(part, logp.detach(), logits.detach()))
            yield total


def _clipped_loss(clip: float, log_ratio_max: float | None) -> PolicyLoss:
    """GRPO's own policy loss."""

    def policy_loss(logp: torch.Tensor, part: Batch) -> loss.PolicyLoss:
        return loss.grpo(
            logp, part.old_logp, part.advantages, clip=clip, log_ratio_max=log_ratio_max
        )

    return policy_loss


def _prompts(prompts: int | Sequence[str], families: list[str], rng: random.Random) -> list[str]:
    """The prompts of one round: so many of each family, or the given ones."""
    if not isinstance(prompts, int):
        return list(prompts)
    drawn: list[str] = []
    for name in families:
        drawn += tasks.get(name).sample(prompts, rng)
    return drawn


def _exam(round_: int, papers: dict[str, exams.Paper], model: torch.nn.Module) -> Exam:
    """The chance of a right answer in each task family, after so many rounds."""
    return Exam(round_, {name: paper.mean(model) for name, paper in papers.items()})


def _optimizer(name: str, model: torch.nn.Module, lr: float) -> torch.optim.Optimizer:
    params = grads.trainable(model)
    if name == "sgd":
        return torch.optim.SGD(params, lr=lr)
    if name == "adamw":
        # no decay: what moves the weights is the loss alone
        return torch.optim.AdamW(params, lr=lr, weight_decay=0.0, fused=True)
    raise ValueError(f"optimizer {name!r}: expected 'adamw' or 'sgd'")


def _families(task: str | Sequence[str]) -> list[str]:
    families = [task] if isinstance(task, str) else task
    if not isinstance(families, (list, tuple)):
        expected = f"a name or a list of names of {', '.join(tasks.TASKS)}"
        way_out = "a policy is passed as policy=..."
        raise TypeError(f"task: got a {type(task).__name__}; expected {expected}; {way_out}")
    if not families:
        raise ValueError(
            f"task: got an empty list; expected one or more of {', '.join(tasks.TASKS)}"
        )
    for name in families:
        tasks.get(name)  # ValueError lists the names there are
    return list(families)


def _check_kind(name: str, group: object, kind: type) -> None:
    """TypeError unless `group` is one of the three dataclasses above: a dict is none."""
    if not isinstance(group, kind):
        expected = f"labkit.grpo.{kind.__name__}(...): see its docstring for the names"
        raise TypeError(f"{name}: got a {type(group).__name__}; expected {expected}")
