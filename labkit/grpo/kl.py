"""Estimators of the KL divergence between policy and reference, as pure tensor functions.

Every estimator takes the log-probs of the sampled tokens, `[B, T]`, natural log, and returns one
number per token. The log-ratio is `d = ref_logp - logp` throughout. This file does **not** choose a
coefficient, upcast, reduce over a batch (except `masked_mean`), or guard against bad numbers unless
the name says so.

On-policy, that is with tokens drawn from the policy itself:

    estimator       per token              expected value          expected gradient
    k1              -d                     KL(policy‖ref)          zero: useless as a loss
    k2              d² / 2                 biased                  that of KL(policy‖ref)
    k3              exp(d) - 1 - d, ≥ 0    KL(policy‖ref)          that of KL(ref‖policy); overflows
    k3_clamped      k3 of the clamped d    as k3 within the limit  as k3 within, zero beyond
    k3_linear_tail  k3, then its tangent   as k3 up to the limit   as k3 up to it, constant beyond

`exp(d)` overflows above d = 88.72 in float32 and bfloat16, above d = 11.09 in float16. For small d
the plain float32 form loses its digits: at d = 1e-4, `exp(d) - 1 - d` is 232 % too large and
`exp(d) - d - 1` is exactly 0, while `expm1(d) - d` is right to 0.03 % (measured, float32, CPU).

Source of k1, k2, k3: J. Schulman, "Approximating KL Divergence" (2020),
joschu.net/blog/kl-approx.html. In use: trl 1.16 has k3 without a clamp and by default multiplies it
by the policy / old-policy ratio (`use_bias_correction_kl`), which turns its on-policy gradient into
that of k2; verl (commit 5b986366) clamps d to ±20 and then the k3 to ±10; OpenRLHF (commit
473f61bd) clamps each result to ±10.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """`-d` -> [B, T]. Value: unbiased, may be negative. Expected gradient: zero, so never a
    loss."""
    return -_log_ratio(logp, ref_logp)


def k2(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """`d² / 2` -> [B, T]. Value: biased, ≥ 0. Expected gradient: that of KL(policy‖ref)."""
    return 0.5 * _log_ratio(logp, ref_logp).square()


def k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """`expm1(d) - d` -> [B, T]. Value: unbiased, ≥ 0. Expected gradient: that of KL(ref‖policy).

    No clamp: one token that the policy makes e^89 times rarer than the reference gives inf in
    float32.
    """
    d = _log_ratio(logp, ref_logp)
    return torch.expm1(d) - d


def k3_clamped(logp: Tensor, ref_logp: Tensor, limit: float = 10.0) -> Tensor:
    """`k3` of d clamped from above at limit -> [B, T]. The *input* is clamped, so backward cannot
    overflow.

    Beyond the limit the value is constant and the gradient zero: log `clamped_fraction`. At the
    default one token can weigh e^10 = 22026, and float16 still holds it. There is no clamp from
    below: there k3 is almost -1 - d, cannot overflow, and a clamp would only lose value and
    gradient. ValueError when the limit is not positive or exp(limit) overflows the dtype.
    """
    d = _log_ratio(logp, ref_logp)
    _check_limit(limit, d.dtype)
    d = d.clamp(max=limit)
    return torch.expm1(d) - d


def k3_linear_tail(logp: Tensor, ref_logp: Tensor, limit: float = 5.0) -> Tensor:
    """`k3` up to d = limit, its tangent at the limit beyond -> [B, T]. Convex, ≥ 0, never without
    gradient.

    The slope in d is at most `expm1(limit)`, 147 at the default, and a token at d = 100 is still
    pulled back. Below zero k3 is nearly a straight line already and needs no tail. Value: too low
    where d > limit. As a loss on tokens drawn before a drift it is the one k3 form that came back
    from log-ratios of 6 and 15, with and without gradient clipping (docs/decisions/030-checks.md).
    ValueError as for `k3_clamped`.
    """
    d = _log_ratio(logp, ref_logp)
    _check_limit(limit, d.dtype)
    inside = d.clamp(max=limit)
    return torch.expm1(inside) - inside + math.expm1(limit) * torch.relu(d - limit)


def clamped_fraction(
    logp: Tensor, ref_logp: Tensor, limit: float = 10.0, mask: Tensor | None = None
) -> Tensor:
    """Share of counted tokens with d > limit, 0..1, scalar, no gradient. `mask` [B, T], 1 =
    counts."""
    d = _log_ratio(logp, ref_logp).detach()
    beyond = (d > limit).float()
    return masked_mean(beyond, torch.ones_like(beyond) if mask is None else mask)


def exact(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """KL(policy‖ref) in nats at every position, summed over the vocabulary: [..., V] -> [...].

    A symbol that the policy cannot draw (logit -inf) adds nothing; one that only the reference
    cannot draw gives inf. Gradients flow to both arguments. ValueError when the shapes differ.
    """
    _same_shape("logits", logits, "ref_logits", ref_logits)
    logp, ref_logp = logits.log_softmax(-1), ref_logits.log_softmax(-1)  # [..., V]
    p = logp.exp()
    return (p * (logp - ref_logp).masked_fill(p == 0, 0.0)).sum(-1)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of `x` over the tokens that count -> scalar. `mask` has x's shape, 1 = counts.

    The other tokens are not read, so NaN or inf in the padding does no harm to the value. Without
    any counted token the mean is 0, as in trl 1.16. The denominator is the number of tokens *in
    this call*: over several micro-batches, divide by the number in the whole batch instead.
    ValueError when the shapes differ.
    """
    _same_shape("x", x, "mask", mask)
    counts = mask.bool()
    return x.masked_fill(~counts, 0.0).sum() / counts.sum().clamp(min=1)


