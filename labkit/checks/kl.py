"""Is a function an estimator of the KL divergence: as a number to watch, or as a loss to descend?

The test problems are small enough to be exact: the batch holds every symbol exactly as often as the policy
draws it, so a plain mean over the batch *is* the on-policy expectation, for a value per token, per sequence
or for a single number alike. It imports none of labkit's own estimators.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.common import number

from .mistakes import first, nearest, nearest_multiple
from .report import CannotJudge, Raised, RelativeError, Report, attempt, judged, tensor_of

DIRECTIONS = ("KL(policy‖ref)", "KL(ref‖policy)")
ROLES = {
    "value": "on-policy, its mean is KL(policy‖ref)",
    "loss": "its expected gradient is that of a KL, finite, and alive on both sides",
}
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
NEAR = 0.15  # the near problem: a KL of about 0.01, as in a healthy run
ALIVE = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 2.7, 4.0, 6.0, 8.0, 9.99)
FAR = (12.0, 20.0, 40.0, 80.0, 89.0, 100.0)
HALF = (torch.float16, torch.bfloat16)
PARALLEL = 0.045  # distance of unit vectors: a cosine of 0.999
# What is usually written in place of an estimator, per token, from d = ref - cur and the policy's log-prob.
FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "-k1": lambda d, logp: d,
    "-k2": lambda d, logp: -(d**2) / 2,
    "-k3": lambda d, logp: d - torch.expm1(d),
    "k2": lambda d, logp: d**2 / 2,
    "abs": lambda d, logp: d.abs(),
    "only ref > cur": lambda d, logp: d.clamp(min=0),
    "only cur > ref": lambda d, logp: (-d).clamp(min=0),
    "k3 swapped": lambda d, logp: torch.expm1(-d) + d,
    "no - 1": lambda d, logp: d.exp() - d,
    "no - d": lambda d, logp: d.exp() - 1,
    "d²": lambda d, logp: d**2,
    "p twice": lambda d, logp: -d * logp.exp(),
}
VALUE_HINTS = {
    "-k1": "It is -KL: the sign is flipped. Likely ref - cur where cur - ref belongs.",
    "k2": "It is k2, d² / 2: never negative, little noise, but biased. Use k1 or k3 as a number.",
    "abs": "It is |cur - ref|, which has no mean to speak of. Use k1 or k3.",
    "only ref > cur": "It keeps only ref > cur: the other side counts as 0. Likely `clamp(ref - cur, 0, 10)` in place "
    "of k3; use expm1(d) - d, with d clamped from above.",
    "only cur > ref": "It keeps only cur > ref. Likely a clamp at 0.",
    "k3 swapped": "It is k3 with the arguments swapped, exp(cur - ref) - 1 - (cur - ref): right only for tokens drawn "
    "from the reference.",
    "no - 1": "It is KL + 1: likely the `- 1` of exp(d) - d - 1 is missing.",
    "no - d": "Its mean is 0. Likely the `- d` of exp(d) - 1 - d is missing.",
    "-k3": "It is -k3: the sign is flipped.",
    "d²": "It is d²: likely the factor 1/2 of k2 is missing; and k2 is biased.",
    "p twice": "It weighs with p once more. Tokens drawn from the policy carry that weight already.",
    "zeros": "It returns zeros. Likely not written yet, or both arguments are the same inside.",
    "NaN": "The mean is NaN or inf at log-ratios below 2. Likely log-probs are read as probabilities.",
    "times": "It is {factor} times the KL. Likely {what}.",
    "biased": "Its mean is {factor} times the KL, a bias that no known mistake explains.",
}
LOSS_HINTS = {
    "-k3": "It pushes away from the reference: the sign of the loss is flipped (a k3).",
    "-k2": "It pushes away from the reference: the sign of the loss is flipped (a k2).",
    "k3 swapped": "It is k3 with the arguments swapped: its expected gradient is that of half the chi-square "
    "divergence. Likely cur - ref where ref - cur belongs.",
    "only ref > cur": "Only tokens with ref > cur are pulled. Likely `clamp(ref - cur, 0, 10)`: no gradient where "
    "d < 0, and the same one for every d above.",
    "abs": "It is |cur - ref|: its expected gradient is that of twice the total variation.",
    "no gradient": "The result carries no gradient. Likely `.detach()`, `.item()` or `no_grad` inside.",
    "NaN": "The gradient is NaN or inf at log-ratios below 2.",
    "zeros": "Value and gradient are zero. Likely not written yet, or multiplied by zero.",
    "k1": "The expected gradient is zero, as k1's (cur - ref) is: the mean of grad log p over the policy's own draws "
    "vanishes. As a loss use k2 or k3.",
    "unknown": "The expected gradient is not along that of either KL, in no pattern known here.",
    "half": "No gradient at d = {d}: likely half precision, which cannot tell log-probs so close apart. Take log-probs "
    "and their difference in float32.",
    "dead below": "No gradient where the policy is surer than the reference (d < 0). Likely a clamp at 0.",
    "dead": "No gradient from d = {d} on: the worst tokens are not pulled back. Likely the output is clamped (at 10, "
    "k3 dies from d = 2.61), or the input too tightly.",
}


def kl_estimator(
    fn: Callable[..., Any],
    role: str = "value",
    *,
    alive_to: float = 10.0,
    finite_to: float = 100.0,
    tolerance: float = 2e-3,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Report:
    """Check `fn(logp, ref_logp)`: [B, T] log-probs of the drawn tokens, policy first, natural log.

    It may return a KL per token [B, T], per sequence [B], or one number (`.seen["output"]` says which); of a
    tuple, the first entry counts. Where it has a parameter with "mask" in its name, it gets one, [B, T],
    1 = counts, with junk in the other places and rows of unequal length; a mean over tokens and a mean over
    sequences of their token means are both accepted.

    `role="value"`: the mean over on-policy tokens is KL(policy‖ref), within `tolerance` of it, at a KL of
    about 0.01 and at one of about 0.3, with log-ratios from -1.9 to 2.2. k1 and k3 pass, k2 does not. A clamp
    that acts further out passes: `.seen["error_far"]`, at log-ratios from -19 to 3.5, shows what it costs.

    `role="loss"`: for gradient descent on a batch drawn from the policy, three things.
    - Direction: the expected gradient is parallel (cosine above 0.999 at every position) to that of
      KL(policy‖ref), as k2's is, or to that of KL(ref‖policy), as k3's is. Both pull the policy to the
      reference; `.seen` has both cosines. k1 fails: its expected gradient is zero.
    - Finite: for every |ref - cur| up to `finite_to`, in value and in gradient.
    - Alive: for every |ref - cur| from 0.01 to just under `alive_to`, a token on its own is pulled towards
      the reference: its gradient is not zero and has the right sign.

    The function gets `dtype` and may compute in another; a result in half precision is held to 5 %. The trl,
    verl and OpenRLHF formulas of which one part fails can be asked the rest: `finite_to=80` for a k3 without a
    clamp, `alive_to=2.6` for one whose output is clamped at 10. ValueError: unknown `role`.
    """
    if role not in ROLES:
        raise ValueError(f"kl_estimator: role must be one of {list(ROLES)}, got {role!r}")
    estimate = _Estimate(fn, torch.device(device), dtype, tolerance, alive_to, finite_to)
    judge = estimate.judge_value if role == "value" else estimate.judge_loss
    return judged(f"kl_estimator({role})", ROLES[role], fn, judge)


@dataclass
class Problem:
    """A batch that holds each symbol as often as the policy draws it, and the exact divergences."""

    logits: Tensor  # [T, V], the leaf that gradients are taken of
    ref_logp: Tensor  # [T, V]
    tokens: Tensor  # [B, T]
    mask: Tensor  # [B, T], 1 = counts

    @classmethod
    def make(cls, scale: float, masked: bool, device: torch.device, dtype: torch.dtype) -> Problem:
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
            pad = lambda x: F.pad(x, (1, 1))
            tokens, mask = pad(torch.cat([tokens, tokens])), pad(torch.cat([mask, shorter]))
            tokens[mask == 0] = JUNK
            logp, ref_logp = (torch.cat([x[:1], x, x[2:3]]) for x in (logp, ref_logp))
        return cls(
            logp.to(device, dtype).requires_grad_(),
            ref_logp.to(device, dtype),
            tokens.to(device),
            mask.to(device),
        )

    @property
    def positions(self) -> Tensor:
        """Positions that count in every row or in some, [T] bool."""
        return self.mask.any(0)

    def batch(self) -> tuple[Tensor, Tensor]:
        """(logp, ref_logp) of the drawn tokens, [B, T], the first with gradient; junk where nothing counts."""
        at = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return self.logits.log_softmax(-1)[at, self.tokens], self.ref_logp[at, self.tokens]

    def divergences(self) -> tuple[Tensor, Tensor]:
        """Exact KL(policy‖ref) and KL(ref‖policy) at the counted positions, [T], float64."""
        p, q = self._log_probs()
        return (p.exp() * (p - q)).sum(-1), (q.exp() * (q - p)).sum(-1)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Their exact gradients in the policy's logits, [T, V], float64: p (log p/q - KL) and p - q."""
        p, q = self._log_probs()
        forward, _ = self.divergences()
        return p.exp() * (p - q - forward[:, None]), p.exp() - q.exp()

    def _log_probs(self) -> tuple[Tensor, Tensor]:
        keep = self.positions
        return self.logits.detach().double().log_softmax(-1)[keep], self.ref_logp.double()[keep]

    def spread(self, at_position: Tensor) -> Tensor:
        """[T counted] -> [B, T], zero elsewhere."""
        full = torch.zeros(self.mask.shape[1], dtype=at_position.dtype, device=self.mask.device)
        full[self.positions] = at_position
        return full.expand(self.mask.shape)

    def mean_of(self, per_token: Tensor) -> Tensor:
        """Mean over the counted tokens."""
        return per_token.masked_fill(self.mask == 0, 0.0).sum() / self.mask.sum()

    def mean_of_sequences(self, per_token: Tensor) -> Tensor:
        """Mean over the rows of each row's mean over its counted tokens."""
        return (per_token.masked_fill(self.mask == 0, 0.0).sum(1) / self.mask.sum(1)).mean()


