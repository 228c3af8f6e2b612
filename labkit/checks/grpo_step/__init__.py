"""Which loss is this? One check that reads a whole GRPO loss, or a whole update, off its gradient.

    probe       a batch, and a model whose logits are free parameters
    reading     the gradient in them, as one weight for each token
    forms       advantage, ratio, mask, divisor, KL: as published, with their sources, and the
    usual mistakes explaining  the combination of forms that gives these weights judging
    what it means, in the field's words picture     the tokens as a picture running     a
    function that may never come back

It sees one process: what a loss does with the sums of others is `shared_loss`'s to judge.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.common import number

from ..report import PASS, CannotJudge, Report, Verdict, caution, fail, inconclusive, judged
from . import forms
from .explaining import explain
from .forms import Layout, Situation
from .judging import (
    OF_DIVISOR,
    Finding,
    Remark,
    batch_baseline_is_expected,
    expected_remark,
    follows_the_tokens,
    judge,
    leave_one_out_is_expected,
    named,
    rows_named,
)
from .picture import TokenWeight, svg
from .probe import (
    COMPLETIONS,
    EOS,
    GROUP,
    Batch,
    Call,
    Probe,
    TableModel,
    make_probe,
    token_log_probs,
)
from .reading import Reading, read
from .running import PATIENCE, TooLong, line_with, within

__all__ = ["StepReport", "grpo_step"]

CLAIM = "the weight of every token is that of a published loss"
Loss = Callable[[TableModel, Batch], Any]
Update = Callable[[TableModel, torch.optim.Optimizer, Batch], Any]
MOVE = 0.6  # how far the probe's optimizer moves the logit with the largest gradient


@dataclass(frozen=True, repr=False)
class StepReport(Report):
    """A `Report` that says which loss it read.

    passed   True; False: a part is named that no published variant has; None: not explained
    variant  "GRPO", "DAPO", ...; "" when it is not explained
    parts    advantage, ratio, mask, divisor and kl, by name
    scale    the policy's term, as a multiple of the published one; free where the divisor is a
    constant tokens   for each token the weight found and the weight expected
    """

    variant: str = ""
    parts: dict[str, str] = dataclasses.field(default_factory=dict)
    scale: float = math.nan
    tokens: tuple[TokenWeight, ...] = ()

    def _repr_html_(self) -> str:
        """In a notebook: the text, and the tokens below it."""
        from html import escape

        text = f'<pre style="white-space:pre-wrap;margin:0 0 8px">{escape(repr(self))}</pre>'
        if not self.tokens:
            return text
        return text + svg(self.tokens, f"{self.word}: {self.variant}")


def grpo_step(
    loss: Loss | None = None,
    *,
    update: Update | None = None,
    expect: str | None = None,
    temperature: float = 1.0,
    clip: float | tuple[float, float] | None = None,
    beta: float = 0.0,
    device: str = "cpu",
) -> StepReport:
    """Read a loss: `loss(model, batch)` returns a scalar. Or `update(model, optimizer, batch)`.

    An update may split the batch and step as often as it likes; each of its steps is read.

    model  answers `model(input_ids, attention_mask=..., position_ids=..., logits_to_keep=...)` as
           transformers' do: `.logits` [B, T, 24]. It knows a row by the last token of its prompt
           and the first of its completion
    batch  eight rows in two groups of four adjacent ones, padded with 0; 1 ends a completion
        prompt_ids, prompt_mask                 [8, 4]   padded on the left
        completion_ids, completion_mask         [8, 6]   padded on the right; one has no end token
        input_ids, attention_mask, loss_mask    [8, 10]  both, side by side
        old_logps, ref_logps                    [8, 6]   nats, at `temperature`; not 0 at pads
        rewards, advantages                     [8]      the one is no function of the other
        num_items_in_batch                      []       counted tokens of the whole batch

    expect       a variant that it is to be: "GRPO", "Dr. GRPO", "DAPO", "BNPO", "GSPO", "CISPO",
                 "RLOO", ...
    temperature  at which the tokens are drawn
    clip         how far below and above 1 the ratio may go: one number, or (below, above). Below
                 must be less than 1: a ratio is above 0, so a bound at 0 is none. For CISPO's cap
                 alone say any below, as (0.5, 4.0). Nothing said is 0.2, and another clip is then
                 a caution; where one is said another leaves the report open
    beta         the weight of the KL
    device       where model and batch are; "cuda" for a fused kernel

    It passes what is put together of published parts, with a caution where one should know
    something. It fails when it can name a part that no published variant has. What it cannot
    explain is neither: `passed` is None, and the report says what is left. What does not come back
    within 10 s is stopped.

    Raises: ValueError names an unknown `expect`, or a setting that cannot be.
    """
    if loss is not None and update is not None:
        raise ValueError("grpo_step: give a loss or an update, not both")
    wanted = None
    if expect is not None:
        wanted = named(expect)
    clip_said = clip is not None
    if clip is None:
        clip = 0.2
    if isinstance(clip, (int, float)):
        clip = (clip, clip)
    _check_settings(temperature, clip, beta)
    clip = (float(clip[0]), float(clip[1]))
    function: Any = update
    if update is None:
        function = loss
    found: list[Finding] = []

    def judge_it(evidence: dict[str, Any]) -> Verdict:
        settings = _Settings(temperature, clip, beta, device, clip_said)
        if update is not None:
            finding = _of_update(update, settings)
        else:
            finding = _of_loss(function, settings)
        found.append(finding)
        _expectation(finding, wanted, update is not None)
        return _verdict(finding, function, evidence)

    return _report(judged("grpo_step", CLAIM, function, judge_it), found)


@dataclass(frozen=True)
class _Settings:
    temperature: float
    clip: tuple[float, float]
    beta: float
    device: str
    clip_said: bool

    def probe(self) -> Probe:
        return make_probe(self.temperature, self.clip, self.device)


def _check_settings(temperature: float, clip: tuple[float, float], beta: float) -> None:
    if not temperature > 0:
        raise ValueError(f"grpo_step: temperature must be above 0, got {temperature}")
    if len(clip) != 2 or not 0 < clip[0] < 1 or not 0 < clip[1] < 20:
        raise ValueError(
            "grpo_step: clip must be how far below and above 1 the ratio may go, as (0.2, 0.28), "
            f"with less than 1 below; got {clip}"
        )
    if not 0 <= beta < math.inf:
        raise ValueError(f"grpo_step: beta must be 0 or more, got {beta}")


# ---- a loss


def _of_loss(loss: Loss, settings: _Settings) -> Finding:
    probe = settings.probe()
    gradient = _gradient_of(loss, probe, dict(probe.batch))
    calls = list(probe.calls)
    everything = list(range(len(probe.sequences)))
    problem = _unreadable(gradient)
    if problem is not None:
        if not bool(gradient.isfinite().all()):
            _overflow(problem, loss, probe)
        return problem
    reading = read(gradient, probe.table, probe)
    layout = _layout(everything, _parts(calls, everything))
    situation = _situation(probe, settings, probe.table, layout, reading)
    rescored = any(call.rows and not call.graph for call in calls)
    finding = judge(reading, calls, situation, settings.temperature, rescored)
    again = _gradient_of(loss, probe, dict(probe.batch))
    # micro-batches that are drawn anew may well weigh otherwise
    same_parts = [call.rows for call in probe.calls] == [call.rows for call in calls]
    if same_parts and float((again - gradient).norm()) > 1e-3 * float(gradient.norm()):
        finding.add("mistake", DIFFERENT, r"dropout|\.train\(|rand")
    _with_other_batches(finding, loss, probe, gradient)
    return finding


DIFFERENT = (
    "Two calls on the same batch give other weights: dropout is on, or something else is random."
)


def _gradient_of(loss: Loss, probe: Probe, batch: Batch) -> Tensor:
    """What one call leaves in the table."""
    # what an earlier call left would be read again
    probe.calls.clear()
    probe.table.grad = None
    lent = {name: value.clone() for name, value in batch.items()}
    value = _waited_for(_backward, loss, probe, lent)
    if probe.table.grad is None:
        if isinstance(value, Tensor) and value.numel() == 1 and probe.calls:
            return torch.zeros_like(probe.table)  # a loss, and no way from it to the model
        raise CannotJudge(_why_no_gradient(value), returned=_described(value))
    return probe.table.grad.detach().clone()


def _waited_for(function: Any, *args: Any) -> Any:
    try:
        return within(PATIENCE, function, *args)
    except TooLong:
        hint = f"It did not come back within {number(PATIENCE)} s, and was stopped."
        raise CannotJudge(hint, seconds=PATIENCE) from None


def _backward(loss: Loss, probe: Probe, batch: Batch) -> Any:
    """In a thread of its own: there gradients are on, whatever the caller has switched off."""
    value = loss(probe.model, batch)
    if isinstance(value, tuple) and value:  # (loss, metrics)
        value = value[0]
    if isinstance(value, dict) and isinstance(value.get("loss"), Tensor):
        value = value["loss"]
    elif isinstance(getattr(value, "loss", None), Tensor):  # transformers' output
        value = value.loss
    if isinstance(value, Tensor) and value.requires_grad and value.numel() == 1:
        value.sum().real.backward()
    return value


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return type(value).__name__


def _why_no_gradient(value: Any) -> str:
    expected = "Expected a scalar tensor, the loss that `backward` is called on."
    if not isinstance(value, Tensor):
        return f"{expected} Is the return missing?"
    if value.numel() != 1:
        return f"{expected} Is the last sum or mean missing?"
    return "The model was never called. Expected loss(model, batch) to score the batch with it."


def _unreadable(gradient: Tensor) -> Finding | None:
    """A gradient in which there is nothing to read."""
    finding = Finding()
    if not bool(gradient.isfinite().all()):
        count = int((~gradient.isfinite()).any(-1).sum())
        text = (
            f"The gradient is not finite at {count} tokens: a division by 0, a log of 0, or exp "
            "without a limit."
        )
        finding.add("mistake", text, r"/|log|exp")
        return finding
    if not bool(gradient.any()):
        text = (
            "No token has a gradient: the loss or its ratio is detached, or everything is masked."
        )
        finding.add("mistake", text, r"detach|no_grad|\.item\(|mask")
        return finding
    return None


class _Overflow(TorchDispatchMode):
    """Notes the first operation that makes a float16 that is not finite out of finite numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.operation = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        if not self.operation and _is_half(value) and not bool(value.isfinite().all()):
            tensors = [one for one in args if isinstance(one, Tensor)]
            # who fills in -inf on purpose does so with a number
            on_purpose = any(isinstance(one, float) and math.isinf(one) for one in args)
            if not on_purpose and all(bool(one.isfinite().all()) for one in tensors):
                self.operation = str(func.overloadpacket.__name__)
        return value


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float16


