"""What rules see in the course of a run: answers that are cut or run away, a collapse, a gradient that dies.

Each function asks the curves of a log (`curves.Curve`) and answers with what it saw, or with None. What is worse for
one column alone says little (a KL rises in every run that learns), so nearly all ask what the reward did beside it.
"""

from __future__ import annotations

import math
import re
from statistics import fmean, median

from labkit.common import number

from .curves import Curve
from .log import Log, Seen
from .names import better, held_out

POSSIBLE = "possible"
SHORTEST_LIMIT = 16  # tokens; answers of one short length are a task's, not a limit's
# words of what is really wanted, beside the reward that is trained on
_WANTED = re.compile(
    r"(?i)(?:^|[/_ .-])(?:eval|evaluation|val|valid|validation|test|held.?out|gold|true|human|win.?rate"
    r"|pass@?\d*|acc|accuracy|correct|correctness|exact.?match|benchmark|exam)(?:$|[/_ .@-])"
)
_PERPLEXITY = re.compile(r"(?i)perplexity|\bppl\b")


def gained(log: Log) -> bool:
    """Whether the reward is clearly higher at the end than at the start."""
    reward = log.curve("reward")
    if not reward.shows(2):
        return False
    more = reward.last - reward.first
    change = reward.change
    beyond_noise = more > 2 * reward.error or (change is not None and (change.clear or change.apart))
    return more > max(0.1 * abs(reward.first), 0.02) and beyond_noise


def climbs(curve: Curve) -> bool:
    """Whether it goes up: by its trend, by a change of level, or with all of its last third above its first."""
    return curve.rises or _apart(curve, up=True)


def sinks(curve: Curve) -> bool:
    """Whether it goes down, in the same sense."""
    return curve.falls or _apart(curve, up=False)


