"""Does an update contain what a bad gradient would do? This file knows no model: it uses a small one of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .mistakes import first
from .report import Report, attempt, judged

CLAIM = "a healthy gradient steps, a large one is clipped, an exploded or non-finite one changes nothing"
HINTS = {
    "no step": "Likely no step for a healthy gradient.",
    "another step": "A healthy step is not the plain one.",
    "NaN": "Likely clipped or compared after the fact: max_norm / NaN is NaN, and NaN > 10 is false.",
    "not clipped": "Likely not clipped to max_norm: a large gradient should move parameters by max_norm times lr.",
    "not skipped": "Likely the update is not skipped: an exploded norm should leave the parameters bit-identical.",
}


def guard(
    update: Callable[[nn.Module, torch.optim.Optimizer], Any],
    *,
    max_norm: float = 0.3,
    skip_above: float = 10.0,
) -> Report:
    """Judge `update(model, optimizer)`, called when gradients are in `p.grad`, in place of `optimizer.step()`.

    Five gradients of a small SGD model: norm below `max_norm` (the step must be SGD's own), between `max_norm`
    and `skip_above` (that of the gradient clipped to `max_norm`), above `skip_above`, and with one NaN or Inf (the
    parameters must stay bit-identical). What it returns does not matter. Source: the field report's contain layer.
    """
    return judged("guard", CLAIM, update, lambda seen: _judge(update, max_norm, skip_above, seen))


def _judge(update: Callable[..., Any], max_norm: float, skip_above: float, seen: dict[str, Any]) -> str:
    healthy, large = 0.5 * max_norm, 0.5 * (max_norm + skip_above)
    moves = {
        "healthy": _moved(update, healthy) / healthy,
        "large": _moved(update, large) / max_norm,
        "exploded": _moved(update, 100 * skip_above),
        "nan": _moved(update, large, math.nan),
        "inf": _moved(update, large, math.inf),
    }
    seen |= {f"moved by {name}": value for name, value in moves.items()}
    return first(
        HINTS,
        {
            "no step": moves["healthy"] == 0,
            "another step": not abs(moves["healthy"] - 1) < 1e-3,
            "NaN": math.isnan(moves["nan"]) or math.isnan(moves["inf"]),
            "not clipped": not abs(moves["large"] - 1) < 1e-2,
            "not skipped": any(moves[name] != 0 for name in ("exploded", "nan", "inf")),
        },
    )


def _moved(update: Callable[..., Any], norm: float, poison: float | None = None) -> float:
    """Distance that the parameters moved at learning rate 1, for a gradient of this norm, one entry poisoned."""
    model = nn.Linear(4, 3)
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    gradient = torch.randn(before.numel())
    gradient *= norm / gradient.norm()
    for p, g in zip(model.parameters(), gradient.split([p.numel() for p in model.parameters()]), strict=True):
        p.grad = g.view_as(p).clone()
    if poison is not None and model.weight.grad is not None:
        model.weight.grad[1, 2] = poison
    attempt(update, model, torch.optim.SGD(model.parameters(), lr=1.0))
    return float((nn.utils.parameters_to_vector(model.parameters()).detach() - before).norm())
