"""Does one call of your training step move the parameters it should move, and only those?

It watches a model around `step()`, with hooks that are removed again. It does not judge where the parameters
should go: `accumulated_step` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .report import PASS, Report, Verdict, attempt, fail, judged

CLAIM = "one step moves the parameters that have a gradient, and no others"
LOW_PRECISION = (torch.bfloat16, torch.float16)
NEGLIGIBLE = 1e-5  # of the gradient's norm: such a parameter need not move
MOVED = 0.5  # of the low-precision entries with a gradient; the rest rounded away
NAMED = 5  # names listed in the evidence
ROUNDED = (
    "the update rounds away: it is smaller than half the last place of most entries (`moved_share`). Keep float32 "
    "parameters (autocast for the forward), or float32 master weights."
)
NOT_STEPPED = "Likely a guard skipped the update, an exception was swallowed, or an accumulation is not complete."


def step_changes_parameters(step: Callable[[], Any], model: nn.Module) -> Report:
    """Call `step()` once and compare `model`'s parameters before and after, bit by bit.

    `step` takes no argument and makes one whole update, which trains the model: `lambda: trainer.training_step(batch)`.
    `model` is the module that should learn; for some parameters, `nn.ParameterList(parameters)`. Any `torch.optim`
    optimizer is seen through a hook; an update by hand is judged by its result alone.

    True when: something moved; every parameter whose gradient was not zero at the optimizer's step moved; no frozen one
    did; nothing became NaN or inf; in half precision at least half of the entries with a gradient changed (the rest
    rounded away). Of a trainer with float32 master weights, judge those.

    Raises: TypeError when `model` is no module, ValueError when it has no parameters.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"step_changes_parameters: model must be an nn.Module, got {type(model).__name__}")
    if not list(model.parameters()):
        raise ValueError("step_changes_parameters: the model has no parameters; pass the module that should learn")
    return judged("step_changes_parameters", CLAIM, step, lambda evidence: _judge(step, model, evidence))


@dataclass
class _Watch:
    """What the hooks saw while the step ran. Parameters go by their id."""

    optimizer_steps: int = 0
    held: set[int] = field(default_factory=set)  # parameters that some optimizer holds
    learning_rates: list[float] = field(default_factory=list)
    gradients: dict[int, Tensor] = field(default_factory=dict)  # at the first optimizer step, else at the end
    backwards: int = 0  # gradients that autograd accumulated


def _judge(step: Callable[[], Any], model: nn.Module, evidence: dict[str, Any]) -> Verdict:
    named = dict(model.named_parameters())
    before = {name: p.detach().clone() for name, p in named.items()}
    trainable = {name for name, p in named.items() if p.requires_grad}
    with watching(list(named.values())) as watch:
        attempt(step)
    now = dict(model.named_parameters())
    replaced = [name for name, p in named.items() if now.get(name) is not p]
    if replaced:
        evidence["replaced"] = replaced[:NAMED]
        return fail(
            "Parameters were replaced by new tensors during the step. An optimizer or a hook built before still holds "
            "the old ones; copy into them instead, or build the optimizer after."
        )

    slopes = {name: watch.gradients[id(p)] for name, p in named.items() if id(p) in watch.gradients}
    norm = _norm(slopes.values())
    alive = {name for name, g in slopes.items() if not _norm([g]) <= NEGLIGIBLE * norm}
    changed = [name for name, p in named.items() if not _same(p.detach(), before[name])]
    stuck = [name for name in slopes if name in alive & trainable and name not in changed]
    frozen_but_changed = [name for name in changed if name not in trainable]
    broken = sum(int((~p.detach().isfinite()).sum()) for p in named.values())
    low = {name for name in slopes if named[name].dtype in LOW_PRECISION}
    moved_share = _moved_share([(named[name], before[name], slopes[name]) for name in slopes if name in low])
    evidence |= {"parameters": len(named), "changed": len(changed), "frozen": len(named) - len(trainable)}
    evidence |= {"without_gradient": len(trainable - set(slopes)), "nonfinite_entries": broken}
    evidence |= {"optimizer_steps": watch.optimizer_steps, "learning_rate": max(watch.learning_rates, default=None)}
    evidence |= {"gradient_norm": norm, "moved_share": moved_share}
    if stuck:
        evidence["stuck"] = stuck[:NAMED]
    if frozen_but_changed:
        evidence["frozen_but_changed"] = frozen_but_changed[:NAMED]

    held = {name for name, p in named.items() if id(p) in watch.held}
    if not changed and not broken:
        return fail("Nothing moved: " + _why_nothing_moved(evidence, watch, trainable, held, alive, bool(low & alive)))
    if broken and not all(bool(value.isfinite().all()) for value in before.values()):
        return fail("Parameters were NaN or inf before the step. Reload them from the last healthy checkpoint.")
    if broken and not math.isfinite(norm):
        return fail(
            "A gradient was NaN or inf and the optimizer stepped with it. Likely an overflow in the loss; skip the "
            "update when the gradient norm is not finite."
        )
    if broken:
        return fail("Parameters became NaN or inf with finite gradients. Likely the learning rate.")
    if frozen_but_changed:
        return fail("A frozen parameter changed. Likely by hand, or the optimizer was built before it was frozen.")
    if moved_share is not None and moved_share < MOVED:
        return fail("In low precision " + ROUNDED)
    if stuck and held and not held & set(stuck):
        return fail(
            "Parameters with a gradient stayed put, and no optimizer holds them. Likely the optimizer was built from "
            "other parameters, or before they were made trainable."
        )
    if stuck:
        return fail("Parameters with a gradient stayed put. Likely a parameter group with learning rate 0.")
    return PASS


