"""Functions that run in children, the faults among them, and how to look for what they leave behind."""

import ctypes
import inspect
import os
import subprocess
import sys
import threading
import time
import types
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest
from cuda_texts import ASSERTS, TRIGGERED

from labkit import sandbox
from labkit.events import Step

ROOT = Path(__file__).parents[2]
LINUX = sys.platform == "linux"
posix = pytest.mark.skipif(os.name != "posix", reason="signals and sessions")
linux = pytest.mark.skipif(not LINUX, reason="fork and prctl")


def count(n, start=0):
    for number in range(start, start + n):
        yield Step(number + 1, loss=1.0 / (number + 1))


def read_environment(*names):
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    for name in names:
        value = os.environ.get(name)
        if libc is not None:
            libc.getenv.restype = ctypes.c_char_p
            raw = libc.getenv(name.encode())
            assert value == (raw.decode() if raw is not None else None), "Python and C disagree"
        yield value


def at_work(name, seconds=0.2, shared=""):
    yield {"name": name, "shared": shared, "from": time.monotonic()}
    time.sleep(seconds)
    yield time.monotonic()
    if name == "crash":
        raise RuntimeError("planned")


# ---- faults ---------------------------------------------------------------------------------------------


def after_an_event(fault):
    yield "before"
    fault()


def hang_holding_the_gil():
    yield "before"
    ctypes.PyDLL(None).sleep(600)  # PyDLL, unlike CDLL, keeps the GIL


def segfault():
    yield "before"
    ctypes.string_at(0)


def fail():
    yield "before"
    raise KeyError("no such thing")


def shout():
    for _ in range(50):
        os.write(2, b"x" * 1_048_575 + b"\n")
    raise ValueError("after the noise")


def yield_the_unpicklable():
    yield "before"
    yield (number for number in range(3))


def fail_unpicklably():
    class Odd(Exception):
        def __init__(self):
            self.lock = threading.Lock()

        def __reduce__(self):
            raise TypeError("never pickled")

        def __str__(self):
            raise RuntimeError("no text either")

    raise Odd


def fail_while_closing():
    try:
        yield "before"
        yield threading.Lock()
    finally:
        raise ValueError("in close")


def fake_device_assert():
    """A fake: no GPU is involved. It prints what the CUDA runtime prints and ends as a C++ `abort` does."""
    os.write(2, ASSERTS["multinomial, Linux"][0].encode() + b"\n")
    os.abort()


def fake_late_driver():
    """A fake driver that prints an assertion when the context ends and not before, as a real one was seen to do."""
    import torch

    driver = {
        "cuDeviceGet": lambda *_: None,
        "cuDevicePrimaryCtxReset_v2": lambda _: os.write(2, ASSERTS["index, gather"][0].encode()),
    }
    ctypes.CDLL = lambda name: types.SimpleNamespace(**driver)
    torch.cuda.device_count = lambda: 1
    raise RuntimeError(TRIGGERED)


def fake_accelerator_error():
    """A fake: an exception of the shape of torch.AcceleratorError, after the CUDA runtime's text on fd 2."""

    class AcceleratorError(RuntimeError):
        error_code = 710

    os.write(2, ASSERTS["index, embedding"][0].encode() + b"\n")
    try:
        raise AcceleratorError(TRIGGERED)
    except AcceleratorError as error:
        raise RuntimeError("round 2 failed") from error


def handle_an_oom():
    try:
        raise MemoryError
    except MemoryError:
        raise ValueError("later") from None


def leave_a_family(hang=False, sessions=(False, True)):
    for own_session in sessions:
        yield subprocess.Popen(["sleep", "600"], start_new_session=own_session).pid
    if hang:
        ctypes.PyDLL(None).sleep(600)


# name -> a generator function, or what is called after its event; the signature of its end
FAULTS = {
    "sigkill": (lambda: os.kill(os.getpid(), 9), "signal:9"),
    "segfault": (segfault, "signal:11"),
    "os._exit(3)": (lambda: os._exit(3), "exit:3"),
    "os._exit(0)": (lambda: os._exit(0), "exit:0"),
    "sys.exit(4)": (lambda: sys.exit(4), "exit:4"),
    "sys.exit(text)": (lambda: sys.exit("no"), "exit:1"),
    "sys.exit(0)": (lambda: sys.exit(0), "ok"),
    "hang": (lambda: time.sleep(600), "timeout"),
    "hang in C with the GIL": (hang_holding_the_gil, "timeout"),
    "50 MB of stderr": (shout, "exception:ValueError"),
    "unpicklable event": (yield_the_unpicklable, "exception:TypeError"),
    "exception": (fail, "exception:KeyError"),
    "unpicklable exception": (fail_unpicklably, "exception:Odd"),
    "close raises": (fail_while_closing, "exception:TypeError"),
    "fake multinomial assert": (fake_device_assert, "device-assert:multinomial"),
    "fake index assert": (fake_accelerator_error, "device-assert:index"),
    "fake assert, printed late": (fake_late_driver, "device-assert:index"),
    "an oom that was handled": (handle_an_oom, "exception:ValueError"),
    "thread left running": (lambda: threading.Thread(target=time.sleep, args=(60,)).start(), "ok"),
}


def check_fault(name):
    function, signature = FAULTS[name]
    timeout = 0.2 if signature == "timeout" else 60
    if inspect.isgeneratorfunction(function):
        run = sandbox.run(function, timeout=timeout)
    else:
        run = sandbox.run(after_an_event, function, timeout=timeout)
    assert run.outcome.signature == signature, (name, run.outcome)
    assert run.events == ["before"], name
    return run.outcome


def wait_for_events(child, n=1):
    """The first events of a child that goes on."""
    events = []
    while len(events) < n:
        assert not child.wait_for_news()
        events += child.drain()
    return events


# ---- what is left ---------------------------------------------------------------------------------------

aside = None  # the server with torch, while a test has a bare one


def offspring():
    """What this process has started and has not ended, without the servers and what an earlier test's pool left."""
    ours = [server.process.pid for server in (sandbox.server._server, aside) if server]
    ours.append(resource_tracker._resource_tracker._pid)  # multiprocessing keeps it for the life of the process
    return [p for p in psutil.Process().children(recursive=True) if p.pid not in ours]


def gone(pids, seconds=20):
    """Wait for the end of all of these processes; a zombie has ended."""
    end = time.monotonic() + seconds
    while living := [pid for pid in pids if not _is_zombie(pid)]:
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    return not living


def _is_zombie(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
