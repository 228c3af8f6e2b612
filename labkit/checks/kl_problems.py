"""The problems of the KL check: a batch whose mean is the exact expectation, and tokens looked at one by one.

This file judges no expectation; `Pull` says what is wrong with single tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.common import number

# How often the policy draws each of six symbols, of 64 draws, at each of four positions.
DRAWS = ((26, 14, 10, 8, 4, 2), (4, 26, 2, 14, 8, 10), (8, 8, 12, 4, 16, 16), (2, 4, 8, 10, 14, 26))
# The reference's logits relative to the policy's there; the log-ratios that follow reach from -1.9 to 2.2.
SHIFTS = (
    (-1.0, 0.6, 1.2, -0.4, 0.9, 2.8),
    (1.1, -0.7, 1.4, -1.3, 0.5, 0.2),
    (0.3, -1.6, 0.8, 1.5, -0.2, 0.1),
    (1.7, 1.3, -0.9, 0.4, 0.7, -0.6),
)
JUNK = 5  # the symbol that stands where nothing counts: read there, it biases value and gradient
# Log-ratios that a single token is looked at with.
SIZES = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 2.7, 4.0, 4.99, 5.0, 6.0, 8.0, 9.99, 10.0, 12.0, 15.0, 20.0, 40.0)
OVERFLOW = (80.0, 89.0, 100.0)  # exp overflows at 88.7 in float32
LIMIT = 5.0  # as far as a token must be pulled, and the clamp of d at which k3 is as steep as is allowed


@dataclass
class Problem:
    """A batch that holds each symbol as often as the policy draws it, and the exact divergences."""

    logits: Tensor  # [T, V], the leaf that gradients are taken of
    ref_logp: Tensor  # [T, V]
    tokens: Tensor  # [B, T]
    mask: Tensor  # [B, T], 1 = counts

    @classmethod
    def make(cls, scale: float, masked: bool, dtype: torch.dtype = torch.float32) -> Problem:
        """Masked: twice the rows, the second half a position shorter, junk in a column before and one after."""
        draws = torch.tensor(DRAWS, dtype=torch.float64)
        logp = (draws / draws.sum(1, keepdim=True)).log()
        ref_logp = (logp + scale * torch.tensor(SHIFTS, dtype=torch.float64)).log_softmax(-1)
        rng = torch.Generator().manual_seed(3)
        columns = [torch.repeat_interleave(torch.arange(6), torch.tensor(d)) for d in DRAWS]
        tokens = torch.stack([c[torch.randperm(len(c), generator=rng)] for c in columns], dim=1)  # [64, 4]
        mask = torch.ones_like(tokens)
        if masked:
            shorter = mask.clone()
            shorter[:, -1] = 0
            tokens, mask = (F.pad(torch.cat(x), (1, 1)) for x in ([tokens, tokens], [mask, shorter]))
            tokens[mask == 0] = JUNK
            logp, ref_logp = (torch.cat([x[:1], x, x[2:3]]) for x in (logp, ref_logp))
        return cls(logp.to(dtype).requires_grad_(), ref_logp.to(dtype), tokens, mask)

    @property
    def positions(self) -> Tensor:
        """Positions that count in every row or in some, [T] bool."""
        return self.mask.any(0)

    def batch(self) -> tuple[Tensor, Tensor]:
        """(logp, ref_logp) of the drawn tokens, [B, T], the first with gradient; junk where nothing counts."""
        at = torch.arange(self.tokens.shape[1])
        return self.logits.log_softmax(-1)[at, self.tokens], self.ref_logp[at, self.tokens]

    def divergences(self) -> tuple[Tensor, Tensor]:
        """Exact KL(policy‖ref) and KL(ref‖policy) at each position, [T], float64."""
        p, q = self.logits.detach().double().log_softmax(-1), self.ref_logp.double()
        return (p.exp() * (p - q)).sum(-1), (q.exp() * (q - p)).sum(-1)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Their exact gradients in the policy's logits, [T, V], float64: p (log p/q - KL) and p - q."""
        p, q = self.logits.detach().double().log_softmax(-1), self.ref_logp.double()
        forward, _ = self.divergences()
        return p.exp() * (p - q - forward[:, None]), p.exp() - q.exp()

    def mean_of(self, per_token: Tensor) -> Tensor:
        return per_token.masked_fill(self.mask == 0, 0.0).sum() / self.mask.sum()

    def mean_of_sequences(self, per_token: Tensor) -> Tensor:
        return (per_token.masked_fill(self.mask == 0, 0.0).sum(1) / self.mask.sum(1)).mean()


def other_masks(mask: Tensor) -> dict[str, Tensor]:
    """The masks that a mistake would make of this one, by what to say of it."""
    return {
        "The mask is one position late: likely not shifted together with the log-probs.": F.pad(mask[:, :-1], (1, 0)),
        "The mask is one position early: likely shifted twice.": F.pad(mask[:, 1:], (0, 1)),
        "The mask is not applied: padding counts.": torch.ones_like(mask),
        "The mask is inverted: likely 1 stands for 'ignore' inside. Here 1 = counts.": 1 - mask,
    }


class Token(NamedTuple):
    """A batch of tokens with one and the same log-ratio d = ref - cur."""

    d: float
    value: float
    slope: float  # the derivative by logp, in units of a KL's: every KL has a slope of d near 0

    @property
    def finite(self) -> bool:
        return math.isfinite(self.value) and math.isfinite(self.slope)

    @property
    def away(self) -> bool:
        return self.slope * self.d > 0

    @property
    def dead(self) -> bool:
        return abs(self.slope) < 1e-4 * min(abs(self.d), 1) and not self.away


