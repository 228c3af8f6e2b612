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

from .report import Report, Verdict, attempt, judged

CLAIM = "one step moves the parameters that have a gradient, and no others"
LOW_PRECISION = (torch.bfloat16, torch.float16)
NEGLIGIBLE = 1e-5  # of the gradient's norm: such a parameter need not move
NAMED = 5  # names listed in the evidence


def step_changes_parameters(
    step: Callable[[], Any], model: nn.Module | Iterable[nn.Parameter], *, moved_share: float = 0.5
) -> Report:
    """Call `step()` once and compare `model`'s parameters before and after, bit by bit.

    `step` takes no argument and makes one whole update: backward and optimizer step, on whatever data; wrap
    yours, `lambda: trainer.training_step(batch)`. `model` is the module that should learn, or its parameters.
    Any `torch.optim` optimizer is seen through a hook; an update by hand is judged by its result alone. The
    step is real: the model is trained by it. Memory: one copy of the parameters.

    True when: something moved; every parameter whose gradient was not zero at the optimizer's step moved; no
    frozen one did; nothing became NaN or inf; in bfloat16 and float16 parameters at least `moved_share` of the
    entries with a gradient changed (the rest rounded away); and the first update, before any momentum, goes
    downhill along the gradient.

    `.seen`: counts of parameters (`changed`, `identical`, `frozen`, `without_gradient`, `nonfinite_entries`),
    optimizer steps, the learning rate, the norms of gradient and update, and for low precision the share that
    moved and `update_per_ulp`, the median update that SGD or Adam meant to make, in units of the last place
    (below 0.5 it rounds away).

    A trainer with float32 master weights copies to a bfloat16 model only what has added up: judge the master
    weights there.
    """
    named = _named(model)
    if not named:
        raise ValueError(
            "step_changes_parameters: the model has no parameters; pass the module that should learn"
        )
    trial = _Trial(step, model, named, moved_share)
    return judged("step_changes_parameters", CLAIM, step, trial.judge)


def _named(model: Any) -> dict[str, nn.Parameter]:
    if isinstance(model, nn.Module):
        return dict(model.named_parameters())
    if isinstance(model, Tensor):
        model = [model]
    try:
        named = {f"parameter {i}": p for i, p in enumerate(model)}
    except TypeError:
        named = {"": model}
    for p in named.values():
        if not isinstance(p, Tensor):
            raise TypeError(
                f"step_changes_parameters: model must be an nn.Module or its parameters, got {type(p).__name__}"
            )
    return named


@dataclass
class _Watch:
    """What the hooks saw while the step ran."""

    optimizer_steps: int = 0
    held: set[int] = field(default_factory=set)  # ids of parameters that some optimizer holds
    learning_rates: list[float] = field(default_factory=list)
    gradients: dict[int, Tensor] = field(default_factory=dict)  # by id, at the first optimizer step
    intended: dict[int, Tensor] = field(
        default_factory=dict
    )  # by id: |update| that SGD or Adam means to make
    fresh: bool = True  # no momentum before the first step
    maximize: bool = False
    backwards: int = 0  # gradients that autograd accumulated


