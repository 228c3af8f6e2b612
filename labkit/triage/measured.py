"""What rules see in the measurements, with the step and the numbers, or None: NaN, no gradient, memory that climbs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from statistics import median

from labkit.common import number

from .log import SPREAD, Log, Seen, level
from .rows import Row


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _norms(log: Log, row: Row) -> list[str]:
    """The gradient norms of the last rows before this one, in words."""
    norms = log.before(row, "grad_norm")
    if not norms:
        return []
    return [f"grad_norm before: {', '.join(map(number, norms[-4:]))}"]


# ---- values that are not finite


def reward_nan(log: Log) -> Seen | None:
    """A reward that is not a number, in no later row than anything else that is not."""
    row = log.first(lambda row: bool(_bad_rewards(log, row)))
    if row is None:
        return None
    if log.first_nan and log.rows.index(log.first_nan) < log.rows.index(row):
        return None
    return Seen([f"{row.at}: {name} is {number(row.values[name])}" for name in _bad_rewards(log, row)[:3]])


def _bad_rewards(log: Log, row: Row) -> list[str]:
    return [name for name in log.reward_names(row) if not math.isfinite(row.values[name])]


def nan_logged(log: Log) -> Seen | None:
    """Columns that are not a number beside a gradient that is finite."""
    if not log.nan_columns:
        return None
    row, names = log.nan_columns[0]
    return Seen([f"{row.at}: {', '.join(names[:4])} NaN", f"{len(log.nan_columns)} such rows"])


def kl_overflow(log: Log) -> Seen | None:
    """The KL is not finite, or far above anything a policy does, before the gradient norm is."""

    def overflows(row: Row) -> bool:
        kl = row.values.get("kl", 0.0)
        return not math.isfinite(kl) or kl > 10

    row = log.first(overflows)
    if row is None or kl_unlogged(log):
        return None
    if log.spike and log.rows.index(log.spike[0]) < log.rows.index(row):
        return None
    if any(norm > 1e3 for norm in log.before(row, "grad_norm")):
        return None
    if math.isnan(row.values["kl"]) and row.values.get("reward") == 0:
        return None  # of weights that are NaN already
    # with the entropy or the log-probs, which need no exp(), the whole forward pass is NaN
    if not math.isfinite(row.values.get("entropy", 0.0)) or not math.isfinite(row.values.get("logp", 0.0)):
        return None
    return Seen([f"{row.at}: KL {number(row.values['kl'])} nats per token"])


def kl_unlogged(log: Log) -> bool:
    """Whether every KL is NaN beside a finite loss: a table's way to say that none was logged."""
    kl, losses = log.values("kl"), log.values("loss")
    return bool(kl and losses) and all(map(math.isnan, kl)) and all(map(math.isfinite, losses))


def explosion(log: Log) -> Seen | None:
    """A gradient norm far outside the usual, or the first value that is not a number."""
    if log.spike:
        row, norm, before = log.spike
        return Seen([f"{row.at}: grad_norm {number(norm)}, {number(before)} before"])
    first = log.first_nan
    if first is None or log.scaler_skips or log.nan_columns or kl_unlogged(log):
        return None
    bad = [f"{name} {number(value)}" for name, value in first.values.items() if not math.isfinite(value)]
    seen = [f"{first.at}: {', '.join(bad)[:160]}"]
    if first.values.get("loss") == 0:
        seen.append("a loss of 0 beside it is a NaN that logging_nan_inf_filter replaced")
    return Seen([*seen, *_norms(log, first)])


# ---- one column against a limit

_TESTS: dict[str, Callable[[float, float, float], bool]] = {  # value, limit, about
    "above": lambda value, limit, about: abs(value - about) > limit,
    "near": lambda value, limit, about: abs(value - about) <= limit,
    "below": lambda value, limit, about: value < 0,
    "nan": lambda value, limit, about: math.isnan(value),
    "not finite": lambda value, limit, about: not math.isfinite(value),
}


