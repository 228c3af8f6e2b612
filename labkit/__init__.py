"""labkit: make the failures of GRPO/GSPO training happen, see them, fix them, and keep the checks.

    run = await labkit.watch(train, policy="tiny", seed=0)     in a notebook: sandboxed, live, returns a Run
    run = labkit.sandbox.run(function, *args, timeout=60)      anywhere
    labkit.verdict("crash in round 2", condition, "what was seen")
    labkit.checks.first_token(generate)                        a Report for your own function
    labkit.show(labkit.kl.k3)                                  the source, in the notebook

Importing this package is cheap: everything else, torch included, loads on first use. In a notebook's kernel it also
starts the sandbox's server, so that the first run need not wait for torch.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
from typing import Any

from .events import Outcome, Run, Step
from .verdicts import VerdictError, verdict

__version__ = "0.1.0"

_FUNCTIONS = {
    "watch": "dashboard",
    "playground": "controls",
    "show": "source",
    "predict": "quiz",
    "exercise": "quiz",
    "table": "tables",
    "recording": "recorded",
}
_MODULES = [
    "advantage", "allocator", "budget", "checks", "course", "dashboard", "doctor", "events", "grads", "kl", "loss",
    "memory", "policy", "quiz", "recordings", "rollout", "sandbox", "segments", "tables", "tap", "task", "train",
]  # fmt: skip

__all__ = ["Outcome", "Run", "Step", "VerdictError", "verdict", *_FUNCTIONS, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        value = getattr(importlib.import_module(f".{_FUNCTIONS[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"labkit has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _in_a_kernel() -> bool:
    module = sys.modules.get("IPython")
    return module is not None and getattr(module.get_ipython(), "kernel", None) is not None


if _in_a_kernel():  # the sandbox's server imports torch while the notebook reads on
    importlib.import_module(".sandbox", __name__).warm()
    # or a restart waits 0.9 s for the collector's last walk over all that torch and transformers made
    atexit.register(gc.freeze)
