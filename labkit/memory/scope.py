"""Evaluate or sample in the middle of training without spoiling the training's memory.

    with eval_scope(model) as scope:
        losses = [scope.keep(model(ids, labels=ids).loss) for ids in batches]
    print(scope.report)

Three things are called "the eval leak". Against **retained references** (logits in a list, a graph, a traceback) no
graph is built, `keep` copies results to the host, and when an exception passes, the finished frames in its traceback
let go of their tensors. Against **fragmentation** what the evaluation freed goes back to the device when the scope
ends, before long-lived tensors settle in its segments: the one moment when `empty_cache` helps. **Another owner** (a
second process, a CUDA context) is only shown, by `report.after.others`: no call here can free it.
"""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.common import format_size

from .meter import Reading, meter


@dataclass(frozen=True)
class ScopeReport:
    """What an evaluation did to memory. True when it left no more allocated than it found."""

    before: Reading  # on entry
    inside: Reading  # on exit, before any cleaning, with the evaluation's peak
    after: Reading  # at the end

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
        peak, back = format_size(self.inside.peak_allocated), format_size(self.given_back)
        lines.append(f"peak    {peak} allocated; {back} given back at the end")
        if not self:
            lines.append(f"leak    {format_size(self.still_held)} still allocated: something holds a reference")
        return "\n".join(lines)


class eval_scope:  # noqa: N801 (used as a function is, like torch.no_grad)
    """A context manager for evaluation and sampling: eval mode, inference mode, results off, cache returned.

        model    a module, or None; every submodule gets its own training flag back. Memory is read where it is

    An exception passes through after the clean-up. `report` is there when the scope has ended.
    """

    report: ScopeReport

    def __init__(self, model: Any = None):
        self.model = model

    def __enter__(self) -> eval_scope:
        import torch

        from labkit.grpo.exam import evaluating

        self._meter = meter("auto" if self.model is None else next(self.model.parameters()).device)
        self._before = self._meter.read()
        self._meter.reset_peak()
        with contextlib.ExitStack() as stack:
            if self.model is not None:
                stack.enter_context(evaluating(self.model))
            stack.enter_context(torch.inference_mode())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            # The frames that failed hold their tensors.
            if trace is not None:
                traceback.clear_frames(trace)
            inside = self._meter.read()
        finally:
            self._stack.close()
        gc.collect()
        self._meter.empty_cache()
        self.report = ScopeReport(self._before, inside, self._meter.read())

    def keep(self, value: Any) -> Any:
        """A copy of the result on the host, free of graph and device: tensors, and dicts, lists and tuples of them.

        The copies are ordinary tensors, not inference tensors. Numbers, strings and None pass through.
        Raises: TypeError for anything else, since it might hold device tensors (a KV cache: pick its tensors).
        """
        import torch

        if isinstance(value, torch.Tensor):
            with torch.inference_mode(False), torch.no_grad(), self._meter.host():
                return value.to("cpu", copy=True, memory_format=torch.contiguous_format)
        if isinstance(value, Mapping):
            return {key: self.keep(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            items = [self.keep(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return value
        raise TypeError(
            f"keep: a {type(value).__name__} may hold device tensors; keep the tensors or numbers you need of it"
        )