@dataclass
class _Trial:
    step: Callable[[], Any]
    model: Any
    named: dict[str, nn.Parameter]
    moved_share: float

    def judge(self) -> Verdict:
        before = {name: p.detach().clone() for name, p in self.named.items()}
        frozen = [name for name, p in self.named.items() if not p.requires_grad]
        with watching(self.named) as watch:
            attempt(self.step)
        if not watch.optimizer_steps:
            for p in self.named.values():
                if p.grad is not None:
                    watch.gradients[id(p)] = p.grad.detach().clone()

        if isinstance(self.model, nn.Module):
            now = _named(self.model)
            replaced = [name for name, p in self.named.items() if now.get(name) is not p]
            if replaced:
                return False, {"replaced": _short(replaced)}, REPLACED
        changed = [name for name, p in self.named.items() if not _identical(p.detach(), before[name])]
        slopes = {name: watch.gradients[id(p)] for name, p in self.named.items() if id(p) in watch.gradients}
        norms = {name: _norm([g]) for name, g in slopes.items()}
        alive = [name for name, norm in norms.items() if not norm <= NEGLIGIBLE * _norm(slopes.values())]
        stuck = [name for name in alive if name not in changed and name not in frozen]
        thawed = [name for name in changed if name in frozen]
        missing = [name for name in self.named if name not in slopes and name not in frozen]
        shares, ulps = self._precision(before, slopes, watch)
        seen: dict[str, Any] = {
            "parameters": len(self.named),
            "changed": len(changed),
            "identical": len(self.named) - len(changed),
            "frozen": len(frozen),
            "without_gradient": len(missing),
            "nonfinite_entries": sum(int((~p.detach().isfinite()).sum()) for p in self.named.values()),
            "optimizer_steps": watch.optimizer_steps,
            "learning_rate": max(watch.learning_rates, default=float("nan")),
            "gradient_norm": _norm(slopes.values()),
            "update_norm": _norm(p.detach().double() - before[n].double() for n, p in self.named.items()),
            "moved_share": shares,
            "update_per_ulp": ulps,
        }
        lists = {"stuck": stuck, "frozen_but_changed": thawed}
        seen |= {name: _short(value) for name, value in lists.items() if value}
        downhill = self._downhill(before, slopes)
        seen["cosine_with_descent"] = downhill
        hint = self._cause(seen, watch, before, slopes, alive, stuck, thawed, downhill)
        return not hint, seen, hint

    def _precision(
        self, before: dict[str, Tensor], slopes: dict[str, Tensor], watch: _Watch
    ) -> tuple[float, float]:
        """Of low-precision entries with a gradient: the share that moved, and the median intended update in ulps.

        NaN, NaN where there are no such entries; the second is NaN too for optimizers other than SGD and Adam's kin.
        """
        moved, sizes = [torch.zeros(0)], [torch.zeros(0)]
        for name, g in slopes.items():
            p, old = self.named[name].detach(), before[name]
            if p.dtype in LOW_PRECISION:
                entries = g != 0
                moved.append((p != old)[entries].float().cpu())
                if id(self.named[name]) in watch.intended:
                    intended = watch.intended[id(self.named[name])].float().expand_as(p)
                    sizes.append((intended / _ulp(old))[entries].cpu())
        return float(torch.cat(moved).mean()), float(
            torch.cat(sizes).median() if len(sizes) > 1 else torch.nan
        )

    def _downhill(self, before: dict[str, Tensor], slopes: dict[str, Tensor]) -> float:
        """Cosine of the update with minus the gradient; NaN where either is missing."""
        pairs = [
            ((self.named[n].detach().double() - before[n].double()).flatten(), g.double().flatten())
            for n, g in slopes.items()
        ]
        if not pairs:
            return float("nan")
        update, gradient = (torch.cat(x) for x in zip(*pairs, strict=True))
        if not update.any() or not gradient.any():
            return float("nan")
        return float(torch.cosine_similarity(update, -gradient, dim=0))

    def _cause(
        self,
        seen: dict[str, Any],
        watch: _Watch,
        before: dict[str, Tensor],
        slopes: dict[str, Tensor],
        alive: list[str],
        stuck: list[str],
        thawed: list[str],
        downhill: float,
    ) -> str:
        if seen["nonfinite_entries"]:
            if any(not b.isfinite().all() for b in before.values()):
                return "Parameters were NaN or inf before the step. Reload them from the last healthy checkpoint."
            if any(not g.isfinite().all() for g in slopes.values()):
                return (
                    "A gradient was NaN or inf and the optimizer stepped with it. Likely an overflow in the loss; "
                    "skip the update when the gradient norm is not finite."
                )
            return "Parameters became NaN or inf with finite gradients. Likely the learning rate."
        if thawed:
            return "A frozen parameter changed. Likely written by hand, or the optimizer was built before freezing."
        if seen["changed"] == 0:
            return self._nothing_moved(seen, watch, alive)
        share = seen["moved_share"]
        if share < self.moved_share:
            return _rounded_away(share)
        if stuck:
            if watch.held and not any(id(self.named[name]) in watch.held for name in stuck):
                return (
                    "Parameters with a gradient stayed put, and no optimizer holds them. Likely the optimizer was "
                    "built from other parameters, or before they were made trainable."
                )
            return "Parameters with a gradient stayed put. Likely a parameter group with learning rate 0."
        if downhill < -0.5 and watch.fresh and not watch.maximize and watch.optimizer_steps <= 1:
            return (
                "The update goes up the gradient. Likely `p += lr * grad`: the sign of the update is flipped."
            )
        return ""

    def _nothing_moved(self, seen: dict[str, Any], watch: _Watch, alive: list[str]) -> str:
        trainable = {id(p) for p in self.named.values() if p.requires_grad}
        if not trainable:
            return "Nothing moved: no parameter requires a gradient. Likely the model is frozen."
        if watch.optimizer_steps and not (trainable & watch.held):
            return (
                "Nothing moved: the optimizer that stepped holds none of this model's parameters. Likely it was "
                "built for another copy (before `.to()`, a deepcopy or a wrapper), or holds master weights."
            )
        if alive and seen["learning_rate"] == 0:
            return "Nothing moved: the learning rate is 0. Likely the first step of a warm-up."
        if alive and watch.optimizer_steps:
            if any(self.named[n].dtype in LOW_PRECISION for n in alive):
                return _rounded_away(0.0)
            return (
                "Nothing moved, with a gradient. Likely the update is below the last place of the parameters."
            )
        if watch.optimizer_steps == 0:
            seen_so_far = (
                "backward ran, but no optimizer stepped"
                if watch.backwards
                else "no backward, no optimizer step"
            )
            return (
                f"Nothing moved: {seen_so_far}. Likely a guard skipped the update, an exception was swallowed, or an "
                "accumulation is not complete."
            )
        if seen["without_gradient"] == len(trainable):
            return (
                "Nothing moved: every gradient was None when the optimizer stepped. Likely `zero_grad` between "
                "backward and step, a detached loss, or no backward."
            )
        return (
            "Nothing moved: every gradient was exactly zero when the optimizer stepped. Likely all advantages are "
            "0 (tied groups), the last micro-batch overwrote the others, or gradients were zeroed before the step."
        )


