"""The sandbox: whatever happens in a child, the caller lives, knows what happened, and nothing is left behind."""

import ast
import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import cloudpickle
import psutil
import pytest

from labkit import sandbox
from labkit.events import Lost, Outcome, Run, Step

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a child need not import pytest

ROOT = Path(__file__).parents[2]
LINUX = sys.platform == "linux"
posix = pytest.mark.skipif(os.name != "posix", reason="signals and sessions")
linux = pytest.mark.skipif(not LINUX, reason="fork, RLIMIT_DATA and prctl")

# Texts of the CUDA runtime as users reported them for PyTorch 1.x to 2.9 (Linux) and of a Windows build.
MULTINOMIAL_LINUX = (
    "/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], "
    "thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed."
)
MULTINOMIAL_WINDOWS = (
    r"C:\actions-runner\_work\pytorch\pytorch\aten\src\ATen\native\cuda\TensorCompare.cu:110: block: [0,0,0], "
    "thread: [0,0,0] Assertion `input[0] != 0` failed."
)
MULTINOMIAL_REPLACEMENT = (
    "/pytorch/aten/src/ATen/native/cuda/MultinomialKernel.cu:216: sampleMultinomialOnce: block: [3,0,0], "
    "thread: [5,0,0] Assertion `!at::_isnan(val)` failed."
)
ZERO_ROW = (
    "/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], "
    "thread: [0,0,0] Assertion `invalid multinomial distribution (sum of probabilities <= 0)` failed."
)
INDEX_EMBEDDING = (
    "../aten/src/ATen/native/cuda/Indexing.cu:1239: indexSelectLargeIndex: block: [95,0,0], thread: [64,0,0] "
    "Assertion `srcIndex < srcSelectDimSize` failed."
)
INDEX_GATHER = (
    "/pytorch/aten/src/ATen/native/cuda/IndexKernelUtils.cu:16: vectorized_gather_kernel: block: [500,0,0], "
    "thread: [180,0,0] Assertion `ind >=0 && ind < ind_dim_size && "
    '"vectorized gather kernel index out of bounds"` failed.'
)
INDEX_SCATTER = (
    "/pytorch/aten/src/ATen/native/cuda/ScatterGatherKernel.cu:312: operator(): block: [0,0,0], thread: [53,0,0] "
    'Assertion `idx_dim >= 0 && idx_dim < index_size && "index out of bounds"` failed.'
)
LOSS_TARGET = (
    "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], "
    "thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed."
)
TRIGGERED = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"


# ----------------------------------------------------------------------------------------------- things that run


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


def use_memory():
    yield "before"
    hoard = []
    while True:
        hoard.append(bytearray(8 << 20))


def use_memory_to_the_last_byte():
    yield "before"
    hoard = None
    while True:
        hoard = (hoard, bytes(200))