class AdaptiveBeta:
    """A KL coefficient that follows the measured KL into the band [target_low, target_high], nats
    per token.

    `value` is the coefficient; `update(kl)` after each step changes it by the relative distance of
    the KL from the band, by a fifth at most. It is the controller of Ziegler et al. 2019,
    "Fine-Tuning Language Models from Human Preferences", section 2.2, with a band for a target and
    a larger gain. It is as good as the KL that it is fed: an estimate that explodes drives it
    against its stops. `train(beta=AdaptiveBeta())` updates it.
    """

    def __init__(
        self,
        value: float = 0.04,
        *,
        target_low: float = 0.02,
        target_high: float = 0.06,
        minimum: float = 1e-4,
        maximum: float = 10.0,
    ):
        if not (0 < target_low <= target_high and 0 < minimum <= value <= maximum):
            raise ValueError(
                f"AdaptiveBeta: {target_low=}, {target_high=}, {minimum=}, {value=}, {maximum=}: "
                "expected 0 < target_low <= target_high and 0 < minimum <= value <= maximum"
            )
        self.value = float(value)
        self.target_low, self.target_high = target_low, target_high
        self.minimum, self.maximum = minimum, maximum

    def update(self, kl: float) -> float:
        """Take one measured mean KL in nats per token; return the coefficient to use next. NaN
        changes nothing."""
        distance = 0.0
        if kl > self.target_high:
            distance = min(kl / self.target_high - 1, 0.2)
        elif kl < self.target_low:
            distance = max(kl / self.target_low - 1, -0.2)
        self.value = min(max(self.value * (1 + distance), self.minimum), self.maximum)
        return self.value


estimators = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "k3_clamped": k3_clamped,
    "k3_linear_tail": k3_linear_tail,
}


def _log_ratio(logp: Tensor, ref_logp: Tensor) -> Tensor:
    _same_shape("logp", logp, "ref_logp", ref_logp)
    return ref_logp - logp


def _same_shape(a_name: str, a: Tensor, b_name: str, b: Tensor) -> None:
    if a.shape != b.shape:
        raise ValueError(
            f"labkit.kl: {a_name} and {b_name} must have the same shape, got {list(a.shape)} and "
            f"{list(b.shape)}; slice both to the same tokens first"
        )


def _check_limit(limit: float, dtype: torch.dtype) -> None:
    largest = math.log(torch.finfo(dtype).max)
    if not 0 < limit <= largest:
        raise ValueError(
            f"labkit.kl: limit={limit} does not protect {dtype}, whose exp overflows above "
            f"{largest:.2f}; expected a positive number of nats below that, or pass log-probs in "
            "float32"
        )
