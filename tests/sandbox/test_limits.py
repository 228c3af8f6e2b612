"""A child's limits: what holds it, from when, and that a bad one is refused."""

import os
from functools import partial

import pytest
from children import LINUX, count, hang_holding_the_gil, linux, read_environment

from labkit import sandbox


@pytest.mark.parametrize("fresh", [None, True])
def test_env_is_in_place_for_python_and_for_c(fresh, monkeypatch):
    monkeypatch.setenv("LABKIT_HERE", "old")
    monkeypatch.setenv("LABKIT_AWAY", "old")
    env = {"LABKIT_HERE": "new", "LABKIT_AWAY": None, "CUDA_LAUNCH_BLOCKING": "1"}
    run = sandbox.run(read_environment, *env, env=env, fresh=fresh)
    assert run.events == ["new", None, "1"], run.outcome
    assert run.meta["process"] == ("fresh" if fresh else "fork") or not LINUX
    assert os.environ["LABKIT_HERE"] == "old"
    later = sandbox.run(read_environment, "LABKIT_HERE", "CUDA_LAUNCH_BLOCKING")
    assert later.events == ["old", os.environ.get("CUDA_LAUNCH_BLOCKING")], "nothing is left in the server"


@linux
def test_a_variable_that_is_read_at_import_time_gets_a_fresh_interpreter():
    def threads():
        before = {name: text for name, text in os.environ.items() if name.startswith(sandbox.server.IMPORT_TIME)}
        import torch
        import transformers.models.gpt2.modeling_gpt2  # noqa: F401

        yield torch.get_num_threads()
        yield {n: t for n, t in os.environ.items() if n.startswith(sandbox.server.IMPORT_TIME) and before.get(n) != t}

    other = 2 if os.environ.get("OMP_NUM_THREADS") == "1" else 1  # this process's own stays: the server was made for it
    run = sandbox.run(threads, env={"OMP_NUM_THREADS": str(other)})
    assert run.meta["process"] == "fresh" and run.events[0] == min(other, os.cpu_count())
    assert run.events[1] == {}, "a caller that imports these would lose its warm server"
    assert sandbox.run(threads, env={"PYTORCH_ALLOC_CONF": "x"}, fresh=False).meta["process"] == "fork"
    assert sandbox.run(threads, env={"CUDA_VISIBLE_DEVICES": ""}).meta["process"] == "fork"


@linux
def test_the_time_out_counts_from_the_start_of_the_run_not_from_that_of_the_server(slow):
    run = sandbox.run(count, 2, timeout=1)
    assert run.outcome and run.outcome.seconds < 1


@linux
def test_a_child_that_is_never_ready_times_out(slow, monkeypatch):
    monkeypatch.setattr(sandbox.child, "START_LIMIT", 0.3)
    outcome = sandbox.run(count, 1).outcome
    assert outcome.signature == "timeout"
    assert outcome.message == "the process was not ready to run after 0.3 s"


def test_run_start_and_run_all_take_the_same_limits():
    read = partial(read_environment, "LABKIT_X")
    limits = {"timeout": 60, "env": {"LABKIT_X": "1"}}
    assert sandbox.run_all(read, {"a": {}}, **limits)["a"].events == ["1"]
    assert sandbox.run(read, **limits).events == ["1"]
    assert sandbox.start(read, **limits).result().events == ["1"]
    short = sandbox.run_all(hang_holding_the_gil, {"a": {}, "b": {}}, timeout=0.2)
    assert [run.outcome.signature for run in short.values()] == ["timeout", "timeout"]
    hangs = sandbox.start(hang_holding_the_gil, timeout=0.2)
    assert hangs.result().outcome.signature == "timeout"


def test_a_functions_own_argument_of_a_limits_name_goes_in_by_partial():
    assert sandbox.run(partial(lambda timeout: timeout, timeout="mine"), timeout=60).events == ["mine"]


@pytest.mark.parametrize("at_once", [1, 2])
def test_children_at_once_share_the_cores_threads_unless_their_number_is_set(at_once):
    read = partial(read_environment, "OMP_NUM_THREADS")
    unset, given = {"env": {"OMP_NUM_THREADS": None}}, {"env": {"OMP_NUM_THREADS": "7"}}
    runs = sandbox.run_all(read, {"unset": unset, "given": given}, at_once=at_once)
    assert {name: run.events for name, run in runs.items()} == {
        "unset": [str(max(1, os.cpu_count() // at_once))],
        "given": ["7"],
    }
