"""Which parts give these weights? The combinations of the parts in forms.py are tried, by least
squares.

The policy's term and the KL have each a factor that is solved for. A combination explains the
weights when it leaves less than a thousandth of them. Among several, the one with the fewest
mistakes counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from . import forms
from .forms import Form, Situation, Tokens
from .reading import FAINT

TINY = 1e-300
CERTAIN = 5e-4  # as small an error as float32, or another epsilon beside a deviation, makes
SIGNIFICANT = 3.0  # times what is left: a KL that is longer can be told from it
MOST = 200  # combinations within the tolerance that are looked at


@dataclass(frozen=True)
class Explanation:
    """The parts of a loss, the factors of its two terms, and how much of the weights they leave."""

    advantage: Form
    ratio: Form
    mask: Form
    divisor: Form
    kl: Form | None
    kl_mask: Form | None
    kl_divisor: Form | None
    scale: float
    kl_weight: float  # of the KL, where the policy's term has 1
    error: float
    clip: tuple[float, float]
    expected: Tensor = field(repr=False)  # [B * C], these parts at these factors
    kl_size: float = 0.0  # how long the KL's part of `expected` is, beside the whole

    @property
    def parts(self) -> list[Form]:
        policy = [self.advantage, self.ratio, self.mask, self.divisor]
        of_kl = [self.kl, self.kl_mask, self.kl_divisor]
        return policy + [part for part in of_kl if part is not None]

    @property
    def mistakes(self) -> list[Form]:
        """Each once: the KL's mask may be the policy's."""
        return list({part.name: part for part in self.parts if part.wrong}.values())

    @property
    def plausibility(self) -> tuple[int, ...]:
        """Smaller is likelier."""
        odd = len(self.mistakes) + int(self.scale < 0) + int(self.kl_weight < 0)
        # a KL of its own mask or divisor, a length that is not the published one
        odd_kl = int(self.kl_divisor not in (None, self.divisor))
        odd_kl += int(self.kl_mask not in (None, self.mask))
        off = int(self.divisor.name != "constant" and abs(abs(self.scale) - 1) > 0.01)
        cautions = sum(part.kind == "caution" for part in self.parts)
        tables = (forms.ADVANTAGES, forms.RATIOS, forms.MASKS, forms.DIVISORS)
        policy = (self.advantage, self.ratio, self.mask, self.divisor)
        places = [table.index(form) for table, form in zip(tables, policy, strict=True)]
        return (odd, odd_kl, off, cautions, *places)

    def weights_with(self, parts: dict[str, Form | None], situation: Situation) -> Tensor:
        """The weights [B, C] with other parts, the policy's term at its published length."""
        axes = Axes(
            divisors=[parts["divisor"] or self.divisor],
            ratios=[parts["ratio"] or self.ratio],
            clip=self.clip,
            advantages=[parts["advantage"] or self.advantage],
            masks=[parts["mask"] or self.mask],
        )
        scale = 1.0
        if axes.divisors[0].name == "constant":  # any constant will do
            scale = abs(self.scale)
        weights = scale * _policy(situation, axes)[0]
        kl = parts["kl"]
        if kl is not None:
            factor = scale * (situation.beta or abs(self.kl_weight))
            weights = weights + factor * _kls(situation, axes, [kl])[0]
        return weights.view_as(situation.mask)


@dataclass(frozen=True)
class Axes:
    """The forms that are combined: a combination's number counts through them, masks fastest."""

    divisors: Sequence[Form]
    ratios: Sequence[Form]
    clip: tuple[float, float]
    advantages: Sequence[Form]
    masks: Sequence[Form]

    def forms_of(self, number: int) -> tuple[Form, Form, Form, Form]:
        """(advantage, ratio, mask, divisor)"""
        number, mask = divmod(number, len(self.masks))
        number, advantage = divmod(number, len(self.advantages))
        divisor, ratio = divmod(number, len(self.ratios))
        chosen = self.advantages[advantage], self.ratios[ratio], self.masks[mask]
        return (*chosen, self.divisors[divisor])


