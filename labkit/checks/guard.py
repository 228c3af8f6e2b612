"""Does an update contain what a bad gradient would do? This file knows no model: it uses a small one of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .report import Report, Verdict, attempt, judged

CLAIM = "a healthy gradient steps, a large one is clipped, an exploded or non-finite one changes nothing"


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
    return judged("guard", CLAIM, update, lambda: _judge(update, max_norm, skip_above))


def _judge(update: Callable[..., Any], max_norm: float, skip_above: float) -> Verdict:
    healthy, large = 0.5 * max_norm, 0.5 * (max_norm + skip_above)
    moves = {
        "healthy": _moved(update, healthy) / healthy,
        "large": _moved(update, large) / max_norm,
        "exploded": _moved(update, 100 * skip_above),
        "nan": _moved(update, large, math.nan),
        "inf": _moved(update, large, math.inf),
    }
    seen = {f"moved by {name}": value for name, value in moves.items()}
    if not abs(moves["healthy"] - 1) < 1e-3:
        hint = (
            "Likely no step for a healthy gradient."
            if moves["healthy"] == 0
            else "A healthy step is not the plain one."
        )
        return False, seen, hint
    if any(moves[name] != moves[name] for name in ("nan", "inf")):
        return (
            False,
            seen,
            "Likely clipped or compared after the fact: max_norm / NaN is NaN, and NaN > 10 is false.",
        )
    if not abs(moves["large"] - 1) < 1e-2:
        return (
            False,
            seen,
            "Likely not clipped to max_norm: a large gradient should move parameters by max_norm times lr.",
        )
    still = all(moves[name] == 0 for name in ("exploded", "nan", "inf"))
    return (
        still,
        seen,
        "Likely the update is not skipped: an exploded norm should leave the parameters bit-identical.",
    )


def _moved(update: Callable[..., Any], norm: float, poison: float | None = None) -> float:
    """Distance that the parameters moved at learning rate 1, for a gradient of this norm, one entry poisoned."""
    model = nn.Linear(4, 3)
    before = [p.detach().clone() for p in model.parameters()]
    flat = torch.randn(sum(p.numel() for p in model.parameters()))
    parts = (flat / flat.norm() * norm).split([p.numel() for p in model.parameters()])
    for p, g in zip(model.parameters(), parts, strict=True):
        p.grad = g.view_as(p).clone()
    if poison is not None and model.weight.grad is not None:
        model.weight.grad[1, 2] = poison
    attempt(update, model, torch.optim.SGD(model.parameters(), lr=1.0))
    return float(
        torch.cat(
            [(p.detach() - b).flatten() for p, b in zip(model.parameters(), before, strict=True)]
        ).norm()
    )
