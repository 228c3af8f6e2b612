"""The caller's end: the server, started once in the background and ended with this process, and a child of it.

`keeper` is what runs in the server's process.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from labkit import lessons
from labkit.common import kernel

from . import worker
from .job import Job
from .keeper import DUMP, FORK, FRESH, KILL, REQUEST, STATUS, Keeper, kill_group

# Only there: Windows has no fork, and macOS system libraries do not survive one.
HAS_SERVER = sys.platform == "linux"

# What the server imports, best effort. It imports and never computes.
PRELOAD: tuple[str, ...] = (
    "torch",
    "transformers.models.gpt2.modeling_gpt2",
    "labkit.grpo.train",
    "transformers.models.auto.tokenization_auto",  # this and the next: what loading a tokenizer imports
    "transformers.convert_slow_tokenizer",
)

# Variables that are read when the interpreter starts or a library is imported, by prefix: changing them needs a
# fresh interpreter. CUDA_* is not among them: the driver reads it at cuInit, which no child inherits.
# PYTORCH_*ALLOC_CONF is: some torch versions read it while libtorch loads (`BackendStaticInitializer`).
# TORCHINDUCTOR_* is not: importing transformers sets one.
IMPORT_TIME = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_TUNABLES"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NPY_", "ATEN_"),
    *("TORCH_", "PYTORCH_"),
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "ACCELERATE_", "USE_TORCH", "USE_TF", "USE_FLAX"),
)


def import_time(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environment` that are read at import time."""
    return {name: text for name, text in environment.items() if name.startswith(IMPORT_TIME)}


class _Fork:
    """A fork of this process that becomes a server, with what `Server` uses of `subprocess.Popen`."""

    def __init__(self, control: socket.socket, log: Any):
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._become_server(control.detach(), log.fileno())
            finally:
                os._exit(70)

    def _become_server(self, control: int, log: int) -> NoReturn:
        os.setsid()  # the kernel's interrupt is not for the server
        for standard, source in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
            os.dup2(source, standard)
        os.closerange(3, control)  # what else is open is our parent's
        os.closerange(control + 1, os.sysconf("SC_OPEN_MAX"))
        Keeper(control).serve(())

    def poll(self) -> int | None:
        """0 when it has ended."""
        with contextlib.suppress(ChildProcessError):  # it has been waited for
            if os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                return None
        return 0


class Server:
    """The caller's end of one server.

    preload   the modules that it imports; None: it is a fork of this process, and has what this one has
    """

    def __init__(self, preload: Sequence[str] | None):
        self.environment = dict(os.environ)
        self.numbers = itertools.count(1)
        self.busy: set[int] = set()  # children in use, by number; kept by `Forked`
        self.broken = False  # seen to be gone, perhaps before `wait` can tell
        self.log: Any = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process: Any
        try:
            with theirs:
                self.process = _Fork(theirs, self.log) if preload is None else self._started(theirs.fileno(), preload)
        except BaseException:
            self.socket.close()
            self.log.close()
            raise

    def _started(self, control: int, preload: Sequence[str]) -> subprocess.Popen[bytes]:
        serve = f"from labkit.sandbox.keeper import Keeper; Keeper({control}).serve({tuple(preload)!r})"
        return subprocess.Popen(
            worker.interpreter(serve),
            pass_fds=[control],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,  # the kernel's interrupt is not for the server
        )

    @property
    def usable(self) -> bool:
        """Alive, and at work or as this process's import-time variables would have it now."""
        if self.broken or self.process.poll() is not None:
            return False
        return bool(self.busy) or import_time(os.environ) == import_time(self.environment)

    def send(self, what: int, child: int, descriptors: Sequence[int] = ()) -> None:
        """Ask for something. When the server is gone it is `broken`, and the end of a child's pipes says so too."""
        try:
            socket.send_fds(self.socket, [REQUEST.pack(what, child)], list(descriptors))
        except OSError:
            self.broken = True

    def last_words(self) -> str:
        """The end of what the server printed: why it could not start."""
        if self.log.closed:
            return ""
        self.log.seek(0)
        return self.log.read().decode("utf-8", "replace").strip()[-2000:]

    def close(self) -> None:
        """End the server and every child it has."""
        self.socket.close()
        deadline = time.monotonic()  # idle it may be importing, and has nothing to do first
        if self.busy:
            deadline += 3  # to kill them first, and what they started
        while self.process.poll() is None:
            if time.monotonic() >= deadline:
                os.kill(self.process.pid, signal.SIGKILL)
            time.sleep(0.005)
        self.log.close()


