"""Make CPU code allocate what CUDA code would: dropout masks, attention, autocast's list, `foreach` optimizers.

Sources, torch 2.13: `aten/src/ATen/native/Dropout.cpp` (the fused dropout is for CUDA and XPU only),
`torch/utils/_foreach_utils.py` (which devices get `foreach` by default), `AT_FORALL_FP32` and
`AT_FORALL_FP32_SET_OPT_DTYPE` in `ATen/autocast_mode.h` (what CUDA's autocast keeps in float32). The numbers a program
computes stay the same, except inside an autocast region, where CUDA's list keeps more of the arithmetic in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# The names in the header, without the image ones.
_HEADER = (
    "acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity cumprod cumsum "
    "dist erfinv exp expm1 frobenius_norm group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm "
    "linalg_matrix_norm linalg_vector_norm log log10 log1p log2 log_softmax logsumexp margin_ranking_loss "
    "mse_loss multi_margin_loss multilabel_margin_loss native_layer_norm nll_loss nll_loss2d norm nuclear_norm "
    "pdist poisson_nll_loss pow prod reciprocal renorm rms_norm rsqrt sinh smooth_l1_loss soft_margin_loss "
    "softmax softplus sum tan triplet_margin_loss"
)
_MADE_OF_THEM = "cross_entropy cross_entropy_loss __pow__ __rpow__ __rtruediv__ softmin normalize"
AUTOCAST_TO_FLOAT32 = frozenset(f"{_HEADER} {_MADE_OF_THEM}".split())
_DROPOUT = {torch.dropout, torch.nn.functional.dropout}
_HALF = (torch.bfloat16, torch.float16)


class AsCuda(TorchFunctionMode):
    """`fake`: values do not matter, so attention may drop its dropout to stay on a fused kernel, as it is on CUDA."""

    def __init__(self, fake: bool = False):
        super().__init__()
        self.fake = fake
        self._handling = 0  # torch switches a mode off while it handles a call

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Switched back on inside a call that it handles: checkpointing runs forwards inside `backward()`."""
        if not self._handling:
            yield
            return
        handling, self._handling = self._handling, 0
        try:
            with self:
                yield
        finally:
            self._handling = handling

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._handling += 1
        try:
            return self._call(func, args, dict(kwargs or {}))
        finally:
            self._handling -= 1

    def _call(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if func in _DROPOUT:
            return _dropout(func, args, kwargs)
        if name == "scaled_dot_product_attention" and self.fake:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            kwargs.pop("dropout_p", None)
        if name in AUTOCAST_TO_FLOAT32 and torch.is_autocast_enabled("cpu"):
            args = tuple(_float32(a) for a in args)
            with torch.autocast("cpu", enabled=False):
                return func(*args, **{k: _float32(v) for k, v in kwargs.items()})
        return func(*args, **kwargs)


def _dropout(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """On CUDA a mask of one byte per element is saved, not of four."""
    given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    input, p = given["input"], given.get("p", 0.5)
    train = given.get("train", given.get("training", True))  # torch.dropout calls it train
    if given.get("inplace") or not train or not 0 < p < 1:
        return func(*args, **kwargs)
    return torch.native_dropout(input, p, True)[0]


def _float32(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _HALF else value
    return type(value)(map(_float32, value)) if type(value) in (list, tuple) else value


@contextlib.contextmanager
def foreach_by_default() -> Iterator[None]:
    """Optimizers and gradient clipping take the `foreach` path, as on CUDA: also for CPU and fake tensors.

    Private names of torch (2.6 to 2.13 have them). Restored on exit.
    """
    import torch.optim.optimizer as optimizer
    import torch.utils._foreach_utils as utils
    from torch._subclasses.fake_tensor import FakeTensor

    with contextlib.ExitStack() as stack:
        name = "_get_foreach_kernels_supported_devices"
        before = getattr(optimizer, name)
        setattr(optimizer, name, lambda: [*before(), "cpu"])
        stack.callback(setattr, optimizer, name, before)
        for module in (optimizer, utils):
            types: Any = getattr(module, "_foreach_supported_types", [])
            types.append(FakeTensor)
            stack.callback(types.remove, FakeTensor)
        yield
