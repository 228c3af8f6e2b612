"""Run a generator of events in a process that may die; stream its events, survive its death, keep the evidence.

A CUDA device-side assert poisons its process for good, so anything that may assert runs in a child. On Linux the
child is forked from a server that has torch imported already (`labkit.sandbox.server`); elsewhere, and where an
environment variable must be there before torch is imported, it is a fresh interpreter. This process never
imports torch because of the sandbox. The sandbox is not a security boundary, and it does not draw.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import linecache
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from labkit.common import kernel
from labkit.events import NAN, Lost, Outcome, Run

from . import worker
from .server import CAN_FORK, Forked, Server
from .signature import classify, is_index_assert, is_multinomial_assert
from .spawn import Spawned

__all__ = [
    "Child",
    "SandboxError",
    "classify",
    "is_index_assert",
    "is_multinomial_assert",
    "run",
    "run_all",
    "shutdown",
    "start",
    "warm",
]

# What the server imports, best effort. It imports and never computes.
PRELOAD: tuple[str, ...] = (
    "numpy",
    "torch",
    "transformers",
    "transformers.models.gpt2.modeling_gpt2",
    "labkit.events",
    "labkit.train",
)
HEAD = TAIL = 256 * 1024  # bytes kept of the beginning and of the end of stdout, and of stderr
START_LIMIT = 120.0  # seconds until a child must be ready to run
DUMP_GRACE = 0.1  # seconds between asking a timed-out child where it is and killing it
KILL_LIMIT = 10.0  # seconds after a kill until we stop waiting for the body (a driver may hold it)

HAS_SERVER = hasattr(os, "fork")
_OUR_SIGNALS = {getattr(signal, "SIGKILL", None), worker.DUMP_SIGNAL}

# Variables that are read when the interpreter starts or a library is imported, by prefix: changing them needs a
# fresh interpreter. CUDA_* is not among them: the driver reads it at cuInit, which no child inherits.
# PYTORCH_*ALLOC_CONF is: some torch versions read it while libtorch loads (`BackendStaticInitializer`).
IMPORT_TIME = (
    *("PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_TUNABLES"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "VECLIB_", "BLIS_", "NPY_", "ATEN_"),
    *("TORCH_", "PYTORCH_"),  # not TORCHINDUCTOR_*: importing transformers sets one
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "ACCELERATE_", "USE_TORCH", "USE_TF", "USE_FLAX"),
)


class SandboxError(RuntimeError):
    """The sandbox itself failed, as opposed to what ran in it."""


def run(
    function: Callable[..., Any],
    /,
    *args: Any,
    timeout: float | None = None,
    env: Mapping[str, str | None] | None = None,
    memory_limit: int | None = None,
    on_event: Callable[[Any], object] | None = None,
    fresh: bool | None = None,
    **kwargs: Any,
) -> Run:
    """Run `function(*args, **kwargs)` in a child and return its `Run`, however the child ended.

    `function` is a generator function of events, or one whose return value is a single event (None is no event).
    It and its arguments travel by cloudpickle, so notebook cells, lambdas and closures will do. A parameter of
    the function that is named like one of ours goes in by `functools.partial`.

    timeout:       seconds, from when the child is ready to run; then it is killed (signature `timeout`), and
                   `Outcome.traceback` says where it was.
    env:           environment variables for the child, on top of the caller's; None removes one.
    memory_limit:  bytes of private writable memory (RLIMIT_DATA: heap, anonymous maps, thread stacks; not CUDA
                   memory) that the child may add to what it starts with; beyond it allocation fails and the
                   signature is `oom`. Linux only.
    on_event:      called here with each event as it arrives. What it raises stops the child and is raised.
    fresh:         True for a fresh interpreter in place of a fork; None (default) takes one when `env` changes
                   a variable that is read at import time (see `IMPORT_TIME`); its imports count as run time.

    KeyboardInterrupt stops the child and returns the partial run (signature `stopped`). TypeError or ValueError
    names a bad operand; `SandboxError` says that no child could be started. At-exit code does not run in the child.
    """
    if on_event is not None and not callable(on_event):
        raise TypeError(f"on_event: expected a function of one event, got {on_event!r}")
    child = Child(function, args, kwargs, timeout=timeout, env=env, memory_limit=memory_limit, fresh=fresh)
    try:
        child._launch()
        while not child.wait_for_news():
            _tell(child.drain(), on_event)
        _tell(child.drain(), on_event)
    except KeyboardInterrupt:
        child.stop()
    except BaseException:
        child.stop()
        raise
    return child.result()


def start(
    function: Callable[..., Any],
    /,
    *args: Any,
    timeout: float | None = None,
    env: Mapping[str, str | None] | None = None,
    memory_limit: int | None = None,
    fresh: bool | None = None,
    **kwargs: Any,
) -> Child:
    """Start `function(*args, **kwargs)` in a child and return at once. The operands are those of `run`."""
    child = Child(function, args, kwargs, timeout=timeout, env=env, memory_limit=memory_limit, fresh=fresh)
    child._launch()
    return child


def run_all(
    function: Callable[..., Any],
    settings: Mapping[str, Mapping[str, Any]],
    /,
    *,
    at_once: int | None = None,
    timeout: float | None = None,
    **common: Any,
) -> dict[str, Run]:
    """Run `function(**common, **settings[name])` in a child for each name; return name -> `Run`, in the same order.

    at_once   children at a time; None: one a core. A child that computes on several threads wants fewer.
    common    arguments of every run; a name's own settings go over these.

    A run that crashes is returned like any other. KeyboardInterrupt stops all children and is raised. TypeError or
    ValueError names a bad operand.
    """
    if not isinstance(settings, Mapping) or not all(isinstance(s, Mapping) for s in settings.values()):
        raise TypeError(f"settings: expected a mapping of name -> arguments, got {settings!r}")
    workers = (os.cpu_count() or 1) if at_once is None else at_once
    if not isinstance(workers, int) or workers < 1:
        raise ValueError(f"at_once: expected a whole number of children, at least 1, got {at_once!r}")
    # made here, so that a bad operand is named before anything starts
    limits: dict[str, Any] = {"timeout": timeout, "env": None, "memory_limit": None, "fresh": None}
    children = {n: Child(function, (), {**common, **s}, **limits) for n, s in settings.items()}

    def whole(child: Child) -> Run:
        child._launch()
        return child.result()

    with ThreadPoolExecutor(workers, "labkit-run-all") as pool:
        jobs = {name: pool.submit(whole, child) for name, child in children.items()}
        try:
            return {name: job.result() for name, job in jobs.items()}
        except BaseException:
            for job in jobs.values():
                job.cancel()
            for child in children.values():
                child.stop()
            raise


def _tell(events: list[Any], on_event: Callable[[Any], object] | None) -> None:
    if on_event is not None:
        for event in events:
            on_event(event)


class Child:
    """A function at work in its own process and session. Made by `start`; a `with` block stops it at its end."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        timeout: float | None,
        env: Mapping[str, str | None] | None,
        memory_limit: int | None,
        fresh: bool | None,
    ):
        _check(function, timeout, env, memory_limit, fresh)
        self._call = _pickle_call(function, args, kwargs)
        self._environment = {**os.environ, **(env or {})}
        self._timeout, self._memory_limit, self._fresh = timeout, memory_limit, fresh
        self._directory, self._path, self._sources = _directory(), list(sys.path), _cell_sources()
        self.meta = _meta(function, kwargs, timeout, env, memory_limit)

        self._claim = threading.Lock()  # whoever takes it, the watcher or an early `stop`, ends the child
        self._decoding = threading.Lock()
        self._news = threading.Event()
        self._done = threading.Event()
        self._body: Forked | Spawned | None = None
        self._buffer = bytearray()
        self._bodies: list[bytes] = []  # pickled events, in order; emptied as they are decoded
        self._events: list[Any] = []
        self._told = 0
        self._streams = {"stdout": _Capture(), "stderr": _Capture()}
        self._ending: dict[str, Any] | None = None  # the child's own report
        self._reason = ""  # why we killed it: "stopped" or "timeout"
        self._outcome: Outcome | None = None
        self._failure: BaseException | None = None
        self._launched = self._ready = self._asked = self._killed = NAN  # time.monotonic(); NaN: not yet

    # ------------------------------------------------------------------------------------------- what callers use

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
        body = self._body
        return body.process.pid if isinstance(body, Spawned) else body.pid if body is not None else None

    def stop(self) -> None:
        """Kill the child and all it has started. Returns within 0.3 s; a second call does nothing."""
        if self._done.is_set():
            return
        self._reason = self._reason or "stopped"
        if self._claim.acquire(blocking=False):  # it was never launched
            self._finish(-signal.SIGTERM if os.name == "nt" else -signal.SIGKILL)
            return
        self._kill()
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
        """Wait for the end; all events and the outcome. SandboxError when no child could be started."""
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
        return f"Child({self.meta['function']}, {len(self._bodies)} events, {state})"

    # ------------------------------------------------------------------------------------------------ the watcher

    def _launch(self) -> None:
        threading.Thread(target=self._watch, name=f"labkit-{self.meta['function']}", daemon=True).start()

    def _watch(self) -> None:
        """In a thread of its own: start the child, read it, enforce the limits, record its end."""
        if not self._claim.acquire(blocking=False):
            return
        code: int | None = None
        try:
            with _job_file() as job:
                self._launched = time.monotonic()
                try:
                    code = self._watch_forked(job) if HAS_SERVER else self._watch_spawned(job)
                finally:
                    job.seek(0)
                    self._trace = job.read(1 << 16)
        except BaseException as error:
            self._failure = error
        finally:
            self._finish(code)

    def _watch_forked(self, job: Any) -> int | None:
        for _ in range(2):
            body = self._body = _forked(self, job)
            try:
                while not body.poll(self._tick(0.05 if body.pid is None else None)):
                    if self._given_up() or (self._reason and body.pid is None):
                        break
                body.rest(1.0)
            finally:
                body.server.busy.discard(body.number)
                body.close()
            if not body.lost or self._reason or self._ready == self._ready:
                return body.returncode
            # The server died first. Nothing has run and nothing can: our ends of the pipes are closed.
        raise SandboxError(f"its server died. It said: {body.server.last_words() or 'nothing'}")

    def _watch_spawned(self, job: Any) -> int | None:
        self._write_job(job, {})
        environment = {name: text for name, text in self._environment.items() if text is not None}
        body = self._body = Spawned(job, environment, self._feed)
        code = None
        while code is None and not self._given_up():
            code = body.wait(min(0.05, self._tick(None) or 0.05))
        return code

    def _write_job(self, job: Any, environment: Mapping[str, str | None]) -> None:
        """Write what `worker.read_job` reads. `environment` is the change to the child's own."""
        task = {
            "call": self._call,
            "environment": environment,
            "memory_limit": self._memory_limit,
            "directory": self._directory,
            "path": self._path,
            "sources": self._sources,
        }
        job.write(pickle.dumps(task, 5))
        job.flush()
        job.seek(0)

    def _tick(self, at_most: float | None) -> float | None:
        """Enforce the limits that have passed. Seconds until the next one, None for never."""
        now = time.monotonic()
        if self._reason == "stopped":
            self._kill()
        limit = START_LIMIT if self._ready != self._ready else self._timeout
        if limit is not None and not self._reason:
            left = (self._launched if self._ready != self._ready else self._ready) + limit - now
            if left > 0:
                return left if at_most is None else min(left, at_most)
            self._reason = "timeout"
            self._asked = now
            if isinstance(self._body, Forked):
                self._body.dump()
        if self._reason == "timeout" and self._killed != self._killed:
            left = self._asked + DUMP_GRACE - now
            if left > 0:
                return left
            self._kill()
        return at_most if not self._reason else 0.5

    def _given_up(self) -> bool:
        return time.monotonic() - self._killed > KILL_LIMIT

    def _kill(self) -> None:
        if self._body is not None:
            if self._killed != self._killed:
                self._killed = time.monotonic()
            self._body.kill()

    def _feed(self, name: str, data: bytes) -> None:
        """Take what came out of one of the child's pipes."""
        if name != "events":
            self._streams[name].feed(data)
            return
        self._buffer += data
        start, size, header = 0, len(self._buffer), worker.FRAME.size
        with memoryview(self._buffer) as view:
            while size - start >= header:
                length, kind = worker.FRAME.unpack_from(view, start)
                end = start + header + length
                if end > size:
                    break
                if kind == worker.EVENT:
                    self._bodies.append(bytes(view[start + header : end]))
                elif kind == worker.READY:
                    self._ready = time.monotonic()
                else:
                    self._ending = pickle.loads(view[start + header : end])
                start = end
        del self._buffer[:start]
        self._news.set()

    def _decode(self) -> None:
        """Unpickle what has arrived, one by one, so that an interrupt between two loses none."""
        with self._decoding:
            while (index := len(self._events)) < len(self._bodies):
                body = self._bodies[index]
                try:
                    event = pickle.loads(body)
                except Exception as error:
                    event = Lost(f"{type(error).__name__}: {error}", len(body))
                self._events.append(event)
                self._bodies[index] = b""

    # ------------------------------------------------------------------------------------------------ the end

    _trace = b""

    def _finish(self, code: int | None) -> None:
        now = time.monotonic()
        began = self._ready if self._ready == self._ready else self._launched
        if self._failure is None:
            try:
                self._outcome = self._judge(code, now - began)
            except BaseException as error:
                self._failure = error
        self._done.set()
        self._news.set()

    def _judge(self, code: int | None, seconds: float) -> Outcome:
        evidence: dict[str, Any] = {
            "stdout": self._streams["stdout"].text(),
            "stderr": self._streams["stderr"].text(),
            "seconds": seconds,
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "traceback": _where(self._trace.decode("utf-8", "replace")),
        }
        if self._ending is not None:
            return _reported(self._ending, evidence, killed=bool(self._reason))
        if self._reason and (code is None or -code in _OUR_SIGNALS or os.name == "nt"):
            stuck = "; the kernel has not released the process yet" if code is None and self.pid else ""
            return Outcome(signature=self._reason, message=self._why() + stuck, **evidence)
        if code is None:
            evidence["signal"] = int(signal.SIGKILL)
            return Outcome(
                "signal:9", message="the sandbox's server died and took the child along", **evidence
            )
        left = {name: evidence[name] for name in ("exit_code", "signal", "stderr")}
        signature = classify(**left)
        return Outcome(signature if signature != "ok" else "exit:0", **evidence)

    def _why(self) -> str:
        if self._reason == "stopped":
            return ""
        if self._ready != self._ready:
            return f"the process was not ready to run after {START_LIMIT:g} s"
        return f"still running after {self._timeout:g} s"


