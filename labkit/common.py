"""What every room uses: how a number and a size are written, files that appear whole, what process this is.

This file knows no run, no tensor and no picture, and imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def format_size(size: float, short: bool = False) -> str:
    """Bytes as PyTorch's messages print them: `1024 bytes`, `1.50 KiB`, `20.00 MiB`, `7.01 GiB`.

    `short` gives three digits for a picture: `20 MiB`, `7.01 GiB`, and `1 GiB` where PyTorch writes `1024.00 MiB`.
    Source: `format_size` in c10/cuda/CUDACachingAllocator.cpp.
    """
    full = 1023.5 if short else 1024
    power = next((p for p in range(3) if abs(size) <= full * 1024**p), 3)
    scaled, unit = size / 1024**power, ("bytes", "KiB", "MiB", "GiB")[power]
    if short:
        return f"{scaled:.3g} {unit}" if abs(scaled) < 999.5 else f"{scaled:.0f} {unit}"
    return f"{scaled:.2f} {unit}" if power else f"{size} {unit}"


def number(value: float) -> str:
    """A number for people: three digits, `NaN` and `inf` as words, `1.5e-7` outside 0.001 to 100,000."""
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value and not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def shown(value: Any) -> str:
    """Any value on one line: a float by `number`, yes/no for a bool, none, at most six entries of a list."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return number(value)
    if isinstance(value, (list, tuple)):
        more = [f"and {len(value) - 6} more"] if len(value) > 6 else []
        return "[" + ", ".join([shown(v) for v in value[:6]] + more) + "]"
    return " ".join(str(value).split())


def write_whole(path: str | Path, content: str | bytes) -> Path:
    """Write a file so that it appears whole or not at all (temporary file, then rename); text as UTF-8."""
    path = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def kernel() -> Any:
    """The IPython shell of a running notebook kernel, or None in a script, a test or a terminal."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module else None
    return shell if getattr(shell, "kernel", None) is not None else None


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """While this lasts, automatic garbage collection is off in this process; afterwards it is as it was.

    For imports of big libraries: they make a million objects and hardly any garbage, and the collector walks them all
    again and again: 0.6 s of the 2.0 s that `import transformers.models.gpt2.modeling_gpt2` takes (torch 2.13,
    transformers 5.23, Python 3.11).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
