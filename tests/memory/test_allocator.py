"""The allocator simulator against PyTorch's own allocator (recorded), and against what must hold of any allocator.

The recordings in `data/allocator-traces` come from PyTorch's compiled allocator; `recorder/README.md` there says how.
"""

import gzip
import json
import pickle
from pathlib import Path

import pytest
import torch.cuda._memory_viz
from hypothesis import given, settings
from hypothesis import strategies as st
from props.card import Allocator, OutOfMemory, Settings
from traces import replay

TRACES = sorted((Path(__file__).parents[1] / "data" / "allocator-traces").glob("*.jsonl.gz"))
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
STATS = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "segments")
STATS += ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free")


def stats_of(gpu):
    return {name: getattr(gpu, name) for name in STATS}


def rows(path):
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def named(name):
    return next(path for path in TRACES if path.name == f"{name}.jsonl.gz")


# ---- equal to PyTorch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.name.removesuffix(".jsonl.gz"))
def test_every_event_of_every_recording_is_reproduced_exactly(path):
    result = replay(path)
    assert result.first_mismatch is None
    assert result.events == len(rows(path)) - 1


WITH_TEXTS = ["expandable-max-split-streams", "large-segment-rounding", "max-split-gc-fraction", "roundup-list-streams"]


def test_the_recordings_reach_every_decision():
    """Retries, refusals, garbage collection, oversize blocks, growing segments: else equality would mean little."""
    last = {path.name.removesuffix(".jsonl.gz"): rows(path)[-1].get("stats") for path in TRACES}
    final = {name: dict(zip(STATS, stats, strict=True)) for name, stats in last.items() if stats}
    assert final["expandable-max-split-streams"]["num_ooms"] > 100
    assert final["max-split"]["num_alloc_retries"] > final["max-split"]["num_ooms"]
    collected = final["gc"]["num_device_free"] - final["fraction"]["num_device_free"]
    assert collected > 0 and final["gc"]["num_alloc_retries"] < final["fraction"]["num_alloc_retries"]
    assert final["expandable"]["inactive_split_bytes"] == 0 < final["default"]["inactive_split_bytes"]
    for name in WITH_TEXTS:
        events = rows(named(name))[1:]
        assert sum("segments" in event for event in events) == 6
        assert any("message" in event for event in events)
        assert all("message" in event for event in events if event.get("oom"))


# What a request of so many MiB and 1000 bytes occupies, in MiB, measured on torch 2.13.0 (allocated_bytes with
# expandable segments, where a block is cut to its exact size). None: no rounding beyond the 512 bytes.
ASKED = (1, 3, 9, 100, 130, 257, 400, 513, 700, 1025, 3000, 9000)
ROUNDED = {
    "[256:1,512:2,>:4]": (None,) * 7 + (768, 768, 1280, 3072, 10240),
    "[64:8,256:4,1024:4,>:1]": (1.125, 3.25, 10, 104, None, 320, 448, None, None, 1280, None, None),
    "[256:2,>:4,512:1]": (1.5, 4, 12, 128, 192, 384, 512, None, None, 1280, 3072, 10240),
    "[>:8]": (None, 3.25, 10, 104, 144, 288, 416, 576, 704, 1152, 3072, 9216),
    "[65536:2,131072:8]": (1.5, 4, 12, 128, 192, 384, 512, 768, 768, 1536, 3072, 12288),
    "[512:8,256:2]": (1.125, 3.25, 10, 104, 144, 384, 512, 576, 704, None, None, None),
}


@pytest.mark.parametrize("divisions", ROUNDED)
def test_lists_of_power_of_two_divisions_round_as_pytorch_does(divisions):
    gpu = Allocator(150_000_000_000, f"expandable_segments:True,roundup_power2_divisions:{divisions}")
    for asked, rounded in zip(ASKED, ROUNDED[divisions], strict=True):
        expected = asked * MIB + KIB if rounded is None else rounded * MIB
        assert gpu.malloc(asked * MIB + 1000).size == expected, asked


# Edges that random requests seldom hit, each run on torch 2.13.0: settings, total memory, calls, and then
# (allocated, reserved, segments, retries, device allocations, device frees). Sizes in MiB.
EDGES = {
    "an oversize block serves a request it exceeds by less than 20 MiB": (
        ("max_split_size_mb:40", 143_051, "+96 -0 +76.001"),
        (96, 96, 1, 0, 1, 0),
    ),
    "and none that it exceeds by 20 MiB": (("max_split_size_mb:40", 143_051, "+96 -0 +76"), (76, 172, 2, 0, 2, 0)),
    "oversize blocks go back until the sum is enough, not one more": (
        ("max_split_size_mb:20", 80, "+20 +20 +20 +20 -0 -1 -2 +40"),
        (60, 80, 3, 0, 5, 2),
    ),
    "blocks do not age without a limit: both are equally old and both go back": (
        ("garbage_collection_threshold:0.4", 1430, "+100 -0 +200 -1 +200 -2 +200 -3 +200 -4 F0.5 +300"),
        (300, 300, 1, 0, 3, 2),
    ),
    "under a limit they age: the one used since then stays": (
        ("garbage_collection_threshold:0.4", 1430, "+100 -0 F0.5 +200 -1 +200 -2 +200 -3 +200 -4 +300"),
        (300, 500, 2, 0, 3, 1),
    ),
}