def _reported(ending: dict[str, Any], evidence: dict[str, Any], killed: bool) -> Outcome:
    """The outcome of a child that lived to say how its function ended."""
    links = ending.get("links")
    if not links:
        if killed:  # the kill came between its last word and its exit
            evidence = {**evidence, "exit_code": 0, "signal": None}
        after = {name: evidence[name] for name in ("exit_code", "signal")}
        return Outcome(classify(**after), **evidence)
    first = links[0]
    if first["exception"] == "SystemExit":
        signature = classify(exit_code=evidence["exit_code"], signal=evidence["signal"])
    else:
        signature, *causes = (classify(**link, stderr=evidence["stderr"]) for link in links)
        if signature.startswith("exception:"):
            signature = next((c for c in causes if not c.startswith("exception:")), signature)
    code = next((link["error_code"] for link in links if link["error_code"] is not None), None)
    evidence = {**evidence, "traceback": ending["traceback"], "error_code": code}
    return Outcome(signature, exception=first["exception"], message=first["message"], **evidence)


def _where(dump: str) -> str:
    """faulthandler's text without the sandbox's own frames and the list of extension modules."""
    blocks = []
    for block in dump.strip().split("\n\n"):
        lines = block.splitlines()
        ours = next((n for n, line in enumerate(lines) if f'"{worker.__file__}"' in line), len(lines))
        if not block.startswith("Extension modules:"):
            blocks.append("\n".join(lines[:ours]))
    return "\n\n".join(blocks)