@dataclass
class Pull:
    """What is asked of the tokens, and what was found: each text is "" where nothing is wrong."""

    alive_to: float
    finite_to: float
    steepest: float
    tokens: list[Token] = field(default_factory=list)

    def measure(self, look: Callable[[Tensor, Tensor], tuple[float, float]]) -> None:
        """`look(logp, ref_logp)`: the mean value and the summed derivative by logp, of a batch [B, T]."""
        # Also just above the log-ratio at which k3 would reach `steepest`.
        border = math.log(self.steepest) if 1 < self.steepest < math.inf else LIMIT
        sizes = [size for size in {*SIZES, *OVERFLOW, 1.02 * border, 1.1 * border} if size <= self.finite_to]
        high = torch.full((2, 3), -0.125, dtype=torch.float32)
        for d in sorted(sign * size for size in sizes for sign in (-1, 1)):
            logp, ref_logp = (high, high + d) if d < 0 else (high - d, high)  # no log-prob above 0
            self.tokens.append(Token(d, *look(logp, ref_logp)))
        near = [abs(t.slope / t.d) for t in self.tokens if abs(t.d) == 0.03]
        unit = sum(near) / max(len(near), 1)
        if 0 < unit < math.inf:
            self.tokens = [t._replace(slope=t.slope / unit) for t in self.tokens]

    @property
    def near(self) -> list[Token]:
        return [t for t in self.tokens if abs(t.d) < self.alive_to]

    @property
    def slope(self) -> float:
        return max((abs(t.slope) for t in self.tokens if t.finite), default=0.0)

    def overflow(self) -> str:
        beyond = [t for t in self.tokens if not t.finite]
        if not beyond:
            return ""
        d = min((t.d for t in beyond), key=abs)
        if all(math.isfinite(t.value) for t in beyond):
            return (
                f"At d = {number(d)} the value is finite and the gradient is not. Likely a clamp after exp: backward "
                "multiplies its 0 by inf, and so does a `where`. Clamp d = ref - cur before exp."
            )
        ratio = "exp(ref - cur)" if d > 0 else "exp(cur - ref)"
        where = "88.7 in float32" if abs(d) > 80 else "11.09 in float16"
        return (
            f"Not finite from d = {number(d)} on. Likely {ratio} without a clamp (exp overflows at {where}). Clamp d."
        )

    def _too_steep(self) -> list[Token]:
        return [t for t in self.tokens if t.finite and abs(t.slope) > 1.05 * self.steepest]  # 5 %: half precision

    def steep(self) -> str:
        if not self._too_steep():
            return ""
        worst = max(self._too_steep(), key=lambda t: abs(t.slope))
        return (
            f"Too steep: at d = {number(worst.d)} the slope is {number(abs(worst.slope))}, and the limit is "
            f"{number(self.steepest)}: one such token decides the update. Clamp the input: expm1(d) - d has the slope "
            f"e^d - 1, so clamp d at {number(math.log(self.steepest))}, or go on with the tangent from there; or use "
            "k2, whose slope is d. (`steepest=` moves the limit.)"
        )

    def dead(self) -> str:
        dead = [t.d for t in self.near if t.dead]
        if not dead:
            return ""
        if all(abs(d) < 0.05 for d in dead):
            at = f"No gradient at d = {number(dead[-1])}: likely half precision"
            return f"{at}, which cannot tell log-probs so close apart. Take them and their difference in float32."
        above, below = [d for d in dead if d > 0], [d for d in dead if d < 0]
        if below and max(below) >= -1:
            return "No gradient where the policy is surer than the reference (d < 0). Likely a clamp at 0."
        start = min(above) if above else max(below)
        if all(t.dead for t in self.tokens if t.finite and t.d * start > 0 and abs(t.d) > abs(start)):
            likely = "Likely the output is clamped (at 10, k3 dies from d = 2.61), or the input too tightly."
            return f"No gradient from d = {number(start)} on: the worst tokens are not pulled back. {likely}"
        likely = "Likely a mask or a `where` that leaves these tokens out."
        return f"No gradient at d = {number(start)}, and there is one beyond. {likely}"

    def away(self) -> str:
        away = [t.d for t in self.near if t.away]
        if not away:
            return ""
        hint = f"A token at d = {number(min(away, key=abs))} is pushed away from the reference, not towards it."
        return hint + (" Likely the `- d` of exp(d) - 1 - d is missing." if max(away) < 0 else "")

    def offer(self) -> str:
        """The settings with which these tokens pass, if that still asks for something."""
        dead = [abs(t.d) for t in self.near if t.dead]
        bad = [abs(t.d) for t in [*self._too_steep(), *(t for t in self.tokens if not t.finite)]]
        settings = {"alive_to": min(dead)} if dead else {}
        if bad:
            settings["finite_to"] = max((t.d for t in self.tokens if t.d < min(bad)), default=0.0)
        if not settings or min(settings.values()) < 1 or any(t.away for t in self.near):
            return ""
        return "It passes with " + ", ".join(f"{name}={value:g}" for name, value in settings.items()) + "."

    def dead_from(self) -> float | None:
        """The log-ratio above which nothing pulls any more."""
        above = [t for t in self.tokens if t.d > 0 and t.finite]
        alive = max((t.d for t in above if not t.dead), default=0.0)
        return min((t.d for t in above if t.d > alive), default=None)
