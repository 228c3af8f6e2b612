"""Memory: read it, predict it, measure it without a GPU, and keep evaluation from spoiling it.

    meter()                                         what is allocated, reserved and free now
    predict("124M", batch=4, group=8, lora=16)      a `Budget` from the settings alone; print it
    measure("124M", batch=4, group=8, lora=16)      the same under a `Tap`: what really was allocated
    eval_scope(model), limit(8 * 2**30)             keep evaluation clean; make a big card fail like a small one
    allocator_settings()                            asked for, in force, and whether they agree
    record_history(path), allocator.replay(path)    what PyTorch's allocator did, and the simulator beside it

One interface over a CUDA device, a simulated card (a tap or `allocator.Allocator`) and this process. Nothing here
imports torch until it is called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import allocator
from .history import History, record_history
from .limits import limit
from .meter import CudaMeter, Meter, ProcessMeter, Reading, SimulatorMeter, meter
from .prediction import Budget, Phase, Term, layer_terms, predict
from .scope import EvalScope, ScopeReport, eval_scope
from .settings import AllocatorSettings, allocator_settings, explain
from .workload import Shape, Workload

if TYPE_CHECKING:
    from .measurement import Measured, measure
    from .tap import Tap

__all__ = [
    "AllocatorSettings", "Budget", "CudaMeter", "EvalScope", "History", "Measured", "Meter", "Phase", "ProcessMeter",
    "Reading", "ScopeReport", "Shape", "SimulatorMeter", "Tap", "Term", "Workload", "allocator", "allocator_settings",
    "eval_scope", "explain", "layer_terms", "limit", "measure", "meter", "predict", "record_history",
]  # fmt: skip

_WITH_TORCH = {"Measured": "measurement", "measure": "measurement", "Tap": "tap"}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"labkit.memory has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f".{_WITH_TORCH[name]}", __name__), name)
