"""Which known mistake would have made what a function made? The one search that the checks share.

A check has tables of the mistakes it knows, the likeliest first: the hint that each deserves, and what it would compute
on the check's own data, or the condition that shows it. This file knows no check and no mistake.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

Number = Tensor | float
Name = TypeVar("Name", bound=Hashable)


def distance(found: Number, other: Number, floor: float = 1e-12) -> float:
    """Norm of the difference, relative to that of `other` (at least `floor`); inf when something is not finite."""
    a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (found, other))
    relative = (a - b).norm() / b.norm().clamp(min=floor)
    return float(relative) if relative.isfinite() else float("inf")


def joined(tensors: Iterable[Tensor]) -> Tensor:
    """One float64 vector of them all, without a graph."""
    return torch.cat([t.detach().reshape(-1).double() for t in tensors])


def scale_of(found: Number, other: Number) -> float:
    """The factor that brings `other` nearest to `found`; 0 when there is none."""
    a, b = (torch.as_tensor(x, dtype=torch.float64).flatten() for x in (found, other))
    return float(a @ b / (b @ b)) if b.any() else 0.0


def nearest(found: Number, mistakes: Mapping[Name, Number], tolerance: float, floor: float = 1e-12) -> Name | None:
    """The name of the mistake whose result is within `tolerance` of `found`, and nearest to it; None when none is.

    Differences of less than a tenth of the tolerance are rounding: there the order of the mistakes decides.
    """
    distances = {name: distance(found, result, floor) for name, result in mistakes.items()}
    close = [name for name, d in distances.items() if d <= tolerance]
    return min(close, key=lambda name: round(10 * distances[name] / tolerance), default=None)


def nearest_multiple(found: Tensor, mistakes: Mapping[Name, Tensor], tolerance: float) -> tuple[Name, float] | None:
    """As `nearest`, up to a factor: (name, factor), where `found` is about factor times the mistake's result."""
    scales = {name: scale_of(found, result) for name, result in mistakes.items()}
    name = nearest(found, {n: s * mistakes[n] for n, s in scales.items() if s}, tolerance)
    return None if name is None else (name, scales[name])


def first(hints: Mapping[str, Any]) -> str:
    """The first hint whose condition holds; "" when none does."""
    return next((hint for hint, holds in hints.items() if holds), "")