def explain(
    weights: Tensor, situation: Situation, tolerance: float, deep: bool = True
) -> tuple[Explanation | None, bool]:
    """The likeliest combination of parts, and whether it explains the weights.

    Unless `deep`, neither clips that nobody said are tried, nor a KL with a mask or divisor of
    its own.
    """
    w = (weights * situation.here).flatten()
    covering, others = _masks_for(weights, situation)
    # First what nearly every loss is: one mask and one divisor, at the clip that was said.
    axes = Axes(forms.DIVISORS, forms.RATIOS, situation.clip, forms.ADVANTAGES, covering)
    nearest: list[Explanation] = []
    if covering:
        nearest = _search(w, situation, axes, tolerance)
        if nearest[0].error < tolerance:
            return nearest[0], True
    if not deep:
        return None, False
    axes = Axes(
        divisors=[form for form in forms.DIVISORS if not form.wrong],
        ratios=[form for form in forms.RATIOS if not form.wrong],
        clip=situation.clip,
        advantages=[form for form in forms.ADVANTAGES if not form.wrong],
        masks=[form for form in covering + others if not form.wrong],
    )
    if covering:
        nearest = nearest + _with_odd_kl(w, situation, axes, covering, tolerance)
        if nearest[-1].error < tolerance:
            return nearest[-1], True
    # Then another clip, which is no mistake by itself.
    for clip in _clips_read_off(weights, situation, axes, tolerance):
        found = _search(w, situation, replace(axes, clip=clip), tolerance)
        if found[0].error < tolerance:
            return found[0], True
    if not nearest:  # no mask covers what has weight
        everything = Axes(forms.DIVISORS, forms.RATIOS, situation.clip, forms.ADVANTAGES, others)
        nearest = _search(w, situation, everything, tolerance)
    return min(nearest, key=lambda one: one.error), False


def _masks_for(weights: Tensor, situation: Situation) -> tuple[list[Form], list[Form]]:
    """The masks that cover all that has weight, and, if it is not among them, the right one."""
    heavy = weights.abs() > FAINT * weights.abs().max()
    support = heavy.double() * situation.here
    covering, others = [], []
    for form in forms.MASKS:
        mask = form.make(situation.mask, situation.ids) * situation.here
        if bool((support <= mask).all()):
            covering.append(form)
        elif not form.wrong:
            others.append(form)
    return covering, others


# ---- the weights of combinations


def _tokens(situation: Situation, shape: Sequence[int]) -> Tokens:
    nothing = torch.zeros((), dtype=torch.float64)
    logps = situation.logps.expand(shape).clone().requires_grad_()
    return Tokens(logps, situation.old, situation.ref, nothing, situation.mask, nothing, nothing)


def _masks_and_shares(situation: Situation, axes: Axes) -> tuple[Tensor, Tensor]:
    """Masks [M, B, C], and what each token's loss is multiplied by, [D, M, B, C]."""
    made = [form.make(situation.mask, situation.ids) for form in axes.masks]
    mask = torch.stack(made) * situation.here
    shares = [form.make(mask, situation.layout) * mask for form in axes.divisors]
    return mask, torch.stack(shares)


def _policy(situation: Situation, axes: Axes) -> Tensor:
    """The policy's term alone: weights of every combination, [D * R * A * M, B * C]."""
    shape = situation.mask.shape
    mask, share = _masks_and_shares(situation, axes)
    made = [form.make(situation) for form in axes.advantages]
    columns = [one.reshape(len(one), -1).expand(shape) for one in made]
    below, above = torch.tensor(axes.clip, dtype=torch.float64)
    whole = (len(axes.divisors), len(axes.advantages), len(axes.masks), *shape)
    weights = []
    for ratio in axes.ratios:
        tokens = replace(
            _tokens(situation, whole),
            advantages=torch.stack(columns)[:, None],
            mask=mask,
            below=below,
            above=above,
        )
        total = (ratio.make(tokens) * share[:, None]).sum()
        (gradient,) = torch.autograd.grad(total, tokens.logps)
        weights.append(gradient)
    return torch.stack(weights, 1).flatten(-2).flatten(0, -2)


