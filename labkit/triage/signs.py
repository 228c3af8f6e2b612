"""Signs: single things that the columns of a log show, each in words. mechanisms.toml weighs what they add up to.

A sign speaks of one column, or of one against another, and judges nothing: a KL that rises is one in a sound run too.
Each function answers with words for the reader, or with "" where the sign is not there. Its name, with hyphens, is what
mechanisms.toml calls it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from statistics import fmean, median

from labkit.common import number

from .courses import by_chance, climbs, counted_noise, dropped, end_of_ties, gained, overfits, sinks
from .curves import Curve, Point
from .log import Log
from .names import NAMES, better, held_out, words_of

Sign = Callable[[Log], str]
SIGNS: dict[str, Sign] = {}


def sign(look: Sign) -> Sign:
    SIGNS[look.__name__.replace("_", "-")] = look
    return look


def grew(curve: Curve, times: float, more: float) -> bool:
    """Whether it ends so many times as high as it began, and higher by so much, and not by its noise."""
    high = curve.last > times * abs(curve.first) and curve.last - curve.first > more
    return curve.shows(3) and high and climbs(curve)


def shrank(curve: Curve, to: float) -> bool:
    """Whether it ends below this part of where it began, and not by its noise."""
    return curve.shows(3) and curve.first > 0 and curve.last < to * curve.first and sinks(curve)


def told(curve: Curve, holds: object) -> str:
    """What a curve does, in words, where something holds of it."""
    if not holds:
        return ""
    return curve.words


# ---- a column that rises, or falls, and nothing else

# sign -> the column, how many times as high as at first it ends, and how much higher at least
RISES = {
    "entropy-far-up": ("entropy", 2.2, 0.5),
    "kl-up": ("kl", 4.0, 0.15),
    "ppo-kl-up": ("ppo_kl", 3.0, 0.01),
    "clip-up": ("clip_ratio", 2.0, 0.1),
    "cut-up": ("truncated", 1.5, 0.15),
    "norm-grows": ("grad_norm", 4.0, 2.0),
    "mismatch-up": ("logp_difference", 2.0, 0.005),
    "critic-worse": ("value_loss", 3.0, 0.5),
}
# sign -> the column, and below which part of its start it ends
FALLS = {
    "tool-down": ("tool_use", 0.65),
    "spread-gone": ("reward_std", 0.35),
    "entropy-gone": ("entropy", 0.35),
    "length-down": ("mean_length", 0.35),
    "shorter": ("mean_length", 0.85),
    "diversity-down": ("diversity", 0.6),
}


def rises(column: str, times: float, more: float) -> Sign:
    def look(log: Log) -> str:
        curve = log.curve(column)
        return told(curve, grew(curve, times, more))

    return look


def falls(column: str, to: float) -> Sign:
    def look(log: Log) -> str:
        curve = log.curve(column)
        return told(curve, shrank(curve, to))

    return look


for _name, (_column, _times, _more) in RISES.items():
    SIGNS[_name] = rises(_column, _times, _more)
for _name, (_column, _part) in FALLS.items():
    SIGNS[_name] = falls(_column, _part)


# ---- the reward


@sign
def reward_up(log: Log) -> str:
    reward = log.curve("reward")
    return told(reward, gained(log) and not reward_fell(log))


@sign
def reward_down(log: Log) -> str:
    reward = log.curve("reward")
    if len(reward) == 3:
        start, *later = reward.values
        return told(reward, start - max(later) > max(0.6 * abs(start), 3 * log.reward_noise, 0.05))
    if len(reward) < 4 and not reward.summed:
        return ""
    less = reward.first - reward.last
    # the medians of two thirds differ by the noise of a row, divided by the root of their rows
    by_chance = 2.5 * log.reward_noise * math.sqrt(2 / max(len(reward) // 3, 1))
    if reward.summed:
        by_chance = 0.0
    down = less > max(0.2 * abs(reward.first), by_chance, 0.01)
    return told(reward, (down and sinks(reward)) or dropped(reward))


@sign
def reward_fell(log: Log) -> str:
    """It had a peak, and has lost more than half of what it had gained until then."""
    reward = log.curve("reward")
    if not _fell_back(reward):
        return ""
    noise = log.batch_noise if len(reward) == 4 else log.reward_noise
    if reward.peak.value - reward.last < 3 * noise:
        return ""
    best = f"{number(reward.peak.value)} ({reward.peak.row.at})"
    return f"the best reward was {best}, in the end it is {number(reward.last)}"


def _top(curve: Curve) -> Point:
    """Its highest point; of a longer curve the highest median of three: one good row among many is chance."""
    course = curve.course
    if len(course) < 9:
        return curve.peak
    smooth = []
    for before, point, after in zip(course, course[1:], course[2:], strict=False):
        smooth.append(point._replace(value=median((before.value, point.value, after.value))))
    return max(smooth, key=lambda point: point.value)


def _fell_back(curve: Curve) -> bool:
    if len(curve) < 4:
        return False
    top = _top(curve)
    if len(curve) == 4 and top.value - curve.last < 0.8 * (max(curve.values) - min(curve.values)):
        return False  # so few rows show nothing less than the loss of nearly all
    behind = [point for point in curve.course if point.at > top.at]
    before = [point.value for point in curve.course if point.at < top.at]
    if not before or len(behind) < max(len(curve.course) // 4, 1):
        return False
    gain = top.value - min(before[0], curve.first)
    loss = top.value - curve.last
    noise = 0.0 if len(curve) == 4 else max(curve.noise, counted_noise(curve))  # four rows do not show it
    return loss > max(0.5 * gain, 3 * noise, 0.1 * abs(top.value), 0.01) and gain > 2 * noise


@sign
def reward_flat(log: Log) -> str:
    """It is where it began, over enough rows to say so."""
    reward = log.curve("reward")
    if len(reward) < 5 or gained(log) or reward_down(log) or reward_fell(log):
        return ""
    if reward.last > reward.first + max(0.1 * abs(reward.first), 0.02):
        return ""  # more, if by no more than its noise
    if climbs(reward):
        return ""
    return f"{reward.words}: no gain"


@sign
def reward_still(log: Log) -> str:
    """It is one and the same number in every row, and neither 0 nor 1."""
    reward = log.curve("reward")
    if len(reward) < 4:
        return ""
    steps = [point.row.values.get("step", 0.0) for point in reward.points]
    # moments of a whole run, which somebody chose: neighbouring rows of a small batch are equal by chance
    far_apart = steps[-1] - steps[0] >= 100 or (
        not any(steps) and len({point.row.line for point in reward.points}) == 1
    )
    still = far_apart and reward.constant and not reward.summed and reward.first not in (0, 1)
    if not still:
        return ""
    return f"reward {number(reward.first)} in all {len(reward)} rows"


@sign
def reward_frozen(log: Log) -> str:
    """It differed from row to row, and is one and the same number in the last ones, below the best there is."""
    reward = log.curve("reward")
    same = 0
    for value in reversed(reward.values):
        if value != reward.values[-1]:
            break
        same += 1
    if len(reward) < 5 or reward.summed or same == len(reward) or not 0 < abs(reward.last) < 0.95:
        return ""
    steps = [point.row.values.get("step", 0.0) for point in reward.points[-same:]]
    # rows that lie far apart are equal by chance less often than neighbours of a small batch
    enough = 2 if steps[-1] - steps[0] >= 50 else 5
    if same < enough or reward.noise < 0.02 * abs(reward.last):
        return ""
    return f"reward {number(reward.last)} in the last {same} rows, to the last digit, {reward.words} before"


@sign
def never_right(log: Log) -> str:
    """Something is earned, and a score of right answers is exactly 0 in every row."""
    reward = log.curve("reward")
    if len(reward) < 4 or not any(reward.values) or log.dpo:
        return ""
    for name in ["success", *_scores(log)]:
        score = log.curve(name)
        if name.startswith("reward") or "format" in name.lower():
            continue  # a part of the reward, which need not be met
        if name not in log.reward_columns and len(score) >= 4 and not any(score.values) and better(name) > 0:
            return f"{name} exactly 0 in all {len(score)} rows, beside a reward of {number(reward.last)}"
    return ""


@sign
def part_down(log: Log) -> str:
    """Of two columns that add up to the reward one falls, and the other more than makes up for it."""
    reward = log.curve("reward")
    if len(reward) < 8 or not gained(log):
        return ""
    names = [name for name in log.names if name not in NAMES and len(log.curve(name)) == len(reward)]
    for first, second in itertools.permutations(names[:12], 2):
        part, other = log.curve(first), log.curve(second)
        sums = zip(part.values, other.values, reward.values, strict=True)
        if not all(abs(one + two - whole) < 1e-3 * max(abs(whole), 1e-3) for one, two, whole in sums):
            continue
        if part.last < 0.85 * part.first and sinks(part) and climbs(other):
            return f"{part.words}; with {second} it adds up to the reward"
    return ""


@sign
def reward_zero(log: Log) -> str:
    """It is exactly 0 in most rows, and was hardly more in the first."""
    values = log.curve("reward").values
    zeros = values.count(0)
    if len(values) < 4 or zeros < 0.5 * len(values) or log.curve("reward").first > 0.15 or log.dpo:
        return ""
    return f"reward exactly 0 in {zeros} of {len(values)} rows"


@sign
def reward_low(log: Log) -> str:
    """It is next to nothing, on a scale that begins at 0."""
    reward = log.curve("reward")
    if len(reward) < 4 or min(reward.values) < 0 or reward.last > 0.06 or reward.first > 0.12 or not any(reward.values):
        return ""
    return f"{reward.words}: hardly an answer earns anything"


@sign
def solved(log: Log) -> str:
    """It stands at 1, or at nine tenths of the most that it has reached, after it climbed there."""
    reward = log.curve("reward")
    if len(reward) < 3 or reward.last < 0.85 * reward.peak.value or reward.last <= 0:
        return ""
    return told(reward, gained(log) or 0.8 <= reward.last <= 1)


@sign
def spread_tiny(log: Log) -> str:
    """The rewards inside a group hardly differ, beside their mean."""
    spread, reward = log.curve("reward_std"), log.curve("reward")
    # a group of eight, one of them right, has a deviation of a third
    if not spread.shows(3) or not reward or log.dpo:
        return ""
    return told(spread, spread.last < 0.06 * max(abs(reward.last), 0.05))


# ---- groups


@sign
def ties_high(log: Log) -> str:
    tied = log.curve("frac_reward_zero_std")
    return told(tied, tied.shows(2) and end_of_ties(tied) >= 0.5)


@sign
def ties_some(log: Log) -> str:
    tied = log.curve("frac_reward_zero_std")
    return told(tied, tied.shows(3) and 0.25 <= end_of_ties(tied) < 0.5)


@sign
def ties_grow(log: Log) -> str:
    tied = log.curve("frac_reward_zero_std")
    more = max(0.25, by_chance(tied, fewest=3))
    return told(tied, tied.shows(3) and tied.last > tied.first + more and climbs(tied))


@sign
def losses_zero(log: Log) -> str:
    """The loss of a policy is exactly 0 in many rows and not in the others: batches without an advantage."""
    values = log.curve("loss").values or log.curve("policy_loss").values
    zeros = values.count(0)
    if log.supervised or len(values) < 6 or not 0.3 * len(values) <= zeros < len(values):
        return ""
    if max(map(abs, values)) < 0.05:
        return ""  # with one update per batch nothing but the KL is left in any row
    return f"loss exactly 0 in {zeros} of {len(values)} rows"


@sign
def ties_most(log: Log) -> str:
    """Over the whole run three groups of four, or more, have equal rewards."""
    tied = log.curve("frac_reward_zero_std")
    if len(tied) < 4 or fmean(tied.values) < 0.75:
        return ""
    return f"{fmean(tied.values):.0%} of all groups were tied"


@sign
def reward_in_the_middle(log: Log) -> str:
    """A share of right answers well away from none and from all, and no more than two groups of three tied."""
    reward, tied = log.curve("reward"), log.curve("frac_reward_zero_std")
    if not reward or min(reward.values) < 0 or max(reward.values) > 1 or not 0.25 < reward.last < 0.85:
        return ""
    return told(reward, not tied or tied.last < 0.66)


# ---- what the policy becomes


@sign
def entropy_tiny(log: Log) -> str:
    entropy = log.curve("entropy")
    return told(entropy, entropy.shows(3) and 0 <= max(entropy.values) < 0.06)


@sign
def entropy_up(log: Log) -> str:
    entropy = log.curve("entropy")
    return told(entropy, entropy.last > 0.6 and grew(entropy, 1.4, 0.15))


@sign
def kl_high(log: Log) -> str:
    kl = log.curve("kl")
    return told(kl, kl.shows(3) and 0.7 < kl.last < math.inf and kl.last > 3 * kl.first)


@sign
def kl_huge(log: Log) -> str:
    kl = log.curve("kl")
    return told(kl, kl.shows(2) and max(kl.values) > 5)


@sign
def kl_tiny(log: Log) -> str:
    """After a hundred steps, or ten rows, it has hardly left its reference."""
    kl = log.curve("kl")
    # a KL begins at 0 in every run
    long = len(kl) >= 20 or max(log.values("step"), default=0) >= 100
    return told(kl, kl.shows(4) and long and max(map(abs, kl.values)) < 2e-3 and log.beta != 0)


@sign
def kl_far(log: Log) -> str:
    """It is nats away from its reference, and still goes on."""
    kl = log.curve("kl")
    return told(kl, kl.shows(4) and 2 < kl.last < math.inf and climbs(kl))


@sign
def kl_below_zero(log: Log) -> str:
    """Its mean is clearly less than 0, which no divergence is."""
    kl = log.curve("kl")
    if len(kl) < 5 or log.dpo:
        return ""
    below = [value for value in kl.values if value < 0]
    return told(kl, median(kl.values) < -0.05 and len(below) > 0.8 * len(kl))


@sign
def kl_dwarfs(log: Log) -> str:
    """The term of the KL is nearly all of the loss that it adds up to with the policy's."""
    shares = []
    for row in log.rows:
        term, policy, loss = (row.values.get(name, math.nan) for name in ("kl", "policy_loss", "loss"))
        if abs(term + policy - loss) < 0.02 * abs(loss) and abs(term) > 0.1:
            shares.append(abs(term) / (abs(term) + abs(policy)))
    if len(shares) < 4 or median(shares) < 0.75:
        return ""
    return f"the term of the KL is {median(shares):.0%} of the loss in {len(shares)} rows"


