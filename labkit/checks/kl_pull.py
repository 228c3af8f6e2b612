"""How a KL loss pulls at single tokens: is it finite, alive and not too steep, at log-ratios from 0.01 to 100?

A token is looked at on its own, in a batch that holds nothing else. This file knows no policy and no expectation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.common import number

SIZES = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 2.7, 4.0, 4.99, 5.0, 6.0, 8.0, 9.99, 10.0, 12.0, 15.0, 20.0, 40.0)
OVERFLOW = (80.0, 89.0, 100.0)  # exp overflows at 88.7 in float32
LIMIT = 5.0  # as far as a token must be pulled, and the clamp of d at which k3 is as steep as is allowed


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
        """The steepest slope found."""
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
