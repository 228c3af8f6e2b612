"""What does a function make of rewards that did not come? This file knows no judge, no trainer and no loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.common import number

from .group_advantage import COUNT_NAMES
from .mistakes import distance, first
from .report import CannotJudge, Caution, Raised, Report, attempt, judged, parameters_of

CLAIM = "a group is centred on the rewards that came, and what did not come moves nothing"
MASK_NAMES = ("mask", "came", "valid", "present", "observed", "scored", "counts", "counted", "answered")
MISSING_NAMES = ("miss", "fail", "lost", "absent", "invalid", "unscor", "timeout", "timed")
IDS_NAMES = ("index", "uid", "ids", "group_id")
GARBAGE = (0.0, 5.0)  # what stands where no reward came, for a function that is told by a mask
NAN_GROUP = "`nanmean`, or a mask, counts only what came."
CLOSE = 0.02


def missing_rewards(advantage: Callable[..., Any], *, num_samples: int = 4) -> Report:
    """Judge `advantage(rewards)`: rewards of which some did not come, to advantages of the same shape.

        num_samples  rows per group, adjacent, 3 or more. A function that takes it is tried with groups of 8 as well

    Asked: a group is centred on the mean of its rewards that came, divided by their deviation or not; a row without a
    reward gets 0; so does a group of which fewer than two came; no other group is dropped, and nothing is NaN. It may
    return `(advantages, mask)`; then the mask (1 = counts in the loss) leaves out the rows without a reward, and of the
    rewards that came none but one that is alone in its group.

    A missing reward is NaN in a tensor or an array, None in a list, or told by a second argument: `advantage(rewards,
    mask)` with 1 where it came, or `missing` with 1 where it did not. Rewards are flat, or [groups, num_samples].
    Further arguments that are known by name: the group's size (`num_samples`, `group_size`, ...) and each row's group
    (`index`, `uid`, `group_ids`). All of it is tried until something is understood; `seen` says what was.

    Raises: ValueError when num_samples is below 3: with pairs, nothing is left to compare.
    """
    if num_samples < 3:
        raise ValueError(f"missing_rewards: num_samples = {num_samples}, expected 3 or more rows per group")

    def judge(seen: dict[str, Any]) -> str:
        sizes = [num_samples, 8] if "count" in _roles(advantage).values() else [num_samples]
        for size in dict.fromkeys(sizes):
            said = _understood(advantage, _Rows.of(size), seen)
            if said and not isinstance(said, Caution):
                break
        return said

    return judged("missing_rewards", CLAIM, advantage, judge)


def _understood(advantage: Callable[..., Any], rows: _Rows, seen: dict[str, Any]) -> str:
    """The verdict on the first form of rewards that the function gets right, or else on the first that it takes."""
    failed: list[tuple[str, dict[str, Any], str]] = []
    raised: Exception | None = None
    for given, calls in _forms(advantage, rows):
        found: dict[str, Any] = {"given": given, "groups of": rows.size}
        try:
            said = [_judge(_call(advantage, *call), rows, found, told=len(calls) > 1) for call in calls]
        except CannotJudge as reason:
            failed.append((str(reason), found | reason.seen, given))
            continue
        except Raised as error:
            raised = raised or error
            continue
        wrong = [text for text in said if text and not isinstance(text, Caution)]
        if not wrong:
            seen |= found
            other = f"Understood: {given}. Given {failed[0][2]}: {failed[0][0]}" if failed else ""
            return Caution(other) if other else next(filter(None, said), "")
        failed.append((wrong[0], found, given))
    if not failed:
        raise raised or CannotJudge("Expected a function of rewards; see the check's docstring for what is tried.")
    seen |= failed[0][1]
    return failed[0][0]


# What is handed over -----------------------------------------------------------------------------------------------


def _roles(advantage: Any) -> dict[str, str]:
    """Parameter -> "count", "mask", "missing" or "ids", for those after the first that are known by name."""
    roles = {}
    for parameter in parameters_of(advantage)[1:]:
        name = parameter.name.lower()
        if name.startswith(("min", "max")):  # a bar, and no number of rows
            continue
        known = {"missing": MISSING_NAMES, "mask": MASK_NAMES, "ids": IDS_NAMES, "count": COUNT_NAMES}
        role = next((role for role, names in known.items() if any(word in name for word in names)), "")
        role = role or {"m": "mask", "n": "count", "k": "count", "g": "count"}.get(name, "")
        if role and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            roles[parameter.name] = role
    return roles


def _forms(advantage: Any, rows: _Rows) -> Iterator[tuple[str, list[tuple[Any, dict[str, Any]]]]]:
    """Every way to hand the rewards over: (what is given, in words; the calls to make: rewards, keywords)."""
    roles = _roles(advantage)
    told = {name for name, role in roles.items() if role in ("mask", "missing")}
    needed = any(p.name in told and p.default is p.empty for p in parameters_of(advantage))
    ways = [("with a mask", bool), ("with a mask of floats", float)] if told else []
    for way, dtype in ways if needed else [*ways, ("", None)]:
        came = rows.came.to(torch.float32 if dtype is float else torch.bool)
        values = {"mask": came, "missing": 1 - came if dtype is float else ~came, "ids": rows.ids}
        given = {name: role for name, role in roles.items() if dtype or name not in told}
        for shape in ("flat", "[groups, rows]"):
            for kind, make in KINDS.items():
                none = None if kind == "list" else float("nan")
                calls = []
                for hole in GARBAGE if dtype else [none]:
                    more = {n: rows.size if r == "count" else make(_shape(values[r], shape)) for n, r in given.items()}
                    calls.append((make(_shape(rows.rewards, shape), _shape(rows.came, shape), hole), more))
                yield f"{kind}, {shape}, {way or f'with {none}'.replace('nan', 'NaN')}", calls


def _shape(values: Tensor, shape: str) -> Tensor:
    return values.flatten() if shape == "flat" else values


def _tensor(values: Tensor, came: Tensor | None = None, hole: Any = None) -> Tensor:
    return values.clone() if came is None else values.masked_fill(~came, hole)


def _listed(values: Tensor, came: Tensor | None = None, hole: Any = None) -> list[Any]:
    if values.ndim > 1:
        return [_listed(v, None if came is None else came[i], hole) for i, v in enumerate(values)]
    kept = values.tolist()
    return kept if came is None else [v if c else hole for v, c in zip(kept, came.tolist(), strict=True)]


KINDS: dict[str, Callable[..., Any]] = {
    "tensor": _tensor,
    "array": lambda *given: _tensor(*given).numpy(),
    "list": _listed,
}


def _call(advantage: Callable[..., Any], rewards: Any, given: dict[str, Any]) -> Any:
    with warnings.catch_warnings():  # of empty slices: numpy and torch say so of a group of which none came
        warnings.simplefilter("ignore")
        return attempt(advantage, rewards, **given)


# What comes back ---------------------------------------------------------------------------------------------------


@dataclass
class _Rows:
    """Groups with rewards that came and others that did not, and what may be made of them. All [groups, size]."""

    rewards: Tensor  # float32
    came: Tensor  # bool

    @classmethod
    def of(cls, size: int) -> _Rows:
        """At different levels and spreads, with true zeros; missing: none, one, half, all but two, but one, all."""
        missing = [0, 1, 1, 1, max(size // 2, 1), size - 2, size - 1, size, 1, 0, 0, 1]
        level = torch.tensor([0.2, 0.1, 2.0, 0.6, 1.5, 0.4, 1.0, 0.8, 0.5, 0.5, 1.2, 0.0])
        spread = torch.tensor([1.0, 0.5, 1.0, 2.0, 0.7, 1.3, 1.0, 1.0, 0.0, 0.0, 0.4, 0.0])
        rewards = level[:, None] + spread[:, None] * torch.rand(len(missing), size)
        rewards[0, 1], rewards[1, 2], rewards[11, :2] = 0.0, 0.0, torch.tensor([0.0, 1.0])  # the last: one success
        came = torch.ones(rewards.shape, dtype=torch.bool)
        for row, number_missing in enumerate(missing):
            first_missing = (3 * row + size - 1) % size
            came[row, [(first_missing + i) % size for i in range(number_missing)]] = False
        return cls(rewards, came)

    @property
    def size(self) -> int:
        return self.rewards.shape[1]

    @cached_property
    def ids(self) -> Tensor:
        return torch.arange(len(self.rewards))[:, None].expand_as(self.rewards)

    @cached_property
    def number(self) -> Tensor:
        """[groups, 1]: how many came."""
        return self.came.sum(1, keepdim=True)

    @cached_property
    def counts(self) -> Tensor:
        """bool: came, and at least one more of its group did."""
        return self.came & (self.number > 1)

    def less(self, mean: Tensor | float) -> Tensor:
        """Reward minus a mean, where the row counts; 0 elsewhere."""
        return torch.where(self.counts, self.rewards.double() - mean, 0.0)

    def filled(self, value: Tensor | float) -> Tensor:
        """The rewards with a value where none came."""
        return torch.where(self.came, self.rewards.double(), torch.as_tensor(value, dtype=torch.float64))

    @cached_property
    def mean(self) -> Tensor:
        """[groups, 1], of what came; 0 where none did."""
        return self.filled(0.0).sum(1, keepdim=True) / self.number.clamp(min=1)

    @cached_property
    def centred(self) -> Tensor:
        return self.less(self.mean)

    @cached_property
    def live(self) -> Tensor:
        """[groups] bool: something is to be learned."""
        return self.centred.abs().amax(1) > 1e-6


def _judge(returned: Any, rows: _Rows, seen: dict[str, Any], told: bool) -> str:
    """What is to be said of the advantages, and of the mask if there is one. `told`: the function was given a mask."""
    result, mask = _parts(returned, rows)
    out, hole = result.isfinite(), ~rows.came
    seen |= {"not finite": int((~out).sum()), "counted": int(mask.sum()) if mask is not None else "no mask"}
    if not out.all():
        return _spread(out, rows)
    if not result.any():
        return "All zeros. Likely not written yet, or a single missing reward stops the whole batch."
    seen["largest advantage of a missing reward"] = float(result[hole].abs().max())
    partly = rows.live & hole.any(1)
    dead = partly & ~result.any(1)
    thrown = int(rows.counts[dead].sum())
    if dead.any():
        why = "a group is dropped as soon as one is missing" if dead.sum() == partly.sum() else "too many must come"
        return (
            f"{int(dead.sum())} of the {int(partly.sum())} groups that miss a reward get no advantage at all: {thrown} "
            f"rewards that came are thrown away. Likely {why}, or a true 0 is taken for a missing reward. Drop a group "
            "when fewer than two came."
        )
    return _values(result, rows) or _mask(mask, rows, told)


def _parts(returned: Any, rows: _Rows) -> tuple[Tensor, Tensor | None]:
    """The advantages and the mask, if one was returned, as [groups, size]."""
    mask = None
    if isinstance(returned, tuple) and returned:
        mask = _as_rows(returned[1], rows) if len(returned) > 1 else None
        returned = returned[0]
    result = _as_rows(returned, rows)
    if result is None:
        length = returned.numel() if isinstance(returned, Tensor) else len(returned) if np.ndim(returned) else 1
        cause = "Likely not written yet, or the return is missing."
        if length in (int(rows.came.sum()), int(rows.counts.sum())):
            cause = "There are as many as rewards that came: then none stands beside its completion any more."
        expected = f"Expected one advantage per completion, {rows.rewards.numel()} of them. {cause}"
        raise CannotJudge(expected, returned=f"{length} of them" if length > 1 else type(returned).__name__)
    if mask is not None and not ((mask == 0) | (mask == 1)).all():
        mask = None  # some other tensor, such as the deviations
    return result, None if mask is None else mask.bool()


def _as_rows(value: Any, rows: _Rows) -> Tensor | None:
    """float64, shaped as the groups; None where that cannot be."""
    if value is None:
        return None
    try:
        value = value.detach().cpu() if isinstance(value, Tensor) else torch.from_numpy(np.array(value, dtype=float))
    except (TypeError, ValueError):
        return None
    return value.double().view(rows.rewards.shape) if value.numel() == rows.rewards.numel() else None


def _spread(finite: Tensor, rows: _Rows) -> str:
    """What is wrong where something is not finite."""
    bad, few = ~finite, rows.number[:, 0] < 2
    return first(
        {
            f"NaN everywhere: one missing reward spoils a mean of the whole batch. {NAN_GROUP}": bad.all(),
            f"A missing reward makes its whole group NaN. {NAN_GROUP}": (bad & rows.counts).any(),
            "NaN where a group has one reward or none: a mean of nothing, or a deviation of one. Give such a group "
            "zeros.": (bad & rows.came).any() or not bad[~few].any(),
            "NaN for the rows without a reward. In the loss even NaN times a mask of 0 is NaN; give them 0.": True,
        }
    )


def _values(result: Tensor, rows: _Rows) -> str:
    """What is wrong with finite advantages."""
    scale = (result * rows.centred)[rows.live].sum(1) / rows.centred[rows.live].square().sum(1)
    turned = distance(result[rows.live], scale[:, None] * rows.centred[rows.live]) > 0.01
    alone = torch.where(rows.came & ~rows.counts, result, 0.0)
    idle = result[~rows.live & (rows.number[:, 0] > 1)]
    whole, hole = rows.rewards[rows.came].double().mean(), float(result[~rows.came].abs().max())
    wrong = {
        "The rows without a reward are filled with 0: a judge that is slow or broken counts as a bad answer. Leave "
        "them out of the mean, and give them no advantage.": _like(result, rows.filled(0.0)),
        "The rows without a reward are filled with the mean of the batch. It is above the mean of one group and below "
        "that of another, so they are praised or blamed for their prompt.": _like(result, rows.filled(whole)),
        f"A reward that did not come has an advantage of {number(hole)}. Likely it is filled with a number; it is to "
        "move nothing.": hole > 1e-4,
        "The mean of a group counts its missing rewards as 0. Divide by the number that came.": _along(
            result, rows.less(rows.filled(0.0).mean(1, keepdim=True)), rows
        ),
        "Likely not centred on the group's own mean, but on the mean of the whole batch.": _along(
            result, rows.less(whole), rows
        ),
        "Likely a flipped sign: mean minus reward.": not turned and bool((scale < 0).all()),
        "Within a group the advantages are not in proportion to reward minus the mean of what came. Likely another "
        "mean, or a true reward of 0 is taken for a missing one.": turned or bool((scale <= 0).any()),
        f"The only reward that came in its group has an advantage of {number(float(alone.abs().max()))}; with nothing "
        "to compare it with, that is 0.": alone.abs().max() > 1e-6,
        "A group without a reward has advantages.": result[rows.number[:, 0] < 1].any(),
        "A tied group has advantages: the rounding of its mean over a tiny eps. Use an eps of 1e-4.": idle.abs().max()
        > 0.1,
    }
    return first(wrong) or _divisor(scale, rows)


def _like(result: Tensor, filled: Tensor) -> bool:
    """Whether these are group advantages of the rewards so filled, each group at any scale."""
    centred = filled - filled.mean(1, keepdim=True)
    norms = [x.norm(dim=1, keepdim=True).clamp(min=1e-9) for x in (result, centred)]
    varied = centred.norm(dim=1) > 1e-6
    return distance((result / norms[0])[varied], (centred / norms[1])[varied]) < CLOSE


def _along(result: Tensor, other: Tensor, rows: _Rows) -> bool:
    """Whether each group that is partly there is a multiple of another centring, and not of the right one."""
    partly = rows.live & (~rows.came).any(1)
    a, b, right = (x[partly] / x[partly].norm(dim=1, keepdim=True) for x in (result, other, rows.centred))
    return distance(a, b) < CLOSE < distance(a, right)


def _divisor(scale: Tensor, rows: _Rows) -> str:
    """What is wrong with the factors between reward minus mean and the advantage, one per group."""
    squares, came = rows.centred[rows.live].square().sum(1), rows.number[rows.live, 0]
    zeros = rows.filled(0.0)[rows.live]
    known = {
        "nothing": torch.ones_like(squares),
        "deviation": (squares / (came - 1)).rsqrt(),
        "biased deviation": (squares / came).rsqrt(),
        "leave one out": came / (came - 1),
        "filled": (squares / (rows.size - 1)).rsqrt(),
        "filled, biased": (squares / rows.size).rsqrt(),
        "zeros": 1 / zeros.std(1),
        "zeros, biased": 1 / zeros.std(1, correction=0),
    }
    ratios = {name: scale / factor for name, factor in known.items()}
    spread = {name: ratio.std() / ratio.mean() for name, ratio in ratios.items()}
    found = min(spread, key=spread.__getitem__)
    if not spread[found] < CLOSE:
        return (
            "Each group is divided by something of its own that is neither the deviation of its rewards that came nor "
            "that with its mean filled in. Likely a deviation that counts the batch, or missing rewards."
        )
    if found.startswith("zeros"):
        return "A group is divided by a deviation that counts its missing rewards as 0. Take that of what came."
    if found.startswith("filled"):
        return Caution(
            "The deviation counts a missing reward as one at the mean, and is too small: a group pulls harder the more "
            "it misses."
        )
    return ""


def _mask(mask: Tensor | None, rows: _Rows, told: bool) -> str:
    """What is wrong with the returned mask, 1 where a row counts in the loss."""
    if mask is None:
        return "" if told else Caution("It returns no mask: leave the rows without a reward out of the loss yourself.")
    lost = rows.counts[rows.live] & ~mask[rows.live]
    return first(
        {
            "The mask is the other way round: 1 = counts.": bool((mask == ~rows.came).all()),
            f"The mask counts {int((mask & ~rows.came).sum())} rows without a reward: they would dilute the loss, and "
            "the KL would pull on them.": (mask & ~rows.came).any(),
            f"The mask leaves out {int(lost.sum())} rewards that came, in groups where two or more did.": lost.any(),
        }
    ) or _lonely(mask, rows)


def _lonely(mask: Tensor, rows: _Rows) -> str:
    counted = int((mask & rows.came & ~rows.counts).sum())
    return Caution(f"The mask counts {counted} reward that is alone in its group: it only dilutes.") if counted else ""
