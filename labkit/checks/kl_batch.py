"""The batch on which KL estimators are judged: small enough that a mean over it is the exact expectation.

This file judges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

# How often the policy draws each of six symbols, of 64 draws, at each of four positions.
DRAWS = ((26, 14, 10, 8, 4, 2), (4, 26, 2, 14, 8, 10), (8, 8, 12, 4, 16, 16), (2, 4, 8, 10, 14, 26))
# The reference's logits relative to the policy's there; the log-ratios that follow reach from -1.9 to 2.2.
SHIFTS = (
    (-1.0, 0.6, 1.2, -0.4, 0.9, 2.8),
    (1.1, -0.7, 1.4, -1.3, 0.5, 0.2),
    (0.3, -1.6, 0.8, 1.5, -0.2, 0.1),
    (1.7, 1.3, -0.9, 0.4, 0.7, -0.6),
)
JUNK = 5  # the symbol that stands where nothing counts: read there, it biases value and gradient


@dataclass
class Problem:
    """A batch that holds each symbol as often as the policy draws it, and the exact divergences."""

    logits: Tensor  # [T, V], the leaf that gradients are taken of
    ref_logp: Tensor  # [T, V]
    tokens: Tensor  # [B, T]
    mask: Tensor  # [B, T], 1 = counts

    @classmethod
    def make(cls, scale: float, masked: bool, dtype: torch.dtype = torch.float32) -> Problem:
        """Masked: twice the rows, the second half a position shorter, junk in a column before and one after."""
        draws = torch.tensor(DRAWS, dtype=torch.float64)
        logp = (draws / draws.sum(1, keepdim=True)).log()
        ref_logp = (logp + scale * torch.tensor(SHIFTS, dtype=torch.float64)).log_softmax(-1)
        rng = torch.Generator().manual_seed(3)
        columns = [torch.repeat_interleave(torch.arange(6), torch.tensor(d)) for d in DRAWS]
        tokens = torch.stack([c[torch.randperm(len(c), generator=rng)] for c in columns], dim=1)  # [64, 4]
        mask = torch.ones_like(tokens)
        if masked:
            shorter = mask.clone()
            shorter[:, -1] = 0
            tokens, mask = (F.pad(torch.cat(x), (1, 1)) for x in ([tokens, tokens], [mask, shorter]))
            tokens[mask == 0] = JUNK
            logp, ref_logp = (torch.cat([x[:1], x, x[2:3]]) for x in (logp, ref_logp))
        return cls(logp.to(dtype).requires_grad_(), ref_logp.to(dtype), tokens, mask)

    @property
    def positions(self) -> Tensor:
        """Positions that count in every row or in some, [T] bool."""
        return self.mask.any(0)

    def batch(self) -> tuple[Tensor, Tensor]:
        """(logp, ref_logp) of the drawn tokens, [B, T], the first with gradient; junk where nothing counts."""
        at = torch.arange(self.tokens.shape[1])
        return self.logits.log_softmax(-1)[at, self.tokens], self.ref_logp[at, self.tokens]

    def divergences(self) -> tuple[Tensor, Tensor]:
        """Exact KL(policy‖ref) and KL(ref‖policy) at each position, [T], float64."""
        p, q = self.logits.detach().double().log_softmax(-1), self.ref_logp.double()
        return (p.exp() * (p - q)).sum(-1), (q.exp() * (q - p)).sum(-1)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Their exact gradients in the policy's logits, [T, V], float64: p (log p/q - KL) and p - q."""
        p, q = self.logits.detach().double().log_softmax(-1), self.ref_logp.double()
        forward, _ = self.divergences()
        return p.exp() * (p - q - forward[:, None]), p.exp() - q.exp()

    def mean_of(self, per_token: Tensor) -> Tensor:
        """Mean over the counted tokens."""
        return per_token.masked_fill(self.mask == 0, 0.0).sum() / self.mask.sum()

    def mean_of_sequences(self, per_token: Tensor) -> Tensor:
        """Mean over the rows of each row's mean over its counted tokens."""
        return (per_token.masked_fill(self.mask == 0, 0.0).sum(1) / self.mask.sum(1)).mean()


def other_masks(mask: Tensor) -> dict[str, Tensor]:
    """The masks that a mistake would make of this one, by what to say of it."""
    return {
        "The mask is one position late: likely not shifted together with the log-probs.": F.pad(mask[:, :-1], (1, 0)),
        "The mask is one position early: likely shifted twice.": F.pad(mask[:, 1:], (0, 1)),
        "The mask is not applied: padding counts.": torch.ones_like(mask),
        "The mask is inverted: likely 1 stands for 'ignore' inside. Here 1 = counts.": 1 - mask,
    }
