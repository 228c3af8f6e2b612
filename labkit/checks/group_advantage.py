"""Does a function turn rewards into group advantages? This file knows no trainer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.common import number

from .mistakes import distance, nearest
from .report import PASS, CannotJudge, Report, Verdict, attempt, caution, fail, judged, parameters_of, tensor_of

CLAIM = "reward minus its own group's mean, {} the group's standard deviation"
# Rewards of a tied group. The mean of the first is exact in binary; those of the others are rounded at some sizes.
TIED = (0.5, 0.3, 0.1, 0.7, 0.9, 0.2, 0.6, 0.15, 0.35, 0.85, 0.333)
NOISE, NOTICED = 0.1, 0.01  # a tied group's advantage from rounding: too much, and worth a word
COUNT_NAMES = ("sample", "group", "generation", "completion", "rollout")


def group_advantage(advantage: Callable[..., Any], *, num_samples: int = 4, std: bool = False) -> Report:
    """Judge `advantage(rewards)`: rewards [P * num_samples], groups adjacent, to advantages of the same shape.

        num_samples  rows per group. A function with a parameter for it, `advantage(rewards, num_samples)`,
                     is tried with groups of 8 and of 16 as well
        std          whether it must divide by the group's standard deviation (GRPO; either form, and a small epsilon).
                     If not, it may (or not, as Dr. GRPO), and any one factor passes

    A tied group must give zeros, also where its mean is rounded: eight rewards of 0.3 over an eps of 1e-9 give -29.8.
    Raises: ValueError when num_samples is below 2. Source: arXiv 2402.03300 and 2503.20783.
    """
    if num_samples < 2:
        raise ValueError(f"group_advantage: num_samples = {num_samples}, expected 2 or more rows per group")

    def judge(evidence: dict[str, Any]) -> Verdict:
        return at_each_size(advantage, num_samples, lambda size: _judge(advantage, size, std, evidence))

    claim = CLAIM.format("divided by" if std else "with or without")
    return judged("group_advantage", claim, advantage, judge)


def at_each_size(advantage: Any, num_samples: int, judge: Callable[[int], Verdict]) -> Verdict:
    """Judge groups of this size, and of 8 and 16 where the function has a parameter for it; the first failure counts,
    else the last caution."""
    worst = PASS
    sizes = [num_samples] if size_parameter(advantage) is None else [num_samples, 8, 16]
    for size in dict.fromkeys(sizes):
        verdict = judge(size)
        if verdict.kind == "fail":
            return verdict
        if verdict.kind == "caution":
            worst = verdict
    return worst


def size_parameter(advantage: Any) -> inspect.Parameter | None:
    """The parameter for the number of rows per group: one that is called so, or a second one that must be given."""
    for place, parameter in enumerate(parameters_of(advantage)):
        name = parameter.name.lower()
        variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        # `min_samples` is a bar and `by_group=True` a switch
        if place == 0 or variable or name.startswith(("min", "max")) or isinstance(parameter.default, bool):
            continue
        if any(word in name for word in COUNT_NAMES) or (place == 1 and parameter.default is parameter.empty):
            return parameter
    return None


def call_with_size(advantage: Callable[..., Any], rewards: Any, size: int) -> Any:
    """Call the judged function; the group's size goes where it takes it."""
    parameter = size_parameter(advantage)
    if parameter is None:
        return attempt(advantage, rewards)
    return attempt(advantage, rewards, **{parameter.name: size})


