"""The server as its caller has it: started once, in the background, ended with this process.

`keeper` is what runs in the server's process, `fork` what asks it for a child. This file knows no child.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labkit.common import kernel

from . import worker
from .keeper import REQUEST

HAS_SERVER = hasattr(os, "fork")

# What the server imports, best effort. It imports and never computes.
PRELOAD: tuple[str, ...] = ("torch", "transformers.models.gpt2.modeling_gpt2", "labkit.train")

# Variables that are read when the interpreter starts or a library is imported, by prefix: changing them needs a
# fresh interpreter. CUDA_* is not among them: the driver reads it at cuInit, which no child inherits.
# PYTORCH_*ALLOC_CONF is: some torch versions read it while libtorch loads (`BackendStaticInitializer`).
# TORCHINDUCTOR_* is not: importing transformers sets one.
IMPORT_TIME = (
    *("PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_TUNABLES"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "VECLIB_", "BLIS_", "NPY_", "ATEN_"),
    *("TORCH_", "PYTORCH_"),
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "ACCELERATE_", "USE_TORCH", "USE_TF", "USE_FLAX"),
)


def import_time(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environment` that are read at import time."""
    return {name: text for name, text in environment.items() if name.startswith(IMPORT_TIME)}


class Server:
    """The caller's end of one server. `send` raises OSError when the server is gone."""

    def __init__(self, preload: Sequence[str]):
        self.environment = dict(os.environ)
        self.numbers = itertools.count(1)
        self.busy: set[int] = set()  # children in use, by number; kept by `Forked`
        self.broken = False  # seen to be gone, perhaps before `wait` can tell
        self.log: Any = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        serve = f"from labkit.sandbox.keeper import serve; serve({theirs.fileno()}, {tuple(preload)!r})"
        try:
            self.process = subprocess.Popen(
                worker.interpreter(serve),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                start_new_session=True,  # the kernel's interrupt is not for the server
            )
        except BaseException:
            self._socket.close()
            self.log.close()
            raise
        finally:
            theirs.close()

    @property
    def alive(self) -> bool:
        return not self.broken and self.process.poll() is None

    @property
    def usable(self) -> bool:
        """Alive, and at work or as this process's import-time variables would have it now."""
        return self.alive and (bool(self.busy) or import_time(os.environ) == import_time(self.environment))

    def send(self, what: int, child: int, descriptors: Sequence[int] = ()) -> None:
        message = REQUEST.pack(what, child)
        try:
            with self._lock:
                if descriptors:
                    socket.send_fds(self._socket, [message], list(descriptors))
                else:
                    self._socket.sendall(message)
        except OSError:
            self.broken = True
            raise

    def last_words(self) -> str:
        """The end of what the server printed: why it could not start."""
        if self.log.closed:
            return ""
        self.log.seek(0)
        return self.log.read().decode("utf-8", "replace").strip()[-2000:]

    def close(self) -> None:
        """End the server and every child it has."""
        self.abandon()
        if self.busy:  # let it kill them first, and what they started
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(3)
        self.process.kill()  # it may be importing
        self.process.wait()
        self.log.close()

    def abandon(self) -> None:
        """Close this process's end only (in a fork of the caller, which does not own the server)."""
        with contextlib.suppress(OSError):
            self._socket.close()


_server: Server | None = None
_lock = threading.Lock()


@contextlib.contextmanager
def current_server() -> Iterator[Server]:
    """The server, started or replaced if need be. Nobody else ends it while the block lasts."""
    global _server
    with _lock:
        if _server is not None and not _server.usable:
            _server.close()
            _server = None
        if _server is None:
            _server = Server(PRELOAD)
        yield _server


def warm() -> None:
    """Start the server in the background, so that the first run finds torch imported. Does nothing on Windows.

    In a notebook's kernel it also spares a restart the collector's last walk over all that torch and transformers made
    (0.9 s).
    """
    if kernel() is not None:
        atexit.register(gc.freeze)
    if HAS_SERVER:
        with current_server():
            pass


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
        _server.abandon()
        _server.process.returncode = 0  # not ours to wait for
    _server, _lock = None, threading.Lock()


if HAS_SERVER:
    atexit.register(shutdown)
    os.register_at_fork(after_in_child=_forget)
