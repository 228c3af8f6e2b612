"""Does a function that puts gradients into `p.grad` add them up over micro-batches?

It knows no loss and no optimizer: a whole optimizer step is judged by `accumulated_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.common import number

from .mistakes import distance, joined, nearest, scale_of
from .report import PASS, Report, Verdict, attempt, caution, fail, judged

CLAIM = "p.grad is the sum over the micro-batches"
SHAPES = ((3, 4), (5,), (2, 2, 2))
SCENARIOS = ("from_none", "onto_existing", "reused_buffers")
ALIAS = (
    "`p.grad = g` keeps a reference to the caller's buffer: wrong as soon as the caller writes to it again. The first "
    "time, write `p.grad = g.clone()`."
)


def accumulation(accumulate: Callable[..., Any], *, reuses_buffers: bool = False) -> Report:
    """Check that `accumulate(params, grads)`, called once per micro-batch, leaves the sum in every `p.grad`.

    `params` is a list of three float32 `nn.Parameter`s, `grads` a list with one tensor for each. What it returns is
    ignored. Tried in turn: from `p.grad = None`; on a gradient that is already there; with the caller's buffers
    overwritten between the calls.

        reuses_buffers  whether your trainer writes to its gradient buffers again. Keeping a reference to one
                        (`p.grad = g`) then fails; otherwise it passes with a caution
    """

    def judge(evidence: dict[str, Any]) -> Verdict:
        evidence["micro_batches"] = 3
        keeps_a_reference = False
        for name in SCENARIOS:
            error, hint = _run(accumulate, name)
            evidence[name] = round(error, 4)  # what is less is rounding, another on every machine
            if hint == ALIAS and not reuses_buffers:
                keeps_a_reference = True
            elif hint:
                return fail(hint)
        return caution(ALIAS) if keeps_a_reference else PASS

    return judged("accumulation", CLAIM, accumulate, judge)


def _run(accumulate: Callable[..., Any], scenario: str) -> tuple[float, str]:
    """Three calls -> (relative error of the sum, hint or "")."""
    existing, reuse = scenario == "onto_existing", scenario == "reused_buffers"
    # 1. The parameters, and the gradients of three micro-batches.
    rng = torch.Generator().manual_seed(1)
    values, *micro = [[torch.randn(shape, generator=rng, dtype=torch.float32) for shape in SHAPES] for _ in range(4)]
    params = [nn.Parameter(value.clone()) for value in values]
    before = [torch.full_like(value, 0.5 if existing else 0.0) for value in values]
    if existing:
        for p, g in zip(params, before, strict=True):
            p.grad = g.clone()

    # 2. One call for each. `lent` are the caller's own buffers.
    lent: list[Tensor] = []
    written = keeps = False
    for grads in micro:
        if reuse and lent:
            for buffer, g in zip(lent, grads, strict=True):
                buffer.copy_(g)
        else:
            lent = [g.clone() for g in grads]
        attempt(accumulate, list(params), list(lent))
        written |= any(not torch.equal(a, b) for a, b in zip(lent, grads, strict=True))
        keeps |= bool(_storages(lent) & _storages(p.grad for p in params if p.grad is not None))

    # 3. What is in p.grad now?
    result = joined([torch.zeros_like(p) if p.grad is None else p.grad for p in params])
    sums = [joined(grads) for grads in micro]
    want = joined(before) + sum(sums)
    error = distance(result, want)
    if any(not torch.equal(p.detach(), value) for p, value in zip(params, values, strict=True)):
        return error, "A parameter's value changed. Likely an optimizer step or a write to p.data inside."
    if keeps and reuse:
        return error, ALIAS
    if error > 1e-5:
        if existing and distance(result, want - joined(before)) < 1e-4:
            return error, "The gradient that was there is lost. Likely zeroed in the first call."
        if reuse:  # the calls before, without it, were right
            return error, "Wrong only when the caller reuses its gradient buffer: copy the gradients."
        return error, _cause(result, want, sums)
    if written and not keeps:
        return error, "The caller's gradient was written to, and not through p.grad. Likely `g.zero_()` or `g.mul_()`."
    return error, ""


def _cause(result: Tensor, want: Tensor, micro: list[Tensor]) -> str:
    """Compare what is in p.grad with what each usual mistake leaves there."""
    if not result.any():
        return "p.grad is None or zero. Likely nothing is written to it, or it is zeroed after adding."
    mistakes = {
        "Only the last micro-batch is left. Likely `p.grad.copy_(g)` or `p.grad = g` where `p.grad.add_(g)` belongs, "
        "or the gradients are zeroed in every call.": micro[-1],
        "Only the first micro-batch is left. Likely the branch for an existing p.grad adds nothing.": micro[0],
    }
    known = nearest(result, mistakes, 1e-4)
    if known:
        return known[0]
    scale = scale_of(result, want)
    if distance(result, scale * want) < 1e-4:
        return f"The sum times {number(scale)}. Likely a mean, a sign or a weight that belongs to the loss."
    return "Some p.grad is not the sum, in no known pattern. Compare p.grad with the sum after each call."


def _storages(tensors: Iterable[Tensor]) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors}
