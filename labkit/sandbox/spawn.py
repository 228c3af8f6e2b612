"""A child without a server: a fresh interpreter by `subprocess`, where we cannot fork, that is not on Linux.

It has not been run on Windows or macOS; the tests run it on Linux. There what the child itself has started in another
session may outlive it (on Windows, all that it has started). When this process is killed, the child ends with the next
event that it yields.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from . import worker


class Spawned:
    """One child, with the methods of `Forked`. `feed` gets ("events" | "stdout" | "stderr", bytes), from threads.

    `returncode` is the exit code (on POSIX minus a signal's number), or None while the child lives.
    """

    fresh, lost = True, False

    def __init__(self, environment: dict[str, str], file: Any, feed: Callable[[str, bytes], None]):
        ours, theirs = os.pipe()
        events = open(ours, "rb", 0)  # noqa: SIM115 - its reader closes it
        with open(theirs, "wb", 0):
            self._process = _popen(environment, file, theirs)
        self.pid = self._process.pid
        self.returncode: int | None = None
        atexit.register(self.kill)
        sources: dict[str, Any] = {"events": events, "stdout": self._process.stdout, "stderr": self._process.stderr}
        self._readers = [threading.Thread(target=_pump, args=(*s, feed), daemon=True) for s in sources.items()]
        for reader in self._readers:
            reader.start()

    def poll(self, timeout: float) -> bool:
        """Wait for the end for at most `timeout` seconds. True when the child is dead."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.returncode = self._process.wait(timeout)
        return self.returncode is not None

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self.pid, signal.SIGKILL)

    def dump(self) -> None:
        """Nothing: only Linux has a signal for it."""

    def close(self) -> None:
        """End what the child has left running, and with it the readers of its pipes."""
        self.kill()
        atexit.unregister(self.kill)
        for reader in self._readers:
            reader.join(2)


def _pump(name: str, source: Any, feed: Callable[[str, bytes], None]) -> None:
    with source:
        while data := os.read(source.fileno(), 1 << 16):
            feed(name, data)


def _popen(environment: dict[str, str], file: Any, events: int) -> subprocess.Popen[bytes]:
    options: Any = {"pass_fds": [events], "start_new_session": True}
    descriptor = str(events)
    if sys.platform == "win32":  # descriptors are not inherited there, handles are
        import msvcrt

        handle = msvcrt.get_osfhandle(events)
        os.set_handle_inheritable(handle, True)
        options = {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})}
        options["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        descriptor = f"__import__('msvcrt').open_osfhandle({handle}, 1)"
    command = worker.interpreter(f"from labkit.sandbox.worker import main; main({descriptor})")
    pipe = subprocess.PIPE
    return subprocess.Popen(command, bufsize=0, stdin=file, stdout=pipe, stderr=pipe, env=environment, **options)
