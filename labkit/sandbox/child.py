"""One function at work in a process of its own: its events, its limits, its end.

A thread of this process, the watcher, starts the child, reads what it says and holds it to its limits. How a process
comes to be is the business of `server` and `spawn`; what its end is called, that of `evidence`.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from labkit.events import Lost, Outcome, Run

from . import evidence, server, worker
from .job import Job, Limits
from .spawn import Spawned

START_LIMIT = 120.0  # seconds until a child must be ready to run
DUMP_GRACE = 0.1  # seconds between asking a timed-out child where it is and killing it
KILL_LIMIT = 10.0  # seconds after a kill until we stop waiting for the process (a driver may hold it)
LOOK = 0.05  # seconds between two looks at whether the child was stopped


class SandboxError(RuntimeError):
    """The sandbox itself failed, as opposed to what ran in it."""


class Child:
    """A function at work in its own process and session. Made by `start`; a `with` block stops it at its end."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        settings: Mapping[str, Any],
        threads: int | None = None,
    ):
        limits, kwargs = Limits.take(settings)
        self._job, self._timeout = Job(function, args, kwargs, limits, threads), limits.timeout
        self.meta = self._job.meta
        self._process: server.Forked | Spawned | None = None

        # How far it has come.
        self._began = time.monotonic()  # when it was launched or ready to run: the last of these
        self._ready = False
        self._reason = self._message = ""  # why we kill it, "stopped" or "timeout", and in words

        # What it said.
        self._streams = {"stdout": evidence.Capture(), "stderr": evidence.Capture()}
        self._buffer = bytearray()
        self._pickles: list[bytes] = []  # an event each, in order; emptied as they are decoded
        self._events: list[Any] = []
        self._told = 0
        self._ending: dict[str, Any] | None = None  # the child's own report

        # How it ended.
        self._outcome: Outcome | BaseException | None = None

        self._claim = threading.Lock()  # whoever takes it, the watcher or an early `stop`, ends the child
        self._decoding = threading.Lock()
        self._news = threading.Event()
        self._done = threading.Event()

    def launch(self) -> None:
        """Begin, and return at once. A second call does nothing, nor does one after `stop`."""
        threading.Thread(target=self._watch, name=f"labkit-{self.meta['function']}", daemon=True).start()

    def drain(self) -> list[Any]:
        """The events that have arrived since the last call. Never blocks."""
        self._decode()
        told, self._told = self._told, len(self._events)
        return self._events[told : self._told]

    @property
    def pid(self) -> int | None:
        """Of its process; None before that has started."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return not self._done.is_set()

    def stop(self) -> None:
        """Kill the child and all it has started. Returns within 0.3 s; a second call does nothing."""
        if self._done.is_set():
            return
        self._reason = self._reason or "stopped"
        if self._claim.acquire(blocking=False):  # it was never launched
            self._end(Outcome("stopped", exit_code=None))
            return
        if self._process is not None:
            self._process.kill()
        self._done.wait(0.25)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end for at most `timeout` seconds. True when the child has ended."""
        return self._done.wait(timeout)

    def wait_for_news(self, timeout: float | None = None) -> bool:
        """Wait until events have arrived or the child has ended. True when it has ended."""
        self._news.wait(timeout)
        self._news.clear()
        return self._done.is_set()

    def result(self) -> Run:
        """Wait for the end.

        Returns all events and the outcome.
        Raises: SandboxError when no child could be started.
        """
        self._done.wait()
        if not isinstance(self._outcome, Outcome):
            raise SandboxError(f"the sandbox could not start a process: {self._outcome}") from self._outcome
        self._decode()
        return Run(list(self._events), self._outcome, dict(self.meta))

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------------------------------------------ the watcher

    def _watch(self) -> None:
        """In a thread of its own: start the child, read it, hold it to its limits, record its end."""
        if not self._claim.acquire(blocking=False):
            return
        self._began = time.monotonic()
        try:
            # it takes the job to the child and its traceback back
            with tempfile.TemporaryFile() as file:
                code = self._live(file)
                file.seek(len(self._job.pickled))
                outcome = evidence.judge(
                    code=code,
                    ending=self._ending,
                    reason=self._reason,
                    message=self._message,
                    seconds=time.monotonic() - self._began,
                    traceback=evidence.where(file.read(1 << 16).decode("utf-8", "replace")),
                    **{name: stream.text() for name, stream in self._streams.items()},
                )
            self._end(outcome)
        except BaseException as error:
            self._end(error)

    def _end(self, how: Outcome | BaseException) -> None:
        """Say how it ended, and wake all who wait for that."""
        self._outcome = how
        self._done.set()
        self._news.set()

    def _live(self, file: Any) -> int | None:
        """From the start of a process to its exit code (minus a signal's number), None when nobody knows."""
        file.write(self._job.pickled)
        file.flush()
        if not server.HAS_SERVER:
            return self._follow(Spawned(self._job.environment, file, self._feed))
        for _ in range(2):
            with server.current_server() as current:
                process = server.Forked(current, self._job, file, self._feed)
            code = self._follow(process)
            if not process.lost or self._reason or self._ready:
                return code
            # The server died first. Nothing has run and nothing can: our ends of the pipes are closed.
        raise SandboxError(f"its server died. It said: {current.last_words() or 'nothing'}")

    def _follow(self, process: server.Forked | Spawned) -> int | None:
        """Read one process to its end."""
        self._process = process
        self.meta["process"] = "fresh" if process.fresh else "fork"
        with contextlib.closing(process):
            self._hold(process)
        return process.returncode

    def _hold(self, process: server.Forked | Spawned) -> None:
        """Read one process and hold it to its limits, phase by phase."""
        # starting
        if self._ends(process, START_LIMIT, lambda: self._ready or self._reason):
            return
        # running
        if self._ready and self._ends(process, self._timeout, lambda: self._reason):
            return
        # timed out, unless it was stopped: asked where it is
        if not self._reason:
            self._reason = "timeout"
            self._message = f"the process was not ready to run after {START_LIMIT:g} s"
            if self._ready:
                self._message = f"still running after {self._timeout:g} s"
            process.dump()
            if self._ends(process, DUMP_GRACE):
                return
        # killed; one that is not born yet will find its pipes closed, and run nothing
        process.kill()
        if process.pid is None or self._ends(process, KILL_LIMIT):
            return
        # given up
        self._message = f"{self._message or 'stopped'}; the kernel has not released the process yet"

    def _ends(self, process: server.Forked | Spawned, at_most: float | None, unless: Any = lambda: False) -> bool:
        """Read a process until it ends (True), but at most so many seconds, None for no limit, and until `unless()`."""
        deadline = math.inf if at_most is None else time.monotonic() + at_most
        while (left := deadline - time.monotonic()) > 0:
            if process.poll(min(LOOK, left)):
                return True
            if unless():
                break
        return False

    def _feed(self, name: str, data: bytes) -> None:
        """Take what came out of one of the child's pipes."""
        if name != "events":
            self._streams[name].feed(data)
            return
        self._buffer += data
        for kind, body in worker.frames(self._buffer):
            if kind == worker.EVENT:
                self._pickles.append(body)
            elif kind == worker.READY:
                self._ready, self._began = True, time.monotonic()
            else:
                self._ending = pickle.loads(body)
        self._news.set()

    def _decode(self) -> None:
        """Unpickle what has arrived, one by one, so that an interrupt between two loses none."""
        with self._decoding:
            while (index := len(self._events)) < len(self._pickles):
                body = self._pickles[index]
                try:
                    event = pickle.loads(body)
                except Exception as error:
                    event = Lost(f"{type(error).__name__}: {error}", len(body))
                self._events.append(event)
                self._pickles[index] = b""
