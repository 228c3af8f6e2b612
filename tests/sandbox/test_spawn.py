"""Children without a server: fresh interpreters."""

import subprocess
import sys
import textwrap

import psutil
import pytest
from children import ROOT, check_fault, gone, leave_a_family, posix, read_environment, wait_for_events

from labkit import sandbox

SPAWNED = ["segfault", "os._exit(3)", "hang in C with the GIL", "exception", "50 MB of stderr", "fake index assert"]


@pytest.fixture(autouse=True)
def no_server(monkeypatch):
    monkeypatch.setattr(sandbox.server, "HAS_SERVER", False)


@pytest.mark.parametrize("name", SPAWNED)
def test_the_same_faults_end_the_same_way_without_a_server(name):
    check_fault(name)


@posix
def test_without_a_server_a_child_streams_stops_and_leaves_nothing():
    before = psutil.Process().num_fds()
    run = sandbox.run(read_environment, "LABKIT_X", env={"LABKIT_X": "1"})
    assert run.events == ["1"] and run.outcome
    child = sandbox.start(leave_a_family, hang=True, sessions=[False])
    pids = wait_for_events(child)
    child.stop()
    assert child.result().outcome.signature == "stopped" and gone(pids)
    assert psutil.Process().num_fds() == before


@posix
def test_without_a_server_a_child_ends_when_this_interpreter_does():
    script = """
    import os, time
    from labkit import sandbox
    sandbox.server.HAS_SERVER = False

    def hang():
        yield os.getpid()
        time.sleep(600)

    child = sandbox.start(hang)
    while not (events := child.drain()):
        child.wait_for_news()
    print(*events)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    pid = int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    assert gone([pid])
