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
from dataclasses import dataclass

MIB = 1 << 20
UNLIMITED = (1 << 64) - 1  # C++: std::numeric_limits<size_t>::max()
ROUNDUP_INTERVALS = 16  # one per power of two, from 1 MiB (index 0, and all below) to 32 GiB and above (15)

_ENTRY = re.compile(r"([^,:\[\]]*):(\[[^\[\]]*\]|[^,:\[\]]*)(?:,|$)")


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
        """Read a settings string. ValueError names the key, the value and what was expected."""
        if not isinstance(text, str):
            raise TypeError(
                f"allocator settings must be a string such as 'key:value,key:value', got {text!r}"
            )
        raw = _split(text)
        for key, value in raw.items():
            if key in _WITHOUT_EFFECT:
                _WITHOUT_EFFECT[key](key, value)
            elif key not in _KEYS:
                known = ", ".join(sorted([*_KEYS, *_WITHOUT_EFFECT]))
                raise ValueError(
                    f"allocator settings: unrecognized key {key!r} (a CUDA build of torch raises too); "
                    f"known keys: {known}"
                )
        found: dict[str, object] = {"text": text}
        large = 20 * MIB
        if "large_segment_size_mb" in raw:  # read first: it moves the lower bound of the next two
            large = _mib("large_segment_size_mb", raw["large_segment_size_mb"], least=11)
            found["large_segment_size"] = found["max_non_split_rounding"] = large
        for key, field in (
            ("max_split_size_mb", "max_split_size"),
            ("max_non_split_rounding_mb", "max_non_split_rounding"),
        ):
            if key in raw:
                found[field] = _mib(key, raw[key], least=large // MIB)
        if "garbage_collection_threshold" in raw:
            share = _number("garbage_collection_threshold", raw["garbage_collection_threshold"])
            if not 0.0 < share < 1.0:
                raise _bad("garbage_collection_threshold", share, "a number between 0 and 1, both excluded")
            found["garbage_collection_threshold"] = share
        if "per_process_memory_fraction" in raw:
            share = _number("per_process_memory_fraction", raw["per_process_memory_fraction"])
            if not 0.0 <= share <= 1.0:
                raise _bad("per_process_memory_fraction", share, "a number from 0 to 1")
            found["per_process_memory_fraction"] = share
        if "expandable_segments" in raw:
            found["expandable_segments"] = _boolean("expandable_segments", raw["expandable_segments"])
        if "roundup_power2_divisions" in raw:
            found["roundup_power2_divisions"] = _divisions(raw["roundup_power2_divisions"])
        return cls(**found)  # type: ignore[arg-type]


_KEYS = {
    "expandable_segments",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "roundup_power2_divisions",
}


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


def _divisions(value: str) -> tuple[int, ...]:
    """`4` for every size, or `[256:1,512:2,>:4]`: from 256 MiB one, from 512 MiB two, from 1 GiB on four.

    As in PyTorch's `parseRoundUpPower2Divisions`, the first interval also fills every smaller one, an interval
    that is skipped stays off, and `>` fills what lies above the interval before it.
    """
    key = "roundup_power2_divisions"
    if not value.startswith("["):
        count = _integer(key, value)
        if not _is_power_of_two(count):
            raise _bad(key, value, "a power of two, or a list such as '[256:2,>:4]'")
        return (count,) * ROUNDUP_INTERVALS
    divisions = [0] * ROUNDUP_INTERVALS
    last, first = 0, True
    for item in value[1:-1].split(",") if value != "[]" else ():
        size, colon, text = item.partition(":")
        if not colon:
            raise _bad(key, item, "entries such as '256:2' (MiB:divisions) or '>:4'")
        count = _integer(key, text)
        if count and not _is_power_of_two(count):
            raise _bad(key, item, "a number of divisions that is a power of two, or 0 to switch it off")
        if size == ">":
            divisions[last + 1 :] = [count] * (ROUNDUP_INTERVALS - last - 1)
            continue
        mib = _integer(key, size)
        if not _is_power_of_two(mib):
            raise _bad(key, item, "an interval that is a power of two, in MiB")
        last = min(mib.bit_length() - 1, ROUNDUP_INTERVALS - 1)
        if first:
            divisions[:last] = [count] * last
            first = False
        divisions[last] = count
    return tuple(divisions)


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _bad(key: str, value: object, expected: str) -> ValueError:
    return ValueError(f"allocator settings: {key} must be {expected}, got {value!r}")


def _integer(key: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]+", value):
        raise _bad(key, value, "made of whole numbers")
    return int(value)


def _mib(key: str, value: str, least: int) -> int:
    if not re.fullmatch(r"[0-9]+", value) or int(value) < least:
        raise _bad(key, value, f"a whole number of MiB, at least {least}")
    return min(int(value), UNLIMITED // MIB) * MIB


def _number(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise _bad(key, value, "a number") from None


def _boolean(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise _bad(key, value, "True or False (so spelled)")
    return value == "True"


def _only(*accepted: str) -> Callable[[str, str], None]:
    def check(key: str, value: str) -> None:
        if value not in accepted:
            raise ValueError(f"allocator settings: {key}:{value} is not simulated; use {key}:{accepted[0]}")

    return check


# Known to torch 2.13, and without effect on which block a request gets: host memory, locks, CUDA graphs.
_WITHOUT_EFFECT: dict[str, Callable[[str, str], object]] = {
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
