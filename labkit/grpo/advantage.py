"""Group-relative advantages: how much better a completion is than the others for the same prompt.

Pure tensor functions. Source: DeepSeekMath (arXiv 2402.03300), outcome supervision; the option
without the standard deviation is Dr. GRPO (arXiv 2503.20783).
"""

from __future__ import annotations

import math

import torch


def group_advantage(
    rewards: torch.Tensor, num_samples: int, *, scale: bool = True, limit: float | None = 10.0
) -> torch.Tensor:
    """Advantages [B] from rewards [B] whose groups are `num_samples` adjacent rows.

    Reward minus the group's mean, divided by the group's unbiased standard deviation + 1e-4 (as in
    TRL 1.16) when `scale`. A tied group gives exactly zero. `limit` clamps to +-limit (None: no
    clamp). ValueError when the rows do not split into groups of at least 2.
    """
    rows = _groups(rewards, num_samples)  # [P, G]
    centred = (rows - rows.mean(1, keepdim=True)).masked_fill(_tied(rows), 0.0)
    advantage = centred
    if scale:
        # 1e-4, so that rewards which differ by rounding alone are not blown up
        advantage = centred / (rows.std(1, keepdim=True) + 1e-4)
    if limit is not None:
        advantage = advantage.clamp(-limit, limit)
    return advantage.reshape(-1)


def masked_advantage(
    rewards: torch.Tensor, num_samples: int, limit: float | None = 10.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """`group_advantage` where some rewards did not come (NaN): each group over those that did.

    Returns the advantages [B], 0 where there is nothing to learn, and [B] bool: the completion is
    part of the loss. It is not where its reward did not come, nor where fewer than two of its
    group's did: one reward compares with nothing.
    """
    came = ~rewards.isnan()
    if came.all():
        return group_advantage(rewards, num_samples, limit=limit), came
    counts = came & (_groups(came, num_samples).sum(1) > 1).repeat_interleave(num_samples)
    advantages = torch.zeros_like(rewards)
    for group in torch.arange(len(rewards), device=rewards.device).split(num_samples):
        rows = group[counts[group]]
        if len(rows):
            advantages[rows] = group_advantage(rewards[rows], len(rows), limit=limit)
    return advantages, counts


def zero_std_fraction(rewards: torch.Tensor, num_samples: int) -> float:
    """Share of groups whose rewards are all equal, 0..1: they teach nothing. So are those of which
    one or none came."""
    rows = _groups(rewards, num_samples)
    # a missing reward is neither the highest nor the lowest; without any the two cross
    highest = rows.masked_fill(rows.isnan(), -math.inf).amax(1)
    lowest = rows.masked_fill(rows.isnan(), math.inf).amin(1)
    return (highest <= lowest).float().mean().item()


def reward_std(rewards: torch.Tensor, num_samples: int) -> float:
    """Within-group standard deviation (unbiased), mean over groups.

    Of the rewards that came (not NaN), in groups where two or more did.
    """
    rows = _groups(rewards, num_samples)
    if not rows.isnan().any():
        return rows.std(1).mean().item()
    deviations = []
    for row in rows:
        came = row[~row.isnan()]
        if len(came) > 1:
            deviations.append(came.std())
    return float(torch.tensor(deviations).mean())


def _groups(rewards: torch.Tensor, num_samples: int) -> torch.Tensor:
    if num_samples < 2:
        needs = "a group needs at least 2 completions, else every advantage is zero"
        raise ValueError(f"num_samples = {num_samples}: {needs}")
    if rewards.ndim != 1 or not len(rewards) or len(rewards) % num_samples:
        expected = f"[P * {num_samples}], groups of {num_samples} adjacent rows"
        raise ValueError(f"rewards {tuple(rewards.shape)}: expected {expected}")
    return rewards.view(-1, num_samples)


def _tied(rows: torch.Tensor) -> torch.Tensor:
    """Are all rewards of a group equal? [P, G] -> [P, 1] bool."""
    # compared exactly, because a mean of equal floats need not be equal to them
    return (rows == rows[:, :1]).all(1, keepdim=True)
