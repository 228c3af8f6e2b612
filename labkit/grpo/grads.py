"""What a trainer does to `.grad` and to parameters: accumulate, guard, check health, restore.

It knows no loss and no model architecture. Every function works on any `torch.nn.Module`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Update:
    """What one optimizer update did."""

    norm: float  # L2 norm of all gradients, before clipping; may be inf or NaN
    skipped: bool = False


Updater = Callable[[nn.Module, torch.optim.Optimizer], Update]
Accumulator = Callable[[Sequence[nn.Parameter], Sequence[torch.Tensor | None]], None]


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def apart_from(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[list[str], int]:
    """The trainable parameters that the optimizer does not have, and how many it has of others.

    An optimizer made before an adapter was added, or for a copy of the model, steps and moves
    nothing here.
    """
    stepped: set[int] = set()
    for group in optimizer.param_groups:
        stepped.update(map(id, group["params"]))
    missing = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in stepped:
            missing.append(name)
    return missing, len(stepped.difference(map(id, model.parameters())))


def shared_with(model: nn.Module, reference: nn.Module) -> list[str]:
    """The trainable parameters whose memory is the reference's too: it moves with the policy.

    A frozen base that an adapter's reference shares is none of them.
    """
    theirs: set[int] = set()
    for parameter in reference.parameters():
        if parameter.numel():  # an empty one has no memory, and the address 0
            theirs.add(parameter.data_ptr())
    shared = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.data_ptr() in theirs:
            shared.append(name)
    return shared


def dropouts(model: nn.Module) -> list[str]:
    """Where dropout acts in training mode, as "name p": modules, an adapter's too, and rates that a
    module applies itself."""
    found = []
    for name, module in model.named_modules():
        rates = {}
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rates[""] = module.p
        else:
            for key, value in vars(module).items():
                if "dropout" in key:
                    rates[key] = value
        for key, rate in rates.items():
            if isinstance(rate, float) and rate > 0:
                found.append(f"{'.'.join(filter(None, (name, key)))} {rate:g}")
    return found


def accumulate(params: Sequence[nn.Parameter], grads: Sequence[torch.Tensor | None]) -> None:
    """Add one micro-batch's gradients to what earlier ones left in `p.grad`: what `backward` does
    by itself.

    For gradients that are held apart, for example to weigh two objectives. The first one is copied,
    because the caller may reuse its buffer. None means: this micro-batch did not use the parameter.
    """
    for p, g in zip(params, grads, strict=True):
        if g is None:
            continue
        if p.grad is None:
            p.grad = g.detach().clone()
        else:
            p.grad.add_(g.detach())


def global_norm(params: Iterable[nn.Parameter]) -> float:
    """L2 norm over all gradients; one transfer from the device."""
    grads = [p.grad for p in params if p.grad is not None]
    if not grads:
        return 0.0
    return float(nn.utils.get_total_norm(grads))


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Update:
    """Measure the norm and step, whatever the norm is."""
    norm = global_norm(trainable(model))
    optimizer.step()
    return Update(norm)


def limited_step(max_norm: float | None) -> Updater:
    """An update that scales the gradients down to `max_norm`, as torch's `clip_grad_norm_` does,
    and then steps.

    It steps whatever the norm is: a NaN there makes every gradient NaN. `guard` does not. None:
    `plain_step`.
    """
    if max_norm is None:
        return plain_step

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Update:
        # the norm that it returns is the one before it was limited
        norm = nn.utils.clip_grad_norm_(trainable(model), max_norm)
        optimizer.step()
        return Update(float(norm))

    return step


def guard(max_norm: float = 0.3, skip_above: float = 10.0) -> Updater:
    """An update that clips to `max_norm`, and drops the update when the norm is above `skip_above`
    or not finite.

    The order matters: the norm is judged before clipping, because clipping multiplies every
    gradient by max_norm / norm, which is NaN when the norm is NaN.
    """
    for name, value in (("max_norm", max_norm), ("skip_above", skip_above)):
        if not value > 0:
            raise ValueError(f"guard: {name} = {value}: must be above 0")

    def guarded_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Update:
        params = trainable(model)
        norm = global_norm(params)
        if not norm <= skip_above:  # also true for NaN
            optimizer.zero_grad()
            return Update(norm, skipped=True)
        if norm > max_norm:
            nn.utils.clip_grads_with_norm_(params, max_norm, torch.tensor(norm))
        optimizer.step()
        return Update(norm)

    return guarded_step


def inner_update(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    losses: Iterable[torch.Tensor],
    update: Updater = plain_step,
    accumulate: Accumulator | None = None,
) -> Update:
    """One optimizer update from the losses of its micro-batches, which are already divided by the
    whole batch's tokens.

    losses      lazy, so that only one micro-batch's graph is alive at a time
    update      what happens to the accumulated gradients, for example `guard()`
    accumulate  (parameters, gradients) -> None, for a loop that holds its gradients apart; None:
                `backward`, which adds to `p.grad` itself and copies nothing
    """
    optimizer.zero_grad()
    params = trainable(model)
    for loss in losses:
        if accumulate is None:
            loss.backward()
        else:
            accumulate(params, torch.autograd.grad(loss, params, allow_unused=True))
    return update(model, optimizer)


@dataclass(frozen=True)
class Health:
    """True when every parameter is finite. `where` has the others."""

    where: dict[str, tuple[int, int]]  # name -> its counts of NaN and Inf

    def __bool__(self) -> bool:
        return not self.where

    @property
    def nonfinite(self) -> int:
        return sum(nan + inf for nan, inf in self.where.values())

    def __str__(self) -> str:
        if self:
            return "healthy: every parameter is finite"
        nans, infs = map(sum, zip(*self.where.values(), strict=True))
        total = f"{nans} NaN and {infs} Inf in {len(self.where)} parameters"
        first, (nan, inf) = next(iter(self.where.items()))
        return f"{total}, first {first} ({nan} NaN, {inf} Inf)"


@torch.no_grad()
def health(model: nn.Module) -> Health:
    """Is every parameter finite?

    One reduction per tensor and one transfer; the exact count only for a suspect.
    A tensor's sum (or norm) is not finite if any element is not, so a finite result clears the
    tensor. Huge but finite elements can overflow it: such a tensor is a suspect, and the exact
    count then clears it.
    """
    named = [(n, p) for n, p in model.named_parameters() if p.numel()]
    where: dict[str, tuple[int, int]] = {}
    if not named:
        return Health(where)
    totals = _sum_of_each([p.detach() for _, p in named])
    for i in (~totals.isfinite()).nonzero().flatten().tolist():  # the one transfer
        name, p = named[i]
        nan, inf = int(p.isnan().sum()), int(p.isinf().sum())
        if nan or inf:
            where[name] = nan, inf
    return Health(where)


def _sum_of_each(tensors: list[torch.Tensor]) -> torch.Tensor:
    """One float32 per tensor, not finite if any element is not."""
    # on CUDA a few fused kernels, not one per tensor
    if all(t.device.type == "cuda" for t in tensors):
        return torch.stack(torch._foreach_norm(tensors, ord=2, dtype=torch.float32))
    # half types in float32, so that the sum does not overflow at 65504
    sums = []
    for tensor in tensors:
        wide = torch.promote_types(tensor.dtype, torch.float32)
        sums.append(tensor.sum(dtype=wide).float().cpu())
    return torch.stack(sums)


class Snapshot:
    """A copy of the parameters on their device: the last healthy state to go back to."""

    def __init__(self, model: nn.Module):
        self.values = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def save(self, model: nn.Module) -> None:
        """Take the model's parameters as they are now."""
        torch._foreach_copy_(self.values, list(model.parameters()))

    @torch.no_grad()
    def load(self, model: nn.Module) -> None:
        """Put the copy into the model."""
        torch._foreach_copy_(list(model.parameters()), self.values)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """`load`, and forget gradients and optimizer state."""
        self.load(model)
        optimizer.zero_grad()
        optimizer.state.clear()  # Adam's moments were polluted by the same gradients
