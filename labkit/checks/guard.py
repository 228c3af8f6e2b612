"""Does an update contain what a bad gradient would do? This file knows no model: it uses a small one of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labkit.common import number

from .mistakes import distance, joined, scale_of
from .report import PASS, Report, Verdict, attempt, fail, judged

NOT_FINITE = (math.nan, math.inf)
CLAIM = "a healthy gradient steps, a large one is clipped, an exploded or non-finite one changes nothing"


def guard(
    update: Callable[[nn.Module, torch.optim.Optimizer], Any], *, max_norm: float = 0.3, skip_above: float = 10.0
) -> Report:
    """Judge `update(model, optimizer)`, called when gradients are in `p.grad`, in place of `optimizer.step()`.

    It meets gradients of a small SGD model on both sides of each border:

        norm up to 0.9 max_norm            the step must be SGD's own
        1.1 max_norm to 0.99 skip_above    that of the gradient clipped to max_norm
        from 1.01 skip_above on            the parameters must stay bit-identical
        one entry NaN or inf               the same

    Where nothing may change it is asked once more with AdamW, which has moments: they must stay bit-identical too.
    What it returns does not matter. Source: the field report's contain layer.

    Raises: ValueError when max_norm is not above 0, skip_above not twice as large, or one is not finite.
    """
    if not 0 < 2 * max_norm <= skip_above < math.inf:
        raise ValueError(f"guard: expected 0 < 2 max_norm <= skip_above, got {max_norm} and {skip_above}")
    return judged("guard", CLAIM, update, lambda evidence: _judge(update, max_norm, skip_above, evidence))


class _Move(NamedTuple):
    """What one update did at learning rate 1 to a small model with this gradient."""

    gradient: Tensor
    move: Tensor

    @property
    def length(self) -> float:
        return float(self.move.norm())

    def along(self, length: float, tolerance: float) -> bool:
        """Whether it is a step of this length along the gradient."""
        return distance(self.move, self.gradient * (length / self.gradient.norm())) < tolerance


def _move(update: Callable[..., Any], norm: float, poison: float | None = None) -> _Move:
    """Update a model whose gradient has this norm, and `poison` for one entry."""
    model = nn.Linear(4, 3)
    gradient = torch.randn(15)
    gradient *= norm / gradient.norm()
    if poison is not None:
        gradient[6] = poison
    _give(model, gradient)
    before = joined(model.parameters())
    attempt(update, model, torch.optim.SGD(model.parameters(), lr=1.0))
    return _Move(gradient, before - joined(model.parameters()))


def _give(model: nn.Linear, gradient: Tensor) -> None:
    """Set the gradients of the weight, 12 entries, and of the bias, 3."""
    model.weight.grad, model.bias.grad = gradient[:12].view(3, 4).clone(), gradient[12:].clone()


def _disturbs(update: Callable[..., Any], norm: float, poison: float | None = None, at: int = 6) -> str:
    """Which of "parameters" and "moments" an update that is to be skipped changes, under AdamW after one step."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for gradient in (torch.randn(15), torch.randn(15)):
        gradient *= norm / gradient.norm()
        _give(model, gradient)
        if not optimizer.state:
            optimizer.step()
    if poison is not None:
        gradient[at] = poison
        _give(model, gradient)
    before = joined(model.parameters()), _moments(optimizer)
    attempt(update, model, optimizer)
    if not torch.equal(joined(model.parameters()), before[0]):
        return "parameters"
    return "" if torch.equal(_moments(optimizer), before[1]) else "moments"


def _moments(optimizer: torch.optim.Optimizer) -> Tensor:
    return joined(value for state in optimizer.state.values() for value in state.values())


def _judge(update: Callable[..., Any], max_norm: float, skip_above: float, evidence: dict[str, Any]) -> Verdict:
    def at(norm: float, poison: float | None = None) -> _Move:
        move = _move(update, norm, poison)
        evidence[f"moved at {number(norm if poison is None else poison)}"] = move.length
        return move

    for norm in (0.5 * max_norm, 0.9 * max_norm):
        move = at(norm)
        if not move.length:
            return fail("Likely no step for a healthy gradient, or a function that makes an update and is none.")
        if not move.along(norm, 1e-3):
            times = number(scale_of(move.move, move.gradient))
            return fail(f"A healthy step is not the plain one: along the gradient it is {times} times as long.")
    for poison in NOT_FINITE:
        if at(0.5 * skip_above, poison).length:
            whole = 10 * skip_above
            if _move(update, whole).along(whole, 1e-3):
                return fail("It neither clips nor skips: a NaN goes through, as every gradient does.")
            return fail("Likely clipped or compared after the fact: max_norm / NaN is NaN, and NaN > 10 is false.")
    limit = f"and the limit is {number(skip_above)}"
    middle = 0.5 * (max_norm + skip_above)
    for norm in (1.1 * max_norm, middle, 0.99 * skip_above):
        move = at(norm)
        if not move.length:
            return fail(f"A norm of {number(norm)} is skipped, {limit}.")
        # In the middle, too: just above the limit a clip of single entries may have rested.
        for step in (move, _move(update, middle)):
            if not step.along(step.length, 1e-2):
                return fail("Clipping turns the gradient. Likely entry by entry, or each parameter: use one factor.")
        if not move.along(max_norm, 1e-2):
            length = f"{number(max_norm)} times lr, not by {number(move.length)}"
            return fail(f"Likely not clipped to max_norm: a large gradient should move parameters by {length}.")
    # What a skip leaves behind in an optimizer that remembers gradients is asked with each.
    weight, bias = 6, 13  # an entry of each
    for norm in (1.01 * skip_above, 10 * skip_above):
        if at(norm).length:
            return fail(f"A norm of {number(norm)} is not skipped, {limit}: it is to change nothing, bit by bit.")
    skips: list[tuple[float, float | None, int]] = [(10 * skip_above, None, weight)]
    for poison in NOT_FINITE:
        skips += [(0.5 * skip_above, poison, weight), (0.5 * skip_above, poison, bias)]
    for norm, poison_, place in skips:
        changed = _disturbs(update, norm, poison_, place)
        evidence["a skip changes under AdamW"] = changed or "nothing"
        if changed and place == bias:
            return fail("A gradient that is not finite in the bias alone is not skipped. Ask every parameter.")
        if changed:
            return fail(
                f"With AdamW a skipped update changes the {changed}: likely the optimizer steps, on gradients of zero "
                "or with the weights put back after. Its moments move, and after a NaN every later update is NaN. "
                "Do not call `optimizer.step()` at all."
            )
    return PASS
