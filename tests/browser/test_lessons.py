"""Lessons of the course in a real JupyterLab. LABKIT_LESSONS="01 03" chooses others than the first."""

import os
from pathlib import Path

import checks
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

CHOSEN = os.environ.get("LABKIT_LESSONS", "01").split()
LESSONS = [p for n in CHOSEN for p in sorted((Path(__file__).parents[2] / "notebooks").glob(f"{n}_*.ipynb"))]


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_a_lesson_runs_in_jupyterlab(path):
    checks.check_notebook(path)
