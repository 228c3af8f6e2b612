"""`labkit lab` with a real server, where there is no browser."""

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from labkit.__main__ import main
from labkit.course import lab

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"


@pytest.fixture
def folder(tmp_path):
    """The lessons of a checkout, with its docs."""
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs").mkdir()
    return tmp_path / "notebooks"


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def server(folder, tmp_path):
    quiet = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "JUPYTER_TOKEN")}
    quiet |= {"JUPYTER_RUNTIME_DIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    port = str(free_port())
    command = [sys.executable, "-m", "labkit", "lab", "01", "--notebooks", str(folder), "--port", port, "--no-browser"]
    running = subprocess.Popen(command, env=quiet, stdout=subprocess.PIPE, text=True, start_new_session=True)
    running.port = port
    yield running
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    running.stdout.close()


def answers(address):
    try:
        return urllib.request.urlopen(address, timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.timeout(180)
def test_without_a_browser_the_address_is_printed_last_and_works(server):
    text = "".join(itertools.takewhile(lambda line: not line.startswith("Ctrl-C"), server.stdout))
    (address,) = re.findall(r"http://\S+", text)
    port = re.search(r":(\d+)/lab/tree/my-notebooks/01_the_sampler_asserts.ipynb", address)[1]
    assert port == server.port and "my-notebooks/ is your copy" in text
    assert f"ssh -N -L {port}:127.0.0.1:{port}" in text
    assert ("running as root" in text) == (os.geteuid() == 0)
    assert answers(address) == 200
    assert answers(f"http://127.0.0.1:{port}/api/contents") == 403  # without the token
    os.killpg(server.pid, signal.SIGINT)
    assert server.wait(60) == 130
    assert not server.stdout.read().strip()  # nothing scrolls it away


def test_the_root_is_the_checkout_so_that_links_to_docs_work_and_a_copy_of_the_lessons_is_its_own(tmp_path):
    assert lab.root_of(NOTEBOOKS / "01_x.ipynb") == lab.root_of(NOTEBOOKS / "more" / "03_x.ipynb") == NOTEBOOKS.parent
    assert lab.root_of(tmp_path / "mine" / "01_x.ipynb") == tmp_path / "mine"


def test_a_port_that_cannot_be_had_is_one_line_and_nothing_starts(folder, capsys, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {str(taken.getsockname()[1]): "Address already in use", "70000": "expected 1 to 65535"}
        for port, why in ports.items():
            assert main(["lab", "--notebooks", str(folder), "--port", port]) == 2
            assert capsys.readouterr().err == f"labkit lab: --port {port}: {why}; name another, or leave it out\n"


def test_where_no_copy_can_be_written_one_line_says_what_to_do(folder, capsys):
    (folder.parent / "my-notebooks").write_text("a file of that name")
    assert main(["lab", "--notebooks", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "cannot be written" in error and "name it with --notebooks" in error


@pytest.mark.parametrize(
    "environment, opens",
    [({"DISPLAY": ":0"}, True), ({}, False), ({"DISPLAY": ":0", "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, False)],
)
def test_a_window_needs_a_display_and_no_ssh_and_a_server_that_dies_is_said_to_have_died(
    monkeypatch, tmp_path, capsys, environment, opens
):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert lab.start(tmp_path / "x.ipynb") != 0
    assert ("did not start" in capsys.readouterr().out) is not opens
