"""A small single-threaded process that imports torch once and then forks a child per run in milliseconds.

Both ends are here: `Server` in the caller's process, `serve` in the server's. The server imports and never
computes: a fork after OpenMP or CUDA has started would hang or fail. It reaps its children, and when the caller
goes away, however it goes, it kills every one of them together with whatever they started. This file does not
know what a run is; it moves file descriptors and reports wait statuses. POSIX only; forks (rather than forks
and executes a fresh interpreter) on Linux only, since macOS system libraries do not survive a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from labkit.common import uncollected

from . import worker

if sys.platform != "win32":
    import fcntl

REQUEST = struct.Struct("<BQ")  # what, which child; FORK and FRESH carry five file descriptors
FORK, FRESH, KILL, DUMP = 1, 2, 3, 4
STATUS = struct.Struct("<Bq")  # what, value; written to a child's status pipe
STARTED, ENDED, FAILED = 1, 2, 3  # value: pid, wait status, errno

CAN_FORK = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


class Server:
    """The caller's end. `send` raises OSError when the server is gone."""

    def __init__(self, preload: Sequence[str]):
        self.environment = dict(os.environ)
        self.numbers = itertools.count(1)
        self.busy: set[int] = set()  # children in use, by number; kept by the caller
        self.broken = False  # seen to be gone, perhaps before `wait` can tell
        self.log: Any = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                interpreter(
                    f"from labkit.sandbox.server import serve; serve({theirs.fileno()}, {tuple(preload)!r})"
                ),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                start_new_session=True,  # the kernel's interrupt is not for the server
            )
        except BaseException:
            self._socket.close()
            self.log.close()
            raise
        finally:
            theirs.close()

    @property
    def alive(self) -> bool:
        return not self.broken and self.process.poll() is None

    def send(self, what: int, child: int, descriptors: Sequence[int] = ()) -> None:
        message = REQUEST.pack(what, child)
        try:
            with self._lock:
                if descriptors:
                    socket.send_fds(self._socket, [message], list(descriptors))
                else:
                    self._socket.sendall(message)
        except OSError:
            self.broken = True
            raise

    def last_words(self) -> str:
        """The end of what the server printed: why it could not start."""
        if self.log.closed:
            return ""
        self.log.seek(0)
        return self.log.read().decode("utf-8", "replace").strip()[-2000:]

    def close(self) -> None:
        """End the server and every child it has."""
        self.abandon()
        if self.busy:  # let it kill them first, and what they started
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(3)
        self.process.kill()  # it may be importing
        self.process.wait()
        self.log.close()

    def abandon(self) -> None:
        """Close this process's end only (in a fork of the caller, which does not own the server)."""
        with contextlib.suppress(OSError):
            self._socket.close()


class Forked:
    """The caller's end of one child of the server. `feed` gets ("events" | "stdout" | "stderr", bytes).

    Used by one thread, except `kill` and `dump`, which any thread may call. `returncode` is the exit code, or
    minus a signal's number; None when it is not known, because the child lives or because the server died.
    """

    def __init__(self, server: Server, job: Any, fresh: bool, feed: Callable[[str, bytes], None]):
        self.server, self.feed, self.number = server, feed, next(server.numbers)
        self.pid: int | None = None
        self.returncode: int | None = None
        self.lost = False  # the server died before it could report
        self._selector = selectors.DefaultSelector()
        theirs: dict[str, int] = {}
        try:
            for name in ("stdout", "stderr", "events", "status"):
                ours, theirs[name] = os.pipe()
                os.set_blocking(ours, False)
                self._selector.register(ours, selectors.EVENT_READ, name)
            _widen(theirs["events"])
            server.send(FRESH if fresh else FORK, self.number, [job.fileno(), *theirs.values()])
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in theirs.values():
                os.close(descriptor)

    def poll(self, timeout: float | None) -> bool:
        """Wait for news for at most `timeout` seconds and feed it. True when the child is dead or lost."""
        for key, _ in self._selector.select(timeout):
            self._read(key)
        return self.lost or self.returncode is not None

    def rest(self, patience: float) -> None:
        """Feed what the dead child left in its pipes; wait `patience` seconds at most for late writers."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            keys = self._selector.select(0)
            if not keys and not (self.lost and self._selector.get_map()):
                return
            for key, _ in keys or self._selector.select(0.05):
                self._read(key)

    def _read(self, key: selectors.SelectorKey) -> None:
        try:
            data = os.read(key.fd, 1 << 18)
        except BlockingIOError:
            return
        if key.data == "status":
            self._status(data)
        elif data:
            self.feed(key.data, data)
        if not data:
            self._selector.unregister(key.fd)
            os.close(key.fd)

    def _status(self, data: bytes) -> None:
        for what, value in STATUS.iter_unpack(data):
            if what == STARTED:
                self.pid = value
            elif what == ENDED:
                self.returncode = os.waitstatus_to_exitcode(value)
            else:
                raise OSError(value, f"the sandbox could not fork: {os.strerror(value)}")
        if not data and self.returncode is None:
            self.lost = self.server.broken = True
            self.kill()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.server.send(KILL, self.number)
        if self.server.broken and self.pid is not None and self.returncode is None:
            kill_group(self.pid)  # there is nobody to do it for us

    def dump(self) -> None:
        """Have the child write its Python traceback into the job's file, from C, even while it hangs."""
        with contextlib.suppress(OSError):
            self.server.send(DUMP, self.number)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()


