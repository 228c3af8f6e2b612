"""Does one call of your training step move the parameters it should move, and only those?

It watches a model around `step()`, with hooks that are removed again. It does not judge where the parameters
should go: `accumulated_step` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .mistakes import first
from .report import Report, attempt, judged

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

    `step` takes no argument and makes one whole update: backward and optimizer step, on whatever data; wrap
    yours, `lambda: trainer.training_step(batch)`. `model` is the module that should learn; for some parameters,
    `nn.ParameterList(parameters)`. Any `torch.optim` optimizer is seen through a hook; an update by hand is judged
    by its result alone. The step is real: the model is trained by it. Memory: one copy of the parameters.

    True when: something moved; every parameter whose gradient was not zero at the optimizer's step moved; no
    frozen one did; nothing became NaN or inf; in bfloat16 and float16 parameters at least half of the entries with a
    gradient changed (the rest rounded away); and the first update, before any momentum, goes downhill.

    A trainer with float32 master weights copies to a bfloat16 model only what has added up: judge the master
    weights there. Raises: TypeError when `model` is no module, ValueError when it has no parameters.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"step_changes_parameters: model must be an nn.Module, got {type(model).__name__}")
    named = dict(model.named_parameters())
    if not named:
        raise ValueError("step_changes_parameters: the model has no parameters; pass the module that should learn")
    return judged("step_changes_parameters", CLAIM, step, _OneStep(step, model, named).judge)


@dataclass
class _Watch:
    """What the hooks saw while the step ran. Parameters go by their id."""

    optimizer_steps: int = 0
    held: set[int] = field(default_factory=set)  # parameters that some optimizer holds
    learning_rates: list[float] = field(default_factory=list)
    gradients: dict[int, Tensor] = field(default_factory=dict)  # at the first optimizer step
    fresh: bool = True  # no momentum before the first step
    maximize: bool = False
    backwards: int = 0  # gradients that autograd accumulated

    def note_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        self.gradients = {id(p): p.grad.detach().clone() for p in parameters if p.grad is not None}


@dataclass
class _OneStep:
    """The parameters around one call of `step`."""

    step: Callable[[], Any]
    model: nn.Module
    named: dict[str, nn.Parameter]

    def judge(self, seen: dict[str, Any]) -> str:
        self.before = {name: p.detach().clone() for name, p in self.named.items()}
        frozen = [name for name, p in self.named.items() if not p.requires_grad]
        with watching(self.named) as watch:
            attempt(self.step)
        if not watch.optimizer_steps:
            watch.note_gradients(self.named.values())
        now = dict(self.model.named_parameters())
        replaced = [name for name, p in self.named.items() if now.get(name) is not p]
        if replaced:
            seen["replaced"] = _short(replaced)
            return (
                "Parameters were replaced by new tensors during the step. An optimizer or a hook built before still "
                "holds the old ones; copy into them instead, or build the optimizer after."
            )
        self.slopes = {name: watch.gradients[id(p)] for name, p in self.named.items() if id(p) in watch.gradients}
        changed = [name for name, p in self.named.items() if not _identical(p.detach(), self.before[name])]
        whole = _norm(self.slopes.values())
        alive = [name for name, g in self.slopes.items() if not _norm([g]) <= NEGLIGIBLE * whole]
        stuck = [name for name in alive if name not in changed and name not in frozen]
        thawed = [name for name in changed if name in frozen]
        share, downhill = self._moved_share(), self._downhill()
        nonfinite = sum(int((~p.detach().isfinite()).sum()) for p in self.named.values())
        seen |= {
            "parameters": len(self.named),
            "changed": len(changed),
            "frozen": len(frozen),
            "without_gradient": sum(name not in self.slopes and name not in frozen for name in self.named),
            "nonfinite_entries": nonfinite,
            "optimizer_steps": watch.optimizer_steps,
            "learning_rate": max(watch.learning_rates, default=None),
            "gradient_norm": whole,
            "moved_share": share,
        }
        lists = {"stuck": stuck, "frozen_but_changed": thawed}
        seen |= {name: _short(value) for name, value in lists.items() if value}
        seen["cosine_with_descent"] = downhill
        if not changed and not nonfinite:
            return self._nothing_moved(watch, alive, seen)
        was_broken = nonfinite and not _finite(self.before.values())
        bad_gradient = nonfinite and not _finite(self.slopes.values())
        rounded = share is not None and share < MOVED
        unheld = watch.held and stuck and not any(id(self.named[name]) in watch.held for name in stuck)
        first_update = watch.fresh and not watch.maximize and watch.optimizer_steps <= 1
        uphill = downhill is not None and downhill < -0.5 and first_update
        return first(
            {
                "Parameters were NaN or inf before the step. Reload them from the last healthy checkpoint.": was_broken,
                "A gradient was NaN or inf and the optimizer stepped with it. Likely an overflow in the loss; skip the "
                "update when the gradient norm is not finite.": bad_gradient,
                "Parameters became NaN or inf with finite gradients. Likely the learning rate.": nonfinite,
                "A frozen parameter changed. Likely written by hand, or the optimizer was built before it was "
                "frozen.": thawed,
                "In low precision " + ROUNDED: rounded,
                "Parameters with a gradient stayed put, and no optimizer holds them. Likely the optimizer was built "
                "from other parameters, or before they were made trainable.": unheld,
                "Parameters with a gradient stayed put. Likely a parameter group with learning rate 0.": stuck,
                "The update goes up the gradient. Likely `p += lr * grad`, with the sign flipped.": uphill,
            }
        )

    def _moved_share(self) -> float | None:
        """Of the low-precision entries with a gradient, the share that moved; None where there are none."""
        low = [name for name in self.slopes if self.named[name].dtype in LOW_PRECISION]
        changed = [self.named[n].detach() != self.before[n] for n in low]
        moved = [c[self.slopes[n] != 0].float().cpu() for c, n in zip(changed, low, strict=True)]
        share = torch.cat([torch.zeros(0), *moved])
        return float(share.mean()) if len(share) else None

    def _downhill(self) -> float | None:
        """Cosine of the update with minus the gradient; None where either is missing."""
        if not self.slopes:
            return None
        moves = [self.named[n].detach().double() - self.before[n].double() for n in self.slopes]
        update = torch.cat([move.flatten() for move in moves])
        gradient = torch.cat([g.double().flatten() for g in self.slopes.values()])
        if not update.any() or not gradient.any():
            return None
        return float(torch.cosine_similarity(update, -gradient, dim=0))

    def _nothing_moved(self, watch: _Watch, alive: list[str], seen: dict[str, Any]) -> str:
        trainable = {id(p) for p in self.named.values() if p.requires_grad}
        stepped = watch.optimizer_steps > 0
        other_copy = stepped and not (trainable & watch.held)
        low = stepped and any(self.named[n].dtype in LOW_PRECISION for n in alive)
        rate_zero, no_gradient = alive and seen["learning_rate"] == 0, seen["without_gradient"] == len(trainable)
        return "Nothing moved: " + first(
            {
                "no parameter requires a gradient. Likely the model is frozen.": not trainable,
                "the optimizer that stepped holds none of this model's parameters. Likely it was built for another "
                "copy (before `.to()`, a deepcopy or a wrapper), or holds master weights.": other_copy,
                "the learning rate is 0. Likely the first step of a warm-up.": rate_zero,
                "in low precision " + ROUNDED: low,
                "the update is likely below the last place of the parameters: there is a gradient.": alive and stepped,
                f"backward ran, but no optimizer stepped. {NOT_STEPPED}": not stepped and watch.backwards,
                f"no backward, no optimizer step. {NOT_STEPPED}": not stepped,
                "every gradient was None when the optimizer stepped. Likely `zero_grad` between backward and step, a "
                "detached loss, or no backward.": no_gradient,
                "every gradient was exactly zero when the optimizer stepped. Likely all advantages are 0 (tied "
                "groups), the last micro-batch overwrote the others, or gradients were zeroed before.": True,
            }
        )


@contextmanager
def watching(named: dict[str, nn.Parameter]) -> Iterator[_Watch]:
    """Record optimizer steps and gradients of these parameters while the block runs. Leaves no hook behind."""
    watch = _Watch()
    ours = {id(p) for p in named.values()}

    def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        watch.optimizer_steps += 1
        for group in optimizer.param_groups:
            watch.held |= {id(p) for p in group["params"]}
            watch.learning_rates += [float(group["lr"])] if "lr" in group else []
            watch.maximize |= bool(group.get("maximize", False))
            watch.fresh &= not any(id(p) in ours and optimizer.state.get(p) for p in group["params"])
        if watch.optimizer_steps == 1:
            watch.note_gradients(named.values())

    def after_backward(p: Tensor) -> None:
        watch.backwards += 1

    trainable = [p for p in named.values() if p.requires_grad]
    handles = [register_optimizer_step_pre_hook(before_step)]
    handles += [p.register_post_accumulate_grad_hook(after_backward) for p in trainable]
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


def _identical(a: Tensor, b: Tensor) -> bool:
    """Bit for bit: NaN equals NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors)


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(sum(float(t.double().square().sum()) for t in tensors) ** 0.5)


def _short(names: list[str]) -> list[str]:
    return names[:NAMED] + ([f"and {len(names) - NAMED} more"] if len(names) > NAMED else [])
