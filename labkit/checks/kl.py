"""Is a function an estimator of the KL divergence: as a number to watch, or as a loss to descend?

The problems are small enough to be exact: a plain mean over the batch *is* the on-policy expectation. Besides, tokens
are looked at one by one. It imports none of labkit's own estimators, and judges no mask: each token counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.common import number

from .mistakes import scale_of
from .report import PASS, CannotJudge, Raised, Report, Verdict, attempt, caution, fail, judged, parameters_of, tensor_of

DIRECTIONS = ("KL(policy‖ref)", "KL(ref‖policy)")
ROLES = {
    "value": "on-policy, its mean is KL(policy‖ref)",
    "loss": "its expected gradient is that of a KL, finite, alive on both sides and nowhere too steep",
}
NEAR = 0.15  # the near problem: a KL of about 0.01, as in a healthy run
HALF = (torch.float16, torch.bfloat16)
TOLERANCE = {True: 0.05, False: 2e-3}  # of a mean, relative: in half precision, or not
# How often the policy draws each of six symbols, of 64 draws, at each of four positions.
DRAWS = ((26, 14, 10, 8, 4, 2), (4, 26, 2, 14, 8, 10), (8, 8, 12, 4, 16, 16), (2, 4, 8, 10, 14, 26))
# The reference's logits relative to the policy's there; the log-ratios that follow reach from -1.9 to 2.2.
SHIFTS = (
    (-1.0, 0.6, 1.2, -0.4, 0.9, 2.8),
    (1.1, -0.7, 1.4, -1.3, 0.5, 0.2),
    (0.3, -1.6, 0.8, 1.5, -0.2, 0.1),
    (1.7, 1.3, -0.9, 0.4, 0.7, -0.6),
)
REACH = 2.3  # no log-ratio of the problems is larger
# Log-ratios that a single token is looked at with. At 0 every run begins; exp overflows at 88.7 in float32.
SIZES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 2.7, 4.0, 4.99, 5.0, 6.0, 8.0, 9.99, 10.0, 12.0, 15.0, 20.0, 40.0)
OVERFLOW = (80.0, 89.0, 100.0)
LIMIT = 5.0  # as far as a token must be pulled, and the clamp of d at which k3 is as steep as is allowed


def kl_estimator(
    fn: Callable[..., Any], role: str = "value", *, alive_to: float | None = None, steepest: float | None = None
) -> Report:
    """Check `fn(logp, ref_logp)`: float32 [B, T] log-probs of the drawn tokens, policy first, natural log.

    It may return a KL per token [B, T], per sequence [B], or one number; of a tuple, the first entry counts. One with a
    third argument, or one named `mask`, gets a mask [B, T] of ones.

    `role="value"`: the mean over on-policy tokens is KL(policy‖ref), to 0.2 % (5 % in half precision), at a KL of about
    0.01 and at one of about 0.3, with log-ratios from -1.9 to 2.2. k1 and k3 pass, k2 does not.

    `role="loss"`: for gradient descent on a batch drawn from the policy, four things.
    - Direction: the expected gradient is parallel (cosine above 0.999 at every position) to that of
      KL(policy‖ref), as k2's is, or of KL(ref‖policy), as k3's is, and not longer. k1's is zero: it fails.
    - Finite: for every |ref - cur| up to 100, in value and in gradient.
    - Alive: for every |ref - cur| from 0.01 to just under `alive_to`, a token on its own is pulled to the reference.
    - Not too steep: nowhere up to 100 does one token pull more than `steepest` times as hard as a KL does at a
      log-ratio of 1. k3 has the slope e^d - 1: with d clamped at 5 it passes, with a caution (beyond, nothing pulls).
      Its tangent from 5 on passes, and so does k2, whose slope is d.
    Without limits of your own (`alive_to`, by default 5; `steepest`, e^5) a form that a trainer has published passes
    under its name, with what is wrong with it as a caution.

    Raises: ValueError names an unknown `role`, or a `steepest` of 0 or less.
    """
    if role not in ROLES:
        raise ValueError(f"kl_estimator: role must be one of {list(ROLES)}, got {role!r}")
    if steepest is not None and not steepest > 0:
        raise ValueError(f"kl_estimator: steepest must be above 0, got {steepest}")
    limits = (LIMIT if alive_to is None else alive_to), (math.exp(LIMIT) if steepest is None else steepest)
    own_limits = (alive_to, steepest) != (None, None)

    def judge(evidence: dict[str, Any]) -> Verdict:
        if role == "value":
            return _judge_value(fn, evidence)
        return _judge_loss(fn, *limits, own_limits, evidence)

    return judged(f"kl_estimator({role})", ROLES[role], fn, judge)


def _call(fn: Callable[..., Any], logp: Tensor, ref_logp: Tensor) -> Tensor:
    b, t = logp.shape
    named = parameters_of(fn)
    required = [p for p in named if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.name == "mask" for p in named):
        result = attempt(fn, logp, ref_logp.clone(), mask=torch.ones_like(ref_logp))
    elif len(required) == 3:
        result = attempt(fn, logp, ref_logp.clone(), torch.ones_like(ref_logp))
    else:
        result = attempt(fn, logp, ref_logp.clone())
    out = tensor_of(result, f"a KL per token [{b}, {t}], per sequence [{b}], or one number")
    if out.numel() == 1:
        out = out.reshape(())
    elif out.shape == (b, 1):
        out = out[:, 0]
    if out.shape not in ((b, t), (b,), ()):
        raise CannotJudge(
            f"Expected shape [{b}, {t}], [{b}] or a single number. Likely a shift or a sum inside.",
            returned=f"shape {list(out.shape)} for log-probs of shape [{b}, {t}]",
        )
    return out


def _judge_value(fn: Callable[..., Any], evidence: dict[str, Any]) -> Verdict:
    for name, scale in (("wide", 1.0), ("near", NEAR)):  # mistakes differ more on the wide one
        problem = Problem.make(scale)
        logp, ref_logp = problem.batch()
        out = _call(fn, logp.detach(), ref_logp).detach()
        mean, true = float(out.double().mean()), float(problem.divergence().mean())
        evidence |= {"output": _form(out), f"kl_{name}": true, f"mean_{name}": mean}
        half = out.dtype in HALF
        if not abs(mean / true - 1) <= TOLERANCE[half]:
            b, t = problem.tokens.shape
            return fail(
                f"Its mean is {number(mean / true)} times the KL. Below 0 a sign is flipped; {t} times is a sum over "
                f"each sequence, {b * t} times one over all tokens; 1.15 times is k2, which is biased: as a number use "
                "k1 or k3. NaN: are log-probs read as probabilities?"
            )
        if half:  # it cannot be held to a small KL
            break
    return PASS


def _judge_loss(
    fn: Callable[..., Any], alive_to: float, steepest: float, own_limits: bool, evidence: dict[str, Any]
) -> Verdict:
    # 1. The direction of the expected gradient, over a batch.
    problem = Problem.make(1.0)
    logp, ref_logp = problem.batch()
    out = _call(fn, logp * 1.0, ref_logp)
    gradient = _gradient(out.mean(), problem.logits).double()
    along = "neither"
    evidence["output"] = _form(out)
    for name, exact in zip(DIRECTIONS, problem.gradients(), strict=True):
        cosine = _cosine(gradient, exact)
        evidence[f"cosine_{name}"] = cosine
        if cosine > 0.999 and along == "neither":
            along = name
    evidence["gradient_of"] = along

    # 2. The slope of single tokens.
    tokens = _measure(fn, steepest)
    near = [token for token in tokens if abs(token.d) < alive_to]
    evidence["not_finite_at"] = [token.d for token in tokens if not token.finite]
    evidence["wrong_way_at"] = [token.d for token in near if token.away]
    evidence["dead_at"] = [token.d for token in near if token.dead]
    if along == "neither":
        return fail(f"{_direction_cause(problem, out, gradient)} {_overflow(tokens)}".strip())

    # 3. What is wrong, all of it; else what to know.
    times = _times(problem, out, gradient, along)
    evidence["steepest"] = max((abs(token.slope) for token in tokens if token.finite), default=0.0)
    evidence["times"] = times
    causes = [_overflow(tokens), _steep(tokens, steepest), _dead(tokens, near), _away(near)]
    if times > 1.03:  # a coefficient is below 1
        causes.append(
            f"Its expected gradient is {number(times)} times that of {along}. Likely d² where k2 is d² / 2, or a "
            "factor: the coefficient counts that much more."
        )
    name = "" if own_limits else _published(tokens)
    if any(causes) and name:
        evidence["published"] = name
        return caution(f"This is {name}. {' '.join(filter(None, causes))}")
    if any(causes):
        return fail(" ".join(filter(None, causes)))
    cautions = []
    if times < 0.97:
        cautions.append(f"Its gradient is {number(times)} times that of {along}: likely a coefficient is inside.")
    beyond = _dead_from(tokens)
    if beyond is not None:
        cautions.append(f"No gradient from d = {number(beyond)} on: log `labkit.kl.clamped_fraction`.")
    return caution(" ".join(cautions)) if cautions else PASS


def _form(out: Tensor) -> str:
    return f"{('one number', 'per sequence', 'per token')[out.dim()]}, {out.dtype}".replace("torch.", "")


def _times(problem: Problem, out: Tensor, gradient: Tensor, along: str) -> float:
    """How long the gradient is beside that of the KL, for the way to sum up that explains it best."""
    exact = problem.gradients()[DIRECTIONS.index(along)]
    b, t = problem.tokens.shape
    scale = scale_of(gradient, exact) * t  # the mean over tokens
    scales = [scale]
    if out.dim() < 2:  # a mean of sums over sequences, or the sum over all
        scales += [scale / t, scale / t / b] if out.dim() == 0 else [scale / t]
    return min(scales, key=lambda scale: min(abs(math.log(scale)), abs(math.log(scale / 2))))


def _direction_cause(problem: Problem, out: Tensor, gradient: Tensor) -> str:
    if not out.requires_grad:
        return "The result carries no gradient. Likely `.detach()`, `.item()` or `no_grad` inside."
    if float(gradient.norm()) < 1e-3 * float(problem.gradients()[0].norm() / problem.tokens.shape[1]):
        if not out.any():
            return "Value and gradient are zero. Likely not written yet, or multiplied by zero."
        return "The expected gradient is zero, as k1's (cur - ref) is: it teaches nothing. As a loss use k2 or k3."
    if any(_cosine(-gradient, exact) > 0.999 for exact in problem.gradients()):
        return "It pushes away from the reference: the sign of the loss is flipped."
    return (
        "The expected gradient is not along that of either KL. Likely k3 with its arguments swapped (cur - ref where "
        "ref - cur belongs), `clamp(ref - cur, 0, 10)`, which pulls on one side alone, or |cur - ref|."
    )


def _gradient(loss: Tensor, at: Tensor) -> Tensor:
    if not loss.requires_grad:
        return torch.zeros_like(at)
    try:
        (gradient,) = torch.autograd.grad(loss, at, allow_unused=True, retain_graph=True)
    except RuntimeError as error:  # an in-place write inside the judged function
        raise Raised from error
    return torch.zeros_like(at) if gradient is None else gradient


def _cosine(gradient: Tensor, true: Tensor) -> float:
    """The smallest cosine over positions; 0 where the gradient vanishes or is not finite."""
    cosine = torch.cosine_similarity(gradient, true, dim=-1).nan_to_num(0.0)
    return float(cosine.min() if float(cosine.mean()) > 0 else cosine.max())


@dataclass
class Problem:
    """A batch that holds each symbol as often as the policy draws it, and the exact divergences."""

    logits: Tensor  # [T, V], the leaf that gradients are taken of
    ref_logp: Tensor  # [T, V]
    tokens: Tensor  # [B, T]

    @classmethod
    def make(cls, scale: float, dtype: torch.dtype = torch.float32) -> Problem:
        draws = torch.tensor(DRAWS, dtype=torch.float64)
        logp = (draws / draws.sum(1, keepdim=True)).log()
        ref_logp = (logp + scale * torch.tensor(SHIFTS, dtype=torch.float64)).log_softmax(-1)
        rng = torch.Generator().manual_seed(3)
        columns = [torch.repeat_interleave(torch.arange(6), torch.tensor(counts)) for counts in DRAWS]
        shuffled = [column[torch.randperm(len(column), generator=rng)] for column in columns]
        return cls(logp.to(dtype).requires_grad_(), ref_logp.to(dtype), torch.stack(shuffled, dim=1))

    def batch(self) -> tuple[Tensor, Tensor]:
        """(logp, ref_logp) of the drawn tokens, [B, T], the first with gradient."""
        at = torch.arange(self.tokens.shape[1])
        return self.logits.log_softmax(-1)[at, self.tokens], self.ref_logp[at, self.tokens]

    def divergence(self) -> Tensor:
        """Exact KL(policy‖ref) at each position, [T], float64."""
        p, q = self.logits.detach().double().log_softmax(-1), self.ref_logp.double()
        return (p.exp() * (p - q)).sum(-1)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """p (log p/q - KL) and p - q: the gradients of KL(policy‖ref) and KL(ref‖policy) in the policy's logits."""
        p, q = self.logits.detach().double().log_softmax(-1), self.ref_logp.double()
        return p.exp() * (p - q - self.divergence()[:, None]), p.exp() - q.exp()


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


