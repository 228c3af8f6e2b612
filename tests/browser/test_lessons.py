"""Every lesson in a real JupyterLab, and one in Notebook 7. LABKIT_LESSONS="01 more/03" chooses some."""

import os
from pathlib import Path

import checks
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

FOLDER = Path(__file__).parents[2] / "notebooks"
CHOSEN = os.environ.get("LABKIT_LESSONS", "").split() or ["[0-9][0-9]", "more/[0-9][0-9]"]
LESSONS = [p for n in CHOSEN for p in sorted(FOLDER.glob(f"{n}_*.ipynb"))]


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_a_lesson_runs_in_jupyterlab(path):
    checks.check_notebook(path)


def test_a_lesson_runs_in_notebook_7():
    (path,) = FOLDER.glob("03_*.ipynb")
    checks.check_notebook(path, classic=True)
