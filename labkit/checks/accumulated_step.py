"""Is one optimizer step over several micro-batches the step that the whole batch would have made?

It compares your step's parameters with the full batch's, for a tiny causal language model and micro-batches with
unequal token counts. It knows token-level cross-entropy only: what it judges is the accumulation around the loss.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.common import number

from .mistakes import distance, joined, nearest, scale_of, weightings
from .report import PASS, Report, Verdict, attempt, caution, fail, judged

NORMALIZATIONS = {
    "tokens": "the mean over all tokens of the batch",
    "sequences": "the mean over sequences of their token means",
    "constant": "the token sum times any one positive constant",
    "micro-batches": "the mean over micro-batches of their own token means",
}
VOCABULARY, WIDTH, IGNORED = 13, 6, -100
# (prompt length, completion length) of each row; micro-batches of 2 rows with 6, 2 and 11 counted tokens.
ROWS = (((2, 4), (3, 2)), ((4, 1), (2, 1)), ((2, 6), (3, 5)))
MicroBatch = dict[str, Tensor]
TOLERANCE = 1e-3  # of the update, relative
NEAR = 5e-3  # closer than that to a mistake, it is that mistake
AUTOCAST = 3e-2  # the same under autocast: its rounding takes 1e-2 here
STEEP = 6.0  # in place of 0.2: gradients about 3 long, which every usual clip shortens and no usual guard skips


class TinyCausalLM(nn.Module):
    """A causal model that reads a running mean of what came before; called like a transformers 5 model.

    `logits[:, t]` predicts the token at t + 1. Padding (attention_mask 0) on either side changes nothing. `loss` shifts
    the labels: the mean over those that are not -100, or their sum divided by `num_items_in_batch`.
    """

    def __init__(self, rng: torch.Generator):
        super().__init__()
        self.scale = 0.2  # a small gradient
        self.autocast = ""  # the type it computed in, if it ran under autocast
        shapes = (VOCABULARY, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, VOCABULARY)
        drawn = [nn.Parameter(torch.randn(shape, generator=rng, dtype=torch.float32)) for shape in shapes]
        self.embedding, self.own, self.past, self.head = drawn

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def forward(
        self,
        input_ids: Tensor,  # [B, T]
        attention_mask: Tensor | None = None,  # [B, T], 1 = counts
        labels: Tensor | None = None,  # [B, T], -100 = ignored
        num_items_in_batch: Tensor | int | None = None,
        **_: Any,
    ) -> Any:
        from transformers.modeling_outputs import CausalLMOutput  # not on top: the other checks do without it

        if torch.is_autocast_enabled(self.device.type):
            self.autocast = str(torch.get_autocast_dtype(self.device.type)).removeprefix("torch.")
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mask = mask.to(self.embedding.dtype)[..., None]  # [B, T, 1]
        x = self.embedding[input_ids] * mask  # [B, T, W]
        past = x.cumsum(1) / mask.cumsum(1).clamp(min=1)
        logits = self.scale * torch.tanh(x @ self.own + past @ self.past) @ self.head
        if labels is None:
            return CausalLMOutput(logits=logits)
        one_by_one = logits[:, :-1].reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1)
        total = F.cross_entropy(*one_by_one, ignore_index=IGNORED, reduction="sum")
        items = (labels[:, 1:] != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        return CausalLMOutput(loss=total / items, logits=logits)


def accumulated_step(step: Callable[..., Any], *, normalize: str = "tokens", tolerance: float = TOLERANCE) -> Report:
    """Check that `step(model, optimizer, micro_batches)` makes the step of the whole batch.

    `model` is a `TinyCausalLM`, called like a transformers causal model; `optimizer` is plain SGD over its parameters.
    `micro_batches` are dicts, for `model(**micro_batch).loss` or a loss of your own from `model(ids, mask).logits`:

        input_ids           [B, T] long; T differs, padding on the left in one, on the right in the others
        attention_mask      [B, T] long, 1 = a real token
        labels              [B, T] long, the token where it counts, -100 elsewhere; shift them yourself
        loss_mask           [B, T] long, 1 where the token counts, in line with input_ids and labels
        num_items_in_batch  scalar long, counted tokens in all the micro-batches together

    Your function runs forward and backward on each and steps the optimizer once. It is called twice, on different data:
    a gradient that is left over spoils the second call. Gradients are about 0.1 long: a clip at 0.3 rests. Then once
    more with gradients 3 long, where a clip may shorten the step, and not turn it. Each micro-batch has a token.

        normalize  the whole batch's loss. "tokens": the mean cross-entropy over its tokens (trl "dapo", verl
                   "token-mean" with `batch_num_tokens`, transformers); "sequences": the mean over sequences of
                   their token means (trl "grpo"); "constant": the sum times any constant (trl "dr_grpo");
                   "micro-batches": the mean of their own token means (trl "bnpo", nanochat), which depends on how
                   the batch is cut
        tolerance  of the step, relative: more for a model of your own in half precision

    A step that is right up to the rounding of autocast, or of a loss in half precision, passes with a caution; so does
    one that becomes NaN where a micro-batch has no token that counts.

    Raises: ValueError names an unknown `normalize`.
    """
    if normalize not in NORMALIZATIONS:
        raise ValueError(f"accumulated_step: normalize must be one of {list(NORMALIZATIONS)}, got {normalize!r}")
    claim = f"the step is that of the whole batch, {NORMALIZATIONS[normalize]}"
    return judged("accumulated_step", claim, step, lambda evidence: _judge(step, normalize, tolerance, evidence))


def _judge(step: Callable[..., Any], normalize: str, tolerance: float, evidence: dict[str, Any]) -> Verdict:
    """Two steps in a row, each compared with the whole batch's, and one along steep gradients."""
    rng = torch.Generator().manual_seed(7)
    model = TinyCausalLM(rng)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    steps: list[int] = []  # the calls in which it stepped
    optimizer.register_step_post_hook(lambda *_: steps.append(call))
    previous: Tensor | None = None
    verdict = PASS
    for call in (1, 2):
        micro_batches = make_micro_batches(rng)
        gradients = _gradients(copy.deepcopy(model), micro_batches)
        update = _update(step, model, optimizer, micro_batches)
        want = gradients[WEIGHTS[normalize]]
        if normalize == "constant":
            scale = scale_of(update, want)
            want = want * scale if 0 < scale < float("inf") else want
        error = distance(update, want)
        evidence |= {"call": call, "relative_error": round(error, 4), "optimizer_steps": steps.count(call)}
        if steps.count(call) > 1:
            return fail(
                f"`optimizer.step()` ran {steps.count(call)} times. Likely `zero_grad` and `step` stand inside the "
                "loop: move both out of it."
            )
        if error > tolerance and previous is not None and distance(update, want + previous) < NEAR:
            return fail("The second call also applied the first call's gradient. Likely `zero_grad` is missing.")
        if error > tolerance:
            verdict = _cause(update, _mistakes(gradients, normalize), model)
        if verdict.kind == "fail":
            return verdict
        previous = want
    return _turned_when_steep(step, normalize) or _without_a_token(step) or verdict


