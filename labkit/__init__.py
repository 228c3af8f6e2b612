"""labkit: make the failures of GRPO/GSPO training happen, see them, fix them, and keep the checks.

    run = await labkit.watch(train, policy="tiny", seed=0)     in a notebook: sandboxed, live, returns a Run
    run = labkit.sandbox.run(function, *args, timeout=60)      anywhere
    labkit.verdict("the KL stays low", kl, "<", 0.1, "nats")   prints PASS with both numbers, or raises
    f = labkit.exercise(check, mine, solution=theirs)          says how it did; returns what the cells below run
    labkit.explore(draw, share=(0, 1, 0.1), saved=[...])       one figure with knobs over what was computed before
    labkit.learning_curves({"bug": runs, "fix": runs})         the chance of a right answer, round by round
    labkit.checks.first_token(generate)                        a Report for your own function
    labkit.show(labkit.kl.k3)                                  the source, in the notebook
    labkit.diagnose("run.log")                                 the likely causes of what a log shows

Importing this package starts nothing and loads neither torch nor anything that draws. Besides the names in `__all__`,
every module of it is an attribute that loads on first use: `labkit.kl`, `labkit.grads`, `labkit.doctor`, ...
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from .events import Outcome, Run, Step
from .verdicts import verdict

if TYPE_CHECKING:
    from . import checks, grads, memory, sandbox
    from .callback import GuardCallback
    from .checklist import preflight
    from .display import diagnose, exercise, explore, learning_curves, playground, predict, show, table, watch
    from .sandbox import warm

__version__ = "0.1.0"

__all__ = [
    "GuardCallback",
    "Outcome",
    "Run",
    "Step",
    "checks",
    "diagnose",
    "exercise",
    "explore",
    "grads",
    "learning_curves",
    "memory",
    "playground",
    "predict",
    "preflight",
    "sandbox",
    "show",
    "table",
    "verdict",
    "warm",
    "watch",
]

_HOME = {"warm": ".sandbox", "GuardCallback": ".callback", "preflight": ".checklist"}
for _name in ("diagnose", "exercise", "explore", "learning_curves", "playground", "predict", "show", "table", "watch"):
    _HOME[_name] = ".display"
# Modules of labkit.grpo by their short names: `labkit.loss.gspo`. kl, grads and train have files, for `from labkit.kl`.
_CORE = ("advantage", "exam", "loss", "policy", "rollout", "task")


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name], __name__), name)
        globals()[name] = value
        return value
    if name in _CORE:
        return importlib.import_module(f".grpo.{name}", __name__)
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"labkit has no {name!r}; it has {', '.join(__all__)}, and its modules")


def __dir__() -> list[str]:
    return sorted(__all__)
