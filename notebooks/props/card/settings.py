"""The allocator's settings string: what `PYTORCH_CUDA_ALLOC_CONF` holds, read the way a CUDA build reads it.

`Settings.parse("expandable_segments:True,max_split_size_mb:128")`. Keys, ranges and defaults are those of torch 2.13
(`c10/core/AllocatorConfig.cpp` and `c10/cuda/CUDAAllocatorConfig.cpp`). A CUDA build raises on an unknown key and so
does this file; a CPU build lets it pass. Numbers are read more strictly: PyTorch takes `40.7`, `40abc` and `-5` for a
size. This file does not read the environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MIB = 1 << 20
UNLIMITED = (1 << 64) - 1  # C++: std::numeric_limits<size_t>::max()
ROUNDUP_INTERVALS = (
    16  # one per power of two, from 1 MiB (index 0, and all below) to 32 GiB and above (15)
)

_ENTRY = re.compile(r"([^,:\[\]]*):(\[[^\[\]]*\]|[^,:\[\]]*)(?:,|$)")
_ONLY = {
    "backend": "native",
    "throw_on_cudamalloc_oom": "False",
}  # any other value is another allocator
# Known to torch 2.13, and without effect on which block a request gets: host memory, locks, CUDA graphs.
_IGNORED = {
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse",
}
_IGNORED |= {
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_use_background_threads",
}
_IGNORED |= {
    "pinned_free_catch_all",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
}
_IGNORED |= {"pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"}
_READ = {
    "expandable_segments",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
}
_READ |= {"roundup_power2_divisions", "large_segment_size_mb", "per_process_memory_fraction"}


@dataclass(frozen=True)
class Settings:
    """What the allocator was told. Sizes in bytes."""

    expandable_segments: bool
    max_split_size: int  # blocks this big are never split
    max_non_split_rounding: int  # how much bigger than the request an unsplit big block may be
    garbage_collection_threshold: float  # share of the allowed memory; 0 = off
    roundup_power2_divisions: tuple[int, ...]  # per power of two; 0 or 1 = off
    large_segment_size: int  # segment for requests of 1 to 10 MiB; torch >= 2.11
    per_process_memory_fraction: float

    @classmethod
    def parse(cls, text: str = "") -> Settings:
        """Read a settings string; what it leaves out has PyTorch's default.

        Raises: ValueError names the key, the value and what was expected.
        """
        raw = _split(text)
        for key, value in raw.items():
            if key not in _READ | _IGNORED | set(_ONLY):
                raise ValueError(
                    f"allocator settings: unrecognized key {key!r} (a CUDA build of torch raises too); "
                    f"known keys: {', '.join(sorted(_READ))}"
                )
            if value != _ONLY.get(key, value):
                raise ValueError(
                    f"allocator settings: {key}:{value} is not simulated; use {key}:{_ONLY[key]}"
                )
        expandable = raw.get("expandable_segments", "False")
        if expandable not in ("True", "False"):
            raise _bad("expandable_segments", expandable, "True or False (so spelled)")
        # The segment size, wherever it stands, is a lower bound of two keys and the default of one of them.
        large = _mib(raw, "large_segment_size_mb", 20 * MIB, least=11)
        return cls(
            expandable_segments=expandable == "True",
            max_split_size=_mib(raw, "max_split_size_mb", UNLIMITED, least=large // MIB),
            max_non_split_rounding=_mib(
                raw, "max_non_split_rounding_mb", large, least=large // MIB
            ),
            garbage_collection_threshold=_share(
                raw, "garbage_collection_threshold", 0.0, ends=False
            ),
            roundup_power2_divisions=_divisions(raw.get("roundup_power2_divisions", "1")),
            large_segment_size=large,
            per_process_memory_fraction=_share(raw, "per_process_memory_fraction", 1.0, ends=True),
        )


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
    if not value.startswith("["):
        return (_power_of_two(value, value),) * ROUNDUP_INTERVALS
    divisions = [0] * ROUNDUP_INTERVALS
    last: int | None = None
    for item in value[1:-1].split(",") if value != "[]" else ():
        mib, _, number = item.partition(":")
        count = 0 if number == "0" else _power_of_two(number, item)
        if mib == ">":
            above = (last or 0) + 1
            divisions[above:] = [count] * (ROUNDUP_INTERVALS - above)
            continue
        interval = min(_power_of_two(mib, item).bit_length() - 1, ROUNDUP_INTERVALS - 1)
        if last is None:
            divisions[:interval] = [count] * interval
        divisions[interval] = count
        last = interval
    return tuple(divisions)


def _power_of_two(text: str, item: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number.bit_count() != 1:
        raise _bad(
            "roundup_power2_divisions",
            item,
            "powers of two: '4', or MiB:divisions as in '[256:2,>:4]'",
        )
    return number


def _mib(raw: dict[str, str], key: str, default: int, least: int) -> int:
    """The bytes of so many MiB."""
    value = raw.get(key)
    if value is None:
        return default
    if not value.isdecimal() or int(value) < least:
        raise _bad(key, value, f"a whole number of MiB, at least {least}")
    return min(int(value) * MIB, UNLIMITED)


def _share(raw: dict[str, str], key: str, default: float, ends: bool) -> float:
    """A number between 0 and 1, perhaps one of these two."""
    try:
        share = float(raw.get(key, default))
    except ValueError:
        share = -1.0
    if key in raw and not (0.0 < share < 1.0 or (ends and share in (0.0, 1.0))):
        raise _bad(
            key, raw[key], f"a number between 0 and 1, both {'included' if ends else 'excluded'}"
        )
    return share


def _bad(key: str, value: str, expected: str) -> ValueError:
    return ValueError(f"allocator settings: {key} must be {expected}, got {value!r}")