def _overflow(finding: Finding, loss: Loss, probe: Probe) -> None:
    """Once more, watching each operation: is it float16 that has no room?"""
    watch = _Overflow()

    def watched(model: TableModel, batch: Batch) -> Any:
        with watch:
            value = loss(model, batch)
            if isinstance(value, Tensor) and value.requires_grad and value.numel() == 1:
                value.backward()
        return None

    with suppress(Exception):  # it has run before; what matters is what was noted
        _waited_for(watched, probe.model, {name: one.clone() for name, one in probe.batch.items()})
    if watch.operation:
        text = (
            f"`{watch.operation}` in float16 gives a number that is not finite: beyond 65,504 "
            "there is none. Compute log-probs in float32."
        )
        finding.remarks = []
        finding.add("mistake", text, r"half\(|float16")


def _with_other_batches(finding: Finding, loss: Loss, probe: Probe, whole: Tensor) -> None:
    """What one batch cannot show: a divisor that goes by the padding or by the micro-batch."""
    # Only of a loss that is explained: else there is no divisor to ask about.
    explanation = finding.explanation
    if explanation is None or not finding.variant:
        return
    wide = _factor(loss, probe, probe.wider(), whole)
    width = probe.batch["completion_ids"].shape[1]
    if wide is not None and abs(wide - 1) > 1e-2:
        if abs(wide * (width + 3) / width - 1) < 1e-2:
            finding.add(
                "open",
                "The divisor is the padded width of the batch: a token weighs less where a longer "
                "row is in the "
                "batch. Dr. GRPO's is a constant, the longest completion allowed.",
                forms.DIVISOR_LINE,
            )
        else:
            text = f"With wider padding the same tokens weigh {number(wide)} times as much."
            finding.add("open", text, forms.DIVISOR_LINE)
    if explanation.divisor.name not in ("tokens", "constant"):
        return
    if explanation.divisor.name == "constant":
        _constant_or_tokens(finding, loss, probe, whole)
        assert finding.explanation is not None
        explanation = finding.explanation
    rows = list(range(GROUP))
    half = _factor(loss, probe, probe.part(rows), whole, rows)
    if explanation.divisor.name == "constant":
        # a constant for each row, or one for all
        if half is not None and min(abs(half - 2), abs(half - 1)) > 1e-2 and finding.passed:
            alone = f"half of the rows alone weigh {number(half)} times as much"
            text = f"The divisor is no constant: {alone}."
            finding.add("open", text, forms.DIVISOR_LINE)
        return
    counts = probe.batch["completion_mask"].sum(1)
    own = float(counts.sum() / counts[rows].sum())
    if half is not None and abs(half / own - 1) < 1e-2 and finding.variant == "DAPO":
        finding.variant = "BNPO"
        finding.add(
            "caution",
            "The divisor is the tokens of the call: DAPO's where the batch is one micro-batch. In "
            "several, "
            "each divides by its own (BNPO); `num_items_in_batch` has the whole batch's.",
        )


