"""A child dies in any way: the caller knows how and has all that it said, and nothing of it is left."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import psutil
import pytest
from children import (
    FAULTS,
    ROOT,
    check_fault,
    count,
    fail,
    gone,
    hang_holding_the_gil,
    leave_a_family,
    linux,
    posix,
    segfault,
    wait_for_events,
)

from labkit import sandbox
from labkit.sandbox.job import Job


@posix
def test_a_fault_ends_the_child_only_is_named_and_leaves_no_descriptor_and_no_process():
    """LABKIT_FAULTS=200 for the long version; the server must be the same one at the end."""
    check_fault("exception")
    server, before = sandbox.server._server, psutil.Process().num_fds()
    keeper = psutil.Process(server.process.pid)
    keeper_before = keeper.num_fds()
    names = list(FAULTS)
    for number in range(int(os.environ.get("LABKIT_FAULTS", len(FAULTS)))):
        check_fault(names[number % len(names)])
    assert psutil.Process().num_fds() == before
    assert not [t for t in threading.enumerate() if t.name.startswith("labkit-")]
    end = time.monotonic() + 20
    while keeper.num_fds() > keeper_before:  # it closes the last status pipe after it has written to it
        assert time.monotonic() < end
    assert sandbox.server._server is server and server.usable and not server.busy


@posix
def test_no_event_that_was_yielded_is_lost_to_the_death_that_follows():
    def stream():
        yield from range(5000)
        os.kill(os.getpid(), 9)

    assert sandbox.run(stream, timeout=60).events == list(range(5000))


@posix
def test_text_without_a_newline_survives_a_kill_from_python_and_from_c():
    def talk():
        print("python, no newline", end="")
        print("to stderr", end="", file=sys.stderr)
        ctypes.CDLL(None).puts(b"from C")
        yield 1
        os.kill(os.getpid(), 9)

    outcome = sandbox.run(talk, timeout=60, env={"PYTHONUNBUFFERED": None}).outcome
    assert outcome.stdout == "python, no newlinefrom C\n"
    assert outcome.stderr == "to stderr"


@posix
def test_a_time_out_and_a_crash_say_where_they_were():
    run = sandbox.run(hang_holding_the_gil, timeout=0.2)
    assert "in hang_holding_the_gil" in run.outcome.traceback
    assert "worker.py" not in run.outcome.traceback
    assert run.outcome.message == "still running after 0.2 s"
    crash = sandbox.run(segfault).outcome
    assert "Segmentation fault" in crash.traceback and "in segfault" in crash.traceback
    assert crash.stderr == ""
    error = sandbox.run(fail).outcome
    assert (error.exception, error.message, error.exit_code) == ("KeyError", "'no such thing'", 1)
    assert error.traceback.startswith("Traceback") and "worker.py" not in error.traceback


def test_stop_ends_a_child_that_hangs_and_keeps_its_events():
    child = sandbox.start(hang_holding_the_gil)
    wait_for_events(child)
    child.stop()
    child.stop()
    run = child.result()
    assert run.events == ["before"] and run.outcome.signature == "stopped"
    assert not child.alive
    done = sandbox.start(count, 1)
    done.result()
    done.stop()
    assert done.result().outcome.signature == "ok", "stop after the end changes nothing"


@linux
def test_what_a_child_started_ends_with_it_even_in_a_session_of_its_own():
    run = sandbox.run(leave_a_family, timeout=60)
    assert run.outcome and gone(run.events)
    child = sandbox.start(leave_a_family, hang=True)
    pids = wait_for_events(child, 2)
    child.stop()
    assert gone(pids)


@linux
def test_a_child_shares_no_descriptor_and_no_session_with_the_server_or_another_child():
    def look():
        numbers = [int(number) for number in os.listdir("/proc/self/fd")]
        links = (f"/proc/self/fd/{number}" for number in numbers if number > 2)
        targets = (os.readlink(link) for link in links if os.path.lexists(link))
        yield sorted(os.path.dirname(target) or target.split(":")[0] for target in targets)
        yield {os.getsid(0), os.getpgid(0), os.getpid()}

    with sandbox.start(hang_holding_the_gil) as other:
        wait_for_events(other)
        files, ids = sandbox.run(look).events
    assert files == [tempfile.gettempdir(), "pipe"], "the traceback's file and the pipe of events"
    assert len(ids) == 1, "it leads a session of its own"


PARENT = """
import ctypes, os, subprocess, sys, time
from labkit import sandbox
from labkit.sandbox.job import Job
sandbox.server.PRELOAD = ()

def hang(own_session):
    yield os.getpid()
    yield subprocess.Popen(["sleep", "600"], start_new_session=own_session).pid
    ctypes.PyDLL(None).sleep(600)

children = [sandbox.start(hang, own_session) for own_session in (False, True)]
pids = []
while len(pids) < 4:
    for child in children:
        pids += child.drain()
    time.sleep(0.01)
server = sandbox.server._server.process.pid
copy = os.fork() if {forks} else 0
if copy == 0 and {forks}:
    time.sleep(600)
print(copy, server, *pids, flush=True)
{end}
"""
ENDS = {
    "killed": "os.kill(os.getpid(), 9)",
    "sys.exit": "sys.exit(0)",
    "killed, with a fork of it alive": "os.kill(os.getpid(), 9)",
    "killed together with the server": "os.kill(server, 9); os.kill(os.getpid(), 9)",
}


@linux
@pytest.mark.parametrize("end", ENDS)
def test_no_child_outlives_its_parent_however_that_ends(end):
    """The parent has two hanging children, each with a child of its own."""
    script = PARENT.format(end=ENDS[end], forks="fork" in end)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        copy, server, *pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 4
    if end == "killed together with the server":  # nobody is left to find the grandchildren
        orphans = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).name() == "sleep"]
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
    assert gone([server, *pids])
    if copy:
        os.kill(copy, signal.SIGKILL)  # it has lived until now


@posix
def test_a_child_that_no_kill_ends_is_given_up(monkeypatch):
    """A fake of a driver that holds the process: here the kill is lost on its way."""
    monkeypatch.setattr(sandbox.child, "KILL_LIMIT", 0.3)
    with monkeypatch.context() as patch:
        for way in ("kill", "dump"):
            patch.setattr(sandbox.server.Forked, way, lambda self: None)
        child = sandbox.start(hang_holding_the_gil, timeout=0.2)
        outcome = child.result().outcome
    os.kill(child.pid, signal.SIGKILL)
    assert (outcome.signature, outcome.exit_code, outcome.signal) == ("timeout", None, None)
    assert outcome.message == "still running after 0.2 s; the kernel has not released the process yet"


def test_a_child_that_is_stopped_before_it_is_launched_never_runs(tmp_path):
    child = sandbox.Child(Job((tmp_path / "ran").touch, (), {}))
    child.stop()
    child.launch()
    assert child.result().outcome.signature == "stopped"
    assert not list(tmp_path.iterdir())
