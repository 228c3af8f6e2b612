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
from typing import Any

import torch
from torch import Tensor

from .report import Error, Raised, Report, Unreadable, Verdict, attempt, judged, tensor_of

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
    trial = _Trial(fn, torch.device(device), dtype, tolerance, alive_to, finite_to)
    return judged(f"kl_estimator({role})", ROLES[role], fn, trial.value if role == "value" else trial.loss)


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
            pad = lambda x: torch.nn.functional.pad(x, (1, 1))
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

    def mean_of(self, per_token: Tensor) -> Tensor:
        """Mean over the counted tokens."""
        return per_token.masked_fill(self.mask == 0, 0.0).sum() / self.mask.sum()

    def mean_of_sequences(self, per_token: Tensor) -> Tensor:
        """Mean over the rows of each row's mean over its counted tokens."""
        return (per_token.masked_fill(self.mask == 0, 0.0).sum(1) / self.mask.sum(1)).mean()


@dataclass
class _Trial:
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
            shape = list(out.shape)
            raise Unreadable(
                f"Expected shape [{b}, {t}], [{b}] or a single number. Likely a shift or a sum inside.",
                returned=f"shape {shape} for log-probs of shape [{b}, {t}]",
            )
        return out

    # As a value -----------------------------------------------------------------------------------------

    def value(self) -> Verdict:
        seen: dict[str, Any] = {}
        results = []
        for name, scale in (("near", NEAR), ("wide", 1.0)):
            problem = self._problem(scale)
            logp, ref_logp = problem.batch()
            out = self.call(logp.detach(), ref_logp, problem.mask).detach()
            half = out.dtype in (torch.float16, torch.bfloat16)
            found = float(_mean_of(out.double(), problem))
            true = float(problem.mean_of(self._per_token(problem, problem.divergences()[0])))
            by_rows = float(problem.mean_of_sequences(self._per_token(problem, problem.divergences()[0])))
            nearest = min((true, by_rows), key=lambda x: abs(found - x)) if out.dim() < 2 else true
            error = abs(found / nearest - 1)
            results.append((problem, out.double(), found, nearest, error, half and name == "near"))
            seen |= {f"kl_{name}": nearest, f"mean_{name}": found}
        seen |= {"output": _form(out), "mask": "given" if self.mask_name else "not taken"}
        seen["error_far"] = Error(self._far_error())
        tolerance = 0.05 if half else self.tolerance
        for problem, out, found, nearest, error, exempt in reversed(
            results
        ):  # mistakes differ more on the wide one
            leak = _mask_leak(out, problem) if self.mask_name else ""
            if leak:
                return False, seen, leak
            if not error <= tolerance and not exempt:
                return False, seen, self._value_cause(problem, out, found, nearest)
        return True, seen, ""

    def _problem(self, scale: float) -> Problem:
        return Problem.make(scale, self.mask_name is not None, self.device, self.dtype)

    @staticmethod
    def _per_token(problem: Problem, at_position: Tensor) -> Tensor:
        """[T counted] -> [B, T], zero elsewhere."""
        full = torch.zeros(problem.mask.shape[1], dtype=torch.float64, device=problem.mask.device)
        full[problem.positions] = at_position
        return full.expand(problem.mask.shape)

    def _far_error(self) -> float:
        """Relative error of the mean where log-ratios reach 12: what a clamp costs. NaN where it cannot be had."""
        problem = Problem.make(6.0, self.mask_name is not None, self.device, self.dtype)
        logp, ref_logp = problem.batch()
        try:
            found = float(
                _mean_of(self.call(logp.detach(), ref_logp, problem.mask).detach().double(), problem)
            )
        except (Raised, Unreadable):
            return math.nan
        return found / float(problem.mean_of(self._per_token(problem, problem.divergences()[0]))) - 1

    def _value_cause(self, problem: Problem, out: Tensor, found: float, true: float) -> str:
        """Compare the mean with what each usual mistake gives."""
        if not math.isfinite(found):
            return "The mean is NaN or inf at log-ratios below 2. Likely log-probs are read as probabilities."
        if not out.any():
            return "It returns zeros. Likely not written yet, or both arguments are the same inside."
        logp, ref_logp = (x.detach().double() for x in problem.batch())
        d = ref_logp - logp
        candidates: list[tuple[str, Tensor]] = [
            ("It is -KL: the sign is flipped. Likely ref - cur where cur - ref belongs.", d),
            (
                "It is k2, d² / 2: never negative, little noise, but biased. Use k1 or k3 as a number.",
                d**2 / 2,
            ),
            ("It is |cur - ref|, which has no mean to speak of. Use k1 or k3.", d.abs()),
            (
                "It keeps only ref > cur: the other side counts as 0. Likely `clamp(ref - cur, 0, 10)` in place "
                "of k3; use expm1(d) - d, with d clamped from above.",
                d.clamp(min=0),
            ),
            ("It keeps only cur > ref. Likely a clamp at 0.", (-d).clamp(min=0)),
            (
                "It is k3 with the arguments swapped, exp(cur - ref) - 1 - (cur - ref): right only for tokens "
                "drawn from the reference.",
                torch.expm1(-d) + d,
            ),
            ("It is KL + 1: likely the `- 1` of exp(d) - d - 1 is missing.", d.exp() - d),
            ("Its mean is 0. Likely the `- d` of exp(d) - 1 - d is missing.", d.exp() - 1),
            ("It is -k3: the sign is flipped.", d - torch.expm1(d)),
            ("It is d²: likely the factor 1/2 of k2 is missing; and k2 is biased.", d**2),
            (
                "It weighs with p once more. Tokens drawn from the policy carry that weight already.",
                -d * logp.exp(),
            ),
        ]
        for hint, per_token in candidates:
            if _close(found, float(problem.mean_of(per_token))) or (
                out.dim() < 2 and _close(found, float(problem.mean_of_sequences(per_token)))
            ):
                return hint
        tokens, (b, t) = float(problem.mask.sum()), problem.mask.shape
        for factor, what in (
            (tokens, "the sum over all counted tokens, not their mean"),
            (tokens / b, "the sum over each sequence, averaged over sequences, not per token"),
            (tokens / (b * t), "divided by all positions, padding included"),
            (1 / math.log(2), "in bits, not nats"),
        ):
            if _close(found, true * factor):
                return f"It is {factor:.3g} times the KL. Likely {what}."
        if self.mask_name:
            for hint, mask in _other_masks(problem.mask):
                other = (torch.expm1(d) - d).mul(mask), (-d).mul(mask)
                sums = [float(x.sum()) for x in other]
                if any(_close(found, s / n) for s in sums for n in (tokens, float(mask.sum()))):
                    return hint
        return f"Its mean is {found / true:.3g} times the KL, a bias that no mistake known here explains."

    # As a loss ------------------------------------------------------------------------------------------

    def loss(self) -> Verdict:
        problem = self._problem(1.0)
        logp, ref_logp = problem.batch()
        out = self.call(logp, ref_logp, problem.mask)
        seen: dict[str, Any] = {"output": _form(out), "mask": "given" if self.mask_name else "not taken"}
        hints: list[str] = []

        everywhere = _gradient(_mean_of(out, problem), problem.logits).double()
        found = everywhere[problem.positions]
        forward, backward = problem.gradients()
        cosines = [_cosine(found, g) for g in (forward, backward)]
        seen["cosine_KL(policy‖ref)"], seen["cosine_KL(ref‖policy)"] = cosines
        seen["gradient_of"] = "neither"
        for name, cosine in zip(("KL(policy‖ref)", "KL(ref‖policy)"), cosines, strict=True):
            if cosine > 0.999:
                seen["gradient_of"] = name
        leak = self._mask_cause(problem, out, everywhere) if self.mask_name else ""
        if leak:
            return False, seen, leak
        if seen["gradient_of"] == "neither":
            hints.append(self._direction_cause(problem, out, found, forward))

        tokens = self._single_tokens()
        seen["not_finite_at"] = [d for d, value, slope in tokens if not _finite(value, slope)]
        live = [(d, s) for d, _, s in tokens if abs(d) < self.alive_to and math.isfinite(s)]
        seen["wrong_way_at"] = [d for d, s in live if s * d > 0]
        seen["dead_at"] = [d for d, s in live if abs(s) < 1e-4 * min(abs(d), 1) and not s * d > 0]
        seen["finite_to"], seen["alive_to"] = self.finite_to, self.alive_to
        if seen["not_finite_at"]:
            hints.append(_finite_cause(tokens))
        if seen["gradient_of"] != "neither":
            hints += _alive_cause(seen)
        passed = not (hints or seen["not_finite_at"] or seen["dead_at"] or seen["wrong_way_at"])
        return passed, seen, " ".join(hints)

    def _mask_cause(self, problem: Problem, out: Tensor, found: Tensor) -> str:
        """What the gradient [T, V], all positions, tells about the mask inside; '' when it is right or unknown."""
        leak = _mask_leak(out.detach(), problem)
        if leak or out.dim() == 2:
            return leak
        logp, ref_logp = problem.batch()
        d = ref_logp - logp
        alike = []
        for hint, mask in _other_masks(problem.mask):
            for per_token in (torch.expm1(d) - d, d**2):
                other = _gradient((per_token * mask).sum(), problem.logits).double()
                alike.append((_cosine(found.flatten(), other.flatten()), hint))
        cosine, hint = max(alike)
        if cosine > 0.999:
            return hint
        if float(found[~problem.positions].norm()) > 1e-3 * float(found.norm()):
            return "Positions that do not count have a gradient. Likely the mask is shifted, or not applied."
        return ""

    def _direction_cause(self, problem: Problem, out: Tensor, found: Tensor, forward: Tensor) -> str:
        if not out.requires_grad:
            return "The result carries no gradient. Likely `.detach()`, `.item()` or `no_grad` inside."
        if not found.isfinite().all():
            return "The gradient is NaN or inf at log-ratios below 2."
        if float(found.norm()) < 1e-3 * float(forward.norm()):
            if not out.any():
                return "Value and gradient are zero. Likely not written yet, or multiplied by zero."
            return (
                "The expected gradient is zero, as k1's (cur - ref) is: the mean of grad log p over the policy's "
                "own draws vanishes. As a loss use k2 or k3."
            )
        logp, ref_logp = problem.batch()
        d = ref_logp - logp
        candidates = [
            (
                "It pushes away from the reference: the sign of the loss is flipped (a k3).",
                d - torch.expm1(d),
            ),
            ("It pushes away from the reference: the sign of the loss is flipped (a k2).", -(d**2)),
            (
                "It is k3 with the arguments swapped: its expected gradient is that of half the chi-square "
                "divergence. Likely cur - ref where ref - cur belongs.",
                torch.expm1(-d) + d,
            ),
            (
                "Only tokens with ref > cur are pulled. Likely `clamp(ref - cur, 0, 10)`: no gradient where "
                "d < 0, and the same one for every d above.",
                d.clamp(min=0),
            ),
            ("It is |cur - ref|: its expected gradient is that of twice the total variation.", d.abs()),
        ]
        alike = []
        for hint, per_token in candidates:
            mean = problem.mean_of(per_token)
            if _cosine(found, _gradient(mean, problem.logits)[problem.positions].double()) > 0.999:
                alike.append((not _close(float(_mean_of(out.detach(), problem)), float(mean.detach())), hint))
        if alike:  # among those with this gradient, the one with this value too
            return min(alike, key=lambda row: row[0])[1]
        return "The expected gradient is not along that of either KL, in no pattern known here."

    def _single_tokens(self) -> list[tuple[float, float, float]]:
        """(d, value, derivative by logp) of a batch of tokens with one and the same log-ratio d, for many d."""
        sizes = [x for x in (*ALIVE, *FAR) if x <= self.finite_to]
        found = []
        for d in sorted([-x for x in sizes] + sizes):
            high = torch.full((2, 3), -0.125, dtype=self.dtype, device=self.device)
            logp, ref_logp = (high, high + d) if d < 0 else (high - d, high)  # no log-prob above 0
            logp = logp.clone().requires_grad_()
            out = self.call(logp * 1.0, ref_logp, torch.ones(2, 3, dtype=torch.long, device=self.device))
            slope = _gradient(out.double().mean(), logp).double().sum()
            found.append((d, float(out.detach().double().mean()), float(slope)))
        return found


