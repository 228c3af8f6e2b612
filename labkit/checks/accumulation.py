"""Does a function that puts gradients into `p.grad` add them up over micro-batches?

It judges `accumulate(params, grads)`, called once per micro-batch, and knows no loss and no optimizer: a
whole optimizer step is judged by `accumulated_step`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .report import Error, Raised, Report, attempt, judged

CLAIM = "p.grad is the sum over the micro-batches"
SHAPES = ((3, 4), (5,), (2, 2, 2))
MICRO_BATCHES = 3


def accumulation(
    accumulate: Callable[..., Any],
    *,
    flat: bool | None = None,
    reuses_buffers: bool = True,
    device: str | torch.device = "cpu",
) -> Report:
    """Check that `accumulate(params, grads)`, called once per micro-batch, leaves the sum in every `p.grad`.

    `params` is a list of three float32 `nn.Parameter`s. `grads` is a list with one tensor per parameter, or
    one flat vector of all of them end to end (`flat=True`); with `flat=None` the list is tried first, then
    the vector if the function raises on a list. What it returns is ignored.

    Tried in turn: from `p.grad = None`; on a gradient that is already there; with the caller's buffers
    overwritten between the calls, as a trainer that saves memory does (`reuses_buffers=False` leaves that
    out); with None for a parameter that one micro-batch did not use (lists only); with a bfloat16 parameter
    and float32 gradients. On the last two a wrong sum fails, while an exception is only noted in `.seen`: it
    is loud by itself.
    """
    trials = _Trials(accumulate, torch.device(device), reuses_buffers)
    return judged("accumulation", CLAIM, accumulate, lambda: trials.judge(flat))


class _Trials:
    def __init__(self, accumulate: Callable[..., Any], device: torch.device, reuses_buffers: bool):
        self.accumulate, self.device, self.reuses_buffers = accumulate, device, reuses_buffers

    def judge(self, flat: bool | None) -> tuple[bool, dict[str, Any], str]:
        flat = self._form() if flat is None else flat
        seen: dict[str, Any] = {"grads": "flat vector" if flat else "list", "micro_batches": MICRO_BATCHES}
        hints = []
        for name, options in (
            ("from_none", {}),
            ("onto_existing", {"existing": True}),
            ("reused_buffers", {"reuse": True}),
            ("unused_parameter", {"unused": True}),
            ("bfloat16_parameter", {"dtype": torch.bfloat16}),
        ):
            if (name == "reused_buffers" and not self.reuses_buffers) or (
                name == "unused_parameter" and flat
            ):
                continue
            try:
                error, hint = self._trial(flat, **options)
            except Raised as raised:
                if name not in ("unused_parameter", "bfloat16_parameter"):
                    raise
                seen[name] = f"raises {type(raised.cause).__name__}"
                continue
            seen[name] = Error(error)
            hints += [hint] if hint else []
        return not hints, seen, hints[0] if hints else ""

    def _form(self) -> bool:
        """Whether the function wants a flat vector: it raises on a list, and does not on a vector."""
        for flat in (False, True):
            try:
                self._trial(flat)
                return flat
            except Raised:
                pass
        return False

    def _trial(
        self,
        flat: bool,
        existing: bool = False,
        reuse: bool = False,
        unused: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[float, str]:
        """One scenario -> (relative error of the sum, hint or '')."""
        rng = torch.Generator().manual_seed(1)
        params = [
            nn.Parameter(torch.randn(shape, generator=rng, dtype=torch.float32).to(self.device))
            for shape in SHAPES
        ]
        params[0].data = params[0].data.to(dtype)
        values = [p.detach().clone() for p in params]
        micro = [
            [torch.randn(shape, generator=rng, dtype=torch.float32) for shape in SHAPES] for _ in range(3)
        ]
        micro = [[g.to(self.device) for g in grads] for grads in micro]
        before = [torch.zeros_like(g) for g in micro[0]]
        if existing:
            before = [torch.full_like(g, 0.5) for g in before]
            for p, g in zip(params, before, strict=True):
                p.grad = g.to(p.dtype, copy=True)
        if unused:
            micro[1][1].zero_()  # what None stands for

        buffers = [torch.empty_like(g) for g in micro[0]]
        vector = torch.empty(sum(g.numel() for g in buffers), device=self.device)
        lent_changed = False
        for k, grads in enumerate(micro):
            lent = _lend(grads, flat, buffers if reuse else None, vector if reuse else None)
            kept = [g.clone() for g in lent]
            handed = lent[0] if flat else [None if unused and k == i == 1 else g for i, g in enumerate(lent)]
            attempt(self.accumulate, list(params), handed)
            lent_changed |= any(not torch.equal(a, b) for a, b in zip(lent, kept, strict=True))

        moved = any(not torch.equal(p.detach(), v) for p, v in zip(params, values, strict=True))
        total = [b + sum(g[i] for g in micro) for i, b in enumerate(before)]
        error = _distance(_gradients(params), _joined(total))
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        if moved:
            return error, "A parameter's value changed. Likely an optimizer step or a write to p.data inside."
        if error > tolerance:
            return error, _cause(params, micro, before, total, existing, reuse)
        if lent_changed and self.reuses_buffers:
            return error, "The caller's gradient was written to. " + ALIAS
        return error, ""


ALIAS = (
    "Likely `p.grad = g` keeps a reference to the caller's buffer: the first time, write "
    "`p.grad = g.clone()`. (Harmless where nobody writes to that buffer again: reuses_buffers=False.)"
)
OVERWRITES = (
    "Only the last micro-batch is left. Likely `p.grad.copy_(g)` or `p.grad = g` where `p.grad.add_(g)` "
    "belongs, or the gradients are zeroed in every call."
)


def _cause(
    params: list[nn.Parameter],
    micro: list[list[Tensor]],
    before: list[Tensor],
    total: list[Tensor],
    existing: bool,
    reuse: bool,
) -> str:
    """Compare what is in p.grad with what each usual mistake would leave there."""
    if all(p.grad is None for p in params):
        return (
            "Every p.grad is None. Likely nothing is written: the gradients go into a copy, or into p.data."
        )
    found, want = _gradients(params), _joined(total)
    start, first, last = _joined(before), _joined(micro[0]), _joined(micro[-1])
    added = want - start
    if not found.isfinite().all():
        return "p.grad holds NaN or inf. Likely it was made with torch.empty and never filled."
    candidates = [
        (torch.zeros_like(want), "p.grad is zero. Likely it is zeroed after adding, or multiplied by zero."),
        (start, "p.grad is as it was before. Likely the gradients are computed and never added."),
        (last, OVERWRITES),
        (first, "Only the first micro-batch is left. Likely the branch for an existing p.grad adds nothing."),
        (start - added, "The sum has the wrong sign. Likely `sub_`, or a minus that belongs to the loss."),
        (start + added / len(micro), "The mean, not the sum. Likely divided here; divide the loss instead."),
        (want - last, "The last micro-batch is missing. Likely off by one in the loop."),
        (want - first, "The first micro-batch is missing. Likely off by one: it is zeroed after the first."),
    ]
    if existing:
        candidates.insert(0, (added, "The gradient that was there is lost. Likely zeroed in the first call."))
    for candidate, hint in candidates:
        if _distance(found, candidate) < 1e-4:
            return hint
    if reuse:
        return "Wrong only when the caller reuses its gradient buffer between the calls. " + ALIAS
    scale = float(found @ want / (want @ want))
    if _distance(found, scale * want) < 1e-4:
        return f"The sum times {scale:.3g}. Likely a scale that belongs to the loss is applied here."
    for shift in (-1, 1):
        rolled = torch.roll(found, shift)
        if ((rolled - want).abs() < 1e-4).float().mean() > 0.6:
            return "Gradients sit one entry off. Likely the offset into the flat vector is off by one."
    return (
        "Some p.grad is not the sum, in no pattern known here. Compare p.grad with the sum after each call."
    )


def _lend(
    grads: list[Tensor], flat: bool, buffers: list[Tensor] | None, vector: Tensor | None
) -> list[Tensor]:
    """The tensors handed over: fresh ones, or the same buffers filled anew."""
    if flat:
        joined = torch.cat([g.reshape(-1) for g in grads])
        return [joined if vector is None else vector.copy_(joined)]
    if buffers is None:
        return [g.clone() for g in grads]
    return [b.copy_(g) for b, g in zip(buffers, grads, strict=True)]


def _gradients(params: list[nn.Parameter]) -> Tensor:
    return _joined([torch.zeros_like(p) if p.grad is None else p.grad for p in params])


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1).double() for t in tensors])


def _distance(a: Tensor, b: Tensor) -> float:
    """Relative L2 distance of `a` from `b`; inf when `a` is not finite."""
    difference = (a - b).norm() / b.norm().clamp(min=1e-12)
    return float(difference) if difference.isfinite() else float("inf")
