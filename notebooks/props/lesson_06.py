"""Lesson 06: its small models, the bytes of a cache, and a rotation put in the place of transformers' own.

The rotation, the rollout and the runs stand in the notebook. Models here have random weights: which dtype a tensor has
does not depend on what is in it. Beside this file:

    lesson_06_way       q, k and v on their way into the cache
    lesson_06_runs      GRPO, and what the ways to a narrow cache change
    lesson_06_card      the peaks of a rollout and of a step on a simulated card
    lesson_06_judges    what judges the reader's functions
    lesson_06_pictures  the drawings, and the tables that are made of results
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from torch import Tensor, nn

HALF = torch.bfloat16
MIXED = "mixed"  # bfloat16 Linears; norms and embedding float32, as peft's preparation of k-bit models leaves them
ROWS, PROMPT, VOCAB = 8, 12, 64
HEADS, HEAD_SIZE = 4, 32
SHAPE: dict[str, Any] = {
    "hidden_size": HEADS * HEAD_SIZE,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "vocab_size": VOCAB,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,  # so that every row is sampled to the end
}
MODELS = {  # as people write them, and as transformers does
    "Llama": "Llama",
    "Qwen2": "Qwen2",
    "Qwen3": "Qwen3",
    "OLMo 2": "Olmo2",
    "Cohere": "Cohere",
}
Rotation = Callable[..., tuple[Tensor, Tensor]]


def small(
    name: str, seed: int, device: torch.device, weights: torch.dtype | str = torch.float32
) -> Any:
    """A causal model of transformers: two layers, random weights of this dtype (or MIXED), norms whose weights are not all 1.

    Only parameters are cast. `model.bfloat16()` would round the rotation's frequencies, too.
    """
    torch.manual_seed(seed)
    shape = dict(SHAPE)
    if name == "Qwen3":
        shape["head_dim"] = HEAD_SIZE
    config = getattr(transformers, f"{MODELS[name]}Config")(**shape)
    model = getattr(transformers, f"{MODELS[name]}ForCausalLM")(config)
    for key, parameter in model.named_parameters():
        if "norm" in key:
            nn.init.uniform_(parameter, 0.5, 1.5)
        parameter.data = parameter.data.to(_dtype_of(key, weights))
    return model.to(device).eval()


def _dtype_of(parameter: str, weights: torch.dtype | str) -> torch.dtype:
    """The dtype of a parameter of this name in a model whose weights are so."""
    if isinstance(weights, torch.dtype):
        return weights
    if "_proj" in parameter:
        return HALF
    return torch.float32


def random_prompts(
    seed: int, device: torch.device, rows: int = ROWS, tokens: int = PROMPT
) -> Tensor:
    """[rows, tokens] token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (rows, tokens), generator=generator).to(device)


def in_memory(cache: Any) -> int:
    """Bytes of all keys and values."""
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def by_plan(cache: Any) -> float:
    """The bytes of a cache by those of its plan, 2 for each number."""
    numbers = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    return in_memory(cache) / (2 * numbers)


def word(dtype: torch.dtype) -> str:
    """ "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def module_of(model: Any) -> Any:
    """The file of transformers with a model's attention: the model calls the `apply_rotary_pos_emb` that it finds there."""
    return sys.modules[type(model.model.layers[0].self_attn).__module__]


@contextlib.contextmanager
def rotating_with(rotation: Rotation | None, model: Any) -> Iterator[None]:
    """Let all models of this one's file use a rotation; None leaves them their own. Put back on exit."""
    module = module_of(model)
    own = module.apply_rotary_pos_emb
    module.apply_rotary_pos_emb = rotation or own
    try:
        yield
    finally:
        module.apply_rotary_pos_emb = own
