"""What a column of a log does, read once: level, trend, change point, peak, spikes, zeros, a bound that it reaches.

Rules ask these questions of a `Curve`, and `Curve.words` says the same to a reader. Few rows are the rule (somebody
pastes six), so nothing here needs more than three; where noise cannot be told from a course, the course is not clear.

    level       medians of the first and of the last third
    noise       of a value around its course: the spread of its steps, by their median absolute deviation
    trend       Theil and Sen's slope (median over all pairs of rows) times the length, and its standard error
    change      the split into two levels with the least squared error; clear when it is far outside the noise

Source: P. K. Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63 (1968).
This file knows no cause.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

from labkit.common import number

from .rows import Row

MOST_POINTS = 90  # of a longer curve each point is the median of some neighbours
CLEAR = 3.0  # times the standard error
LABELS = {  # where the canonical name is no word
    "clip_ratio": "share of clipped ratios",
    "explained_variance": "explained variance",
    "frac_reward_zero_std": "share of tied groups",
    "grad_norm": "gradient norm",
    "kl": "KL",
    "kl_sum": "KL of an answer",
    "logp_difference": "log-prob difference between sampler and trainer",
    "max_length": "length of the longest answer",
    "mean_length": "mean length of answers",
    "policy_loss": "policy loss",
    "probs_correlation": "correlation of the probabilities of sampler and trainer",
    "ppo_kl": "KL of one round of updates",
    "reward_std": "reward deviation inside groups",
    "terminated_length": "mean length of answers that ended",
    "truncated": "share of answers that are cut",
    "value_loss": "value loss",
}


class Point(NamedTuple):
    """One value, the row that has it, and the place of that row among all rows."""

    at: int
    row: Row
    value: float


class Change(NamedTuple):
    """The first row of a new level, the level before it and the one from it on.

    clear  the two are far enough apart for the noise around them
    apart  every value before lies on one side of every value behind, with two of them on each side at least
    """

    at: int
    row: Row
    before: float
    after: float
    clear: bool
    apart: bool


class Spike(NamedTuple):
    """A value far above its neighbours, which comes back to where it was."""

    row: Row
    value: float
    before: float
    after: float


@dataclass(frozen=True)
class Curve:
    """The finite values of one column, in the order of its rows."""

    name: str
    points: Sequence[Point]

    def __len__(self) -> int:
        return len(self.points)

    @functools.cached_property
    def summed(self) -> bool:
        """Whether it is a range that somebody wrote: its values are levels, without noise."""
        return len(self.points) > 1 and all(point.row.summed for point in self.points)

    def shows(self, rows: int) -> bool:
        """Whether it has so many rows, or is a range, which stands for many."""
        return len(self.points) >= rows or self.summed

    def __bool__(self) -> bool:
        return bool(self.points)

    @functools.cached_property
    def values(self) -> list[float]:
        return [point.value for point in self.points]

    @functools.cached_property
    def course(self) -> list[Point]:
        """The curve in at most MOST_POINTS points, so that every pair of them can be looked at."""
        size = math.ceil(len(self.points) / MOST_POINTS)
        if size <= 1:
            return list(self.points)
        course = []
        for at in range(0, len(self.points), size):
            some = self.points[at : at + size]
            course.append(Point(some[0].at, some[0].row, median(point.value for point in some)))
        return course

    # ---- level, noise, trend

    @functools.cached_property
    def first(self) -> float:
        """The median of the first third; NaN where it has no values, which no comparison holds for."""
        return median(self.values[: self._third]) if self.points else math.nan

    @functools.cached_property
    def last(self) -> float:
        """The median of the last third."""
        return median(self.values[-self._third :]) if self.points else math.nan

    @property
    def _third(self) -> int:
        return 1 if self.summed else max(len(self.points) // 3, 1)

    @functools.cached_property
    def noise(self) -> float:
        """The standard deviation of a value around its course; 0 where fewer than four values do not show it."""
        values = [point.value for point in self.course]
        steps = [after - before for before, after in zip(values, values[1:], strict=False)]
        if len(steps) < 3 or self.summed:
            return 0.0
        middle = median(steps)
        return 1.4826 * median(abs(step - middle) for step in steps) / math.sqrt(2)

    @functools.cached_property
    def trend(self) -> float:
        """By how much it rises from the first row to the last, by the median slope of all pairs of rows."""
        values = [point.value for point in self.course]
        count = len(values)
        if count < 2:
            return 0.0
        slopes = []
        for first in range(count):
            for second in range(first + 1, count):
                slopes.append((values[second] - values[first]) / (second - first))
        return median(slopes) * (count - 1)

    @functools.cached_property
    def error(self) -> float:
        """The standard error of the trend: that of a straight line through values with this noise."""
        return self.noise * math.sqrt(12 / max(len(self.course), 1))

    @property
    def rises(self) -> bool:
        """Whether it goes up by more than its noise explains."""
        return self.shows(3) and self.trend > CLEAR * self.error and self.last > self.first

    @property
    def falls(self) -> bool:
        """Whether it goes down by more than its noise explains."""
        return self.shows(3) and -self.trend > CLEAR * self.error and self.last < self.first

    # ---- change points, peaks, spikes

    @functools.cached_property
    def change(self) -> Change | None:
        """The first change of level; None where there are fewer than four values, or all are equal."""
        course = self.course
        if not self.shows(4) or min(self.values) == max(self.values):
            return None
        found = _split(course)
        if self.summed:
            return found._replace(clear=True, apart=True)
        while found.clear:  # an earlier one may be hidden behind the largest
            before = [point for point in course if point.at < found.at]
            if len(before) < 4:
                break
            earlier = _split(before)
            size = abs(found.after - found.before)
            if not earlier.clear or abs(earlier.after - earlier.before) < 0.3 * size:
                break
            found, course = earlier, before
        return found

    @functools.cached_property
    def peak(self) -> Point:
        """Its highest point."""
        return max(self.course, key=lambda point: point.value)

    @property
    def lost(self) -> float:
        """By how much it ends below its highest level: what it had there, less the median of the last rows."""
        behind = [point.value for point in self.course if point.at >= self.peak.at]
        return self.peak.value - median(behind[-3:]) if len(behind) > 1 else 0.0

    def spikes(self, times: float, least: float) -> list[Spike]:
        """Values of at least `least` and so many times the usual that are followed by a return within two rows."""
        found: list[Spike] = []
        usual = median(self.values) if self.values else 0.0
        high = max(least, times * abs(usual))
        for at, point in enumerate(self.points):
            ahead = [after.value for after in self.points[at + 1 : at + 3]]
            behind = [before.value for before in self.points[max(at - 2, 0) : at]]
            if point.value < high or not ahead or not behind:
                continue
            calm = 0.1 * point.value
            if min(ahead) < calm and min(behind) < calm:
                found.append(Spike(point.row, point.value, min(behind), min(ahead)))
        return found

    # ---- zeros and bounds

    @functools.cached_property
    def zero_from(self) -> Point | None:
        """The point from which it is exactly 0 to the end, two rows at least, after two that were not."""
        if self.summed:
            return self.points[-1] if self.values[-1] == 0 != self.values[0] else None
        zeros = 0
        for value in reversed(self.values):
            if value != 0:
                break
            zeros += 1
        before = [value for value in self.values[: len(self) - zeros] if value != 0]
        return self.points[len(self) - zeros] if zeros >= 2 and len(before) >= 2 else None

    @property
    def constant(self) -> bool:
        """Whether all its values are one."""
        return len(self) > 1 and min(self.values) == max(self.values)

    @functools.cached_property
    def full_from(self) -> Point | None:
        """The point from which it stands at its maximum, which it meets three times at least; None: it does not."""
        top = max(self.values, default=0.0)
        full = [point for point in self.points if point.value >= 0.995 * top > 0]
        if len(full) < 3:
            return None
        behind = [point for point in self.points if point.at >= full[0].at]
        return full[0] if len(full) >= 0.6 * len(behind) else None

    # ---- what leads

    def leads(self, other: Curve, by: int = 1) -> bool:
        """Whether its level changes before that of another column does, by so many rows."""
        if self.change is None or other.change is None:
            return False
        return self.change.at + by <= other.change.at

    # ---- in words

    @property
    def label(self) -> str:
        """What people call it."""
        return LABELS.get(self.name, self.name)

    @functools.cached_property
    def words(self) -> str:
        """One sentence on what it does."""
        name, start, end = self.label, number(self.first), number(self.last)
        if len(self) == 1:
            return f"{name} {number(self.values[0])}, in one row"
        if self.constant:
            return f"{name} exactly {number(self.values[0])} in all {len(self)} rows"
        if self.zero_from:
            return f"{name} {start} at first, exactly 0 from {self.zero_from.row.at} on"
        spikes = self.spikes(20, 10 * self.noise)
        if spikes:
            named = ", ".join(f"{number(spike.value)} ({spike.row.at})" for spike in spikes[:4])
            return f"{name} {number(median(self.values))}, with a spike to {named}, and back each time"
        change = self.change
        settled = change is not None and (change.clear or (change.apart and len(self) >= 5))
        if change is not None and settled and abs(change.after - change.before) > 2 * self.error:
            verb = "rises" if change.after > change.before else "falls"
            return f"{name} {verb} from {number(change.before)} to {number(change.after)}, at {change.row.at}"
        if (self.rises or self.falls) and start != end:
            return f"{name} {'rises' if self.rises else 'falls'}: {start} to {end}"
        top = self.peak
        if top.value - max(self.first, self.last) > max(4 * self.noise, 0.3 * abs(top.value)):
            return f"{name} {start} at first, up to {number(top.value)} ({top.row.at}), {end} in the end"
        low, high = number(min(self.values)), number(max(self.values))
        if start == end:
            return f"{name} {start}, between {low} and {high}"
        level = len(self) >= 9 and abs(self.last - self.first) < 2 * self.error
        return f"{name} {start} at first, {end} in the end" + f": level, between {low} and {high}" * level


def _split(course: Sequence[Point]) -> Change:
    """Two levels, with the least squared error."""
    values = [point.value for point in course]
    best, best_error = 1, math.inf
    for at in range(1, len(values)):
        error = _squares(values[:at]) + _squares(values[at:])
        if error < best_error:
            best, best_error = at, error
    before, after = fmean(values[:best]), fmean(values[best:])
    freedom = max(len(values) - 2, 1)
    spread = math.sqrt(best_error / freedom) * math.sqrt(1 / best + 1 / (len(values) - best))
    clear = abs(after - before) > 4 * spread
    lower, higher = sorted((values[:best], values[best:]), key=fmean)
    apart = max(lower) < min(higher) and 2 <= best <= len(values) - 2
    return Change(course[best].at, course[best].row, before, after, clear, apart)


def _squares(values: Sequence[float]) -> float:
    middle = fmean(values)
    return sum((value - middle) ** 2 for value in values)
