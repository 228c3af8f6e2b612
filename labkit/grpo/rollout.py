"""Sample a group of completions for every prompt, with a key/value cache.

One prefill at one row a prompt, then the cache and the logits are repeated `num_samples` times
**before** the first token is drawn, so that every completion draws its own. This file does not
score and does not train.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .policy import Policy, scaled

Sampler = Callable[[torch.Tensor], torch.Tensor]  # logits [B, V] -> tokens [B]


@dataclass(frozen=True)
class Completions:
    """Sampled completions. Rows of one group are adjacent: row `p * num_samples + s`."""

    tokens: torch.Tensor  # [B, T] completion tokens; pad after the end
    mask: torch.Tensor  # [B, T] 1 = counts: up to and including the end-of-sequence token
    prompt_tokens: torch.Tensor  # [B, T0] left padded
    prompt_mask: torch.Tensor  # [B, T0] 1 = counts
    texts: list[str]  # B
    num_samples: int

    @property
    def ids(self) -> torch.Tensor:
        """Prompt and completion: [B, T0 + T]."""
        return torch.cat([self.prompt_tokens, self.tokens], 1)

    @property
    def attention_mask(self) -> torch.Tensor:
        """[B, T0 + T], 1 = counts."""
        return torch.cat([self.prompt_mask, self.mask.to(self.prompt_mask.dtype)], 1)

    def take(self, rows: torch.Tensor) -> Completions:
        """Some of the rows, for a micro-batch: groups may be cut."""
        return Completions(
            tokens=self.tokens[rows],
            mask=self.mask[rows],
            prompt_tokens=self.prompt_tokens[rows],
            prompt_mask=self.prompt_mask[rows],
            texts=[self.texts[i] for i in rows.tolist()],
            num_samples=self.num_samples,
        )


def sample_tokens(
    logits: torch.Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    logit_max: float | None = None,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """One token a row: logits [B, V] -> tokens [B]. Each row is drawn on its own.

    `top_k` 0 and `top_p` 1 switch the filters off. `torch.multinomial` is where a policy with NaN
    logits dies.
    """
    logits = scaled(logits, temperature, logit_max)
    if 0 < top_k < logits.shape[-1]:
        kth = logits.topk(top_k, -1).values[:, -1:]  # [B, 1]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if top_p < 1.0:
        sorted_logits, order = logits.sort(-1, descending=True)
        p = sorted_logits.softmax(-1)
        before = p.cumsum(-1) - p  # mass ahead of each token: 0 for the likeliest, so it stays
        cut = (before >= top_p).scatter(-1, order, before >= top_p)
        logits = logits.masked_fill(cut, float("-inf"))
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)  # [B]


def each_row(logits: torch.Tensor, num_samples: int, sample: Sampler) -> torch.Tensor:
    """The first token of each completion: repeat the logits, then draw. [P, V] -> [P * samples]."""
    return sample(logits.repeat_interleave(num_samples, 0))


@torch.no_grad()
def generate(
    policy: Policy,
    prompts: list[str],
    *,
    num_samples: int = 8,
    max_new_tokens: int = 4,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    logit_max: float | None = None,
    generator: torch.Generator | None = None,
    first_token: Callable[[torch.Tensor, int, Sampler], torch.Tensor] = each_row,
    sample_tokens: Callable[..., torch.Tensor] = sample_tokens,
) -> Completions:
    """`num_samples` completions for each prompt; B = len(prompts) * num_samples.

    `first_token` and `sample_tokens` are the two places where a token is drawn, for a lesson to
    swap. `generator` lives on the policy's device. ValueError names a setting that cannot be.
    """
    check_settings(num_samples=num_samples, max_new_tokens=max_new_tokens)
    check_settings(temperature=temperature, top_k=top_k, top_p=top_p)
    model, eos, pad = policy.model, policy.tokenizer.eos_token_id, policy.tokenizer.pad_token_id

    def sample(logits: torch.Tensor) -> torch.Tensor:
        return sample_tokens(logits, temperature, top_k, top_p, logit_max, generator)

    ids, mask = policy.encode(prompts)  # [P, T0]
    # padded on the left: a prompt's first token has position 0 wherever it stands in its row
    position = (mask.cumsum(-1) - 1).clamp_min(0)
    # prefill, one row a prompt
    out = model(input_ids=ids, attention_mask=mask, position_ids=position, use_cache=True)
    cached = {"past_key_values": out.past_key_values, "use_cache": True}
    # the cache is repeated before the first token is drawn: each completion draws its own
    out.past_key_values.batch_repeat_interleave(num_samples)
    token = first_token(out.logits[:, -1], num_samples, sample)  # [B]
    ids, mask = ids.repeat_interleave(num_samples, 0), mask.repeat_interleave(num_samples, 0)
    attention, position = mask, position[:, -1:].repeat_interleave(num_samples, 0)
    alive = torch.ones_like(token, dtype=torch.bool)
    tokens, counts = [], []
    for _ in range(max_new_tokens):
        tokens.append(token.masked_fill(~alive, pad))
        # the end token itself counts: the policy must learn to stop
        counts.append(alive)
        alive = alive & (token != eos)
        if len(tokens) == max_new_tokens or not alive.any():
            break
        attention = torch.cat([attention, counts[-1][:, None].to(attention.dtype)], 1)
        position = position + 1
        out = model(
            input_ids=tokens[-1][:, None], attention_mask=attention, position_ids=position, **cached
        )
        token = sample(out.logits[:, -1])
    completions = torch.stack(tokens, 1)  # [B, T]
    texts = policy.decode(completions)
    return Completions(completions, torch.stack(counts, 1).long(), ids, mask, texts, num_samples)


def check_settings(**settings: float) -> None:
    """ValueError for a setting outside its range, naming it and the range.

    Where the range is of `int`, so is the setting.
    """
    greedy = "greedy decoding gives identical completions and no advantage"
    ranges: dict[str, tuple[float, float, str]] = {
        "temperature": (1e-6, 1e30, f"above 0 ({greedy})"),
        "top_k": (0, 1 << 60, "0 (off) or more"),
        "top_p": (1e-9, 1.0, "in (0, 1]"),
        "lr": (1e-30, 1e30, "above 0"),
        "clip": (1e-30, 1e30, "above 0"),
        "max_norm": (1e-30, 1e30, "above 0; None: no limit"),
    }
    for name, value in settings.items():
        low, high, expected = ranges.get(name, (1, 1 << 60, "a whole number, at least 1"))
        # `not low <= value` and not `value < low`: a NaN is out of range too
        if not low <= value <= high or (isinstance(low, int) and not isinstance(value, int)):
            raise ValueError(f"{name} = {value}: must be {expected}")
