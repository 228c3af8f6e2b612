"""A child without a server: a fresh interpreter by `subprocess`, where there is no fork, that is on Windows.

It has not been run on Windows; the tests run it on Linux. On Windows what the child itself has started may outlive a
killed child, since there is no process group to kill, and nothing ends the child when this process dies.
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

from . import worker


class Spawned:
    """One child. `feed` gets ("events" | "stdout" | "stderr", bytes), from a thread for each of the three.

    `returncode` is the exit code (on POSIX minus a signal's number), or None while the child lives. It has the methods
    of `Forked`.
    """

    fresh, lost = True, False

    def __init__(self, environment: dict[str, str], file: Any, feed: Callable[[str, bytes], None]):
        ours, theirs = os.pipe()
        try:
            self._process = _popen(environment, file, theirs)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        # its reader closes it
        events = open(ours, "rb", 0)  # noqa: SIM115
        sources: dict[str, Any] = {
            "events": events,
            "stdout": self._process.stdout,
            "stderr": self._process.stderr,
        }
        self.pid = self._process.pid
        self.returncode: int | None = None
        self._readers = [
            threading.Thread(target=_pump, args=(name, source, feed), daemon=True)
            for name, source in sources.items()
        ]
        for reader in self._readers:
            reader.start()

    def poll(self, timeout: float) -> bool:
        """Wait for the end for at most `timeout` seconds. True when the child is dead."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.returncode = self._process.wait(timeout)
        return self.returncode is not None

    def kill(self) -> None:
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._process.kill()

    def dump(self) -> None:
        """Have the child write its Python traceback into the job's file and die, where a signal can do that."""
        if worker.DUMP_SIGNAL is not None:
            with contextlib.suppress(OSError):
                self._process.send_signal(worker.DUMP_SIGNAL)

    def close(self) -> None:
        """End what the child has left running, and with it the readers of its pipes."""
        self.kill()
        for reader in self._readers:
            reader.join(2)


def _pump(name: str, source: Any, feed: Callable[[str, bytes], None]) -> None:
    with source, contextlib.suppress(OSError, ValueError):
        while data := os.read(source.fileno(), 1 << 16):
            feed(name, data)


def _popen(environment: dict[str, str], file: Any, events: int) -> subprocess.Popen[bytes]:
    begin = "from labkit.sandbox.worker import main; main"
    options: dict[str, Any] = {"stdin": file, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options |= {"env": environment, "bufsize": 0}
    if sys.platform != "win32":
        command = worker.interpreter(f"{begin}({events})")
        return subprocess.Popen(command, pass_fds=[events], start_new_session=True, **options)
    import msvcrt

    # descriptors are not inherited there, handles are
    handle = msvcrt.get_osfhandle(events)
    os.set_handle_inheritable(handle, True)
    return subprocess.Popen(
        worker.interpreter(f"import msvcrt; {begin}(msvcrt.open_osfhandle({handle}, 1))"),
        startupinfo=subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]}),
        creationflags=subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW,
        **options,
    )
