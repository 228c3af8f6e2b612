"""Is a function an estimator of the KL divergence: as a number to watch, or as a loss to descend?

The test problems are small enough to be exact (`kl_batch`): a plain mean over the batch *is* the on-policy
expectation, for a value per token, per sequence or for a single number alike. What it does to single tokens is
`kl_pull`'s. It imports none of labkit's own estimators.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.common import number

from .kl_batch import Problem, other_masks
from .kl_pull import LIMIT, Pull
from .mistakes import first, nearest, nearest_multiple, scale_of
from .report import CannotJudge, Caution, Raised, RelativeError, Report, attempt, judged, tensor_of

DIRECTIONS = ("KL(policy‖ref)", "KL(ref‖policy)")
ROLES = {
    "value": "on-policy, its mean is KL(policy‖ref)",
    "loss": "its expected gradient is that of a KL, finite, alive on both sides and nowhere too steep",
}
NEAR = 0.15  # the near problem: a KL of about 0.01, as in a healthy run
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
    "twice": "It is twice a KL: its expected gradient is 2 times that of {along}. Likely d² where k2 is d² / 2: the "
    "coefficient then counts double.",
}
SCALED = "Its gradient is {times} times that of {along}: likely a coefficient is inside."
DEAD_BEYOND = "No gradient from d = {d} on: log the share of such tokens (`labkit.kl.clamped_fraction`)."


def kl_estimator(
    fn: Callable[..., Any],
    role: str = "value",
    *,
    alive_to: float = LIMIT,
    finite_to: float = 100.0,
    steepest: float = math.exp(LIMIT),
    tolerance: float = 2e-3,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Report:
    """Check `fn(logp, ref_logp)`: [B, T] log-probs of the drawn tokens, policy first, natural log.

    It may return a KL per token [B, T], per sequence [B], or one number (`.seen["output"]` says which); of a
    tuple, the first entry counts. Where it has a parameter with "mask" in its name, it gets one, [B, T],
    1 = counts, with junk in the other places and rows of unequal length, as whole numbers, as bool or as floats,
    whichever it works with; then it may also return the counted tokens alone, `[mask]`. A mean over tokens and a mean
    over sequences of their token means are both accepted.

    `role="value"`: the mean over on-policy tokens is KL(policy‖ref), within `tolerance` of it, at a KL of
    about 0.01 and at one of about 0.3, with log-ratios from -1.9 to 2.2. k1 and k3 pass, k2 does not. A clamp
    that acts further out passes: `.seen["error_far"]`, at log-ratios from -19 to 3.5, shows what it costs.

    `role="loss"`: for gradient descent on a batch drawn from the policy, four things.
    - Direction: the expected gradient is parallel (cosine above 0.999 at every position) to that of
      KL(policy‖ref), as k2's is, or to that of KL(ref‖policy), as k3's is, and not twice as long. Both pull the
      policy to the reference; `.seen` has both cosines. k1 fails: its expected gradient is zero.
    - Finite: for every |ref - cur| up to `finite_to`, in value and in gradient.
    - Alive: for every |ref - cur| from 0.01 to just under `alive_to`, a token on its own is pulled towards
      the reference: its gradient is not zero and has the right sign.
    - Not too steep: nowhere up to `finite_to` does one token pull more than `steepest` times as hard as a KL does at
      a log-ratio of 1. `.seen["steepest"]` is what was found.

    One rule meets the last two: **clamp the input; the slope must stay below the limit.** k3 has the slope e^d - 1, so
    with d clamped at 5 it passes, with a caution: beyond 5 nothing pulls. At 10, 20 and 80 it is too steep, with e^10,
    e^20 and e^80. Its tangent from 5 on passes, and so does k2, whose slope is d.

    The function gets `dtype` and may compute in another; a result in half precision is held to 5 %. The trl,
    verl and OpenRLHF formulas of which one part fails can be asked the rest, and the hint offers what passes:
    `finite_to=80, steepest=math.inf` for a k3 without a clamp, `alive_to=2.6` for one whose output is clamped at 10,
    `steepest=math.exp(10)` for a d clamped at 10.

    Raises: ValueError names an unknown `role`, or a `steepest` of 0 or less.
    """
    if role not in ROLES:
        raise ValueError(f"kl_estimator: role must be one of {list(ROLES)}, got {role!r}")
    if not steepest > 0:
        raise ValueError(f"kl_estimator: steepest must be above 0, got {steepest}")
    reports = []
    for kind in (torch.long, torch.bool, torch.float32) if _mask_parameter(fn) else (torch.long,):
        estimate = _Estimate(fn, torch.device(device), dtype, kind, tolerance, alive_to, finite_to, steepest)
        judge = estimate.judge_value if role == "value" else estimate.judge_loss
        reports.append(judged(f"kl_estimator({role})", ROLES[role], fn, judge))
        if reports[-1]:
            return reports[-1]
    unsure = ("no known", "no pattern", "do not count", "uncounted")  # another kind of mask may tell more
    return min(reports, key=lambda r: 2 * ("output" not in r.seen) + any(words in r.hint for words in unsure))


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


@dataclass
class _Estimate:
    """The function on the problems of the check."""

    fn: Callable[..., Any]
    device: torch.device
    dtype: torch.dtype
    mask_dtype: torch.dtype
    tolerance: float
    alive_to: float
    finite_to: float
    steepest: float

    def __post_init__(self) -> None:
        self.mask_name = _mask_parameter(self.fn)
        kind = str(self.mask_dtype).removeprefix("torch.")
        self.mask_form = "not taken" if not self.mask_name else "given" if kind == "int64" else f"given, {kind}"

    def call(self, logp: Tensor, ref_logp: Tensor, mask: Tensor) -> Tensor:
        kwargs = {} if self.mask_name is None else {self.mask_name: mask.to(self.mask_dtype, copy=True)}
        result = attempt(self.fn, logp, ref_logp.clone(), **kwargs)
        b, t = logp.shape
        out = tensor_of(result, f"a KL per token [{b}, {t}], per sequence [{b}], or one number")
        if out.shape == (b, 1):
            out = out[:, 0]
        if out.numel() == 1:
            out = out.reshape(())
        if self.mask_name and out.dim() == 1 and len(out) == int(mask.sum()) != b:  # the counted tokens alone
            out = torch.zeros((b, t), dtype=out.dtype, device=out.device).masked_scatter(mask.bool(), out)
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
        seen |= {"output": _form(wide.out), "mask": self.mask_form}
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
            for hint, mask in other_masks(problem.mask).items()
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
        seen |= {"output": _form(out), "mask": self.mask_form}
        seen |= {f"cosine_{name}": cosine for name, cosine in cosines.items()} | {"gradient_of": along}
        leak = self._mask_cause(problem, out, everywhere) if self.mask_name else ""
        if leak:
            return leak

        pull = Pull(self.alive_to, self.finite_to, self.steepest)
        pull.measure(self._look, torch.full((2, 3), -0.125, dtype=self.dtype, device=self.device))
        seen |= {
            "not_finite_at": [t.d for t in pull.tokens if not t.finite],
            "wrong_way_at": [t.d for t in pull.near if t.away],
            "dead_at": [t.d for t in pull.near if t.dead],
            "finite_to": self.finite_to,
            "alive_to": self.alive_to,
        }
        if along == "neither":
            return " ".join(filter(None, [self._direction_cause(problem, out, found), pull.overflow()]))
        seen["steepest"], seen["times"] = pull.slope, self._times(problem, out, found, along)
        words = {"times": number(seen["times"]), "along": along}
        twice = LOSS_HINTS["twice"].format(**words) if abs(seen["times"] / 2 - 1) < 0.03 else ""
        causes = [pull.overflow(), pull.steep(), pull.dead(), pull.away(), twice]
        if any(causes):
            return " ".join(filter(None, [*causes, "" if twice else pull.offer()]))
        cautions = [SCALED.format(**words)] if abs(seen["times"] - 1) > 0.03 else []
        beyond = pull.dead_from()
        cautions += [DEAD_BEYOND.format(d=number(beyond))] if beyond is not None else []
        return Caution(" ".join(cautions)) if cautions else ""

    def _times(self, problem: Problem, out: Tensor, found: Tensor, along: str) -> float:
        """How long the gradient is beside that of the KL, for the way to sum up that explains it best."""
        exact = problem.gradients()[DIRECTIONS.index(along)]
        mask = problem.mask[:, problem.positions].double()
        ways = [mask.sum(0) / mask.sum()]
        if out.dim() < 2:  # a mean of sequence means, a sum, a mean of sequence sums
            ways += [(mask / mask.sum(1, keepdim=True)).mean(0), mask.sum(0), mask.mean(0)]
        scales = [scale_of(found, way[:, None] * exact) for way in ways]
        return min(scales, key=lambda scale: min(abs(math.log(scale)), abs(math.log(scale / 2))))

    def _mask_cause(self, problem: Problem, out: Tensor, found: Tensor) -> str:
        """What the gradient [T, V], all positions, tells about the mask inside; "" when it is right or unknown."""
        if out.dim() == 2:
            return _mask_leak(out.detach(), problem)
        logp, ref_logp = problem.batch()
        d = ref_logp - logp
        alike = {
            (hint, k): _gradient((per_token * mask).sum(), problem.logits).double()
            for hint, mask in other_masks(problem.mask).items()
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
        both = {name: torch.cat([u.flatten(), means[name].detach().double()[None]]) for name, u in units.items()}
        known = nearest(torch.cat([unit.flatten(), value[None]]), both, PARALLEL) or nearest(unit, units, PARALLEL)
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

    def _look(self, logp: Tensor, ref_logp: Tensor) -> tuple[float, float]:
        """The mean of what the function makes of these tokens, and the sum of its derivatives by logp."""
        logp = logp.clone().requires_grad_()
        out = self.call(logp * 1.0, ref_logp, torch.ones(logp.shape, dtype=torch.long, device=self.device))
        slope = _gradient(out.double().mean(), logp).double().sum()
        return float(out.detach().double().mean()), float(slope)


def _mask_parameter(fn: Any) -> str | None:
    """The name of the parameter that takes a mask, if there is one."""
    try:
        names = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return None
    return next((name for name in names[2:] if "mask" in name.lower()), None)


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
    for hint, mask in other_masks(problem.mask).items():
        if torch.equal(through[junk], mask[junk] == 1) and through[~junk].any() == mask[~junk].any():
            return hint
    return "Some uncounted places count. Likely the mask is shifted inside."


def _mean_of(out: Tensor, problem: Problem) -> Tensor:
    return problem.mean_of(out) if out.dim() == 2 else out.mean()


def _form(out: Tensor) -> str:
    return ("one number", "per sequence", "per token")[out.dim()] + f", {str(out.dtype).removeprefix('torch.')}"


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
