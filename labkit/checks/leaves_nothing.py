"""Does an evaluation put everything back? It runs a stranger's evaluation under a counter that follows each storage.

It sees what a function of torch returns, and not what such a function keeps inside.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from labkit.common import format_size

from .report import PASS, CannotJudge, Report, Verdict, attempt, caution, fail, judged, undisturbed

CLAIM = "an evaluation keeps no tensor on the device, builds no graph and puts the model back as it was"

# What to say of a part of the model that was not put back.
ADVICE = {
    "dtypes": "The parameters have another dtype, or are others, than before. Likely `.half()` or `.to(...)`: rounded "
    "weights cannot be put back; use autocast inside the evaluation.",
    "weights": "The weights are not what they were. Likely averaged weights were loaded, or adapters merged, for the "
    "evaluation: put the training weights back, bit by bit.",
    "requires_grad": "`requires_grad` is not what it was: such parameters are not trained any more, and nothing says "
    "so. Use `torch.inference_mode()` in its place.",
    "settings": "The model's config, or its gradient checkpointing, is not what it was: put each value back.",
}


def leaves_nothing(
    evaluate: Callable[[nn.Module], Any], model: nn.Module, *, losses: Sequence[float] | None = None
) -> Report:
    """Judge `evaluate(model)`: called with the model in training mode and one submodule in eval mode.

    It runs twice, with the model's storages counted. What is alive after a call and was not before counts, after a
    garbage collection: in what it returned, and anywhere else. The model must run, in eval mode and without gradients;
    each submodule's `training` flag and the caller's grad mode must be as before, and so must the weights, bit by bit,
    their dtypes and `requires_grad`, gradient checkpointing and the model's config. Tensors and flags are put back, a
    changed config is not. Then the model raises on the way, as out of memory does: flags that stay then are a caution.

        losses  the numbers that the result must hold, in order and to 0.1 %, when you know them

    Raises: TypeError when `model` is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"leaves_nothing: expected a torch module as model, got {type(model).__name__}")
    return judged("leaves_nothing", CLAIM, evaluate, lambda evidence: _judge(evaluate, model, losses, evidence))


@dataclass
class _Calls:
    """What the calls left, in bytes, and how the model was run in them."""

    elsewhere: list[int] = field(default_factory=list)  # alive after each call, outside what it returned
    returned: list[int] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    with_gradients: bool = False
    training: list[str] = field(default_factory=list)  # submodules that ran in training mode
    grad_mode: bool = True  # back as it was
    modes: list[str] = field(default_factory=list)  # submodules whose training flag is not what it was
    changed: str = ""  # what else of the model is not what it was, in words
    values: list[Any] | None = None  # numbers and texts of the result; None when it returned None


def _judge(
    evaluate: Callable[..., Any], model: nn.Module, losses: Sequence[float] | None, evidence: dict[str, Any]
) -> Verdict:
    flags = {module: module.training for module in model.modules()}
    state = _State(model)
    gc.freeze()  # so that a collection looks only at what was made since: a whole one is slow
    try:
        with _DeviceBytes(model) as device:
            calls, held = _Calls(), device.alive  # before the first call: what is left adds up
            for _ in range(2):
                _run(evaluate, model, state, device, held, calls)
        if not calls.forwards[1]:
            again = "in the second call: its answer is cached" if calls.forwards[0] else "so nothing was evaluated"
            raise CannotJudge(f"The model did not run, {again}.", forwards=calls.forwards)
        return _of_calls(calls, losses, evidence) or _when_it_dies(evaluate, model)
    finally:
        gc.unfreeze()
        state.restore(model)
        for module, training in flags.items():
            module.training = training


