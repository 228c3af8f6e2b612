"""One function at work in a process of its own: its events, its limits, its end.

A thread of this process, the watcher, starts the child, reads what it sends and holds it to its limits: `Child._watch`
is the whole way of a call, step by step.
"""

from __future__ import annotations

import contextlib
import pickle
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from labkit.events import Lost, Outcome, Run

from . import evidence, server, worker
from .job import Job
from .spawn import Spawned

START_LIMIT = 120.0  # seconds until a child must be ready to run
DUMP_GRACE = 0.1  # seconds between asking a timed-out child where it is and killing it
KILL_LIMIT = 10.0  # seconds after a kill until we stop waiting for the process (a driver may hold it)
LOOK = 0.05  # seconds between two looks at whether the child was stopped


class SandboxError(RuntimeError):
    """The sandbox itself failed, as opposed to what ran in it."""


class Child:
    """A job at work in its own process and session. Made by `start`; a `with` block stops it at its end."""

    def __init__(self, job: Job):
        self._job, self.meta = job, job.meta
        self._process: server.Forked | Spawned | None = None

        # How far it has come.
        self._began = time.monotonic()  # when it was launched or ready to run: the last of these
        self._ready = False
        self._reason = self._message = ""  # why we kill it, "stopped" or "timeout", and in words

        # What it sent.
        self._streams = {"stdout": evidence.Capture(), "stderr": evidence.Capture()}
        self._buffer = bytearray()
        self._events: list[Any] = []
        self._drained = 0  # how many of them `drain` has given away
        self._ending: dict[str, Any] | None = None  # the child's own report

        # How it ended.
        self._outcome: Outcome | BaseException | None = None

        self._claim = threading.Lock()  # whoever takes it, the watcher or an early `stop`, ends the child
        self._news = threading.Event()
        self._done = threading.Event()

    def launch(self, at_end: Callable[[], object] | None = None) -> None:
        """Begin, and return at once; `at_end` is called from another thread. After `stop` nothing begins."""
        name = f"labkit-{self.meta['function']}"
        threading.Thread(target=self._watch, args=[at_end], name=name, daemon=True).start()

    def drain(self) -> list[Any]:
        """The events that have arrived since the last call. Never blocks."""
        start, self._drained = self._drained, len(self._events)
        return self._events[start : self._drained]

    @property
    def pid(self) -> int | None:
        """Of its process; None before that is ready to run."""
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

    def wait_for_news(self) -> bool:
        """Wait until events have arrived or the child has ended. True when it has ended."""
        self._news.wait()
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
        return Run(list(self._events), self._outcome, dict(self.meta))

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------------------------------------------ the watcher

    def _watch(self, at_end: Callable[[], object] | None) -> None:
        """The way of a call, from the job to its outcome, in a thread of its own."""
        if not self._claim.acquire(blocking=False):
            return
        self._began = time.monotonic()
        try:
            # 1. `Job` has pickled the call. A file takes it to the child, and brings the child's traceback back.
            with tempfile.TemporaryFile() as file:
                file.write(self._job.pickled)
                file.flush()
                # 2. A process starts. On Linux the server forks it (`server.Forked` asks, `keeper` forks), elsewhere
                #    `spawn` starts an interpreter.
                # 3. In it `worker.main` reads the job, writes READY, calls the function and writes each event and the
                #    end. `_feed` takes them out of the pipe and unpickles the events.
                # 4. This thread reads all that until the process is dead, and kills it when its time is up.
                for _ in range(2):
                    process = self._start_process(file)
                    self._hold(process)
                    if not process.lost or self._reason or self._ready:
                        break
                    # The server died first. Nothing has run and nothing can: our ends of the pipes are closed.
                else:
                    raise SandboxError(f"its server died. Its last words: {process.server.last_words() or 'nothing'}")
                # 5. What it left behind gives the death its name.
                file.seek(len(self._job.pickled))
                outcome = evidence.judge(
                    code=process.returncode,
                    ending=self._ending,
                    reason=self._reason,
                    message=self._message,
                    seconds=time.monotonic() - self._began,
                    traceback=evidence.where(file.read(1 << 16).decode("utf-8", "replace")),
                    stdout=self._streams["stdout"].text(),
                    stderr=self._streams["stderr"].text(),
                )
            self._end(outcome)
        except BaseException as error:
            self._end(error)
        if at_end is not None:
            at_end()

    def _end(self, how: Outcome | BaseException) -> None:
        """Say how it ended, and wake all who wait for that."""
        self._outcome = how
        self._done.set()
        self._news.set()

    def _start_process(self, file: Any) -> Any:
        """A `Forked` or a `Spawned`, whose standard input is the file."""
        if server.HAS_SERVER:
            with server.current_server() as current:
                self._process = server.Forked(current, self._job, file, self._feed)
        else:
            self._process = Spawned(self._job.environment, file, self._feed)
        self.meta["process"] = "fresh" if self._process.fresh else "fork"
        return self._process

    def _hold(self, process: server.Forked | Spawned) -> None:
        """Read one process to its end, and end it when it is stopped or out of time."""
        with contextlib.closing(process):
            while not self._reason:
                if process.poll(LOOK):
                    return
                limit = self._job.timeout if self._ready else START_LIMIT
                if limit is not None and time.monotonic() > self._began + limit:
                    self._reason, self._message = "timeout", f"the process was not ready to run after {limit:g} s"
                    if self._ready:
                        self._message = f"still running after {limit:g} s"
                    process.dump()
                    if _ends(process, DUMP_GRACE):
                        return
            process.kill()
            if process.pid is None:  # it may not be born yet: it will find its pipes closed, and run nothing
                return
            if not _ends(process, KILL_LIMIT):
                self._message = f"{self._message or 'stopped'}; the kernel has not released the process yet"

    def _feed(self, name: str, data: bytes) -> None:
        """Take what came out of one of the child's pipes."""
        if name != "events":
            self._streams[name].feed(data)
            return
        self._buffer += data
        for kind, body in worker.frames(self._buffer):
            if kind == worker.EVENT:
                self._events.append(_unpickled(body))
            elif kind == worker.READY:
                self._ready, self._began = True, time.monotonic()
                if self._process is not None:  # a `Spawned` may be quicker than its constructor, and knows its own
                    self._process.pid = int(body)
            else:
                self._ending = pickle.loads(body)
        self._news.set()


def _unpickled(body: bytes) -> Any:
    try:
        return pickle.loads(body)
    except Exception as error:
        return Lost(f"{type(error).__name__}: {error}", len(body))


def _ends(process: server.Forked | Spawned, at_most: float) -> bool:
    """Read a process until it ends (True), for at most so many seconds."""
    deadline = time.monotonic() + at_most
    while time.monotonic() < deadline:
        if process.poll(LOOK):
            return True
    return False