@sign
def kl_weight_pinned(log: Log) -> str:
    """The weight of the KL was raised tenfold and more by its controller, and stands at its ceiling."""
    weight = log.curve("kl_coef")
    if len(weight) < 4 or weight.values[-1] != max(weight.values) or weight.values[-2] != weight.values[-1]:
        return ""
    grown = weight.last > 10 * abs(weight.values[0]) > 0
    if not grown:
        return ""
    return f"weight of the KL {number(weight.values[0])} to {number(weight.last)}, where it stays"


@sign
def ppo_kl_high(log: Log) -> str:
    kl = log.curve("ppo_kl")
    if not kl.shows(2) or not kl.last > 0.08:
        return ""
    return f"{kl.words}; 0.01 to 0.03 is usual"


@sign
def clip_high(log: Log) -> str:
    share = log.curve("clip_ratio")
    return told(share, share.shows(2) and share.last > 0.45)


@sign
def clip_zero(log: Log) -> str:
    """Nothing is ever clipped, and no update moves the policy."""
    share, kl = log.curve("clip_ratio"), log.curve("ppo_kl")
    # with one update per batch nothing can be clipped: this speaks only beside other signs
    still = not kl or max(map(abs, kl.values)) < 1e-4
    return told(share, len(share) >= 6 and not any(share.values) and still)


