"""Why does a group teach nothing: because its completions are all the same, or because different ones earn the same?

This file compares completions and rewards, and knows neither logits nor prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Ties:
    """Groups, counted. A dashboard's share without deviation is `(identical - noisy + tied) / groups`.

    groups     all of them
    identical  one completion in every row of the group
    tied       different completions, one reward
    noisy      identical completions, different rewards: what scores them is no function of the completion

    `verdict` "identical completions": in every group, so nothing was drawn, or the policy is sure of every prompt
              (`estimate_temperature` tells);
              "tied rewards": every group is dead, and the sampler did its part;
              "live": some groups teach.
    """

    groups: int
    identical: int
    tied: int
    noisy: int

    @property
    def verdict(self) -> str:
        if self.identical == self.groups:
            return "identical completions"
        return "tied rewards" if self.identical - self.noisy + self.tied == self.groups else "live"


def ties(completions: Sequence[Any] | Tensor, rewards: Sequence[float] | Tensor, num_samples: int) -> Ties:
    """Tell identical completions (nothing is drawn) from tied rewards (nothing is learned).

    completions  [B] texts or lists of tokens, or a tensor [B, T] whose rows have one padding token after the end
    rewards      [B]
    num_samples  rows per group, adjacent

    Raises: ValueError names lengths that do not fit.
    """
    rows, scores = (x.tolist() if isinstance(x, Tensor) else list(x) for x in (completions, rewards))
    if num_samples < 2 or not rows or len(rows) % num_samples or len(rows) != len(scores):
        raise ValueError(
            f"ties: {len(rows)} completions and {len(scores)} rewards in groups of num_samples = {num_samples}; "
            "expected as many rewards as completions, in groups of 2 or more adjacent rows"
        )
    rows = [row if isinstance(row, str) else tuple(getattr(row, "tolist", lambda row=row: row)()) for row in rows]
    starts = range(0, len(rows), num_samples)
    same = [len(set(rows[i : i + num_samples])) == 1 for i in starts]
    level = [len(set(scores[i : i + num_samples])) == 1 for i in starts]
    tied = sum(flat and not alike for alike, flat in zip(same, level, strict=True))
    return Ties(len(same), sum(same), tied, sum(alike and not flat for alike, flat in zip(same, level, strict=True)))
