"""Does a function that puts gradients into `p.grad` add them up over micro-batches?

It knows no loss and no optimizer: a whole optimizer step is judged by `accumulated_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.common import number

from .mistakes import distance, first, joined, nearest, scale_of
from .report import Caution, Raised, Report, attempt, judged

CLAIM = "p.grad is the sum over the micro-batches"
SHAPES = ((3, 4), (5,), (2, 2, 2))
ALIAS = (
    "`p.grad = g` keeps a reference to the caller's buffer: wrong as soon as the caller writes to it again. The first "
    "time, write `p.grad = g.clone()`."
)


def accumulation(accumulate: Callable[..., Any], *, reuses_buffers: bool | None = None) -> Report:
    """Check that `accumulate(params, grads)`, called once per micro-batch, leaves the sum in every `p.grad`.

    `params` is a list of three float32 `nn.Parameter`s. `grads` is a list with one tensor per parameter, or, if the
    function raises on a list, one flat vector of all of them end to end. What it returns is ignored.

    Tried in turn: from `p.grad = None`; on a gradient that is already there; with the caller's buffers overwritten
    between the calls; with None for an unused parameter (lists only); with a bfloat16 parameter and float32 gradients.
    On the last two a wrong sum fails, while an exception is only noted in `.seen`: it is loud by itself.

        reuses_buffers  whether your trainer writes to its gradient buffers again. Keeping a reference to one
                        (`p.grad = g`) then fails (True), is harmless (False), or passes with a caution (None)
    """
    return judged("accumulation", CLAIM, accumulate, lambda seen: _judge(accumulate, reuses_buffers, seen))


@dataclass(frozen=True)
class _Scenario:
    """One way in which `accumulate` is called."""

    flat: bool
    existing: bool = False  # there is a gradient already
    reuse: bool = False  # the caller's buffers are overwritten between the calls
    unused: bool = False  # one micro-batch has None for one parameter
    dtype: torch.dtype = torch.float32  # of the first parameter


def _judge(accumulate: Callable[..., Any], reuses_buffers: bool | None, seen: dict[str, Any]) -> str:
    flat = _takes_vector(accumulate)
    seen |= {"grads": "flat vector" if flat else "list", "micro_batches": 3}
    scenarios = {"from_none": _Scenario(flat), "onto_existing": _Scenario(flat, existing=True)}
    if reuses_buffers is not False:
        scenarios["reused_buffers"] = _Scenario(flat, reuse=True)
    optional = {} if flat else {"unused_parameter": _Scenario(flat, unused=True)}
    optional["bfloat16_parameter"] = _Scenario(flat, dtype=torch.bfloat16)
    hints = []
    for name, scenario in (scenarios | optional).items():
        try:
            error, hint = _run(accumulate, scenario)
        except Raised as raised:
            if name not in optional:
                raise
            seen[name] = f"raises {type(raised.__cause__).__name__}"
            continue
        seen[name] = round(error, 4)  # what is less is rounding, another on every machine
        hints.append(Caution(hint) if hint == ALIAS and not reuses_buffers else hint)
    wrong = [hint for hint in hints if hint and not isinstance(hint, Caution)]
    return next(iter(wrong or filter(None, hints)), "")


def _takes_vector(accumulate: Callable[..., Any]) -> bool:
    """Whether the function raises on a list, and does not on a vector."""
    for flat in (False, True):
        try:
            _run(accumulate, _Scenario(flat))
            return flat
        except Raised:
            pass
    return False


def _run(accumulate: Callable[..., Any], scenario: _Scenario) -> tuple[float, str]:
    """Three calls -> (relative error of the sum, hint or "")."""
    rng = torch.Generator().manual_seed(1)
    draws = [[torch.randn(shape, generator=rng, dtype=torch.float32) for shape in SHAPES] for _ in range(4)]
    params, micro = [nn.Parameter(x) for x in draws[0]], draws[1:]
    params[0].data = params[0].data.to(scenario.dtype)
    values = [p.detach().clone() for p in params]
    before = [torch.full_like(g, 0.5 if scenario.existing else 0.0) for g in micro[0]]
    for p, g in zip(params, before, strict=True):
        p.grad = g.to(p.dtype, copy=True) if scenario.existing else None
    if scenario.unused:
        micro[1][1].zero_()  # what None stands for

    lent: list[Tensor] = []
    written = keeps = False
    for k, grads in enumerate(micro):
        fresh = [torch.cat([g.flatten() for g in grads])] if scenario.flat else [g.clone() for g in grads]
        if scenario.reuse and lent:
            fresh = [buffer.copy_(g) for buffer, g in zip(lent, fresh, strict=True)]
        lent, kept = fresh, [g.clone() for g in fresh]
        given = [None if scenario.unused and k == i == 1 else g for i, g in enumerate(lent)]
        attempt(accumulate, list(params), lent[0] if scenario.flat else given)
        written |= any(not torch.equal(a, b) for a, b in zip(lent, kept, strict=True))
        keeps |= bool(_storages(lent) & _storages(p.grad for p in params))

    found = joined([torch.zeros_like(p) if p.grad is None else p.grad for p in params])
    sums = [joined(grads) for grads in micro]
    want = joined(before) + sum(sums)
    error = distance(found, want)
    if any(not torch.equal(p.detach(), v) for p, v in zip(params, values, strict=True)):
        return error, "A parameter's value changed. Likely an optimizer step or a write to p.data inside."
    if keeps and scenario.reuse:
        return error, ALIAS
    if error > (1e-5 if scenario.dtype == torch.float32 else 2e-2):
        if all(p.grad is None for p in params):
            nothing = "Every p.grad is None. Likely nothing is written: the gradients go into a copy, or into p.data."
            return error, nothing
        return error, _cause(found, want, sums, joined(before), scenario)
    if written and not keeps:
        return error, "The caller's gradient was written to, and not through p.grad. Likely `g.zero_()` or `g.mul_()`."
    return error, ""


def _cause(found: Tensor, want: Tensor, micro: list[Tensor], before: Tensor, scenario: _Scenario) -> str:
    """Compare what is in p.grad with what each usual mistake would leave there."""
    added = want - before
    mistakes = {
        "p.grad is zero. Likely it is zeroed after adding.": 0 * want,
        "p.grad is as it was before. Likely the gradients are computed and never added.": before,
        "Only the last micro-batch is left. Likely `p.grad.copy_(g)` or `p.grad = g` where `p.grad.add_(g)` belongs, "
        "or the gradients are zeroed in every call.": micro[-1],
        "Only the first micro-batch is left. Likely the branch for an existing p.grad adds nothing.": micro[0],
        "The sum has the wrong sign. Likely `sub_`, or a minus that belongs to the loss.": before - added,
        "The mean, not the sum. Likely divided here; divide the loss instead.": before + added / len(micro),
        "The last micro-batch is missing. Likely off by one in the loop.": want - micro[-1],
        "The first micro-batch is missing. Likely off by one: it is zeroed after the first.": want - micro[0],
    }
    if scenario.existing:
        mistakes = {"The gradient that was there is lost. Likely zeroed in the first call.": added} | mistakes
    known, scale = nearest(found, mistakes, 1e-4), scale_of(found, want)
    scaled = distance(found, scale * want) < 1e-4
    one_off = max(float(((found.roll(shift) - want).abs() < 1e-4).float().mean()) for shift in (-1, 1))
    finite = found.isfinite().all()
    return known or first(
        {
            "p.grad holds NaN or inf. Likely it was made with torch.empty and never filled.": not finite,
            "Wrong only when the caller reuses its gradient buffer between the calls. Likely a view or a list of the "
            "gradients is kept: copy them.": scenario.reuse,
            f"The sum times {number(scale)}. Likely a scale that belongs to the loss is applied here.": scaled,
            "Gradients sit one entry off. Likely the offset into the flat vector is off by one.": one_off > 0.6,
            "Some p.grad is not the sum, in no known pattern. Compare p.grad with the sum after each call.": True,
        }
    )


def _storages(tensors: Iterable[Tensor | None]) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors if t is not None}