@pytest.mark.parametrize("name", EDGES)
def test_edge(name):
    (setting, total, calls), expected = EDGES[name]
    gpu, blocks = Allocator(total * MIB, setting), []
    for call in calls.split():
        if call[0] == "+":
            blocks.append(gpu.malloc(int(float(call[1:]) * MIB)))
        elif call[0] == "-":
            gpu.free(blocks[int(call[1:])])
        else:
            gpu.set_memory_fraction(float(call[1:]))
    stats = stats_of(gpu)
    sizes = stats["allocated_bytes"] / MIB, stats["reserved_bytes"] / MIB
    counts = ("segments", "num_alloc_retries", "num_device_alloc", "num_device_free")
    assert (*sizes, *(stats[name] for name in counts)) == expected


@pytest.mark.parametrize(
    ("name", "at", "key", "value"),
    [
        ("default", 123, "oom", True),
        ("gpt2-train-sdpa", 30, "addr", 4096),
        ("gpt2-train-sdpa", 0, "step_stats", [{"reserved_bytes": 1}]),
    ],
)
def test_a_recording_with_one_number_changed_is_a_mismatch(tmp_path, name, at, key, value):
    lines = rows(named(name))
    lines[at][key] = value
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = replay(path)
    assert not result and "changed.jsonl, line " in result.first_mismatch


# ---- what holds of any allocator ------------------------------------------------------------------------

SETTINGS = st.sampled_from(
    [
        "",
        "expandable_segments:True",
        "max_split_size_mb:20",
        "garbage_collection_threshold:0.3",
        "roundup_power2_divisions:[1:4,16:8,>:2]",
        "expandable_segments:True,max_split_size_mb:32,roundup_power2_divisions:4",
        "max_split_size_mb:21,garbage_collection_threshold:0.5,large_segment_size_mb:12",
    ]
)
SIZES = st.one_of(
    st.integers(1, 2 * MIB), st.integers(1, 60 * MIB), st.sampled_from([MIB, MIB + 1, 10 * MIB, 20 * MIB])
)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 1)),
        st.tuples(st.just("malloc"), SIZES, st.just(0)),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0)),
        st.tuples(st.just("empty_cache"), st.just(0), st.just(0)),
        st.tuples(st.just("fraction"), st.integers(0, 10), st.just(0)),
    ),
    max_size=60,
)


def run_calls(gpu, calls, live):
    for call, number, stream in calls:
        if call == "malloc":
            try:
                live.append((gpu.malloc(number, stream), number))
            except OutOfMemory as error:
                assert error.free == gpu.total_memory - gpu.reserved_bytes
        elif call == "free" and live:
            gpu.free(live.pop(number % len(live))[0])
        elif call == "empty_cache":
            gpu.empty_cache()
        elif call == "fraction":
            gpu.set_memory_fraction(number / 10)
        yield


def check(gpu, live):
    """Everything is told from the snapshot and the caller's own list, not from the simulator's counters."""
    segments = gpu.snapshot()
    spans = sorted((s["address"], s["address"] + s["total_size"]) for s in segments)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False)), "segments overlap"
    in_use, free_in_split = {}, 0
    for segment in segments:
        at, before = segment["address"], "active_allocated"
        for block in segment["blocks"]:
            assert block["address"] == at and block["size"] > 0 and block["size"] % 512 == 0, "a gap or an overlap"
            assert not (before == block["state"] == "inactive"), "two free neighbours are not merged"
            at, before = at + block["size"], block["state"]
            if block["state"] == "active_allocated":
                in_use[block["address"]] = (block["size"], block["requested_size"])
            elif len(segment["blocks"]) > 1 and not segment["is_expandable"]:
                free_in_split += block["size"]
        assert at == segment["address"] + segment["total_size"], "bytes are lost"
    assert in_use == {block.address: (block.size, asked) for block, asked in live}
    assert all(block.size >= asked for block, asked in live)
    stats = stats_of(gpu)
    assert stats["reserved_bytes"] == sum(s["total_size"] for s in segments) <= gpu.total_memory
    assert stats["allocated_bytes"] == stats["active_bytes"] == sum(block.size for block, _ in live)
    assert stats["segments"] == sum(not s["is_expandable"] for s in segments)
    assert stats["inactive_split_bytes"] == free_in_split
    assert gpu.peak_reserved_bytes >= stats["reserved_bytes"]