def use_torch_memory():
    import torch

    yield "before"
    hoard = []
    while True:
        hoard.append(torch.ones(4 << 20))


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
    "memory limit": (use_memory, {"memory_limit": 100 << 20}, "oom"),
    "memory limit, to the last byte": (use_memory_to_the_last_byte, {"memory_limit": 30 << 20}, "oom"),
    "memory limit in torch": (use_torch_memory, {"memory_limit": 200 << 20}, "oom"),
    "close raises": (fail_while_closing, {}, "exception:TypeError"),
    "close yields": (yield_after_close, {}, "exception:TypeError"),
    "last line raises": (fail_at_the_end, {}, "exception:ZeroDivisionError"),
    "fake multinomial assert": (
        partial(fake_device_assert, MULTINOMIAL_LINUX),
        {},
        "device-assert:multinomial",
    ),
    "fake index assert": (
        partial(fake_accelerator_error, INDEX_EMBEDDING, TRIGGERED),
        {},
        "device-assert:index",
    ),
    "thread left running": (exit_with_a_thread_running, {}, "ok"),
    "children left running": (partial(leave_a_family, False), {}, "ok"),
}
if not LINUX:
    FAULTS = {name: fault for name, fault in FAULTS.items() if "memory" not in name}


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Every test: the descriptors are those of before, and no process but the server is left."""
    yield
    end = time.monotonic() + 20
    while strays := offspring():
        assert time.monotonic() < end, f"left behind: {strays}"
        time.sleep(0.01)


@pytest.fixture(scope="module", autouse=True)
def server():
    yield
    sandbox.shutdown()


@pytest.fixture
def bare(monkeypatch):
    """A server that imports nothing, so that a new one costs no time."""
    sandbox.shutdown()
    monkeypatch.setattr(sandbox.server, "PRELOAD", ())
    yield monkeypatch
    sandbox.shutdown()


@pytest.fixture
def slow(bare, tmp_path):
    """A server that takes three seconds to get ready."""
    (tmp_path / "slow_to_import.py").write_text("import time; time.sleep(3)")
    bare.syspath_prepend(str(tmp_path))
    bare.setattr(sandbox.server, "PRELOAD", ("slow_to_import",))


def offspring():
    """What this process has started and has not ended, without the server."""
    server = sandbox.server._server.process.pid if sandbox.server._server else None
    return [p for p in psutil.Process().children(recursive=True) if p.pid != server]


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


def check_fault(name):
    function, limits, signature = FAULTS[name]
    run = sandbox.run(function, **{"timeout": 60, **limits})
    assert run.outcome.signature == signature, (name, run.outcome)
    assert run.events == ["before"], name
    return run


# ----------------------------------------------------------------------------------------------------- the faults


@posix
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_ends_the_child_only_and_is_named(name):
    check_fault(name)


@posix
def test_faults_in_a_row_leave_no_descriptor_and_no_process():
    """LABKIT_FAULTS=200 for the long version; the server must be the same one at the end."""
    check_fault("exception")
    server, before = sandbox.server._server, psutil.Process().num_fds()
    names = list(FAULTS)
    for number in range(int(os.environ.get("LABKIT_FAULTS", "46"))):
        check_fault(names[number % len(names)])
    assert psutil.Process().num_fds() == before
    assert sandbox.server._server is server and server.alive and not server.busy
    assert sandbox.run(count, 3)["step"] == [1, 2, 3]


@posix
def test_descriptors_and_threads_are_stable_over_fifty_runs():
    sandbox.run(count, 1)
    process = psutil.Process()
    server = psutil.Process(sandbox.server._server.process.pid)
    before, server_before = process.num_fds(), server.num_fds()
    for _ in range(50):
        assert sandbox.run(count, 1).outcome
    assert process.num_fds() == before
    end = time.monotonic() + 20
    while server.num_fds() > server_before:  # it closes the last status pipe after it has written to it
        assert time.monotonic() < end
    assert not [t for t in threading.enumerate() if t.name.startswith("labkit-")]


@posix
@pytest.mark.parametrize(
    "end", [lambda: os.kill(os.getpid(), 9), lambda: os._exit(7), lambda: ctypes.string_at(0)]
)
def test_no_event_that_was_yielded_is_lost_to_the_death_that_follows(end):
    def stream():
        yield from range(5000)
        end()

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
def test_fifty_megabytes_of_stderr_keep_head_and_tail_and_say_what_is_missing():
    def flood():
        os.write(2, b"FIRST\n")
        for _ in range(50):
            os.write(2, b"\xe2\x82\xac" * 349_525)
        os.write(2, b"LAST\n")
        yield 1

    text = sandbox.run(flood, timeout=60).outcome.stderr
    assert text.startswith("FIRST\n") and text.endswith("LAST\n")
    written = 6 + 50 * 349_525 * 3 + 5
    assert (
        f"[labkit: {written - sandbox.evidence.HEAD - sandbox.evidence.TAIL:,} bytes left out here]" in text
    )
    assert len(text.encode()) < 1.2 * (sandbox.evidence.HEAD + sandbox.evidence.TAIL)


@pytest.mark.parametrize(
    "over",
    [-1, 0, 1, 1000, sandbox.evidence.TAIL - 1, sandbox.evidence.TAIL, sandbox.evidence.TAIL + 1, 10_000_003],
)
@pytest.mark.parametrize("chunk", [7919, 65536, 1 << 21])
def test_a_stream_is_kept_to_the_byte_at_both_ends_however_it_is_cut(over, chunk):
    size = sandbox.evidence.HEAD + sandbox.evidence.TAIL + over
    written = (b"%08x" * (size // 8 + 1) % tuple(range(size // 8 + 1)))[:size]  # no two places alike
    capture = sandbox.evidence.Capture()
    for start in range(0, size, chunk):
        capture.feed(written[start : start + chunk])
    note = f"\n[labkit: {over:,} bytes left out here]\n" if over > 0 else ""
    head, tail = written[: sandbox.evidence.HEAD], written[sandbox.evidence.HEAD :][-sandbox.evidence.TAIL :]
    assert capture.text() == head.decode() + note + tail.decode()


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


# ------------------------------------------------------------------------------------------------------ signatures


@pytest.mark.parametrize(
    ("text", "kind", "multinomial", "index"),
    [
        (MULTINOMIAL_LINUX, "multinomial", True, False),
        (MULTINOMIAL_WINDOWS, "multinomial", True, False),
        (MULTINOMIAL_WINDOWS.replace("\n", "\r\n") + "\r", "multinomial", True, False),
        ("TensorCompare.cu:110: Assertion input[0] != 0 failed", "multinomial", True, False),
        (MULTINOMIAL_REPLACEMENT, "multinomial", True, False),
        (INDEX_EMBEDDING, "index", False, True),
        (INDEX_GATHER, "index", False, True),
        (INDEX_SCATTER, "index", False, True),
        (LOSS_TARGET, "other", False, False),
        (ZERO_ROW, "other", False, False),
    ],
)
def test_the_kind_of_a_device_assert_is_read_from_the_runtimes_text(text, kind, multinomial, index):
    noise = f"a warning\n{text}\n{text}\nterminate called\n"
    for end in (
        {"exception": "RuntimeError", "message": TRIGGERED, "exit_code": 1},
        {"exception": "AcceleratorError", "bases": ["RuntimeError"], "message": "?", "error_code": 710},
        {"exception": "RuntimeError", "message": "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling"},
        {"exit_code": None, "signal": 6},
        {"exit_code": 3},
    ):
        assert sandbox.classify(**end, stderr=noise) == f"device-assert:{kind}"
    outcome = Outcome("device-assert:" + kind, stderr=noise)
    assert sandbox.is_multinomial_assert(outcome) is multinomial
    assert sandbox.is_index_assert(outcome) is index


@pytest.mark.parametrize(
    ("end", "signature"),
    [
        ({}, "ok"),
        ({"exception": "RuntimeError", "message": TRIGGERED}, "device-assert:other"),
        ({"exception": "ValueError", "message": "x", "stderr": MULTINOMIAL_LINUX}, "exception:ValueError"),
        (
            {"exception": "OutOfMemoryError", "bases": ["RuntimeError"], "message": "CUDA out of memory."},
            "oom",
        ),
        ({"exception": "Mine", "bases": ["OutOfMemoryError", "RuntimeError"]}, "oom"),
        ({"exception": "RuntimeError", "message": "CUDA out of memory. Tried to allocate 2.00 GiB"}, "oom"),
        ({"exception": "AcceleratorError", "message": "CUDA error: out of memory", "error_code": 2}, "oom"),
        ({"exception": "MemoryError"}, "oom"),
        ({"exception": "OSError", "message": "[Errno 12] Cannot allocate memory"}, "oom"),
        ({"exit_code": None, "signal": 6, "stderr": "what():  std::bad_alloc\n"}, "oom"),
        ({"exit_code": None, "signal": 9}, "signal:9"),
        ({"exit_code": 5}, "exit:5"),
        (  # glibc's own assert is no device assert
            {"exit_code": None, "signal": 6, "stderr": "a.out: x.c:5: main: Assertion `x > 0' failed.\n"},
            "signal:6",
        ),
    ],
)
def test_an_end_has_one_signature(end, signature):
    assert sandbox.classify(**end) == signature


def test_cpu_asserts_are_exceptions_of_the_same_family():
    def sample(values, replacement=False):
        import torch

        yield torch.multinomial(torch.tensor(values), 1 + replacement, replacement).tolist()

    def embed():
        import torch

        torch.nn.Embedding(4, 2)(torch.tensor([9]))

    def look_up():
        import torch

        torch.ones(3)[torch.tensor([7])]

    for replacement in (False, True):
        outcome = sandbox.run(sample, [float("nan"), 1.0], replacement).outcome
        assert outcome.signature == "exception:RuntimeError" and sandbox.is_multinomial_assert(outcome)
    zero = sandbox.run(sample, [0.0, 0.0]).outcome
    assert zero.signature == "exception:RuntimeError" and not sandbox.is_multinomial_assert(zero)
    for function in (embed, look_up):
        outcome = sandbox.run(function).outcome
        assert outcome.signature == "exception:IndexError" and sandbox.is_index_assert(outcome)
        assert not sandbox.is_multinomial_assert(outcome)
    assert not sandbox.is_index_assert(sandbox.run(lambda: [][3]).outcome)


def test_torchs_own_allocation_failure_is_oom():
    def ask():
        import torch

        torch.empty(1 << 50)

    outcome = sandbox.run(ask).outcome
    assert (outcome.signature, outcome.exception) == ("oom", "RuntimeError")


@posix
def test_the_error_code_and_the_cause_come_through_an_exception_raised_from_it():
    outcome = sandbox.run(fake_accelerator_error, MULTINOMIAL_LINUX, TRIGGERED).outcome
    assert outcome.signature == "device-assert:multinomial"
    assert (outcome.exception, outcome.message, outcome.error_code) == ("RuntimeError", "round 2 failed", 710)
    assert MULTINOMIAL_LINUX in outcome.stderr and "AcceleratorError" in outcome.traceback


def test_an_oom_that_was_handled_does_not_name_the_failure_after_it():
    def handle():
        try:
            raise MemoryError
        except MemoryError:
            raise ValueError("later") from None

    assert sandbox.run(handle).outcome.signature == "exception:ValueError"


# --------------------------------------------------------------------------------------------------------- events


def test_what_comes_back_is_what_was_yielded():
    run = sandbox.run(count, 3, start=4)
    assert repr(run.events) == repr(list(count(3, start=4))) and run.outcome and isinstance(run, Run)
    assert run.meta["settings"] == {"start": 4} and "count" in run.meta["function"]
    assert sandbox.run(lambda: {"answer": 42}).events == [{"answer": 42}]
    assert sandbox.run(lambda: None).events == []
    assert sandbox.run(lambda: iter([1, None, 2])).events == [1, None, 2]
    assert sandbox.run(lambda: [1, 2]).events == [[1, 2]]
    assert sandbox.run(partial(system_exit, 0)).outcome.signature == "ok"


def test_a_class_of_the_caller_comes_back_as_that_class():
    class Probe:
        def __init__(self, value):
            self.value = value

    def measure(probe):
        yield Probe(probe.value + 1)

    (event,) = sandbox.run(measure, Probe(1)).events
    assert type(event) is Probe and event.value == 2


def test_an_event_that_cannot_be_read_here_holds_its_place():
    class Trap:
        def __reduce__(self):
            return (int, ("not a number",))

    def spring():
        yield 1
        yield Trap()
        yield 3

    run = sandbox.run(spring)
    assert run.events[::2] == [1, 3] and run.outcome
    assert isinstance(run.events[1], Lost) and "ValueError" in run.events[1].error


def test_the_error_for_an_event_that_cannot_travel_names_it_and_the_way_out():
    outcome = sandbox.run(yield_the_unpicklable).outcome
    assert outcome.message.startswith("event 2, a generator, cannot leave the sandbox")
    assert "Yield a Step" in outcome.message


def test_large_events_are_whole_and_a_torn_one_is_dropped():
    def big():
        yield bytes(8 << 20)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        while True:
            yield bytes(1 << 20)

    events = sandbox.run(big, timeout=60).events
    assert len(events[0]) == 8 << 20
    assert {len(e) for e in events[1:]} <= {1 << 20}


@posix
def test_a_signal_handler_that_raises_never_tears_a_frame():
    def interrupted():
        def ring(*_):
            raise InterruptedError("alarm")

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        while True:
            yield b"y" * 3_000_000

    for _ in range(5):
        run = sandbox.run(interrupted, timeout=60)
        assert run.outcome.signature == "exception:InterruptedError", run.outcome
        assert {len(e) for e in run.events} <= {3_000_000}


@posix
def test_a_fork_of_the_child_sends_nothing_twice():
    def split():
        yield 1
        os.fork()
        yield 2

    for _ in range(5):
        assert sandbox.run(split).events == [1, 2]


def test_drain_gives_each_event_once_and_never_waits():
    with sandbox.start(slowly, 5) as child:
        seen = []
        while child.alive:
            began = time.monotonic()
            seen += child.drain()
            assert time.monotonic() - began < 5
            time.sleep(0.005)
        seen += child.drain()
        assert seen == [0, 1, 2, 3, 4] == child.result().events
        assert child.drain() == []


def slowly(n):
    for number in range(n):
        yield number
        time.sleep(0.02)


def test_a_slow_producers_event_shows_before_the_next_one():
    def tick(path):
        yield "first"
        while not os.path.exists(path):  # the caller makes it once it has seen the first
            time.sleep(0.005)
        yield "second"

    gate = Path(os.environ.get("TMPDIR", "/tmp")) / f"labkit-{os.getpid()}-gate"
    try:
        run = sandbox.run(tick, str(gate), timeout=60, on_event=lambda event: gate.touch())
        assert run.events == ["first", "second"] and run.outcome
    finally:
        gate.unlink()


def test_several_children_at_once_keep_apart():
    children = [sandbox.start(count, 200, start=1000 * number) for number in range(5)]
    for number, child in enumerate(children):
        assert [s.step for s in child.result().steps] == list(range(1000 * number + 1, 1000 * number + 201))


def test_the_callers_random_stream_is_not_repeated_by_every_fork():
    def draw():
        import random

        import numpy

        yield random.random(), float(numpy.random.rand())

    draws = [sandbox.run(draw).events[0] for _ in range(4)]
    assert len(set(draws)) == 4 and len({b for _, b in draws}) == 4


# ------------------------------------------------------------------------------------------- stopping and living


def test_stop_ends_a_child_that_hangs_and_keeps_what_it_said():
    child = sandbox.start(hang_holding_the_gil)
    while not child.drain():
        assert child.alive
        time.sleep(0.01)
    assert child.pid is not None
    child.stop()
    child.stop()
    run = child.result()
    assert run.events == ["before"] and run.outcome.signature == "stopped"
    assert not child.alive
    done = sandbox.start(count, 1)
    assert done.wait(60)
    done.stop()
    assert done.result().outcome.signature == "ok", "stop after the end changes nothing"


def test_what_on_event_raises_stops_the_child_and_is_raised():
    def refuse(event):
        raise LookupError(event)

    with pytest.raises(LookupError, match="before"):
        sandbox.run(sleep_forever, on_event=refuse)


def test_an_interrupt_in_on_event_returns_the_partial_run():
    def interrupt(event):
        raise KeyboardInterrupt

    run = sandbox.run(sleep_forever, on_event=interrupt)
    assert run.events == ["before"] and run.outcome.signature == "stopped"


@linux
def test_what_a_child_started_ends_with_it_even_in_a_session_of_its_own():
    run = sandbox.run(leave_a_family, True, timeout=60)
    assert run.outcome and gone(run.events[1:])
    child = sandbox.start(leave_a_family, True, hang=True)
    pids = []
    while len(pids) < 3:
        pids += child.drain()
        time.sleep(0.01)
    child.stop()
    assert gone(pids[1:])


@linux
def test_a_child_holds_no_descriptor_of_the_server_or_of_another_child():
    def look():
        numbers = [int(number) for number in os.listdir("/proc/self/fd")]
        links = (f"/proc/self/fd/{number}" for number in numbers if number > 2)
        yield sorted(os.readlink(link).split(":")[0] for link in links if os.path.lexists(link))

    with sandbox.start(sleep_forever) as other:
        while not other.drain():
            time.sleep(0.01)
        assert sandbox.run(look).events == [["/memfd", "pipe"]], "the traceback's file and the pipe of events"


@posix
def test_a_child_is_in_a_session_of_its_own():
    child_session, child_group, pid = sandbox.run(lambda: (os.getsid(0), os.getpgid(0), os.getpid())).events[
        0
    ]
    assert child_session == child_group == pid != os.getsid(0)


PARENT = """
import ctypes, os, subprocess, sys, time
from labkit import sandbox
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
{then}
"""


def parent(then):
    """A process with two hanging children, each with a child of its own; `then` is what it does next."""
    script = PARENT.replace("{then}", textwrap.dedent(then))
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT, text=True)


@linux
@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM", "os._exit", "sys.exit", "segfault", "both"])
def test_no_child_outlives_its_parent_however_that_ends(end):
    ends = {
        "os._exit": "os._exit(0)",
        "sys.exit": "sys.exit(0)",
        "segfault": "ctypes.string_at(0)",
        "both": "os.kill(sandbox.server._server.process.pid, 9); os.kill(os.getpid(), 9)",
    }
    then = f"print(sandbox.server._server.process.pid, *pids, flush=True)\n{ends.get(end, 'time.sleep(600)')}"
    with parent(then) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 5
        if end.startswith("SIG"):
            process.send_signal(getattr(signal, end))
    # when server and parent are killed at once nobody is left to find the grandchildren
    children = [pid for pid in pids[1:] if not (end == "both" and _name(pid) == "sleep")]
    assert gone([pids[0], *children])
    for pid in set(pids) - {pids[0], *children}:
        os.kill(pid, signal.SIGKILL)


def _name(pid):
    try:
        return psutil.Process(pid).name()
    except psutil.NoSuchProcess:
        return ""


@linux
def test_a_fork_of_the_caller_does_not_keep_the_children_alive():
    then = """
    copy = os.fork()
    if copy == 0:
        time.sleep(600)
    print(copy, sandbox.server._server.process.pid, *pids, flush=True)
    os.kill(os.getpid(), 9)
    """
    with parent(then) as process:
        assert process.stdout is not None
        copy, *pids = [int(word) for word in process.stdout.readline().split()]
    try:
        assert len(pids) == 5 and gone(pids)
        assert psutil.pid_exists(copy)
    finally:
        os.kill(copy, signal.SIGKILL)


@posix
def test_an_interrupt_of_the_calling_process_returns_the_partial_run():
    script = """
    import time
    from labkit import sandbox
    sandbox.server.PRELOAD = ()

    def train():
        n = 0
        while True:
            n += 1
            yield n
            time.sleep(0.01)

    run = sandbox.run(train, on_event=lambda n: print(n, flush=True) if n == 3 else None)
    print(run.outcome.signature, run.events[:3], run.events == list(range(1, len(run.events) + 1)), flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=ROOT, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "3\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        assert process.stdout.readline() == "stopped [1, 2, 3] True\n"
    assert process.returncode == 0


CELLS = [
    """
import time
from labkit import sandbox
sandbox.server.PRELOAD = ()
class Probe:
    pass
factor = 2
def train(n):
    for i in range(n):
        yield i * factor
        time.sleep(0.01)
def broken():
    yield Probe()
    raise ValueError("as planned")  # here
sandbox.run(train, 3).events
""",
    """
run = sandbox.run(broken)
print(type(run.events[0]) is Probe, run.outcome.signature, "# here" in run.outcome.traceback)
""",
    """
run = sandbox.run(train, 1_000_000, on_event=lambda event: print("go", flush=True) if event == 6 else None)
print(run.outcome.signature, run.events == list(range(0, 2 * len(run.events), 2)))
""",
    "sandbox.run(train, 2).events",
]


@posix
def test_in_a_notebook_kernel_cells_travel_and_an_interrupt_stops_the_child():
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(cwd=str(ROOT))
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        kernel = psutil.Process(manager.provisioner.pid)  # type: ignore[union-attr]
        assert execute(client, CELLS[0]) == "[0, 2, 4]"
        assert execute(client, CELLS[1]) == "True exception:ValueError True"
        text = execute(client, CELLS[2], on_go=manager.interrupt_kernel)
        assert text == "go stopped True"
        assert execute(client, CELLS[3]) == "[0, 2]"
        (server,) = kernel.children()
        assert server.children() == []
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
    assert gone([server.pid])


@posix
def test_importing_starts_nothing_and_warm_starts_the_server_that_runs_are_forked_from():
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(ROOT))
    try:
        kernel = psutil.Process(manager.provisioner.pid)
        assert not kernel.children()
        execute(client, "import labkit")
        assert not kernel.children()
        execute(client, "labkit.warm()")
        (server,) = kernel.children()
        assert execute(client, "labkit.sandbox.run(abs, -3).events") == "[3]"
        assert kernel.children() == [server]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
    assert gone([server.pid])
    code = "import labkit, psutil; print(len(psutil.Process().children()))"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "0\n"
    )