_server: Server | None = None
_lock = threading.Lock()


@contextlib.contextmanager
def current_server(more: Sequence[str] = ()) -> Iterator[Server]:
    """The server, started or replaced if need be. Nobody else ends it while the block lasts."""
    global _server
    with _lock:
        if _server is not None and not _server.usable:
            _server.close()
            _server = None
        if _server is None:
            _server = Server((*PRELOAD, *more))
        yield _server


def warm(more: Sequence[str] = ()) -> None:
    """Start the server in the background, so that the first run finds torch imported, and `more`. Only on Linux.

    In a notebook's kernel it also spares a restart the collector's last walk over all that torch and transformers made
    (0.9 s). And it lets a lesson import from `notebooks/props` wherever its kernel was started: papermill leaves a
    kernel in the folder that it was called from.
    """
    if lessons.BESIDE.is_dir() and str(lessons.BESIDE) not in sys.path:
        sys.path.append(str(lessons.BESIDE))
    if kernel() is not None:
        atexit.register(gc.freeze)
    if HAS_SERVER:
        with current_server(more):
            pass


def fork_server() -> None:
    """Have a fork of this process as the server. It must have one thread, and have imported without computing."""
    global _server
    with _lock:
        _server = Server(None)


def shutdown() -> None:
    """End the server and every running child. The next run starts a new one."""
    global _server
    with _lock:
        server, _server = _server, None
    if server is not None:
        server.close()


def _forget() -> None:
    """In a fork of this process: the server is the parent's, and must not live on because of us."""
    global _server, _lock
    if _server is not None:
        _server.socket.close()
        _server.process.returncode = 0  # not ours to wait for
    _server, _lock = None, threading.Lock()


if HAS_SERVER:
    atexit.register(shutdown)
    os.register_at_fork(after_in_child=_forget)


class Forked:
    """The caller's end of one child of the server. `feed` gets ("events" | "stdout" | "stderr", bytes).

    Used by one thread, except `kill` and `dump`, which any thread may call. `returncode` is the exit code, or
    minus a signal's number; None when it is not known, because the child lives or because the server died.
    """

    def __init__(self, server: Server, job: Job, file: Any, feed: Callable[[str, bytes], None]):
        self.server, self.number = server, next(server.numbers)
        self.fresh = import_time(job.environment) != import_time(server.environment) if job.fresh is None else job.fresh
        self.pid: int | None = None  # None until the child says that it is ready
        self.returncode: int | None = None
        self.lost = False  # the server died before it could report
        self._feed = feed
        self._selector = selectors.DefaultSelector()
        theirs: dict[str, int] = {}
        try:
            for name in ("stdout", "stderr", "events", "status"):
                ours, theirs[name] = os.pipe()
                self._selector.register(ours, selectors.EVENT_READ, name)
            server.send(FRESH if self.fresh else FORK, self.number, [file.fileno(), *theirs.values()])
            server.busy.add(self.number)
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in theirs.values():
                os.close(descriptor)

    def poll(self, timeout: float) -> bool:
        """Wait for news for at most `timeout` seconds and feed it. True when the child is dead or lost."""
        self._read(timeout)
        ended = self.lost or self.returncode is not None
        if ended:  # what it left in its pipes; a lost one may not be dead yet
            while self._selector.get_map() and self._read(1.0 if self.lost else 0):
                pass
        return ended

    def _read(self, timeout: float) -> bool:
        """Feed what is there, once. False when nothing came in time."""
        news = self._selector.select(timeout)
        for key, _ in news:
            data = os.read(key.fd, 1 << 18)
            if data and key.data == "status":
                self.returncode = os.waitstatus_to_exitcode(*STATUS.unpack(data))
            elif data:
                self._feed(key.data, data)
            else:
                self._selector.unregister(key.fd)
                os.close(key.fd)
                if key.data == "status" and self.returncode is None:
                    self.lost = self.server.broken = True
                    self.kill()
        return bool(news)

    def kill(self) -> None:
        self.server.send(KILL, self.number)
        if self.server.broken and self.pid is not None and self.returncode is None:
            kill_group(self.pid)  # there is nobody to do it for us

    def dump(self) -> None:
        """Have the child write its Python traceback into the job's file and die, from C, even while it hangs."""
        self.server.send(DUMP, self.number)

    def close(self) -> None:
        self.server.busy.discard(self.number)
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