def _moved_share(parameters: list[tuple[Tensor, Tensor, Tensor]]) -> float | None:
    """Of the entries with a gradient, the share that moved: (now, before, gradient) of each parameter."""
    entries = with_gradient = 0
    for now, before, gradient in parameters:
        counts = gradient != 0
        with_gradient += int(counts.sum())
        entries += int((now != before)[counts].sum())
    return entries / with_gradient if with_gradient else None


def _why_nothing_moved(
    evidence: dict[str, Any], watch: _Watch, trainable: set[str], held: set[str], alive: set[str], low: bool
) -> str:
    if not trainable:
        return "no parameter requires a gradient. Likely the model is frozen."
    if not watch.optimizer_steps:
        ran = "backward ran, but no optimizer stepped" if watch.backwards else "no backward, no optimizer step"
        return f"{ran}. {NOT_STEPPED}"
    if not trainable & held:
        return (
            "the optimizer that stepped holds none of this model's parameters. Likely it was built for another copy "
            "(before `.to()`, a deepcopy or a wrapper), or holds master weights."
        )
    if alive and evidence["learning_rate"] == 0:
        return "the learning rate is 0. Likely the first step of a warm-up."
    if low:
        return "in low precision " + ROUNDED
    if alive:
        return "the update is likely below the last place of the parameters: there is a gradient."
    if evidence["without_gradient"] == len(trainable):
        return (
            "every gradient was None when the optimizer stepped. Likely `zero_grad` between backward and step, a "
            "detached loss, or no backward."
        )
    return (
        "every gradient was exactly zero when the optimizer stepped. Likely all advantages are 0 (tied groups), "
        "the last micro-batch overwrote the others, or gradients were zeroed before."
    )


@contextmanager
def watching(parameters: list[nn.Parameter]) -> Iterator[_Watch]:
    """Record optimizer steps and gradients of these parameters while the block runs. Leaves no hook behind."""
    watch = _Watch()

    def note_gradients() -> None:
        watch.gradients = {id(p): p.grad.detach().clone() for p in parameters if p.grad is not None}

    def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        watch.optimizer_steps += 1
        for group in optimizer.param_groups:
            watch.held |= {id(p) for p in group["params"]}
            watch.learning_rates += [float(group["lr"])] if "lr" in group else []
        if watch.optimizer_steps == 1:
            note_gradients()

    def after_backward(p: Tensor) -> None:
        watch.backwards += 1

    handles = [register_optimizer_step_pre_hook(before_step)]
    handles += [p.register_post_accumulate_grad_hook(after_backward) for p in parameters if p.requires_grad]
    try:
        yield watch
        if not watch.optimizer_steps:
            note_gradients()
    finally:
        for handle in handles:
            handle.remove()


def _same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit: NaN equals NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(sum(float(t.double().square().sum()) for t in tensors) ** 0.5)
