"""Group-relative advantages: how much better a completion is than the others for the same prompt.

Pure tensor functions. Source: DeepSeekMath (arXiv 2402.03300), outcome supervision; the option without the
standard deviation is Dr. GRPO (arXiv 2503.20783).
"""

from __future__ import annotations

import torch


def group_advantage(
    rewards: torch.Tensor, num_samples: int, *, scale: bool = True, limit: float | None = 10.0
) -> torch.Tensor:
    """Advantages [B] from rewards [B] whose groups are `num_samples` adjacent rows.

    Reward minus the group's mean, divided by the group's unbiased standard deviation + 1e-4 (as in TRL 1.16) when
    `scale`. A tied group gives exactly zero. `limit` clamps to +-limit (None: no clamp). ValueError when the
    rows do not split into groups of at least 2.
    """
    rows = _groups(rewards, num_samples)  # [P, G]
    centred = (rows - rows.mean(1, keepdim=True)).masked_fill(_tied(rows), 0.0)
    advantage = centred / (rows.std(1, keepdim=True) + 1e-4) if scale else centred
    return (advantage if limit is None else advantage.clamp(-limit, limit)).reshape(-1)


def zero_std_fraction(rewards: torch.Tensor, num_samples: int) -> float:
    """Share of groups whose rewards are all equal, 0..1: they teach nothing."""
    return _tied(_groups(rewards, num_samples)).float().mean().item()


def reward_std(rewards: torch.Tensor, num_samples: int) -> float:
    """Within-group standard deviation (unbiased), mean over groups."""
    return _groups(rewards, num_samples).std(1).mean().item()


def _groups(rewards: torch.Tensor, num_samples: int) -> torch.Tensor:
    if num_samples < 2:
        raise ValueError(
            f"num_samples = {num_samples}: a group needs at least 2 completions, else every advantage is zero"
        )
    if rewards.ndim != 1 or not len(rewards) or len(rewards) % num_samples:
        raise ValueError(
            f"rewards {tuple(rewards.shape)}: expected [P * {num_samples}], groups of {num_samples} adjacent rows"
        )
    return rewards.view(-1, num_samples)


def _tied(rows: torch.Tensor) -> torch.Tensor:
    """[P, G] -> [P, 1]; compared exactly, because a mean of equal floats need not be equal to them."""
    return (rows == rows[:, :1]).all(1, keepdim=True)
