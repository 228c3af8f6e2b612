"""A memory budget: predicted from the settings (`predict`), and measured with fake tensors (`measure`).

predict("124M", batch=4, group=8, lora=16)       # stdlib only, at once: a Budget; print it
measure("124M", batch=4, group=8, lora=16)       # the same workload under labkit.tap: what really was allocated
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .prediction import Budget, Phase, Term, layer_terms, predict
from .workload import Shape, Workload

if TYPE_CHECKING:
    from .measurement import Measured, measure

__all__ = ["Budget", "Measured", "Phase", "Shape", "Term", "Workload", "layer_terms", "measure", "predict"]


def __getattr__(name: str) -> Any:
    if name in ("Measured", "measure"):  # these import torch
        from . import measurement as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
