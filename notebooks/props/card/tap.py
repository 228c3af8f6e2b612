"""The tap itself: sees every operation, names what its results are for, and hands them to `Storages`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.memory.meter import stand_ins

from .as_cuda import AsCuda, foreach_by_default
from .ledger import Ledger
from .reading import CardMeter
from .storages import Storages, key_of, tensors

NO_LIMIT = 1 << 50
_MATMUL = {"mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "_addmm_activation", "linear"}
_active: list[Tap] = []


def current() -> Tap | None:
    """The innermost tap that is recording, if any."""
    return _active[-1] if _active else None


class Tap:
    """A context manager that plays the CPU allocations of the code inside to a simulated card.

        total_memory       bytes of the card; over it, `torch.OutOfMemoryError` where CUDA would. None: no limit
        settings           as in PYTORCH_CUDA_ALLOC_CONF, e.g. "expandable_segments:True"
        fake               run under FakeTensorMode: no data, no arithmetic, real sizes. No `.item()` inside
        cublas_workspace   bytes that each thread that multiplies matrices keeps; 0 leaves them out
        stacks             note for each block the lines that asked for it: `frames` of `snapshot()`

    All that its `ledger` has, a tap has too: `allocated`, `reserved`, `peak`, `by_category`, `peak_by_category`,
    `timeline`, `mark`, `reset_peak`, `empty_cache`, `set_memory_fraction`, `snapshot`, `replay`, `allocator`.

    CPU tensors stand for the card's; those on other devices are not counted. Made for one thread. Zero-dimensional tensors that an optimizer step makes are its step counters, which live on
    the CPU also when the parameters are on CUDA (torch.optim, `capturable=False`): they are not counted.
    """

    def __init__(
        self,
        total_memory: int | None = None,
        settings: str = "",
        *,
        fake: bool = False,
        cublas_workspace: int = 0,
        stacks: bool = False,
    ):
        self._storages = Storages(
            Ledger(NO_LIMIT if total_memory is None else total_memory, settings, stacks)
        )
        self.fake, self.cublas_workspace = fake, cublas_workspace
        # What is going on: forwards in progress, each with what to switch off when it ends, an optimizer step,
        # `category()` and `host()` around the code.
        self._forwards: list[tuple[torch.nn.Module, contextlib.ExitStack]] = []
        self._stepping = False
        self._forced: list[str] = []
        self._off = 0
        # What the tap knows of modules: those around the output head, and widths that mean "logits".
        self._around_head: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._vocab: set[int] = set()
        # Parameters whose gradients it is told of; the threads with a cuBLAS workspace (True: the backward pass's).
        self._watched: dict[int, weakref.ref] = {}
        self._workspaces: set[bool] = set()
        self._stack: contextlib.ExitStack | None = None
        self._fake_mode = (
            FakeTensorMode(allow_non_fake_inputs=True) if fake else contextlib.nullcontext()
        )
        self._as_cuda = AsCuda(fake)

    @property
    def ledger(self) -> Ledger:
        """The book-keeping, brought up to date."""
        return self._storages.ledger

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a Tap has no {name!r}")
        return getattr(self.ledger, name)

    def __enter__(self) -> Tap:
        if self._stack is not None:
            raise RuntimeError("Tap: this tap is already recording; make a second Tap to nest them")
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._fake_mode)
            stack.enter_context(self._as_cuda)
            stack.enter_context(foreach_by_default())
            for handle in self._hooks():
                stack.callback(handle.remove)
            stack.enter_context(_Watcher(self))
            _active.append(self)
            stack.callback(_active.remove, self)
            reading = CardMeter(self)
            stand_ins.append(reading)
            stack.callback(stand_ins.remove, reading)
            self._forwards.clear()
            self._watched.clear()
            self._stepping = False
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: Any) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()

    def build(self, make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
        """`make()`, and with `fake=True` its parameters replaced by fake ones. Call it before `with tap:`.

        A plain model may also be built inside; one that replaces its own layers (peft) may not, since torch cannot
        move a fake module.
        """
        if not self.fake:
            return make()
        with torch.device("meta"):
            model = make()
        done: dict[torch.Tensor, torch.Tensor] = {}
        for module in model.modules():
            for table in (module._parameters, module._buffers):
                for name, old in table.items():
                    if old is not None and old not in done:
                        with self._fake_mode:
                            new = torch.empty(old.shape, dtype=old.dtype, device="cpu")
                            parameter = isinstance(old, torch.nn.Parameter)
                            done[old] = (
                                torch.nn.Parameter(new, old.requires_grad) if parameter else new
                            )
                    if old is not None:
                        table[name] = done[old]  # type: ignore[index,assignment]
        return model

    def adopt(self, *things: Any, category: str | None = None) -> None:
        """Count what existed before: models, optimizers, tensors, caches, or containers of them.

        A model's parameters, gradients and buffers and an optimizer's state get their category by themselves;
        other tensors get `category` ("other" by default). A model that runs inside the tap is adopted at its
        first forward, if it was not before.
        """
        for thing in things:
            if isinstance(thing, torch.nn.Module):
                self._adopt_module(thing, category)
            elif isinstance(thing, torch.optim.Optimizer):
                for value in tensors(list(thing.state.values())):
                    if value.dim() > 0:
                        self._storages.hold(value, category or "optimizer")
            else:
                for tensor in tensors(thing):
                    self._storages.hold(tensor, category or "other")

    def label(self, thing: Any, category: str) -> None:
        """Rename the blocks of tensors that the tap already follows; others are left alone."""
        for tensor in tensors(thing):
            self._storages.label(tensor, category)

    @contextlib.contextmanager
    def category(self, name: str) -> Iterator[None]:
        """What is allocated inside gets this category: `with tap.category("reference"):`."""
        self._forced.append(name)
        try:
            yield
        finally:
            self._forced.pop()

    @contextlib.contextmanager
    def host(self) -> Iterator[None]:
        """What is allocated inside stands for host memory: it is not counted."""
        self._off += 1
        try:
            yield
        finally:
            self._off -= 1

    def _after(self, func: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        """Called with every operation's result."""
        if self._off:
            return
        try:
            self._count(func, args, kwargs, out)
        except torch.OutOfMemoryError:
            self._stepping = False
            raise

    def _count(self, func: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        backward = torch._C._current_graph_task_id() != -1
        if func is torch.ops.aten.add.Tensor and backward:
            one, other = args[:2]
            if self._storages.add_gradients(one, other, out, self._category(out)):
                return
        known = lambda: {key_of(tensor) for tensor in tensors([*args, *kwargs.values()])}
        made = list(tensors(out))
        # The CUDA kernel allocates its mask first.
        if func is torch.ops.aten.native_dropout.default:
            made.reverse()
        for tensor in made:
            elsewhere = not self.fake and tensor.device.type != "cpu"
            if not elsewhere and not (self._stepping and tensor.dim() == 0):
                self._storages.hold(tensor, self._category(tensor), known)
        multiplies = func.overloadpacket.__name__ in _MATMUL
        if self.cublas_workspace and multiplies and backward not in self._workspaces:
            self._workspaces.add(backward)
            self._storages.malloc(self.cublas_workspace, "workspace")

    def _category(self, tensor: torch.Tensor) -> str:
        if self._forced:
            return self._forced[-1]
        if self._stepping:
            return "optimizer"
        # In the head or around it: inside a layer, attention weights may be as wide as the vocabulary.
        outermost = not self._forwards or self._forwards[-1][0] in self._around_head
        if tensor.dim() in (2, 3) and tensor.shape[-1] in self._vocab and outermost:
            return "logits"
        if self._forwards:
            return "activation"
        return "backward" if torch._C._current_graph_task_id() != -1 else "other"

    def _hooks(self) -> list[Any]:
        from torch.nn.modules import module as modules
        from torch.optim import optimizer as optimizers

        return [
            modules.register_module_parameter_registration_hook(
                lambda _, name, new: self.label(new, "parameter")
            ),
            modules.register_module_forward_pre_hook(self._before_forward),
            modules.register_module_forward_hook(
                self._after_forward, with_kwargs=True, always_call=True
            ),
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ]

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Gradients that code has set by itself are known by now."""
        for group in optimizer.param_groups:
            self.label([p.grad for p in group["params"]], "gradient")
        self._stepping = True

    def _after_step(self, *_: Any) -> None:
        self._stepping = False

    def _before_forward(self, module: torch.nn.Module, args: tuple) -> None:
        if not self._forwards:
            self._stepping = False  # a step that raised has not told us that it ended
            if not self._off:
                self._adopt_module(module, None)
        mode = contextlib.ExitStack()
        mode.enter_context(self._as_cuda.on())
        self._forwards.append((module, mode))

    def _after_forward(self, module: torch.nn.Module, args: tuple, *rest: Any) -> None:
        """`rest` is (kwargs, output), or (output,) when torch calls us after an exception."""
        while self._forwards:
            ended, mode = self._forwards.pop()
            mode.close()
            if ended is module:
                break
        if len(rest) == 2:
            self.label(
                [rest[0].get("past_key_values"), getattr(rest[1], "past_key_values", None)],
                "kv-cache",
            )

    def _adopt_module(self, module: torch.nn.Module, category: str | None) -> None:
        self._find_head(module)
        for parameter in module.parameters():
            self._storages.hold(parameter, category or "parameter")
            if parameter.grad is not None:
                self._storages.hold(parameter.grad, category or "gradient")
            self._watch(parameter)
        for buffer in module.buffers():
            self._storages.hold(buffer, category or "parameter")

    def _find_head(self, module: torch.nn.Module) -> None:
        """Note the vocabulary's size, and the modules that hold the output head or are inside it."""
        models: Any = (m for m in module.modules() if hasattr(m, "get_output_embeddings"))
        head = next(
            (found for model in models if (found := model.get_output_embeddings()) is not None),
            None,
        )
        if head is None:
            return
        self._vocab.add(head.weight.shape[0])
        self._around_head.update(head.modules())
        self._around_head.update(
            m for m in module.modules() if any(child is head for child in m.modules())
        )

    def _watch(self, parameter: torch.Tensor) -> None:
        """Ask to be told when a gradient arrives: until then it is just another tensor of the backward pass."""
        if not parameter.requires_grad or not parameter.is_leaf or self._stack is None:
            return
        seen = self._watched.get(id(parameter))
        if seen is None or seen() is not parameter:
            self._watched[id(parameter)] = weakref.ref(parameter)
            handle = parameter.register_post_accumulate_grad_hook(
                lambda p: self.label(p.grad, "gradient")
            )
            self._stack.callback(handle.remove)


class _Watcher(TorchDispatchMode):
    """Runs every operation and shows the tap what came out."""

    def __init__(self, tap: Tap):
        super().__init__()
        self.tap = tap

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if (
            torch.is_inference_mode_enabled()
        ):  # composite operations arrive whole there: take them apart
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        self.tap._after(func, args, kwargs, out)
        return out
