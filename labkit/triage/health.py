"""Whether a run is healthy. Asked last, and it takes evidence: enough rows, a gradient, a policy that moves, rewards
that differ; and nothing that got worse. Where one of these is missing the answer is "nothing found".
"""

from __future__ import annotations

import itertools
import math
from statistics import median, stdev

from labkit.common import number

from .courses import dropped, gained, overfits, worse_beside
from .log import Log, Seen, level
from .measured import says_nothing
from .mechanisms import signs_of

ENOUGH = 10  # rows; in fewer a course cannot be told from noise
# signs of signs.py that no run may show which is called healthy, whatever else it shows
DOUBTS = (
    *("reward-down", "reward-fell", "reward-zero", "reward-low", "spread-tiny", "cut-high"),
    *("held-out-down", "held-out-fell", "held-out-flat", "held-out-loss-up", "quality-down"),
    *("kl-huge", "ppo-kl-high", "clip-high", "entropy-far-up", "mismatch-up", "correlation-low"),
    *("reward-still", "reward-frozen", "never-right", "part-down", "ties-most", "kl-far", "format-down"),
    *(
        "kl-below-zero",
        "kl-dwarfs",
        "kl-weight-pinned",
        "critic-blind",
        "critic-worse",
        "chosen-falls",
        "coin-flip",
        "loss-spike",
    ),
)


def healthy(log: Log, most: dict[str, float], least: dict[str, float], times: dict[str, list[float]]) -> Seen | None:
    """Signs of health, all of them.

    most, least, times  column -> the largest and smallest end in a healthy run, and in multiples of its start
    """
    if len(log.rows) < ENOUGH or log.reading.ended_by("error"):
        return None
    if not signs_of(log).keys().isdisjoint(DOUBTS):
        return None
    if worse(log) or _out_of_bounds(log, most, least, times) or _one_reward_for_all(log):
        return None
    signs = [_learns(log), _moves(log), _differs(log)]
    if not all(signs):
        return None
    if any(log.values("grad_norm")) and _kl(log):
        return Seen(signs, "likely")
    return Seen([*signs, "a gradient norm and a KL would say more"], "possible")


def worse(log: Log) -> list[str]:
    """What got worse in the course of the run, in words; [] where nothing did."""
    found = []
    reward = log.curve("reward")
    fell = reward.falls or (len(reward) >= 3 and reward.last < reward.first - 0.25 * abs(reward.first))
    if fell or dropped(reward):
        found.append(reward.words)
    if not gained(log):
        found += [curve.words for curve in worse_beside(log)]
    by_heart = overfits(log)
    if by_heart:
        found += by_heart.evidence
    norm = log.curve("grad_norm")
    median_norm = median(norm.values) if norm else 0.0
    if len(norm) > 4 and max(norm.values) > max(10 * median_norm, 20):
        found.append(norm.words)  # a step far outside the others
    if norm.zero_from or norm.values.count(0) > 0.2 * len(norm):
        found.append(norm.words)
    return found


def _out_of_bounds(log: Log, most: dict[str, float], least: dict[str, float], times: dict[str, list[float]]) -> bool:
    for name in {*most, *least}:
        if log.has(name):
            end = median(log.values(name)[-3:])
            if end > most.get(name, end) or end < least.get(name, end):
                return True
    for name, (low, high) in times.items():
        if len(log.values(name)) > 3:
            start, end = level(log.values(name), "first"), level(log.values(name), "last")
            if start > 0 and not low * start <= end <= high * start:
                return True
    return False


def _one_reward_for_all(log: Log) -> bool:
    """Whether one reward function says the same in every row, and it is neither 0 nor 1."""
    names = {name for row in log.rows for name in row.values if name.startswith("rewards/") and "std" not in name}
    for name in names:
        values = log.values(name)
        if len(values) > 2 and min(values) == max(values) and values[0] not in (0, 1):
            return True
    return False


def _kl(log: Log) -> list[float]:
    """Whatever says how far the policy is from where it was."""
    return [x for name in ("kl", "kl_sum", "ppo_kl") for x in log.values(name) if not math.isnan(x)]


def _margins(log: Log) -> list[float]:
    pairs = zip(log.values("dpo_chosen"), log.values("dpo_rejected"), strict=False)
    return log.values("dpo_margin") + [chosen - rejected for chosen, rejected in pairs]


