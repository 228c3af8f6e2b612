"""Which Python objects keep tensors alive. A memory history says who asked for a block; this says who still holds it.

    for holder in holders(model, optimizer):     # between two updates, when nobody needs a graph
        print(holder)                            # 0.90 GiB with its graph  Trainer.history[3]['loss']

A tensor with a graph holds what its backward pass would need, however small it is itself.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.common import format_size

from .owned import tensors_of

LEAST = 2**20  # bytes: what holds less is passed over
STEPS = 6  # objects on the way up from a tensor


@dataclass(frozen=True)
class Holder:
    """A tensor that a Python object refers to.

    way      how to get to it from the outermost object that was found: "Trainer.history[3]['loss']"
    nbytes   itself and what its graph has saved, as far as no holder before it in the list holds it, too
    graph    whether it has one
    """

    way: str
    nbytes: int
    graph: bool

    def __str__(self) -> str:
        with_graph = " with its graph" if self.graph else ""
        return f"{format_size(self.nbytes)}{with_graph}  {self.way}"


def holders(model: Any = None, optimizer: Any = None, *, least: int = LEAST) -> list[Holder]:
    """Tensors that Python objects refer to, and that hold at least so many bytes: the one that holds most first.

        model, optimizer   what they own is not listed, and not counted as saved by a graph; None: nothing is owned
        least              bytes

    All outputs of one forward pass share its graph: the first of them in the list has its bytes, and one that adds less
    than `least` is left out. A tensor to which only a graph refers counts for whoever holds the graph. One to which
    only a variable of a running function refers is not found: Python does not list those. It takes a second or two.
    """
    owned = set()
    if model is not None:
        owned = {tensor.untyped_storage()._cdata for tensor in tensors_of(model, optimizer)}
    gc.collect()
    found = []
    search = _Search()
    for tensor, holder in search.pairs(owned):
        sizes = behind(tensor, owned)
        if sum(sizes.values()) >= least:
            found.append((sizes, search.way_to(tensor, holder), tensor.grad_fn is not None))
    found.sort(key=lambda one: -sum(one[0].values()))
    listed: list[Holder] = []
    counted: set[int] = set()
    for sizes, way, graph in found:
        nbytes = sum(size for address, size in sizes.items() if address not in counted)
        if nbytes >= least:
            counted |= set(sizes)
            listed.append(Holder(way, nbytes, graph))
    return listed


def behind(tensor: Any, owned: set[int]) -> dict[int, int]:
    """Storages, address -> bytes, that live as long as this tensor does: its own, and those that its graph has saved.

    After `backward()` a graph has given back what it saved.
    """
    import torch

    kept, todo, seen = [tensor], [tensor.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [parent for parent, _ in node.next_functions]
        kept += _saved_by(node)
    sizes = {}
    for each in kept:
        if isinstance(each, torch.Tensor) and each.layout == torch.strided:
            storage = each.untyped_storage()
            if storage._cdata not in owned:
                sizes[storage._cdata] = storage.nbytes()
    return sizes


def _saved_by(node: Any) -> Iterator[Any]:
    """What a node of the graph keeps for its backward pass."""
    try:
        yield from getattr(node, "saved_tensors", ())  # of a torch.autograd.Function
        for name in dir(node):
            if name.startswith("_saved_"):
                value = getattr(node, name)
                yield from value if isinstance(value, (tuple, list)) else (value,)
    except RuntimeError:  # given back: backward has been through here
        return


class _Search:
    """Goes from tensors to what refers to them. What was made after it began is its own, and does not count."""

    def __init__(self) -> None:
        self.known = set(map(id, gc.get_objects()))
        self.found: dict[int, list[Any]] = {}

    def pairs(self, owned: set[int]) -> Iterator[tuple[Any, Any]]:
        """(tensor that nobody owns, a Python object that refers to it)."""
        import torch

        tensors = []
        for each in gc.get_objects():
            # isinstance would ask lazy modules for their class
            if issubclass(type(each), torch.Tensor) and each.untyped_storage()._cdata not in owned:
                tensors.append(each)
        holders = self.referrers(*tensors)  # all at once: each call looks at every object that there is
        for tensor in tensors:
            for holder in holders:
                if _step(holder, tensor):
                    yield tensor, holder
                    break

    def way_to(self, tensor: Any, holder: Any) -> str:
        """From the outermost object that is found, by the holder, to the tensor."""
        words, thing = "", tensor
        for _ in range(STEPS):
            if holder is None:
                break
            holder = self.whose(holder)
            words, thing = _step(holder, thing) + words, holder
            if isinstance(thing, types.ModuleType) or _is_globals(thing):
                break
            holder = None
            for each in self.referrers(thing):
                # an object in a variable of a closure: its class says enough
                past = isinstance(each, types.CellType) and thing is not tensor and _attributes(thing) is not None
                if not past and _step(each, thing):
                    holder = each
                    break
        return _name(thing) + words

    def whose(self, thing: Any) -> Any:
        """The object whose attributes these are, if they are somebody's."""
        owner = _owner(thing) if type(thing) is dict else None
        return thing if owner is None else owner

    def referrers(self, *things: Any) -> list[Any]:
        """What refers to one of them."""
        key = id(things[0]) if len(things) == 1 else 0
        if key not in self.found:
            found = []
            for each in gc.get_referrers(*things):
                if type(each) is dict and id(each) not in self.known:
                    each = _owner(each)  # to ask an object for its attributes may have made their dictionary
                if id(each) in self.known and type(each) is not types.FrameType:
                    found.append(each)
            self.found[key] = found
        return self.found[key]


def _name(thing: Any) -> str:
    if _is_globals(thing):
        return thing["__name__"]
    return getattr(thing, "__name__", type(thing).__name__)


def _is_globals(thing: Any) -> bool:
    return type(thing) is dict and "__name__" in thing and "__builtins__" in thing


def _owner(attributes: Any) -> Any:
    """The object whose attributes these are; None where they are nobody's."""
    for each in gc.get_referrers(attributes):
        if type(each) is not types.FrameType and _attributes(each) is attributes:
            return each
    return None


def _attributes(thing: Any) -> Any:
    if isinstance(thing, types.GeneratorType):
        return thing.gi_frame.f_locals if thing.gi_frame else None
    return None if isinstance(thing, type) else getattr(thing, "__dict__", None)


def _step(holder: Any, thing: Any) -> str:
    """How one gets from the holder to the thing: ".name", "['key']", "[3]"; "" where it holds it in no such way."""
    if isinstance(holder, types.FunctionType) and holder.__closure__ is thing:
        return ".__closure__"
    if isinstance(holder, types.CellType):
        try:
            return ".cell_contents" if holder.cell_contents is thing else ""
        except ValueError:  # empty
            return ""
    if isinstance(holder, dict):
        for key, value in list(holder.items()):
            if value is thing:
                return f".{key}" if _is_globals(holder) else f"[{key!r}]"
    if isinstance(holder, (list, tuple)):
        for at, value in enumerate(holder):
            if value is thing:
                return f"[{at}]"
    for name, value in dict(_attributes(holder) or {}).items():
        if value is thing:
            return f".{name}"
    return ""
