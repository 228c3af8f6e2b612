"""Name how a process died, from what it left behind: exception, exit code, signal, and its own stderr.

The CUDA runtime prints a device-side assertion to stderr, while the Python exception that surfaces later says
only "CUDA error: device-side assert triggered"; so the kind of assertion is read from the text. File prefix
and line number differ between builds and are ignored. This file reads text; it runs nothing and draws nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from labkit.events import Outcome

# cudaErrorAssert (CUDA 12 runtime API; `error_code` of torch.AcceleratorError >= 2.8)
DEVICE_ASSERT_CODE = 710

# A line of the CUDA runtime (not of glibc's assert, which names no .cu file and no block):
#   /pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0],
#   thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.
_ASSERTION = re.compile(r"^.*(?:block: \[|\.cuh?\b).*\bAssertion [`'\"]?(.+?)[`'\"]? failed", re.MULTILINE)

# torch 2.5+ on Linux prints the message of `at::_assert_async`; Windows builds (and Linux before the message
# existed) print its condition, `input[0] != 0`. Sampling with replacement asserts in MultinomialKernel.cu.
_MULTINOMIAL = re.compile(
    r"probability tensor contains either `?inf"
    r"|TensorCompare\.cu.*Assertion [`'\"]?input\[0\] != "
    r"|MultinomialKernel\.cu.*Assertion [`'\"]?!\s?(?:at::)?(?:_isnan|_isinf|\(val < zero)"
    r"|invalid multinomial distribution \(encountering probability entry"
)

# Embedding, advanced indexing, gather/scatter, vectorised gather, and Triton's own bounds check.
_INDEX_CUDA = re.compile(
    r"srcIndex < srcSelectDimSize"
    r"|dstIndex < dstAddDimSize"
    r"|index out of bounds"
    r"|index >= -sizes\[i\] && index < sizes\[i\]"
    r"|-sizes\[i\] <= index && index < sizes\[i\]"
    r"|ind >=? ?0 && ind < ind_dim_size"
    r"|idx_dim >= 0 && idx_dim < index_"
)
_INDEX_CPU = re.compile(
    r"index out of range in self|index -?\d+ is out of bounds for dimension \d+ with size \d+"
)

_OOM_TYPES = {"OutOfMemoryError", "MemoryError"}
_OOM_TEXT = re.compile(
    r"(?:CUDA|HIP|XPU|MPS backend) out of memory"
    r"|(?:CUDA|HIP) error: out of memory"
    r"|DefaultCPUAllocator: (?:can't allocate memory|not enough memory)"
    r"|\[Errno 12\] Cannot allocate memory"
)
_DEVICE_TROUBLE = re.compile(r"(?:CUDA|HIP|cuDNN) error|CU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_", re.IGNORECASE)
_BAD_ALLOC = re.compile(r"std::bad_alloc|Fatal Python error: .*MemoryError|MemoryError\s*\Z")


def classify(
    *,
    exception: str = "",
    message: str = "",
    exit_code: int | None = 0,
    signal: int | None = None,
    stderr: str = "",
    error_code: int | None = None,
    bases: Iterable[str] = (),
) -> str:
    """The signature of a process's end: `ok`, `device-assert:<kind>`, `oom`, `exception:<type>`,
    `signal:<n>` or `exit:<code>`. (`timeout` and `stopped` are the sandbox's own doing, not the process's.)

    `exception` is the type's name and `bases` the names of its other classes, so that a subclass of
    `OutOfMemoryError` counts as one. `<kind>` is `multinomial`, `index` or `other`.
    """
    asserted = bool(_ASSERTION.search(stderr))
    if exception:
        device = {exception, *bases} & {"AcceleratorError"} or _DEVICE_TROUBLE.search(message)
        if (
            error_code == DEVICE_ASSERT_CODE
            or "device-side assert triggered" in message
            or (device and asserted)  # e.g. a later cuBLAS call that fails because the context is poisoned
        ):
            return f"device-assert:{assert_kind(message + chr(10) + stderr)}"
        if {exception, *bases} & _OOM_TYPES or _OOM_TEXT.search(message):
            return "oom"
        return f"exception:{exception}"
    if signal is None and exit_code == 0:
        return "ok"
    if asserted:
        return f"device-assert:{assert_kind(stderr)}"
    if signal is not None:
        return "oom" if _BAD_ALLOC.search(stderr) else f"signal:{signal}"
    return f"exit:{exit_code}"


def assert_kind(text: str) -> str:
    """`multinomial`, `index` or `other`: the first device assertion that `text` names."""
    for line in _ASSERTION.finditer(text):
        if _MULTINOMIAL.search(line[0]):
            return "multinomial"
        return "index" if _INDEX_CUDA.search(line[0]) else "other"
    return "other"


def is_multinomial_assert(outcome: Outcome) -> bool:
    """True when sampling met a NaN, an Inf or a negative probability, on any device and any platform.

    On CPU that is an ordinary `RuntimeError`, on CUDA an assertion in stderr. The look-alike "sum of
    probabilities <= 0" (an all-zero row) is false.
    """
    return bool(_MULTINOMIAL.search(outcome.message) or _kind_in(outcome.stderr) == "multinomial")


def is_index_assert(outcome: Outcome) -> bool:
    """True when a token id or an index was outside its table, on any device."""
    return bool(_INDEX_CPU.search(outcome.message) or _kind_in(outcome.stderr) == "index")


def _kind_in(stderr: str) -> str:
    return assert_kind(stderr) if _ASSERTION.search(stderr) else ""
