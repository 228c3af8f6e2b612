"""How many bytes of tensors are alive, counted from the operation that made each one until its storage dies.

It runs under the code of a stranger, for one device: on a CPU model the CPU's tensors stand for the card's. Views and
in-place operations share a storage and count once; what autograd saves counts as long as autograd keeps it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """A context manager; `alive` is the number of bytes now.

    device   whose tensors are counted: "cpu", "cuda"
    """

    def __init__(self, device: str):
        super().__init__()
        self.device = torch.device(device).type
        self.alive = 0
        self._followed: dict[int, weakref.ref[Any]] = {}  # the storage's address -> the storage
        self._aside = 0  # how many `host()` blocks are open

    def adopt(self, model: nn.Module) -> None:
        """Count what the model has already, so that it is nobody's leftover."""
        for tensor in [*model.parameters(), *model.buffers()]:
            self._follow(tensor)

    @contextlib.contextmanager
    def host(self) -> Iterator[None]:
        """What is made inside stands for the host's memory: it is not counted."""
        self._aside += 1
        try:
            yield
        finally:
            self._aside -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled():  # composite operations arrive whole there: take them apart
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if not self._aside:
            given = {t.untyped_storage()._cdata for t in tensors_in([args, kwargs])}
            for tensor in tensors_in([out]):
                if tensor.untyped_storage()._cdata not in given:  # else a view, or the operand itself
                    self._follow(tensor)
        return out

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if tensor.device.type != self.device or not size or address in self._followed:
            return

        def died(_: Any) -> None:
            self.alive -= size
            self._followed.pop(address, None)

        self.alive += size
        self._followed[address] = weakref.ref(storage, died)


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple, Mapping)):
            yield from tensors_in(value.values() if isinstance(value, Mapping) else value)