def _widen(pipe: int) -> None:
    """A larger pipe, so that a burst of events need not wait for its reader (Linux; 1 MiB is allowed to all)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)


def interpreter(statement: str) -> list[str]:
    """The command line of a new interpreter with this one's module path, that runs `statement`."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {statement}"]


# ---------------------------------------------------------------------------------------- the server's process


def serve(control: int, preload: tuple[str, ...]) -> NoReturn:
    """Import `preload`, then fork on request until the caller's end of `control` closes."""
    _Keeper(socket.socket(fileno=control), preload).run()
    os._exit(0)


class _Keeper:
    def __init__(self, control: socket.socket, preload: tuple[str, ...]):
        self.control, self.preload = control, preload
        self.pids: dict[int, int] = {}  # child's number -> pid
        self.status: dict[int, int] = {}  # pid -> the write end of its status pipe
        self.environment = dict(os.environ)  # as the caller gave it, before the imports
        self.unsafe = ""  # why this process must not be forked without exec
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.wake, self._waker = os.pipe()
        for end in (self.wake, self._waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans of a dead child come to us, to be killed

    def run(self) -> None:
        if CAN_FORK:
            self._import()
        while True:
            readable, _, _ = select.select([self.control.fileno(), self.wake], [], [])
            if self.wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake, 4096)
                self._reap()
            if self.control.fileno() in readable:
                try:
                    message, descriptors, _, _ = socket.recv_fds(self.control, REQUEST.size, 5)
                    what, number = REQUEST.unpack(message)
                except (ConnectionError, struct.error):  # the caller is gone
                    self._end()
                    return
                self._serve(what, number, descriptors)

    def _import(self) -> None:
        """Best effort: a module that cannot be imported is the run's problem, not the server's."""
        before = os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
        # so that a module that asks torch.cuda.is_available() leaves CUDA alone (torch >= 2.0)
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        for name in self.preload:
            if select.select([self.control], [], [], 0)[0] and not self.control.recv(1, socket.MSG_PEEK):
                return  # the caller is gone already
            try:
                with uncollected():
                    __import__(name)
            except BaseException as error:
                print(f"preload of {name} left out: {type(error).__name__}: {error}", flush=True)
        if before is None:
            del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
        if cuda_started():
            self.unsafe = "a preloaded module started CUDA"
            print(f"every child is a fresh interpreter: {self.unsafe}", flush=True)
        gc.freeze()  # children then share these pages instead of touching them

    def _serve(self, what: int, number: int, descriptors: list[int]) -> None:
        if what in (FORK, FRESH):
            fresh = what == FRESH or not CAN_FORK or bool(self.unsafe)
            try:
                self._fork(number, descriptors, fresh)
            finally:
                for descriptor in descriptors:
                    if descriptor not in self.status.values():
                        os.close(descriptor)
        elif (pid := self.pids.get(number)) is not None:
            if what == KILL:
                kill_group(pid)
            elif what == DUMP and worker.DUMP_SIGNAL is not None:
                with contextlib.suppress(OSError):
                    os.kill(pid, worker.DUMP_SIGNAL)

    def _fork(self, number: int, descriptors: list[int], fresh: bool) -> None:
        status, server = descriptors[4], os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            with warnings.catch_warnings():  # Python 3.12 warns of threads: numpy's BLAS has idle ones
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.write(status, STATUS.pack(FAILED, error.errno or 0))
            return
        if pid == 0:
            try:
                self._become_child(descriptors, server, fresh)
            finally:
                os._exit(70)  # EX_SOFTWARE: only reached when becoming a child failed
        self.pids[number], self.status[pid] = pid, status
        with contextlib.suppress(OSError):
            os.write(status, STATUS.pack(STARTED, pid))

    def _become_child(self, descriptors: list[int], server: int, fresh: bool) -> None:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # its own daemons stay below it while it lives
        if os.getppid() != server:
            return  # the server died before the line above
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stdin, stdout, stderr, events, status = descriptors
        for standard, source in enumerate((stdin, stdout, stderr)):
            os.dup2(source, standard)
        for theirs in (stdin, stdout, stderr, status, self.wake, self._waker, *self.status.values()):
            os.close(theirs)
        self.control.close()
        if not fresh:
            worker.main(events)
        job = worker.read_job()
        os.set_inheritable(events, True)
        sys.path[:] = job["path"]
        command = interpreter(f"from labkit.sandbox.worker import main; main({events})")
        changed = {**self.environment, **job["environment"]}
        os.execve(command[0], command, {name: text for name, text in changed.items() if text is not None})

    def _reap(self) -> None:
        """Report every child that has died, after killing what is left of its process group."""
        for pid, status in self._dead():
            if pid in self.status:
                self.pids = {number: p for number, p in self.pids.items() if p != pid}
                pipe = self.status.pop(pid)
                with contextlib.suppress(OSError):
                    os.write(pipe, STATUS.pack(ENDED, status))
                os.close(pipe)
            self._kill_strays()

    def _dead(self) -> Iterator[tuple[int, int]]:
        """Pid and wait status of each dead child. While a leader is not reaped its group's number is its own."""
        try:
            while True:
                if hasattr(os, "waitid"):  # macOS has it from Python 3.13
                    found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    if found is None:
                        return
                    self._kill_rest(found.si_pid)
                    yield os.waitpid(found.si_pid, 0)
                else:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                    if pid == 0:
                        return
                    self._kill_rest(pid)
                    yield pid, status
        except ChildProcessError:
            return

    def _kill_rest(self, leader: int) -> None:
        if leader in self.status:
            with contextlib.suppress(OSError):
                os.killpg(leader, signal.SIGKILL)

    def _kill_strays(self) -> None:
        """Kill what a dead child had started in other sessions: as their subreaper we are now the parent."""
        for pid in children_of(os.getpid()):
            if pid not in self.status:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def _end(self) -> None:
        signal.set_wakeup_fd(-1)
        for pid in self.status:
            kill_group(pid)
        while True:
            try:
                pid, _ = os.waitpid(-1, 0)
            except ChildProcessError:
                return
            self.status.pop(pid, None)
            self._kill_strays()


def kill_group(pid: int) -> None:
    """SIGKILL to a child's process group, and to the child in case it has not left ours yet."""
    with contextlib.suppress(OSError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """The living children of a single-threaded process (Linux, proc(5)); empty where there is no such file."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def cuda_started() -> bool:
    """Whether `cuInit` has run in this process: then a fork of it cannot use CUDA.

    cuDeviceGetCount answers CUDA_ERROR_NOT_INITIALIZED (3) before `cuInit` (CUDA driver API).
    """
    try:
        with open("/proc/self/maps") as maps:
            path = next((line.split()[-1] for line in maps if "/libcuda.so" in line), None)
        if path is None:
            return False
        return ctypes.CDLL(path).cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != 3
    except OSError:
        return False
