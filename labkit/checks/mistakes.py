"""Which known mistake would have made what a function made? The one search that the checks share.

A check has a table of the mistakes it knows, the likeliest first: the hint that each deserves, and what it would
compute on the check's own data. This file knows no check, and of mistakes only the usual ways to divide a batch that
comes in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

Number = Tensor | float


def distance(result: Number, other: Number) -> float:
    """Norm of the difference, relative to that of `other`; inf when something is not finite."""
    a = torch.as_tensor(result, dtype=torch.float64)
    b = torch.as_tensor(other, dtype=torch.float64)
    relative = (a - b).norm() / b.norm().clamp(min=1e-12)
    return float(relative) if relative.isfinite() else float("inf")


def joined(tensors: Iterable[Tensor]) -> Tensor:
    """One float64 vector of them all, without a graph."""
    return torch.cat([t.detach().reshape(-1).double() for t in tensors])


def scale_of(result: Number, other: Number) -> float:
    """The factor that brings `other` nearest to `result`; 0 when there is none."""
    a = torch.as_tensor(result, dtype=torch.float64).flatten()
    b = torch.as_tensor(other, dtype=torch.float64).flatten()
    return float(a @ b / (b @ b)) if b.any() else 0.0


def nearest(result: Tensor, mistakes: Mapping[str, Tensor], tolerance: float) -> tuple[str, float] | None:
    """The mistake whose result, times a factor, is within `tolerance` of this one and nearest to it, and the factor.

    Differences of less than a tenth of the tolerance are rounding: there the order of the mistakes decides.
    """
    best = None
    smallest = 0
    for name, other in mistakes.items():
        factor = scale_of(result, other)
        off = distance(result, factor * other)
        if not factor or off > tolerance:
            continue
        tenths = round(10 * off / tolerance)
        if best is None or tenths < smallest:
            best, smallest = (name, factor), tenths
    return best


def weightings(masks: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """What each token weighs, by the way to divide, in a batch that comes in parts: micro-batches, or processes.

    masks  one [B, T] for each part, 1 = counts. The parts' losses are added up
    """
    parts, rows = len(masks), sum(len(mask) for mask in masks)
    tokens = float(sum(mask.sum() for mask in masks))
    weights: dict[str, list[Tensor]] = {}
    for mask in (mask.double() for mask in masks):
        of_row = mask / mask.sum(1, keepdim=True).clamp(min=1)  # a row adds up to 1
        ways = {
            "all tokens": mask / tokens,
            "own tokens, mean": mask / mask.sum().clamp(min=1) / parts,
            "row means": of_row / rows,
        }
        for name, weight in ways.items():
            weights.setdefault(name, []).append(weight)
    return weights
