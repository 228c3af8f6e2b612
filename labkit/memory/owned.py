"""What a model and its optimizer own of a device: the part of the memory that is meant to stay between two steps.

    print(torch.cuda.memory_allocated() - owned(model, optimizer))     # before every step: it should not grow

Under LoRA or in bfloat16 no formula is needed: the tensors that are there are added up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def owned(model: Any, optimizer: Any = None) -> int:
    """Bytes of the parameters, buffers, gradients and optimizer state that are there now, on the model's device.

    Tensors that share memory count once, so tied weights do. Of a model that FSDP or DeepSpeed has in pieces it counts
    what this process's tensors say, which may be the whole: there compare two steps with each other.
    """
    device = next(model.parameters()).device
    storages = {}
    for tensor in tensors_of(model, optimizer):
        if tensor.device == device:
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def tensors_of(model: Any, optimizer: Any) -> Iterator[Any]:
    """The parameters, buffers, gradients and optimizer state that are there now; a shared one more than once."""
    import torch

    parameters = list(model.parameters())
    if optimizer is not None:
        for group in optimizer.param_groups:  # float32 copies of half-precision weights stand here
            parameters += group["params"]
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))
    yield from parameters
    yield from model.buffers()
    yield from (parameter.grad for parameter in parameters if parameter.grad is not None)
