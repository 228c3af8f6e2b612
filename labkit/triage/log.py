"""A reading under the questions that rules ask: columns, settings, the first row where something is so."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from labkit.memory.refusal import CANNOT_TELL, owner

from .curves import Curve, Point
from .names import held_out, is_metric
from .reading import Reading
from .rows import Row

_NUMBER = re.compile(r"\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")  # with which a setting begins
OF_A_BATCH = {"reward", "reward_std", "frac_reward_zero_std", "entropy", "diversity", "success", "dpo_accuracy"}
OF_A_BATCH |= {"mean_length", "max_length", "terminated_length", "truncated"}
SHARES = ("truncated", "clip_ratio", "frac_reward_zero_std")  # some log them in per cent
SPREAD = ("reward_std", "advantage_max", "advantage_std")  # more than 0: some group's rewards differ


@dataclass(frozen=True)
class Seen:
    """What a rule saw; `sure` replaces the rule's own where it is given."""

    evidence: list[str]
    sure: str = ""


class Log:
    """What was read, and the settings that came with it. Every method is a question; none of them judges."""

    def __init__(self, reading: Reading, settings: Mapping[str, Any] | None = None):
        self.reading, self.rows, self.hits = reading, reading.rows, reading.hits
        self.settings = {**reading.settings, **(settings or {})}
        self.column = functools.cache(self._column)
        self.curve = functools.cache(self._curve)
        self.signs: dict[str, str] | None = None  # of mechanisms.signs_of, which asks for them once

    # ---- columns

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of its columns, in the order in which they were met."""
        names: dict[str, None] = {}
        for row in self.rows:
            names.update(dict.fromkeys(row.values))
        return list(names)

    def _column(self, name: str) -> list[tuple[Row, float]]:
        """The rows that have `name`, each with its value."""
        return [(row, row.values[name]) for row in self.rows if name in row.values]

    def values(self, name: str) -> list[float]:
        return [value for _, value in self.column(name)]

    def has(self, name: str) -> bool:
        return bool(self.column(name))

    def _curve(self, name: str) -> Curve:
        """What the finite values of a column do. "reward" is the whole reward, whatever it is logged as."""
        points = []
        for at, row in enumerate(self.rows):
            value = row.values.get(name, math.nan)
            if name == "reward":
                value = self._whole_reward(row)
            if math.isfinite(value):
                points.append(Point(at, row, value))
        if self.updates_per_batch >= 2 and name in OF_A_BATCH:
            points = [point for point in points if point.at in self.first_of_batches]
        if name in SHARES and 1.5 < max((point.value for point in points), default=0.0) <= 100:  # in per cent
            points = [point._replace(value=point.value / 100) for point in points]
        if name == "entropy" and points and max(point.value for point in points) <= 0:
            points = [point._replace(value=-point.value) for point in points]  # an entropy loss, minus the entropy
        return Curve(name, points)

    def batches(self, name: str) -> list[float]:
        """The values of `name`, one per batch: inner updates on one batch repeat what was measured on it."""
        return [value for value, _ in itertools.groupby(self.values(name))]

    def first(self, wanted: Callable[[Row], bool]) -> Row | None:
        """The first row of which something is so."""
        for row in self.rows:
            if wanted(row):
                return row
        return None

    def before(self, row: Row, name: str) -> list[float]:
        """The finite values of `name` in the rows before `row`."""
        found = []
        for earlier in self.rows[: self.rows.index(row)]:
            value = earlier.values.get(name, math.nan)
            if math.isfinite(value):
                found.append(value)
        return found

    # ---- batches: several updates on one batch repeat its reward, or log none

    @functools.cached_property
    def first_of_batches(self) -> set[int]:
        """The places of the rows with which a batch begins."""
        starts, before = set(), math.nan
        for at, row in enumerate(self.rows):
            reward = self._whole_reward(row)
            if math.isfinite(reward) and reward != before:
                starts.add(at)
                before = reward
        return starts

    @functools.cached_property
    def updates_per_batch(self) -> int:
        """Rows for each batch: several where every reward stands in as many rows, or in the first of so many alone."""
        starts = [*sorted(self.first_of_batches), len(self.rows)]
        if len(starts) < 3 or len(self.values("reward")) == 2:
            return 1  # two rewards in all are two measurements of another table
        lengths = [after - before for before, after in itertools.pairwise(starts)]
        shortest = min(lengths[:-1])  # the last batch may be cut off
        if any(length % shortest for length in lengths[:-1]):
            return 1
        return shortest

    # ---- the reward

    @functools.cached_property
    def reward_columns(self) -> list[str]:
        """The columns whose sum is the reward: `reward` itself, else those of single reward functions.

        Where none of these was logged, it is how often the task was solved, or a reward on held-out data.
        """
        if "reward" in self.names or self.dpo:
            return ["reward"]
        functions = []
        for name in self.names:
            if name.startswith("rewards/") and not name.endswith(("/std", "/min", "/max")):
                functions.append(name)
        if not functions:
            functions = [name for name in self.names if name.lower().endswith("_reward") and not held_out(name)]
        if functions or self.supervised:
            return functions
        for name in ("success", "dpo_accuracy", *self.names):
            instead = name in ("success", "dpo_accuracy") or ("reward" in name.lower() and held_out(name))
            if instead and name in self.names:
                return [name]
        return []

    def _whole_reward(self, row: Row) -> float:
        """The sum of the reward columns of a row; NaN where one of them is missing."""
        total = 0.0
        for name in self.reward_columns:
            total += row.values.get(name, math.nan)
        return total if self.reward_columns else math.nan

    @functools.cached_property
    def reward_noise(self) -> float:
        """By how much the reward of one row differs by chance: its scatter, and no less than a small batch has."""
        return max(self.curve("reward").noise, self.batch_noise)

    @functools.cached_property
    def batch_noise(self) -> float:
        """By how much the mean reward of a small batch differs by chance.

        Of eight answers with this deviation inside groups the mean has a third of it; where none is logged, and the
        reward is a share of right answers, a batch of seventy has 0.06.
        """
        reward, spread = self.curve("reward"), self.curve("reward_std")
        least = 0.0
        if spread:
            least = median(spread.values) / math.sqrt(8)
        elif reward and 0 <= min(reward.values) <= max(reward.values) <= 1:
            least = 0.06
        return least

    def reward_names(self, row: Row) -> list[str]:
        """What a reward function returned, in this row: the mean, and one column per function."""
        if self.dpo:  # there, rewards are differences of log-probs
            return []
        return [n for n in row.values if n == "reward" or n.startswith("rewards/") or n.lower().endswith("_reward")]

    @functools.cached_property
    def untied(self) -> bool | None:
        """Whether some group's rewards differ; None when nothing that would say so was logged."""
        tied = self.values("frac_reward_zero_std")
        if tied:
            return min(tied) < 1 or any(map(math.isnan, tied))
        spread = [value for name in SPREAD for value in self.values(name)]
        if spread:
            return any(value > 0 for value in spread)
        return None

    # ---- what kind of run it is

    @functools.cached_property
    def dpo(self) -> bool:
        return self.has("dpo_chosen") or self.has("dpo_margin")

    @functools.cached_property
    def supervised(self) -> bool:
        """Whether a loss is all that was logged of learning: no rewards, answers, reference or critic."""
        measured = {name for name in self.names if is_metric(name) and not name.startswith("memory")}
        return "loss" in measured and measured <= {"loss", "grad_norm", "entropy", "dpo_accuracy"}

    # ---- settings

    def setting(self, *names: str) -> float | None:
        """The first of these settings that is a number, or begins with one."""
        for name in names:
            found = _NUMBER.match(str(self.settings.get(name, "")))
            if found:
                return float(found[0])
        return None

    @functools.cached_property
    def rates(self) -> list[float]:
        """The learning rates that were logged, or the one that was set."""
        logged = self.values("learning_rate")
        given = self.setting("learning_rate", "lr", "actor_lr")
        if logged or given is None:
            return logged
        return [given]

    def stated(self, *words: str) -> bool:
        """Whether a setting's value, or the name of one that is on, is one of these words: bf16, float16, ..."""
        told = []
        for name, value in self.settings.items():
            if str(value) != "False":
                told.append(name if str(value) == "True" else str(value))
        other = r"(?![0-9]|\W{1,2}(?:off|[Ff]alse|no)\b)"  # fp160, fp16 off
        return any(re.search(rf"(?<![a-z]){word}{other}", value) for value in told for word in words)

    @functools.cached_property
    def beta(self) -> float | None:
        return self.setting("beta", "kl_coef", "kl_penalty", "init_kl_coef", "kl_loss_coef", "kl_coeff")

    # ---- machine lines

    def met(self, name: str) -> bool:
        """Whether a kind of machine line, a measurement, or ("rows") any measurement is there; or an error ends it."""
        if name == "rows":
            return bool(self.rows)
        if name == "going-on":
            return bool(self.rows) and not self.reading.ended_by("error")
        if name == "broken":
            return bool(self.broken)
        return name in self.hits or self.has(name)

    def told(self, name: str) -> list[str]:
        """The first lines of a kind that were met, each joined with those behind it."""
        if name not in self.hits:
            return []
        return [" ".join(map(str.strip, lines)) for lines in self.hits[name].context]

    @property
    def broken(self) -> list[Reading]:
        """Its sources that an error or a traceback ends."""
        return self.reading.ended_by("error", "traceback", "frames")

    @property
    def lines(self) -> list[str]:
        """Its machine lines with those behind them, and its end behind the last row."""
        lines: list[str] = []
        for hit in self.hits.values():
            lines += itertools.chain(*hit.context)
        return lines + self.reading.tail

    @functools.cached_property
    def refusal(self) -> Any:
        """The most telling out-of-memory message: the first that is not cut short, or the first."""
        made = []
        for words in self.told("oom"):
            with contextlib.suppress(ValueError):
                made.append(owner(words))
        for refusal in made:
            if refusal.verdict != CANNOT_TELL:
                return refusal
        # every rank's message is cut short: the first is as good as any
        return made[0] if made else None

    # ---- what is not finite, or far outside

    @functools.cached_property
    def first_nan(self) -> Row | None:
        """The first row whose loss, gradient norm, log-probs or KL is not finite."""
        names = ("loss", "policy_loss", "value_loss", "grad_norm", "logp", "kl", "kl_sum")
        return self.first(lambda row: any(not math.isfinite(row.values.get(name, 0.0)) for name in names))

    @functools.cached_property
    def scaler_skips(self) -> list[Row]:
        """Rows whose gradient norm is not finite in a run whose loss goes on: what fp16's loss scaler does."""
        norms, losses = self.column("grad_norm"), self.values("loss")
        bad = [row for row, norm in norms if not math.isfinite(norm)]
        told = "overflow" in self.hits or self.stated("fp16", "float16")
        if bad and norms[-1][0] is bad[-1] and not told:
            return []  # it ends there, and nothing says that a scaler was at work
        goes_on = len(losses) > len(bad) or "overflow" in self.hits
        if not goes_on or not all(map(math.isfinite, losses)):
            return []
        if not all(row.values.get("loss") for row in bad):
            return []  # a loss of 0 beside it is a NaN that was replaced
        return bad

    @functools.cached_property
    def nan_columns(self) -> list[tuple[Row, list[str]]]:
        """Rows with NaN in some columns and a finite gradient norm, or in logits alone. A KL alone is not counted."""
        found = []
        for row in self.rows:
            rewards = self.reward_names(row)
            names = {name: None for name, value in row.values.items() if not math.isfinite(value)}
            for reward in rewards:
                names.pop(reward, None)
            if names.keys() - {"kl", "kl_sum"} and self._sound_beside(row, set(names)):
                found.append((row, list(names)))
        return found

    def _sound_beside(self, row: Row, bad: set[str]) -> bool:
        """Whether the parameters are sound in a row where these columns are not finite."""
        losses = self.values("loss")
        if math.isfinite(row.values.get("grad_norm", math.nan)):
            return True
        if bad == {"eval_loss"} and losses and all(map(math.isfinite, losses)):
            return True  # all labels of some held-out batch are masked
        finite_again = len(losses) > 3 and all(map(math.isfinite, losses[-2:]))
        if "loss" in bad and finite_again and not self.has("grad_norm"):
            return True
        logits = {name for name in row.values if name.startswith("logits/")}
        # at first logits that are finite beside log-probs that are not: a mean over no token
        if row is self.rows[0] and "logp" in bad and not logits <= bad:
            return True
        return bad <= logits

    @functools.cached_property
    def spike(self) -> tuple[Row, float, float] | None:
        """The first row whose gradient norm is far outside: itself, the norm, and the median of the 64 before."""
        usual: deque[float] = deque(maxlen=64)
        norms = self.column("grad_norm")
        for row, norm in norms:
            if not math.isfinite(norm):
                continue
            before = median(usual) if usual and norm > 10 else math.nan
            behind_zeros = norm > 1e3 and not usual and row is not norms[0][0]
            far_above = len(usual) >= 3 and norm > 100 * before
            if norm > 1e4 or behind_zeros or far_above:
                return row, norm, before
            if norm > 0:  # tied batches have none, and would make anything a spike
                usual.append(norm)
        return None


def level(values: list[float], part: str) -> float:
    """The mean of the first or the last third of a column."""
    third = max(len(values) // 3, 1)
    return fmean(values[:third] if part == "first" else values[-third:])