@settings(max_examples=120, deadline=None)
@given(SETTINGS, CALLS)
def test_blocks_never_overlap_no_byte_is_lost_free_neighbours_merge_and_freeing_all_returns_to_zero(text, calls):
    gpu, live = Allocator(300 * MIB, text), []
    for _ in run_calls(gpu, calls, live):
        check(gpu, live)
    for block, _ in live:
        gpu.free(block)
    gpu.empty_cache()
    assert gpu.snapshot() == []
    assert list(stats_of(gpu).values())[:5] == [0, 0, 0, 0, 0]
    assert gpu.num_device_alloc == 0 or gpu.num_device_free > 0


# ---- what a caller sees ---------------------------------------------------------------------------------


def test_a_snapshot_is_one_that_pytorchs_own_viewer_reads_and_carries_the_tags():
    gpu = Allocator(GIB)
    parameter, cache = gpu.malloc(30 * MIB, tag="parameter"), gpu.malloc(20 * MIB, tag="cache")
    gpu.free(cache)
    segments = gpu.snapshot()
    assert [b["tag"] for s in segments for b in s["blocks"]] == ["parameter", None]
    assert parameter.tag == "parameter"
    text = torch.cuda._memory_viz.segsum({"segments": segments})
    assert "total_reserved: 50.0MiB" in text and "total_allocated: 30.0MiB" in text


def test_peaks_start_again_from_the_current_values():
    gpu = Allocator(GIB)
    gpu.free(gpu.malloc(100 * MIB))
    gpu.empty_cache()
    kept = gpu.malloc(10 * MIB)
    assert (gpu.peak_allocated_bytes, gpu.peak_reserved_bytes) == (100 * MIB, 100 * MIB)
    gpu.reset_peak()
    assert (gpu.peak_allocated_bytes, gpu.peak_reserved_bytes) == (kept.size, 10 * MIB)


def test_an_error_survives_pickling_with_its_numbers():
    with pytest.raises(OutOfMemory) as caught:
        Allocator(GIB).malloc(2 * GIB)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and vars(again) == vars(caught.value)


def test_a_block_is_freed_once_where_it_came_from():
    gpu, other = Allocator(GIB), Allocator(GIB)
    block = gpu.malloc(MIB)
    address = block.address
    with pytest.raises(ValueError, match=r"free: Block\(.*not in use here: freed twice, or from another Allocator"):
        other.free(block)
    gpu.free(block)
    again = gpu.malloc(MIB)  # the same address, another block
    assert again.address == address and again is not block
    with pytest.raises(ValueError, match="freed twice"):
        gpu.free(block)


def test_zero_bytes_touch_nothing_and_a_bad_size_is_named():
    gpu = Allocator(GIB)
    block = gpu.malloc(0)
    gpu.free(block)
    assert block.size == 0
    for nbytes in (-1, 1.5, True, "1"):
        with pytest.raises(ValueError, match=f"nbytes must be a whole number of bytes, at least 0, got {nbytes!r}"):
            gpu.malloc(nbytes)
        with pytest.raises(ValueError, match="total_memory must be"):
            Allocator(nbytes)
    for fraction in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="expected a number from 0 to 1, got"):
            gpu.set_memory_fraction(fraction)
    assert not any(stats_of(gpu).values())


@pytest.mark.parametrize(
    "text, named_in_error",
    [
        ("expandable_segment:True", "unrecognized key 'expandable_segment'.*known keys: .*expandable_segments"),
        ("expandable_segments:true", "expandable_segments must be True or False.*'true'"),
        ("max_split_size_mb:19", "max_split_size_mb must be a whole number of MiB, at least 20, got '19'"),
        ("large_segment_size_mb:30,max_split_size_mb:25", "max_split_size_mb .* at least 30"),
        ("max_non_split_rounding_mb:40.7", "max_non_split_rounding_mb .* got '40.7'"),
        ("garbage_collection_threshold:1", "garbage_collection_threshold must be a number between 0 and 1"),
        ("per_process_memory_fraction:1.5", "per_process_memory_fraction must be a number between 0 and 1, both incl"),
        ("roundup_power2_divisions:3", "roundup_power2_divisions must be powers of two: .*, got '3'"),
        ("roundup_power2_divisions:[100:2]", "powers of two: .* MiB:divisions .*, got '100:2'"),
        ("roundup_power2_divisions:[256]", "MiB:divisions as in .*, got '256'"),
        ("max_split_size_mb=40", "cannot read 'max_split_size_mb=40'.*expected 'key:value,key:value'"),
        ("backend:cudaMallocAsync", "backend:cudaMallocAsync is not simulated; use backend:native"),
    ],
)
def test_a_bad_setting_is_named_with_what_was_expected(text, named_in_error):
    with pytest.raises(ValueError, match=f"allocator settings: .*{named_in_error}"):
        Allocator(GIB, text)


def test_settings_are_read_with_white_space_a_trailing_comma_and_the_last_of_two():
    read = Settings.parse(
        " max_split_size_mb : 40 , max_split_size_mb:64, backend:native,pinned_num_register_threads:8,"
    )
    assert read.max_split_size == 64 * MIB and not read.expandable_segments
    assert Settings.parse("large_segment_size_mb:32").max_non_split_rounding == 32 * MIB
