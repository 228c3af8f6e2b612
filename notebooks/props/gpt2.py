"""GPT-2 as the memory pages run it: transformers' own, with random weights and without dropout.

Dropout would draw a mask of its own for each pass, which is no part of what these pages count.
"""

from __future__ import annotations

import warnings
from typing import Any


def gpt2(layers: int = 12, positions: int = 1024) -> Any:
    """The small GPT-2 with full width and vocabulary, float32, or one of fewer layers; on torch's default device."""
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
    )  # a second, which the page's kernel need not spend

    off: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"n_layer": layers, "n_positions": positions}
    return GPT2LMHeadModel(GPT2Config(**sizes, **off, bos_token_id=0, eos_token_id=0))


def with_lora(model: Any, rank: int = 16) -> Any:
    """The same model with float32 adapters on attention's matrix, which alone are trained. Its tensors must not be fake."""
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(r=rank, target_modules=["c_attn"], fan_in_fan_out=True)
    with warnings.catch_warnings():  # peft 0.21 reads a name that transformers 5.23 retires
        warnings.simplefilter("ignore", FutureWarning)
        return get_peft_model(model, adapter).get_base_model()


def checkpoint(model: Any) -> None:
    """In training each layer keeps its input alone, and is computed again on the way back."""
    before_5_23 = model.gradient_checkpointing_enable  # transformers' name of it, and still there
    getattr(model, "activation_checkpointing_enable", before_5_23)()
