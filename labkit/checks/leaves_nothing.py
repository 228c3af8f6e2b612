"""Does an evaluation put everything back? It runs a stranger's evaluation under a counter that follows each storage.

On a CPU model both sides of a copy to the host are CPU tensors. What comes out of `.cpu()`, `.to("cpu")`, `.numpy()`,
what is made of nothing (`torch.tensor([...])`), and what is computed from these alone is on the host: not counted.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from labkit.common import format_size

from .live_bytes import LiveBytes, tensors_in
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
    "gradient checkpointing": "Gradient checkpointing is not as it was: the next training step may run out of memory. "
    "Switch it back.",
    "config": "The model's config is not what it was: put each value back.",
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

        losses  the numbers that the result must hold, in order and to 0.1 %, when you know them. Without, a result
                that is the same with other weights is a caution

    Raises: TypeError when `model` is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"leaves_nothing: expected a torch module as model, got {type(model).__name__}")
    return judged("leaves_nothing", CLAIM, evaluate, lambda evidence: _judge(evaluate, model, losses, evidence))


@dataclass
class _Call:
    """What one call left, in bytes, and how the model was run in it."""

    elsewhere: int = 0
    returned: int = 0
    forwards: int = 0
    with_gradients: bool = False
    training: list[str] = field(default_factory=list)  # submodules that ran in training mode
    grad_mode: bool = True  # back as it was
    modes: list[str] = field(default_factory=list)  # submodules whose training flag is not what it was
    changed: str = ""  # what else of the model is not what it was, in words
    values: list[Any] | None = None  # numbers and texts of the result; None when it returned None


def _judge(
    evaluate: Callable[..., Any], model: nn.Module, losses: Sequence[float] | None, evidence: dict[str, Any]
) -> Verdict:
    device = next((p.device.type for p in model.parameters()), "cpu")
    with _flags_kept(model) as modules, ExitStack() as afterwards:
        gc.freeze()  # so that a collection looks only at what was made since: a whole one is slow
        afterwards.callback(gc.unfreeze)
        model.train()
        leaves = [name for name, m in modules.items() if m is not model and not list(m.children())]
        if leaves:  # a deep one: a `train()` of the whole model shows, and so does a loop over its children
            modules[sorted(leaves, key=lambda name: name.count("."))[-1]].eval()
        before = _State(model)  # outside the counter, which would count the copies
        afterwards.callback(before.restore, model)
        with LiveBytes(device) as live, _TwoSides(live, model, device) as sides:
            live.adopt(model)
            held = live.alive  # before the first call: what is left adds up
            first = _run(evaluate, model, before, live, sides, held)
            second = _run(evaluate, model, before, live, sides, held)
        if not second.forwards:
            again = "in the second call: its answer is cached" if first.forwards else "so nothing was evaluated"
            raise CannotJudge(f"The model did not run, {again}.", forwards=[first.forwards, second.forwards])
        verdict = _of_calls(first, second, losses, evidence)
        if verdict is not None:
            return verdict
        if _stays_when_it_dies(evaluate, model):
            return caution(
                "If the model raises on the way, as out of memory does, its training flags stay changed. Put them back "
                "in a `finally`."
            )
        if losses is None and second.values and _same_with_other_weights(evaluate, model, second.values):
            return caution("The result is the same with other weights: likely a constant. Pass `losses=` to be sure.")
    return PASS


def _of_calls(first: _Call, second: _Call, losses: Sequence[float] | None, evidence: dict[str, Any]) -> Verdict | None:
    kept, returned = max(first.elsewhere, second.elsewhere), max(first.returned, second.returned)
    grows = second.elsewhere > first.elsewhere
    graph = first.with_gradients or second.with_gradients
    grad_mode = first.grad_mode and second.grad_mode
    changed = first.changed or second.changed
    training, modes = ", ".join(second.training[:3]), ", ".join((first.modes + second.modes)[:3])
    evidence |= {"kept": format_size(kept), "in the result": format_size(returned), "grows with each call": grows}
    evidence |= {"gradients on inside": graph, "grad mode restored": grad_mode}
    evidence |= {"eval mode inside": not training, "modes restored": not modes, "changed": changed or "nothing"}
    evidence["result"] = "none" if second.values is None else f"{len(second.values)} values"
    if changed:
        return fail(ADVICE[changed])
    holder = ""
    if grows:
        holder = "Every call leaves more on the device. Likely a history, a cache or a list outside the function."
    elif kept > 0:
        holder = "Something outside the function still holds a tensor of its call: an attribute, a global."
    elif returned > 0:
        holder = "The result is on the device. Return numbers, or `.cpu()` copies of what you need."
    if holder and graph:
        holder += " It holds the graph too: run the model under torch.inference_mode()."
    if holder:
        return fail(holder)
    if graph:
        return fail("The model ran with gradients on: the graph goes at the end, after it cost its memory.")
    if not grad_mode:
        return fail("Grad mode is not what it was. Use `with torch.inference_mode():`, which puts it back.")
    if training:
        return fail(f"The model ran in training mode ({training}), with dropout. Call `model.eval()` before.")
    if modes:
        return fail(f"The training flag changed in {modes}. Restore each module's own; `model.train()` sets them all.")
    difference = "" if losses is None else _difference(second.values or [], losses)
    if difference:
        return fail(f"These are not the losses: {difference}.")
    if second.values == []:
        return fail("The result is empty: the model ran, and nothing of it came back. Return what was measured.")
    return None


def _stays_when_it_dies(evaluate: Callable[..., Any], model: nn.Module) -> bool:
    """Whether a training flag stays changed when the model raises in its first forward pass."""

    def dies(module: nn.Module, args: Any) -> None:
        raise RuntimeError("on the way")  # in no words that a handler of out of memory waits for

    with _flags_kept(model) as modules:
        flags = [m.training for m in modules.values()]
        handle = model.register_forward_pre_hook(dies)
        try:
            with undisturbed(), suppress(Exception, SystemExit):
                evaluate(model)
        finally:
            handle.remove()
        return [m.training for m in modules.values()] != flags


@torch.no_grad()
def _same_with_other_weights(evaluate: Callable[..., Any], model: nn.Module, values: list[Any]) -> bool:
    for p in model.parameters():
        if p.is_floating_point():
            p.copy_(torch.randn_like(p) * p.abs().mean())
    with _flags_kept(model), undisturbed(), suppress(Exception, SystemExit):
        return list(_values(evaluate(model))) == values
    return False


def _run(
    evaluate: Callable[..., Any], model: nn.Module, before: _State, live: LiveBytes, sides: _TwoSides, held_before: int
) -> _Call:
    """One call: the model against its state `before`, bytes against those held before the first call."""
    call = _Call()

    def before_forward(module: nn.Module, args: Any) -> None:
        call.forwards += 1
        call.with_gradients |= torch.is_grad_enabled()
        call.training += [name or "the model" for name, m in module.named_modules() if m.training]

    handle = model.register_forward_pre_hook(before_forward)
    with _flags_kept(model) as modules:
        flags = {name: m.training for name, m in modules.items()}
        try:
            with undisturbed():
                result = attempt(evaluate, model)
                call.grad_mode = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        finally:
            handle.remove()
            call.changed = before.restore(model)
        call.modes = [name for name, m in modules.items() if m.training != flags[name]]
    call.values = None if result is None else list(_values(result))
    gc.collect()
    held = live.alive - held_before
    del result
    gc.collect()
    call.elsewhere = live.alive - held_before
    call.returned = held - call.elsewhere
    return call


class _State:
    """What of a model an evaluation must leave as it was, beside the modes."""

    def __init__(self, model: nn.Module):
        self.tensors = {name: (tensor, tensor.detach().clone()) for name, tensor in _saved(model).items()}
        self.trains = {name: p.requires_grad for name, p in model.named_parameters()}
        self.checkpointing = _checkpointing(model)
        self.config = _config(model)

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
        for name, on in _checkpointing(model).items():
            if on != self.checkpointing.get(name, on):
                changed.add("gradient checkpointing")
                model.get_submodule(name).gradient_checkpointing = not on  # type: ignore[assignment]
        if _config(model) != self.config:
            changed.add("config")
        return next((kind for kind in ADVICE if kind in changed), "")


def _saved(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a checkpoint: parameters, and buffers that are not made anew."""
    return {name: t for name, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}


