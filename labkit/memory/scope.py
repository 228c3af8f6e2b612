"""Evaluate or sample in the middle of training without spoiling the training's memory.

    with eval_scope(model) as scope:
        losses = [scope.keep(model(ids, labels=ids).loss) for ids in batches]
    print(scope.report)

Three different things are called "the eval leak"; this scope does something about two of them, and reports the third:

- **retained references** (logits in a list, a graph, a traceback): no graph is built, `keep` copies results to the
  host, and when an exception passes, the finished frames in its traceback let go of their tensors;
- **fragmentation**: what the evaluation freed goes back to the device when the scope ends, before long-lived tensors
  settle in its segments. That is the one moment when `empty_cache` helps: the cache would have been given back by
  itself if memory ran out, but not the segments that something small now sits in;
- **another owner** (a second process, a CUDA context): `report.after.others` shows it; no call here can free it.
"""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.common import format_size

from .meter import Meter, Reading, meter, recording_tap

_open: list[EvalScope] = []


@dataclass(frozen=True)
class ScopeReport:
    """What an evaluation did to memory. True when it left no more allocated than it found."""

    before: Reading  # on entry
    inside: Reading  # on exit, before any cleaning, with the evaluation's peaks
    after: Reading  # at the end
    kept: int = 0  # bytes of results on the host
    emptied: bool = False  # the cache was emptied

    @property
    def still_held(self) -> int:
        """Bytes that the evaluation left allocated: somebody holds a reference. `empty_cache` cannot help."""
        return self.after.allocated - self.before.allocated

    @property
    def given_back(self) -> int:
        """Bytes that went back to the device."""
        return self.inside.reserved - self.after.reserved

    def __bool__(self) -> bool:
        return self.still_held <= 0

    def __str__(self) -> str:
        lines = [f"before  {self.before}", f"inside  {self.inside}", f"after   {self.after}"]
        if self.inside.source != "process":
            peak = format_size(self.inside.peak_allocated)
            lines.append(f"peak    {peak} allocated; {format_size(self.given_back)} given back at the end")
            if self.still_held > 0:
                lines.append(f"leak    {format_size(self.still_held)} still allocated: something holds a reference")
        return "\n".join(lines)


def eval_scope(
    model: Any = None, *, device: Any = None, empty_cache: bool = True, tap: Any = None, allocator: Any = None
) -> EvalScope:
    """A context manager for evaluation and sampling: eval mode, inference mode, results off, cache returned.

        model            a module, several of them, or None; every submodule gets its own training flag back
        device           where to read memory; by default where the model is
        empty_cache      False: leave the cache alone (evaluations that follow each other at once can share it)
        tap, allocator   a simulated card instead of a device

    Scopes may be nested: only the outermost collects and empties. An exception passes through after the clean-up.
    """
    return EvalScope(_modules(model), empty_cache, {"device": device, "tap": tap, "allocator": allocator})


class EvalScope:
    """See `eval_scope`."""

    def __init__(self, models: list[Any], empty_cache: bool, where: dict[str, Any]):
        self.models, self.empty_cache, self._where = models, empty_cache, where
        self._report: ScopeReport | None = None
        self._kept = 0
        self._stack: contextlib.ExitStack | None = None

    @property
    def report(self) -> ScopeReport:
        if self._report is None:
            raise RuntimeError("eval_scope: the report is there when the scope has ended")
        return self._report

    def __enter__(self) -> EvalScope:
        import torch

        if self._stack is not None:
            raise RuntimeError("eval_scope: this scope is already open; make a new one to nest them")
        self._report, self._kept = None, 0
        self._meter = self._pick_meter()
        self._before = self._meter.read()
        if not _open:
            self._meter.reset_peak()
        with contextlib.ExitStack() as stack:
            for module in (m for model in self.models for m in model.modules()):
                stack.callback(setattr, module, "training", module.training)
            for model in self.models:
                model.eval()
            stack.enter_context(torch.inference_mode())
            self._stack = stack.pop_all()
        _open.append(self)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        stack, self._stack = self._stack, None
        assert stack is not None
        try:
            # The frames that failed hold their tensors.
            if trace is not None:
                traceback.clear_frames(trace)
            inside = self._meter.read()
        finally:
            stack.close()
            _open.remove(self)
        emptied = not _open and self.empty_cache
        if not _open:
            gc.collect()
        if emptied:
            self._meter.empty_cache()
        self._report = ScopeReport(self._before, inside, self._meter.read(), self._kept, emptied)

    def keep(self, value: Any) -> Any:
        """A copy of the result on the host, free of graph and device: tensors, and dicts, lists and tuples of them.

        Works after inference mode too: the copies are ordinary tensors. Numbers, strings and None pass through.

        Raises: TypeError for anything else, since it might hold device tensors (a KV cache, a model output: pick its
        tensors).
        """
        import torch

        if isinstance(value, torch.Tensor):
            with torch.inference_mode(False), torch.no_grad(), _host():
                copy = value.to("cpu", copy=True, memory_format=torch.contiguous_format)
            self._kept += copy.numel() * copy.element_size()
            return copy
        if isinstance(value, Mapping):
            return {key: self.keep(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            items = [self.keep(item) for item in value]
            if isinstance(value, list):
                return items
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return value
        raise TypeError(
            f"keep: a {type(value).__name__} may hold device tensors; keep the tensors or numbers you need of it"
        )

    def _pick_meter(self) -> Meter:
        """Where it was told to look, or where the model is, or where there is something to look at."""
        where = dict(self._where)
        if where["device"] is None:
            parameter = next((p for model in self.models for p in model.parameters()), None)
            where["device"] = "auto" if parameter is None else parameter.device
        return meter(**where)


def _modules(model: Any) -> list[Any]:
    import torch

    several = isinstance(model, Iterable) and not isinstance(model, torch.nn.Module)
    models = [] if model is None else list(model) if several else [model]
    for each in models:
        if not isinstance(each, torch.nn.Module):
            raise TypeError(f"eval_scope: expected a torch module, several, or None, got {type(each).__name__}")
    return models


def _host() -> Any:
    """Under a tap, CPU tensors stand for the card's: these do not."""
    tap = recording_tap()
    return tap.host() if tap is not None else contextlib.nullcontext()
