"""What does a function make of rewards that did not come? This file knows no judge, no trainer and no loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labkit.common import number as shown

from .group_advantage import at_each_size, call_with_size
from .mistakes import distance
from .report import PASS, CannotJudge, Report, Verdict, caution, fail, judged

CLAIM = "a group is centred on the rewards that came, and what did not come moves nothing"
CLOSE = 0.02


def missing_rewards(advantage: Callable[..., Any], *, num_samples: int = 4) -> Report:
    """Judge `advantage(rewards)`: rewards of which some did not come, to advantages of the same shape.

        num_samples  rows per group, adjacent, 3 or more. A function with a parameter for it,
                     `advantage(rewards, num_samples)`, is tried with groups of 8 and of 16 as well

    Asked: a group is centred on the mean of its rewards that came, divided by their deviation or not; a row without a
    reward gets 0; so does a group of which fewer than two came; no other group is dropped, and nothing is NaN. It may
    return `(advantages, mask)`; then the mask (1 = counts in the loss) leaves out the rows without a reward, and of the
    rewards that came none but one that is alone in its group.

    Rewards are one tensor [P * num_samples], and NaN where none came. What takes a list with None, or a mask beside
    the rewards, needs a lambda: `lambda r: mine([None if x != x else x for x in r.tolist()])`.

    Raises: ValueError when num_samples is below 3: with pairs, nothing is left to compare.
    """
    if num_samples < 3:
        raise ValueError(f"missing_rewards: num_samples = {num_samples}, expected 3 or more rows per group")

    def judge(evidence: dict[str, Any]) -> Verdict:
        return at_each_size(advantage, num_samples, lambda size: _judge(advantage, _rows(size), evidence))

    return judged("missing_rewards", CLAIM, advantage, judge)


def _judge(advantage: Callable[..., Any], rows: _Rows, evidence: dict[str, Any]) -> Verdict:
    with_nan = torch.where(rows.came, rows.rewards, torch.nan).flatten()
    evidence["groups of"] = size = rows.rewards.shape[1]
    with warnings.catch_warnings():  # of empty slices: numpy and torch say so of a group of which none came
        warnings.simplefilter("ignore")
        returned = call_with_size(advantage, with_nan, size)
    result, mask = _parts(returned, rows)
    evidence["not finite"] = int((~result.isfinite()).sum())
    evidence["counted"] = "no mask" if mask is None else int(mask.sum())
    if evidence["not finite"]:
        return fail(
            "A missing reward makes its whole group NaN, or itself, or a group has none: a mean of nothing. `nanmean`, "
            "or a mask, counts only what came. NaN times 0 is NaN: choose with `torch.where`."
        )
    evidence["largest advantage of a missing reward"] = float(result[~rows.came].abs().max())
    return _of_values(result, rows) or _of_mask(mask, rows) or PASS


class _Rows(NamedTuple):
    """Groups with rewards that came and others that did not, and what may be made of them."""

    rewards: Tensor  # [groups, size], float32
    came: Tensor  # [groups, size], bool
    number: Tensor  # [groups, 1]: how many came
    counts: Tensor  # [groups, size], bool: came, and at least one more of its group did
    centred: Tensor  # [groups, size]: reward minus the mean of what came in its group; 0 where it does not count
    live: Tensor  # [groups], bool: something is to be learned


def _rows(size: int) -> _Rows:
    """At different levels and spreads, with true zeros; missing: none, one, half, all but two, but one, all."""
    missing = [0, 1, 1, 1, max(size // 2, 1), size - 2, size - 1, size, 1, 0, 0, 1]
    level = torch.tensor([0.2, 0.1, 2.0, 0.6, 1.5, 0.4, 1.0, 0.8, 0.5, 0.3, 1.2, 0.0])
    spread = torch.tensor([1.0, 0.5, 1.0, 2.0, 0.7, 1.3, 1.0, 1.0, 0.0, 0.0, 0.4, 0.0])
    rewards = level[:, None] + spread[:, None] * torch.rand(len(missing), size)
    rewards[0, 1], rewards[1, 2], rewards[11, :2] = 0.0, 0.0, torch.tensor([0.0, 1.0])  # the last: one success
    came = torch.ones(rewards.shape, dtype=torch.bool)
    for row, number_missing in enumerate(missing):
        first_missing = (3 * row + size - 1) % size
        came[row, [(first_missing + i) % size for i in range(number_missing)]] = False
    number = came.sum(1, keepdim=True)
    counts = came & (number > 1)
    mean = torch.where(came, rewards.double(), 0.0).sum(1, keepdim=True) / number.clamp(min=1)
    centred = torch.where(counts, rewards.double() - mean, 0.0)
    return _Rows(rewards, came, number, counts, centred, centred.abs().amax(1) > 1e-6)


def _parts(returned: Any, rows: _Rows) -> tuple[Tensor, Tensor | None]:
    """The advantages and the mask, if there is a second value, as [groups, size]."""
    mask = None
    if isinstance(returned, (tuple, list)) and len(returned) == 2 and np.ndim(returned[0]) > 0:
        returned, second = returned
        if second is not None:
            mask = _as_rows(second, rows, "The second value is no mask")
    return _as_rows(returned, rows, "Expected advantages"), mask


def _as_rows(value: Any, rows: _Rows, problem: str) -> Tensor:
    """float64, shaped as the groups."""
    count = rows.rewards.numel()
    tensor = torch.zeros(0)
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
    elif value is not None:
        with suppress(TypeError, ValueError):
            tensor = torch.from_numpy(np.array(value, dtype=float))
    if tensor.numel() != count:
        raise CannotJudge(
            f"{problem}: expected {count} entries, one for each completion, also for those without a reward.",
            returned=f"{tensor.numel()} of them" if tensor.numel() > 1 else type(value).__name__,
        )
    return tensor.double().view(rows.rewards.shape)


def _of_values(result: Tensor, rows: _Rows) -> Verdict | None:
    """What is wrong with finite advantages."""
    # 1. What did not come: it moves nothing, neither itself nor the mean.
    if not result.any():
        return fail("All zeros. Likely not written yet, or a single missing reward stops the whole batch.")
    whole = rows.rewards[rows.came].double().mean()
    for what, value in (("0", 0.0), ("the mean of the batch", whole)):
        filled = torch.where(rows.came, rows.rewards.double(), value)
        centred = filled - filled.mean(1, keepdim=True)
        if _alike(result, centred):
            return fail(
                f"The rows without a reward are filled with {what}: they are praised or blamed because a judge is slow "
                "or broken. Leave them out of the mean, and give them no advantage."
            )
        if _alike(result, torch.where(rows.came, centred, 0.0)):
            return fail(f"The mean of a group counts its missing rewards as {what}. Divide by the number that came.")
    hole = float(result[~rows.came].abs().max())
    if hole > 1e-4:
        return fail(f"A reward that did not come has an advantage of {shown(hole)}. It is to move nothing.")

    # 2. The groups of which two or more came: reward minus their mean, times a factor of each group.
    partly = rows.live & (~rows.came).any(1)
    dropped = partly & ~result.any(1)
    if dropped.any():
        return fail(
            f"{int(dropped.sum())} of the {int(partly.sum())} groups that miss a reward get no advantage at all. "
            "Likely one missing reward drops its group, or a true 0 counts as missing. Drop a group when fewer than "
            "two came."
        )
    scale = (result * rows.centred)[rows.live].sum(1) / rows.centred[rows.live].square().sum(1)
    turned = distance(result[rows.live], scale[:, None] * rows.centred[rows.live]) > 0.01
    if not turned and (scale < 0).all():
        return fail("Likely a flipped sign: mean minus reward.")
    if turned or (scale <= 0).any():
        return fail(
            "Within a group the advantages are not in proportion to reward minus the group's own mean. Likely a true "
            "reward of 0 counts as missing, or the mean is the batch's."
        )

    # 3. The others.
    if result[rows.came & ~rows.counts].abs().max() > 1e-6:
        return fail("The only reward of its group has an advantage: with nothing to compare, 0.")
    tied = result[~rows.live & (rows.number[:, 0] > 1)]
    if tied.abs().max() > 0.1:
        return fail("A tied group has advantages: the rounding of its mean over a tiny eps. Use an eps of 1e-4.")
    return _of_divisor(scale, rows)


def _alike(result: Tensor, other: Tensor) -> bool:
    """Whether these are the advantages `other`, each group at any scale."""
    ours = result / result.norm(dim=1, keepdim=True).clamp(min=1e-9)
    theirs = other / other.norm(dim=1, keepdim=True).clamp(min=1e-9)
    varied = other.norm(dim=1) > 1e-6
    return distance(ours[varied], theirs[varied]) < CLOSE


def _of_divisor(scale: Tensor, rows: _Rows) -> Verdict | None:
    """What is wrong with the factors between reward minus mean and the advantage, one per group."""
    squares, came = rows.centred[rows.live].square().sum(1), rows.number[rows.live, 0]
    # Nothing, either deviation, leave one out, and a deviation that counts each missing reward as the mean.
    known = [torch.ones_like(squares), (squares / (came - 1)).rsqrt(), (squares / came).rsqrt(), came / (came - 1)]
    known.append(squares.rsqrt())
    spreads = []
    for factor in known:
        ratio = scale / factor
        spreads.append(float(ratio.std() / ratio.mean()))
    best = min(spreads)
    if not best < CLOSE:
        return fail("Each group is divided by something of its own. Likely a deviation that counts missing rewards.")
    if best == spreads[-1]:
        return caution("The deviation counts a missing reward as the mean: a group pulls harder the more it misses.")
    return None


def _of_mask(values: Tensor | None, rows: _Rows) -> Verdict | None:
    """What is wrong with the returned mask, 1 where a row counts in the loss."""
    if values is None:
        return caution("It returns no mask: leave the rows without a reward out of the loss yourself.")
    if not ((values == 0) | (values == 1)).all():
        return fail("The mask has other values than 0 and 1, so a completion counts in part. 1 = counts in the loss.")
    mask = values.bool()
    if (mask == ~rows.came).all():
        return fail("The mask is the other way round: 1 = counts.")
    if (mask & ~rows.came).any():
        return fail("The mask counts rows without a reward: they dilute the loss, and the KL pulls on them.")
    if (rows.counts & ~mask)[rows.live].any():
        return fail("The mask leaves out rewards that came, in groups where two or more did.")
    if (mask & ~rows.counts).any():
        return caution("The mask counts a reward that is alone in its group: it only dilutes.")
    return None