@dataclass
class _Mean:
    """The mean of a value on one problem, beside the true one."""

    problem: Problem
    out: Tensor  # float64, in the function's own shape
    found: float
    true: float
    lenient: bool  # half precision, which cannot be held to a small KL

    def passes(self, tolerance: float) -> bool:
        return self.lenient or abs(self.found / self.true - 1) <= tolerance


class _Token(NamedTuple):
    """A batch of tokens with one and the same log-ratio d = ref - cur."""

    d: float
    value: float
    slope: float  # the derivative by logp

    @property
    def finite(self) -> bool:
        return math.isfinite(self.value) and math.isfinite(self.slope)


@dataclass
class _Estimate:
    """The function on the problems of the check."""

    fn: Callable[..., Any]
    device: torch.device
    dtype: torch.dtype
    tolerance: float
    alive_to: float
    finite_to: float

    def __post_init__(self) -> None:
        self.mask_name = _mask_parameter(self.fn)

    def call(self, logp: Tensor, ref_logp: Tensor, mask: Tensor) -> Tensor:
        kwargs = {} if self.mask_name is None else {self.mask_name: mask.clone()}
        result = attempt(self.fn, logp, ref_logp.clone(), **kwargs)
        b, t = logp.shape
        out = tensor_of(result, f"a KL per token [{b}, {t}], per sequence [{b}], or one number")
        if out.shape == (b, 1):
            out = out[:, 0]
        if out.numel() == 1:
            out = out.reshape(())
        if out.shape not in ((b, t), (b,), ()):
            raise CannotJudge(
                f"Expected shape [{b}, {t}], [{b}] or a single number. Likely a shift or a sum inside.",
                returned=f"shape {list(out.shape)} for log-probs of shape [{b}, {t}]",
            )
        return out

    def problem(self, scale: float) -> Problem:
        return Problem.make(scale, self.mask_name is not None, self.device, self.dtype)

    # As a value -----------------------------------------------------------------------------------------

    def judge_value(self, seen: dict[str, Any]) -> str:
        near, wide = self._mean(NEAR), self._mean(1.0)
        half = wide.out.dtype in HALF
        near.lenient = half
        seen |= {"kl_near": near.true, "mean_near": near.found, "kl_wide": wide.true, "mean_wide": wide.found}
        seen |= {"output": _form(wide.out), "mask": "given" if self.mask_name else "not taken"}
        try:
            far = self._mean(6.0)  # log-ratios reach 12: what a clamp costs
            seen["error_far"] = RelativeError(far.found / far.true - 1)
        except (Raised, CannotJudge):
            seen["error_far"] = None
        for mean in (wide, near):  # mistakes differ more on the wide one
            leak = _mask_leak(mean.out, mean.problem) if self.mask_name else ""
            if leak:
                return leak
            if not mean.passes(0.05 if half else self.tolerance):
                return self._value_cause(mean)
        return ""

    def _mean(self, scale: float) -> _Mean:
        problem = self.problem(scale)
        logp, ref_logp = problem.batch()
        out = self.call(logp.detach(), ref_logp, problem.mask).detach()
        found = float(_mean_of(out.double(), problem))
        exact = problem.spread(problem.divergences()[0])
        true = [float(problem.mean_of(exact)), float(problem.mean_of_sequences(exact))]
        if out.dim() == 2:
            true = true[:1]
        return _Mean(problem, out, found, min(true, key=lambda x: abs(found - x)), False)

    def _value_cause(self, mean: _Mean) -> str:
        """Compare the mean with what each usual mistake gives."""
        problem, found = mean.problem, mean.found
        logp, ref_logp = (x.detach().double() for x in problem.batch())
        d = ref_logp - logp
        if not math.isfinite(found) or not mean.out.any():
            return VALUE_HINTS["zeros" if not mean.out.any() else "NaN"]
        for mean_of in (problem.mean_of, problem.mean_of_sequences)[: 3 - mean.out.dim()]:
            wrong = {n: float(mean_of(FORMS[n](d, logp))) for n in FORMS if n in VALUE_HINTS}
            name = nearest(found, wrong, 2e-3, floor=5e-4)
            if name:
                return VALUE_HINTS[name]
        tokens, (b, t) = float(problem.mask.sum()), problem.mask.shape
        factors = {
            "the sum over all counted tokens, not their mean": tokens,
            "the sum over each sequence, averaged over sequences, not per token": tokens / b,
            "divided by all positions, padding included": tokens / (b * t),
            "in bits, not nats": 1 / math.log(2),
        }
        what = nearest(found, {name: mean.true * factor for name, factor in factors.items()}, 2e-3) or ""
        sums = {
            (hint, k, count): float((per_token * mask).sum() / count)
            for hint, mask in _other_masks(problem.mask)
            for k, per_token in enumerate((torch.expm1(d) - d, -d))
            for count in (tokens, float(mask.sum()))
        }
        moved = nearest(found, sums, 2e-3) if self.mask_name else None
        hint = VALUE_HINTS["times"] if what else moved[0] if moved else VALUE_HINTS["biased"]
        return hint.format(factor=number(factors.get(what, found / mean.true)), what=what)

    # As a loss ------------------------------------------------------------------------------------------

    def judge_loss(self, seen: dict[str, Any]) -> str:
        problem = self.problem(1.0)
        logp, ref_logp = problem.batch()
        out = self.call(logp, ref_logp, problem.mask)
        everywhere = _gradient(_mean_of(out, problem), problem.logits).double()
        found = everywhere[problem.positions]
        cosines = dict(zip(DIRECTIONS, (_cosine(found, g) for g in problem.gradients()), strict=True))
        along = next((name for name, cosine in cosines.items() if cosine > 0.999), "neither")
        seen |= {"output": _form(out), "mask": "given" if self.mask_name else "not taken"}
        seen |= {f"cosine_{name}": cosine for name, cosine in cosines.items()} | {"gradient_of": along}
        leak = self._mask_cause(problem, out, everywhere) if self.mask_name else ""
        if leak:
            return leak

        tokens = self._single_tokens()
        live = [t for t in tokens if abs(t.d) < self.alive_to and math.isfinite(t.slope)]
        wrong_way = [t.d for t in live if t.slope * t.d > 0]
        dead = [t.d for t in live if abs(t.slope) < 1e-4 * min(abs(t.d), 1) and t.d not in wrong_way]
        seen |= {
            "not_finite_at": [t.d for t in tokens if not t.finite],
            "wrong_way_at": wrong_way,
            "dead_at": dead,
            "finite_to": self.finite_to,
            "alive_to": self.alive_to,
        }
        hints = [_finite_cause([t for t in tokens if not t.finite])]
        if along == "neither":
            return " ".join(filter(None, [self._direction_cause(problem, out, found), *hints]))
        return " ".join(filter(None, [*hints, _dead_cause(dead), _wrong_way_cause(wrong_way)]))

    def _mask_cause(self, problem: Problem, out: Tensor, found: Tensor) -> str:
        """What the gradient [T, V], all positions, tells about the mask inside; "" when it is right or unknown."""
        if out.dim() == 2:
            return _mask_leak(out.detach(), problem)
        logp, ref_logp = problem.batch()
        d = ref_logp - logp
        alike = {
            (hint, k): _gradient((per_token * mask).sum(), problem.logits).double()
            for hint, mask in _other_masks(problem.mask)
            for k, per_token in enumerate((torch.expm1(d) - d, d**2))
        }
        known = nearest_multiple(found, alike, PARALLEL)
        if known and known[1] > 0:
            return known[0][0]
        if float(found[~problem.positions].norm()) > 1e-3 * float(found.norm()):
            return "Positions that do not count have a gradient. Likely the mask is shifted, or not applied."
        return ""

    def _direction_cause(self, problem: Problem, out: Tensor, found: Tensor) -> str:
        logp, ref_logp = problem.batch()
        d = ref_logp - logp
        means = {name: problem.mean_of(FORMS[name](d, logp)) for name in FORMS if name in LOSS_HINTS}
        gradients = {name: _gradient(mean, problem.logits) for name, mean in means.items()}
        units = {name: F.normalize(g[problem.positions].double(), dim=-1) for name, g in gradients.items()}
        unit, value = F.normalize(found, dim=-1), _mean_of(out.detach(), problem).double()
        both = {
            name: torch.cat([u.flatten(), means[name].detach().double()[None]]) for name, u in units.items()
        }
        known = nearest(torch.cat([unit.flatten(), value[None]]), both, PARALLEL) or nearest(
            unit, units, PARALLEL
        )
        vanishes = float(found.norm()) < 1e-3 * float(problem.gradients()[0].norm())
        hint = first(
            LOSS_HINTS,
            {
                "no gradient": not out.requires_grad,
                "NaN": not found.isfinite().all(),
                "zeros": vanishes and not out.any(),
                "k1": vanishes,
                "unknown": known is None,
            },
        )
        return hint or LOSS_HINTS[known or "unknown"]

    def _single_tokens(self) -> list[_Token]:
        """Value and slope at many log-ratios up to `finite_to`, on both sides."""
        sizes = [x for x in (*ALIVE, *FAR) if x <= self.finite_to]
        found = []
        for d in sorted([-x for x in sizes] + sizes):
            high = torch.full((2, 3), -0.125, dtype=self.dtype, device=self.device)
            logp, ref_logp = (high, high + d) if d < 0 else (high - d, high)  # no log-prob above 0
            logp = logp.clone().requires_grad_()
            out = self.call(logp * 1.0, ref_logp, torch.ones(2, 3, dtype=torch.long, device=self.device))
            slope = _gradient(out.double().mean(), logp).double().sum()
            found.append(_Token(d, float(out.detach().double().mean()), float(slope)))
        return found