def execute(client, code, on_go=None):
    """Run a cell; its text output and its value, as one line."""
    message = client.execute(code)
    said = []
    while True:
        reply = client.get_iopub_msg(timeout=60)
        if reply["parent_header"].get("msg_id") != message:
            continue
        kind, content = reply["msg_type"], reply["content"]
        if kind == "stream":
            said.append(content["text"].strip())
            if on_go and said[-1] == "go":
                on_go()
        elif kind == "execute_result":
            said.append(content["data"]["text/plain"])
        elif kind == "error":
            raise AssertionError("\n".join(content["traceback"]))
        elif kind == "status" and content["execution_state"] == "idle":
            return " ".join(filter(None, said))


# ---------------------------------------------------------------------------------------- environment and imports


def read_environment(*names):
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    for name in names:
        seen = os.environ.get(name)
        if libc is not None:
            libc.getenv.restype = ctypes.c_char_p
            raw = libc.getenv(name.encode())
            assert seen == (raw.decode() if raw is not None else None), "Python and C disagree"
        yield seen


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
        before = {
            name: text for name, text in os.environ.items() if name.startswith(sandbox.server.IMPORT_TIME)
        }
        import torch
        import transformers.models.gpt2.modeling_gpt2  # noqa: F401

        yield torch.get_num_threads()
        yield {
            n: t
            for n, t in os.environ.items()
            if n.startswith(sandbox.server.IMPORT_TIME) and before.get(n) != t
        }

    run = sandbox.run(threads, env={"OMP_NUM_THREADS": "1"})
    assert run.meta["process"] == "fresh" and run.events[0] == 1
    assert run.events[1] == {}, "a caller that imports these would lose its warm server"
    assert sandbox.run(threads, env={"PYTORCH_ALLOC_CONF": "x"}, fresh=False).meta["process"] == "fork"
    assert sandbox.run(threads, env={"CUDA_VISIBLE_DEVICES": ""}).meta["process"] == "fork"


