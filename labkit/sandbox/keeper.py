"""The server's process, on Linux: it imports torch once and then forks a child per run in milliseconds.

It is small and has one thread. It imports and never computes: a fork after OpenMP or CUDA has started would hang or
fail. It reaps its children, and when the caller goes away, however it goes, it kills every one of them together with
whatever they started. It does not know what a run is; it moves file descriptors and reports wait statuses.
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
from typing import NoReturn

from labkit.common import uncollected

from . import worker

# The caller asks: what, and which child. FORK and FRESH carry five file descriptors.
REQUEST = struct.Struct("<BQ")
FORK, FRESH, KILL, DUMP = 1, 2, 3, 4

# We answer into the child's status pipe, when it has ended: its wait status.
STATUS = struct.Struct("<q")

# linux/prctl.h
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Keeper:
    """Waits for requests and for deaths, and does one thing at a time."""

    def __init__(self, control: int):
        self.control = socket.socket(fileno=control)
        self.pids: dict[int, int] = {}  # child's number -> pid
        self.status: dict[int, int] = {}  # pid -> the write end of its status pipe
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.wake, self.waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans of a dead child come to us, to be killed

    def serve(self, preload: tuple[str, ...]) -> NoReturn:
        """Import `preload`, then fork on request until the caller's end of the control socket closes."""
        self._import(preload)
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
                if what in (FORK, FRESH):
                    self._fork(number, descriptors, fresh=what == FRESH)
                elif what == KILL and number in self.pids:
                    kill_group(self.pids[number])
                elif what == DUMP and number in self.pids:
                    os.kill(self.pids[number], worker.DUMP_SIGNAL)

    def _import(self, preload: tuple[str, ...]) -> None:
        """Best effort: a module that cannot be imported is the run's problem, not the server's."""
        # so that a module that asks torch.cuda.is_available() leaves CUDA alone
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        for name in preload:
            try:
                with uncollected():
                    __import__(name)
            except BaseException as error:
                print(f"preload of {name} left out: {type(error).__name__}: {error}", flush=True)
        gc.freeze()  # children then share these pages instead of touching them

    def _fork(self, number: int, descriptors: list[int], fresh: bool) -> None:
        """Start a child. Of its descriptors only the status pipe stays open here, for as long as it lives."""
        *streams, status = descriptors
        server = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():  # Python 3.12 warns of threads: numpy's BLAS has idle ones
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                self._become_child(descriptors, server, fresh)
            finally:
                os._exit(70)  # EX_SOFTWARE: only reached when becoming a child failed
        self.pids[number], self.status[pid] = pid, status
        for descriptor in streams:
            os.close(descriptor)

    def _become_child(self, descriptors: list[int], server: int, fresh: bool) -> None:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)  # its own daemons stay below it while it lives
        if os.getppid() != server:
            return  # the server died before the line above
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stdin, stdout, stderr, events, status = descriptors
        for standard, source in enumerate((stdin, stdout, stderr)):
            os.dup2(source, standard)
        for theirs in (stdin, stdout, stderr, status, self.wake, self.waker, *self.status.values()):
            os.close(theirs)
        self.control.close()
        if not fresh:
            worker.main(events)
        job = worker.read_job()
        os.set_inheritable(events, True)
        sys.path[:] = job["path"]
        command = worker.interpreter(f"from labkit.sandbox.worker import main; main({events})")
        os.execve(command[0], command, job["environment"])

    def _reap(self) -> None:
        """Report every child that has died, after killing what is left of its process group."""
        with contextlib.suppress(ChildProcessError):  # there is no child at all
            while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if dead.si_pid in self.status:  # while a leader is not reaped its group's number is its own
                    kill_group(dead.si_pid)
                pid, status = os.waitpid(dead.si_pid, 0)
                if pid in self.status:
                    self.pids = {number: p for number, p in self.pids.items() if p != pid}
                    pipe = self.status.pop(pid)
                    with contextlib.suppress(OSError):  # the caller may have closed its end
                        os.write(pipe, STATUS.pack(status))
                    os.close(pipe)
                self._kill_strays()

    def _kill_strays(self) -> None:
        """Kill what a dead child had started in other sessions: as their subreaper we are now the parent."""
        with contextlib.suppress(OSError):
            with open(f"/proc/self/task/{os.getpid()}/children") as file:  # proc(5)
                ours = [int(word) for word in file.read().split()]
            for pid in ours:
                if pid not in self.status:
                    os.kill(pid, signal.SIGKILL)

    def _end(self) -> NoReturn:
        """Kill every child and what they started, wait until all are dead, and end."""
        for pid in self.status:
            kill_group(pid)
        with contextlib.suppress(ChildProcessError):  # there is none left
            while True:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
                self._reap()
        os._exit(0)


def kill_group(pid: int) -> None:
    """SIGKILL to a child's process group, and to the child in case it has not left ours yet."""
    with contextlib.suppress(OSError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
