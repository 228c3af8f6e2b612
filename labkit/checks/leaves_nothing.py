"""Does an evaluation put everything back? It runs a stranger's evaluation under a tap that follows each storage.

On a CPU model `.cpu()` and `.to("cpu")` stand for the copy to the host that they would be on CUDA, so that a result
that was moved off the device does not count, and one that was not does. This file frees nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from labkit.common import format_size
from labkit.memory import Tap

from .mistakes import first
from .report import CannotJudge, Report, attempt, judged

CLAIM = "an evaluation keeps no tensor on the device, builds no graph and puts the modes back"
HINTS = {
    "grows": "Every call leaves more on the device. Likely a history, a cache or a list outside the function.",
    "held": "Something outside the function still holds a tensor of its call: an attribute, a global.",
    "returned": "The result is on the device. Return numbers, or `.cpu()` copies of what you need.",
    "gradients": "The model ran with gradients on: the graph goes at the end, after it cost its memory.",
    "grad mode": "Grad mode is not what it was. Use `with torch.inference_mode():`, which puts it back.",
    "modes": "The training flag changed in {modules}. Restore each module's own; `model.train()` sets them all.",
}
HOLDS_GRAPH = " It holds the graph too: run the model under torch.inference_mode()."


def leaves_nothing(evaluate: Callable[[nn.Module], Any], model: nn.Module) -> Report:
    """Judge `evaluate(model)`: called twice, with the model in training mode and one submodule in eval mode.

    Bytes on the model's device that are alive after a call and were not before it count, after a garbage
    collection: in what it returned, and anywhere else. The model must run, without gradients; each submodule's
    `training` flag and the caller's grad mode must be as before. The flags are put back when the check is done.
    TypeError when `model` is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"leaves_nothing: expected a torch module as model, got {type(model).__name__}")
    return judged("leaves_nothing", CLAIM, evaluate, lambda seen: _judge(evaluate, model, seen))


@dataclass
class _Call:
    """What one call left, in bytes, and how the model was run in it."""

    elsewhere: int
    returned: int
    forwards: int
    with_gradients: bool
    grad_mode: bool  # back as it was
    modes: list[str]  # submodules whose training flag is not what it was


def _judge(evaluate: Callable[..., Any], model: nn.Module, seen: dict[str, Any]) -> str:
    device = next((p.device.type for p in model.parameters()), "cpu")
    with _mixed_modes(model), Tap(device=device) as tap, _HostCopies(tap, device):
        tap.adopt(model)
        held = tap.allocated  # before the first call: what is left adds up
        calls = [_run(evaluate, model, tap, held) for _ in range(2)]
    if not all(c.forwards for c in calls):
        raise CannotJudge("The model did not run, so nothing was evaluated.", forwards=calls[-1].forwards)
    once, twice = calls
    kept, returned = max(c.elsewhere for c in calls), max(c.returned for c in calls)
    seen |= {
        "kept": format_size(kept),
        "in the result": format_size(returned),
        "grows with each call": twice.elsewhere > once.elsewhere,
        "gradients on inside": any(c.with_gradients for c in calls),
        "grad mode restored": all(c.grad_mode for c in calls),
        "modes restored": not any(c.modes for c in calls),
    }
    hint = first(
        HINTS,
        {
            "grows": seen["grows with each call"],
            "held": kept,
            "returned": returned,
            "gradients": seen["gradients on inside"],
            "grad mode": not seen["grad mode restored"],
            "modes": not seen["modes restored"],
        },
    ).format(modules=", ".join(once.modes[:3]))
    return hint + (HOLDS_GRAPH if seen["gradients on inside"] and (kept or returned) else "")


def _run(evaluate: Callable[..., Any], model: nn.Module, tap: Tap, before: int) -> _Call:
    """One call, counted against the bytes `before` the first."""
    seen = {"forwards": 0, "gradients": False}

    def before_forward(module: nn.Module, args: Any) -> None:
        seen["forwards"] += 1
        seen["gradients"] = seen["gradients"] or torch.is_grad_enabled()

    flags = [m.training for m in model.modules()]
    handle = model.register_forward_pre_hook(before_forward)
    try:
        result = attempt(evaluate, model)
        gc.collect()
        held = tap.allocated - before
        grad_mode = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        del result
        gc.collect()
        elsewhere = tap.allocated - before
    finally:
        handle.remove()
        torch.set_grad_enabled(True)
    names = [n or "the model" for n, m in model.named_modules()]
    modes = [n for n, m, was in zip(names, model.modules(), flags, strict=True) if m.training != was]
    for module, was in zip(model.modules(), flags, strict=True):
        module.training = was
    return _Call(elsewhere, held - elsewhere, seen["forwards"], bool(seen["gradients"]), grad_mode, modes)


@contextmanager
def _mixed_modes(model: nn.Module) -> Iterator[None]:
    """Training mode, except for one submodule without children: a blanket `model.train()` shows."""
    flags = [m.training for m in model.modules()]
    model.train()
    leaves = [m for m in model.modules() if m is not model and not list(m.children())]
    if leaves:
        leaves[-1].eval()
    try:
        yield
    finally:
        for module, was in zip(model.modules(), flags, strict=True):
            module.training = was


class _HostCopies(TorchFunctionMode):
    """On a CPU model, `.cpu()` and `.to("cpu")` make the copy that they make on CUDA, and the tap leaves it out."""

    def __init__(self, tap: Tap, device: str):
        super().__init__()
        self.tap, self.stands_in = tap, device == "cpu"

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.stands_in and _to_host(func, args, kwargs):
            with self.tap.host():
                out = func(*args, **kwargs)
                source = args[0].untyped_storage().data_ptr()
                return out.clone() if out.untyped_storage().data_ptr() == source else out
        return func(*args, **kwargs)


def _to_host(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    if func is torch.Tensor.cpu:
        return True
    if func is not torch.Tensor.to:
        return False
    target = kwargs.get("device", args[1] if len(args) > 1 else None)
    return isinstance(target, (str, torch.device)) and torch.device(target).type == "cpu"