def _measure(fn: Callable[..., Any], steepest: float) -> list[Token]:
    """A batch of tokens at each log-ratio, smallest d first."""
    # Also just above the log-ratio at which k3 would reach `steepest`.
    border = math.log(steepest) if 1 < steepest < math.inf else LIMIT
    sizes = {*SIZES, *OVERFLOW, 1.02 * border, 1.1 * border}
    high = torch.full((2, 3), -0.125, dtype=torch.float32)
    tokens = []
    for d in sorted(sizes | {-size for size in sizes}):
        logp, ref_logp = (high, high + d) if d < 0 else (high - d, high)  # no log-prob above 0
        logp = logp.clone().requires_grad_()
        mean = _call(fn, logp * 1.0, ref_logp).double().mean()
        tokens.append(Token(d + 0.0, float(mean.detach()), float(_gradient(mean, logp).double().sum())))
    unit = sum(abs(token.slope / token.d) / 2 for token in tokens if abs(token.d) == 0.03)
    if 0 < unit < math.inf:
        tokens = [token._replace(slope=token.slope / unit) for token in tokens]
    return tokens


def _k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    return (ref_logp - logp).exp() - (ref_logp - logp) - 1


def _low_var_kl(logp: Tensor, ref_logp: Tensor) -> Tensor:
    d = (ref_logp - logp).clamp(-20, 20)
    return (d.exp() - d - 1).clamp(-10, 10)