def _finite(value: float, slope: float) -> bool:
    return math.isfinite(value) and math.isfinite(slope)


def _finite_cause(tokens: list[tuple[float, float, float]]) -> str:
    broken = [(d, value, slope) for d, value, slope in tokens if not _finite(value, slope)]
    first = min(broken, key=lambda row: abs(row[0]))
    if all(math.isfinite(value) for _, value, _ in broken):
        return (
            f"At d = {first[0]:.3g} the value is finite and the gradient is not. Likely a clamp after exp: "
            "backward multiplies its 0 by inf. Clamp d = ref - cur before exp."
        )
    where = "exp overflows at 88.7 in float32" if abs(first[0]) > 80 else "exp overflows at 11.09 in float16"
    ratio = "exp(ref - cur)" if first[0] > 0 else "exp(cur - ref)"
    return f"Not finite from d = {first[0]:.3g} on. Likely {ratio} without a clamp ({where}). Clamp d."


def _alive_cause(seen: dict[str, Any]) -> list[str]:
    hints = []
    dead = seen["dead_at"]
    above, below = [d for d in dead if d > 0], [d for d in dead if d < 0]
    small = [d for d in dead if abs(d) < 0.05]
    if small and len(small) == len(dead):
        hints.append(
            f"No gradient at d = {small[0]:.3g}: likely half precision, which cannot tell log-probs so close "
            "apart. Take log-probs and their difference in float32."
        )
    elif below and max(below) >= -1:
        hints.append("No gradient where the policy is surer than the reference (d < 0). Likely a clamp at 0.")
    elif dead:
        start = min(above) if above else max(below)
        hints.append(
            f"No gradient from d = {start:.3g} on: the worst tokens are not pulled back. Likely the output is "
            "clamped (at 10, k3 dies from d = 2.61), or the input too tightly."
        )
    wrong = seen["wrong_way_at"]
    if wrong:
        cause = " Likely the `- d` of exp(d) - 1 - d is missing." if max(wrong) < 0 else ""
        nearest = min(wrong, key=abs)
        hints.append(
            f"A token at d = {nearest:.3g} is pushed away from the reference, not towards it.{cause}"
        )
    return hints


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


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= 2e-3 * abs(b) + 1e-6
