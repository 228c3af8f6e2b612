"""Storages: each is one block of the ledger, from the operation that returns it until it dies.

Views and in-place operations share a storage, so they count once. What a block is for, this file is told.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from .ledger import Ledger
from .simulator import OutOfMemory


class Storages:
    """Follows storages, and tells the ledger.

    One may die anywhere, also in the middle of a malloc: while the ledger is `busy`, its number waits in `dead`.
    """

    def __init__(self, ledger: Ledger):
        self._ledger = ledger
        self._blocks: dict[int, _Followed] = {}  # StorageImpl address -> block
        self._dead: deque[int] = deque()
        self._busy = False
        self._sum: _Sum | None = None

    @property
    def ledger(self) -> Ledger:
        """The book-keeping, brought up to date."""
        if not self._busy:
            self._decide()
        self._free_dead()
        return self._ledger

    def hold(
        self, tensor: torch.Tensor, category: str, known: Callable[[], set[int]] | None = None
    ) -> None:
        """Follow a tensor's storage. `known()`: the storages that went into the operation the tensor came out of."""
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        self._decide()
        if key in self._blocks:
            # Adopted by name: the label is better than what the tap had guessed.
            if known is None:
                self._ledger.relabel(self._blocks[key].number, category)
        elif nbytes and (known is None or key not in known()):
            self.follow(storage, self.malloc(nbytes, category))

    def label(self, tensor: torch.Tensor, category: str) -> None:
        """Rename the block of a storage that is followed."""
        key = key_of(tensor)
        if self._sum is not None and self._sum.key == key:
            self._sum = self._sum._replace(category=category)
        elif key in self._blocks:
            self._ledger.relabel(self._blocks[key].number, category)

    def add_gradients(
        self, one: torch.Tensor, other: Any, total: torch.Tensor, category: str
    ) -> bool:
        """Note a sum that autograd would make in place. False if it could not (a view holds its base)."""
        first = self._blocks.get(key_of(one))
        same = (
            isinstance(other, torch.Tensor)
            and one.shape == other.shape
            and one.dtype == total.dtype
        )
        if (
            first is None
            or not same
            or one._is_view()
            or first.nbytes != total.untyped_storage().nbytes()
        ):
            return False
        self._decide()
        self._sum = _Sum(
            key_of(total), weakref.ref(total.untyped_storage()), first.number, category
        )
        return True

    def malloc(self, nbytes: int, category: str) -> int:
        """A new block; returns its number. Raises: torch.OutOfMemoryError where CUDA would."""
        ledger, self._busy = self.ledger, True
        try:
            return ledger.malloc(nbytes, category)
        except OutOfMemory as error:
            raise torch.OutOfMemoryError(str(error)) from error
        finally:
            self._busy = False
            self._free_dead()

    def follow(self, storage: Any, number: int) -> None:
        """From now on the block is this storage's, until the storage dies."""
        key, ours = storage._cdata, weakref.ref(self)

        def died(_: weakref.ref) -> None:
            storages = ours()
            if storages is not None:
                storages._died(key, number)

        self._blocks[key] = _Followed(storage.nbytes(), number, weakref.ref(storage, died))

    def _died(self, key: int, number: int) -> None:
        followed = self._blocks.get(key)
        if followed is not None and followed.number == number:
            del self._blocks[key]
        pending, total = self._sum, None
        if pending is not None and pending.first == number and not self._busy:
            self._sum, total = None, pending.storage()
        if pending is None or total is None:
            self._dead.append(number)
            self._free_dead()
        else:  # the sum takes over the block of the first gradient
            self._ledger.relabel(number, pending.category)
            self.follow(total, number)

    def _decide(self) -> None:
        """The next event is here, and the first gradient of a waiting sum is alive: the sum gets a block of its own."""
        pending, self._sum = self._sum, None
        total = pending.storage() if pending is not None else None
        if pending is not None and total is not None:
            self.follow(total, self.malloc(total.nbytes(), pending.category))

    def _free_dead(self) -> None:
        while self._dead and not self._busy:
            self._busy = True
            try:
                self._ledger.free(self._dead.popleft())
            finally:
                self._busy = False


class _Followed(NamedTuple):
    nbytes: int
    number: int  # of the block
    storage: weakref.ref


class _Sum(NamedTuple):
    """A sum of two gradients that waits for the next event, to see whether the first one dies.

    Autograd adds in place where nobody else holds the first gradient, but never under a dispatch mode
    (`can_accumulate_inplace` in torch/csrc/autograd/input_buffer.cpp). So this undoes what watching changes.
    """

    key: int  # the sum's storage
    storage: weakref.ref
    first: int  # the number of the first gradient's block
    category: str


def key_of(tensor: torch.Tensor) -> int:
    """The address of its StorageImpl."""
    return tensor.untyped_storage()._cdata


def tensors(thing: Any) -> Iterator[torch.Tensor]:
    """Tensors in an operation's arguments and results, in containers, transformers' model outputs and KV caches."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, (list, tuple, set, dict)):
        for item in thing.values() if isinstance(thing, dict) else thing:
            yield from tensors(item)
    elif isinstance(getattr(thing, "layers", None), list):  # transformers.Cache
        for layer in thing.layers:
            yield from tensors([getattr(layer, "keys", None), getattr(layer, "values", None)])
