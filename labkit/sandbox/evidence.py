"""What a child left behind: its text, the name of its death, and the `Outcome` made of both.

The CUDA runtime prints a device-side assertion to stderr, while the Python exception that surfaces later says only
"CUDA error: device-side assert triggered"; so the kind of assertion is read from the text. File prefix and line number
differ between builds and are ignored. This file waits for nobody and kills nobody.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from labkit.events import Outcome

from . import worker

# bytes kept of the beginning and of the end of stdout, and of stderr
HEAD = TAIL = 256 * 1024

# cudaErrorAssert (CUDA 12 runtime API; `error_code` of torch.AcceleratorError >= 2.8)
DEVICE_ASSERT_CODE = 710

# A line of the CUDA runtime (not of glibc's assert, which names no .cu file and no block):
#   /pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0],
#   thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.
_ASSERTION = re.compile(r"^.*(?:block: \[|\.cuh?\b).*\bAssertion [`'\"]?(.+?)[`'\"]? failed", re.MULTILINE)

# torch 2.5+ on Linux prints the message of `at::_assert_async`; Windows builds (and Linux before the message
# existed) print its condition, `input[0] != 0`. Several draws with replacement assert in MultinomialKernel.cu; there a
# row with NaN or Inf and a row of zeros have one text, `cumdist[size - 1] > 0` (seen on an H200, torch 2.11).
_MULTINOMIAL = re.compile(
    r"probability tensor contains either `?inf"
    r"|TensorCompare\.cu.*Assertion [`'\"]?input\[0\] != "
    r"|MultinomialKernel\.cu.*Assertion [`'\"]?!\s?(?:at::)?(?:_isnan|_isinf|\(val < zero)"
    r"|MultinomialKernel\.cu.*Assertion [`'\"]?cumdist\[size - 1\] > "
    r"|invalid multinomial distribution \(encountering probability entry"
)

# Embedding, advanced indexing, gather/scatter, vectorised gather, and Triton's own bounds check.
_INDEX_CUDA = re.compile(
    r"srcIndex < srcSelectDimSize"
    r"|dstIndex < dstAddDimSize"
    r"|index out of bounds|Invalid input index in EmbeddingBag"
    r"|index >= -sizes\[i\] && index < sizes\[i\]"
    r"|-sizes\[i\] <= index && index < sizes\[i\]"
    r"|ind >=? ?0 && ind < ind_dim_size"
    r"|idx_dim >= 0 && idx_dim < index_"
)
_INDEX_CPU = re.compile(r"index out of range in self|index -?\d+ is out of bounds for dimension \d+ with size \d+")

_OOM_TYPES = {"OutOfMemoryError", "MemoryError"}
_OOM_TEXT = re.compile(
    r"(?:CUDA|HIP|XPU|MPS backend) out of memory"
    r"|(?:CUDA|HIP) error: out of memory"
    r"|DefaultCPUAllocator: (?:can't allocate memory|not enough memory)"
    r"|\[Errno 12\] Cannot allocate memory"
)
_DEVICE_TROUBLE = re.compile(r"(?:CUDA|HIP|cuDNN) error|CU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_", re.IGNORECASE)
_BAD_ALLOC = re.compile(r"std::bad_alloc|Fatal Python error: .*MemoryError|MemoryError\s*\Z")


class Capture:
    """The beginning and the end of a stream, and how much lay between. Bytes in, text out."""

    def __init__(self) -> None:
        self._data, self._left_out = bytearray(), 0

    def feed(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > 2 * (HEAD + TAIL):  # not each time: what follows moves the whole tail
            self._leave_out()

    def _leave_out(self) -> None:
        between = max(0, len(self._data) - HEAD - TAIL)
        del self._data[HEAD : HEAD + between]
        self._left_out += between

    def text(self) -> str:
        self._leave_out()
        note = f"\n[labkit: {self._left_out:,} bytes left out here]\n".encode() if self._left_out else b""
        return (self._data[:HEAD] + note + self._data[HEAD:]).decode("utf-8", "replace")


def judge(*, code: int | None, ending: dict[str, Any] | None, reason: str, message: str, **evidence: Any) -> Outcome:
    """How a child ended.

    code      its exit code, or minus a signal's number; None when nobody knows
    ending    its own report (`worker.describe`), {} when all went well; None when it did not live to write one
    reason    why the sandbox killed it, `timeout` or `stopped`; "" when it did not
    message   the same in a sentence
    evidence  `stdout`, `stderr`, `traceback` and `seconds` of the outcome
    """
    number = -code if code is not None and code < 0 else None
    end: dict[str, Any] = {"exit_code": code if number is None else None, "signal": number}
    if ending:
        return _raised(**ending, end=end, evidence=evidence)
    if ending is not None:
        if reason:  # the kill came between its last word and its exit
            end = {"exit_code": 0, "signal": None}
        return Outcome(classify(**end), **end, **evidence)
    if reason and (code is None or number in (9, worker.DUMP_SIGNAL) or os.name == "nt"):
        return Outcome(reason, message=message, **end, **evidence)
    if code is None:
        message = "the sandbox's server died and took the child along"
        return Outcome("signal:9", exit_code=None, signal=9, message=message, **evidence)
    signature = classify(**end, stderr=evidence["stderr"])
    return Outcome("exit:0" if signature == "ok" else signature, **end, **evidence)


def _raised(links: list[dict[str, Any]], traceback: str, end: dict[str, Any], evidence: dict[str, Any]) -> Outcome:
    """The outcome of a child that reported exceptions, raised from each other."""
    kind, message = links[0]["exception"], links[0]["message"]
    signatures = [classify(**link, stderr=evidence["stderr"]) for link in links]
    # the first that says more than a type's name
    signature = next((s for s in signatures if not s.startswith("exception:")), signatures[0])
    if kind == "SystemExit":
        signature = classify(**end)
    code = next((link["error_code"] for link in links if link["error_code"] is not None), None)
    evidence |= {**end, "exception": kind, "message": message, "traceback": traceback, "error_code": code}
    return Outcome(signature, **evidence)


def where(dump: str) -> str:
    """faulthandler's text without the sandbox's own frames and the list of extension modules."""
    blocks = []
    for block in dump.strip().split("\n\n"):
        lines = block.splitlines()
        ours = next((n for n, line in enumerate(lines) if f'"{worker.__file__}"' in line), len(lines))
        if not block.startswith("Extension modules:"):
            blocks.append("\n".join(lines[:ours]))
    return "\n\n".join(blocks)


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
    """The signature of a process's end: `ok`, `device-assert:<kind>`, `oom`, `exception:<type>`, `signal:<n>` or
    `exit:<code>`. (`timeout` and `stopped` are the sandbox's own doing, not the process's.)

    `exception` is the type's name and `bases` the names of its other classes, so that a subclass of
    `OutOfMemoryError` counts as one. `<kind>` is `multinomial`, `index` or `other`.
    """
    kind = _assert_kind(f"{message}\n{stderr}")
    if exception:
        names = {exception, *bases}
        asserted = error_code == DEVICE_ASSERT_CODE or "device-side assert triggered" in message
        # e.g. a later cuBLAS call that fails because the context is poisoned
        poisoned = kind and ("AcceleratorError" in names or _DEVICE_TROUBLE.search(message))
        if asserted or poisoned:
            return f"device-assert:{kind or 'other'}"
        return "oom" if names & _OOM_TYPES or _OOM_TEXT.search(message) else f"exception:{exception}"
    if signal is None and exit_code == 0:
        return "ok"
    if kind:
        return f"device-assert:{kind}"
    if signal is not None:
        return "oom" if _BAD_ALLOC.search(stderr) else f"signal:{signal}"
    return f"exit:{exit_code}"


def _assert_kind(text: str) -> str:
    """`multinomial`, `index` or `other`, by the first device assertion in `text`; "" when there is none."""
    line = _ASSERTION.search(text)
    if line is None:
        return ""
    if _MULTINOMIAL.search(line[0]):
        return "multinomial"
    return "index" if _INDEX_CUDA.search(line[0]) else "other"


def is_multinomial_assert(outcome: Outcome) -> bool:
    """True when sampling met a NaN, an Inf or a negative probability, on any device and any platform.

    On CPU that is an ordinary `RuntimeError`, on CUDA an assertion in stderr. The look-alike "sum of
    probabilities <= 0" (an all-zero row) is false. For several draws at once CUDA has one text for both: it is true.
    """
    return bool(_MULTINOMIAL.search(outcome.message)) or _assert_kind(outcome.stderr) == "multinomial"


def is_index_assert(outcome: Outcome) -> bool:
    """True when a token id or an index was outside its table, on any device."""
    return bool(_INDEX_CPU.search(outcome.message)) or _assert_kind(outcome.stderr) == "index"
