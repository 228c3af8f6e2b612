"""What rules see in the measurements, with the step and the numbers, or None: NaN, no gradient, memory that climbs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import median

from labkit.common import number

from .log import SPREAD, Log, Seen, level
from .rows import Row


def reward_nan(log: Log) -> Seen | None:
    row = log.first(lambda row: any(not math.isfinite(row.values[name]) for name in log.reward_names(row)))
    if row is None or (log.first_nan and log.rows.index(log.first_nan) < log.rows.index(row)):
        return None
    bad = [(n, row.values[n]) for n in log.reward_names(row) if not math.isfinite(row.values[n])]
    return Seen([f"{row.at}: {name} is {number(value)}" for name, value in bad[:3]])


def nan_logged(log: Log) -> Seen | None:
    for row, names in log.nan_columns[:1]:
        return Seen([f"{row.at}: {', '.join(names[:4])} NaN", f"{len(log.nan_columns)} such rows"])
    return None


def kl_overflow(log: Log) -> Seen | None:
    """The KL is not finite, or far above anything a policy does, before the gradient norm is."""
    row = log.first(lambda row: not math.isfinite(row.values.get("kl", 0.0)) or row.values.get("kl", 0.0) > 10)
    if row is None or kl_unlogged(log):
        return None
    spiked = log.spike and log.rows.index(log.spike[0]) < log.rows.index(row)
    spiked = spiked or any(norm > 1e3 for norm in log.before(row, "grad_norm"))
    dead = math.isnan(row.values["kl"]) and row.values.get("reward") == 0  # of weights that are NaN already
    # with the entropy or the log-probs, which need no exp(), the whole forward pass is NaN
    dead = dead or any(not math.isfinite(row.values.get(name, 0.0)) for name in ("entropy", "logp"))
    return None if spiked or dead else Seen([f"{row.at}: KL {number(row.values['kl'])} nats per token"])


def kl_unlogged(log: Log) -> bool:
    """Whether every KL is NaN beside a finite loss: a table's way to say that none was logged."""
    kl, losses = log.values("kl"), log.values("loss")
    return bool(kl and losses) and all(map(math.isnan, kl)) and all(map(math.isfinite, losses))


def is_so(
    log: Log, column: str, says: str, test: str, limit: float = 0, about: float = 0, first: bool = False, drop: str = ""
) -> Seen | None:
    """The first row in which a column is further than a limit from `about`, or nearer, below 0, or not a number.

    `first`: the first row, where it is the first step and the column stays so. `drop`: a column that must end lower.
    """
    tests = {"above": lambda x: abs(x - about) > limit, "near": lambda x: abs(x - about) <= limit}
    tests |= {"below": lambda x: x < 0, "nan": math.isnan, "not finite": lambda x: not math.isfinite(x)}
    row = log.first(lambda row: column in row.values and tests[test](row.values[column]))
    fell = not drop or (log.has(drop) and log.values(drop)[-1] < log.values(drop)[0])
    if row is None or not fell or (first and not _from_the_start(log, row, column, limit)):
        return None
    return Seen([f"{row.at}: {says.format(number(row.values[column]))}", *_norms(log, row)])


def _from_the_start(log: Log, row: Row, column: str, limit: float) -> bool:
    """Whether a row is the first step's own, not a mean over several steps, and the column stays so."""
    steps, early = log.values("step")[:2], row.values.get("epoch", 1.0) <= 0.005
    alone = steps[0] <= 1 and (len(steps) < 2 or steps[1] <= steps[0] + 1) if steps else early
    return alone and row is log.column(column)[0][0] and median(log.values(column)[:8]) > limit / 2


def explosion(log: Log) -> Seen | None:
    if log.spike:
        return Seen([f"{log.spike[0].at}: grad_norm {number(log.spike[1])}, {number(log.spike[2])} before"])
    row = log.first_nan
    if row is None or log.scaler_skips or log.nan_columns or kl_unlogged(log):
        return None
    masked = ["a loss of 0 beside it is a NaN that logging_nan_inf_filter replaced"] * (row.values.get("loss") == 0)
    bad = ", ".join(f"{name} {number(x)}" for name, x in row.values.items() if not math.isfinite(x))
    return Seen([f"{row.at}: {bad[:160]}", *masked, *_norms(log, row)])


def _norms(log: Log, row: Row) -> list[str]:
    norms = log.before(row, "grad_norm")
    return [f"grad_norm before: {', '.join(number(norm) for norm in norms[-4:])}"] if norms else []


