"""Who wants one check gets one check: labkit works where nothing but its base requirements is installed."""

import importlib.metadata
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent


def base_distributions() -> list[importlib.metadata.Distribution]:
    """What pip would install for pyproject's `dependencies`, and what those need in turn."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [Requirement(line) for line in project["dependencies"]]
    chosen: dict[str, importlib.metadata.Distribution] = {}
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        if name in chosen:
            continue
        chosen[name] = importlib.metadata.distribution(name)
        for line in chosen[name].requires or []:
            needed = Requirement(line)
            if not needed.marker or needed.marker.evaluate({"extra": ""}):
                waiting.append(needed)
    return list(chosen.values())


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A folder like site-packages with labkit, its base requirements, and nothing else: links to the real ones."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "labkit").symlink_to(ROOT / "labkit")
    for distribution in base_distributions():
        for top in {file.parts[0] for file in distribution.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
    return folder


def run_there(base: Path, code: str) -> subprocess.CompletedProcess[str]:
    # -S: without the site-packages of the tests
    return subprocess.run(
        [sys.executable, "-S", "-c", textwrap.dedent(code)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(base), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        cwd=base, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_what_the_course_brings_is_not_there(base):
    done = run_there(base, "import matplotlib")
    assert "No module named 'matplotlib'" in done.stderr
    assert not (base / "jupyterlab").exists() and not (base / "accelerate").exists()


def test_a_check_imports_and_judges_right_and_wrong(base):
    done = run_there(
        base,
        """
        import torch
        from labkit import checks

        def own(num_samples):
            return torch.randint(50, (num_samples, 4))

        def copied(num_samples):
            rows = own(num_samples)
            rows[:, 0] = rows[0, 0]
            return rows

        print(bool(checks.first_token(own)), bool(checks.first_token(copied)))
        """,
    )
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_a_log_is_read_and_a_run_guarded(base):
    done = run_there(
        base,
        """
        import sys
        from labkit.__main__ import main
        import labkit.callback, labkit.checklist, labkit.sandbox

        sys.exit(main(["triage", "-"]))
        """,
    )
    assert done.returncode == 0 and "nothing found" in done.stdout, done.stderr


def test_a_room_of_the_course_says_what_to_install(base):
    done = run_there(base, "import sys; from labkit.__main__ import main; sys.exit(main(['course', '00']))")
    assert done.returncode == 2 and "pip install -e '.[course]'" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
