"""GPT-2 as the memory pages run it: fewer layers, no dropout, LoRA where it is asked for. Weights are drawn, none is read.

Shared by pages 07 and 15. What is done with the model is a page's own business.
"""

from __future__ import annotations

import warnings
from typing import Any

WITHOUT_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def gpt2(layers: int) -> Any:
    """GPT-2's widths and tables with so many of its twelve layers, in float32."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=layers, **WITHOUT_DROPOUT))


def with_lora(model: Any, rank: int) -> Any:
    """The same model with adapters on the attention's matrix, which alone are trained then."""
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(r=rank, target_modules=["c_attn"], fan_in_fan_out=True)
    with warnings.catch_warnings():  # peft 0.21 reads a name that transformers 5.23 retires
        warnings.simplefilter("ignore", FutureWarning)
        return get_peft_model(model, adapter).get_base_model()
