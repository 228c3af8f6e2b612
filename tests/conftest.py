"""Shared by all tests: no network, few threads, and a small policy loaded once."""

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("LABKIT_SAVED_PAGES", "1")  # knobs leave named positions, as in the committed pages
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads of several processes starve each other
if "PYTEST_XDIST_WORKER" in os.environ:  # a process per core: more threads than that cost time
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import functools
import importlib.util
import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def script():
    """`script("site")`: scripts/site.py as a module."""

    @functools.cache
    def load(name):
        path = Path(__file__).resolve().parent.parent / "scripts" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"script_{name}", path)
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def checkout(tmp_path):
    """The lessons of a checkout of the test's own: its folder `notebooks`."""
    lessons = Path(__file__).resolve().parent.parent / "notebooks"
    ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    return Path(shutil.copytree(lessons, tmp_path / "notebooks", ignore=ignored))


@pytest.fixture(scope="session")
def tiny():
    """The shipped policy, for tests that do not change it."""
    from labkit.grpo import policy

    return policy.load("tiny", "cpu")


@pytest.fixture
def fresh():
    """A policy of the test's own, to train or to break."""
    from labkit.grpo import policy

    return policy.load("tiny", "cpu")


@pytest.fixture(autouse=True)
def no_trainer_left():
    """What a trainer leaves behind in its process (TRL's bf16 default, accelerate's singletons) ends with its test."""
    before = {name: value for name, value in os.environ.items() if name.startswith("ACCELERATE_")}
    yield
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        del os.environ[name]
    os.environ.update(before)
    if "accelerate.state" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        GradientState._reset_state()
        AcceleratorState._reset_state(reset_partial_state=True)


def pytest_collection_modifyitems(items):
    try:
        import torch

        cuda = torch.cuda.is_available()
    except ImportError:
        cuda = False
    for item in items:
        if item.get_closest_marker("gpu") and not cuda:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none here"))