def _finite_cause(overflown: list[_Token]) -> str:
    if not overflown:
        return ""
    first = min(overflown, key=lambda t: abs(t.d))
    if all(math.isfinite(t.value) for t in overflown):
        return (
            f"At d = {first.d:.3g} the value is finite and the gradient is not. Likely a clamp after exp: "
            "backward multiplies its 0 by inf. Clamp d = ref - cur before exp."
        )
    where = "exp overflows at 88.7 in float32" if abs(first.d) > 80 else "exp overflows at 11.09 in float16"
    ratio = "exp(ref - cur)" if first.d > 0 else "exp(cur - ref)"
    return f"Not finite from d = {first.d:.3g} on. Likely {ratio} without a clamp ({where}). Clamp d."


def _dead_cause(dead: list[float]) -> str:
    if not dead:
        return ""
    above, below = [d for d in dead if d > 0], [d for d in dead if d < 0]
    small = all(abs(d) < 0.05 for d in dead)
    start = dead[-1] if small else min(above) if above else max(below)
    conditions = {"half": small, "dead below": below and max(below) >= -1, "dead": True}
    return first(LOSS_HINTS, conditions).format(d=number(start))


def _wrong_way_cause(wrong_way: list[float]) -> str:
    if not wrong_way:
        return ""
    cause = " Likely the `- d` of exp(d) - 1 - d is missing." if max(wrong_way) < 0 else ""
    nearest = min(wrong_way, key=abs)
    return f"A token at d = {nearest:.3g} is pushed away from the reference, not towards it.{cause}"


