"""The CUDA allocator for real: out of memory at a limit, the settings it obeys, and histories that replay exactly."""

import json
import os
import sys

import cloudpickle
import pytest
import torch
import traces  # tests/memory/traces.py
from cut import Page  # tests/notebooks/cut.py
from props import lesson_11

from labkit import sandbox

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a child need not import pytest

gpu = pytest.mark.gpu
SECONDS, MIB = 600 if torch.cuda.is_available() else 150, 1 << 20
OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


def fill(limit):
    """Take 32 MiB at a time until there is no more; `limit` bytes may be reserved."""
    from labkit import memory

    held = []
    with memory.limit(limit, "cuda"):
        while True:
            held.append(torch.empty(32 * MIB, dtype=torch.uint8, device="cuda"))
            yield {"held": len(held), "reserved": torch.cuda.memory_reserved()}


def settings_in_force(late=None):
    """Allocate something, then ask the running allocator. `late` is set in between, in the environment."""
    from labkit.memory import allocator_settings

    held = [torch.ones(1, device="cuda")]
    os.environ.update(late or {})
    held.append(torch.ones(32 * MIB, dtype=torch.uint8, device="cuda"))
    snapshot = torch.cuda.memory._snapshot()
    in_force = snapshot["allocator_settings"]["expandable_segments"]
    segments = {segment["is_expandable"] for segment in snapshot["segments"]}
    yield {"in force": in_force, "segments": segments, "agree": allocator_settings().agree}


RECORDED = {"alloc", "oom", "free_requested", "free_completed"}
RECORDED |= {"segment_alloc", "segment_free", "segment_map", "segment_unmap"}
STATISTICS = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")


def remember(path):
    """Write the allocator's history of two optimizer steps of the tiny policy, as `torch-memory-history/1`."""
    from labkit.grpo import train

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
def test_a_gpu_limited_by_labkit_memory_runs_out_at_the_limit():
    run = sandbox.run(fill, 1024 * MIB + MIB, timeout=SECONDS)
    assert run.outcome.signature == "oom" and run.outcome.exception == "OutOfMemoryError", run.outcome
    assert run.events[-1] == {"held": 32, "reserved": 1024 * MIB}


READS_NEW = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
ON = "expandable_segments:True"


@gpu
@pytest.mark.parametrize(
    ("variables", "late", "obeyed"),
    [
        ({OLD: ON}, {}, True),
        ({NEW: ON}, {}, READS_NEW),
        ({OLD: "max_split_size_mb:128", NEW: ON}, {}, False),  # the CUDA one wins whole
        ({}, {OLD: ON}, False),  # set after the first use of CUDA
    ],
    ids=["the old name", "the new name", "both", "late"],
)
def test_whether_the_allocator_obeys_is_read_back_from_the_allocator(variables, late, obeyed):
    run = sandbox.run(settings_in_force, late, env=only(**variables), timeout=SECONDS)
    assert run.events == [{"in force": obeyed, "segments": {obeyed}, "agree": obeyed}], run.outcome


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


def peak_of_an_update(update, rows, lora):
    """What the allocator of this GPU had out at once in one update of GPT-2 124M, in bytes; AdamW's state is there."""
    with torch.device("cuda"):
        model = lesson_11.build(lora)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        data = lesson_11.rows_without_data(rows, 128, 128)
    lesson_11.make_state(optimizer)
    torch.cuda.reset_peak_memory_stats()
    update(model, optimizer, data)
    yield torch.cuda.max_memory_allocated()


WORKSPACE = 64 * MIB  # of cuBLAS: the simulated card has an H200's, 32 MiB a thread; others have less


@gpu
@pytest.mark.parametrize(
    ("name", "lora"), [("update", 16), ("update_in_parts", 16), ("one_backward", 16), ("update_in_parts", 0)]
)
def test_an_update_of_lesson_11_takes_what_the_simulated_card_says(name, lora):
    update = Page("11")[name]
    simulated = lesson_11.tapped(update, rows=16, lora=lora).peak
    run = sandbox.run(peak_of_an_update, update, 16, lora, timeout=SECONDS)
    assert run.outcome, run.outcome
    assert run.events[0] == pytest.approx(simulated, rel=0.01, abs=WORKSPACE)


def refused(update, gib):
    from labkit import memory

    with memory.limit(gib << 30, "cuda"):
        yield from peak_of_an_update(update, 32, 16)


@gpu
def test_a_card_of_8_gib_refuses_the_tensor_that_the_simulated_one_refuses():
    from labkit.memory import owner

    update = Page("11")["update"]
    simulated = owner(lesson_11.on_cards({"": {"update": update}}, cards=[8])[""].refused[8])
    run = sandbox.run(refused, update, 8, timeout=SECONDS)
    assert run.outcome.signature == "oom", run.outcome
    real = owner(run.outcome.message)
    assert real.tried == simulated.tried and real.allocated == pytest.approx(simulated.allocated, rel=0.02)
