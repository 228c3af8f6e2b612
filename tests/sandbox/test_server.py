"""The server: imported and idle, replaced when it must be, and never in the way."""

import os
import signal
import sys
import time

import psutil
import pytest
from children import LINUX, count, gone, hang_holding_the_gil, linux, read_environment, wait_for_events

from labkit import sandbox


@linux
def test_the_server_has_imported_torch_and_computed_nothing_and_its_fork_may_choose_its_threads():
    def compute():
        imported = "torch" in sys.modules
        import torch

        yield imported, torch.cuda.is_initialized(), len(os.listdir("/proc/self/task"))
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            x = torch.randn(400, 400)
            yield torch.get_num_threads(), bool(torch.isfinite(x @ x).all())

    run = sandbox.run(compute, timeout=60)
    assert run.events == [(True, False, 1), (1, True), (2, True), (1, True)], run.outcome
    # numpy's BLAS starts its idle threads on import and handles forks itself; OpenMP's would show as more
    server = psutil.Process(sandbox.server._server.process.pid)
    assert server.num_threads() <= (os.cpu_count() or 1)
    assert "left out" not in sandbox.server._server.last_words()


@linux
def test_stop_before_the_server_is_ready_waits_for_nothing_and_runs_nothing(slow, tmp_path):
    (tmp_path / "ran").mkdir()
    children = [sandbox.start((tmp_path / "ran" / str(number)).touch) for number in range(8)]
    time.sleep(0.2)
    began = time.monotonic()
    for child in children:
        child.stop()
    assert {child.result().outcome.signature for child in children} == {"stopped"}
    assert time.monotonic() - began < 2
    assert sandbox.run(count, 1).outcome
    assert not list((tmp_path / "ran").iterdir())


@linux
def test_the_death_of_the_server_takes_the_children_along_and_the_next_run_has_a_new_one(bare):
    child = sandbox.start(hang_holding_the_gil)
    wait_for_events(child)
    os.kill(sandbox.server._server.process.pid, signal.SIGKILL)
    outcome = child.result().outcome
    assert outcome.signature == "signal:9" and "server died" in outcome.message
    assert gone([child.pid])
    assert sandbox.run(count, 2).outcome


@linux
def test_an_idle_server_is_replaced_when_the_callers_import_time_variables_change(bare):
    sandbox.run(count, 1)
    first = sandbox.server._server
    bare.setenv("HF_HUB_OFFLINE", "1" if os.environ.get("HF_HUB_OFFLINE") != "1" else "0")
    run = sandbox.run(read_environment, "HF_HUB_OFFLINE")
    assert run.events == [os.environ["HF_HUB_OFFLINE"]] and run.meta["process"] == "fork"
    assert sandbox.server._server is not first and not first.usable


def test_a_module_that_cannot_be_imported_does_not_break_the_server(bare):
    bare.setattr(sandbox.server, "PRELOAD", ("labkit.no_such_module", "json"))
    assert sandbox.run(count, 1).outcome
    assert not LINUX or "labkit.no_such_module left out" in sandbox.server._server.last_words()


def test_a_server_that_cannot_start_is_an_error_and_the_next_one_may(bare):
    with bare.context() as patch:
        patch.setattr(sys, "executable", sys.executable + "-is-not-here")
        with pytest.raises(sandbox.SandboxError, match="could not start a process"):
            sandbox.run(count, 1)
    assert sandbox.run(count, 1).outcome


@linux
def test_a_server_that_dies_at_once_is_an_error_with_its_own_words(bare, tmp_path):
    (tmp_path / "ends_the_server.py").write_text("import os; print('no libtorch here', flush=True); os._exit(1)")
    bare.syspath_prepend(str(tmp_path))
    bare.setattr(sandbox.server, "PRELOAD", ("ends_the_server",))
    with pytest.raises(sandbox.SandboxError, match="no libtorch here"):
        sandbox.run(count, 1)


@linux
def test_a_server_that_died_between_two_runs_is_replaced_without_a_word(bare):
    for _ in range(8):
        assert sandbox.run(count, 2).outcome
        os.kill(sandbox.server._server.process.pid, signal.SIGKILL)  # it may take a while to die


def test_a_run_inside_a_run_works_and_ends_with_it(bare):
    def nested():
        from labkit import sandbox

        sandbox.server.PRELOAD = ()
        inner = sandbox.run(lambda: 5)
        yield inner.events, inner.outcome.signature
        sandbox.start(time.sleep, 600)
        yield sandbox.server._server.process.pid if sandbox.server._server else None

    run = sandbox.run(nested, timeout=60)
    assert run.events[0] == ([5], "ok")
    assert not run.events[1] or gone(run.events[1:])
