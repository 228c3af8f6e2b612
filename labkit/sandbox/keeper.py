"""The server's process: it imports torch once and then forks a child per run in milliseconds.

It is small and has one thread. It imports and never computes: a fork after OpenMP or CUDA has started would hang or
fail. It reaps its children, and when the caller goes away, however it goes, it kills every one of them together with
whatever they started. It does not know what a run is; it moves file descriptors and reports wait statuses. POSIX only;
it forks (rather than forks and executes a fresh interpreter) on Linux only, since macOS system libraries do not
survive a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Iterator
from typing import NoReturn

from labkit.common import uncollected

from . import worker

# The caller asks: what, and which child. FORK and FRESH carry five file descriptors.
REQUEST = struct.Struct("<BQ")
FORK, FRESH, KILL, DUMP = 1, 2, 3, 4

# We answer into the child's status pipe: what, and its value, which is a pid, a wait status or an errno.
STATUS = struct.Struct("<Bq")
STARTED, ENDED, FAILED = 1, 2, 3

CAN_FORK = sys.platform == "linux"

# linux/prctl.h
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def serve(control: int, preload: tuple[str, ...]) -> NoReturn:
    """Import `preload`, then fork on request until the caller's end of `control` closes."""
    Keeper(socket.socket(fileno=control), preload).run()
    os._exit(0)


class Keeper:
    """Waits for requests and for deaths, and does one thing at a time."""

    def __init__(self, control: socket.socket, preload: tuple[str, ...]):
        self.control, self.preload = control, preload
        self.pids: dict[int, int] = {}  # child's number -> pid
        self.status: dict[int, int] = {}  # pid -> the write end of its status pipe
        self.environment = dict(os.environ)  # as the caller gave it, before the imports
        self.can_fork = CAN_FORK
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
                self._obey(what, number, descriptors)

    def _import(self) -> None:
        """Best effort: a module that cannot be imported is the run's problem, not the server's."""
        # so that a module that asks torch.cuda.is_available() leaves CUDA alone (torch >= 2.0)
        asks_nvml = "PYTORCH_NVML_BASED_CUDA_CHECK"
        os.environ[asks_nvml] = "1"
        for name in self.preload:
            if select.select([self.control], [], [], 0)[0] and not self.control.recv(1, socket.MSG_PEEK):
                return  # the caller is gone already
            try:
                with uncollected():
                    __import__(name)
            except BaseException as error:
                print(f"preload of {name} left out: {type(error).__name__}: {error}", flush=True)
        os.environ.pop(asks_nvml, None)
        if asks_nvml in self.environment:
            os.environ[asks_nvml] = self.environment[asks_nvml]
        if cuda_started():
            self.can_fork = False
            print("a preloaded module started CUDA: every child is a fresh interpreter", flush=True)
        gc.freeze()  # children then share these pages instead of touching them

    def _obey(self, what: int, number: int, descriptors: list[int]) -> None:
        if what in (FORK, FRESH):
            self._fork(number, descriptors, what == FRESH or not self.can_fork)
        elif (pid := self.pids.get(number)) is not None:
            if what == KILL:
                kill_group(pid)
            elif what == DUMP and worker.DUMP_SIGNAL is not None:
                with contextlib.suppress(OSError):
                    os.kill(pid, worker.DUMP_SIGNAL)

    def _fork(self, number: int, descriptors: list[int], fresh: bool) -> None:
        """Start a child. Of its descriptors only the status pipe stays open here, for as long as it lives."""
        *streams, status = descriptors
        server = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            with warnings.catch_warnings():  # Python 3.12 warns of threads: numpy's BLAS has idle ones
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            _answer(status, FAILED, error.errno or 0)
            os.close(status)
        else:
            if pid == 0:
                try:
                    self._become_child(descriptors, server, fresh)
                finally:
                    os._exit(70)  # EX_SOFTWARE: only reached when becoming a child failed
            self.pids[number], self.status[pid] = pid, status
            _answer(status, STARTED, pid)
        for descriptor in streams:
            os.close(descriptor)

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
        command = worker.interpreter(f"from labkit.sandbox.worker import main; main({events})")
        changed = {**self.environment, **job["environment"]}
        os.execve(command[0], command, {name: text for name, text in changed.items() if text is not None})

    def _reap(self) -> None:
        """Report every child that has died, after killing what is left of its process group."""
        for pid, status in self._dead():
            if pid in self.status:
                self.pids = {number: p for number, p in self.pids.items() if p != pid}
                pipe = self.status.pop(pid)
                _answer(pipe, ENDED, status)
                os.close(pipe)
            self._kill_strays()

    def _dead(self) -> Iterator[tuple[int, int]]:
        """Pid and wait status of each dead child. While a leader is not reaped its group's number is its own."""
        with contextlib.suppress(ChildProcessError):  # there is no child at all
            if hasattr(os, "waitid"):  # macOS has it from Python 3.13
                while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    self._kill_rest(found.si_pid)
                    yield os.waitpid(found.si_pid, 0)
            else:
                while (dead := os.waitpid(-1, os.WNOHANG))[0]:
                    self._kill_rest(dead[0])
                    yield dead

    def _kill_rest(self, leader: int) -> None:
        if leader in self.status:
            with contextlib.suppress(OSError):
                os.killpg(leader, signal.SIGKILL)

    def _kill_strays(self) -> None:
        """Kill what a dead child had started in other sessions: as their subreaper we are now the parent (Linux)."""
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:  # proc(5)
                ours = [int(word) for word in file.read().split()]
        except OSError:
            return
        for pid in ours:
            if pid not in self.status:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def _end(self) -> None:
        """Kill every child and what they started, and wait until all are dead."""
        signal.set_wakeup_fd(-1)
        for pid in self.status:
            kill_group(pid)
        with contextlib.suppress(ChildProcessError):  # there is none left
            while True:
                pid, _ = os.waitpid(-1, 0)
                self.status.pop(pid, None)
                self._kill_strays()


def _answer(pipe: int, what: int, value: int) -> None:
    with contextlib.suppress(OSError):  # the caller may have closed its end
        os.write(pipe, STATUS.pack(what, value))


def kill_group(pid: int) -> None:
    """SIGKILL to a child's process group, and to the child in case it has not left ours yet."""
    with contextlib.suppress(OSError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


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
