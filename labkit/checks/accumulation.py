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

from .mistakes import distance, joined, nearest, scale_of
from .report import PASS, Raised, Report, Verdict, attempt, caution, fail, judged

CLAIM = "p.grad is the sum over the micro-batches"
SHAPES = ((3, 4), (5,), (2, 2, 2))
ALIAS = (
    "`p.grad = g` keeps a reference to the caller's buffer: wrong as soon as the caller writes to it again. The first "
    "time, write `p.grad = g.clone()`."
)


def accumulation(accumulate: Callable[..., Any], *, reuses_buffers: bool = False) -> Report:
    """Check that `accumulate(params, grads)`, called once per micro-batch, leaves the sum in every `p.grad`.

    `params` is a list of three float32 `nn.Parameter`s. `grads` is a list with one tensor per parameter, or, if the
    function raises on a list, one flat vector of all of them end to end. What it returns is ignored.

    Tried in turn: from `p.grad = None`; on a gradient that is already there; with the caller's buffers overwritten
    between the calls; with None for an unused parameter (lists only); with a bfloat16 parameter and float32 gradients.
    On the last two a wrong sum fails, while an exception is only noted in `.seen`: it is loud by itself.

        reuses_buffers  whether your trainer writes to its gradient buffers again. Keeping a reference to one
                        (`p.grad = g`) then fails; otherwise it passes with a caution
    """

    def judge(evidence: dict[str, Any]) -> Verdict:
        flat = _takes_vector(accumulate)
        evidence |= {"grads": "flat vector" if flat else "list", "micro_batches": 3}
        keeps_a_reference = False
        for name, scenario in _scenarios(flat).items():
            try:
                error, hint = _run(accumulate, scenario)
            except Raised as raised:
                if not scenario.optional:
                    raise
                evidence[name] = f"raises {type(raised.__cause__).__name__}"
                continue
            evidence[name] = round(error, 4)  # what is less is rounding, another on every machine
            if hint == ALIAS and not reuses_buffers:
                keeps_a_reference = True
            elif hint:
                return fail(hint)
        return caution(ALIAS) if keeps_a_reference else PASS

    return judged("accumulation", CLAIM, accumulate, judge)


@dataclass(frozen=True)
class _Scenario:
    """One way in which `accumulate` is called."""

    flat: bool
    existing: bool = False  # there is a gradient already
    reuse: bool = False  # the caller's buffers are overwritten between the calls
    unused: bool = False  # one micro-batch has None for one parameter
    dtype: torch.dtype = torch.float32  # of the first parameter

    @property
    def optional(self) -> bool:
        return self.unused or self.dtype != torch.float32


def _scenarios(flat: bool) -> dict[str, _Scenario]:
    scenarios = {"from_none": _Scenario(flat), "onto_existing": _Scenario(flat, existing=True)}
    scenarios["reused_buffers"] = _Scenario(flat, reuse=True)
    if not flat:  # a vector has no place for None
        scenarios["unused_parameter"] = _Scenario(flat, unused=True)
    scenarios["bfloat16_parameter"] = _Scenario(flat, dtype=torch.bfloat16)
    return scenarios


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
    # 1. The parameters, and the gradients of three micro-batches.
    rng = torch.Generator().manual_seed(1)
    draws = [[torch.randn(shape, generator=rng, dtype=torch.float32) for shape in SHAPES] for _ in range(4)]
    params = [nn.Parameter(x) for x in draws[0]]
    micro = draws[1:]
    params[0].data = params[0].data.to(scenario.dtype)
    values = [p.detach().clone() for p in params]
    before = [torch.full_like(g, 0.5 if scenario.existing else 0.0) for g in micro[0]]
    for p, g in zip(params, before, strict=True):
        p.grad = g.to(p.dtype, copy=True) if scenario.existing else None
    if scenario.unused:
        micro[1][1].zero_()  # what None stands for

    # 2. One call for each. `lent` are the caller's own buffers.
    lent: list[Tensor] = []
    written = keeps = False
    for k, grads in enumerate(micro):
        fresh = [torch.cat([g.flatten() for g in grads])] if scenario.flat else [g.clone() for g in grads]
        if scenario.reuse and lent:
            for buffer, g in zip(lent, fresh, strict=True):
                buffer.copy_(g)
        else:
            lent = fresh
        copies = [g.clone() for g in lent]
        argument: Any = lent[0] if scenario.flat else list(lent)
        if scenario.unused and k == 1:
            argument[1] = None
        attempt(accumulate, list(params), argument)
        written |= any(not torch.equal(a, b) for a, b in zip(lent, copies, strict=True))
        keeps |= bool(_storages(lent) & _storages(p.grad for p in params if p.grad is not None))

    # 3. What is in p.grad now?
    result = joined([torch.zeros_like(p) if p.grad is None else p.grad for p in params])
    sums = [joined(grads) for grads in micro]
    want = joined(before) + sum(sums)
    error = distance(result, want)
    if any(not torch.equal(p.detach(), value) for p, value in zip(params, values, strict=True)):
        return error, "A parameter's value changed. Likely an optimizer step or a write to p.data inside."
    if keeps and scenario.reuse:
        return error, ALIAS
    if error > (1e-5 if scenario.dtype == torch.float32 else 2e-2):
        if all(p.grad is None for p in params):
            hint = "Every p.grad is None. Likely nothing is written: the gradients go into a copy, or into p.data."
            return error, hint
        return error, _cause(result, want, sums, joined(before), scenario)
    if written and not keeps:
        return error, "The caller's gradient was written to, and not through p.grad. Likely `g.zero_()` or `g.mul_()`."
    return error, ""


def _cause(result: Tensor, want: Tensor, micro: list[Tensor], before: Tensor, scenario: _Scenario) -> str:
    """Compare what is in p.grad with what each usual mistake would leave there."""
    if not result.isfinite().all():
        return "p.grad holds NaN or inf. Likely it was made with torch.empty and never filled."
    mistakes = {
        "p.grad is zero. Likely it is zeroed after adding.": 0 * want,
        "p.grad is as it was before. Likely the gradients are computed and never added.": before,
        "Only the last micro-batch is left. Likely `p.grad.copy_(g)` or `p.grad = g` where `p.grad.add_(g)` belongs, "
        "or the gradients are zeroed in every call.": micro[-1],
        "Only the first micro-batch is left. Likely the branch for an existing p.grad adds nothing.": micro[0],
    }
    if scenario.existing:
        mistakes = {"The gradient that was there is lost. Likely zeroed in the first call.": want - before} | mistakes
    known = nearest(result, mistakes, 1e-4)
    if known:
        return known
    if scenario.reuse:
        return "Wrong only when the caller reuses its gradient buffer between the calls: copy the gradients."
    scale = scale_of(result, want)
    if distance(result, scale * want) < 1e-4:
        return f"The sum times {number(scale)}. Likely a mean, a sign or a weight that belongs to the loss."
    return "Some p.grad is not the sum, in no known pattern. Compare p.grad with the sum after each call."


def _storages(tensors: Iterable[Tensor]) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors}