def _judge(advantage: Callable[..., Any], n: int, std: bool, evidence: dict[str, Any]) -> Verdict:
    rows = _rewards(n)
    live = slice(0, len(rows) - len(TIED))
    returned = call_with_size(advantage, rows.flatten().clone(), n)
    out = tensor_of(returned, f"a tensor of {rows.numel()} advantages")
    if list(out.shape) != [rows.numel()]:
        raise CannotJudge(
            f"Expected shape [{rows.numel()}], one per reward. Likely the last `.flatten()` is missing.",
            returned=f"shape {list(out.shape)}",
        )
    advantages = out.detach().double().view_as(rows)
    centred = (rows - rows.mean(1, keepdim=True))[live]
    tied = advantages[live.stop :].abs().amax(1)
    worst = int(tied.argmax())
    group_sum = float(advantages[live].sum(1).abs().max())
    evidence |= {"groups of": n, "largest group sum": group_sum, "tied group": float(tied.max())}

    if not advantages.isfinite().all():
        return fail("Likely a tied group divided by a standard deviation of zero.")
    if not advantages[live].any():
        return fail("All zeros. Likely not written yet, or every group counts as tied.")
    other_mean = nearest(advantages, _other_means(rows), 1e-2)
    if other_mean:
        return fail(other_mean[0])
    if tied[0] > 1e-3 or group_sum > 1e-2 * float(advantages[live].norm()):
        return fail(
            "Likely not centred on the group's own mean, clipped after it, or groups of another size: a sum is not 0."
        )
    rounding = (
        f"A tied group of {n} rewards of {TIED[worst]} gets an advantage of {number(float(tied[worst]))}: the rounding "
        "noise of the mean, divided by a tiny eps (or by a deviation that is compared with 0 and is not quite 0). Use "
        "an eps of 1e-4, or give tied groups zeros."
    )
    if tied[worst] > NOISE:
        return fail(rounding)
    scale = (advantages[live] * centred).sum(1) / centred.square().sum(1)
    if distance(advantages[live], scale[:, None] * centred) > 1e-2:
        return fail(
            "Within a group the advantages are not in proportion to reward minus mean. Likely clipped, or other groups."
        )
    if scale.max() < 0:
        return fail("Likely a flipped sign: mean minus reward.")
    verdict = _divisor(scale, rows, std)
    if verdict is None and tied[worst] > NOTICED:
        return caution(rounding)
    return verdict or PASS


def _other_means(rows: Tensor) -> dict[str, Tensor]:
    """Hint to rewards less a mean that was not taken over the group."""
    strided = rows.view(rows.shape[1], -1)  # what `view(num_samples, -1)` takes for groups: the columns
    return {
        "The rewards themselves: not centred. Likely the group's own mean is not subtracted.": rows,
        "Likely not centred on the group's own mean, but on the mean of the whole batch.": rows - rows.mean(),
        "Likely each group is taken from rows that are not adjacent, `view(num_samples, -1)` in place of "
        "`view(-1, num_samples)`.": (strided - strided.mean(0)).view_as(rows),
    }


def _divisor(scale: Tensor, rows: Tensor, std: bool) -> Verdict | None:
    """What is wrong with the factors between reward minus mean and the advantage, one per group."""
    n = rows.shape[1]
    divided = scale * rows[: len(scale)].std(1)
    plain = bool(scale.std() < 0.02 * scale.mean())
    by_deviation = bool(divided.std() < 0.02 * divided.mean())
    if not plain and not by_deviation:
        return fail("Each group is divided by something of its own. Likely its variance, or another deviation.")
    if std and not by_deviation:
        return fail("Not divided by the group's standard deviation, which is asked for here (GRPO).")
    # The factors that are published: either deviation; RLOO; and with no deviation of the group that of the batch.
    times = float(divided.mean())
    published = [1.0, (n / (n - 1)) ** 0.5]
    if plain:
        times = float(scale.mean())
        published = [1.0, n / (n - 1), 1 / float(rows.std()), 1 / float(rows.std(correction=0))]
    if any(distance(times, factor) < 0.01 for factor in published):
        return None
    scaled = f"The right direction, {number(times)} times as long (RLOO is {number(n / (n - 1))} times)."
    return fail(scaled) if std else caution(scaled)


def _rewards(n: int) -> Tensor:
    """[P, n]: groups at different levels and spreads, one with a single success, and the tied ones."""
    live = torch.rand(4, n) * torch.tensor([0.3, 1.0, 2.0, 0.5])[:, None] + torch.arange(4.0)[:, None]
    once = torch.zeros(1, n)
    once[0, 0] = 1.0
    return torch.cat([live, once, torch.tensor(TIED)[:, None].expand(-1, n)])