def is_so(
    log: Log, column: str, says: str, test: str, limit: float = 0, about: float = 0, first: bool = False, drop: str = ""
) -> Seen | None:
    """The first row in which a column is further than a limit from `about`, or nearer, below 0, or not a number.

    `first`: the first row, where it is the first step and the column stays so. `drop`: a column that must end lower.
    """
    holds = _TESTS[test]
    row = log.first(lambda row: column in row.values and holds(row.values[column], limit, about))
    if row is None:
        return None
    if drop and not (log.has(drop) and log.values(drop)[-1] < log.values(drop)[0]):
        return None
    if first and not _from_the_start(log, row, column, limit):
        return None
    return Seen([f"{row.at}: {says.format(number(row.values[column]))}", *_norms(log, row)])


def _from_the_start(log: Log, row: Row, column: str, limit: float) -> bool:
    """Whether a row is the first step's own, not a mean over several steps, and the column stays so."""
    steps = log.values("step")[:2]
    if steps:
        alone = steps[0] <= 1 and (len(steps) < 2 or steps[1] <= steps[0] + 1)
    else:
        alone = row.values.get("epoch", 1.0) <= 0.005
    return alone and row is log.column(column)[0][0] and median(log.values(column)[:8]) > limit / 2


# ---- a gradient of 0, a policy that stands still


def lost(log: Log, masked: bool = False) -> Seen | None:
    """A gradient of exactly 0 although something was there to learn. `masked`: no label was, and the loss is 0."""
    zero = [row for row, norm in log.column("grad_norm") if norm == 0]
    losses = log.values("loss")
    falls = bool(losses) and level(losses, "last") < 0.98 * level(losses, "first")  # DeepSpeed may log a norm of 0
    all_zero = len(zero) == len(log.rows) and (len(zero) > 1 or masked)
    if log.supervised and all_zero and masked != any(losses) and not falls:
        return Seen([f"grad_norm 0 in all {len(zero)} rows, loss {number(losses[0])}"])
    if masked or not zero or len(zero) < min(2, len(log.rows)) or len(zero) < 0.5 * len(log.values("grad_norm")):
        return None
    alive = [row for row in zero if _spread_known(row.values) and not _tied(row.values)]
    if not alive or len(alive) < 0.5 * len(zero):
        return None
    first = alive[0].values
    said = [f"{name} {number(first[name])}" for name in ("reward_std", "frac_reward_zero_std", "kl") if name in first]
    words = ", ".join(said)
    return Seen([f"{alive[0].at}: grad_norm 0 although groups are not tied: {words}", f"{len(alive)} such rows"])


def too_slow(log: Log) -> Seen | None:
    """There is a gradient, and all updates together, each of about the rate, are less than a parameter's rounding."""
    kl, rates, steps = log.values("kl"), log.rates, log.values("step")
    norms = [norm for norm in log.values("grad_norm") if norm > 0]
    rows = len(log.values("grad_norm"))
    still = max(map(abs, kl), default=0.0)
    if rows < 5 or len(norms) < 0.5 * rows or not rates or not still < 1e-6:
        return None
    warming_up = len(rates) > 1 and rates[-1] > 1.5 * rates[0]
    late = max(log.values("epoch")[:1] or [0.0]) > 0.5 or min(steps or [0.0]) > 20
    if warming_up or (rates[-1] < rates[0] and late):
        return None  # the schedule has only begun, or is over
    updates: float = rows
    if steps:
        updates = max(steps) - min(steps) + 1
    least = 1e-7
    if kl and rows >= 20:
        least = 1e-5
    if says_nothing(log, 4) or max(rates) * updates >= least:
        return None
    seen = f"rate {number(max(rates))} at most, {updates:g} updates, grad_norm {number(median(norms))}"
    if kl:
        return Seen([f"{seen}; KL at most {number(still)}"], "likely")
    return Seen([f"{seen}; no KL is logged"], "possible")


