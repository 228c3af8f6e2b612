"""Pads, scorers for `labkit.grpo.Hooks` (what a trainer may hand to the model, or fail to), and a Qwen2 to score with.

A scorer is called as `labkit.grpo.policy.token_logprobs` is. This file trains nothing and draws nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from props.diagnosis import shuffled

from labkit.grpo.policy import Policy
from labkit.grpo.rollout import Completions

Scorer = Callable[..., tuple[torch.Tensor, torch.Tensor]]
OfMask = Callable[[torch.Tensor], Any]


def pad_left(
    ids: torch.Tensor, mask: torch.Tensor, pads: int, token: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same rows [B, T] with `pads` more columns on the left, which hold `token` and do not count."""
    more = ids.new_full((len(ids), pads), token)
    return torch.cat([more, ids], 1), torch.cat([torch.zeros_like(more), mask], 1)


def with_pads(out: Completions, pads: int) -> Completions:
    """The same answers, each prompt with `pads` more columns on the left."""
    ids, mask = pad_left(out.prompt_tokens, out.prompt_mask, pads)
    return dataclasses.replace(out, prompt_tokens=ids, prompt_mask=mask)


def scorer_with(**inputs: OfMask) -> Scorer:
    """A scorer that hands the model, besides the ids, what these functions make of the mask."""

    def scorer(
        model: Any, ids: torch.Tensor, mask: torch.Tensor, length: int, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        given = {name: of_mask(mask) for name, of_mask in inputs.items()}
        logits = model(input_ids=ids, use_cache=False, **given).logits[:, -length - 1 : -1]
        return logits.log_softmax(-1).gather(-1, ids[:, -length:, None])[..., 0], logits

    return scorer


def counted(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(1) - 1).clamp(min=0)


def same(mask: torch.Tensor) -> torch.Tensor:
    return mask


def everything(mask: torch.Tensor) -> torch.Tensor:
    """Every token sees every token that counts, the later ones too."""
    return mask[:, None, None, :].expand(-1, 1, mask.shape[1], -1).bool()


# What is handed over -> the scorer. "positions" has a mask of ones: without any, transformers takes the zeros among
# the positions for the beginnings of packed rows.
SCORERS = {
    "mask": scorer_with(attention_mask=same),
    "mask + positions": scorer_with(attention_mask=same, position_ids=counted),
    "positions": scorer_with(attention_mask=torch.ones_like, position_ids=counted),
    "neither": scorer_with(),
}


def of_three(new: Scorer, old: Scorer, reference: Scorer) -> Scorer:
    """A scorer for each of the three log-probs of a run."""

    def scorer(model: torch.nn.Module, *row: Any, **scaling: Any) -> Any:
        if torch.is_grad_enabled():
            return new(model, *row, **scaling)
        learns = next(model.parameters()).requires_grad
        return (old if learns else reference)(model, *row, **scaling)

    return scorer


def counted_in_every_second_group(mask: torch.Tensor) -> torch.Tensor:
    """Columns in the first 8 rows, in the third 8 and so on; right positions in the groups between them."""
    first = (torch.arange(len(mask), device=mask.device) // 8) % 2 == 0
    columns = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    return torch.where(first[:, None], columns, counted(mask))


def rotary(seed: int, device: torch.device | str) -> Any:
    """A Qwen2 of random weights with the tiny policy's vocabulary; its positions are rotary."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"vocab_size": 16, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(Qwen2Config(initializer_range=0.3, **sizes, **heads))
    return model.eval().to(device)


def unseen(policy: Policy, seed: int) -> list[tuple[str, Scorer]]:
    """Six scorers with their models inside, in an order that the seed decides: (what is wrong, the scorer)."""
    qwen = rotary(seed, policy.device)
    cases = {
        "positions": (policy.model, SCORERS["mask"]),
        "sound 1": (policy.model, SCORERS["mask + positions"]),
        "sound 2": (qwen, SCORERS["mask"]),
        "mask 1": (policy.model, SCORERS["positions"]),
        "mask 2": (qwen, SCORERS["positions"]),
        "later tokens": (
            policy.model,
            scorer_with(attention_mask=everything, position_ids=counted),
        ),
    }
    logs = {}
    for name, (model, scorer) in cases.items():
        logs[name] = {"score": lambda *row, _of=scorer, _model=model: _of(_model, *row)[0].detach()}
    return [(cause, log["score"]) for cause, log in shuffled(logs, seed)]