def _kls(situation: Situation, axes: Axes, kls: Sequence[Form]) -> Tensor:
    """The KL's term alone, with the masks and divisors of the axes: [D * M * L, B * C]."""
    mask, share = _masks_and_shares(situation, axes)
    weights = []
    for kl in kls:
        tokens = replace(_tokens(situation, share.shape), mask=mask)
        (gradient,) = torch.autograd.grad((kl.make(tokens) * share).sum(), tokens.logps)
        weights.append(gradient)
    return torch.stack(weights, 2).flatten(-2).flatten(0, -2)


# ---- the search


def _search(
    w: Tensor, situation: Situation, axes: Axes, tolerance: float, tokens: Tensor | None = None
) -> list[Explanation]:
    """The likeliest explanation, or the nearest combination, with a KL of the same mask and
    divisor.

    `tokens` [B * C] bool: only these are compared.
    """
    policy = _policy(situation, axes)
    seen, target = policy, w
    if tokens is not None:
        seen, target = policy[:, tokens], w[tokens]
    # One factor, without a KL: the projection on each combination.
    squares = seen.square().sum(1).clamp(min=TINY)
    scale = seen @ target / squares
    left = _relative(target.square().sum() - scale.square() * squares, target)
    alone = [
        _explanation(axes, at, float(scale[at]), float(left[at]), policy)
        for at in _within(left, tolerance)
    ]
    best = _likeliest(alone, situation, tolerance)
    certain = CERTAIN
    if best.error < CERTAIN:
        if not situation.beta:
            return [best]
        # a KL was promised, and may be smaller than what is certain without one
        certain = min(CERTAIN, 0.1 * promised_kl(best, situation))
    # With a KL of the same mask and divisor: a small problem for each of these.
    kls = _kls(situation, axes, forms.KLS)
    found = alone
    of_divisor = len(policy) // len(axes.divisors)
    for divisor in range(len(axes.divisors)):
        for mask in range(len(axes.masks)):
            # the combinations with this divisor and this mask
            numbers = torch.arange(
                divisor * of_divisor + mask, (divisor + 1) * of_divisor, len(axes.masks)
            )
            first = (divisor * len(axes.masks) + mask) * len(forms.KLS)
            mine = kls[first : first + len(forms.KLS)]
            pairs = _pairs(policy[numbers], mine, w, tolerance, tokens)
            for at, of, of_policy, of_kl, error in pairs:
                one = _explanation(axes, int(numbers[at]), of_policy, error, policy)
                parts = forms.KLS[of], axes.masks[mask], axes.divisors[divisor]
                one = _plus_kl(one, parts, of_kl, mine[of])
                # a KL within what is left over anyway is none that one can see
                if one.kl_size > SIGNIFICANT * error:
                    found.append(one)
    likeliest = _likeliest(found, situation, tolerance, certain)
    if best.error < CERTAIN and len(likeliest.mistakes) > len(best.mistakes):
        return [best]  # so faint a difference proves no mistake
    return [likeliest]


def promised_kl(one: Explanation, situation: Situation) -> float:
    """How long the KL at the stated beta would be, beside these weights.

    k2's or k3's, whichever is shorter.
    """
    axes = Axes([one.divisor], [one.ratio], one.clip, [one.advantage], [one.mask])
    lengths = _kls(situation, axes, forms.KLS[:2]).norm(dim=1)
    length = situation.beta * abs(one.scale) * float(lengths.min())
    return length / max(float(one.expected.norm()), TINY)


