"""Shared by the tests of the sandbox: servers to run on, and after every test a look for what is left behind."""

import time

import children
import cloudpickle
import pytest
from children import offspring

from labkit import sandbox

cloudpickle.register_pickle_by_value(children)  # a child need not import pytest


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """After every test no process but the server is left, and what other tests have left in this worker of pytest."""
    others = offspring()
    yield
    end = time.monotonic() + 20
    while strays := [process for process in offspring() if process not in others]:
        assert time.monotonic() < end, f"left behind: {strays}"
        time.sleep(0.01)


@pytest.fixture(scope="session", autouse=True)
def server():
    """One for all, apart from the tests that ask for a `bare` or a `slow` one."""
    yield
    sandbox.shutdown()


@pytest.fixture
def bare(monkeypatch):
    """A server that imports nothing, so that a new one costs no time. The one that has torch waits aside."""
    monkeypatch.setattr(children, "aside", sandbox.server._server)
    monkeypatch.setattr(sandbox.server, "_server", None)
    monkeypatch.setattr(sandbox.server, "PRELOAD", ())
    yield monkeypatch
    sandbox.shutdown()


@pytest.fixture
def slow(bare, tmp_path):
    """A server that takes longer to get ready than its tests' limits."""
    (tmp_path / "slow_to_import.py").write_text("import time; time.sleep(1.5)")
    bare.syspath_prepend(str(tmp_path))
    bare.setattr(sandbox.server, "PRELOAD", ("slow_to_import",))