def _of_calls(calls: _Calls, losses: Sequence[float] | None, evidence: dict[str, Any]) -> Verdict | None:
    kept, returned = max(calls.elsewhere), max(calls.returned)
    grows = calls.elsewhere[1] > calls.elsewhere[0]
    training, modes = (", ".join(list(dict.fromkeys(names))[:3]) for names in (calls.training, calls.modes))
    evidence |= {"kept": format_size(kept), "in the result": format_size(returned), "grows with each call": grows}
    evidence |= {"gradients on inside": calls.with_gradients, "grad mode restored": calls.grad_mode}
    evidence |= {"eval mode inside": not training, "modes restored": not modes, "changed": calls.changed or "nothing"}
    evidence["result"] = "none" if calls.values is None else f"{len(calls.values)} values"
    if calls.changed:
        return fail(ADVICE[calls.changed])
    holder = ""
    if grows:
        holder = "Every call leaves more on the device. Likely a history, a cache or a list outside the function."
    elif kept > 0:
        holder = "Something outside the function still holds a tensor of its call: an attribute, a global."
    elif returned > 0:
        holder = "The result is on the device. Return numbers, or `.cpu()` copies of what you need."
    if holder and calls.with_gradients:
        holder += " It holds the graph too: run the model under torch.inference_mode()."
    if holder and training:
        holder += f" And the model ran in training mode ({training}): call `model.eval()` before."
    if holder:
        return fail(holder)
    if calls.with_gradients:
        return fail("The model ran with gradients on: the graph goes at the end, after it cost its memory.")
    if not calls.grad_mode:
        return fail("Grad mode is not what it was. Use `with torch.inference_mode():`, which puts it back.")
    if training:
        return fail(f"The model ran in training mode ({training}), with dropout. Call `model.eval()` before.")
    if modes:
        return fail(f"The training flag changed in {modes}. Restore each module's own; `model.train()` sets them all.")
    difference = "" if losses is None else _difference(calls.values or [], losses)
    if difference:
        return fail(f"These are not the losses: {difference}.")
    return None


def _when_it_dies(evaluate: Callable[..., Any], model: nn.Module) -> Verdict:
    """Whether a training flag stays changed when the model raises in its first forward pass."""

    def dies(module: nn.Module, args: Any) -> None:
        raise RuntimeError("on the way")  # in no words that a handler of out of memory waits for

    modes = _set_modes(model)
    handle = model.register_forward_pre_hook(dies)
    try:
        with undisturbed(), suppress(Exception, SystemExit):
            evaluate(model)
    finally:
        handle.remove()
    if _modes(model) == modes:
        return PASS
    return caution(
        "If the model raises on the way, as out of memory does, its training flags stay changed. Put them back in a "
        "`finally`."
    )


def _run(
    evaluate: Callable[..., Any], model: nn.Module, state: _State, device: _DeviceBytes, held_before: int, calls: _Calls
) -> None:
    """One more of the calls: the model against its `state`, bytes against those held before the first call."""
    calls.forwards.append(0)

    def before_forward(module: nn.Module, args: Any) -> None:
        calls.forwards[-1] += 1
        calls.with_gradients |= torch.is_grad_enabled()
        calls.training += [name for name, training in _modes(module).items() if training]

    modes = _set_modes(model)
    handle = model.register_forward_pre_hook(before_forward)
    try:
        with undisturbed():
            result = attempt(evaluate, model)
            calls.grad_mode &= torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    finally:
        handle.remove()
    calls.modes += [name for name, training in _modes(model).items() if training != modes.get(name)]
    calls.changed = state.restore(model) or calls.changed
    calls.values = None if result is None else list(_values(result))
    gc.collect()
    held = device.alive
    del result
    gc.collect()
    calls.elsewhere.append(device.alive - held_before)
    calls.returned.append(held - device.alive)


def _modes(model: nn.Module) -> dict[str, bool]:
    return {name or "the model": module.training for name, module in model.named_modules()}


def _set_modes(model: nn.Module) -> dict[str, bool]:
    """Training mode, and eval mode for one submodule. A deep one: `model.train()` shows, and a loop over children."""
    model.train()
    leaves = [name for name, module in model.named_modules() if name and not list(module.children())]
    if leaves:
        model.get_submodule(sorted(leaves, key=lambda name: name.count("."))[-1]).eval()
    return _modes(model)