def lost(log: Log, masked: bool = False) -> Seen | None:
    """A gradient of exactly 0 although something was there to learn. `masked`: no label was, and the loss is 0."""
    zero, losses = [row for row, norm in log.column("grad_norm") if norm == 0], log.values("loss")
    falls = losses and level(losses, "last") < 0.98 * level(losses, "first")  # DeepSpeed may log a norm of 0
    all_zero = len(zero) == len(log.rows) and (len(zero) > 1 or masked)
    if log.supervised and all_zero and masked != any(losses) and not falls:
        return Seen([f"grad_norm 0 in all {len(zero)} rows, loss {number(losses[0])}"])
    if masked or len(zero) < min(2, len(log.rows)) or not zero or len(zero) < 0.5 * len(log.values("grad_norm")):
        return None
    alive = [r for r in zero if _spread_known(r.values) and not _tied(r.values)]
    if alive and len(alive) >= 0.5 * len(zero):
        names = ("reward_std", "frac_reward_zero_std", "kl")
        words = ", ".join(f"{name} {number(alive[0].values[name])}" for name in names if name in alive[0].values)
        return Seen([f"{alive[0].at}: grad_norm 0 although groups are not tied: {words}", f"{len(alive)} such rows"])
    return None


def too_slow(log: Log) -> Seen | None:
    """There is a gradient, and all updates together, each of about the rate, are less than a parameter's rounding."""
    kl, rates, norms = log.values("kl"), log.rates, [n for n in log.values("grad_norm") if n > 0]
    rows, steps, still = len(log.values("grad_norm")), log.values("step"), max(map(abs, log.values("kl")), default=0.0)
    rising = len(rates) > 1 and rates[-1] > 1.5 * rates[0]  # a warm-up has only begun
    ending = rates[-1:] < rates[:1] and (max(log.values("epoch")[:1] or [0.0]) > 0.5 or min(steps or [0.0]) > 20)
    if rows < 5 or len(norms) < 0.5 * rows or not rates or rising or ending or not still < 1e-6:
        return None
    updates = max(steps) - min(steps) + 1 if steps else rows
    moved = f"KL at most {number(still)}" if kl else "no KL is logged"
    if says_nothing(log, 4) or max(rates) * updates >= (1e-5 if kl and rows >= 20 else 1e-7):
        return None
    seen = f"rate {number(max(rates))} at most, {updates:g} updates, grad_norm {number(median(norms))}; {moved}"
    return Seen([seen], "likely" if kl else "possible")


def says_nothing(log: Log, digits: int) -> bool:
    """Whether rates say nothing: verl prints three digits, and a rate of 1e-6 as 0.000."""
    norms, still = log.values("grad_norm"), max(log.rates, default=1.0) == 0
    return still and bool(norms) and not (_finer(norms, digits) or log.supervised or log.dpo)


def _finer(values: list[float], digits: int) -> bool:
    """Whether more digits are printed behind the point."""
    return any(value != round(value, digits) for value in values)


def never_moved(log: Log, fastest: float | None = None) -> Seen | None:
    """There is a gradient, and a KL that stays exactly 0: no update arrives, at rates up to `fastest`."""
    kl, norms = log.values("kl"), [n for n in log.values("grad_norm") if n > 0]
    rate = max(log.rates, default=math.nan)
    # verl prints three digits: a healthy KL is 0.000 for its first steps, the longer the smaller the rate
    exact, fine = _finer(norms, 4), _finer(norms, 2)  # with two digits a KL of 0.00 says nothing
    long = len(kl) >= 20 and fine and not rate < 1e-7 or len(kl) >= 6 and rate * len(kl) >= (6e-6 if exact else 3e-4)
    if not long or any(kl) or not norms or log.beta == 0 or (fastest and not rate <= fastest):
        return None
    seen = [f"KL exactly 0 in all {len(kl)} rows, grad_norm {number(median(norms))}, rate {number(rate)}"]
    return Seen(seen, "likely" if len(kl) >= 20 else "possible")


def agree(log: Log) -> Seen | None:
    """Every group tied in every row, and mean rewards that differ: groups differ, completions of a group do not."""
    known = [r for r in log.rows if _spread_known(r.values) and "reward" in r.values]
    rewards = [r.values["reward"] for r in known]
    apart = [r for r in known if r.values.get("reward_std", 0.0) > 0]  # the deviation of a batch whose groups are tied
    if len(known) < 4 or not all(_tied(r.values) for r in known) or len(set(rewards)) < (2 if len(apart) > 3 else 3):
        return None
    return Seen([f"all groups tied in all {len(known)} rows, rewards {number(min(rewards))} to {number(max(rewards))}"])


def tied(log: Log) -> Seen | None:
    known = [r for r in log.rows if _spread_known(r.values)]
    rows = [r for r in known if _tied(r.values)]
    if not known:
        return one_reward(log)
    if not rows or len(rows) <= 0.5 * len(known) or rows[-1] is not known[-1] or _solved(log):
        return None
    rewards = [r.values["reward"] for r in rows if "reward" in r.values and len(known) > 1]
    seen = [f"reward of the tied rows {number(min(rewards))} to {number(max(rewards))}"] if rewards else []
    return Seen([f"{rows[0].at}: every group is tied; so in {len(rows)} of {len(known)} rows", *seen])


