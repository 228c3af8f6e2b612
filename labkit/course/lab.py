"""Open JupyterLab on a lesson, also where there is no browser, and where one is root in a container.

Without a browser the address, with its token, is the last thing on the screen, and how to reach it from elsewhere.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path


def has_browser() -> bool:
    """Whether a window can open here: not over ssh, and on Linux only where there is a display."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def root_of(lesson: Path) -> Path:
    """The folder that JupyterLab shows: the checkout, so that links to `docs` work; else the lessons' own."""
    folder = lesson.parent.parent if lesson.parent.name == "more" else lesson.parent
    return folder.parent if (folder.parent / "docs").is_dir() else folder


def start(lesson: Path, browser: bool = True, port: int | None = None) -> int:
    """Run JupyterLab on `lesson` until it ends; returns its exit code, 130 after Ctrl-C.

    browser   open a window, where one can open
    port      the port to listen on; None: the first free one from JupyterLab's own on

    It listens on 127.0.0.1 only. As root, which JupyterLab refuses by itself, it runs and says so.
    Raises: ValueError for a port that cannot be had.
    """
    browser = browser and has_browser()
    root = root_of(lesson)
    command = [sys.executable, "-m", "jupyterlab", str(lesson), "--ServerApp.ip=127.0.0.1"]
    command.append(f"--ServerApp.root_dir={root}")
    if port is not None:
        _check_free(port)
        command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    environment = dict(os.environ)
    # no pop-up that asks about news, and a server that notes what is answered in a page
    paths = [str(Path(__file__).with_name("jupyter")), environment.get("JUPYTER_CONFIG_PATH", "")]
    environment["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, paths))
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
        print("labkit lab: running as root, on 127.0.0.1 only: whoever has the token is root here", flush=True)
    if not browser:
        # A token of ours: JupyterLab prints only its own, in the middle of much else. Not on the command line, which
        # every user of the machine can read.
        environment["JUPYTER_TOKEN"] = environment.get("JUPYTER_TOKEN") or secrets.token_urlsafe(24)
        command += ["--no-browser", "--ServerApp.log_level=ERROR", "--LabApp.log_level=ERROR"]
    server = subprocess.Popen(command, env=environment)
    try:
        if not browser:
            print(_address(server, lesson.relative_to(root), environment["JUPYTER_TOKEN"]), flush=True)
        return server.wait()
    except KeyboardInterrupt:  # the terminal has sent it to the server too
        server.terminate()
        server.wait()
        return 130


def _check_free(port: int) -> None:
    try:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            trial.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or "expected 1 to 65535"
        raise ValueError(f"--port {port}: {why}; name another, or leave it out") from None


def _address(server: subprocess.Popen[bytes], lesson: Path, token: str) -> str:
    """Where the server is and how to reach it, once it is up."""
    from jupyter_server.serverapp import list_running_servers

    port = None
    while port is None and server.poll() is None:
        time.sleep(0.2)
        port = next(
            (running["port"] for running in list_running_servers(log=None) if running["pid"] == server.pid), None
        )
    if port is None:
        return "labkit lab: JupyterLab did not start; its own words are above"
    return f"""
JupyterLab is running on this machine:

    http://127.0.0.1:{port}/lab/tree/{lesson.as_posix()}?token={token}

To open it on another computer, forward the port there, then open the same address:

    ssh -N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}

Ctrl-C here stops it."""
