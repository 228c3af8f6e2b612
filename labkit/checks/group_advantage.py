"""Does a function turn rewards into group advantages? This file knows no trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .report import Report, Unreadable, Verdict, attempt, judged, tensor_of

CLAIM = "reward minus its own group's mean, with or without the group's standard deviation"


def group_advantage(advantage: Callable[[torch.Tensor], Any], *, num_samples: int = 4) -> Report:
    """Judge `advantage(rewards)`: rewards `[P * num_samples]`, groups adjacent, to advantages of the same length.

    Dividing by the group's standard deviation (GRPO) or not (Dr. GRPO) both pass; so does either form of the deviation,
    and a small epsilon. A tied group must give zeros. Source: arXiv 2402.03300 and 2503.20783.
    """
    return judged("group_advantage", CLAIM, advantage, lambda: _judge(advantage, num_samples))


def _judge(advantage: Callable[[torch.Tensor], Any], n: int) -> Verdict:
    rows = torch.rand(5, n) + torch.arange(5.0)[:, None]  # groups at different levels
    rows[2] = 0.3  # a tied group
    rewards = rows.flatten()
    out = tensor_of(attempt(advantage, rewards.clone()), f"a tensor of {rewards.numel()} advantages")
    out = out.detach().float().reshape(-1)
    if out.numel() != rewards.numel():
        raise Unreadable(f"Expected {rewards.numel()} advantages, one a reward.", returned=out.numel())
    if not out.isfinite().all():
        return False, {"finite": False}, "Likely a tied group divided by a standard deviation of zero."
    live = torch.tensor([i for i in range(5) if i != 2])
    ours = out.view(5, n)
    seen: dict[str, Any] = {
        "largest group sum": ours.sum(1).abs().max().item(),
        "tied group": ours[2].abs().max().item(),
        "alignment": _alignment(ours[live], _centred(rows)[live]),
    }
    if seen["tied group"] > 1e-3:
        return False, seen, "Likely not centred on the group's own mean: a tied group must give zeros."
    if seen["alignment"] < -0.999:
        return False, seen, "Likely a flipped sign: mean minus reward."
    if seen["alignment"] < 0.5:
        return False, seen, "Likely all zeros, or groups taken from rows that are not adjacent."
    plain = ours[live] / _centred(rows)[live]  # Dr. GRPO: one constant
    scaled = plain * rows[live].std(1, keepdim=True)  # GRPO: one constant once the deviation is put back
    spread = min(float(s.std() / s.mean()) for s in (plain, scaled))
    seen["relative spread of the scale"] = spread
    return (
        abs(spread) < 0.02,
        seen,
        "Likely normalised over the whole batch, or over rows that are not a group.",
    )


def _centred(rows: torch.Tensor) -> torch.Tensor:
    return rows - rows.mean(1, keepdim=True)


def _alignment(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0))