def says_nothing(log: Log, digits: int) -> bool:
    """Whether rates say nothing: verl prints three digits, and a rate of 1e-6 as 0.000."""
    norms, still = log.values("grad_norm"), max(log.rates, default=1.0) == 0
    return still and bool(norms) and not (_finer(norms, digits) or log.supervised or log.dpo)


def _finer(values: list[float], digits: int) -> bool:
    """Whether more digits are printed behind the point."""
    return any(value != round(value, digits) for value in values)


def never_moved(log: Log, fastest: float | None = None) -> Seen | None:
    """There is a gradient, and a KL that stays exactly 0: no update arrives, at rates up to `fastest`."""
    kl, norms = log.values("kl"), [norm for norm in log.values("grad_norm") if norm > 0]
    rate = max(log.rates, default=math.nan)
    if any(kl) or not norms or log.beta == 0 or (fastest and not rate <= fastest):
        return None
    # verl prints three digits: a healthy KL is 0.000 for its first steps, the longer the smaller the rate
    travelled = 3e-4
    if _finer(norms, 4):
        travelled = 6e-6
    many = len(kl) >= 20 and _finer(norms, 2) and not rate < 1e-7  # with two digits a KL of 0.00 says nothing
    some = len(kl) >= 6 and rate * len(kl) >= travelled
    if not many and not some:
        return None
    sure = "possible"
    if len(kl) >= 20:
        sure = "likely"
    return Seen([f"KL exactly 0 in all {len(kl)} rows, grad_norm {number(median(norms))}, rate {number(rate)}"], sure)


# ---- groups


def agree(log: Log) -> Seen | None:
    """Every group tied in every row, and mean rewards that differ: groups differ, completions of a group do not."""
    known = [row.values for row in log.rows if _spread_known(row.values) and "reward" in row.values]
    if len(known) < 4 or not all(map(_tied, known)):
        return None
    rewards = [values["reward"] for values in known]
    apart = [values for values in known if values.get("reward_std", 0.0) > 0]  # of a batch whose groups are tied
    fewest = 3
    if len(apart) > 3:
        fewest = 2
    if len(set(rewards)) < fewest:
        return None
    return Seen([f"all groups tied in all {len(known)} rows, rewards {number(min(rewards))} to {number(max(rewards))}"])


def tied(log: Log) -> Seen | None:
    """Every group is tied, in most rows and in the last."""
    known = [row for row in log.rows if _spread_known(row.values)]
    if not known:
        return one_reward(log)
    rows = [row for row in known if _tied(row.values)]
    if len(rows) <= 0.5 * len(known) or rows[-1] is not known[-1] or _solved(log):
        return None
    seen = [f"{rows[0].at}: every group is tied; so in {len(rows)} of {len(known)} rows"]
    rewards = [row.values["reward"] for row in rows if "reward" in row.values]
    if rewards and len(known) > 1:
        seen.append(f"reward of the tied rows {number(min(rewards))} to {number(max(rewards))}")
    return Seen(seen)


def _solved(log: Log) -> bool:
    """Whether the reward has climbed to 1, the most that most functions pay: groups are tied as all is right."""
    reward = log.curve("reward")
    return len(reward) >= 4 and reward.first < 0.9 and 0.95 <= reward.last <= 1 and max(reward.values) <= 1


def one_reward(log: Log, most: float = math.inf) -> Seen | None:
    """One reward in every row, and no gradient or groups that are tied: nothing that was logged says more."""
    rewards, norms = log.values("reward"), log.values("grad_norm")
    if len(rewards) < 2 or len(set(rewards)) > 1 or rewards[0] > most:
        return None
    no_gradient = bool(norms) and not any(norms) and not log.untied
    all_tied = log.untied is False and most <= 0
    at_an_end = log.untied is None and len(rewards) > 3 and rewards[0] in (0, 1, -1)  # of the scale
    if not no_gradient and not all_tied and not at_an_end:
        return None
    return Seen([f"reward {number(rewards[0])} in all {len(rewards)} rows"])


