"""Does a function turn rewards into group advantages? This file knows no trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .mistakes import first
from .report import CannotJudge, Report, attempt, judged, tensor_of

CLAIM = "reward minus its own group's mean, with or without the group's standard deviation"
HINTS = {
    "not centred": "Likely not centred on the group's own mean: a tied group must give zeros.",
    "flipped": "Likely a flipped sign: mean minus reward.",
    "elsewhere": "Likely all zeros, or groups taken from rows that are not adjacent.",
    "other rows": "Likely normalised over the whole batch, or over rows that are not a group.",
}


def group_advantage(advantage: Callable[[torch.Tensor], Any], *, num_samples: int = 4) -> Report:
    """Judge `advantage(rewards)`: rewards `[P * num_samples]`, groups adjacent, to advantages of the same length.

    Dividing by the group's standard deviation (GRPO) or not (Dr. GRPO) both pass; so does either form of the deviation,
    and a small epsilon. A tied group must give zeros. Source: arXiv 2402.03300 and 2503.20783.
    """
    return judged("group_advantage", CLAIM, advantage, lambda seen: _judge(advantage, num_samples, seen))


def _judge(advantage: Callable[[torch.Tensor], Any], n: int, seen: dict[str, Any]) -> str:
    rows = torch.rand(5, n) + torch.arange(5.0)[:, None]  # groups at different levels
    rows[2] = 0.3  # a tied group
    live = torch.tensor([0, 1, 3, 4])
    out = tensor_of(attempt(advantage, rows.flatten()), f"a tensor of {rows.numel()} advantages")
    out = out.detach().float().reshape(-1)
    if out.numel() != rows.numel():
        raise CannotJudge(f"Expected {rows.numel()} advantages, one per reward.", returned=out.numel())
    if not out.isfinite().all():
        seen["finite"] = False
        return "Likely a tied group divided by a standard deviation of zero."
    ours = out.view(5, n)
    plain = ours[live] / _centred(rows)[live]  # Dr. GRPO: one constant
    scaled = plain * rows[live].std(1, keepdim=True)  # GRPO: one constant once the deviation is put back
    seen |= {
        "largest group sum": ours.sum(1).abs().max().item(),
        "tied group": ours[2].abs().max().item(),
        "alignment": _alignment(ours[live], _centred(rows)[live]),
        "relative spread of the scale": min(float(s.std() / s.mean()) for s in (plain, scaled)),
    }
    return first(
        HINTS,
        {
            "not centred": seen["tied group"] > 1e-3,
            "flipped": seen["alignment"] < -0.999,
            "elsewhere": seen["alignment"] < 0.5,
            "other rows": not abs(seen["relative spread of the scale"]) < 0.02,
        },
    )


def _centred(rows: torch.Tensor) -> torch.Tensor:
    return rows - rows.mean(1, keepdim=True)


def _alignment(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0))
