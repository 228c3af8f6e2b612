"""The losses of GRPO and GSPO, per token, with their parts in the open.

Pure tensor functions: no model, no optimizer, no reduction hidden in a class. Source: PPO's clipped
objective (arXiv 1707.06347) with group advantages (arXiv 2402.03300); normalising by the tokens of
the whole batch is DAPO's choice (arXiv 2503.14476) and TRL's default (`loss_type="dapo"`, trl
1.16). GSPO (arXiv 2507.18071) gives a whole completion one ratio, and takes the mean over
completions.
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


def grpo(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip: float | tuple[float, float] = 0.2,
    log_ratio_max: float | None = None,
) -> PolicyLoss:
    """GRPO's per-token policy loss.

    `logp`, `old_logp`: [B, T] nats; `advantages`: [B], one per completion. The clip bounds the
    ratio from above only where the advantage is positive; with a negative advantage the loss grows
    with the ratio without limit. A pair for `clip` is how far below and above 1 the ratio may go:
    DAPO has (0.2, 0.28). `log_ratio_max` clamps the log-ratio to +- this before `exp`.
    """
    _check_shapes("grpo", logp, old_logp, advantages)
    log_ratio = logp - old_logp
    if log_ratio_max is not None:
        log_ratio = log_ratio.clamp(-log_ratio_max, log_ratio_max)
    ratio = log_ratio.exp()
    gain = advantages[:, None]  # [B, 1]
    below, above = clip if isinstance(clip, tuple) else (clip, clip)
    free, bounded = ratio * gain, ratio.clamp(1 - below, 1 + above) * gain
    # the smaller of the two: the clip may only make a gain smaller, never a loss
    return PolicyLoss(-torch.minimum(free, bounded), ratio.detach(), clipped=bounded < free)


def gspo(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip: tuple[float, float] = (3e-4, 4e-4),
) -> PolicyLoss:
    """GSPO's policy loss: one ratio per completion, exp of the *mean* log-ratio over its counted
    tokens.

        logp, old_logp   [B, T] nats
        advantages       [B], one per completion
        mask             [B, T], 1 = counts
        clip             how far below and above 1 the ratio may go: the paper's (arXiv 2507.18071,
                         5.1)

    Every token of a completion carries its loss and its ratio; reduce them with `sequence_mean`.
    The gradient goes through the mean, so each counted token gets an equal share of it: ratio *
    advantage / length. That is what trl 1.16 does with `importance_sampling_level="sequence"`,
    which reduces so with `loss_type="grpo"` alone.

    Raises: ValueError names a shape that does not fit.
    """
    _check_shapes("gspo", logp, old_logp, advantages, mask)
    counted = mask.bool()
    # where, not a product: what a padding position holds may be inf or NaN
    total = torch.where(counted, logp - old_logp, 0.0).sum(1, keepdim=True)  # [B, 1]
    ratio = (total / counted.sum(1, keepdim=True).clamp_min(1)).exp()
    gain = advantages[:, None]
    free, bounded = ratio * gain, ratio.clamp(1 - clip[0], 1 + clip[1]) * gain
    loss, clipped = -torch.minimum(free, bounded), bounded < free
    return PolicyLoss(loss.expand_as(logp), ratio.detach().expand_as(logp), clipped.expand_as(logp))


def _check_shapes(name: str, *tensors: torch.Tensor) -> None:
    """ValueError unless they are logp, old_logp, advantages and, for some, a mask."""
    shape, rows = tensors[0].shape, tensors[0].shape[:1]
    expected = [shape, shape, rows, shape][: len(tensors)]
    shapes = [tensor.shape for tensor in tensors]
    if len(shape) != 2 or shapes != expected:
        forms = "logp [B, T], old_logp [B, T], advantages [B] and, for gspo, a mask [B, T]"
        raise ValueError(f"{name}: expected {forms}; got {', '.join(str(list(s)) for s in shapes)}")


def sequence_mean(per_token: torch.Tensor, mask: torch.Tensor, rows: float) -> torch.Tensor:
    """Mean over each completion's counted tokens, summed and divided by `rows`.

    `rows` is the number of completions of the **whole** batch, so that micro-batches add up. A
    completion counts the same however long it is. One without a counted token adds nothing.
    """
    share = mask / mask.sum(1, keepdim=True).clamp_min(1)  # [B, T]
    return torch.where(mask.bool(), per_token * share, 0.0).sum() / rows


def token_mean(per_token: torch.Tensor, mask: torch.Tensor, tokens: float) -> torch.Tensor:
    """Sum over the counted tokens over `tokens`, their number in the **whole** batch.

    So micro-batches add up. A long completion weighs more than a short one.
    """
    return torch.where(mask.bool(), per_token, 0.0).sum() / tokens