# trl 1.16, grpo_trainer.py 3100-3105; torchtune bd2a0fc7, dev/grpo/loss.py 85-88; verl b178a3cd, core_algos.py
# 1890-1896; OpenRLHF 3c3be623, models/utils.py 82-95
PUBLISHED = {
    "k3, as TRL and torchtune have it": _k3,
    "k3 times the ratio, as TRL has it": lambda p, r: _k3(p, r) * (p - p.detach()).exp(),
    "verl's low_var_kl": _low_var_kl,
    "OpenRLHF's k3": lambda p, r: _k3(p, r).clamp(-10, 10),
    "OpenRLHF's k2": lambda p, r: ((p - r).square() / 2).clamp(-10, 10),
}


def _published(tokens: list[Token]) -> str:
    """The published form with these values and slopes at every log-ratio; "" for another."""
    for name, form in PUBLISHED.items():
        theirs = _measure(form, math.exp(LIMIT))
        if len(theirs) == len(tokens) and all(map(_same, tokens, theirs)):
            return name
    return ""


def _same(one: Token, other: Token) -> bool:
    pairs = ((one.value, other.value), (one.slope, other.slope))
    return all(
        math.isclose(a, b, rel_tol=1e-2, abs_tol=1e-4) or (not math.isfinite(a) and not math.isfinite(b))
        for a, b in pairs
    )