def _update(
    step: Callable[..., Any], model: TinyCausalLM, optimizer: torch.optim.SGD, parts: list[MicroBatch]
) -> Tensor:
    """How far one step moved: plain SGD at learning rate 1 moves by the gradient."""
    start = joined(model.parameters())
    # copies: the function may write to what it gets
    attempt(step, model, optimizer, [{name: value.clone() for name, value in part.items()} for part in parts])
    return start - joined(model.parameters())


def _turned_when_steep(step: Callable[..., Any], normalize: str) -> Verdict | None:
    """Steep gradients meet the clip that small ones did not. Once, at the end, it shortens the step; inside the loop it
    shortens some micro-batches and not others."""
    rng = torch.Generator().manual_seed(8)
    model = TinyCausalLM(rng)
    model.scale = STEEP
    micro_batches = make_micro_batches(rng)
    want = _gradients(copy.deepcopy(model), micro_batches)[WEIGHTS[normalize]]
    update = _update(step, model, torch.optim.SGD(model.parameters(), lr=1.0), micro_batches)
    # A guard may have skipped it, and autocast rounds more here.
    if not update.any() or model.autocast or distance(update, scale_of(update, want) * want) < NEAR:
        return None
    return fail(
        "Gradients of 0.1 are added up as they should be, and gradients of 3 are not: the step turns. Likely a clip "
        "inside the loop over micro-batches, or entry by entry: clip once, after the last backward, by the norm."
    )


def _without_a_token(step: Callable[..., Any]) -> Verdict | None:
    """A micro-batch in which nothing counts, as when all its answers are cut off and left out."""
    rng = torch.Generator().manual_seed(9)
    model = TinyCausalLM(rng)
    micro_batches = make_micro_batches(rng)
    empty = micro_batches[1]
    empty["labels"], empty["loss_mask"] = torch.full_like(empty["labels"], IGNORED), 0 * empty["loss_mask"]
    total = torch.stack([part["loss_mask"].sum() for part in micro_batches]).sum()
    for part in micro_batches:
        part["num_items_in_batch"] = total.clone()
    update = _update(step, model, torch.optim.SGD(model.parameters(), lr=1.0), micro_batches)
    if update.isfinite().all():
        return None
    return caution("The step is NaN where a micro-batch has no token that counts: a mean over none is 0 / 0.")


