"""The CUDA allocator for real: out of memory at a limit, the settings it obeys, and histories that replay exactly."""

import json
import os
import sys

import cloudpickle
import pytest
import torch
import traces  # tests/memory/traces.py

from labkit import sandbox

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a child need not import pytest

gpu = pytest.mark.gpu
SECONDS, MIB = 600 if torch.cuda.is_available() else 150, 1 << 20
OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


def fill(limit):
    """Take 32 MiB at a time until there is no more; `limit` bytes may be reserved."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit / total)
    held = []
    while True:
        held.append(torch.empty(32 * MIB, dtype=torch.uint8, device="cuda"))
        yield {"held": len(held), "reserved": torch.cuda.memory_reserved()}


def fill_within_limit(limit):
    """The same, through labkit.memory.limit."""
    from labkit import memory

    with memory.limit(limit, "cuda"):
        yield from fill_on(torch.device("cuda"))


def fill_on(device):
    held = []
    while True:
        held.append(torch.empty(32 * MIB, dtype=torch.uint8, device=device))
        yield {"held": len(held)}


def settings_in_force():
    """Allocate something, then ask the running allocator."""
    from labkit.memory import allocator_settings

    held = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
    snapshot = torch.cuda.memory._snapshot()
    ours = allocator_settings()
    yield {
        "expandable": snapshot["allocator_settings"]["expandable_segments"],
        "segments": [segment["is_expandable"] for segment in snapshot["segments"]],
        "agree": ours.agree,
        "words": ours.words,
        "bytes": held.numel(),
    }


RECORDED = {"alloc", "oom", "free_requested", "free_completed"}
RECORDED |= {"segment_alloc", "segment_free", "segment_map", "segment_unmap"}
STATISTICS = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")


def remember(path):
    """Write the allocator's history of two optimizer steps of the tiny policy, as `torch-memory-history/1`."""
    from labkit.train import train

    assert torch.cuda.memory_reserved() == 0  # a replay starts from nothing
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=1_000_000)
    steps = []
    for _ in train(device="cuda", rounds=1, mu=2):
        stats = torch.cuda.memory_stats()
        now = {name: stats[f"{name}.all.current"] for name in STATISTICS}
        steps.append(now | {"peak_allocated_bytes": stats["allocated_bytes.all.peak"]})
    snapshot = torch.cuda.memory._snapshot()
    header = {
        "format": "torch-memory-history/1",
        "settings": str(snapshot["allocator_settings"].get(OLD, "")),
        "total_memory": torch.cuda.get_device_properties(0).total_memory,
        "step_stats": steps,
    }
    events = [event for event in snapshot["device_traces"][0] if event["action"] in RECORDED]
    # An `oom` event has the device's free bytes where others have an address.
    kept = [{key: event[key] for key in ("action", "addr", "size", "stream") if key in event} for event in events]
    path.write_text("".join(json.dumps(row) + "\n" for row in [header, *kept]))
    yield {"events": len(events), "steps": len(steps)}


def only(**variables):
    """An environment with just these allocator variables."""
    return {OLD: None, NEW: None, **variables}


@gpu
def test_a_gpu_limited_by_fraction_runs_out_at_the_limit():
    run = sandbox.run(fill, 1024 * MIB + MIB, timeout=SECONDS)
    assert run.outcome.signature == "oom" and run.outcome.exception == "OutOfMemoryError", run.outcome
    assert run.events[-1] == {"held": 32, "reserved": 1024 * MIB}


@gpu
def test_the_limit_of_labkit_memory_is_the_same_limit():
    run = sandbox.run(fill_within_limit, 1024 * MIB + MIB, timeout=SECONDS)
    assert run.outcome.signature == "oom" and run.events[-1] == {"held": 32}, run.outcome


@gpu
@pytest.mark.parametrize("name", [OLD, NEW])
def test_which_variable_the_allocator_obeys_is_read_back_from_the_allocator(name):
    run = sandbox.run(settings_in_force, env=only(**{name: "expandable_segments:True"}), timeout=SECONDS)
    assert run.outcome, run.outcome
    (seen,) = run.events
    obeyed = name == OLD or tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
    assert seen["expandable"] is obeyed and set(seen["segments"]) == {obeyed}, seen
    assert seen["agree"] is obeyed, seen


@gpu
def test_with_both_variables_set_the_cuda_one_wins_whole():
    env = only(**{OLD: "max_split_size_mb:128", NEW: "expandable_segments:True"})
    (seen,) = sandbox.run(settings_in_force, env=env, timeout=SECONDS).events
    assert seen["expandable"] is False and set(seen["segments"]) == {False} and seen["agree"] is False, seen


@gpu
def test_a_setting_made_after_the_first_use_of_cuda_is_ignored():
    def late():
        torch.ones(1, device="cuda")
        os.environ[OLD] = "expandable_segments:True"
        yield from settings_in_force()

    (seen,) = sandbox.run(late, env=only(), timeout=SECONDS).events
    assert seen["expandable"] is False and set(seen["segments"]) == {False} and seen["agree"] is False, seen


@gpu
@pytest.mark.parametrize(
    "setting",
    ["", "expandable_segments:True", "max_split_size_mb:64,garbage_collection_threshold:0.8"],
    ids=["default", "expandable", "split-and-gc"],
)
def test_a_real_memory_history_replays_on_the_simulator_without_a_mismatch(tmp_path, setting):
    path = tmp_path / "history.jsonl"
    run = sandbox.run(remember, path, env=only(**({OLD: setting} if setting else {})), timeout=SECONDS)
    assert run.outcome, run.outcome
    (counted,) = run.events
    assert counted["steps"] == 2 and counted["events"] > 500, counted
    replay = traces.replay(path)
    assert replay.events == counted["events"] and replay, replay.first_mismatch
