"""Does a function that puts gradients into `p.grad` add them up over micro-batches?

It judges `accumulate(params, grads)`, called once per micro-batch, and knows no loss and no optimizer: a
whole optimizer step is judged by `accumulated_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.common import number

from .mistakes import distance, first, nearest, scale_of
from .report import Caution, Raised, RelativeError, Report, attempt, judged

CLAIM = "p.grad is the sum over the micro-batches"
SHAPES = ((3, 4), (5,), (2, 2, 2))
MICRO_BATCHES = 3


def accumulation(
    accumulate: Callable[..., Any],
    *,
    flat: bool | None = None,
    reuses_buffers: bool | None = None,
    device: str | torch.device = "cpu",
) -> Report:
    """Check that `accumulate(params, grads)`, called once per micro-batch, leaves the sum in every `p.grad`.

    `params` is a list of three float32 `nn.Parameter`s. `grads` is a list with one tensor per parameter, or
    one flat vector of all of them end to end (`flat=True`); with `flat=None` the list is tried first, then
    the vector if the function raises on a list. What it returns is ignored.

    Tried in turn: from `p.grad = None`; on a gradient that is already there; with the caller's buffers
    overwritten between the calls; with None for a parameter that one micro-batch did not use (lists only); with
    a bfloat16 parameter and float32 gradients. On the last two a wrong sum fails, while an exception is only noted
    in `.seen`: it is loud by itself.

    Keeping a reference to the caller's buffer (`p.grad = g`) is harmless where nobody writes to that buffer again. So
    it passes with a caution; `reuses_buffers=True` says that your trainer does write to it, and makes it a failure,
    and `reuses_buffers=False` that it does not.
    """
    sums = _Sums(accumulate, torch.device(device), reuses_buffers)
    return judged("accumulation", CLAIM, accumulate, lambda seen: sums.judge(flat, seen))


class _Sums:
    def __init__(self, accumulate: Callable[..., Any], device: torch.device, reuses_buffers: bool | None):
        self.accumulate, self.device, self.reuses_buffers = accumulate, device, reuses_buffers

    def judge(self, flat: bool | None, seen: dict[str, Any]) -> str:
        flat = self._form() if flat is None else flat
        seen |= {"grads": "flat vector" if flat else "list", "micro_batches": MICRO_BATCHES}
        scenarios = [_Scenario("from_none", flat), _Scenario("onto_existing", flat, existing=True)]
        if self.reuses_buffers is not False:
            scenarios.append(_Scenario("reused_buffers", flat, reuse=True))
        if not flat:
            scenarios.append(_Scenario("unused_parameter", flat, unused=True, may_raise=True))
        scenarios.append(_Scenario("bfloat16_parameter", flat, dtype=torch.bfloat16, may_raise=True))
        hints = []
        for scenario in scenarios:
            try:
                error, hint = self._run(scenario)
            except Raised as raised:
                if not scenario.may_raise:
                    raise
                seen[scenario.name] = f"raises {type(raised.cause).__name__}"
                continue
            seen[scenario.name] = RelativeError(error)
            hints.append(hint)
        wrong = [hint for hint in hints if hint and not isinstance(hint, Caution)]
        return next(iter(wrong or filter(None, hints)), "")

    def _form(self) -> bool:
        """Whether the function wants a flat vector: it raises on a list, and does not on a vector."""
        for flat in (False, True):
            try:
                self._run(_Scenario("", flat))
                return flat
            except Raised:
                pass
        return False

    def _run(self, scenario: _Scenario) -> tuple[float, str]:
        """Three calls -> (relative error of the sum, hint or "")."""
        rng = torch.Generator().manual_seed(1)
        params = [nn.Parameter(_random(shape, rng).to(self.device)) for shape in SHAPES]
        params[0].data = params[0].data.to(scenario.dtype)
        values = [p.detach().clone() for p in params]
        micro = [[_random(shape, rng).to(self.device) for shape in SHAPES] for _ in range(MICRO_BATCHES)]
        before = [torch.full_like(g, 0.5 if scenario.existing else 0.0) for g in micro[0]]
        if scenario.existing:
            for p, g in zip(params, before, strict=True):
                p.grad = g.to(p.dtype, copy=True)
        if scenario.unused:
            micro[1][1].zero_()  # what None stands for

        lent: list[Tensor] = []
        lent_changed = keeps = False
        for k, grads in enumerate(micro):
            fresh = [torch.cat([g.flatten() for g in grads])] if scenario.flat else [g.clone() for g in grads]
            if scenario.reuse and lent:
                fresh = [buffer.copy_(g) for buffer, g in zip(lent, fresh, strict=True)]
            lent, kept = fresh, [g.clone() for g in fresh]
            unused = [None if scenario.unused and k == i == 1 else g for i, g in enumerate(lent)]
            attempt(self.accumulate, list(params), lent[0] if scenario.flat else unused)
            lent_changed |= any(not torch.equal(a, b) for a, b in zip(lent, kept, strict=True))
            keeps |= bool(_storages(lent) & _storages(p.grad for p in params))

        moved = any(not torch.equal(p.detach(), v) for p, v in zip(params, values, strict=True))
        total = [b + sum(g[i] for g in micro) for i, b in enumerate(before)]
        found, want = _gradients(params), _joined(total)
        error = distance(found, want)
        if moved:
            return error, HINTS["moved"]
        alias = HINTS["alias"] if self.reuses_buffers else Caution(HINTS["alias"])
        if keeps and scenario.reuse:
            return error, alias
        if error > scenario.tolerance:
            if all(p.grad is None for p in params):
                return error, HINTS["nothing"]
            return error, _cause(found, want, [_joined(m) for m in micro], _joined(before), scenario)
        return error, HINTS["lent"] if lent_changed and not keeps else ""


@dataclass(frozen=True)
class _Scenario:
    """One way in which `accumulate` is called."""

    name: str
    flat: bool
    existing: bool = False  # there is a gradient already
    reuse: bool = False  # the caller's buffers are overwritten between the calls
    unused: bool = False  # one micro-batch has None for one parameter
    dtype: torch.dtype = torch.float32  # of the first parameter
    may_raise: bool = False  # an exception is loud by itself, and only noted

    @property
    def tolerance(self) -> float:
        return 1e-5 if self.dtype == torch.float32 else 2e-2


HINTS = {
    "lost": "The gradient that was there is lost. Likely zeroed in the first call.",
    "zero": "p.grad is zero. Likely it is zeroed after adding, or multiplied by zero.",
    "as before": "p.grad is as it was before. Likely the gradients are computed and never added.",
    "last": "Only the last micro-batch is left. Likely `p.grad.copy_(g)` or `p.grad = g` where `p.grad.add_(g)` "
    "belongs, or the gradients are zeroed in every call.",
    "first": "Only the first micro-batch is left. Likely the branch for an existing p.grad adds nothing.",
    "minus": "The sum has the wrong sign. Likely `sub_`, or a minus that belongs to the loss.",
    "mean": "The mean, not the sum. Likely divided here; divide the loss instead.",
    "all but the last": "The last micro-batch is missing. Likely off by one in the loop.",
    "all but the first": "The first micro-batch is missing. Likely off by one: it is zeroed after the first.",
    "nothing": "Every p.grad is None. Likely nothing is written: the gradients go into a copy, or into p.data.",
    "moved": "A parameter's value changed. Likely an optimizer step or a write to p.data inside.",
    "lent": "The caller's gradient was written to, and not through p.grad. Likely `g.zero_()` or `g.mul_()` inside.",
    "alias": "`p.grad = g` keeps a reference to the caller's buffer: wrong as soon as the caller writes to it again. "
    "The first time, write `p.grad = g.clone()`.",
    "not finite": "p.grad holds NaN or inf. Likely it was made with torch.empty and never filled.",
    "reused": "Wrong only when the caller reuses its gradient buffer between the calls. Likely a view or a list of the "
    "gradients is kept: copy them.",
    "scaled": "The sum times {scale}. Likely a scale that belongs to the loss is applied here.",
    "one off": "Gradients sit one entry off. Likely the offset into the flat vector is off by one.",
    "unknown": "Some p.grad is not the sum, in no known pattern. Compare p.grad with the sum after each call.",
}


def _cause(found: Tensor, want: Tensor, micro: list[Tensor], before: Tensor, scenario: _Scenario) -> str:
    """Compare what is in p.grad with what each usual mistake would leave there."""
    added = want - before
    mistakes = {
        "zero": 0 * want,
        "as before": before,
        "last": micro[-1],
        "first": micro[0],
        "minus": before - added,
        "mean": before + added / len(micro),
        "all but the last": want - micro[-1],
        "all but the first": want - micro[0],
    }
    if scenario.existing:
        mistakes = {"lost": added} | mistakes
    name, scale = nearest(found, mistakes, 1e-4), scale_of(found, want)
    off_by_one = [((found.roll(shift) - want).abs() < 1e-4).float().mean() for shift in (-1, 1)]
    if found.isfinite().all() and name:
        return HINTS[name]
    return first(
        HINTS,
        {
            "not finite": not found.isfinite().all(),
            "reused": scenario.reuse,
            "scaled": distance(found, scale * want) < 1e-4,
            "one off": max(off_by_one) > 0.6,
            "unknown": True,
        },
    ).format(scale=number(scale))


def _storages(tensors: Iterable[Tensor | None]) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors if t is not None}


def _random(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float32)


def _gradients(params: list[nn.Parameter]) -> Tensor:
    return _joined([torch.zeros_like(p) if p.grad is None else p.grad for p in params])


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1).double() for t in tensors])