def _likeliest(
    found: Sequence[Explanation], situation: Situation, tolerance: float, certain: float = CERTAIN
) -> Explanation:
    """The most plausible of those that explain the weights; the nearest, where none does.

    What half precision blurs, several explain: then those count that come twice as near as the
    others.
    """
    nearest = min(found, key=lambda one: one.error)
    limit = min(max(2 * nearest.error, certain), tolerance)
    explained = [one for one in found if one.error < limit]
    if not explained:
        return nearest
    return min(explained, key=lambda one: (one.plausibility, abs(one.kl_weight - situation.beta)))


def _with_odd_kl(
    w: Tensor, situation: Situation, axes: Axes, masks: Sequence[Form], tolerance: float
) -> list[Explanation]:
    """As `_search`, with a KL of any mask and divisor beside the usual terms of a policy."""
    axes = replace(
        axes,
        ratios=[form for form in axes.ratios if form.kind == "published"],
        advantages=[form for form in axes.advantages if form.kind == "published"],
    )
    policy = _policy(situation, axes)
    of_kl = replace(axes, masks=list(dict.fromkeys([*masks, *axes.masks])))
    kls = _kls(situation, of_kl, forms.KLS)
    found = []
    for at, of, factor, kl_factor, error in _pairs(policy, kls, w, tolerance, None):
        one = _explanation(axes, at, factor, error, policy)
        rest, kl = divmod(of, len(forms.KLS))
        divisor, mask = divmod(rest, len(of_kl.masks))
        parts = forms.KLS[kl], of_kl.masks[mask], of_kl.divisors[divisor]
        found.append(_plus_kl(one, parts, kl_factor, kls[of]))
    return [_likeliest(found, situation, tolerance)]


def _pairs(
    p: Tensor, k: Tensor, w: Tensor, tolerance: float, tokens: Tensor | None
) -> list[tuple[int, int, float, float, float]]:
    """The best two factors of each row of p with each row of k, and the error: those that
    fit, or the nearest.
    """
    if tokens is not None:
        p, k, w = p[:, tokens], k[:, tokens], w[tokens]
    # The normal equations of two unknowns, for all pairs at once; float64 leaves room enough.
    pp, kk = p.square().sum(1)[:, None], k.square().sum(1)[None]
    pk, pw, kw = p @ k.T, (p @ w)[:, None], (k @ w)[None]
    det = pp * kk - pk.square()
    # nearly the same direction: nothing can be said of the two apart
    apart = det > 1e-6 * pp * kk
    det = torch.where(apart, det, math.inf)
    of_policy = (pw * kk - kw * pk) / det
    of_kl = (kw * pp - pw * pk) / det
    left = _relative(w.square().sum() - of_policy * pw - of_kl * kw, w)
    left = torch.where(of_policy == 0, 1.0, left)
    found = []
    for number in _within(left.flatten(), tolerance):
        at, of = divmod(number, k.shape[0])
        factors = float(of_policy[at, of]), float(of_kl[at, of])
        found.append((at, of, *factors, float(left[at, of])))
    return found


def _relative(square: Tensor, w: Tensor) -> Tensor:
    return square.clamp(min=0).sqrt() / w.norm().clamp(min=TINY)


def _within(left: Tensor, tolerance: float) -> list[int]:
    """Those within the tolerance, else the nearest."""
    good = (left < tolerance).nonzero().flatten().tolist()
    return good[:MOST] or [int(left.argmin())]


def _explanation(axes: Axes, at: int, scale: float, error: float, policy: Tensor) -> Explanation:
    advantage, ratio, mask, divisor = axes.forms_of(at)
    return Explanation(
        advantage=advantage,
        ratio=ratio,
        mask=mask,
        divisor=divisor,
        kl=None,
        kl_mask=None,
        kl_divisor=None,
        scale=scale,
        kl_weight=0.0,
        error=error,
        clip=axes.clip,
        expected=scale * policy[at],
    )


