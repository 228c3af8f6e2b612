"""Load a policy: one of the two that ship with the package, a local folder, or a hub name.

Every source goes through transformers' Auto classes. `token_logprobs` turns logits into
log-probabilities. This file does not sample and does not train.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from labkit.common import uncollected

CHECKPOINTS = Path(__file__).resolve().parent.parent / "checkpoints"


@dataclass
class Policy:
    """A causal language model with its tokenizer. Dropout is off, so that the ratio is 1 on the
    first inner update."""

    model: Any  # transformers PreTrainedModel
    tokenizer: Any
    name: str

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def vocab(self) -> int:
        """Rows of the embedding table: token ids must be below this."""
        return self.model.get_input_embeddings().num_embeddings

    def encode(self, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Left-padded ids `[P, T]` and attention mask `[P, T]` (1 = counts) on the policy's
        device."""
        if not prompts:
            raise ValueError("prompts: got an empty list; a rollout needs at least one prompt")
        enc = self.tokenizer(list(prompts), return_tensors="pt", padding=True)
        return enc["input_ids"].to(self.device), enc["attention_mask"].to(self.device)

    def decode(self, tokens: torch.Tensor) -> list[str]:
        """Completion texts; pad and end-of-sequence are left out."""
        return self.tokenizer.batch_decode(tokens, skip_special_tokens=True)


def pick_device(device: str = "auto") -> torch.device:
    """`auto` takes CUDA where there is one. ValueError for an unknown or absent device."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device {device!r}: expected auto, cpu, cuda or cuda:N") from None
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        problem = f"torch {torch.__version__} sees no CUDA device here by that name"
        raise ValueError(f"device {device!r}: {problem}; use cpu or auto")
    return chosen


def load(name: str = "tiny", device: str = "auto") -> Policy:
    """`tiny` or `tiny-long` (they ship with labkit), a local folder, or a hub name such as
    `Qwen/Qwen2.5-0.5B-Instruct`.

    float32 parameters, dropout off. ValueError, in one line with the ways out, when it cannot be
    had.
    """
    shipped = CHECKPOINTS / name
    source = shipped if (shipped / "config.json").is_file() else name
    chosen = pick_device(device)
    with uncollected():
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any
    with _quiet(), uncollected():  # from_pretrained imports the model's own module
        try:
            model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ValueError(
                f"model {name!r} cannot be loaded ({type(error).__name__}). Ways out: "
                "--model tiny (in labkit); a local folder made by save_pretrained; or, with a "
                "network and without HF_HUB_OFFLINE=1, a hub name such as gpt2 or "
                "Qwen/Qwen2.5-0.5B-Instruct"
            ) from None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    # eval: with dropout the old policy and the policy would differ before the first step
    loaded = Policy(model.to(chosen).eval(), tokenizer, name)
    if len(tokenizer) > loaded.vocab:
        raise ValueError(
            f"model {name!r}: its tokenizer has {len(tokenizer)} tokens, its embedding only "
            f"{loaded.vocab} rows; call model.resize_token_embeddings(len(tokenizer)) and save it"
        )
    return loaded


def token_logprobs(
    model: Any,
    ids: torch.Tensor,
    attention_mask: torch.Tensor,
    length: int,
    temperature: float = 1.0,
    logit_max: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the last `length` tokens and the logits that gave them.

    `ids`, `attention_mask`: [B, T0 + T]. Returns ([B, T] nats, [B, T, V] logits after temperature
    and clamp). The logits are divided by the sampling temperature, so that the ratio is 1 on the
    first inner update.
    """
    position = (attention_mask.cumsum(-1) - 1).clamp_min(0)
    out = model(
        input_ids=ids, attention_mask=attention_mask, position_ids=position, use_cache=False
    )
    logits = out.logits[:, -length - 1 : -1]  # [B, T, V]: position t predicts token t + 1
    return _of_tokens(logits, ids[:, -length:], temperature, logit_max)


def token_logprobs_of_groups(
    model: Any,
    ids: torch.Tensor,
    attention_mask: torch.Tensor,
    length: int,
    temperature: float = 1.0,
    logit_max: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `token_logprobs` gives, to rounding, with each prompt computed once for all of its
    completions.

    A group of 8 repeats its prompt 8 times. The keys and values of one copy serve the whole group,
    and their gradient is the sum over the group. Operands and results as for `token_logprobs`; the
    prompt is all but the last `length` tokens of a row, padded on the left.
    benchmarks/bench_groups.py has the two side by side.
    """
    start = ids.shape[1] - length
    position = (attention_mask.cumsum(-1) - 1).clamp_min(0)
    rows = torch.stack([ids, attention_mask], -1)[:, :start]  # [B, T0, 2]
    prompts, prompt_of_row = rows.unique(dim=0, return_inverse=True)
    # contiguous, as a GPU's embedding has another kernel, with another assertion, for a strided
    # view
    prompt_ids = prompts[..., 0].contiguous()  # [P, T0]
    prompt_mask = prompts[..., 1].contiguous()
    prompt_position = (prompt_mask.cumsum(-1) - 1).clamp_min(0)
    out = model(
        input_ids=prompt_ids,
        attention_mask=prompt_mask,
        position_ids=prompt_position,
        use_cache=True,
    )
    if out.logits.dtype in (torch.bfloat16, torch.float16):
        # autocast, or a model of 16 bits: the sum of a group's gradients would be rounded to 16
        # bits as well
        return token_logprobs(model, ids, attention_mask, length, temperature, logit_max)
    # the prompt's last token predicts the first of the completion
    logits = out.logits[prompt_of_row, -1:]  # [B, 1, V]
    if length > 1:
        cache = out.past_key_values
        cache.batch_select_indices(prompt_of_row)  # one row a completion
        rest = {"attention_mask": attention_mask[:, :-1], "position_ids": position[:, start:-1]}
        out = model(input_ids=ids[:, start:-1], **rest, past_key_values=cache, use_cache=True)
        logits = torch.cat([logits, out.logits], 1)  # [B, T, V]
    return _of_tokens(logits, ids[:, -length:], temperature, logit_max)


def _of_tokens(
    logits: torch.Tensor, tokens: torch.Tensor, temperature: float, logit_max: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = scaled(logits, temperature, logit_max)
    logp = logits.log_softmax(-1).gather(-1, tokens[:, :, None]).squeeze(-1)  # [B, T]
    return logp, logits


def scaled(logits: torch.Tensor, temperature: float, logit_max: float | None) -> torch.Tensor:
    """Logits as they are sampled and scored: clamped to +-`logit_max`, divided by temperature."""
    # float32 first: a softmax in 16 bits loses the rare tokens
    logits = logits.float()
    if logit_max is not None:
        logits = logits.clamp(-logit_max, logit_max)
    return logits / temperature


@contextlib.contextmanager
def _quiet():
    """transformers draws a bar while loading weights; a lesson's output must not depend on it."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