class _Capture:
    """The beginning and the end of a stream, and how much lay between. Bytes in, text out."""

    def __init__(self) -> None:
        self._head, self._tail, self._size = bytearray(), bytearray(), 0

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        room = HEAD - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        if len(self._tail) > 2 * TAIL:
            del self._tail[:-TAIL]

    def text(self) -> str:
        tail = self._tail[-TAIL:]
        left_out = self._size - len(self._head) - len(tail)
        note = f"\n[labkit: {left_out:,} bytes left out here]\n".encode() if left_out else b""
        return (bytes(self._head) + note + bytes(tail)).decode("utf-8", "replace")


# ------------------------------------------------------------------------------------------------ the server

_server: Server | None = None
_server_lock = threading.Lock()
_prepared = False


def warm() -> None:
    """Start the server in the background, so that the first run finds torch imported. Does nothing on Windows.

    In a notebook's kernel it also spares a restart the collector's last walk over all that torch and transformers made
    (0.9 s).
    """
    if kernel() is not None:
        atexit.register(gc.freeze)
    if HAS_SERVER:
        with _server_lock:
            _current_server({**os.environ})


def shutdown() -> None:
    """End the server and every running child. The next run starts a new one."""
    global _server
    with _server_lock:
        server, _server = _server, None
    if server is not None:
        server.close()


