"""The GRPO loss, per token, with its parts in the open.

Pure tensor functions: no model, no optimizer, no reduction hidden in a class. Source: PPO's clipped objective
(arXiv 1707.06347) with group advantages (arXiv 2402.03300); normalising by the tokens of the whole batch is DAPO's
choice (arXiv 2503.14476) and TRL's default (`loss_type="dapo"`, trl 1.16).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PolicyLoss:
    """Per-token policy loss and what a dashboard shows of it. All [B, T]."""

    loss: torch.Tensor  # -min(ratio * A, clipped ratio * A)
    ratio: torch.Tensor  # policy / old policy, detached
    clipped: torch.Tensor  # bool: the clip took effect, so this token has no gradient


def ratio_of(logp: torch.Tensor, old_logp: torch.Tensor, log_ratio_max: float | None = None) -> torch.Tensor:
    """exp(logp - old_logp) [B, T]; the log-ratio is clamped to +-`log_ratio_max` before `exp` when given."""
    log_ratio = logp - old_logp
    if log_ratio_max is not None:
        log_ratio = log_ratio.clamp(-log_ratio_max, log_ratio_max)
    return log_ratio.exp()


def grpo(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip: float = 0.2,
    log_ratio_max: float | None = None,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """GRPO's per-token policy loss.

    `logp`, `old_logp`: [B, T] nats; `advantages`: [B], one a completion. The clip bounds the ratio from above only
    where the advantage is positive; with a negative advantage the loss grows with the ratio without limit.
    `dual_clip` (for example 3.0, arXiv 1912.09729) bounds that side too.
    """
    if logp.shape != old_logp.shape or advantages.shape != logp.shape[:1]:
        raise ValueError(
            f"grpo: logp {tuple(logp.shape)}, old_logp {tuple(old_logp.shape)}, advantages {tuple(advantages.shape)}; "
            "expected [B, T], [B, T], [B]"
        )
    ratio = ratio_of(logp, old_logp, log_ratio_max)
    gain = advantages[:, None]  # [B, 1]
    free, bounded = ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain
    loss = -torch.minimum(free, bounded)
    clipped = bounded < free
    if dual_clip is not None:
        ceiling = -dual_clip * gain  # positive where the advantage is negative
        over = (gain < 0) & (loss > ceiling)
        loss, clipped = torch.where(over, ceiling.expand_as(loss), loss), clipped | over
    return PolicyLoss(loss, ratio.detach(), clipped)


def token_mean(per_token: torch.Tensor, mask: torch.Tensor, tokens: float) -> torch.Tensor:
    """Sum over the counted tokens over `tokens`, the count of the **whole** batch, so that micro-batches add up."""
    return torch.where(mask.bool(), per_token, 0.0).sum() / tokens
