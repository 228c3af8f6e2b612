"""Shared by all tests: no network, few threads, and a small policy loaded once."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads of several processes starve each other

import pytest


@pytest.fixture(scope="session")
def tiny():
    """The shipped policy, for tests that do not change it."""
    from labkit import policy

    return policy.load("tiny", "cpu")


@pytest.fixture
def fresh():
    """A policy of the test's own, to train or to break."""
    from labkit import policy

    return policy.load("tiny", "cpu")


def pytest_collection_modifyitems(items):
    try:
        import torch

        cuda = torch.cuda.is_available()
    except ImportError:
        cuda = False
    for item in items:
        if item.get_closest_marker("gpu") and not cuda:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none here"))
