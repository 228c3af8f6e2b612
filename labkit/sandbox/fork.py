"""A child of the server, as its caller has it: its pipes, its end, and the way to kill it."""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import time
from collections.abc import Callable
from typing import Any

from .job import Job
from .keeper import CAN_FORK, DUMP, ENDED, FORK, FRESH, KILL, STARTED, STATUS, kill_group
from .server import Server, current_server, import_time


def fork(job: Job, file: Any, feed: Callable[[str, bytes], None]) -> Forked:
    """Write the job into `file` and hand it to the server."""
    with current_server() as server:
        wanted, have = job.environment, server.environment
        change = {name: wanted.get(name) for name in {*wanted, *have} if wanted.get(name) != have.get(name)}
        fresh = import_time(wanted) != import_time(have) if job.fresh is None else job.fresh
        job.write(file, change)
        return Forked(server, file, fresh or not CAN_FORK, feed)


class Forked:
    """The caller's end of one child of the server. `feed` gets ("events" | "stdout" | "stderr", bytes).

    Used by one thread, except `kill` and `dump`, which any thread may call. `returncode` is the exit code, or
    minus a signal's number; None when it is not known, because the child lives or because the server died.
    """

    def __init__(self, server: Server, file: Any, fresh: bool, feed: Callable[[str, bytes], None]):
        self.server, self.fresh, self.number = server, fresh, next(server.numbers)
        self.pid: int | None = None
        self.returncode: int | None = None
        self.lost = False  # the server died before it could report
        self._feed = feed
        self._selector = selectors.DefaultSelector()
        theirs: dict[str, int] = {}
        try:
            for name in ("stdout", "stderr", "events", "status"):
                ours, theirs[name] = os.pipe()
                os.set_blocking(ours, False)
                self._selector.register(ours, selectors.EVENT_READ, name)
            _widen(theirs["events"])
            # when the server has just died, the end of our pipes says so
            with contextlib.suppress(ConnectionError):
                server.send(FRESH if fresh else FORK, self.number, [file.fileno(), *theirs.values()])
            server.busy.add(self.number)
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in theirs.values():
                os.close(descriptor)

    def poll(self, timeout: float) -> bool:
        """Wait for news for at most `timeout` seconds and feed it. True when the child is dead or lost."""
        for key, _ in self._selector.select(timeout):
            self._read(key)
        ended = self.lost or self.returncode is not None
        if ended:
            self._rest()
        return ended

    def _rest(self) -> None:
        """Feed what the dead child left in its pipes. A lost one may not be dead yet: it has a second for that."""
        end = time.monotonic() + 1.0
        while self._selector.get_map() and (left := end - time.monotonic()) > 0:
            news = self._selector.select(left if self.lost else 0)
            if not news:
                return
            for key, _ in news:
                self._read(key)

    def _read(self, key: selectors.SelectorKey) -> None:
        try:
            data = os.read(key.fd, 1 << 18)
        except BlockingIOError:
            return
        if key.data == "status":
            self._status(data)
        elif data:
            self._feed(key.data, data)
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
        """Have the child write its Python traceback into the job's file and die, from C, even while it hangs."""
        with contextlib.suppress(OSError):
            self.server.send(DUMP, self.number)

    def close(self) -> None:
        self.server.busy.discard(self.number)
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()


def _widen(pipe: int) -> None:
    """A larger pipe, so that a burst of events need not wait for its reader (Linux; 1 MiB is allowed to all)."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