def _tied(values: dict[str, float]) -> bool:
    """Whether the columns of a row say that every group is tied."""
    if "frac_reward_zero_std" in values:
        return values["frac_reward_zero_std"] >= 0.999
    if "reward_std" in values:
        return values["reward_std"] <= 1e-3 * abs(values.get("reward", 0.0))
    # slime's scaled rewards sum to rounding errors; exactly 0 is what they are when there was nothing to scale
    if values.get("scaled_reward") == values.get("advantage_mean", 0) == 0 or values.get("advantage_std") == 0:
        return True
    return values.get("advantage_max") == 0 == values.get("advantage_min")


def _spread_known(values: dict[str, float]) -> bool:
    """Whether a row has a column that says whether groups are tied."""
    return not {"frac_reward_zero_std", "scaled_reward", *SPREAD}.isdisjoint(values)


def beta_zero(log: Log) -> Seen | None:
    """No KL, as asked."""
    if kl_unlogged(log):
        return Seen([f"KL is NaN in all {len(log.values('kl'))} rows and the loss is finite: none was computed"])
    shown = (log.has("kl") or 0 in log.values("loss")) and any(log.values("grad_norm"))
    if log.beta == 0 and shown and not any(log.values("kl")):
        return Seen(["beta is 0: the KL is not computed, and the loss has no KL term"])
    return None


# ---- courses of one or two columns


def leap(log: Log) -> Seen | None:
    """Within two rows the policy is tenths of a nat from its reference, and every later reward is lower."""
    if log.spike:
        return None
    rows = [row for row in log.rows if {"kl", "reward"} <= set(row.values)]
    rewards = [row.values["reward"] for row in rows]
    for at, row in enumerate(rows[1:], 1):
        before, now = rows[max(at - 2, 0)].values, row.values
        best = max(rewards[at:])
        if before["kl"] > 0.01 or now["kl"] <= 0.3 or best >= before["reward"]:
            continue
        moved = f"KL {number(before['kl'])} to {number(now['kl'])} nats per token within two rows"
        fell = f"reward {number(before['reward'])} to {number(best)} at most"
        if log.rates:
            fell += f", rate {number(max(log.rates))}"
        sure = "possible"
        if now["kl"] >= 1:
            sure = ""
        return Seen([f"{row.at}: {moved}", fell], sure)
    return None


def drift(
    log: Log, column: str, start: Sequence[float], end: Sequence[float], says: str, gain: float = 0.1, rows: int = 6
) -> Seen | None:
    """A column whose medians in the first and the last third lie in given spans, while the reward gained no tenth."""
    values, reward = _finite(log.values(column)), _finite(log.batches("reward"))
    if len(values) < rows or log.spike:
        return None
    third = max(len(values) // 3, 1)
    first, last = median(values[:third]), median(values[-third:])
    was = now = 0.0
    if reward:
        was, now = level(reward, "first"), level(reward, "last")
    in_spans = start[0] <= first <= start[1] and end[0] <= last <= end[1]
    if not in_spans or now > was + gain * max(abs(was), 0.1):
        return None
    return Seen([f"{says.format(number(first), number(last))}; reward {number(was)} to {number(now)}"])


def stairs(log: Log, column: str, of: str = "", rows: int = 6, gain: float = 0.05, falls: bool = False) -> Seen | None:
    """A column, or what stands in lines of a kind, that only goes up (with `falls`: only down) over so many rows."""
    values = log.values(column)
    if of in log.hits:
        values = [float(group[column]) for group in log.hits[of].groups]
    held = values
    if falls:
        held = [-value for value in values]
    pairs = list(itertools.pairwise(held))
    rises = [pair for pair in pairs if pair[1] > pair[0]]
    back = any(after < before - 0.02 * abs(before) for before, after in pairs)
    if len(held) < rows or back or (len(rises) < rows // 2 and not falls):
        return None
    if held[-1] - held[0] <= gain * max(abs(held[0]), 1.0):
        return None
    sure = "possible"
    if len(rises) >= 3:
        sure = ""
    return Seen([f"{column} {number(values[0])} to {number(values[-1])}, never back"], sure)
