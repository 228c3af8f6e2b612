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
from .names import is_metric
from .reading import Reading
from .rows import Row

_BEGINS = r"\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"  # with a number
OF_A_BATCH = {"reward", "reward_std", "frac_reward_zero_std", "entropy", "diversity", "success", "dpo_accuracy"}
OF_A_BATCH |= {"mean_length", "max_length", "terminated_length", "truncated"}
SHARES = ("truncated", "clip_ratio")
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

    def _column(self, name: str) -> list[tuple[Row, float]]:
        """The rows that have `name`, each with its value."""
        return [(row, row.values[name]) for row in self.rows if name in row.values]

    def _curve(self, name: str) -> Curve:
        """What the finite values of a column do. "reward" is the whole reward, whatever it is logged as."""
        points = []
        for at, row in enumerate(self.rows):
            value = self._whole_reward(row) if name == "reward" else row.values.get(name, math.nan)
            if math.isfinite(value):
                points.append(Point(at, row, value))
        if self.updates_per_batch >= 2 and name in OF_A_BATCH:
            points = [point for point in points if point.at in self.first_of_batches]
        if name in SHARES and 1.5 < max((point.value for point in points), default=0.0) <= 100:  # it is in per cent
            points = [point._replace(value=point.value / 100) for point in points]
        return Curve(name, points)

    @functools.cached_property
    def first_of_batches(self) -> set[int]:
        """The places of the rows with which a batch begins: inner updates repeat its reward, or log none."""
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
        if len(starts) < 3:
            return 1
        lengths = [after - before for before, after in itertools.pairwise(starts)]
        shortest = min(lengths[:-1])  # the last batch may be cut off
        return shortest if all(length % shortest == 0 for length in lengths[:-1]) else 1

    @functools.cached_property
    def reward_columns(self) -> list[str]:
        """The columns whose sum is the reward: `reward` itself, else those of single reward functions."""
        if self.has("reward") or self.dpo:
            return ["reward"]
        names = dict.fromkeys(name for row in self.rows for name in row.values)
        functions = [n for n in names if n.startswith("rewards/") and not n.endswith(("/std", "/min", "/max"))]
        functions = functions or [name for name in names if name.lower().endswith("_reward")]
        if not functions and not self.supervised:
            return [name for name in ("success", "dpo_accuracy") if self.has(name)][:1]
        return functions

    def _whole_reward(self, row: Row) -> float:
        found = [row.values[name] for name in self.reward_columns if name in row.values]
        return sum(found) if len(found) == len(self.reward_columns) > 0 else math.nan

    def values(self, name: str) -> list[float]:
        return [value for _, value in self.column(name)]

    def batches(self, name: str) -> list[float]:
        """The values of `name`, one per batch: inner updates on one batch repeat what was measured on it."""
        return [value for value, _ in itertools.groupby(self.values(name))]

    def has(self, name: str) -> bool:
        return bool(self.column(name))

    def met(self, name: str) -> bool:
        """Whether a kind of machine line, a measurement, or ("rows") any measurement is there; or an error ends it."""
        named = {"rows": self.rows, "going-on": self.rows and not self.reading.ended_by("error"), "broken": self.broken}
        return name in self.hits or self.has(name) or bool(named.get(name))

    @functools.cached_property
    def dpo(self) -> bool:
        return self.has("dpo_chosen") or self.has("dpo_margin")

    def setting(self, *names: str) -> float | None:
        """The first of these settings that is a number, or begins with one."""
        said = [re.match(_BEGINS, str(self.settings.get(name, ""))) for name in names]
        return next((float(found[0]) for found in said if found), None)

    @functools.cached_property
    def rates(self) -> list[float]:
        """The learning rates that were logged, or the one that was set."""
        given = self.setting("learning_rate", "lr", "actor_lr")
        return self.values("learning_rate") or ([given] if given else [])

    def stated(self, *words: str) -> bool:
        """Whether a setting's value, or the name of one that is on, is one of these words: bf16, float16, ..."""
        told = [str(v) if str(v) != "True" else k for k, v in self.settings.items() if str(v) != "False"]
        other = r"(?![0-9]|\W{1,2}(?:off|[Ff]alse|no)\b)"  # fp160, fp16 off
        return any(re.search(rf"(?<![a-z]){word}{other}", value) for value in told for word in words)

    @functools.cached_property
    def beta(self) -> float | None:
        return self.setting("beta", "kl_coef", "kl_penalty", "init_kl_coef", "kl_loss_coef", "kl_coeff")

    def told(self, name: str) -> list[str]:
        """The first lines of a kind that were met, each joined with those behind it."""
        return [" ".join(map(str.strip, lines)) for lines in self.hits[name].context] if name in self.hits else []

    @property
    def broken(self) -> list[Reading]:
        """Its sources that an error or a traceback ends."""
        return self.reading.ended_by("error", "traceback", "frames")

    @property
    def lines(self) -> list[str]:
        """Its machine lines with those behind them, and its end behind the last row."""
        return [line for hit in self.hits.values() for lines in hit.context for line in lines] + self.reading.tail

    def first(self, wanted: Callable[[Row], bool]) -> Row | None:
        return next((row for row in self.rows if wanted(row)), None)

    def before(self, row: Row, name: str) -> list[float]:
        """The finite values of `name` in the rows before `row`."""
        rows = self.rows[: self.rows.index(row)]
        return [value for r in rows if math.isfinite(value := r.values.get(name, math.nan))]

    def reward_names(self, row: Row) -> list[str]:
        """What a reward function returned, in this row: the mean, and one column per function."""
        if self.dpo:  # there, rewards are differences of log-probs
            return []
        return [n for n in row.values if n == "reward" or n.startswith("rewards/") or n.lower().endswith("_reward")]

    @functools.cached_property
    def supervised(self) -> bool:
        """Whether a loss is all that was logged of learning: no rewards, answers, reference or critic."""
        names = {name for row in self.rows for name in row.values if is_metric(name) and not name.startswith("memory")}
        return "loss" in names and names <= {"loss", "grad_norm", "entropy", "dpo_accuracy"}

    @functools.cached_property
    def untied(self) -> bool | None:
        """Whether some group's rewards differ; None when nothing that would say so was logged."""
        tied, spread = self.values("frac_reward_zero_std"), [x for name in SPREAD for x in self.values(name)]
        return any(value < 1 for value in tied) if tied else any(value > 0 for value in spread) if spread else None

    @functools.cached_property
    def first_nan(self) -> Row | None:
        """The first row whose loss, gradient norm, log-probs or KL is not finite."""
        names = ("loss", "policy_loss", "value_loss", "grad_norm", "logp", "kl", "kl_sum")
        return self.first(lambda row: any(not math.isfinite(row.values.get(name, 0.0)) for name in names))

    @functools.cached_property
    def scaler_skips(self) -> list[Row]:
        """Rows whose gradient norm is not finite in a run whose loss goes on: what fp16's loss scaler does."""
        bad = [row for row, norm in self.column("grad_norm") if not math.isfinite(norm)]
        losses = self.values("loss")
        told = "overflow" in self.hits or self.stated("fp16", "float16")
        alive = (len(losses) > len(bad) or "overflow" in self.hits) and all(math.isfinite(x) for x in losses)
        if bad and self.column("grad_norm")[-1][0] is bad[-1] and not told:
            return []  # it ends there, and nothing says that a scaler was at work
        return bad if alive and all(row.values.get("loss") for row in bad) else []

    @functools.cached_property
    def nan_columns(self) -> list[tuple[Row, list[str]]]:
        """Rows with NaN in some columns and a finite gradient norm, or in logits alone. A KL alone is not counted."""
        found, losses = [], self.values("loss")
        finite_again = not self.has("grad_norm") and len(losses) > 3 and all(map(math.isfinite, losses[-2:]))
        for row in self.rows:
            rewards = self.reward_names(row)
            names = [n for n, value in row.values.items() if not math.isfinite(value) and n not in rewards]
            # with a norm that is finite, or a loss that is again, the parameters are sound
            logged = math.isfinite(row.values.get("grad_norm", math.nan)) or ("loss" in names and finite_again)
            logits = {name for name in row.values if name.startswith("logits/")}
            # at first logits that are finite beside log-probs that are not: a mean over no token
            empty = row is self.rows[0] and "logp" in names and not logits <= {*names}
            if (logged or empty or {*names} <= logits) and {*names} - {"kl", "kl_sum"}:
                found.append((row, names))
        return found

    @functools.cached_property
    def spike(self) -> tuple[Row, float, float] | None:
        """The first row whose gradient norm is far outside: itself, the norm, and the median of the 64 before."""
        usual: deque[float] = deque(maxlen=64)
        for row, norm in self.column("grad_norm"):
            level = median(usual) if usual and norm > 10 else math.nan
            sudden = norm > 1e3 and not usual and row is not self.column("grad_norm")[0][0]  # behind zeros
            if math.isfinite(norm) and (norm > 1e4 or sudden or (len(usual) >= 3 and norm > 100 * level)):
                return row, norm, level
            if math.isfinite(norm) and norm > 0:  # tied batches have none, and would make anything a spike
                usual.append(norm)
        return None

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


def level(values: list[float], part: str) -> float:
    """The mean of the first or the last third of a column."""
    third = max(len(values) // 3, 1)
    return fmean(values[:third] if part == "first" else values[-third:])