def _constant_or_tokens(finding: Finding, loss: Loss, probe: Probe, whole: Tensor) -> None:
    """With fewer tokens in one row those of the others weigh as before, or the divisor counts."""
    longest = 6  # the row, of six tokens; another one keeps the width
    others = [row for row in range(len(COMPLETIONS)) if row != longest]
    batch = probe.shorter(longest, length=2)
    moved = _factor(loss, probe, batch, whole, others)
    if moved is None or abs(moved - 1) < 1e-2:
        return
    mask = probe.batch["completion_mask"]
    by_tokens = float(mask.sum() / batch["completion_mask"].sum())
    if abs(moved / by_tokens - 1) < 1e-2:
        follows_the_tokens(finding, float(mask.sum()), mask.numel())
    elif finding.passed:
        text = f"with fewer tokens in one row the others weigh {number(moved)} times as much"
        finding.add("open", f"The divisor is no constant: {text}.", forms.DIVISOR_LINE)


def _factor(
    loss: Loss, probe: Probe, batch: Batch, whole: Tensor, rows: Sequence[int] = ()
) -> float | None:
    """How many times as long the gradient of another batch is; None when it cannot be compared."""
    try:
        gradient = _gradient_of(loss, probe, batch)
    except Exception:  # it may well be made for one batch alone
        return None
    if rows:
        gradient, whole = gradient[list(rows)], whole[list(rows)]
    factor = float((gradient * whole).sum() / whole.square().sum())
    left = (gradient - factor * whole).norm() / gradient.norm().clamp(min=1e-30)
    if not float(left) < 3e-2:
        return None
    return factor


