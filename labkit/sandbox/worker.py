"""The sacrificial process: run one function, write what it yields down a pipe, then `os._exit`.

Every event is one `os.write` of one framed pickle, so an event that was yielded has left the process: a
segmentation fault on the next line cannot take it along. File descriptors on entry: 0 is a temporary file with
the job in it (tracebacks of fatal signals go after that), 1 and 2 are the captured pipes. At-exit code never
runs: after a CUDA device-side assert it may hang or crash, so the report goes out first and the process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import linecache
import os
import pickle
import signal
import struct
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

from .job import by_value

# Before each body: its length in bytes, and its kind.
FRAME = struct.Struct("<QB")
READY, EVENT, END = 0, 1, 2

# A write of at most this many bytes is whole or absent (Linux pipe(7); POSIX promises 512).
PIPE_BUF = 4096

# On this signal faulthandler writes the traceback from C, so it works while C code holds the GIL, and the process
# ends. (A signal that it survived would interrupt the very system call that hangs, and the function would go on.)
# 0 where there is none.
DUMP_SIGNAL: int = getattr(signal, "SIGRTMAX", 0)


def interpreter(statement: str) -> list[str]:
    """The command line of a new interpreter with this one's module path, that runs `statement`."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {statement}"]


def frames(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """Take the whole frames off the front of what the caller has read: kind and body of each."""
    while len(buffer) >= FRAME.size:
        length, kind = FRAME.unpack_from(buffer)
        end = FRAME.size + length
        if len(buffer) < end:
            return
        body = bytes(buffer[FRAME.size : end])
        del buffer[:end]
        yield kind, body


def main(events: int) -> NoReturn:
    """Run the job that file descriptor 0 holds; write frames to the file descriptor `events`. Never returns."""
    report = Reporter(events)
    code = 1
    try:
        job = read_job()
        _own_streams()
        _own_process(job)
        report.write(READY, b"%d" % os.getpid())  # fails, and nothing runs, when the caller has given up on us
        code = _work(report, job["call"])
    except BaseException:  # nothing may escape into the server's loop
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def read_job() -> dict[str, Any]:
    """The job, from the start of file descriptor 0."""
    os.lseek(0, 0, os.SEEK_SET)
    with open(0, "rb", closefd=False) as file:
        return pickle.load(file)


def _own_streams() -> None:
    """Give stdin to nobody, tracebacks of fatal signals to the job's file, text to pipes 1 and 2, unbuffered."""
    trace = os.dup(0)
    os.lseek(trace, 0, os.SEEK_END)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout, sys.stderr = _text(1), _text(2)
    faulthandler.enable(trace, all_threads=True)
    if DUMP_SIGNAL:  # chain: then die, which is the signal's default action
        faulthandler.register(DUMP_SIGNAL, trace, all_threads=True, chain=True)
    with contextlib.suppress(Exception):  # C's own stdout: a full buffer would die with the process
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)  # 1 = _IOLBF


def _text(descriptor: int) -> io.TextIOWrapper:
    raw: Any = open(descriptor, "wb", 0, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)


def _own_process(job: dict[str, Any]) -> None:
    """The caller's directory, module path, environment and cell sources; a random state of our own."""
    os.chdir(job["directory"])
    sys.path[:] = job["path"]
    os.environ.clear()
    os.environ.update(job["environment"])
    _share_threads(job["threads"])
    linecache.cache.update(job["sources"])  # so that a traceback shows the notebook's lines
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()  # a fork would repeat the server's stream; Python's own `random` reseeds itself


def _share_threads(threads: int | None) -> None:
    if threads is None or "OMP_NUM_THREADS" in os.environ:
        return
    os.environ["OMP_NUM_THREADS"] = str(threads)  # for a torch that the call imports
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


# What pickle raises of its own. Not every Exception: a signal handler may raise in the middle of it.
_UNPICKLABLE = (pickle.PicklingError, TypeError, AttributeError)


class Reporter:
    """Writes frames. A copy of this process made by `os.fork` may not use it: it ends there."""

    def __init__(self, descriptor: int):
        self.descriptor, self.pid, self.count = descriptor, os.getpid(), 0

    def event(self, value: Any) -> None:
        """Send one event. TypeError names it when it cannot be pickled."""
        self.count += 1
        try:
            body = pickle.dumps(value, 5)
        except _UNPICKLABLE:
            try:
                body = by_value(value)
            except _UNPICKLABLE as error:
                raise TypeError(
                    f"event {self.count}, a {type(value).__name__}, cannot leave the sandbox: {error}. "
                    "Yield a Step, or plain numbers, strings, lists and dicts"
                ) from error
        self.write(EVENT, body)

    def write(self, kind: int, body: bytes) -> None:
        if os.getpid() != self.pid:
            os._exit(0)
        data = memoryview(FRAME.pack(len(body), kind) + body)
        if len(data) <= PIPE_BUF:
            os.write(self.descriptor, data)
            return
        with _no_signals():
            while data:
                data = data[os.write(self.descriptor, data) :]


@contextlib.contextmanager
def _no_signals() -> Iterator[None]:
    """Hold signals back: a handler that raises between two writes would tear a frame."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {DUMP_SIGNAL})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(report: Reporter, call: bytes) -> int:
    """Run the call, send its events and its end. Returns the exit code."""
    result: Any = None
    try:
        function, args, kwargs = pickle.loads(call)
        result = function(*args, **kwargs)
        if isinstance(result, Iterator):
            for event in result:
                report.event(event)
        elif result is not None:
            report.event(result)
    except BaseException as error:
        code = _exit_code(error)
        ending = {} if code == 0 else describe(error)
    else:
        code, ending = 0, {}
    report.write(END, pickle.dumps(ending, 5))
    del result  # a generator that we left early cleans up here, after the report is out
    if any("device-side assert" in link["message"] for link in ending.get("links", ())):
        _print_assertions()
    return code


def _print_assertions() -> None:
    """End the CUDA context, at which the driver prints the assertions that it has not printed yet.

    A Python that ends by itself does that too. `os._exit` does not: on an H200 (torch 2.11) half of the texts of one
    kernel were lost, and neither a synchronisation nor a pause brought them back.
    """
    with contextlib.suppress(Exception):
        driver, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        for number in range(sys.modules["torch.cuda"].device_count()):
            driver.cuDeviceGet(ctypes.byref(device), number)
            driver.cuDevicePrimaryCtxReset_v2(device)


def _exit_code(error: BaseException) -> int:
    code = error.code if isinstance(error, SystemExit) else 1
    if isinstance(code, int | None):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain text and numbers, with the exceptions it was explicitly raised from."""
    links: list[dict[str, Any]] = []
    link: BaseException | None = error
    while link is not None and len(links) < 20:
        bases = [kind.__name__ for kind in type(link).__mro__]
        code = getattr(link, "error_code", None) if "AcceleratorError" in bases else None
        try:
            message = str(link)
        except BaseException as trouble:
            message = f"(its message could not be read: {type(trouble).__name__})"
        links.append({"exception": bases[0], "bases": bases[1:], "message": message, "error_code": code})
        link = link.__cause__
    inner = error.__traceback__
    while inner is not None and inner.tb_next and inner.tb_frame.f_code.co_filename == __file__:
        inner = inner.tb_next
    return {"links": links, "traceback": "".join(traceback.format_exception(type(error), error, inner))}
