"""One function at work in a process of its own: its events, its limits, its end.

A thread of this process, the watcher, starts the child, reads what it says and holds it to its limits. How a process
comes to be is the business of `fork` and `spawn`; what its end is called, that of `evidence`.
"""

from __future__ import annotations

import math
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

from labkit.events import Lost, Outcome, Run

from . import evidence, server, worker
from .fork import Forked, fork
from .job import Job, job_file
from .limits import Limits
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
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], limits: Limits
    ):
        self._job, self._timeout = Job(function, args, kwargs, limits), limits.timeout
        self.meta = self._job.meta
        self._process: Forked | Spawned | None = None

        # How far it has come.
        self._began = time.monotonic()  # when it was made, launched or ready to run: the last of these
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
        self._outcome: Outcome | None = None
        self._failure: BaseException | None = None

        self._claim = threading.Lock()  # whoever takes it, the watcher or an early `stop`, ends the child
        self._decoding = threading.Lock()
        self._news = threading.Event()
        self._done = threading.Event()

    # ------------------------------------------------------------------------------------------- what callers use

    def launch(self) -> None:
        """Begin, and return at once. A second call does nothing, nor does one after `stop`."""
        threading.Thread(target=self._watch, name=f"labkit-{self.meta['function']}", daemon=True).start()

    def drain(self) -> list[Any]:
        """The events that have arrived since the last call. Never blocks."""
        self._decode()
        told, self._told = self._told, len(self._events)
        return self._events[told : self._told]

    @property
    def alive(self) -> bool:
        return not self._done.is_set()

    @property
    def pid(self) -> int | None:
        """The child's process id once it is known; it is also its process group's and its session's."""
        return self._process.pid if self._process is not None else None

    def stop(self) -> None:
        """Kill the child and all it has started. Returns within 0.3 s; a second call does nothing."""
        if self._done.is_set():
            return
        self._reason = self._reason or "stopped"
        if self._claim.acquire(blocking=False):  # it was never launched
            self._outcome = Outcome("stopped", exit_code=None)
            self._tell()
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
        if self._failure is not None:
            raise SandboxError(f"the sandbox could not start a process: {self._failure}") from self._failure
        self._decode()
        assert self._outcome is not None
        return Run(list(self._events), self._outcome, dict(self.meta))

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "alive" if self.alive else self._outcome.signature if self._outcome else "failed"
        return f"Child({self.meta['function']}, {len(self._pickles)} events, {state})"

    # ------------------------------------------------------------------------------------------------ the watcher

    def _watch(self) -> None:
        """In a thread of its own: start the child, read it, hold it to its limits, record its end."""
        if not self._claim.acquire(blocking=False):
            return
        self._began = time.monotonic()
        try:
            with job_file() as file:
                code = self._live(file)
                file.seek(0)
                self._outcome = self._judge(code, file.read(1 << 16))
        except BaseException as error:
            self._failure = error
        finally:
            self._tell()

    def _live(self, file: Any) -> int | None:
        """From the start of a process to its exit code (minus a signal's number), None when nobody knows."""
        if not server.HAS_SERVER:
            self._job.write(file, {})
            return self._follow(Spawned(self._job.environment, file, self._feed))
        for _ in range(2):
            process = fork(self._job, file, self._feed)
            code = self._follow(process)
            if not process.lost or self._reason or self._ready:
                return code
            # The server died first. Nothing has run and nothing can: our ends of the pipes are closed.
        raise SandboxError(f"its server died. It said: {process.server.last_words() or 'nothing'}")

    def _follow(self, process: Forked | Spawned) -> int | None:
        """Read one process to its end."""
        self._process = process
        self.meta["process"] = "fresh" if process.fresh else "fork"
        try:
            self._hold(process)
        finally:
            process.close()
        return process.returncode

    def _hold(self, process: Forked | Spawned) -> None:
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
            if self._ready:
                self._message = f"still running after {self._timeout:g} s"
            else:
                self._message = f"the process was not ready to run after {START_LIMIT:g} s"
            process.dump()
            if self._ends(process, DUMP_GRACE):
                return
        # killed; one that is not born yet will find its pipes closed, and run nothing
        process.kill()
        if process.pid is None or self._ends(process, KILL_LIMIT):
            return
        # given up
        self._message = f"{self._message or 'stopped'}; the kernel has not released the process yet"

    def _ends(self, process: Forked | Spawned, at_most: float | None, unless: Any = lambda: False) -> bool:
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

    # ------------------------------------------------------------------------------------------------ the end

    def _judge(self, code: int | None, trace: bytes) -> Outcome:
        return evidence.judge(
            code=code,
            ending=self._ending,
            reason=self._reason,
            message=self._message,
            seconds=time.monotonic() - self._began,
            traceback=evidence.where(trace.decode("utf-8", "replace")),
            **{name: stream.text() for name, stream in self._streams.items()},
        )

    def _tell(self) -> None:
        """Wake all who wait for the end."""
        self._done.set()
        self._news.set()