def _leapt(length: Curve) -> bool:
    """Whether it is three times what it was, in two rows or three: that much is no noise."""
    return 2 <= len(length) <= 3 and min(length.values[1:]) > max(3 * length.values[0], 100.0)


@sign
def length_up(log: Log) -> str:
    length = log.curve("mean_length")
    return told(length, _leapt(length) or grew(length, 1.4, 20.0))


@sign
def length_far_up(log: Log) -> str:
    length = log.curve("mean_length")
    return told(length, _leapt(length) or grew(length, 2.0, 40.0))


@sign
def cut_high(log: Log) -> str:
    share = log.curve("truncated")
    return told(share, share.shows(3) and min(share.first, share.last) >= 0.5)


@sign
def cut_some(log: Log) -> str:
    share = log.curve("truncated")
    return told(share, share.shows(3) and 0.2 <= min(share.first, share.last) < 0.5)


@sign
def cut_falls(log: Log) -> str:
    share = log.curve("truncated")
    return told(share, share.shows(3) and share.values[0] >= 0.6 and share.last < 0.6 * share.values[0])


# ---- the gradient


@sign
def norm_spikes(log: Log) -> str:
    """Several norms far above the usual one."""
    norm = log.curve("grad_norm")
    if len(norm) < 5:
        return ""
    usual = median(norm.values)
    # far above the middle; or, where half of the norms are high, far above the lowest
    high = [point for point in norm.points if point.value > max(8 * usual, 5.0)]
    if len(high) == 1 and high[0].value < max(20 * usual, 20.0):
        high = []  # a single batch
    wide = max(norm.values) > max(50 * max(min(norm.values), 0.1), 60.0)
    if not high and not wide:
        return ""
    high = high or sorted(norm.points, key=lambda point: point.value)[-3:]
    named = ", ".join(f"{number(point.value)} ({point.row.at})" for point in sorted(high)[:4])
    return f"gradient norm {number(usual)} in the middle, and {named}"


