"""What page 11 uses and does not teach: an update of GPT-2 124M on a simulated card.

The update itself stands on the page and is an argument here. The model is transformers' own, on fake tensors: they have
shapes and lifetimes and no data. Every run is a process of its own, so the page's kernel imports no model, and a reader's
function that does not come back ends after three minutes.

    lesson_11_kept      one row, tensor by tensor, and a row of another model
    lesson_11_judges    what runs and judges what the reader writes
    lesson_11_seats     the placement of the last part
    lesson_11_pictures  the drawings
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any
from unittest.mock import patch

import torch

from labkit import sandbox
from labkit.grpo import rollout, task
from labkit.grpo.advantage import group_advantage
from labkit.grpo.policy import Policy, token_logprobs

from .card import Tap
from .gpt2 import checkpoint, gpt2, with_lora

GIB, MIB = 2**30, 2**20
CUBLAS = 32 * MIB  # the workspace of a thread that multiplies matrices, on an H200
SECONDS = (
    180.0  # of a process, which takes ten on a quiet machine: a reader's function may not come back
)
TERMS = ("weights", "activations", "logits", "the rest")
CALLED = {"parameter": "weights", "activation": "activations", "logits": "logits"}
Size = tuple[int, int, int]  # rows, tokens of a prompt, tokens of an answer
Update = Callable[[Any, torch.optim.Optimizer, "Rows"], Any]


@dataclass
class Rows:
    """Answers with their prompts, scored: what an update of GRPO reads. T tokens a row, t of them new."""

    ids: torch.Tensor  # [rows, T]
    attention_mask: torch.Tensor  # [rows, T], 0 = padding
    positions: torch.Tensor  # [rows, T]
    counted: torch.Tensor  # [rows, t], 0 = after the end of the answer
    old_logp: torch.Tensor  # [rows, t] nats
    advantages: torch.Tensor  # [rows, 1]

    @property
    def new(self) -> int:
        return self.counted.shape[1]

    @property
    def answers(self) -> torch.Tensor:
        return self.ids[:, -self.new :]

    def split(self, parts: int) -> list[Rows]:
        """The same rows in so many equal parts."""
        tensors = [getattr(self, own.name).chunk(parts) for own in fields(self)]
        return [Rows(*columns) for columns in zip(*tensors, strict=True)]


def rows_without_data(rows: int, prompt: int, new: int) -> Rows:
    """Call it inside a tap: the tensors are fake."""
    ids = torch.zeros(rows, prompt + new, dtype=torch.long)
    ones = torch.ones(rows, new)
    return Rows(ids, torch.ones_like(ids), torch.zeros_like(ids), ones, ones, torch.ones(rows, 1))


@torch.no_grad()
def rows_of(policy: Policy, seed: int, prompts: int = 8, group: int = 8) -> Rows:
    """One rollout of the small policy on sums, with rewards and advantages."""
    add = task.get("add")
    asked = add.sample(prompts, random.Random(seed))
    generator = torch.Generator(policy.device).manual_seed(seed)
    out = rollout.generate(policy, asked, num_samples=group, generator=generator)
    rewards = task.rewards([prompt for prompt in asked for _ in range(group)], out.texts)
    scores = torch.tensor([float(reward) for reward in rewards], device=policy.device)
    new = out.tokens.shape[1]
    mask = out.attention_mask
    return Rows(
        ids=out.ids,
        attention_mask=mask,
        positions=(mask.cumsum(-1) - 1).clamp_min(0),
        counted=out.mask.float(),
        old_logp=token_logprobs(policy.model, out.ids, mask, new)[0],
        advantages=group_advantage(scores, group)[:, None],
    )


# ------------------------------------------------------------------------------------------- on a simulated card


def build(lora: int = 16, layers: int = 12) -> Any:
    """GPT-2 124M (or with other layers), with adapters of this rank; 0: all weights are trained."""
    model = gpt2(layers)
    return with_lora(model, lora).train() if lora else model.train()


def make_state(optimizer: torch.optim.Optimizer) -> None:
    """A first step on zero gradients, so that AdamW's two moments exist."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def no_padding() -> contextlib.AbstractContextManager[Any]:
    """transformers drops a mask of ones, which it reads; a fake mask it cannot read, so here it is told."""
    return patch("transformers.masking_utils._ignore_causal_mask_sdpa", lambda *_, **__: True)


