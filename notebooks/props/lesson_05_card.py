"""Lesson 05: its model, and the card that the model is on: a GPU limited to 8 GiB, or a simulated one.

On the simulated card tensors are fake (sizes and lifetimes, no data), and a tap plays each allocation to the simulator
of PyTorch's allocator.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import memory

from .card import CardMeter, Tap
from .gpt2 import checkpoint, gpt2, with_lora

GIB = 2**30
CARD = 8 * GIB


class Numbers(TorchDispatchMode):
    """`.item()` of a tensor without data gives 0 in place of an error."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            return 0.0


def place(device: str) -> str:
    """ "cuda" where a GPU has room for the card, else "cpu": a simulated card. Exported allocator settings go."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        os.environ.pop(name, None)
    free = torch.cuda.mem_get_info()[0] if device != "cpu" and torch.cuda.is_available() else 0
    return "cuda" if free > CARD + GIB else "cpu"


def at_once(where: str) -> int | None:
    """Runs that may go side by side: on a GPU as many as it has room for cards; None: one for each core."""
    if where != "cuda":
        return None
    room = torch.cuda.mem_get_info()[0] // (CARD + GIB)  # a GiB for each run's CUDA context
    return max(1, min(room, os.cpu_count() or 1))


def card_name(where: str) -> str:
    if where == "cuda":
        return f"{torch.cuda.get_device_name()}, limited to {CARD // GIB} GiB"
    return f"a simulated card of {CARD // GIB} GiB"


@contextlib.contextmanager
def model_on_card(
    where: str, card: int, kind: str = "float32", layers: int = 3, stacks: bool = False
) -> Iterator[tuple[Any, Any]]:
    """A model on a card of so many bytes, and the card's meter. With `stacks` a block knows who asked for it."""
    if where == "cuda":
        if stacks:
            torch.cuda.memory._record_memory_history(stacks="python")
        with memory.limit(card, "cuda"):
            yield build(where, kind, layers), memory.meter("cuda")
        return
    tap = Tap(card, fake=True, stacks=stacks)
    if kind in ("bfloat16", "LoRA"):  # torch cannot convert a fake model, nor put layers into it
        model = tap.build(lambda: build(None, kind, layers))
        with tap, Numbers():
            tap.adopt(model)
            yield model, CardMeter(tap)
        return
    with tap, Numbers():
        yield build(where, kind, layers), CardMeter(tap)


def build(where: str | None, kind: str, layers: int) -> Any:
    """GPT-2 with three of its twelve layers, full width and full vocabulary, no dropout.

    where  None: on torch's default device, and the model has not run yet
    kind   "float32", "bfloat16", "LoRA" (float32, adapters on the attention's matrix), "checkpointing" (float32)
    """
    with torch.device(where) if where else contextlib.nullcontext():
        model = gpt2(layers, positions=2048)
    model.loss_type = "ForCausalLM"
    if kind == "bfloat16":
        model = model.bfloat16()
    if kind == "checkpointing":
        checkpoint(model)
    if kind == "LoRA":
        model = with_lora(model)
    if where:
        with torch.no_grad():  # on a GPU cuBLAS takes its workspace here, not in a measurement
            model(input_ids=tokens(model.device, 1, 8))
    return model.train()


def tokens(where: Any, rows: int, length: int) -> torch.Tensor:
    return torch.zeros(rows, length, dtype=torch.long, device=where)


def empty_cache() -> None:
    """`torch.cuda.empty_cache()`, on the GPU or on the simulated card that is in use."""
    memory.meter().empty_cache()