def _current_server(environment: Mapping[str, str | None]) -> Server:
    """The server, started if need be; replaced when it is idle and was started with other import-time variables."""
    global _server, _prepared
    if not _prepared:
        atexit.register(shutdown)
        os.register_at_fork(after_in_child=_forget)
        _prepared = True
    if _server is not None and (
        not _server.alive
        or (not _server.busy and _import_time(environment) != _import_time(_server.environment))
    ):
        _server.close()
        _server = None
    if _server is None:
        _server = Server(PRELOAD)
    return _server


def _forget() -> None:
    """In a fork of this process: the server is the parent's, and must not live on because of us."""
    global _server, _server_lock
    if _server is not None:
        _server.abandon()
        _server.process.returncode = 0  # not ours to wait for
    _server, _server_lock = None, threading.Lock()


def _forked(child: Child, job: Any) -> Forked:
    """Write the job and hand it to the server; once more with a new server if that one has just died."""
    for last in (False, True):
        with _server_lock:
            server = _current_server(dict(os.environ))
            wanted, have = child._environment, server.environment
            change = {
                name: wanted.get(name) for name in {*wanted, *have} if wanted.get(name) != have.get(name)
            }
            fresh = child._fresh
            if fresh is None:
                fresh = not CAN_FORK or _import_time(wanted) != _import_time(have)
            job.truncate(0)
            job.seek(0)
            child._write_job(job, change)
            child.meta["process"] = "fresh" if fresh else "fork"
            try:
                body = Forked(server, job, fresh, child._feed)
                server.busy.add(body.number)
                return body
            except ConnectionError:
                if last:
                    raise
    raise AssertionError("unreachable")


