"""What the CUDA allocator obeys, what it was asked for, and whether the two agree.

Which environment variable a torch version reads for CUDA (released wheels; for 2.13 also the installed header
`c10/cuda/CUDAAllocatorConfig.h`, `CUDAAllocatorConfig::instance`):

    torch 2.6 to 2.9     PYTORCH_CUDA_ALLOC_CONF only, which 2.9 calls deprecated; PYTORCH_ALLOC_CONF is ignored
    torch 2.10 and on    PYTORCH_CUDA_ALLOC_CONF; if it is not set at all, PYTORCH_ALLOC_CONF. They are not merged.

It is read once, at the first use of CUDA; later changes are ignored in silence. So the environment proves nothing. What
does: `torch.cuda.memory._snapshot()["allocator_settings"]`, and `is_expandable` of segments that were allocated since.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


@dataclass(frozen=True)
class AllocatorSettings:
    """True when what is in force is what was asked for. None of it is inferred from the environment alone."""

    in_force: str | None  # the string the running allocator took; None: there is no CUDA allocator
    honoured: str | None  # the variable that this torch reads, of those set
    agree: bool | None  # None: cannot be told
    text: str  # all this, in words

    def __bool__(self) -> bool:
        return self.agree is True

    def __str__(self) -> str:
        return self.text


def allocator_settings() -> AllocatorSettings:
    """Ask the running process. Allocate something on the device first: without a segment there is no proof."""
    import torch

    running = torch.cuda.is_available() and torch.cuda.is_initialized()
    snapshot = torch.cuda.memory._snapshot() if running else None
    return explain(snapshot, os.environ, torch.__version__)


def explain(snapshot: Mapping[str, Any] | None, environ: Mapping[str, str], version: str) -> AllocatorSettings:
    """The same for a recording, and without torch.

    snapshot   of `torch.cuda.memory._snapshot()`; None: no allocator is running
    environ    the environment
    version    of torch, "2.13.0"
    """
    read = _reads(version)
    asked = {name: environ[name] for name in (OLD, NEW) if name in environ}
    honoured = next((name for name in read if name in environ), None)
    if snapshot is None:
        wishes = ", ".join(f"{name}={value}" for name, value in asked.items()) or "nothing"
        unused = "CUDA is not in use here, so no allocator settings are in force. "
        unused += (
            f"The environment asks for {wishes}; with CUDA, torch {version} would read {honoured or 'none of it'}."
        )
        return AllocatorSettings(None, honoured, None, unused)
    report = snapshot["allocator_settings"]
    in_force, expandable = str(report.get(OLD, "")), bool(report.get("expandable_segments", False))
    text = [f"In force: {in_force or 'the defaults'} (expandable segments {'on' if expandable else 'off'})."]
    agree: bool | None = True
    # 1. has each variable that is set its way, and why not
    for name, value in asked.items():
        differs = _items(value) != _items(in_force)
        agree = agree and not differs
        if name not in read:
            text.append(f"{name}={value} has no effect: torch {version} reads {' or '.join(read)}.")
        elif name != honoured:
            text.append(f"{name}={value} is not looked at, because {honoured} is set.")
        elif differs:
            text.append(f"{name}={value} was not taken: it must be set before the first use of CUDA.")
    if in_force and not asked:
        text.append("The environment asks for nothing: it was set from code, or the variable was removed since.")
    # 2. are the segments what the string says
    if "expandable_segments:True" in _items(in_force) and not expandable:
        agree = False
        text.append("The string says expandable_segments:True, the allocator does otherwise.")
    flags = [bool(s["is_expandable"]) for s in snapshot["segments"]]
    if flags:
        agree = agree and (any(flags) or not expandable)
        older = "" if all(flags) or not expandable else "; the others are older, or it does not work here"
        text.append(f"{sum(flags)} of {len(flags)} segments are expandable{older}.")
    elif expandable:
        agree = agree and None
        text.append("There is no segment yet, so this is not proved: allocate something and ask again.")
    if agree and asked:
        text.append("What was asked for is what runs.")
    return AllocatorSettings(in_force, honoured, agree, " ".join(text))


def _reads(version: str) -> list[str]:
    """The variables that this version reads for CUDA, first come first served."""
    major, minor = version.split(".")[:2]
    return [OLD, NEW] if (int(major), int(minor)) >= (2, 10) else [OLD]


def _items(text: str) -> list[str]:
    return sorted(re.sub(r"\s+", "", text).split(","))