@sign
def norm_huge(log: Log) -> str:
    norm = log.curve("grad_norm")
    usual = norm.shows(3) and min(norm.values) > 100
    return told(norm, usual and not log.supervised)


@sign
def norm_gone(log: Log) -> str:
    norm = log.curve("grad_norm")
    zeros = norm.values.count(0)
    gone = norm.shows(3) and (zeros >= max(2, 0.4 * len(norm)) or norm.zero_from or shrank(norm, 0.03))
    return told(norm, gone)


@sign
def loss_up(log: Log) -> str:
    """A loss that is no policy's rises, and not in its last row alone."""
    loss = log.curve("loss")
    plain = log.supervised or log.dpo or "reward" not in log.names
    stays = min(loss.values[-2:], default=0.0) > loss.first > 1e-3
    return told(loss, plain and stays and grew(loss, 1.15, 0.03))


@sign
def loss_far_up(log: Log) -> str:
    """The loss is many times what it was."""
    loss = log.curve("loss")
    return told(loss, loss.first > 1e-3 and grew(loss, 5.0, 0.2))


@sign
def loss_spike(log: Log) -> str:
    """A supervised loss that leaps up for a row or two and comes back."""
    loss = log.curve("loss")
    if not log.supervised or len(loss) < 5:
        return ""
    for at, point in enumerate(loss.points[1:-1], 1):
        # the two beside it agree, and nothing of the later course comes near it: losses of single batches do not
        before, after = loss.values[at - 1], loss.values[at + 1]
        sides = max(before, after)
        leap = point.value - sides
        late = [value for value in loss.values[len(loss) // 3 :] if value != point.value]
        calm = abs(before - after) < 0.05 * leap and leap > 0.3 * sides > 0
        if calm and late and leap > 5 * (max(late) - min(late)):
            return f"{point.row.at}: loss {number(point.value)}, {number(sides)} beside it"
    return ""


@sign
def loss_flat(log: Log) -> str:
    """A supervised loss that stays where it began."""
    loss = log.curve("loss")
    if not log.supervised or len(loss) < 8 or loss.first <= 0:
        return ""
    still = abs(loss.last - loss.first) < max(0.02 * loss.first, loss.error)
    if not still:
        return ""
    return f"{loss.words}: no gain"


# ---- sampler and trainer, critic, rate


@sign
def mismatch_high(log: Log) -> str:
    gap = log.curve("logp_difference")
    return told(gap, gap.shows(2) and gap.last > 0.04)


@sign
def correlation_low(log: Log) -> str:
    likeness = log.curve("probs_correlation")
    return told(likeness, likeness.shows(2) and likeness.last < 0.95)


@sign
def critic_blind(log: Log) -> str:
    """The critic explains nothing of the returns, to the end."""
    share = log.curve("explained_variance")
    if not share.shows(3) or not share.last < 0.1:
        return ""
    return f"{share.words}: the critic predicts nothing"


@sign
def rate_tiny(log: Log) -> str:
    fastest = max(log.rates, default=1.0)
    if not 0 < fastest <= 3e-7:
        return ""
    return f"learning rate {number(fastest)} at most"


@sign
def rate_high(log: Log) -> str:
    fastest = max(log.rates, default=0.0)
    if fastest < 3e-5 or log.supervised:
        return ""
    return f"learning rate {number(fastest)}"


@sign
def rate_stays(log: Log) -> str:
    """The rate ends where it began, after many rows."""
    rates = log.values("learning_rate")
    stays = len(rates) >= 3 and rates[-1] > 0.97 * max(rates) > 0
    if not stays:
        return ""
    return f"learning rate {number(rates[0])} to {number(rates[-1])}: it does not decay"


# ---- scores that are not trained on

_RIGHT = re.compile(r"(?i)accura|correct|exact|gold|true|pass|success|eval|val")  # a part of the reward that is wanted


FORM_WORDS = frozenset(
    {"format", "formatted", "valid", "validity", "wellformed", "parse", "parsed", "parsable", "tag", "tags"}
)


def _scores(log: Log) -> list[str]:
    """Names of columns whose name says which way is better, the reward, its parts and the losses apart."""
    found = []
    for name in log.names:
        part = name.startswith(("reward", "Reward")) and not _RIGHT.search(name)
        if better(name) and name not in log.reward_columns and "oss" not in name and not part:
            found.append(name)
    return found


def _worse(curve: Curve, way: int, least: float) -> bool:
    """Whether a score got worse by such a part of what it was."""
    if not curve.shows(2) or (len(curve) == 2 and not curve.summed and least < 0.3):
        return False
    change = way * (curve.last - curve.first)
    room = max(abs(curve.first), 0.05)
    if -change < max(least * room, 2 * curve.error, by_chance(curve)):
        return False
    return len(curve) < 4 or (sinks(curve) if way > 0 else climbs(curve))


@sign
def held_out_down(log: Log) -> str:
    """More held-out scores get worse than better."""
    worse, better_now = [], 0
    for name in _scores(log):
        curve = log.curve(name)
        if not held_out(name):
            continue
        if _worse(curve, better(name), 0.12 if len(curve) >= 3 else 0.3):
            worse.append(curve.words)
        elif curve.shows(2) and better(name) * (curve.last - curve.first) > 0.05 * abs(curve.first):
            better_now += 1
    return worse[0] if len(worse) > better_now else ""


@sign
def held_out_fell(log: Log) -> str:
    """A held-out score that had a peak and has come down from it."""
    for name in _scores(log):
        curve = log.curve(name)
        if held_out(name) and better(name) > 0 and _fell_back(curve):
            best = f"{number(curve.peak.value)} ({curve.peak.row.at})"
            return f"the best {name} was {best}, {number(curve.last)} in the end"
    return ""


@sign
def held_out_flat(log: Log) -> str:
    """The reward has grown by a third and more, and the held-out scores stand where they were."""
    reward, flat = log.curve("reward"), []
    if not gained(log) or reward.last < 1.3 * reward.first:
        return ""
    for name in _scores(log):
        curve = log.curve(name)
        if not held_out(name) or len(curve) < 4:
            continue
        if better(name) * (curve.last - curve.first) > 0.03 * abs(curve.first):
            return ""
        flat.append(curve.words)
    return ", ".join(flat[:2])


@sign
def quality_down(log: Log) -> str:
    """Another score, of the same answers, gets worse."""
    for name in _scores(log):
        curve = log.curve(name)
        if not held_out(name) and len(curve) >= 4 and _worse(curve, better(name), 0.3):
            return curve.words
    return ""


@sign
def format_down(log: Log) -> str:
    """Answers lose the form that graders read."""
    for name in log.names:
        curve = log.curve(name)
        words = set(words_of(name))
        of_form = not words.isdisjoint(FORM_WORDS) and "std" not in words and better(name) >= 0
        lost_half = len(curve) >= 4 and max(curve.values) > 0.3 and curve.last < 0.7 * curve.peak.value
        if of_form and lost_half and min(curve.values) >= 0 and sinks(curve):
            return curve.words
    return ""


@sign
def quality_up(log: Log) -> str:
    """Another score, of the same answers, gets better."""
    for name in _scores(log):
        curve = log.curve(name)
        gain = better(name) * (curve.last - curve.first)
        if not held_out(name) and len(curve) >= 3 and gain > 0.3 * abs(curve.first):
            return curve.words
    return ""


@sign
def held_out_up(log: Log) -> str:
    for name in _scores(log):
        curve = log.curve(name)
        if held_out(name) and better(name) > 0 and curve.shows(2) and curve.last > 1.05 * curve.first > 0:
            return curve.words
    return ""


@sign
def held_out_loss_up(log: Log) -> str:
    found = overfits(log)
    if found:
        return found.evidence[0]
    for name in log.names:
        # three rows, as one epoch each
        loss = log.curve(name)
        rises = len(loss) == 3 and loss.values == sorted(loss.values) and loss.last > 1.2 * loss.first > 0
        if held_out(name) and "oss" in name and rises and log.curve("loss").falls:
            return loss.words
    return ""


# ---- pairs


@sign
def chosen_falls(log: Log) -> str:
    """The log-prob of the chosen answer falls, although it is to be raised."""
    logp = log.curve("logp")
    reward = log.curve("dpo_chosen")  # beta times what it gained over the reference
    if reward.shows(4) and reward.last < min(-8.0, 2 * reward.first) and sinks(reward):
        return f"the reward of the chosen answer falls: {number(reward.first)} to {number(reward.last)}"
    falls = logp.shows(4) and logp.last < 1.25 * logp.first < 0 and sinks(logp)
    if not log.dpo or not falls:
        return ""
    return f"the chosen answer becomes less likely: {number(logp.first)} to {number(logp.last)}"


@sign
def margin_up(log: Log) -> str:
    margin = log.curve("dpo_margin")
    return told(margin, margin.shows(3) and margin.last > margin.first + 0.02 and climbs(margin))


@sign
def coin_flip(log: Log) -> str:
    """Pairs are told apart as by the toss of a coin, to the end; the loss of that is log 2."""
    right, loss = log.curve("dpo_accuracy"), log.curve("loss")
    of_pairs = log.dpo or (bool(loss) and abs(loss.last - math.log(2)) < 0.02)
    return told(right, of_pairs and len(right) >= 5 and 0.44 < right.last < 0.56 and right.last < right.first + 0.05)


@sign
def margin_still(log: Log) -> str:
    margin, right = log.curve("dpo_margin"), log.curve("dpo_accuracy")
    still = margin.shows(4) and abs(margin.last) < 0.05 and bool(right) and right.last < 0.6
    return told(margin, still)


@sign
def unrewarded(log: Log) -> str:
    """A policy is trained, and nothing that was logged says that it learns."""
    if log.curve("reward") or log.supervised or log.dpo or held_out_up(log):
        return ""
    policy = {"entropy", "kl", "ppo_kl", "clip_ratio", "policy_loss", "grad_norm"} & set(log.names)
    if len(policy) < 2:
        return ""
    return "no reward was logged that could speak for it"
