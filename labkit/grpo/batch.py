"""The completions of one round, rewarded and compared: what inner updates learn from. Nothing here
has a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from labkit.events import NAN

from . import task as tasks
from .policy import Policy
from .rollout import Completions

Reward = Callable[
    [Sequence[str], Sequence[str]], Sequence[float | None]
]  # (prompts, completions) -> rewards
# (rewards [B], NaN where none came; group size) -> advantages [B], and mask [B]: 1 = counts
Advantage = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
# (model, ids, attention mask, length) -> log-probs [B, T] of the last tokens, logits [B, T, V]
Scorer = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Batch:
    """Completions of one round, or some rows of them, scored. B completions of at most T tokens."""

    out: Completions
    objective: list[str]  # B, the task family of each completion
    rewards: torch.Tensor  # [B], NaN where none came
    advantages: torch.Tensor  # [B]
    counts: torch.Tensor  # [B] bool: the completion is part of the loss: `masked_advantage`
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


@torch.no_grad()
def score(
    policy: Policy,
    reference: torch.nn.Module,
    out: Completions,
    prompts: list[str],
    reward: Reward,
    advantage: Advantage,
    scorer: Scorer,
) -> Batch:
    """Rewards, advantages, old and reference log-probabilities of a rollout.

    `scorer` scales the logits as the sampler does: temperature and clamp. ValueError when there are
    not as many rewards as completions.
    """
    # the rows of a group are adjacent, so each prompt is repeated in place: [B]
    repeated: list[str] = []
    for prompt in prompts:
        repeated += [prompt] * out.num_samples
    rewards = _rewards(reward(repeated, out.texts), len(repeated)).to(policy.device)
    # computed as the updates compute them, and not by the sampler: what it rounds otherwise would
    # make the ratio of the first update differ from 1
    ids, attention_mask, length = out.ids, out.attention_mask, out.tokens.shape[1]
    old_logp, _ = scorer(policy.model, ids, attention_mask, length)
    ref_logp, _ = scorer(reference, ids, attention_mask, length)
    advantages, counts = advantage(rewards, out.num_samples)
    return Batch(
        out=out,
        objective=[tasks.of_prompt(prompt).name for prompt in repeated],
        rewards=rewards,
        advantages=advantages,
        counts=counts.bool(),
        old_logp=old_logp,
        ref_logp=ref_logp,
    )


def _rewards(answers: Sequence[float | None], expected: int) -> torch.Tensor:
    """What a reward function returned, as a float32 tensor with NaN for None."""
    # NaN and not 0: a reward that did not come says nothing of its completion
    rewards = torch.tensor([NAN if reward is None else float(reward) for reward in answers])
    if len(rewards) != expected:
        came = f"got {len(rewards)} rewards for {expected} completions"
        raise ValueError(f"reward: {came}; return one per completion")
    return rewards


def micro_batches(batch: Batch, families: list[str], number: int) -> list[torch.Tensor]:
    """Row indices of each micro-batch: one per family, or `number` equal runs of rows.

    Those without a counted row are left out; with none at all an update does nothing.
    """
    rows = torch.arange(len(batch.rewards), device=batch.rewards.device)
    if len(families) > 1:
        parts = [rows[batch.of(name)] for name in families]
    else:
        parts = list(rows.chunk(number))
    return [part for part in parts if batch.counts[part].any()]
