"""Does a loss that several processes compute, each on its own completions, come out as the whole batch's?

DistributedDataParallel averages the gradients of its processes. So it judges that average, by the gradient, and starts
no process: it calls the function once per process, and again each time all of them have asked for a sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.common import number

from .mistakes import distance, nearest, weightings
from .report import PASS, CannotJudge, Report, Verdict, attempt, fail, judged, tensor_of

CLAIM = "averaged over the processes, the gradient is the whole batch's token mean"
# The counted tokens of each completion, per process. Unequal, as sampled completions are.
BATCHES = {
    "three processes": [[6, 6], [1, 3], [2, 1]],
    "one process": [[3, 1, 6]],
    "two processes": [[1, 2], [6, 5]],
    "two, unequal rows": [[4], [2, 6, 1]],
    "one without a token": [[2, 5], [0, 0]],
}
LONGEST, SUMS = 6, 20
# By the way to divide (`mistakes.weightings`).
HINTS = {
    "own tokens, mean": "Each process divides by its own tokens, so that a token counts for more where there are few. "
    "Divide by the sum over all processes.",
    "row means": "Every completion counts the same however long it is. That is a mean over completions, as in GSPO; "
    "here it is over tokens.",
}


def shared_loss(loss: Callable[..., Any]) -> Report:
    """Check `loss(per_token, mask, total, world)`: the scalar on which each process calls `backward`.

    per_token  [B, T] float32, the loss of each token of this process's completions; B may differ from process to
               process
    mask       [B, T] int64, 1 = counts
    total      total(tensor) -> its sum over all processes, without a graph, as `torch.distributed.all_reduce`
               makes it; every process must call it equally often, or all would wait for ever
    world      the number of processes
    """

    def judge(evidence: dict[str, Any]) -> Verdict:
        for name, lengths in BATCHES.items():
            masks = [(torch.arange(LONGEST) < torch.tensor(rows)[:, None]).long() for rows in lengths]
            gradient = _gradient(loss, masks)
            want = _flat(weightings(masks)["all tokens"])
            error = distance(gradient, want)
            evidence[name] = round(error, 4)
            if error > 1e-5:
                return fail(_cause(gradient, want, masks))
        return PASS

    return judged("shared_loss", CLAIM, loss, judge)


class _Question(BaseException):
    """A process asks for a sum that is not known yet. No Exception: the judged function may catch those."""

    def __init__(self, value: Any):
        self.value = torch.as_tensor(value).detach()


def _gradient(loss: Callable[..., Any], masks: list[Tensor]) -> Tensor:
    """What DDP makes of it: the gradients of all processes end to end, divided by the number of processes."""
    world = len(masks)
    rng = torch.Generator().manual_seed(1)
    per_token = [torch.randn(mask.shape, generator=rng, dtype=torch.float32) for mask in masks]
    sums: list[Tensor] = []  # those that are known; each round adds one
    while len(sums) <= SUMS:
        gradients, questions = [], []
        for values, mask in zip(per_token, masks, strict=True):
            leaf = values.clone().requires_grad_()
            try:
                # `leaf * 1.0`: in a trainer per_token is no leaf, and may be changed in place
                result = attempt(loss, leaf * 1.0, mask.clone(), _total(sums), world)
            except _Question as question:
                questions.append(question.value)
            else:
                gradients.append(_backward(result, leaf))
        if not questions:
            return _flat(gradients) / world
        if gradients:
            hint = "Some processes call `total` and others have returned: the first would wait for ever."
            raise CannotJudge(hint, returned=len(gradients), waiting=len(questions))
        sums.append(torch.stack(questions).sum(0))
    raise CannotJudge(f"More than {SUMS} sums for one loss. Likely a loop over tokens or rows.", sums=len(sums))


def _total(sums: list[Tensor]) -> Callable[[Any], Tensor]:
    calls = itertools.count()

    def total(value: Any) -> Tensor:
        at = next(calls)
        if at < len(sums):
            return sums[at].clone()
        raise _Question(value)

    return total


def _backward(result: Any, leaf: Tensor) -> Tensor:
    value = tensor_of(result, "a scalar loss")
    if value.numel() != 1:
        hint = "Expected a scalar: the loss that `backward` is called on."
        raise CannotJudge(hint, returned=f"shape {list(value.shape)}")
    if not value.requires_grad:
        hint = "The loss has no graph. Likely `.item()`, `.detach()` or `total` on the loss itself."
        raise CannotJudge(hint, returned="a number without a graph")
    (gradient,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True)
    if gradient is None:
        raise CannotJudge(
            "A process returns a loss that does not come from `per_token`: its backward reaches no parameter, DDP's "
            "hooks never run there, and the other processes wait for ever. Likely a process without a counted token; "
            "let it return `(per_token * mask).sum()`, which is 0 and has a graph.",
            returned="a constant",
        )
    return gradient


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def _cause(gradient: Tensor, want: Tensor, masks: list[Tensor]) -> str:
    """Compare the averaged gradient with what each usual mistake makes of it."""
    if not gradient.isfinite().all():
        return "NaN or inf. Likely a process without a counted token divides by 0."
    ways = weightings(masks)
    known = nearest(gradient, {"": want} | {hint: _flat(ways[way]) for way, hint in HINTS.items()}, 1e-4)
    if known and not known[0]:
        tokens = int(sum(mask.sum() for mask in masks))
        return (
            f"The right gradient times {number(known[1])}, of {tokens} tokens in {len(masks)} processes. DDP divides "
            "by the number of processes once more: multiply by `world`. A negative factor is a sign too many."
        )
    if known:
        return known[0]
    return "Another gradient than the token mean of the whole batch, in no known pattern."