def _cause(update: Tensor, mistakes: dict[str, Tensor], model: TinyCausalLM) -> Verdict:
    """Compare the update with what each usual mistake would have made."""
    if not update.isfinite().all():
        return fail("The parameters became NaN or inf. Likely a mean over no token, 0 / 0.")
    if not update.any():
        return fail(
            "No parameter moved. Likely `optimizer.step()` is never called, or has no gradient: a detached loss, or "
            "`zero_grad` before the step."
        )
    near = AUTOCAST if model.autocast else NEAR
    known = nearest(update, mistakes, near)
    if known is None:
        return fail("The step fits no known pattern. Compare p.grad just before it with the full batch's.")
    hint, scale = known
    if hint == RIGHT and abs(scale - 1) < near:
        return caution("The step of the whole batch, up to the rounding of half precision.")
    if scale < 0:
        hint = f"The step goes uphill: the sign is flipped. {hint}"
    if abs(abs(scale) - 1) > near:
        hint += f" (And {number(abs(scale))} times as long as that would be.)"
    return fail(hint)


RIGHT = "It is the step of the whole batch at another length. Likely another divisor, a clip, or another learning rate."
# By what each token weighs.
HINTS = {
    "own tokens, mean": "It is the mean of the micro-batches' own token means, so a token in a short one weighs "
    "more. Likely `loss.mean() / accumulation_steps`: divide by the whole batch's tokens.",
    "last": "Only the last micro-batch moved the parameters. Likely `zero_grad` stands inside the loop, p.grad is "
    "overwritten (`copy_`, `=`), or backward runs only once.",
    "prompt": "The loss counts prompt tokens too. Likely attention_mask stands for loss_mask.",
    "mask late": "Off by one: the mask is one token late, so that the first counted token is out and a pad is in.",
    "mask early": "Off by one: the mask is one token early, so that the last counted token is out.",
    "not shifted": "Off by one: each token is predicted from the logits at its own place. Shift the labels.",
}
WEIGHTS = {"tokens": "all tokens", "sequences": "row means", "constant": "all tokens"}
WEIGHTS |= {"micro-batches": "own tokens, mean"}


def _mistakes(gradients: dict[str, Tensor], normalize: str) -> dict[str, Tensor]:
    """Hint to gradient, the likeliest first."""
    mistakes = {RIGHT: gradients[WEIGHTS[normalize]]}
    for other in ("tokens", "sequences"):
        if WEIGHTS[other] != WEIGHTS[normalize]:
            hint = f"It is {NORMALIZATIONS[other]}. If you want that: normalize={other!r}."
            mistakes[hint] = gradients[WEIGHTS[other]]
    return mistakes | {hint: gradients[way] for way, hint in HINTS.items() if way != WEIGHTS[normalize]}


def _gradients(model: TinyCausalLM, micro_batches: list[MicroBatch]) -> dict[str, Tensor]:
    """The gradient of the loss at the model's present parameters, by what each token weighs."""
    losses = [_token_losses(model, part) for part in micro_batches]
    masks = [part["loss_mask"].float() for part in micro_batches]
    ways = weightings(masks)
    ways["last"] = [0 * mask for mask in masks[:-1]] + masks[-1:]
    ways["prompt"] = [part["attention_mask"].float() for part in micro_batches]
    ways["mask late"] = [F.pad(mask, (1, -1)) for mask in masks]
    ways["mask early"] = [F.pad(mask, (-1, 1)) for mask in masks]
    ways["not shifted"] = ways["all tokens"]
    at_own_place = [_token_losses(model, part, shift=0) for part in micro_batches]
    gradients = {}
    for way, weights in ways.items():
        of_tokens = at_own_place if way == "not shifted" else losses
        loss = torch.stack([(x * weight).sum() for x, weight in zip(of_tokens, weights, strict=True)]).sum()
        gradients[way] = joined(torch.autograd.grad(loss, list(model.parameters()), retain_graph=True))
    return gradients


def _token_losses(model: TinyCausalLM, micro_batch: MicroBatch, shift: int = 1) -> Tensor:
    """-log p of the token at each position [B, T], from the logits `shift` before; 0 where there are none."""
    ids = micro_batch["input_ids"]
    logp = model(ids, micro_batch["attention_mask"]).logits.log_softmax(-1)
    return -F.pad(logp, (0, 0, shift, -shift)).gather(-1, ids[..., None])[..., 0]


def make_micro_batches(rng: torch.Generator) -> list[MicroBatch]:
    """Three micro-batches, as `accumulated_step` describes them."""
    batches = []
    for k, lengths in enumerate(ROWS):
        length = max(p + c for p, c in lengths) + 1
        ids = torch.zeros(len(lengths), length, dtype=torch.long)
        real, loss_mask = torch.zeros_like(ids), torch.zeros_like(ids)
        for b, (prompt, completion) in enumerate(lengths):
            used = prompt + completion
            start = length - used if k == 1 else 0  # the second is padded on the left
            ids[b, start : start + used] = torch.randint(1, VOCABULARY, (used,), generator=rng)
            real[b, start : start + used] = 1
            loss_mask[b, start + prompt : start + used] = 1
        labels = ids.masked_fill(loss_mask == 0, IGNORED)
        batches.append({"input_ids": ids, "attention_mask": real, "labels": labels, "loss_mask": loss_mask})
    total = torch.stack([batch["loss_mask"].sum() for batch in batches]).sum()
    return [batch | {"num_items_in_batch": total.clone()} for batch in batches]
