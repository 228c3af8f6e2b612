"""Kernels for `labkit course` that are forked from a process which has torch and Jupyter imported. Linux only.

A lesson imports torch twice, in its kernel and in the process that its runs are forked from. Here both are forks of the
sandbox's server, and a lesson starts in a tenth of a second. What a learner opens, and what nbval opens, is a new
interpreter as ever: a lesson that leaned on what is imported here already would fail there.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import shutil
import sys
import tempfile
import uuid
from typing import Any

from jupyter_client import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner

from labkit import sandbox

# What lessons import, beside what the server imports anyway. Imported and never called before the fork.
PRELOAD = ["ipykernel.kernelapp", "ipykernel.ipkernel", "ipywidgets", "matplotlib.pyplot", "transformers", "nbformat"]
PRELOAD += ["labkit.course.forked", "labkit.display", "labkit.checks", "labkit.memory", "psutil", "cloudpickle"]


def serve(connection_file: str, folder: str, arguments: list[str]) -> None:
    """In the fork: be the kernel of `connection_file`, in `folder`, until it is told to shut down."""
    from ipykernel.kernelapp import IPKernelApp

    sandbox.fork_server()
    os.chdir(folder)
    first = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = dict.fromkeys([*first, *filter(None, sys.path)])  # IPython adds the notebook's folder
    os.environ["JPY_PARENT_PID"] = str(os.getppid())  # a kernel ends with its parent
    IPKernelApp.launch_instance(argv=["-f", connection_file, *arguments])
    # A sandbox's child ends without at-exit code; what a lesson registered is to run. ipykernel's own waits for threads
    # that may wait for each other by then.
    atexit.unregister(IPKernelApp.instance().close)
    atexit._run_exitfuncs()


class _Process:
    """A sandbox's child with the face of `subprocess.Popen`, as far as a provisioner looks."""

    stdin = stdout = stderr = None

    def __init__(self, child: sandbox.Child):
        self.child = child

    @property
    def pid(self) -> int | None:
        return self.child.pid

    def poll(self) -> int | None:
        return None if self.child.alive else self.wait()

    def wait(self) -> int:
        code = self.child.result().outcome.exit_code
        return -9 if code is None else code

    def kill(self) -> None:
        self.child.stop()


class _Provisioner(LocalProvisioner):
    process: Any  # a `_Process`

    async def launch_kernel(self, cmd: list[str], **settings: Any) -> Any:
        manager: Any = self.parent
        file = manager.connection_file
        arguments = cmd[cmd.index(file) + 1 :]
        folder = os.path.abspath(settings.get("cwd") or os.curdir)
        child = sandbox.start(serve, file, folder, arguments, env=settings["env"], fresh=False)
        self.process, self.cwd = _Process(child), folder
        while child.pid is None and child.alive:
            await asyncio.sleep(0.01)
        if not child.alive:
            raise RuntimeError(f"the kernel could not be forked: {child.result().outcome}")
        self.pid = self.pgid = child.pid  # it leads a session of its own
        return self.connection_info


SOCKET_PATH = 107  # characters that the path of a socket may have in Linux


@functools.cache
def _folder_of_sockets() -> str:
    """A folder of this process's own, which goes when it ends."""
    folder = tempfile.mkdtemp(prefix="labkit-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class ForkingKernelManager(AsyncKernelManager):
    """Starts kernels by `fork`. The first one starts the server, which imports for some seconds."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        # A TCP port is found free, given back, and opened by the kernel some time later: another
        # process can have taken it by then. A socket in a folder of one's own is nobody else's.
        socket = os.path.join(_folder_of_sockets(), uuid.uuid4().hex)
        if len(f"{socket}-1") <= SOCKET_PATH:
            self.transport, self.ip = "ipc", socket

    async def _async_pre_start_kernel(self, **settings: Any) -> Any:
        # as a kernel does for itself, but before matplotlib is imported
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        sandbox.warm(PRELOAD)
        self.kernel_id = self.kernel_id or settings.pop("kernel_id", str(uuid.uuid4()))
        if self.provisioner is None:
            self.provisioner = _Provisioner(kernel_id=self.kernel_id, kernel_spec=self.kernel_spec, parent=self)
        return await super()._async_pre_start_kernel(**settings)

    pre_start_kernel = _async_pre_start_kernel  # type: ignore[assignment]  # the base class wraps it for threads