def _plus_kl(
    one: Explanation, parts: tuple[Form, Form, Form], factor: float, weights: Tensor
) -> Explanation:
    kl, mask, divisor = parts
    expected = one.expected + factor * weights
    size = abs(factor) * float(weights.norm()) / max(float(expected.norm()), TINY)
    return replace(
        one,
        kl=kl,
        kl_mask=mask,
        kl_divisor=divisor,
        kl_weight=factor / max(abs(one.scale), TINY),
        expected=expected,
        kl_size=size,
    )


# ---- clips that nobody said


def _clips_read_off(
    weights: Tensor, situation: Situation, axes: Axes, tolerance: float
) -> list[tuple[float, float]]:
    """The clips at which a loss seems to clip, by the tokens that have no weight.

    No clip ever acts on a good answer's token that became rarer, nor on a bad one's that became
    likelier. On those alone the loss is as if unclipped. When that explains them, the others
    show where the clip is.
    """
    log_ratio = (situation.logps - situation.old) * situation.mask
    rows = log_ratio.sum(1, keepdim=True)
    mean = rows / situation.mask.sum(1, keepdim=True)
    levels = {"clip": log_ratio, "sequence ratio (GSPO)": mean, "ratio of the whole sequence": rows}
    w = (weights * situation.here).flatten()
    found = []
    for name, level in levels.items():
        ratio = level.expand_as(log_ratio).exp()
        wide = replace(
            axes, ratios=[form for form in forms.RATIOS if form.name == name], clip=(1.0, 1e9)
        )
        for good, advantages in _by_sign(axes.advantages, situation):
            # a bad answer's token that became much likelier may be under a dual clip
            unbound = torch.where(good, ratio < 1, (ratio > 1) & (ratio < 1.9))
            safe = (unbound & (situation.mask * situation.here > 0)).flatten()
            if int(safe.sum()) < 6:
                continue
            one = _search(w, situation, replace(wide, advantages=advantages), tolerance, safe)[0]
            if one.error < tolerance:
                clip = _between(one, w, ratio.flatten(), good.flatten(), situation)
                if clip is not None:
                    found.append(clip)
    return found


def _by_sign(advantages: Sequence[Form], situation: Situation) -> list[tuple[Tensor, list[Form]]]:
    """Which tokens are a good answer's [B, C], and the advantages that say so."""
    groups: list[tuple[Tensor, list[Form]]] = []
    for form in advantages:
        values = form.make(situation)
        good = values.reshape(len(values), -1).expand(situation.mask.shape) > 0
        for known, members in groups:
            if torch.equal(known, good):
                members.append(form)
                break
        else:
            groups.append((good, [form]))
    return groups


def _between(
    one: Explanation, w: Tensor, ratio: Tensor, good: Tensor, situation: Situation
) -> tuple[float, float] | None:
    """The clip that lies between the tokens that have their weight and those that have not."""
    counts = (situation.mask * situation.here).flatten() > 0
    # a token that is clipped has nothing but its KL, which `expected` has as well
    has = (w - one.expected).abs() < 0.05 * one.expected.abs().clamp(min=TINY)
    up, down = counts & good, counts & ~good
    above = _edge(ratio[up & has], ratio[up & ~has], 1e9)
    below = _edge(-ratio[down & has], -ratio[down & ~has & (ratio < 1)], 0.0)
    if above is None or below is None:
        return None
    return 1 + below, above - 1


def _edge(kept: Tensor, cut: Tensor, nothing: float) -> float | None:
    """A number between the largest that is kept and the smallest that is cut; beyond 1, if
    it may be.
    """
    if not len(cut):
        return nothing
    low, high = -math.inf, float(cut.min())
    if len(kept):
        low = float(kept.max())
    if low > high:
        return None
    one = math.copysign(
        1, nothing - 0.5
    )  # the ratio 1, with the sign that the caller has given ratios
    if low < one < high:
        low = one
    return (max(low, high - 1) + high) / 2


