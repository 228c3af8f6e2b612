"""The allocator's settings string: what `PYTORCH_CUDA_ALLOC_CONF` holds, read the way a CUDA build reads it.

`Settings.parse("expandable_segments:True,max_split_size_mb:128")`. Keys, ranges and defaults are those of
torch 2.13 (`c10/core/AllocatorConfig.cpp` and `c10/cuda/CUDAAllocatorConfig.cpp`). A CUDA build raises on an
unknown key and so does this file; a CPU build of torch would let it pass. Numbers are read more strictly than
PyTorch reads them: it takes `40.7`, `40abc` and `-5` for a size, this file refuses them.
This file does not read the environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

MIB = 1 << 20
UNLIMITED = (1 << 64) - 1  # C++: std::numeric_limits<size_t>::max()
ROUNDUP_INTERVALS = 16  # one per power of two, from 1 MiB (index 0, and all below) to 32 GiB and above (15)

_ENTRY = re.compile(r"([^,:\[\]]*):(\[[^\[\]]*\]|[^,:\[\]]*)(?:,|$)")
_DIGITS = re.compile("[0-9]+")


@dataclass(frozen=True)
class Settings:
    """What the allocator was told. Sizes in bytes. The defaults are PyTorch's."""

    expandable_segments: bool = False
    max_split_size: int = UNLIMITED  # blocks this big are never split
    max_non_split_rounding: int = 20 * MIB  # how much bigger than the request an unsplit big block may be
    garbage_collection_threshold: float = 0.0  # share of the allowed memory; 0 = off
    roundup_power2_divisions: tuple[int, ...] = (0,) * ROUNDUP_INTERVALS  # per power of two; 0 or 1 = off
    large_segment_size: int = 20 * MIB  # segment for requests of 1 to 10 MiB; torch >= 2.11
    per_process_memory_fraction: float = 1.0
    text: str = ""  # the string they were read from

    @classmethod
    def parse(cls, text: str = "") -> Settings:
        """Read a settings string.

        Raises: ValueError names the key, the value and what was expected.
        """
        if not isinstance(text, str):
            raise TypeError(f"allocator settings must be a string such as 'key:value,key:value', got {text!r}")
        raw = _split(text)
        if unknown := [key for key in raw if key not in _READERS]:
            raise ValueError(
                f"allocator settings: unrecognized key {unknown[0]!r} (a CUDA build of torch raises too); "
                f"known keys: {', '.join(sorted(_READERS))}"
            )
        read = {key: _READERS[key](key, value) for key, value in raw.items()}
        # The segment size, wherever it stands, is a lower bound of two keys and the default of one of them.
        large = read.get("large_segment_size_mb", cls.large_segment_size)
        for key in ("max_split_size_mb", "max_non_split_rounding_mb"):
            _mib(key, raw.get(key, str(UNLIMITED)), least=large // MIB)
        found = {"max_non_split_rounding": large, "text": text}
        found |= {key.removesuffix("_mb"): value for key, value in read.items()}
        return cls(**{field.name: found[field.name] for field in fields(cls) if field.name in found})


def _split(text: str) -> dict[str, str]:
    """`key:value,key:[a:1,b:2]` to a dict. White space is dropped, a repeated key keeps its last value."""
    text = re.sub(r"\s+", "", text)
    raw: dict[str, str] = {}
    at = 0
    while at < len(text):
        entry = _ENTRY.match(text, at)
        if not entry or not entry[1] or not entry[2]:
            raise ValueError(
                f"allocator settings: cannot read {text[at:]!r} in {text!r}; "
                "expected 'key:value,key:value', a list value as '[256:1,512:2,>:4]'"
            )
        raw[entry[1]] = entry[2]
        at = entry.end()
    return raw


def _divisions(key: str, value: str) -> tuple[int, ...]:
    """`4` for every size, or `[256:1,512:2,>:4]`: from 256 MiB one, from 512 MiB two, from 1 GiB on four.

    As in PyTorch's `parseRoundUpPower2Divisions`, the first interval also fills every smaller one, an interval
    that is skipped stays off, and `>` fills what lies above the interval before it.
    """
    if not value.startswith("["):
        count = _integer(key, value)
        if not _is_power_of_two(count):
            raise _bad(key, value, "a power of two, or a list such as '[256:2,>:4]'")
        return (count,) * ROUNDUP_INTERVALS
    divisions = [0] * ROUNDUP_INTERVALS
    last: int | None = None
    for item in value[1:-1].split(",") if value != "[]" else ():
        interval, count = _interval(key, item)
        if interval is None:
            above = (last or 0) + 1
            divisions[above:] = [count] * (ROUNDUP_INTERVALS - above)
            continue
        if last is None:
            divisions[:interval] = [count] * interval
        divisions[interval] = count
        last = interval
    return tuple(divisions)


def _interval(key: str, item: str) -> tuple[int | None, int]:
    """`256:2` is interval 8 (2**8 MiB) with 2 divisions; `>:4` is no interval, with 4."""
    size, colon, text = item.partition(":")
    if not colon:
        raise _bad(key, item, "entries such as '256:2' (MiB:divisions) or '>:4'")
    count = _integer(key, text)
    if count and not _is_power_of_two(count):
        raise _bad(key, item, "a number of divisions that is a power of two, or 0 to switch it off")
    if size == ">":
        return None, count
    mib = _integer(key, size)
    if not _is_power_of_two(mib):
        raise _bad(key, item, "an interval that is a power of two, in MiB")
    return min(mib.bit_length() - 1, ROUNDUP_INTERVALS - 1), count


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _bad(key: str, value: object, expected: str) -> ValueError:
    return ValueError(f"allocator settings: {key} must be {expected}, got {value!r}")


def _integer(key: str, value: str) -> int:
    if not _DIGITS.fullmatch(value):
        raise _bad(key, value, "made of whole numbers")
    return int(value)


def _mib(key: str, value: str, least: int = 0) -> int:
    if not _DIGITS.fullmatch(value) or int(value) < least:
        raise _bad(key, value, f"a whole number of MiB, at least {least}")
    return min(int(value), UNLIMITED // MIB) * MIB


def _number(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise _bad(key, value, "a number") from None


def _threshold(key: str, value: str) -> float:
    if not 0.0 < _number(key, value) < 1.0:
        raise _bad(key, value, "a number between 0 and 1, both excluded")
    return float(value)


def _fraction(key: str, value: str) -> float:
    if not 0.0 <= _number(key, value) <= 1.0:
        raise _bad(key, value, "a number from 0 to 1")
    return float(value)


def _boolean(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise _bad(key, value, "True or False (so spelled)")
    return value == "True"


def _only(accepted: str) -> Callable[[str, str], None]:
    def check(key: str, value: str) -> None:
        if value != accepted:
            raise ValueError(f"allocator settings: {key}:{value} is not simulated; use {key}:{accepted}")

    return check


# How each key's value is read. Without the `_mb` it is the name of a field of `Settings`.
_READERS: dict[str, Callable[[str, str], Any]] = {
    "expandable_segments": _boolean,
    "garbage_collection_threshold": _threshold,
    "large_segment_size_mb": partial(_mib, least=11),
    "max_non_split_rounding_mb": _mib,
    "max_split_size_mb": _mib,
    "per_process_memory_fraction": _fraction,
    "roundup_power2_divisions": _divisions,
    # Known to torch 2.13, and without effect on which block a request gets: host memory, locks, CUDA graphs.
    "backend": _only("native"),
    "throw_on_cudamalloc_oom": _only("False"),
    "release_lock_on_cudamalloc": _boolean,
    "release_lock_on_hipmalloc": _boolean,
    "graph_capture_record_stream_reuse": _boolean,
    "pinned_use_cuda_host_register": _boolean,
    "pinned_use_hip_host_register": _boolean,
    "pinned_use_background_threads": _boolean,
    "pinned_free_catch_all": _boolean,
    "pinned_num_register_threads": _integer,
    "pinned_reserve_segment_size_mb": _integer,
    "pinned_max_round_threshold_mb": _integer,
    "pinned_max_cached_size_mb": _integer,
}
