"""A child without a server: a fresh interpreter by `subprocess`, for Windows, where there is no fork.

On Windows a job object holds the child and everything it starts, and closes with this process: no child
outlives its parent. `Spawned` also runs on POSIX (a process group in place of the job), which is how it is tested.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from .server import interpreter

WINDOWS = sys.platform == "win32"


class Spawned:
    """One child. `feed` gets ("events" | "stdout" | "stderr", bytes) from reader threads."""

    def __init__(self, job: Any, environment: dict[str, str], feed: Callable[[str, bytes], None]):
        read, write = os.pipe()
        try:
            self.process = _popen(job, environment, write)
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        self._job = _Job(self.process) if WINDOWS else None
        assert self.process.stdout is not None and self.process.stderr is not None
        sources = {
            "events": open(read, "rb", 0),  # noqa: SIM115 - its reader closes it
            "stdout": self.process.stdout,
            "stderr": self.process.stderr,
        }
        self._readers = [
            threading.Thread(target=_pump, args=(name, source, feed), daemon=True)
            for name, source in sources.items()
        ]
        for reader in self._readers:
            reader.start()

    def wait(self, timeout: float) -> int | None:
        """The exit code (minus a signal's number on POSIX), or None while the child lives."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self.kill()  # what it started ends with it, and so do the readers
        for reader in self._readers:
            reader.join(2)
        if self._job is not None:
            self._job.close()
        return code

    def kill(self) -> None:
        if self._job is not None:
            self._job.kill()
        elif not WINDOWS:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.returncode is None:
            with contextlib.suppress(OSError):
                self.process.kill()


def _pump(name: str, source: Any, feed: Callable[[str, bytes], None]) -> None:
    with source, contextlib.suppress(OSError, ValueError):
        while data := os.read(source.fileno(), 1 << 16):
            feed(name, data)


def _popen(job: Any, environment: dict[str, str], events: int) -> subprocess.Popen[bytes]:
    streams: dict[str, Any] = {"stdin": job, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if sys.platform == "win32":
        import msvcrt

        handle = msvcrt.get_osfhandle(events)
        os.set_handle_inheritable(handle, True)
        startup = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})
        start = (
            f"import msvcrt; from labkit.sandbox.worker import main; main(msvcrt.open_osfhandle({handle}, 1))"
        )
        return subprocess.Popen(
            interpreter(start),
            env=environment,
            startupinfo=startup,
            bufsize=0,
            creationflags=subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW,
            **streams,
        )
    return subprocess.Popen(
        interpreter(f"from labkit.sandbox.worker import main; main({events})"),
        env=environment,
        pass_fds=[events],
        bufsize=0,
        start_new_session=True,
        **streams,
    )


class _Job:
    """A Windows job object that kills its processes when its last handle closes (winnt.h, jobapi2.h)."""

    KILL_ON_JOB_CLOSE, EXTENDED_LIMIT_INFORMATION = 0x2000, 9

    def __init__(self, process: subprocess.Popen[bytes]):
        if sys.platform == "win32":
            import ctypes
            from ctypes import wintypes

            class Basic(ctypes.Structure):
                _fields_ = [
                    ("PerProcessUserTimeLimit", wintypes.LARGE_INTEGER),
                    ("PerJobUserTimeLimit", wintypes.LARGE_INTEGER),
                    ("LimitFlags", wintypes.DWORD),
                    ("MinimumWorkingSetSize", ctypes.c_size_t),
                    ("MaximumWorkingSetSize", ctypes.c_size_t),
                    ("ActiveProcessLimit", wintypes.DWORD),
                    ("Affinity", ctypes.c_size_t),
                    ("PriorityClass", wintypes.DWORD),
                    ("SchedulingClass", wintypes.DWORD),
                ]

            class Extended(ctypes.Structure):
                _fields_ = [
                    ("BasicLimitInformation", Basic),
                    ("IoInfo", ctypes.c_ulonglong * 6),
                    ("ProcessMemoryLimit", ctypes.c_size_t),
                    ("JobMemoryLimit", ctypes.c_size_t),
                    ("PeakProcessMemoryUsed", ctypes.c_size_t),
                    ("PeakJobMemoryUsed", ctypes.c_size_t),
                ]

            self._kernel = ctypes.WinDLL("kernel32", use_last_error=True)
            self._kernel.CreateJobObjectW.restype = wintypes.HANDLE
            self._handle = wintypes.HANDLE(self._kernel.CreateJobObjectW(None, None))
            limits = Extended()
            limits.BasicLimitInformation.LimitFlags = self.KILL_ON_JOB_CLOSE
            self._kernel.SetInformationJobObject(
                self._handle, self.EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
            )
            child = wintypes.HANDLE(int(process._handle))  # type: ignore[attr-defined]
            if not self._kernel.AssignProcessToJobObject(self._handle, child):
                process.kill()
                raise ctypes.WinError(ctypes.get_last_error())

    def kill(self) -> None:
        if sys.platform == "win32" and self._handle is not None:
            self._kernel.TerminateJobObject(self._handle, 1)

    def close(self) -> None:
        if sys.platform == "win32" and self._handle is not None:
            self._kernel.CloseHandle(self._handle)
            self._handle = None