def _mask_parameter(fn: Any) -> str | None:
    """The name of the parameter that takes a mask, if there is one."""
    try:
        names = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return None
    return next((name for name in names[2:] if "mask" in name.lower()), None)


def _other_masks(mask: Tensor) -> Iterator[tuple[str, Tensor]]:
    late, early = torch.roll(mask, 1, 1), torch.roll(mask, -1, 1)
    for by, moved in ((1, late), (-1, early)):
        moved[:, 0 if by > 0 else -1] = 0
    yield "The mask is one position late: likely not shifted together with the log-probs.", late
    yield "The mask is one position early: likely shifted twice.", early
    yield "The mask is not applied: padding counts.", torch.ones_like(mask)
    yield "The mask is inverted: likely 1 stands for 'ignore' inside. Here 1 = counts.", 1 - mask


def _mask_leak(out: Tensor, problem: Problem) -> str:
    """What a per-token result tells about the mask inside: junk let through in some places only, or instead.

    No junk has a log-ratio of 0, so all of it is let through (the caller's business), or none is.
    """
    if out.dim() != 2:
        return ""
    junk = problem.mask == 0
    through = out != 0
    if not through[junk].any() or (through[junk].all() and through[~junk].any()):
        return ""
    for hint, mask in _other_masks(problem.mask):
        if torch.equal(through[junk], mask[junk] == 1) and through[~junk].any() == mask[~junk].any():
            return hint
    return "Some uncounted places count. Likely the mask is shifted inside."


def _mean_of(out: Tensor, problem: Problem) -> Tensor:
    return problem.mean_of(out) if out.dim() == 2 else out.mean()


def _form(out: Tensor) -> str:
    return ("one number", "per sequence", "per token")[
        out.dim()
    ] + f", {str(out.dtype).removeprefix('torch.')}"


def _gradient(loss: Tensor, at: Tensor) -> Tensor:
    if not loss.requires_grad:
        return torch.zeros_like(at)
    try:
        (gradient,) = torch.autograd.grad(loss, at, allow_unused=True, retain_graph=True)
    except RuntimeError as error:  # an in-place write inside the judged function
        raise Raised(error) from error
    return torch.zeros_like(at) if gradient is None else gradient


def _cosine(found: Tensor, true: Tensor) -> float:
    """The smallest cosine over positions; 0 where the gradient vanishes or is not finite."""
    cosine = torch.cosine_similarity(found, true, dim=-1).nan_to_num(0.0)
    return float(cosine.min() if float(cosine.mean()) > 0 else cosine.max())
