"""Functions that run in children, the faults among them, and how to look for what they leave behind."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from cuda_texts import INDEX_EMBEDDING, MULTINOMIAL_LINUX, TRIGGERED

from labkit import sandbox
from labkit.events import Step

ROOT = Path(__file__).parents[2]
LINUX = sys.platform == "linux"
posix = pytest.mark.skipif(os.name != "posix", reason="signals and sessions")
linux = pytest.mark.skipif(not LINUX, reason="fork and prctl")


def count(n, start=0):
    for number in range(start, start + n):
        yield Step(number + 1, loss=1.0 / (number + 1))


def die_by(number):
    yield "before"
    os.kill(os.getpid(), number)
    time.sleep(60)


def segfault():
    yield "before"
    ctypes.string_at(0)


def abort():
    yield "before"
    os.abort()


def leave(code):
    yield "before"
    os._exit(code)


def system_exit(code):
    yield "before"
    sys.exit(code)


def sleep_forever():
    yield "before"
    while True:
        time.sleep(60)


def hang_holding_the_gil():
    yield "before"
    ctypes.PyDLL(None).sleep(600)  # PyDLL, unlike CDLL, keeps the GIL


def shout(megabytes):
    yield "before"
    for _ in range(megabytes):
        os.write(2, b"x" * 1_048_575 + b"\n")
    raise ValueError("after the noise")


def yield_the_unpicklable():
    yield "before"
    yield (number for number in range(3))


def fail():
    yield "before"
    raise KeyError("no such thing")


def fail_unpicklably():
    class Odd(Exception):
        def __init__(self):
            self.lock = threading.Lock()

        def __reduce__(self):
            raise TypeError("never pickled")

        def __str__(self):
            raise RuntimeError("no text either")

    yield "before"
    raise Odd


def fail_while_closing():
    try:
        yield "before"
        yield threading.Lock()
    finally:
        raise ValueError("in close")


def yield_after_close():
    try:
        yield "before"
        yield threading.Lock()
    finally:
        yield "after"


def fail_at_the_end():
    try:
        yield "before"
    finally:
        raise ZeroDivisionError


def fake_device_assert(text):
    """A fake: no GPU is involved. It prints what the CUDA runtime prints and ends as a C++ `abort` does."""
    yield "before"
    os.write(2, text.encode() + b"\n")
    os.abort()


def fake_accelerator_error(text, message):
    """A fake: an exception of the shape of torch.AcceleratorError, after the CUDA runtime's text on fd 2."""

    class AcceleratorError(RuntimeError):
        error_code = 710

    yield "before"
    os.write(2, text.encode() + b"\n")
    try:
        raise AcceleratorError(message)
    except AcceleratorError as error:
        raise RuntimeError("round 2 failed") from error


def exit_with_a_thread_running():
    threading.Thread(target=time.sleep, args=(60,)).start()
    yield "before"


def leave_a_family(tell, hang=False, sessions=(False, True)):
    yield "before"
    for own_session in sessions:
        process = subprocess.Popen(["sleep", "600"], start_new_session=own_session)
        if tell:
            yield process.pid
    if hang:
        ctypes.PyDLL(None).sleep(600)


def slowly(n):
    for number in range(n):
        yield number
        time.sleep(0.02)


def read_environment(*names):
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    for name in names:
        seen = os.environ.get(name)
        if libc is not None:
            libc.getenv.restype = ctypes.c_char_p
            raw = libc.getenv(name.encode())
            assert seen == (raw.decode() if raw is not None else None), "Python and C disagree"
        yield seen


def at_work(name, seconds=0.2, shared=""):
    yield {"name": name, "shared": shared, "from": time.monotonic()}
    time.sleep(seconds)
    yield time.monotonic()
    if name == "crash":
        raise RuntimeError("as asked")


FAULTS = {
    "sigkill": (partial(die_by, 9), {}, "signal:9"),
    "sigterm": (partial(die_by, 15), {}, "signal:15"),
    "segfault": (segfault, {}, "signal:11"),
    "abort": (abort, {}, "signal:6"),
    "os._exit(3)": (partial(leave, 3), {}, "exit:3"),
    "os._exit(0)": (partial(leave, 0), {}, "exit:0"),
    "sys.exit(4)": (partial(system_exit, 4), {}, "exit:4"),
    "sys.exit(text)": (partial(system_exit, "no"), {}, "exit:1"),
    "hang": (sleep_forever, {"timeout": 0.2}, "timeout"),
    "hang in C with the GIL": (hang_holding_the_gil, {"timeout": 0.2}, "timeout"),
    "50 MB of stderr": (partial(shout, 50), {}, "exception:ValueError"),
    "unpicklable event": (yield_the_unpicklable, {}, "exception:TypeError"),
    "exception": (fail, {}, "exception:KeyError"),
    "unpicklable exception": (fail_unpicklably, {}, "exception:Odd"),
    "close raises": (fail_while_closing, {}, "exception:TypeError"),
    "close yields": (yield_after_close, {}, "exception:TypeError"),
    "last line raises": (fail_at_the_end, {}, "exception:ZeroDivisionError"),
    "fake multinomial assert": (partial(fake_device_assert, MULTINOMIAL_LINUX), {}, "device-assert:multinomial"),
    "fake index assert": (partial(fake_accelerator_error, INDEX_EMBEDDING, TRIGGERED), {}, "device-assert:index"),
    "thread left running": (exit_with_a_thread_running, {}, "ok"),
    "children left running": (partial(leave_a_family, False), {}, "ok"),
}


def check_fault(name):
    function, limits, signature = FAULTS[name]
    run = sandbox.run(function, **{"timeout": 60, **limits})
    assert run.outcome.signature == signature, (name, run.outcome)
    assert run.events == ["before"], name
    return run


aside = None  # the server with torch, while a test has a bare one


def offspring():
    """What this process has started and has not ended, without the servers."""
    servers = [server.process.pid for server in (sandbox.server._server, aside) if server]
    return [p for p in psutil.Process().children(recursive=True) if p.pid not in servers]


def gone(pids, seconds=20):
    """Wait for the end of all of these processes; a zombie has ended."""
    end = time.monotonic() + seconds
    while True:
        living = [pid for pid in pids if psutil.pid_exists(pid) and not _is_zombie(pid)]
        if not living or time.monotonic() > end:
            return not living
        time.sleep(0.02)


def _is_zombie(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
