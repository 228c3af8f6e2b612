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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


@dataclass(frozen=True)
class AllocatorSettings:
    """True when what is in force is what was asked for. None of it is inferred from the environment alone."""

    in_force: str | None  # the string the running allocator took; None: there is no CUDA allocator
    segments: int  # segments there are now
    expandable_segments: int  # of those, how many really are expandable
    honoured: str | None  # the variable that this torch reads, of those set
    agree: bool | None  # None: cannot be told
    words: str  # all this, in words

    def __bool__(self) -> bool:
        return self.agree is True

    def __str__(self) -> str:
        return self.words


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
        said = ", ".join(f"{name}={value}" for name, value in asked.items()) or "nothing"
        words = "CUDA is not in use here, so no allocator settings are in force. "
        words += f"The environment asks for {said}; with CUDA, torch {version} would read {honoured or 'none of it'}."
        return AllocatorSettings(None, 0, 0, honoured, None, words)
    report = snapshot["allocator_settings"]
    in_force, expandable = str(report.get(OLD, "")), bool(report.get("expandable_segments", False))
    flags = [bool(s["is_expandable"]) for s in snapshot["segments"]]
    verdicts = [*_on_variables(asked, read, honoured, in_force, version), *_on_segments(in_force, expandable, flags)]
    agrees = [agree for agree, _ in verdicts]
    agree = False if False in agrees else None if None in agrees else True
    words = f"In force: {in_force or 'the defaults'} (expandable segments {'on' if expandable else 'off'})."
    words = " ".join([words, *(text for _, text in verdicts if text)])
    if agree and asked:
        words += " What was asked for is what runs."
    return AllocatorSettings(in_force, len(flags), sum(flags), honoured, agree, words)


def _on_variables(
    asked: Mapping[str, str], read: list[str], honoured: str | None, in_force: str, version: str
) -> Iterator[tuple[bool | None, str]]:
    """Whether each variable that is set has its way, and why not."""
    for name in asked:
        had_its_way = _items(asked[name]) == _items(in_force)
        said = f"{name}={asked[name]}"
        if name == honoured:
            late = f"{said} was not taken: it must be set before the first use of CUDA."
            yield had_its_way, "" if had_its_way else late
        elif name in read:
            yield had_its_way, f"{said} is not looked at, because {honoured} is set."
        else:
            yield had_its_way, f"{said} has no effect: torch {version} reads {' or '.join(read)}."
    if not asked and in_force:
        yield (True, "The environment asks for nothing: it was set from code, or the variable was removed since.")


def _on_segments(in_force: str, expandable: bool, flags: list[bool]) -> Iterator[tuple[bool | None, str]]:
    """Whether the segments are what the string says."""
    if "expandable_segments:True" in _items(in_force) and not expandable:
        yield False, "The string says expandable_segments:True, the allocator does otherwise."
    if expandable and not flags:
        yield None, "There is no segment yet, so this is not proved: allocate something and ask again."
    elif flags:
        older = "" if all(flags) or not expandable else "; the others are older, or it does not work here"
        yield any(flags) or not expandable, f"{sum(flags)} of {len(flags)} segments are expandable{older}."


def _reads(version: str) -> list[str]:
    """The variables that this version reads for CUDA, first come first served."""
    major, minor = version.split(".")[:2]
    return [OLD, NEW] if (int(major), int(minor)) >= (2, 10) else [OLD]


def _items(text: str) -> list[str]:
    return sorted(re.sub(r"\s+", "", text).split(","))