# ---- what can be said when nothing explains the whole


def where_there_is_weight(
    weights: Tensor, situation: Situation, tolerance: float
) -> tuple[Explanation, Tensor] | None:
    """What explains the tokens that have weight, and where it would give weight to tokens that
    have none.

    [B, C] bool. Something has left those out: a filter of rows or of tokens.
    """
    w = (weights * situation.here).flatten()
    heavy = w.abs() > 1e-3 * w.abs().max()
    if int(heavy.sum()) < 8:
        return None
    axes = Axes(
        divisors=[form for form in forms.DIVISORS if not form.wrong],
        ratios=[form for form in forms.RATIOS if not form.wrong],
        clip=situation.clip,
        advantages=[form for form in forms.ADVANTAGES if not form.wrong],
        masks=forms.MASKS[:1],
    )
    # a dual clip leaves tokens out by itself: the fewer are missing, the better
    dual = [form for form in axes.ratios if form.name.startswith("dual clip")]
    fits = []
    for ratios in (axes.ratios, *([form] for form in dual)):
        one = _search(w, situation, replace(axes, ratios=ratios), tolerance, heavy)[0]
        left_out = (one.expected.abs() > 1e-3 * w.abs().max()) & ~heavy
        if one.error < tolerance and bool(left_out.any()):
            fits.append((one, left_out.view_as(weights)))
    return min(fits, key=lambda fit: int(fit[1].sum()), default=None)


ALIKE = "all tokens of a row alike"


def clipped_alone(situation: Situation) -> Tensor:
    """The weights [B, C] of a clip with advantages that are signs, and rows that are means."""
    return _within_rows(situation, forms.RATIOS[0])


def rows_apart(
    weights: Tensor, situation: Situation, tolerance: float
) -> tuple[str, Tensor] | None:
    """What explains the weights within each row, and each row's own factor [B]; or None.

    Then the ratio is settled, and advantage times divisor is not. Where the tokens of a row weigh
    alike there is no ratio of tokens: which of the forms with one number a row it is, the rows'
    free factors would hide.
    """
    sign = torch.sign(situation.given)
    counts = situation.mask * situation.here
    means = (weights * counts).sum(1) / counts.sum(1).clamp(min=1)
    left = (weights - means[:, None]) * counts + weights * (1 - counts)
    if float(left.norm() / weights.norm()) < tolerance:
        return ALIKE, -means * situation.mask.sum(1)
    for ratio in forms.RATIOS:
        # as many unknowns as rows: only what has a weight of its own for each token is settled
        if ratio.wrong or ratio.name in OF_A_ROW:
            continue
        gradient = _within_rows(situation, ratio)
        factor = (gradient * weights).sum(1) / gradient.square().sum(1).clamp(min=TINY)
        left = (weights - factor[:, None] * gradient) * situation.here
        if float(left.norm() / weights.norm()) < tolerance:
            return ratio.name, factor * sign
    return None


OF_A_ROW = {
    "sequence ratio (GSPO)",
    "VESPO's weight",
    "none: log-probs",
    "ratio of the whole sequence",
}


def _within_rows(situation: Situation, ratio: Form) -> Tensor:
    shape = situation.mask.shape
    sign = torch.sign(situation.given)[:, None].expand(shape)
    below, above = torch.tensor(situation.clip, dtype=torch.float64)
    share = situation.mask * situation.here / situation.mask.sum(1, keepdim=True)
    # the sign alone: how long the advantage is goes into the row's factor
    tokens = replace(_tokens(situation, shape), advantages=sign, below=below, above=above)
    (gradient,) = torch.autograd.grad((ratio.make(tokens) * share).sum(), tokens.logps)
    return gradient
