"""Memory: read it (`meter`), keep evaluation from spoiling it (`eval_scope`), limit it, see what the allocator obeys.

One interface over a CUDA device, a simulated card (a tap or an allocator) and this process. Nothing here imports torch
until it is called. What a run *will* need is in `labkit.budget`; what each block holds, in `labkit.tap`.
"""

from .history import History, record_history
from .limits import limit
from .meter import CudaMeter, Meter, ProcessMeter, Reading, SimulatorMeter, meter
from .scope import EvalScope, ScopeReport, eval_scope
from .settings import AllocatorSettings, allocator_settings, explain

__all__ = [
    "AllocatorSettings",
    "CudaMeter",
    "EvalScope",
    "History",
    "Meter",
    "ProcessMeter",
    "Reading",
    "ScopeReport",
    "SimulatorMeter",
    "allocator_settings",
    "eval_scope",
    "explain",
    "limit",
    "meter",
    "record_history",
]