def _import_time(environment: Mapping[str, str | None]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if v is not None and k.startswith(IMPORT_TIME)}


def _job_file() -> Any:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("labkit-job"), "w+b")
    return tempfile.TemporaryFile()


# ------------------------------------------------------------------------------------------------ the operands


def _check(
    function: Any, timeout: Any, env: Any, memory_limit: Any, fresh: Any, *, fork: bool = CAN_FORK
) -> None:
    if inspect.isgenerator(function):
        raise TypeError(
            f"function: got the generator {function.__name__}(...), already started here; pass the function and "
            f"its arguments apart, as in run({function.__name__}, ...)"
        )
    if not callable(function):
        raise TypeError(
            f"function: expected a function of events, got {type(function).__name__} {function!r:.80}"
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"function: {function.__name__} is async; pass a plain function or a generator function"
        )
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if timeout is not None and not (number and 0 < timeout < float("inf")):
        raise ValueError(f"timeout: expected seconds above 0, or None for no limit, got {timeout!r}")
    if memory_limit is not None:
        if isinstance(memory_limit, bool) or not isinstance(memory_limit, int) or memory_limit <= 0:
            raise ValueError(
                f"memory_limit: expected bytes above 0, or None for no limit, got {memory_limit!r}"
            )
        if not fork:
            raise ValueError("memory_limit: only Linux can hold a process to it; pass None here")
    if fresh not in (None, True, False):
        raise TypeError(f"fresh: expected True, False or None, got {fresh!r}")
    if env is not None:
        if not isinstance(env, Mapping):
            raise TypeError(f"env: expected a dict of environment variables, got {type(env).__name__}")
        for name, value in env.items():
            if not isinstance(name, str) or not name or "=" in name or "\0" in name:
                raise ValueError(f"env: {name!r} is not a variable's name")
            if value is not None and (not isinstance(value, str) or "\0" in value):
                raise TypeError(f"env: {name} must be a string, or None to remove it, got {value!r}")


def _pickle_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps((function, args, kwargs), 5)
    except Exception as error:
        operands = [("the function", function)]
        operands += [(f"argument {number}", value) for number, value in enumerate(args, 1)]
        operands += [(f"argument {name!r}", value) for name, value in kwargs.items()]
        culprit = next(
            (f"{name}, {value!r:.80}," for name, value in operands if not _travels(value)), "the call"
        )
        raise TypeError(
            f"{culprit} cannot be sent to the sandbox: {error}. Build models, files and locks inside the function"
        ) from error


def _travels(value: Any) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(value, 5)
    except Exception:
        return False
    return True


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _cell_sources() -> dict[str, Any]:
    """linecache's entries that no file backs (notebook cells), so that the child's tracebacks show their lines."""
    return {
        name: entry
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and entry[1] is None and name.startswith(("<", tempfile.gettempdir()))
    }


def _meta(function: Any, kwargs: dict[str, Any], timeout: Any, env: Any, memory_limit: Any) -> dict[str, Any]:
    plain = (bool, int, float, str, type(None))
    asked = {"timeout": timeout, "env": dict(env) if env else None, "memory_limit": memory_limit}
    return {
        "function": getattr(function, "__qualname__", type(function).__name__),
        "settings": {name: value for name, value in kwargs.items() if isinstance(value, plain)},
        **{name: value for name, value in asked.items() if value is not None},
    }
