"""A few steps of transformers' Trainer on a simulated card, for a callback that logs what is held."""

from __future__ import annotations

import tempfile
from typing import Any

from props.card import Tap

GIB = 2**30


def train_a_little(callback: Any, steps: int = 4) -> None:
    """Train a GPT-2 of two thin layers on made rows; what it allocates on the CPU is counted as a card's."""
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        PrinterCallback,
        Trainer,
        TrainingArguments,
    )

    config = GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=256, n_positions=64, bos_token_id=0, eos_token_id=0)  # fmt: skip
    rows = []
    for first in range(2 * steps):
        ids = [(first + at) % 256 for at in range(32)]
        rows.append({"input_ids": ids, "labels": ids})
    with tempfile.TemporaryDirectory() as folder, Tap(8 * GIB) as tap:
        model = GPT2LMHeadModel(config)
        model.loss_type = (
            "ForCausalLM"  # transformers 5.23 does not find it by the model's name, and warns
        )
        tap.adopt(model)
        settings = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=2, use_cpu=True, report_to=[],
            disable_tqdm=True, save_strategy="no", logging_strategy="no",
        )  # fmt: skip
        trainer = Trainer(model, settings, train_dataset=rows, callbacks=[callback])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