class _State:
    """What of a model an evaluation must leave as it was, beside the modes."""

    def __init__(self, model: nn.Module):
        self.tensors = {name: (tensor, tensor.detach().clone()) for name, tensor in _saved(model).items()}
        self.trains = {name: p.requires_grad for name, p in model.named_parameters()}
        self.settings = _settings(model)

    @torch.no_grad()
    def restore(self, model: nn.Module) -> str:
        """Put the tensors and flags back, and say what was not as it was; "" when all was."""
        changed = set()
        now = _saved(model)
        for name, (tensor, copy) in self.tensors.items():
            if name not in now or now[name].dtype != copy.dtype:
                changed.add("dtypes")
                tensor.data = copy.clone()
            # NaN equals itself in bits
            elif not torch.equal(now[name].detach().reshape(-1).view(torch.uint8), copy.reshape(-1).view(torch.uint8)):
                changed.add("weights")
                now[name].copy_(copy)
        for name, p in model.named_parameters():
            if p.requires_grad != self.trains.get(name, p.requires_grad):
                changed.add("requires_grad")
                p.requires_grad_(self.trains[name])
        if _settings(model) != self.settings:
            changed.add("settings")
        return next((kind for kind in ADVICE if kind in changed), "")


def _saved(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a checkpoint: parameters, and buffers that are not made anew."""
    return {name: t for name, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}


def _settings(model: nn.Module) -> str:
    config: Any = getattr(model, "config", None)
    values = config.to_dict() if hasattr(config, "to_dict") else config
    return f"{values} {[getattr(module, 'gradient_checkpointing', None) for module in model.modules()]}"


def _values(result: Any, depth: int = 6) -> Iterator[Any]:
    """The numbers and texts in a result."""
    if isinstance(result, (bool, int, float, str)):
        yield result
    elif hasattr(result, "tolist"):  # a tensor or an array
        yield from torch.as_tensor(result).detach().double().flatten().tolist()
    elif depth and result is not None:
        inside = result.values() if isinstance(result, Mapping) else result
        if not isinstance(inside, Iterable):
            inside = vars(result).values() if hasattr(result, "__dict__") else ()
        for value in inside:
            yield from _values(value, depth - 1)


def _difference(values: list[Any], losses: Sequence[float]) -> str:
    """How the numbers of a result differ from those that it should hold; "" when they do not."""
    numbers = [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) != len(losses):
        return f"{len(numbers)} numbers where {len(losses)} were expected"
    for place, (x, loss) in enumerate(zip(numbers, losses, strict=True), 1):
        if not math.isclose(x, loss, rel_tol=1e-3, abs_tol=1e-6):
            return f"number {place} is {x:.4g}, expected {loss:.4g}"
    return ""


class _DeviceBytes(TorchFunctionMode):
    """Counts the bytes that are alive on the model's device, from the function of torch that made them on.

    On a CPU model both sides of a copy to the host are CPU tensors. There the weights stand for the device, and so does
    what is computed with one of its tensors. What comes out of `.cpu()`, `.to("cpu")` or `.numpy()` is on the host, and
    so is what is made of nothing (`torch.tensor([...])`) or of the host's tensors alone.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.alive = 0
        self._followed: dict[int, weakref.ref[Any]] = {}  # the storage's address -> the storage
        weights = [*model.parameters(), *model.buffers()]
        self.type = weights[0].device.type if weights else "cpu"
        for tensor in weights:
            self._follow(tensor)
        self.weights = set(self._followed)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        given = {_address(tensor) for tensor in _tensors_in([args, kwargs])}
        computed = self.type != "cpu" or not given.isdisjoint(self._followed)
        if self.type == "cpu" and computed and self._moves_to_host(func, args, kwargs):
            if _address(args[0]) not in self.weights:
                args = (args[0].clone(), *args[1:])  # on a GPU it is a copy
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        for tensor in _tensors_in([out]):
            if computed and tensor.device.type == self.type and _address(tensor) not in given:
                self._follow(tensor)
        return out

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address, size = _address(tensor), storage.nbytes()
        if not size or address in self._followed:
            return

        def died(_: Any) -> None:
            self.alive -= size
            self._followed.pop(address, None)

        self.alive += size
        self._followed[address] = weakref.ref(storage, died)

    def _moves_to_host(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
        if func is not Tensor.to:
            return func in (Tensor.cpu, Tensor.numpy, Tensor.__array__)
        target = kwargs.get("device", args[1] if len(args) > 1 else kwargs.get("other"))
        if isinstance(target, Tensor):
            return _address(target) not in self._followed
        return isinstance(target, (str, torch.device)) and torch.device(target).type == "cpu"


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple, Mapping)):
            yield from _tensors_in(value.values() if isinstance(value, Mapping) else value)