def _checkpointing(model: nn.Module) -> dict[str, bool]:
    named = model.named_modules()
    return {name: bool(m.gradient_checkpointing) for name, m in named if hasattr(m, "gradient_checkpointing")}


def _config(model: nn.Module) -> str:
    config: Any = getattr(model, "config", None)
    return str(config.to_dict()) if hasattr(config, "to_dict") else ""


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


@contextmanager
def _flags_kept(model: nn.Module) -> Iterator[dict[str, nn.Module]]:
    """The modules by name; each has its own training flag again afterwards."""
    modules = {name or "the model": m for name, m in model.named_modules()}
    flags = [m.training for m in modules.values()]
    try:
        yield modules
    finally:
        for module, was in zip(modules.values(), flags, strict=True):
            module.training = was


TO_NUMPY: set[Any] = {Tensor.numpy, Tensor.__array__}


class _TwoSides(TorchFunctionMode):
    """Which tensors a CUDA run would have on the device: the weights, and what is computed with one of them.

    Only on a CPU model, where the counter cannot see it: what comes of the others is made under `live.host()`.
    """

    def __init__(self, live: LiveBytes, model: nn.Module, device: str):
        super().__init__()
        self.live, self.stands_in = live, device == "cpu"
        self.weights = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        there = [t for t in tensors_in([args, kwargs]) if self._there(t)]
        moves = bool(there) and self._to_host(func, args, kwargs)
        if not self.stands_in or (there and not moves):
            out = func(*args, **kwargs)
            given = {t.untyped_storage().data_ptr() for t in tensors_in([args, kwargs])}
            for made in tensors_in([out]) if there else ():
                if made.untyped_storage().data_ptr() not in given:
                    made.untyped_storage().on_device = True  # type: ignore[attr-defined]
            return out
        with self.live.host():
            if moves and args[0].untyped_storage().data_ptr() not in self.weights:
                args = (args[0].clone(), *args[1:])  # on CUDA it is a copy
            return func(*args, **kwargs)

    def _there(self, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage()
        return not self.stands_in or hasattr(storage, "on_device") or storage.data_ptr() in self.weights

    def _to_host(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
        if func is not Tensor.to:
            return func is Tensor.cpu or func in TO_NUMPY
        target = kwargs.get("device", args[1] if len(args) > 1 else kwargs.get("other"))
        if isinstance(target, Tensor):
            return not self._there(target)
        return isinstance(target, (str, torch.device)) and torch.device(target).type == "cpu"