def test_the_number_of_threads_can_be_set_in_a_fork_and_two_threads_compute():
    def compute():
        import torch

        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            x = torch.randn(400, 400)
            yield torch.get_num_threads(), bool(torch.isfinite(x @ x).all())

    run = sandbox.run(compute, timeout=60)
    assert run.events == [(1, True), (2, True), (1, True)], run.outcome


@linux
def test_the_server_has_imported_torch_but_computed_nothing():
    def look():
        import torch

        yield "torch" in sys.modules, torch.cuda.is_initialized(), len(os.listdir("/proc/self/task"))

    first = sandbox.run(look).events[0]
    assert first == (True, False, 1)
    # numpy's BLAS starts its idle threads on import and handles forks itself; OpenMP's would show as more
    server = psutil.Process(sandbox.server._server.process.pid)
    assert server.num_threads() <= (os.cpu_count() or 1)
    assert "left out" not in sandbox.server._server.last_words()


@posix
def test_the_callers_directory_and_module_path_reach_the_child(tmp_path, monkeypatch):
    (tmp_path / "helper_of_a_notebook.py").write_text("VALUE = 17\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def use():
        import helper_of_a_notebook

        yield helper_of_a_notebook.VALUE, os.getcwd()

    for fresh in (None, True):
        assert sandbox.run(use, fresh=fresh).events == [(17, str(tmp_path))]


@linux
def test_the_memory_limit_counts_from_where_the_child_starts_and_covers_one_run_only():
    def fill(megabytes):
        yield len(bytearray(megabytes << 20)) >> 20

    assert sandbox.run(fill, 50, memory_limit=100 << 20).events == [50]
    assert sandbox.run(fill, 150, memory_limit=100 << 20).outcome.signature == "oom"
    assert sandbox.run(fill, 150).events == [150]


def test_neither_the_import_nor_a_run_brings_torch_into_the_caller():
    script = """
    import sys
    from labkit import sandbox
    from labkit.events import Step
    def look():
        import torch
        yield Step(1, loss=float(torch.ones(1)))
    sandbox.server.PRELOAD = ("torch",)
    assert sandbox.run(look)["loss"] == [1.0]
    print([name for name in ("torch", "numpy", "transformers", "IPython") if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_sandboxs_files_import_nothing_but_the_standard_library_cloudpickle_and_each_other():
    allowed = set(sys.stdlib_module_names) | {"labkit", "cloudpickle"}
    for name in ("child", "signature", "worker", "server", "spawn"):
        for node in ast.walk(ast.parse((ROOT / "labkit/sandbox" / f"{name}.py").read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and not getattr(node, "level", 0):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                assert {n.split(".")[0] for n in names} <= allowed, (name, names)


# ------------------------------------------------------------------------------------------------- without a fork


SPAWNED = [
    "segfault",
    "os._exit(3)",
    "hang in C with the GIL",
    "exception",
    "50 MB of stderr",
    "fake index assert",
]


@pytest.mark.parametrize("name", SPAWNED)
def test_the_same_faults_end_the_same_way_without_a_server(name, monkeypatch):
    monkeypatch.setattr(sandbox.server, "HAS_SERVER", False)
    check_fault(name)


@posix
def test_without_a_server_a_child_streams_stops_and_leaves_nothing(monkeypatch):
    monkeypatch.setattr(sandbox.server, "HAS_SERVER", False)
    before = psutil.Process().num_fds()
    run = sandbox.run(read_environment, "LABKIT_X", env={"LABKIT_X": "1"})
    assert run.events == ["1"] and run.outcome
    child = sandbox.start(leave_a_family, True, hang=True, sessions=[False])
    pids = []
    while len(pids) < 2:
        pids += child.drain()
        time.sleep(0.01)
    child.stop()
    assert child.result().outcome.signature == "stopped" and gone(pids[1:2])
    assert psutil.Process().num_fds() == before


# -------------------------------------------------------------------------------------------------------- operands


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: sandbox.run(count(3)), TypeError, "already started"),
        (lambda: sandbox.run("count"), TypeError, "function: expected"),
        (lambda: sandbox.run(count, 1, timeout=0), ValueError, "timeout"),
        (lambda: sandbox.run(count, 1, timeout=float("nan")), ValueError, "timeout"),
        (lambda: sandbox.run(count, 1, timeout="5"), ValueError, "timeout"),
        (lambda: sandbox.run(count, 1, env=["A=1"]), TypeError, "env"),
        (lambda: sandbox.run(count, 1, env={"A": 1}), TypeError, "env: A must be a string"),
        (lambda: sandbox.run(count, 1, env={"A=B": "1"}), ValueError, "env"),
        (lambda: sandbox.run(count, 1, memory_limit=-1), ValueError, "memory_limit"),
        (lambda: sandbox.run(count, 1, memory_limit=1.5), ValueError, "memory_limit"),
        (lambda: sandbox.run(count, 1, on_event=3), TypeError, "on_event"),
        (lambda: sandbox.run(count, 1, fresh="yes"), TypeError, "fresh"),
        (lambda: sandbox.run(count, threading.Lock()), TypeError, "argument 1, <unlocked"),
        (lambda: sandbox.run(count, n=threading.Lock()), TypeError, "argument 'n', <unlocked"),
    ],
)
def test_a_bad_operand_is_named_before_anything_starts(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_an_async_function_is_refused():
    async def later():
        yield 1

    with pytest.raises(TypeError, match="async"):
        sandbox.start(later)


def test_a_wrong_argument_list_is_the_functions_own_error():
    outcome = sandbox.run(count).outcome
    assert outcome.signature == "exception:TypeError" and "required positional argument" in outcome.message


# ------------------------------------------------------------------------- servers that come and go: keep these last


@linux
def test_the_time_out_counts_from_the_start_of_the_run_not_from_that_of_the_server(slow):
    run = sandbox.run(count, 2, timeout=2)
    assert run.outcome and run.outcome.seconds < 2


@posix
def test_stop_before_the_server_is_ready_waits_for_nothing_and_runs_nothing(slow, tmp_path):
    (tmp_path / "ran").mkdir()
    children = [sandbox.start((tmp_path / "ran" / str(number)).touch) for number in range(20)]
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
    while not child.drain():
        time.sleep(0.01)
    pid = child.pid
    os.kill(sandbox.server._server.process.pid, signal.SIGKILL)
    outcome = child.result().outcome
    assert outcome.signature == "signal:9" and "server died" in outcome.message
    assert gone([pid])
    assert sandbox.run(count, 2).outcome


@linux
def test_an_idle_server_is_replaced_when_the_callers_import_time_variables_change(bare):
    sandbox.run(count, 1)
    first = sandbox.server._server
    bare.setenv("HF_HUB_OFFLINE", "1" if os.environ.get("HF_HUB_OFFLINE") != "1" else "0")
    run = sandbox.run(read_environment, "HF_HUB_OFFLINE")
    assert run.events == [os.environ["HF_HUB_OFFLINE"]] and run.meta["process"] == "fork"
    assert sandbox.server._server is not first and not first.alive


def test_a_module_that_cannot_be_imported_does_not_break_the_server(bare):
    bare.setattr(sandbox.server, "PRELOAD", ("labkit.no_such_module", "json"))
    sandbox.shutdown()
    try:
        assert sandbox.run(count, 1).outcome
        assert not LINUX or "labkit.no_such_module left out" in sandbox.server._server.last_words()
    finally:
        sandbox.shutdown()


def test_a_server_that_cannot_start_is_an_error_and_the_next_one_may(bare):
    with bare.context() as patch:
        patch.setattr(sys, "executable", sys.executable + "-is-not-here")
        with pytest.raises(sandbox.SandboxError, match="could not start"):
            sandbox.run(count, 1)
    assert sandbox.run(count, 1).outcome


@posix
def test_a_server_that_dies_at_once_is_an_error_with_its_own_words(bare, tmp_path):
    (tmp_path / "ends_the_server.py").write_text(
        "import os; print('no libtorch here', flush=True); os._exit(1)"
    )
    bare.syspath_prepend(str(tmp_path))
    bare.setattr(sandbox.server, "PRELOAD", ("ends_the_server",))
    with pytest.raises(sandbox.SandboxError, match="no libtorch here"):
        sandbox.run(count, 1)


@posix
def test_a_server_that_died_between_two_runs_is_replaced_without_a_word(bare):
    for _ in range(20):
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


# ------------------------------------------------------------------------------------------------ several at once


def at_work(name, seconds=0.2, shared=""):
    yield {"name": name, "shared": shared, "from": time.monotonic()}
    time.sleep(seconds)
    yield time.monotonic()
    if name == "crash":
        raise RuntimeError("as asked")


def test_several_runs_keep_their_names_their_order_and_their_own_settings():
    settings = {"slow": {"seconds": 0.5}, "crash": {}, "quick": {"seconds": 0.0, "shared": "mine"}}
    runs = sandbox.run_all(at_work, {n: {"name": n, **s} for n, s in settings.items()}, shared="all")
    assert list(runs) == ["slow", "crash", "quick"]
    assert [r.events[0]["name"] for r in runs.values()] == list(runs)
    assert [r.events[0]["shared"] for r in runs.values()] == ["all", "all", "mine"]
    assert [bool(r.outcome) for r in runs.values()] == [True, False, True]


@pytest.mark.parametrize("at_once", [1, 3])
def test_no_more_runs_go_on_at_once_than_were_allowed_and_no_fewer(at_once):
    runs = sandbox.run_all(
        at_work, {str(i): {"name": str(i), "seconds": 0.5} for i in range(4)}, at_once=at_once
    )
    spans = [(r.events[0]["from"], r.events[1]) for r in runs.values()]
    together = max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)
    assert together == at_once


def test_an_interrupt_stops_all_of_several_runs(bare):
    timer = threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT])
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        sandbox.run_all(at_work, {str(i): {"name": str(i), "seconds": 600} for i in range(4)}, at_once=2)
    assert time.monotonic() - began < 30 and not offspring()


def test_a_bad_operand_of_several_runs_is_named_before_anything_starts():
    with pytest.raises(TypeError, match="settings: expected a mapping"):
        sandbox.run_all(at_work, [{"name": "a"}])
    with pytest.raises(ValueError, match="at_once: expected a whole number"):
        sandbox.run_all(at_work, {"a": {"name": "a"}}, at_once=0)
    with pytest.raises(ValueError, match="timeout"):
        sandbox.run_all(at_work, {"a": {"name": "a"}}, timeout=-1)
    assert not offspring()