def _solved(log: Log) -> bool:
    """Whether the reward has climbed to 1, the most that most functions pay: groups are tied as all is right."""
    reward = log.curve("reward")
    return len(reward) >= 4 and reward.first < 0.9 and 0.95 <= reward.last <= 1 and max(reward.values) <= 1


def one_reward(log: Log, most: float = math.inf) -> Seen | None:
    """One reward in every row, and no gradient or groups that are tied: nothing that was logged says more."""
    rewards, norms = log.values("reward"), log.values("grad_norm")
    still = (norms and not any(norms) and not log.untied) or (log.untied is False and most <= 0)
    still |= log.untied is None and len(rewards) > 3 and rewards[0] in (0, 1, -1)  # a mean at an end of the scale
    one = len(rewards) > 1 == len(set(rewards)) and rewards[0] <= most
    return Seen([f"reward {number(rewards[0])} in all {len(rewards)} rows"]) if one and still else None


def _tied(values: dict[str, float]) -> bool:
    if "frac_reward_zero_std" in values:
        return values["frac_reward_zero_std"] >= 0.999
    if "reward_std" in values:
        return values["reward_std"] <= 1e-3 * abs(values.get("reward", 0.0))
    # slime's scaled rewards sum to rounding errors; exactly 0 is what they are when there was nothing to scale
    zero = values.get("scaled_reward") == values.get("advantage_mean", 0) == 0 or values.get("advantage_std") == 0
    return zero or values.get("advantage_max") == 0 == values.get("advantage_min")


def _spread_known(values: dict[str, float]) -> bool:
    return not {"frac_reward_zero_std", "scaled_reward", *SPREAD}.isdisjoint(values)


def beta_zero(log: Log) -> Seen | None:
    if kl_unlogged(log):
        return Seen([f"KL is NaN in all {len(log.values('kl'))} rows and the loss is finite: none was computed"])
    shown = (log.has("kl") or 0 in log.values("loss")) and any(log.values("grad_norm"))
    asked = log.beta == 0 and shown and not any(log.values("kl"))
    return Seen(["beta is 0: the KL is not computed, and the loss has no KL term"]) if asked else None


def leap(log: Log) -> Seen | None:
    """Within two rows the policy is tenths of a nat from its reference, and every later reward is lower."""
    rate = f", rate {number(max(log.rates))}" if log.rates else ""
    rows = [row for row in log.rows if {"kl", "reward"} <= set(row.values) and not log.spike]
    rewards = [row.values["reward"] for row in rows]
    for at, row in enumerate(rows[1:], 1):
        before, now = rows[max(at - 2, 0)].values, row.values
        if before["kl"] <= 0.01 and now["kl"] > 0.3 and (best := max(rewards[at:])) < before["reward"]:
            moved = f"KL {number(before['kl'])} to {number(now['kl'])} nats per token within two rows"
            fell = f"reward {number(before['reward'])} to {number(best)} at most{rate}"
            return Seen([f"{row.at}: {moved}", fell], "" if now["kl"] >= 1 else "possible")
    return None


def drift(
    log: Log, column: str, start: Sequence[float], end: Sequence[float], says: str, gain: float = 0.1, rows: int = 6
) -> Seen | None:
    """A column whose medians in the first and the last third lie in given spans, while the reward gained no tenth."""
    values, reward = [[x for x in some if math.isfinite(x)] for some in (log.values(column), log.batches("reward"))]
    third = max(len(values) // 3, 1)
    if len(values) < rows or log.spike:
        return None
    first, last = median(values[:third]), median(values[-third:])
    was, now = (level(reward, "first"), level(reward, "last")) if reward else (0.0, 0.0)
    so = start[0] <= first <= start[1] and end[0] <= last <= end[1] and now <= was + gain * max(abs(was), 0.1)
    return Seen([f"{says.format(number(first), number(last))}; reward {number(was)} to {number(now)}"]) if so else None


def stairs(log: Log, column: str, of: str = "", rows: int = 6, gain: float = 0.05, falls: bool = False) -> Seen | None:
    """A column, or what stands in lines of a kind, that only goes up (with `falls`: only down) over so many rows."""
    values = [float(group[column]) for group in log.hits[of].groups] if of in log.hits else log.values(column)
    held = [-value if falls else value for value in values]
    pairs = list(itertools.pairwise(held))
    rises = sum(b > a for a, b in pairs)
    back = any(b < a - 0.02 * abs(a) for a, b in pairs)
    few = len(held) < rows or (rises < rows // 2 and not falls)
    if few or back or held[-1] - held[0] <= gain * max(abs(held[0]), 1.0):
        return None
    return Seen([f"{column} {number(values[0])} to {number(values[-1])}, never back"], "" if rises >= 3 else "possible")