def _apart(curve: Curve, up: bool) -> bool:
    change = curve.change
    if change is not None and (change.clear or change.apart):
        return (change.after > change.before) == up
    third = max(len(curve) // 3, 1)
    start, end = curve.values[:third], curve.values[-third:]
    if len(curve) < 4:
        return False
    return min(end) > max(start) if up else max(end) < min(start)


def counted_noise(curve: Curve, fewest: int = 5) -> float:
    """The deviation of a share that was counted over few tasks, so that its values are multiples of 1/n.

    0 where it is no such share, or has fewer rows than `fewest`: then n cannot be read off its values.
    """
    inner = {value for value in curve.values if 0 < value < 1}
    if len(inner) < 2 or len(curve) < fewest or min(curve.values) < 0 or max(curve.values) > 1:
        return 0.0
    for tasks in range(2, 33):
        if all(abs(value * tasks - round(value * tasks)) < 0.002 * tasks for value in inner):
            mean = fmean(curve.values)
            return math.sqrt(mean * (1 - mean) / tasks)
    return 0.0


def by_chance(share: Curve, fewest: int = 5) -> float:
    """By how much the first and the last third of a counted share differ by chance: two standard errors.

    A quarter of eight groups has a deviation of 0.15, so 0.43 between two rows is nothing. `fewest`: as above.
    """
    rows_of_a_third = max(len(share) // 3, 1)
    return 2 * counted_noise(share, fewest) * math.sqrt(2 / rows_of_a_third)


def end_of_ties(tied: Curve) -> float:
    """The share of tied groups in the end: that of the last third.

    Where chance explains how this differs from the first third, it is the mean of all rows: they say more.
    """
    if abs(tied.last - tied.first) <= by_chance(tied, fewest=3):
        return fmean(tied.values)
    return tied.last


def lost(log: Log) -> bool:
    """Whether the reward is clearly lower at the end than at its start or its peak."""
    reward = log.curve("reward")
    if not reward.shows(3):
        return False
    less = reward.first - reward.last
    return less > max(0.25 * abs(reward.first), 2 * reward.error, 0.01) or dropped(reward) is not None


def dropped(curve: Curve, least: float = 0.45) -> Seen | None:
    """A column that falls to a level far below the one it had, by `least` of it, and stays there."""
    change = curve.change
    if not curve.shows(5) or len(curve) < 3 or change is None or change.before <= change.after:
        return None
    fall = change.before - change.after
    enough = fall > max((0.2 if curve.summed else least) * abs(change.before), 0.03)
    sudden = change.apart or (change.clear and len(curve) >= 9 and fall > 3 * curve.error)
    if sudden and enough:
        return Seen([f"{change.row.at}: {curve.label} falls from {number(change.before)} to {number(change.after)}"])
    slow = len(curve) >= 9 and curve.falls and curve.first - curve.last > max(0.3 * abs(curve.first), 0.03)
    return Seen([curve.words]) if slow else None


# ---- the length of answers


def cut_answers(log: Log) -> Seen | None:
    """Answers are cut at the length limit from the first rows on, and the reward does not gain by what is left."""
    seen = _cut_from_the_start(log)
    if not seen or gained(log):
        return None
    reward, tied = log.curve("reward"), log.curve("frac_reward_zero_std")
    norm, loss = log.curve("grad_norm"), log.curve("loss")
    low = not reward or reward.last <= 0.3
    starved = (tied and tied.last >= 0.5) or _mostly_zero(norm) or (not norm and _mostly_zero(loss))
    share = log.curve("truncated")
    if not (low or starved or (share and share.last > 0.9)):
        return None
    beside = [curve.words for curve in (reward, tied, norm) if curve]
    sure = "" if low or starved else POSSIBLE
    return Seen([*seen, *beside], sure)


def _mostly_zero(curve: Curve) -> bool:
    return bool(curve) and curve.values.count(0) > 0.5 * len(curve)


def _cut_from_the_start(log: Log) -> list[str]:
    share, ended = log.curve("truncated"), log.curve("terminated_length")
    length, longest = log.curve("mean_length"), log.curve("max_length")
    seen = []
    if share.shows(2) and min(share.first, share.last) >= 0.6 and share.values[0] >= 0.5:
        seen.append(f"{share.words}: so many answers are cut at the length limit")
    if ended.shows(2) and ended.constant and ended.values[0] == 0:
        seen.append("the mean length of answers that ended by themselves is 0: none did")
    whole = bool(length) and length.constant and length.first == round(length.first) >= SHORTEST_LIMIT
    at_limit = not longest or (longest.constant and longest.first <= length.first)
    if length.shows(3) and whole and at_limit:
        seen.append(f"every answer has exactly {number(length.first)} tokens in all {len(length)} rows: a limit")
    elif (
        length.shows(3)
        and longest.constant
        and min(length.first, length.values[0]) > 0.9 * longest.first >= SHORTEST_LIMIT
    ):
        seen.append(f"{length.words}; none is longer than {number(longest.first)}: a limit")
    return seen


def runs_away(log: Log) -> Seen | None:
    """Answers grow, or are cut more and more often, and the reward does not gain by it."""
    length, share = log.curve("mean_length"), log.curve("truncated")
    longer = length.shows(4) and length.last > 1.8 * length.first and length.last - length.first > 3 * length.noise
    more_cut = share.shows(3) and share.first < 0.5 and share.last > max(0.55, share.first + 0.4)
    reward, entropy = log.curve("reward"), log.curve("entropy")
    longer_and_cut = False
    if share and length.shows(4):
        longer_and_cut = length.last > 1.3 * length.first and share.last >= share.first + 0.15
    longer = longer or (longer_and_cut and bool(reward) and reward.last < 0.9 * reward.first)
    if not (longer or more_cut) or gained(log) or not reward:
        return None
    noisy = entropy.shows(4) and entropy.last > 2.5 * entropy.first and entropy.last > 1
    if noisy and not (length if longer else share).leads(entropy):
        return None  # noise does not end
    fell = lost(log) or longer_and_cut
    grown = length if longer else share
    if fell and not longer_and_cut and reward.leads(grown, by=2):
        return None  # it grew when all was lost
    if not fell and not more_cut and length.last < 2.5 * length.first:
        return None
    seen = [curve.words for curve, so in ((length, longer), (share, more_cut)) if so]
    full = length.full_from if longer else None
    if full:
        seen.append(f"{full.row.at}: it stands at {number(max(length.values))}, as a limit does")
    seen.append(reward.words)
    return Seen(seen, "" if fell and (full or more_cut or length.last > 3 * length.first) else POSSIBLE)


# ---- what the policy becomes


def entropy_collapse(log: Log) -> Seen | None:
    """The entropy falls to a small part of what it was, and the reward has not gained by it, or not for long."""
    entropy = log.curve("entropy")
    if not entropy.shows(4) or entropy.first < 0.05 or log.spike:
        return None
    gone = entropy.last < 0.2 * entropy.first or (entropy.last < 0.05 and entropy.last < 0.4 * entropy.first)
    if not gone or not sinks(entropy):
        return None
    reward = log.curve("reward")
    solved = bool(reward) and gained(log) and not lost(log)
    if solved:
        return None
    return Seen([entropy.words, *([reward.words] if reward else [])], POSSIBLE)


def entropy_explosion(log: Log) -> Seen | None:
    """The entropy climbs far above what it was, and the reward has not gained by it."""
    entropy, reward = log.curve("entropy"), log.curve("reward")
    if not entropy.shows(4) or log.spike or (gained(log) and not lost(log)):
        return None
    high = entropy.last > max(2 * entropy.first, entropy.first + 0.3)
    if not high or not climbs(entropy) or (lost(log) and reward.leads(entropy)):
        return None
    order = []
    if lost(log) and entropy.leads(reward):
        order = ["the entropy rises first, the reward falls after it"]
    return Seen([entropy.words, *([reward.words] if reward else []), *order], POSSIBLE)


def collapses(log: Log) -> Seen | None:
    """The reward falls for good from a level that it had reached; or a supervised loss rises to a new level."""
    if log.spike:
        return None
    reward, norm = log.curve("reward"), log.curve("grad_norm")
    exploded = norm.shows(4) and norm.last > 20 and norm.last > 10 * norm.first and not reward.leads(norm)
    beside = worse_beside(log)
    fall = dropped(reward) or (dropped(reward, 0.2) if beside and reward.shows(8) else None)
    if fall is None or exploded:
        return None
    seen = []
    for curve in beside:
        seen.append(curve.words + (", before the reward falls" if curve.leads(reward) else ""))
    peak = f"the best was {number(reward.peak.value)} ({reward.peak.row.at})"
    return Seen([*fall.evidence, peak, *seen[:4]], POSSIBLE)


# column -> what counts as worse, where the reward has not gained: at least so many times its start, and so much more
WORSE_HIGHER = {
    "kl": (3.0, 0.05),
    "ppo_kl": (3.0, 0.02),
    "kl_sum": (3.0, 5.0),
    "entropy": (1.5, 0.1),
    "mean_length": (1.5, 20.0),
    "clip_ratio": (1.5, 0.1),
    "truncated": (1.2, 0.1),
    "grad_norm": (5.0, 1.0),
    "frac_reward_zero_std": (1.2, 0.25),
    "logp_difference": (2.0, 0.01),
}


def worse_beside(log: Log) -> list[Curve]:
    """The columns beside the reward that got worse by more than their noise."""
    found = []
    for name, (times, more) in WORSE_HIGHER.items():
        curve = log.curve(name)
        if not curve.shows(3) or curve.last <= max(times * curve.first, curve.first + more):
            continue
        if curve.rises or curve.last - curve.first > 3 * curve.error:
            found.append(curve)
    entropy = log.curve("entropy")
    if entropy.shows(3) and entropy.falls and entropy.last < 0.3 * entropy.first:
        found.append(entropy)
    return found


def hacked(log: Log) -> Seen | None:
    """The reward that is trained on rises, and what is really wanted does not follow, or the answers shrivel."""
    reward = log.curve("reward")
    if not reward.shows(3) or not gained(log):
        return None
    for name in log.names:
        if better(name) <= 0 or name in log.reward_columns or not _WANTED.search(name):
            continue
        wanted = log.curve(name)
        of_the_reward = name.startswith("rewards/")  # a part of what is trained on
        enough = len(wanted) >= (6 if of_the_reward else 2)
        if enough and wanted.last < wanted.first - max(0.15 * abs(wanted.first), 2 * wanted.error):
            return Seen([reward.words, wanted.words])
    for name in log.names:
        odd = log.curve(name)
        if _PERPLEXITY.search(name) and odd.shows(4) and odd.last > 1.5 * odd.first and climbs(odd):
            return Seen([reward.words, odd.words])
    length = log.curve("mean_length")
    if length.shows(6) and length.first > 40 and length.last < 0.2 * length.first and length.falls:
        return Seen([reward.words, length.words], POSSIBLE)
    kl = log.curve("kl")
    if kl.shows(4) and kl.last > 1 and kl.last > 10 * max(kl.first, 0.01) and climbs(kl):
        return Seen([reward.words, kl.words], POSSIBLE)
    return None


# ---- the gradient and the sampler


def clip_took_over(log: Log) -> Seen | None:
    """The share of clipped ratios climbs until hardly a token has a gradient: the norm is exactly 0, or nearly."""
    share, norm = log.curve("clip_ratio"), log.curve("grad_norm")
    if not share.shows(4) or max(share.values) < 0.4 or share.last < 2 * share.first or share.first > 0.4:
        return None
    if norm and norm.zero_from:
        zero = norm.zero_from
        return Seen(
            [share.words, norm.words, *_reward(log)], "" if zero.row.values.get("clip_ratio", 1) > 0.2 else POSSIBLE
        )
    vanished = norm.shows(4) and norm.last < 0.1 * norm.first
    if vanished and not gained(log):
        return Seen([share.words, norm.words, *_reward(log)], POSSIBLE)
    return None


def _reward(log: Log) -> list[str]:
    return [log.curve("reward").words] if log.curve("reward") else []


def gradient_dies(log: Log) -> Seen | None:
    """A gradient that was there is exactly 0 from some row on, and no column says that groups are tied."""
    norm, tied, spread = log.curve("grad_norm"), log.curve("frac_reward_zero_std"), log.curve("reward_std")
    zero = norm.zero_from
    if zero is None or not norm.shows(6):
        return None
    behind = [row.values for row in log.rows[zero.at :]]
    all_tied = [v for v in behind if v.get("frac_reward_zero_std", 0) >= 0.8 or v.get("reward_std", 1) == 0]
    if len(all_tied) > 0.5 * len(behind) or not (tied or spread):
        return None
    return Seen([norm.words, *[curve.words for curve in (tied, spread) if curve], *_reward(log)])


def comes_back(log: Log) -> Seen | None:
    """A KL, or a difference of log-probs, of nats for a row or two, and then what it was before."""
    if log.spike:
        return None
    for name, least in (("kl", 1.0), ("ppo_kl", 0.5), ("logp_difference", 0.3)):
        curve = log.curve(name)
        spikes = curve.spikes(100, least) if curve.shows(5) else []
        if not spikes or (len(spikes) == 1 and len(curve) < 8):
            continue
        steps = [spike.row.values["step"] for spike in spikes if "step" in spike.row.values]
        gaps = {after - before for before, after in zip(steps, steps[1:], strict=False)}
        period = [f"every {gaps.pop():g} steps"] if len(spikes) > 2 and len(gaps) == 1 else []
        back = f"a policy that ran away does not come back: {number(spikes[0].after)} within two rows"
        return Seen([curve.words, back, *period], "" if len(spikes) > 1 else POSSIBLE)
    return None


def sawtooth(log: Log) -> Seen | None:
    """A difference between sampler and trainer that grows for some rows, falls at once, and grows again."""
    if log.updates_per_batch > 1:
        return None  # several updates on a batch do the same, and should
    for name in ("logp_difference", "kl", "ppo_kl", "clip_ratio"):
        curve = log.curve(name)
        if not curve.shows(9) or max(curve.values) <= 0:
            continue
        values = curve.values
        top, low = max(values), min(values)
        falls = []
        for at in range(1, len(values)):
            if values[at - 1] - values[at] > 0.5 * (top - low) and values[at] < low + 0.25 * (top - low):
                falls.append(at)
        gaps = [after - before for before, after in zip(falls, falls[1:], strict=False)]
        if len(falls) < 3 or max(gaps) > min(gaps) + 1 or min(gaps) < 3:
            continue
        climbs = all(values[at - 1] >= values[at - 2] for at in falls)
        high = top > {"clip_ratio": 0.3}.get(name, 0.1) and top > 5 * max(low, 1e-6)
        if climbs and high:
            rows = f"it falls back at {', '.join(curve.points[at].row.at for at in falls[:4])}"
            return Seen([f"{name} climbs to {number(top)} and back to {number(low)}, again and again", rows])
    return None


def ties_grow(log: Log) -> Seen | None:
    """Groups become tied in the course of the run, at a reward that is not the best there is."""
    tied, reward = log.curve("frac_reward_zero_std"), log.curve("reward")
    more = max(0.3, by_chance(tied))
    if not tied.shows(5) or tied.last < 0.75 or tied.last - tied.first < more or not reward:
        return None
    solved = gained(log) and not lost(log)
    return None if solved else Seen([tied.words, reward.words], POSSIBLE)


def clipped_at_first(log: Log) -> Seen | None:
    """Nearly half of the ratios are clipped in every one of the first rows: with several updates the first has none."""
    share = log.curve("clip_ratio")
    start = share.values[: max(len(share) // 3, 3)]
    far = [abs(value) for value in log.values("ppo_kl")]
    if far and max(far) < 1e-3:
        return None  # what is clipped has hardly moved
    if not share.shows(3) or median(start) < 0.45 or min(start) < 0.2 or (gained(log) and len(share) > 5):
        return None
    return Seen(
        [f"share of clipped ratios {number(min(start))} to {number(max(start))} in the first {len(start)} rows"]
    )


def loss_rises(log: Log) -> Seen | None:
    """A supervised or a preference loss rises to a new level."""
    loss = log.curve("loss")
    if not (log.supervised or log.dpo) or not loss.shows(6) or log.spike:
        return None
    more = loss.last - loss.first
    if more < max(0.5 * abs(loss.first), 0.05) or loss.last < max(loss.values) - 0.5 * (max(loss.values) - loss.first):
        return None
    return Seen([loss.words])


def rate_too_high(log: Log) -> Seen | None:
    """A policy that is trained at a rate of pre-training or of an adapter's, and earns less than it did."""
    reward, rate = log.curve("reward"), max(log.rates, default=0.0)
    if rate < 5e-4 or log.supervised or log.dpo or not reward.shows(6):
        return None
    if reward.last > reward.first - max(0.15 * abs(reward.first), 0.02):
        return None
    return Seen([f"learning rate {number(rate)}; 1e-6 to 5e-5 is usual for all weights", reward.words], POSSIBLE)


def zero_at_times(log: Log) -> Seen | None:
    """A reward that is exactly 0 in some rows between rows where it is not: nothing was graded there."""
    reward = log.curve("reward")
    usual = [value for value in reward.values if value != 0]
    if len(reward) < 6 or len(usual) < 0.5 * len(reward) or min(usual, default=0.0) < 0.2:
        return None
    if max(usual) > 1.5 * min(usual):
        return None  # a small batch, whose mean is 0 by chance
    holes = []
    for at, point in enumerate(reward.points[1:-1], 1):
        if point.value == 0 != reward.values[at - 1] and reward.values[at + 1] != 0:
            holes.append(point.row.at)
    if len(holes) < 2:
        return None
    return Seen([f"reward exactly 0 at {', '.join(holes[:5])}, between rows of {number(median(usual))}"])


def crawls(log: Log) -> Seen | None:
    """A rate of 2e-7 or less, a KL that stays below a thousandth, and a reward that does not gain."""
    kl, reward, rate = log.curve("kl"), log.curve("reward"), max(log.rates, default=1.0)
    if not 0 < rate <= 2e-7 or len(kl) < 8 or max(kl.values) > 1e-3 or not reward or gained(log) or log.dpo:
        return None
    return Seen([f"learning rate {number(rate)} at most, {kl.words}", reward.words])


def overfits(log: Log) -> Seen | None:
    """The loss on held-out data rises from its lowest point, while the training loss goes on falling."""
    for name in log.names:
        # eval_loss, val/ppl: lower is better
        if not held_out(name) or better(name) >= 0 or not _LOSS.search(name):
            continue
        other, train = log.curve(name), log.curve("loss")
        if len(other) < 4 or not train or train.last > train.first:
            continue
        stops = any("early_stop" in str(key) for key in log.settings)  # such a run ends by itself, and keeps its best
        best = min(other.points, key=lambda point: point.value)
        behind = [point.value for point in other.points if point.at > best.at]
        if len(behind) < 2 or behind[-1] < (1.3 if stops else 1.04) * best.value or median(behind) < 1.01 * best.value:
            continue
        seen = f"{name} is lowest at {best.row.at}, {number(best.value)}, and {number(behind[-1])} in the end"
        return Seen([seen, train.words], "" if behind[-1] > 1.1 * best.value else POSSIBLE)
    return None


_LOSS = re.compile(r"(?i)loss|ppl|perplexity|nll|bpb")


def large_from_the_start(log: Log) -> Seen | None:
    """Gradient norms of hundreds or thousands in every row: what clipping leaves is a direction alone."""
    norm = log.curve("grad_norm")
    if len(norm) < 3 or log.supervised or log.dpo or gained(log):
        return None
    share, reward = log.curve("clip_ratio"), log.curve("reward")
    thousands = min(norm.values) > 1000 and share.shows(3) and share.values[0] > 0.1  # clipped at the first update
    grows = min(norm.values) > 100 and norm.last > 300 and norm.last > 1.3 * norm.first and reward.constant
    return Seen([norm.words, *_reward(log)]) if thousands or grows else None


def hardly_differs(log: Log) -> Seen | None:
    """Rewards inside a group that differ by a twentieth of their mean, in every row."""
    spread, reward = log.curve("reward_std"), log.curve("reward")
    if len(spread) < 4 or not reward or gained(log) or max(spread.values) <= 0:
        return None
    if max(spread.values) > 0.06 * abs(median(reward.values)):
        return None
    return Seen([spread.words, reward.words])


def hardly_paid(log: Log) -> Seen | None:
    """A reward so small in every row that hardly an answer in twenty earns anything."""
    reward = log.curve("reward")
    if len(reward) < 5 or min(reward.values) < 0 or gained(log) or reward.constant:
        return None
    if median(reward.values) > 0.05 or max(reward.values) > 0.12:
        return None
    tied = log.curve("frac_reward_zero_std")
    return Seen([reward.words, *([tied.words] if tied else [])])


def hardly_moves(log: Log) -> Seen | None:
    """After a hundred steps the KL is still below two thousandths of a nat, and the reward has not gained."""
    kl, reward, steps = log.curve("kl"), log.curve("reward"), log.values("step")
    if len(kl) < 5 or not reward or gained(log) or log.dpo or max(steps, default=0) < 100 or log.beta == 0:
        return None
    if max(map(abs, kl.values)) > 2e-3 or lost(log):
        return None
    return Seen([kl.words, reward.words, f"at step {max(steps):g}"])


def pairs_stay_close(log: Log) -> Seen | None:
    """The margin between the answers of a pair is still next to nothing when the rate has run out."""
    margin, right, rates = log.curve("dpo_margin"), log.curve("dpo_accuracy"), log.rates
    if len(margin) < 4 or not right or right.last > 0.6 or abs(margin.last) > 0.05 or len(rates) < 4:
        return None
    if rates[-1] > 0.05 * max(rates):
        return None
    return Seen([f"margin {number(margin.last)}, accuracy {number(right.last)}, learning rate {number(rates[-1])}"])


def kl_before_nan(log: Log) -> Seen | None:
    """The KL had grown tenfold, to tenths of a nat, when the first value was not a number."""
    kl, row = log.curve("kl"), log.first_nan
    if row is None or len(kl) < 3 or log.spike:
        return None
    before = [point.value for point in kl.points if point.at < log.rows.index(row)]
    if len(before) < 3 or before[-1] < 0.2 or before[-1] < 10 * max(before[0], 1e-6):
        return None
    return Seen([f"{row.at}: not a number; the KL before: {', '.join(map(number, before[-4:]))}"])


def mostly_tied(log: Log) -> Seen | None:
    """Two groups of three, or more, have equal rewards, and not because nearly all is right."""
    tied, reward = log.curve("frac_reward_zero_std"), log.curve("reward")
    if len(tied) < 2 or min(tied.first, tied.last) < 0.66:
        return None
    if reward and reward.last > 0.75 and max(reward.values) <= 1:
        return None
    # where a third of the groups still differs, and half of the answers are right, there is enough to learn from
    share_of_right = bool(reward) and min(reward.values) >= 0 and max(reward.values) <= 1
    if share_of_right and reward.last > 0.2 and tied.last < 0.8 and log.curve("grad_norm").first > 0:
        return None
    return Seen([tied.words, *_reward(log)])


def held_out_sinks(log: Log) -> Seen | None:
    """A score on held-out data that falls from row to row, and no training reward beside it that falls too."""
    for name in log.names:
        score = log.curve(name)
        if not held_out(name) or better(name) <= 0:
            continue
        falls = sinks(score) and score.last < min(0.9 * score.first, score.first - by_chance(score))
        if len(score) >= 5 and falls and not lost(log):
            others = [log.curve(other) for other in log.names if held_out(other) and better(other) > 0]
            if 2 * sum(sinks(other) for other in others) < len(others):
                continue  # one of several, and the others do not
            best = score.peak
            return Seen([score.words, f"the best was {number(best.value)} ({best.row.at})"])
    return None
