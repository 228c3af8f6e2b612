"""What must hold for any notebook of the course in a real JupyterLab: `check_notebook(path)`.

    python tests/browser/checks.py notebooks/01_multinomial_assert.ipynb

runs it by hand and prints where the screenshots are.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupyter

LIVE = ".labkit .panels"  # a dashboard
RUNNING = "() => [...document.querySelectorAll('.jp-InputPrompt')].filter(p => p.textContent.includes('*')).length"
PAINTED = "() => [...document.querySelectorAll('.labkit canvas')].map(c => c.toDataURL().length + c.ariaLabel).join()"


def check_notebook(path: str | Path, timeout: float = 300, name: str | None = None) -> list[Path]:
    """Restart and run all of a copy of the notebook in JupyterLab; AssertionError says what does not hold.

    No cell raises unless it is tagged `raises-exception`, the page has no error, every dashboard moved before its
    cell ended (when there is one that runs by itself for more than a second), every run leaves a picture or words in
    the saved file, and nothing is wider than the page. Screenshots of the top, of every dashboard and of the dark
    theme go to tests/browser/shots; their paths are returned.
    """
    path = Path(path)
    name = name or path.stem
    with tempfile.TemporaryDirectory(prefix="labkit-notebook-") as folder:
        shutil.copy(path, folder)
        with jupyter.Lab(folder) as lab, lab.browser() as browser:
            notebook = browser.open(path.name)
            notebook.restart_and_run_all()
            moved = watch_until_done(notebook, timeout)
            shots = [notebook.screenshot(f"{name}-top")]
            shots += look_at_dashboards(notebook, name)
            saved = notebook.save()
            check_saved(saved, moved)
            assert not notebook.problems, f"errors in the page: {notebook.problems}"
            wide = notebook.page.evaluate(
                "() => [...document.querySelectorAll('.labkit')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
            )
            assert not wide, f"{wide} displays are wider than the page"
            notebook.theme("JupyterLab Dark")
            shots.append(notebook.screenshot(f"{name}-dark"))
            return shots


def watch_until_done(notebook: jupyter.Notebook, timeout: float) -> int:
    """Wait for Run All to end. Returns how many different pictures the charts showed while a cell was running."""
    seen: set[str] = set()

    def done() -> bool:
        if notebook.page.evaluate(RUNNING):
            seen.add(notebook.page.evaluate(PAINTED))
            return False
        return notebook.done()

    notebook.until(done, timeout, "Run All did not end")
    notebook.wait_until_done(30)
    return len(seen)


def look_at_dashboards(notebook: jupyter.Notebook, name: str) -> list[Path]:
    shots = []
    boards = notebook.page.locator(f"{LIVE}:visible")
    for number in range(boards.count()):
        boards.nth(number).scroll_into_view_if_needed()
        notebook.page.wait_for_timeout(100)
        shots.append(notebook.screenshot(f"{name}-dashboard-{number + 1}"))
    return shots


def check_saved(book: dict[str, Any], moved: int) -> None:
    """The saved file has a picture for every run, no traceback, and is small."""
    long_runs = 0
    for number, cell in enumerate(c for c in book["cells"] if c["cell_type"] == "code"):
        outputs = cell["outputs"]
        tags = cell["metadata"].get("tags", [])
        for output in outputs:
            raised = output["output_type"] == "error" and "raises-exception" not in tags
            assert not raised, f"code cell {number} raised {output.get('ename')}: {output.get('evalue')}"
        for widget, slot in zip(outputs, outputs[1:], strict=False):
            if "application/vnd.jupyter.widget-view+json" not in widget.get("data", {}):
                continue
            kinds = set(slot.get("data", {}))
            assert kinds & {"image/png", "text/markdown"}, f"code cell {number}: nothing under the widget: {kinds}"
            image = "".join(slot["data"].get("image/png", ""))
            assert not image or len(image) > 3000, f"code cell {number}: the picture is still blank"
            assert len(image) < 80_000, f"code cell {number}: the picture takes {len(image)} characters"
            long_runs += bool(re.search(r"await\s+labkit\.watch", "".join(cell["source"])))
    size = sum(len(json.dumps(c.get("outputs", ""))) for c in book["cells"])
    assert size <= 300_000, f"the outputs take {size} bytes"
    assert moved > 2 or not long_runs, "no chart moved while a cell was running"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        for shot in check_notebook(argument):
            print(shot)
