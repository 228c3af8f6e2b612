"""Lesson 06: the peaks of a rollout and of a training step on a simulated card.

Tensors are fake: what a card would hold is counted, and nothing is computed. The rotation is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers
from props.card import Tap
from props.lesson_06 import HALF, Rotation, in_memory, rotating_with

MIB = 2**20

SIZE: dict[str, Any] = {  # GPT-2 124M's
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 50257,
    "pad_token_id": 0,
}
SAMPLING = "sampling, 64 rows"
ANSWERS, ASKED, TOKENS = 64, 64, 1024  # rows, tokens of a prompt, tokens of a row
PIECES = (ASKED, 959, 1)  # tokens: the prompt, the answer but one token, then as a sampler does
STEPS = {"step, 1 row": 1, "step, 8 rows": 8}


def on_a_simulated_card(
    rotation: Rotation, steps: Mapping[str, int] = STEPS
) -> Iterator[dict[str, Any]]:
    """A rollout of 64 rows of 1,024 tokens and training steps on fake tensors: what a card would hold is counted, and
    nothing is computed.

    Yields one dict of MiB: "cache", the whole; the peak while the last token is written; that of each step. AdamW's two
    moments are there all the time.
    """
    seen: dict[str, Any] = {}
    tap = Tap(80 * 2**30, fake=True)
    model = tap.build(
        lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZE))
    ).eval()
    with rotating_with(rotation, model), tap:
        optimizer = torch.optim.AdamW(model.parameters())
        for parameter in model.parameters():
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": torch.tensor(0.0)} | moments
        seen["cache"], seen[SAMPLING] = rollout_on(tap, model)
        for name, rows in steps.items():
            tap.reset_peak()
            step_on(model, optimizer, rows)
            seen[name] = tap.peak / MIB
    yield seen


@torch.no_grad()
def rollout_on(tap: Tap, model: Any) -> tuple[float, float]:
    """MiB of the whole cache, and of the peak while the last token is written. The cache is gone afterwards."""
    cache = None
    for count in PIECES:
        if count == 1:
            tap.reset_peak()
        ids = torch.zeros(ANSWERS, count, dtype=torch.long)
        with torch.autocast("cpu", HALF):
            out = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
    return in_memory(cache) / MIB, tap.peak / MIB


def step_on(model: Any, optimizer: torch.optim.Optimizer, rows: int) -> None:
    """One update on rows of 1,024 tokens: the log-probs of the answers, backward, AdamW. No checkpointing."""
    ids = torch.zeros(rows, TOKENS, dtype=torch.long)
    with torch.autocast("cpu", HALF):
        logits = model(ids, use_cache=False, logits_to_keep=TOKENS - ASKED + 1).logits
    logp = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, ASKED:, None])
    (-logp.mean()).backward()
    optimizer.step()
    optimizer.zero_grad()


def step_peak(peaks: Mapping[str, float], rows: int) -> float:
    """MiB of a training step on this many rows: on the line through what 1 row and 8 rows took."""
    one, eight = peaks["step, 1 row"], peaks["step, 8 rows"]
    return one + (eight - one) * (rows - 1) / 7


def run_peak(peaks: Mapping[str, float], rows: int) -> float:
    """MiB of the whole run: sampling, or the step, whichever is higher."""
    return max(peaks[SAMPLING], step_peak(peaks, rows))


def saved(peaks: Mapping[str, Mapping[str, float]], whose: str, rows: int, planned: float) -> float:
    """How much lower the run's peak is than the bug's, in planned caches; NaN where that run died."""
    if not peaks[whose]:
        return float("nan")
    return (run_peak(peaks["bug"], rows) - run_peak(peaks[whose], rows)) / planned