def _rounded_away(share: float) -> str:
    return (
        f"Only {share:.0%} of the low-precision entries with a gradient moved: the update is smaller than half the "
        "last place, and rounds away. Likely bfloat16 parameters with a small learning rate: keep float32 "
        "parameters (autocast for the forward), or float32 master weights."
    )


REPLACED = (
    "Parameters were replaced by new tensors during the step. An optimizer or a hook built before still holds the "
    "old ones; copy into them instead, or build the optimizer after."
)


@contextmanager
def watching(named: dict[str, nn.Parameter]) -> Iterator[_Watch]:
    """Record optimizer steps and gradients of these parameters while the block runs. Leaves no hook behind."""
    watch = _Watch()
    ours = {id(p) for p in named.values()}

    def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        watch.optimizer_steps += 1
        groups = optimizer.param_groups
        for group in groups:
            watch.held |= {id(p) for p in group["params"]}
            watch.learning_rates.append(float(group.get("lr", float("nan"))))
            watch.maximize |= bool(group.get("maximize", False))
            for p in group["params"]:
                if id(p) in ours and optimizer.state.get(p):
                    watch.fresh = False
                if id(p) in ours and p.grad is not None and watch.optimizer_steps == 1:
                    rate = torch.as_tensor(float(group.get("lr", float("nan"))), device=p.device)
                    if isinstance(optimizer, torch.optim.SGD):
                        watch.intended[id(p)] = rate * p.grad.detach().float().abs()
                    elif "adam" in type(optimizer).__name__.lower():
                        watch.intended[id(p)] = rate  # about lr for each entry
        if watch.optimizer_steps == 1:
            for p in named.values():
                if p.grad is not None:
                    watch.gradients[id(p)] = p.grad.detach().clone()

    def after_backward(p: Tensor) -> None:
        watch.backwards += 1

    handles = [register_optimizer_step_pre_hook(before_step)]
    handles += [
        p.register_post_accumulate_grad_hook(after_backward) for p in named.values() if p.requires_grad
    ]
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


def _identical(a: Tensor, b: Tensor) -> bool:
    """Bit for bit: NaN equals NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _ulp(x: Tensor) -> Tensor:
    """The distance from |x| to the next number of its dtype, float32; that of the smallest normal below it."""
    limits = torch.finfo(x.dtype)
    _, exponent = torch.frexp(x.float().abs().clamp(min=limits.tiny))
    return torch.ldexp(torch.full_like(x, limits.eps, dtype=torch.float32), exponent - 1)


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(sum(float(t.double().square().sum()) for t in tensors) ** 0.5)


def _short(names: list[str]) -> list[str]:
    return names[:NAMED] + ([f"and {len(names) - NAMED} more"] if len(names) > NAMED else [])