def tapped(
    update: Update,
    *,
    rows: int = 32,
    prompt: int = 128,
    new: int = 128,
    lora: int = 16,
    checkpointing: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tap:
    """One update of GPT-2 124M on a simulated card without a limit; the optimizer's state is there before it."""
    tap = Tap(fake=True, cublas_workspace=CUBLAS)
    model = tap.build(lambda: build(lora).to(dtype))
    if checkpointing:
        checkpoint(model)
    with tap, no_padding():
        tap.adopt(model)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        data = rows_without_data(rows, prompt, new)
        make_state(optimizer)
        tap.mark("the update")
        tap.reset_peak()
        update(model, optimizer, data)
        tap.mark("done")
    return tap


@dataclass(frozen=True)
class Used:
    """What an update took on a simulated card without a limit, and what cards with one said. GiB.

    refused   GiB of a card -> the message with which it refuses this update, "" where it fits
    stopped   as `over_time`, until the first of these cards refuses
    died      why there are no figures: what the update itself died of
    """

    peak: float = math.nan
    terms: Mapping[str, float] = field(default_factory=dict)  # at the peak
    over_time: Mapping[str, list[float]] = field(default_factory=dict)
    stopped: Mapping[str, list[float]] = field(default_factory=dict)
    refused: Mapping[float, str] = field(default_factory=dict)
    died: str = ""


def on_cards(
    updates: Mapping[Any, Mapping[str, Any]], cards: Sequence[float] = (8,)
) -> dict[Any, Used]:
    """Name -> what `tapped(**settings)` took, and what cards of so many GiB say to it.

    Two processes take every other one. An update that does not come back takes with it those behind it in its process.
    """
    names, jobs = list(updates), {}
    halves = [names[0::2], names[1::2]]
    for half in filter(None, halves):
        jobs[half[0]] = {"updates": [updates[name] for name in half], "cards": cards}
    runs = sandbox.run_all(_used, jobs, timeout=SECONDS)
    found = {}
    for half in filter(None, halves):
        run = runs[half[0]]
        lost = Used(died=f"{run.outcome.signature} {run.outcome.message}".rstrip())
        for name, used in itertools.zip_longest(half, run.events, fillvalue=lost):
            found[name] = used
    return {name: found[name] for name in names}


def _used(updates: Sequence[Mapping[str, Any]], cards: Sequence[float]) -> Iterator[Used]:
    for settings in updates:
        try:
            tap = tapped(**settings)
        except Exception as error:
            yield Used(died=f"{type(error).__name__}: {error}")
            continue
        on_each = {gib: tap.replay(int(gib * GIB)) for gib in cards}
        refused = {gib: str(replayed.oom or "") for gib, replayed in on_each.items()}
        stopped = over_time(on_each[cards[0]].log, refused=bool(refused[cards[0]]))
        peak, terms = tap.peak / GIB, in_terms(tap.peak_by_category)
        yield Used(peak, terms, over_time(tap.log), stopped, refused)


def in_terms(categories: Mapping[str, int]) -> dict[str, float]:
    """GiB by the page's words, from bytes by the tap's categories."""
    held = dict.fromkeys(TERMS, 0.0)
    for category, size in categories.items():
        held[CALLED.get(category, "the rest")] += size / GIB
    return held


def over_time(log: Sequence[tuple], refused: bool = False) -> dict[str, list[float]]:
    """GiB by term after every allocation and free of the update; the last allocation of a refused one did not happen."""
    live: dict[int, tuple[str, int]] = {}
    held: Counter = Counter()
    lines: dict[str, list[float]] = {name: [] for name in TERMS}
    for event, *details in log[: len(log) - refused]:
        if details == ["done"]:
            break
        if event == "mark":
            lines = {name: [] for name in TERMS}
            continue
        number = details[0]
        if event != "malloc":
            term, size = live.pop(number)
            held[term] -= size
        if event != "free":
            size = details[1] if event == "malloc" else size
            term = CALLED.get(details[-1], "the rest")
            live[number] = (term, size)
            held[term] += size
        for name, line in lines.items():
            line.append(held[name] / GIB)
    return lines