# What is wrong with them, and "" where nothing is.


def _overflow(tokens: list[Token]) -> str:
    beyond = [token for token in tokens if not token.finite]
    if not beyond:
        return ""
    d = min((token.d for token in beyond), key=abs)
    if d == 0:
        return "Not finite at d = 0, where the first update of every run is. Likely a root or a division by |d|."
    if all(math.isfinite(token.value) for token in beyond):
        return (
            f"At d = {number(d)} the value is finite and the gradient is not. Likely a clamp after exp: backward "
            "multiplies its 0 by inf, and so does a `where`. Clamp d = ref - cur before exp."
        )
    overflow = "it overflows at 88.7 in float32, at 11.09 in float16"
    return f"Not finite from d = {number(d)} on. Likely exp without a clamp ({overflow}). Clamp d."


def _steep(tokens: list[Token], steepest: float) -> str:
    worst = max((token for token in tokens if token.finite), key=lambda token: abs(token.slope), default=None)
    if worst is None or abs(worst.slope) <= 1.05 * steepest:  # 5 %: half precision
        return ""
    limit, border = number(steepest), math.log(steepest)
    way_out = f"Take a Huber loss, `huber_loss(logp, ref_logp, reduction='none', delta={limit})`"
    if border > REACH:  # a clamp that acts on ordinary tokens would turn the expected gradient
        way_out += f", or clamp d at {number(border)}: expm1(d) - d has the slope e^d - 1"
    return (
        f"Too steep: at d = {number(worst.d)} the slope is {number(abs(worst.slope))}, and the limit is {limit}: "
        f"one such token decides the update. {way_out}."
    )


def _dead(tokens: list[Token], near: list[Token]) -> str:
    dead = [token.d for token in near if token.dead]
    if not dead:
        return ""
    start = min(dead, key=lambda d: (abs(d), d < 0))
    if all(token.dead for token in tokens if token.finite and token.d / start > 1):
        likely = "the output is clamped (at 10, k3 dies from d = 2.61), or the input too tightly"
        return f"No gradient from d = {number(start)} on: the worst tokens are not pulled back. Likely {likely}."
    return (
        f"No gradient at d = {number(start)}, and there is one beyond. Likely a mask or a `where`, or half precision, "
        "which cannot tell log-probs so close apart: take them in float32."
    )


def _away(near: list[Token]) -> str:
    away = [token.d for token in near if token.away]
    if not away:
        return ""
    d = number(min(away, key=abs))
    return f"A token at d = {d} is pushed away from the reference. Likely the `- d` of exp(d) - 1 - d is missing."


def _dead_from(tokens: list[Token]) -> float | None:
    """The log-ratio above which nothing pulls any more."""
    above = [token for token in tokens if token.d > 0 and token.finite]
    alive = max((token.d for token in above if not token.dead), default=0.0)
    return min((token.d for token in above if token.d > alive), default=None)
