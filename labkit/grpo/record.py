"""What a log shows of one inner update: sums over its micro-batches, and the `Step` made of
them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch

from labkit.events import NAN, Step

from .advantage import reward_std, zero_std_fraction
from .batch import Batch
from .loss import PolicyLoss


@dataclass
class Record:
    """Sums over the counted tokens of one inner update, filled as its micro-batches go by."""

    tokens: float  # counted tokens of the whole batch
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    extra: dict[str, float] = field(default_factory=dict)  # what a probe measured
    ratio_max: float = 0.0

    @torch.no_grad()
    def count(
        self,
        part: Batch,
        policy_loss: PolicyLoss,
        kl: torch.Tensor,
        logits: torch.Tensor,
        total: torch.Tensor,
    ) -> None:
        """Add a micro-batch: policy loss and KL [B, T], logits [B, T, V], its share of the loss."""
        counted = part.mask.bool()
        logp = logits.log_softmax(-1)  # [B, T, V]
        entropy = -(logp.exp() * logp).sum(-1)  # [B, T], exact: over the whole vocabulary
        self.ratio_max = max(self.ratio_max, float(policy_loss.ratio[counted].max()))
        self.sums["loss"] += float(total)
        self.sums["kl"] += float(kl[counted].sum())
        self.sums["entropy"] += float(entropy[counted].sum())
        self.sums["clipped"] += float(policy_loss.clipped[counted].sum())
        if len(set(part.objective)) == 1:
            self.sums[f"kl/{part.objective[0]}"] = float(kl[counted].mean())

    def mean(self, name: str) -> float:
        """Over the counted tokens; NaN where there are none."""
        return self.sums[name] / self.tokens if self.tokens else NAN

    def step(self, batch: Batch, **measured: Any) -> Step:
        """The `Step` of this update; `measured`: the fields that are not in the batch."""
        n, device = batch.out.num_samples, batch.rewards.device
        if device.type == "cuda":
            measured["memory_allocated"] = float(torch.cuda.memory_allocated(device))
            measured["memory_reserved"] = float(torch.cuda.memory_reserved(device))
        return Step(
            loss=self.sums["loss"],
            reward=float(batch.rewards.nanmean()),
            reward_std=reward_std(batch.rewards, n),
            frac_reward_zero_std=zero_std_fraction(batch.rewards, n),
            kl=self.mean("kl"),
            entropy=self.mean("entropy"),
            mean_length=float(batch.lengths.mean()),
            ratio_max=self.ratio_max,
            clip_fraction=self.mean("clipped"),
            first_token_unique=_unique_first_tokens(batch),
            extra=self._extra(batch),
            **measured,
        )

    def _extra(self, batch: Batch) -> dict[str, float]:
        """What a `Step` has no field for: the probe's numbers, each objective's, missing
        rewards."""
        extra = dict(self.extra)
        families = sorted(set(batch.objective))
        if len(families) > 1:
            extra |= {name: value for name, value in self.sums.items() if name.startswith("kl/")}
            for name in families:
                extra[f"reward/{name}"] = float(batch.rewards[batch.of(name)].nanmean())
                extra[f"length/{name}"] = float(batch.lengths[batch.of(name)].mean())
        missing = int(batch.rewards.isnan().sum())
        if missing:
            extra["missing"] = missing / len(batch.rewards)
        return extra


def _unique_first_tokens(batch: Batch) -> float:
    """Distinct first tokens in a group, mean over the groups. 1 means: all completions begin
    alike."""
    groups = batch.out.tokens[:, 0].view(-1, batch.out.num_samples).tolist()
    unique = [len(set(group)) for group in groups]
    return sum(unique) / len(unique)
