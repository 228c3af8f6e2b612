"""At which temperature were these tokens drawn from these logits? A measurement; this file samples nothing.

The log-likelihood of the tokens is concave in 1/T, so there is one best temperature. A temperature belongs to the 95 %
interval where the slope of the log-likelihood is within 1.96 of its own standard deviation, the root of the Fisher
information (the sum of the variances of the logits under the distribution at that temperature). Unlike "estimate plus
or minus 1.96 errors" this needs no estimate: it bounds a greedy sampler too, and it holds for as few as five tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from labkit.common import number

COLD = 0.1  # an interval from here, or below, up to infinity excludes no temperature that anybody asks for


@dataclass(frozen=True)
class Temperature:
    """A measured temperature. `0.9 in measured` asks whether 0.9 is within the interval.

    value      the likeliest temperature: 0.0 where it is greedy, inf where it looks uniform, below 0 where it is
               "anti", None where it cannot tell
    low, high  the interval; it may reach 0.0 or inf
    verdict    "measured";
               "greedy": each token was a likeliest one, so the likelihood grows for ever with 1/T. What samples at a
               temperature below `high` looks alike;
               "anti": unlikely tokens are preferred, which no temperature above 0 does;
               "cannot tell": the logits are flat, or the tokens too few
    tokens     how many were counted
    """

    value: float | None
    low: float
    high: float
    verdict: str
    tokens: int

    def __contains__(self, temperature: float) -> bool:
        return self.low <= temperature <= self.high

    def __str__(self) -> str:
        if self.verdict == "measured":
            return f"{number(self.value or 0.0)} ({number(self.low)} to {number(self.high)})"
        return f"greedy, or below {number(self.high)}" if self.verdict == "greedy" else self.verdict


def estimate_temperature(logits: Tensor, tokens: Tensor, *, confidence: float = 0.95) -> Temperature:
    """The temperature at which `tokens` were drawn from `logits`, by maximum likelihood, with an interval.

    logits      [..., V] as the model gives them, before any temperature; -inf is a token that cannot be drawn
    tokens      [...] what was drawn from each row
    confidence  of the interval

    From logits that were divided by a temperature already, the answer is relative to it: 1.0 says that both agree.
    Raises: ValueError names shapes that do not fit, NaN logits, and drawn tokens that cannot be drawn.
    """
    likelihood = _Likelihood(*_rows(logits, tokens))
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    count = len(likelihood.drawn)
    if likelihood.always_top and likelihood.always_bottom:  # also of no tokens
        return Temperature(None, 0.0, math.inf, "cannot tell", count)
    best, least, most = (likelihood.inverse_at(slope) for slope in (0.0, z, -z))  # of 1/T
    if most < 0:
        return Temperature(1 / best, 1 / most, 1 / least, "anti", count)
    low, high = (1 / most if most else math.inf), (1 / least if least > 0 else math.inf)
    if low <= COLD and high == math.inf:
        return Temperature(None, low, high, "cannot tell", count)
    value = 1 / best if best > 0 else math.inf
    return Temperature(value, low, high, "greedy" if likelihood.always_top else "measured", count)


def quantiles(logits: Tensor, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """Where each token lies in its row's distribution, likeliest first, in [0, 1]: [N] float64.

    The probability of all likelier tokens, plus a random part of its own (drawn from torch's global generator). Tokens
    that were drawn from these logits at this temperature give uniform numbers. Colder ones crowd at 0; under top-p none
    lies above p.
    """
    rows, drawn = _rows(logits, tokens)
    p = (rows.double() / temperature).softmax(-1)
    own = p.gather(1, drawn[:, None])
    ahead, level = (p * (p > own)).sum(1), (p * (p == own)).sum(1)
    return ahead + level * torch.rand(len(level), dtype=level.dtype).to(level.device)


def _rows(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The logits as [N, V] and their tokens as [N]. ValueError names what cannot be read."""
    if logits.ndim < 1 or logits.shape[:-1] != tokens.shape:
        shapes = f"logits {list(logits.shape)}, tokens {list(tokens.shape)}"
        raise ValueError(f"{shapes}: expected [..., V] and [...]; one row of logits for each token")
    rows, drawn = logits.detach().reshape(-1, logits.shape[-1]), tokens.detach().reshape(-1).long().to(logits.device)
    if drawn.numel() and not 0 <= int(drawn.min()) <= int(drawn.max()) < rows.shape[1]:
        ids = f"tokens from {int(drawn.min())} to {int(drawn.max())}"
        raise ValueError(f"{ids}: the logits have {rows.shape[1]} entries")
    if bool((rows.isnan() | (rows == math.inf)).any()):
        raise ValueError("logits: NaN or +inf; leave such rows out, or find their cause")
    impossible = int((rows.gather(1, drawn[:, None]) == -math.inf).sum())
    if impossible:
        raise ValueError(
            f"tokens: {impossible} of {len(drawn)} have a logit of -inf, so they were not drawn from these logits; "
            "pass the logits before any filter, or leave these tokens out"
        )
    return rows, drawn


class _Likelihood:
    """Of the tokens, as a function of 1/T."""

    def __init__(self, rows: Tensor, drawn: Tensor):
        own = rows.gather(1, drawn[:, None])
        self.drawn = drawn
        self.always_top = not bool((rows > own).any())
        self.always_bottom = not bool(((rows < own) & (rows > -math.inf)).any())
        rows = rows.double()
        self.impossible = rows == -math.inf
        # less each row's largest, so that no exponential overflows
        self.logits = (rows - rows.amax(1, keepdim=True)).masked_fill_(self.impossible, 0.0)
        self.own = self.logits.gather(1, drawn[:, None])[:, 0]

    def inverse_at(self, slope: float) -> float:
        """The 1/T where the slope of the log-likelihood is so many times the root of its Fisher information.

        The slope falls as 1/T grows. For tokens that are always a likeliest one it never reaches 0, nor below.
        """
        if self.always_top and slope <= 0:
            return math.inf
        if self.always_bottom and slope >= 0:
            return -math.inf
        low = high = 0.0
        unit = step = (len(self.drawn) / max(self.moments(0.0)[1], 1e-300)) ** 0.5
        # 1. two values of 1/T with the one that is looked for between them
        while self._above(high, slope)[0] > 0:
            low, high, step = high, high + step, 2 * step
        while self._above(low, slope)[0] < 0:
            low, high, step = low - step, low, 2 * step
        # 2. Newton's steps from the middle; halving, where one leads out
        at = (low + high) / 2
        for _ in range(100):
            above, newton = self._above(at, slope)
            low, high = (at, high) if above > 0 else (low, at)
            before, at = at, at + newton if low < at + newton < high else (low + high) / 2
            if abs(at - before) <= 1e-6 * abs(at) + 1e-9 * unit:
                break
        return at

    def _above(self, inverse: float, slope: float) -> tuple[float, float]:
        """How far the slope is above what is asked for, in roots of the information, and Newton's step."""
        score, information = self.moments(inverse)
        if not information:
            return (math.copysign(math.inf, score) if score else -slope), math.inf
        above = score / math.sqrt(information) - slope
        return above, above / math.sqrt(information)

    def moments(self, inverse: float) -> tuple[float, float]:
        """The slope of the log-likelihood and its Fisher information."""
        p = (self.logits * inverse).masked_fill_(self.impossible, -math.inf).softmax(1)
        mean = torch.linalg.vecdot(p, self.logits)
        variance = torch.linalg.vecdot(p, (self.logits - mean[:, None]).square_())
        return float((self.own - mean).sum()), float(variance.sum())
