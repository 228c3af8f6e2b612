"""GRPO and GSPO, written out to be read. Nothing here draws, and nothing here starts a process.

    from labkit.grpo import Sampling, k2, train

    for step in train("add", kl=k2, sampling=Sampling(num_samples=16)):
        print(step.reward)

Read it in this order:

    train.py       the whole loop, from top to bottom: open this first
    task.py        prompts with a right answer, and the reward that checks one
    policy.py      load a model; the log-probabilities of tokens
    rollout.py     sample a group of completions for each prompt
    advantage.py   how much better is a completion than the others of its group?
    batch.py       a round's completions with their rewards, advantages, and the log-probs of old
                   policy and reference
    loss.py        the clipped loss of GRPO and of GSPO, token by token
    kl.py          estimators of the KL to the reference
    grads.py       what happens to gradients and parameters: limit, guard, health, restore
    record.py      what a log shows of an update
    exam.py        the chance of a right answer, exactly, on prompts that no run trains on

A name below loads its file, and so torch, when it is first used.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .advantage import group_advantage
    from .batch import Batch
    from .grads import guard
    from .kl import AdaptiveBeta, k1, k2, k3, k3_clamped, k3_linear_tail
    from .loss import gspo
    from .policy import Policy, load
    from .rollout import generate
    from .train import Hooks, Safety, Sampling, train

__all__ = [
    "AdaptiveBeta",
    "Batch",
    "Hooks",
    "Policy",
    "Safety",
    "Sampling",
    "generate",
    "group_advantage",
    "gspo",
    "guard",
    "k1",
    "k2",
    "k3",
    "k3_clamped",
    "k3_linear_tail",
    "load",
    "train",
]

_HOME = {"Hooks": "train", "Safety": "train", "Sampling": "train", "train": "train"}
_HOME |= {"Batch": "batch", "Policy": "policy", "load": "policy", "generate": "rollout"}
_HOME |= {"group_advantage": "advantage", "gspo": "loss", "guard": "grads"}
_HOME |= {
    "k1": "kl",
    "k2": "kl",
    "k3": "kl",
    "k3_clamped": "kl",
    "k3_linear_tail": "kl",
    "AdaptiveBeta": "kl",
}


class _Face(ModuleType):
    """`labkit.grpo.train` is the function, whatever was imported before.

    Python binds a submodule in its package when it is first imported, and would put the file
    train.py there.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "train" and isinstance(value, ModuleType):
            value = value.train
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(
        f"labkit.grpo has no {name!r}; it has {', '.join(__all__)}, and its modules"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