def _gain(log: Log) -> str:
    """Words for a reward that rises or, where there is none, a loss that falls, by more than its noise; or ""."""
    name, word, sign = ("reward", "rises", 1) if log.has("reward") else ("loss", "falls", -1)
    values = log.batches(name)
    if len(_kl(log)) >= 5 or len(values) < 6 or not all(map(math.isfinite, values)):
        return ""
    start, end = level(values, "first"), level(values, "last")
    gained_much = len(values) > 8 and _rises([sign * value for value in values], 2.8 if len(values) < 20 else 1.5)
    steps = list(itertools.pairwise(values))
    steady = sum(sign * after > sign * before for before, after in steps) >= 0.8 * len(values)
    if gained_much or steady:
        return f"the {name} {word}: {number(start)} to {number(end)}"
    return ""


def _rises(values: list[float], noises: float = 1.5) -> bool:
    """Whether the last third lies above the first by so many times the noise of their difference."""
    return level(values, "last") - level(values, "first") > noises * stdev(values) * math.sqrt(6 / len(values))


def _learns(log: Log) -> str:
    """A gradient, or what comes of one."""
    norms = [norm for norm in log.values("grad_norm") if math.isfinite(norm)]
    losses, fastest = log.values("loss"), max(log.rates, default=0.0)
    if any(norms):
        return f"grad_norm {number(min(norms))} to {number(max(norms))}: finite, and not 0"
    if norms:
        return ""
    if any(abs(margin) > 0.01 for margin in _margins(log) + log.values("dpo_chosen")):
        return "the margin between the answers of a pair, or what the chosen one gained, is not 0"
    if any(_kl(log)):
        return "the KL is not 0"
    surrogate = log.values("policy_loss")
    if not losses and any(surrogate) and all(map(math.isfinite, surrogate)):
        return f"a surrogate loss that is not 0: {number(min(surrogate))} to {number(max(surrogate))}"
    if len(set(losses)) > 2 and all(map(math.isfinite, losses)) and 0 not in losses and fastest > 1e-9:
        return f"a loss that is not 0 and differs from row to row, {number(min(losses))} to {number(max(losses))}"
    return _gain(log)


def _moves(log: Log) -> str:
    """A policy that is not where it was."""
    kl, margins = _kl(log), _margins(log)
    norms = [norm for norm in log.values("grad_norm") if norm < math.inf]
    large = not log.values("reward") and len(norms) > 3 and median(norms) > 100
    outside = max(norms, default=0.0) > max(100 * median(norms or [0.0]), 10)  # one step far outside the others
    stopped = len(log.rates) > 1 and not any(log.rates) and not says_nothing(log, 3)
    if large or outside or stopped:
        return ""
    if max(map(abs, kl), default=0.0) > 1e-7:
        return f"the policy moves: KL {number(min(kl))} to {number(max(kl))}"
    if any(log.values("clip_ratio")) or any(abs(x) > 0.005 for x in margins + log.values("dpo_chosen")):
        return "the policy moves: ratios are clipped, or a margin is not 0"
    return _gain(log)  # an optimizer that steps a copy of the model has the same gradients, and gains nothing


def _differs(log: Log) -> str:
    """Rewards that differ: inside groups, or from row to row (by a fiftieth, where only a loss says that it learns)."""
    rewards = log.values("reward") + log.values("frac_reward_zero_std")
    if log.untied is not None:
        return "rewards differ inside groups: there is something to learn from" if log.untied else ""
    if not rewards:
        return _needs_no_rewards(log)
    least = 0.0 if _kl(log) or log.has("grad_norm") else 0.02 * max(map(abs, rewards))
    if log.dpo or max(rewards) - min(rewards) > least:
        return "rewards differ from row to row"
    return "one row with a reward" if len(log.values("reward")) == 1 else ""


def _needs_no_rewards(log: Log) -> str:
    losses = (log.values if log.supervised else log.batches)("loss") or [math.nan]
    stands = len(losses) > 8 and level(losses, "last") >= level(losses, "first")
    stands |= log.supervised and len(losses) > 3 and not _rises([-loss for loss in losses])
    by_heart = max(log.values("epoch"), default=0.0) > 3 and min(losses) <= max(0.5, losses[0] / 2)
    if (stands and not log.dpo and not log.scaler_skips) or by_heart:
        return ""
    return "a loss that needs no rewards"