def _parts(calls: Sequence[Call], rows: Sequence[int]) -> list[list[int]]:
    """The micro-batches: rows of the forward passes that had a graph. Rows seen twice count
    once.
    """
    parts: list[list[int]] = []
    seen: set[int] = set()
    for call in calls:
        new = [row for row in call.rows if call.graph and row in rows and row not in seen]
        if new:
            parts.append(new)
            seen.update(new)
    return parts or [list(rows)]


def _layout(rows: list[int], parts: list[list[int]]) -> Layout:
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(row // GROUP, []).append(row)
    tokens = sum(len(COMPLETIONS[row]) for row in rows)
    return Layout(rows, parts, list(groups.values()), tokens)


def _situation(
    probe: Probe,
    settings: _Settings,
    table: Tensor,
    layout: Layout,
    reading: Reading,
    old: Tensor | None = None,
) -> Situation:
    """What the loss could know, scored as it scores."""
    batch = {name: value.detach().cpu() for name, value in probe.batch.items()}
    if old is None:
        old = batch["old_logps"].double()
    ids = batch["completion_ids"]
    return Situation(
        logps=token_log_probs(table, ids, reading.temperature, reading.shift),
        old=old,
        ref=batch["ref_logps"].double(),
        rewards=batch["rewards"].double(),
        given=batch["advantages"].double(),
        mask=batch["completion_mask"].double(),
        ids=ids,
        layout=layout,
        clip=settings.clip,
        beta=settings.beta,
        clip_said=settings.clip_said,
    )


# ---- an update


@dataclass
class _Step:
    """What one optimizer step found: the gradient, the table before it, and the calls since
    the last.
    """

    gradient: Tensor
    table: Tensor
    calls: list[Call]

    @property
    def calls_of_rows(self) -> list[tuple[int, ...]]:
        return [call.rows for call in self.calls]

    @property
    def rows(self) -> list[int]:
        return sorted({row for call in self.calls if call.graph for row in call.rows})


class _Recorder(torch.optim.Optimizer):
    """An optimizer that keeps what it is given, and moves the logits by a fixed length.

    It does without the constructor of its class, which imports torch's compiler: seconds, once
    a process.
    """

    def __init__(self, probe: Probe):
        self.defaults: dict[str, Any] = {"lr": 1.0}
        self.state: Any = defaultdict(dict)
        self.param_groups = [{"params": [probe.table], "lr": 1.0, "initial_lr": 1.0}]
        self.probe, self.steps, self.empty = probe, list[_Step](), 0
        super().__setstate__({})  # the hooks that accelerate's wrapper and `state_dict` ask for

    def __repr__(self) -> str:
        return f"an optimizer that records: {len(self.steps)} steps"

    def zero_grad(self, set_to_none: bool = True) -> None:
        table = self.probe.table
        if set_to_none:
            table.grad = None
        elif table.grad is not None:
            table.grad.zero_()

    def step(self, closure: Any = None) -> Any:
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        table = self.probe.table
        # as torch's own optimizers do: what has no gradient is left out
        if table.grad is None:
            self.empty += 1
            return value
        gradient = table.grad.detach().clone()
        self.steps.append(_Step(gradient, table.detach().clone(), list(self.probe.calls)))
        self.probe.calls.clear()
        length = gradient.abs().max()
        if bool(length.isfinite()) and float(length):
            with torch.no_grad():
                table.sub_(MOVE * gradient / length)
        return value


def _of_update(update: Update, settings: _Settings) -> Finding:
    probe, optimizer = _run_update(update, settings)
    steps = optimizer.steps
    if not steps and probe.table.grad is not None:
        steps = [_Step(probe.table.grad.detach().clone(), probe.table.detach(), list(probe.calls))]
        finding = _judge_steps(steps, probe, settings)
        finding.add("mistake", "The optimizer that was handed over never stepped.", r"\.step\(")
        return finding
    if not steps and optimizer.empty:
        finding = Finding()
        text = (
            "Each step of the optimizer finds no gradient: it is cleared after backward, or never "
            "made."
        )
        finding.add("mistake", text, r"zero_grad|\.step\(")
        return finding
    if not steps:
        raise CannotJudge(
            "Nothing to read: no backward reached the model, and the optimizer did not step."
        )
    finding = _judge_steps(steps, probe, settings)
    _rows_never_used(finding, steps, len(probe.sequences))
    # a second time, from the same start, with other random numbers
    _, again = _run_update(update, settings)
    if again.steps and steps[0].calls_of_rows == again.steps[0].calls_of_rows:
        first, second = steps[0].gradient, again.steps[0].gradient
        if float((first - second).norm()) > 1e-3 * float(first.norm()):
            finding.add("mistake", DIFFERENT, r"dropout|\.train\(|rand")
    return finding


def _rows_never_used(finding: Finding, steps: Sequence[_Step], count: int) -> None:
    used = {row for step in steps for row in step.rows}
    if not used:  # no call was recognised
        return
    never = [row for row in range(count) if row not in used]
    if not never:
        return
    which = rows_named(never)
    if all(COMPLETIONS[row][-1] != EOS for row in never):
        finding.add("caution", f"No step uses {which}, without an end token: overlong filtering.")
        return
    text = f"No step uses {which}: a filter, or a loop that ends too early."
    if never == list(range(never[0], count)):
        text = (
            f"No step uses {which}, the last of the batch: a micro-batch that is not full is "
            "dropped, or a loop ends too early."
        )
    finding.add("open", text, r"range\(.*//|drop_last|split\(|chunk\(")


def _run_update(update: Update, settings: _Settings) -> tuple[Probe, _Recorder]:
    probe = settings.probe()
    optimizer = _Recorder(probe)
    lent = {name: value.clone() for name, value in probe.batch.items()}
    _waited_for(update, probe.model, optimizer, lent)
    return probe, optimizer


def _judge_steps(steps: Sequence[_Step], probe: Probe, settings: _Settings) -> Finding:
    """One finding for all steps: the worst verdict, of the step that shows most."""
    findings: list[Finding] = []
    start = token_log_probs(steps[0].table, probe.batch["completion_ids"], settings.temperature)
    moved: set[int] = set()
    before: Tensor | None = None
    # most updates score once more before their first step
    scores_first = any(call.rows and not call.graph for call in steps[0].calls)
    for count, step in enumerate(steps[:MOST_STEPS], 1):
        problem = _unreadable(step.gradient)
        if problem is not None:
            findings.append(problem)
            break
        olds: list[Tensor | None] = [None]
        if moved & set(
            step.rows
        ):  # else the ratio to the start would be 1, whatever the loss makes of it
            olds = [start, None] if scores_first else [None, start]
        finding = _judge_step(step, before, probe, settings, olds)
        rows = set(step.rows or range(len(probe.sequences)))
        if moved & rows and finding.parts.get("ratio") == "none: log-probs":
            finding.add("mistake", ALWAYS_ONE.format(count), r"no_grad or old|detach")
        elif scores_first:
            _ratio_not_seen(finding)
        findings.append(finding)
        if not finding.passed:  # the next ones will not be clearer
            break
        moved |= rows
        before = step.gradient
    return _most_telling(findings)


def _ratio_not_seen(finding: Finding) -> None:
    """A ratio that is 1 because the policy has just scored: the variant goes by the divisor."""
    explanation = finding.explanation
    if explanation is None or finding.variant not in ("REINFORCE", "RLOO"):
        return
    if explanation.ratio is not LOG_PROBS:
        return
    finding.variant = OF_DIVISOR[explanation.divisor.name]
    finding.remarks = [one for one in finding.remarks if one.text != LOG_PROBS.says]
    finding.add("caution", NOT_SEEN)


MOST_STEPS = 5
LOG_PROBS = next(form for form in forms.RATIOS if form.name == "none: log-probs")
NOT_SEEN = (
    "The ratio is 1, because the policy has just scored these rows: whether and how it is clipped "
    "shows only in a second step on them."
)
NOT_CLEARED = "The gradients are not cleared between two steps: `optimizer.zero_grad()` is missing."
ALWAYS_ONE = (
    "In step {} the rows of an earlier step are used again and the ratio is still 1: the old "
    "log-probs "
    "are those of the present policy, and nothing is ever clipped."
)


def _judge_step(
    step: _Step,
    before: Tensor | None,
    probe: Probe,
    settings: _Settings,
    olds: Sequence[Tensor | None],
) -> Finding:
    """Read one step. The old log-probs are one of `olds`; None: the batch's."""
    rows = step.rows or list(range(len(probe.sequences)))
    layout = _layout(rows, _parts(step.calls, rows))
    gradients = [step.gradient]
    if before is not None:  # gradients that were not cleared hold the step before as well
        gradients.append(step.gradient - before)
    for gradient in gradients:
        reading = read(gradient, step.table, probe)
        for old in olds:
            situation = _situation(probe, settings, step.table, layout, reading, old)
            known, fits = explain(reading.weights, situation, reading.tolerance, deep=False)
            if known is None or not fits or not reading.clear:
                continue
            finding = judge(reading, step.calls, situation, settings.temperature, known=known)
            if gradient is not step.gradient:
                finding.add("mistake", NOT_CLEARED, r"zero_grad or \.step\(")
            return finding
    reading = read(step.gradient, step.table, probe)
    situation = _situation(probe, settings, step.table, layout, reading)
    return judge(reading, step.calls, situation, settings.temperature)


def _most_telling(findings: Sequence[Finding]) -> Finding:
    worst = {False: 0, None: 1, True: 2}
    unclipped = ("none: log-probs", "")

    def telling(finding: Finding) -> tuple[int, int]:
        return worst[finding.passed], int(finding.parts.get("ratio", "") in unclipped)

    # the earliest of the worst; of equals the one whose ratio is not 1
    chosen = min(findings, key=telling)
    if len(findings) > 1 and chosen.parts.get("ratio") not in unclipped:
        chosen.remarks = [
            one for one in chosen.remarks if one.text not in (LOG_PROBS.says, NOT_SEEN)
        ]
    return chosen


# ---- the report


def _expectation(finding: Finding, wanted: str | None, is_update: bool) -> None:
    if wanted is None:
        return
    if wanted == finding.variant:  # what needs the caller's word, and has it
        meant = f"expect={wanted!r}"
        finding.remarks = [one for one in finding.remarks if meant not in one.text]
    leave_one_out_is_expected(finding, wanted)
    batch_baseline_is_expected(finding, wanted)
    divisor = finding.parts.get("divisor")
    if finding.variant == wanted and divisor == forms.UNEQUAL.name:
        finding.add("open", forms.UNEQUAL.says, forms.DIVISOR_LINE)
    remark = expected_remark(finding, wanted, is_update)
    if remark is not None:
        finding.remarks.append(remark)


def _verdict(finding: Finding, function: Any, evidence: dict[str, Any]) -> Verdict:
    if finding.variant:
        evidence["variant"] = finding.variant
    evidence |= finding.parts
    if not math.isnan(finding.scale):
        evidence |= {"scale": finding.scale, "off": finding.error}
    cautions = " ".join(remark.text for remark in finding.of("caution"))
    if finding.passed and cautions:
        return caution(cautions)
    if finding.passed:
        return PASS
    of_kind = {False: finding.of("mistake"), None: finding.of("open")}
    remarks = of_kind[finding.passed]
    text = " ".join(remark.text for remark in remarks)
    line = _line(function, remarks)
    if line:
        text += f" Look at {line}"
    evidence.setdefault("tokens", len(finding.tokens))
    if finding.passed is False:
        return fail(text)
    return inconclusive(text)


def _line(function: Any, remarks: Sequence[Remark]) -> str:
    for remark in remarks:
        line = line_with(function, remark.look_for)
        if line:
            return line
    return ""


def _report(report: Report, found: Sequence[Finding]) -> StepReport:
    """As a StepReport. What raised is not explained, and no part of it is named: None."""
    values = {each.name: getattr(report, each.name) for each in dataclasses.fields(Report)}
    if not found and report.seen.get("function") != "none":
        values["passed"] = None
    if not found:
        return StepReport(**values)
    finding = found[0]
    return StepReport(
        **values,
        variant=finding.variant,
        parts=finding.parts,
        scale=finding.scale,
        tokens=tuple(finding.tokens),
    )
