"""One function at work in a process of its own: its events, its limits, its end.

A thread of this process, the watcher, starts the child, reads what it says and holds it to its limits. How a process
comes to be is the business of `fork` and `spawn`; what its end is called, that of `evidence`.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from enum import IntEnum
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


class SandboxError(RuntimeError):
    """The sandbox itself failed, as opposed to what ran in it."""


class Phase(IntEnum):
    """How far a child has come. Its watcher goes from one to a later one (`Child._tick`), never back.

    STARTING   until the child says that it is ready, at most START_LIMIT
    RUNNING    until it ends, at most its `timeout`
    TIMED_OUT  asked where it is; killed after DUMP_GRACE
    KILLED     until it is dead, at most KILL_LIMIT
    GIVEN_UP   nobody waits for it
    """

    STARTING, RUNNING, TIMED_OUT, KILLED, GIVEN_UP = range(5)


class Child:
    """A function at work in its own process and session. Made by `start`; a `with` block stops it at its end."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], limits: Limits
    ):
        self._job, self._timeout = Job(function, args, kwargs, limits), limits.timeout
        self.meta = self._job.meta
        self._process: Forked | Spawned | None = None

        # How far it has come, in seconds of time.monotonic().
        self._phase = Phase.STARTING
        self._deadline: float | None = None  # when the phase has lasted too long; None for never
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
        self._enter(Phase.STARTING, START_LIMIT)
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
        """Read one process to its end, or until there is no use in waiting for it."""
        self._process = process
        self.meta["process"] = "fresh" if process.fresh else "fork"
        try:
            while not process.poll(self._tick(process)):
                if self._phase is Phase.GIVEN_UP:
                    break
        finally:
            process.close()
        return process.returncode

    def _tick(self, process: Forked | Spawned) -> float:
        """Go on to the next phase if it is time for that. Seconds until the next look."""
        if self._reason == "stopped" and self._phase < Phase.KILLED:
            self._kill(process)
        elif self._phase is Phase.STARTING and self._ready:
            self._enter(Phase.RUNNING, self._timeout)
        elif self._deadline is not None and time.monotonic() >= self._deadline:
            self._overdue(process)
        # not for longer: `stop`, in another thread, does not wake us
        look = 0.05 if self._phase is Phase.STARTING else 0.5
        return look if self._deadline is None else max(0.0, min(look, self._deadline - time.monotonic()))

    def _overdue(self, process: Forked | Spawned) -> None:
        """What happens when the phase has lasted too long."""
        match self._phase:
            case Phase.STARTING:
                self._time_out(process, f"the process was not ready to run after {START_LIMIT:g} s")
            case Phase.RUNNING:
                self._time_out(process, f"still running after {self._timeout:g} s")
            case Phase.TIMED_OUT:
                self._kill(process)
            case Phase.KILLED:
                self._message = f"{self._message or 'stopped'}; the kernel has not released the process yet"
                self._enter(Phase.GIVEN_UP, 0.0)

    def _time_out(self, process: Forked | Spawned, message: str) -> None:
        self._reason, self._message = "timeout", message
        self._enter(Phase.TIMED_OUT, DUMP_GRACE)
        process.dump()

    def _kill(self, process: Forked | Spawned) -> None:
        process.kill()
        if process.pid is None:  # not born yet; it will find its pipes closed, and run nothing
            self._enter(Phase.GIVEN_UP, 0.0)
        else:
            self._enter(Phase.KILLED, KILL_LIMIT)

    def _enter(self, phase: Phase, at_most: float | None) -> None:
        """Be in `phase`, for `at_most` so many seconds; None for no limit."""
        self._phase = phase
        self._deadline = None if at_most is None else time.monotonic() + at_most

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
