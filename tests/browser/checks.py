"""What must hold for any notebook of the course in a real JupyterLab: `check_notebook(path)`.

    python tests/browser/checks.py notebooks/01_the_sampler_asserts.ipynb

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

PAINTED = "() => [...document.querySelectorAll('.labkit canvas')].map(c => c.toDataURL().length + c.ariaLabel).join()"

WIDGET = "application/vnd.jupyter.widget-view+json"
SIZES = {"wide": (1280, 900), "narrow": (700, 900)}
DISPLAYS = ".labkit:visible, .labkit-page:visible"
TOO_WIDE = """() => [...document.querySelectorAll('.labkit, .labkit-page, .jp-RenderedImage')].filter(
    (e) => e.scrollWidth > e.clientWidth + 1 || e.getBoundingClientRect().right > window.innerWidth).length"""
STOP_AND_TIME = """async (button) => {
    const cell = button.closest('.jp-CodeCell'), prompt = cell.querySelector('.jp-InputPrompt');
    const start = performance.now();
    let said = "";
    button.click();
    while (prompt.textContent.includes('*')) {
        said = cell.querySelector('.labkit .status')?.textContent || said;
        await new Promise((r) => setTimeout(r, 5));
    }
    return [(performance.now() - start) / 1000, said];
}"""


def check_notebook(path: str | Path, classic: bool = False) -> list[Path]:
    """Restart and run all of a copy of the notebook in JupyterLab; AssertionError says what does not hold.

    No cell raises unless it is tagged `raises-exception`, the page has no error, every dashboard moved before its
    cell ended (when there is one that runs by itself for more than a second), every run leaves a picture in the page
    and in the saved file and no widget, and nothing is wider than the page, 1280 or 700 pixels wide. Then every
    question is answered, every knob turned, every playground moved, run and stopped, and a dashboard's cell is run
    again and stopped.

    classic   in Notebook 7 instead

    Screenshots, light and dark, of the top and of every display that is live, go to tests/browser/shots; their paths
    are returned.
    """
    path = Path(path)
    name = "classic" if classic else path.stem
    with tempfile.TemporaryDirectory(prefix="labkit-notebook-") as folder:
        shutil.copy(path, folder)
        with jupyter.Lab(folder, classic=classic) as lab, lab.browser() as browser:
            notebook = browser.open(path.name)
            # Notebook 7.6 raises "… undefined (reading 'schema')" as it opens any notebook
            own = list(notebook.problems) if classic else []
            notebook.restart_and_run_all()
            moved = watch_until_done(notebook, timeout=300)
            check_saved(notebook.save(), moved)
            shots = []
            for size, (width, height) in SIZES.items():
                notebook.page.set_viewport_size({"width": width, "height": height})
                for theme in ("light", "dark"):
                    notebook.theme(f"JupyterLab {theme.title()}")
                    shots += look(notebook, f"{name}-{size}-{theme}")
                    wide = notebook.page.evaluate(TOO_WIDE)
                    assert not wide, f"{wide} displays are wider than a page of {width} pixels"
            notebook.page.set_viewport_size({"width": 1280, "height": 900})
            answer_quizzes(notebook)
            turn_knobs(notebook)
            move_playgrounds(notebook)
            shots.append(notebook.screenshot(f"{name}-used"))
            stop_a_run(notebook)
            problems = [problem for problem in notebook.problems if problem not in own]
            assert not problems, f"errors in the page: {problems}"
            return shots


def look(notebook: jupyter.Notebook, name: str) -> list[Path]:
    """The top of the page, and each display that can be used."""
    notebook.page.evaluate("() => jupyterapp.shell.currentWidget.content.scrollToItem(0)")
    notebook.page.wait_for_timeout(300)
    shots = [notebook.screenshot(f"{name}-top")]
    displays = notebook.page.locator(DISPLAYS)
    for number in range(displays.count()):
        displays.nth(number).scroll_into_view_if_needed()
        notebook.page.wait_for_timeout(100)
        shots.append(notebook.screenshot(f"{name}-{number + 1}"))
    return shots


def answer_quizzes(notebook: jupyter.Notebook) -> None:
    """Each with every option, until it says that it is right."""
    quizzes = notebook.page.locator(".labkit-page:has(form):visible")
    for number in range(quizzes.count()):
        quiz = quizzes.nth(number)
        results = []
        for option in range(quiz.locator("input").count()):
            quiz.locator("input").nth(option).check()
            quiz.locator("button").click()
            results.append(quiz.locator(".result").inner_text().split(".")[0].strip("✓✗ "))
        assert sorted(results) == ["Not this one"] * (len(results) - 1) + ["Right"], (number + 1, results)


def turn_knobs(notebook: jupyter.Notebook) -> None:
    """Each knob of each figure turns, and another picture shows."""
    figures = notebook.page.locator(".labkit-page:has(.knobs):visible")
    for number in range(figures.count()):
        figure = figures.nth(number)
        picture = figure.locator("img:visible")
        seen = {picture.get_attribute("src")}
        for at in range(figure.locator(".knob").count()):
            knob, before = figure.locator(".knob").nth(at), picture.get_attribute("alt")
            if knob.locator("input[type=range]").count():
                knob.locator("input").focus()
                at_end = knob.locator("input").evaluate("e => e.value === e.max")
                notebook.page.keyboard.press("Home" if at_end else "End")
            elif knob.locator("input[type=checkbox]").count():
                knob.locator("input").click()
            else:  # every position: two of them may rightly show the same
                for button in knob.locator("button:enabled").all():
                    button.click()
                    seen.add(picture.get_attribute("src"))
                if picture.get_attribute("alt") == before:
                    knob.locator("button:enabled").first.click()
            assert picture.get_attribute("alt") != before, f"figure {number + 1}: knob {at + 1} does not turn"
            seen.add(picture.get_attribute("src"))
        assert len(seen) > 1, f"figure {number + 1}: the picture does not change"


def move_playgrounds(notebook: jupyter.Notebook) -> None:
    """Each has a slider that moves, a button that runs, and Stop."""
    plays = notebook.page.locator(".labkit:has(input[type=range]):has(.panels):visible")
    for number in range(plays.count()):
        play = plays.nth(number)
        slider, shown = play.locator("input[type=range]").first, play.locator("label output").first
        before = shown.inner_text()
        slider.focus()
        notebook.page.keyboard.press("Home")
        at_home = shown.inner_text()
        notebook.page.keyboard.press("End")
        assert shown.inner_text() != at_home, f"playground {number + 1}: its slider stays at {before}"
        play.locator("button", has_text="Run").first.click()
        status, stop = play.locator(".status"), play.locator("button", has_text="Stop")
        notebook.until(lambda stop=stop: stop.is_enabled(), 60, f"playground {number + 1} does not run")
        notebook.page.wait_for_timeout(300)
        if stop.is_enabled():
            stop.click()
        ended = lambda status=status: re.search("stopped|finished|crashed", status.inner_text())
        notebook.until(ended, 60, f"playground {number + 1} does not end")


def stop_a_run(notebook: jupyter.Notebook) -> None:
    """Run the first cell again that watches a run, press Stop as soon as that is possible, and say how long it took."""
    sources = notebook.sources()
    number = next((i for i, source in enumerate(sources) if re.search(r"await\s+labkit\.watch", source)), None)
    if number is None:
        return
    for _ in range(3):  # a short run may be over before the button is reached
        notebook.run_cell(number)
        cell = notebook.cell(number)
        stop = cell.locator(".labkit:has(.panels) button", has_text="Stop")
        notebook.until(lambda stop=stop: stop.count() and stop.is_enabled(), 90, "no run began")
        took, status = stop.evaluate(STOP_AND_TIME)
        notebook.wait_until_done(90)
        assert not cell.locator(".labkit:has(.panels)").count(), "the live panels stay when the run has ended"
        if "stopped" in status:
            print(f"{notebook.name}: Stop took {took:.2f} s")
            return
    raise AssertionError(f"Stop did not stop the run of cell {number}: {status}")


def watch_until_done(notebook: jupyter.Notebook, timeout: float) -> int:
    """Wait for Run All to end. Returns how many different pictures the charts showed while a cell was running."""
    pictures: set[str] = set()

    def done() -> bool:
        if notebook.starred():
            pictures.add(notebook.page.evaluate(PAINTED))
            return False
        return notebook.done()

    notebook.until(done, timeout, "Run All did not end")
    notebook.wait_until_done(30)
    return len(pictures)


def check_saved(book: dict[str, Any], moved: int) -> None:
    """The saved file has a picture for every run, no widget but a playground's, no traceback, and is small."""
    watched = turned = 0
    for number, cell in enumerate(c for c in book["cells"] if c["cell_type"] == "code"):
        outputs, source = cell["outputs"], "".join(cell["source"])
        tags = cell["metadata"].get("tags", [])
        for output in outputs:
            raised = output["output_type"] == "error" and "raises-exception" not in tags
            assert not raised, f"code cell {number} raised {output.get('ename')}: {output.get('evalue')}"
        shown = [output["data"] for output in outputs if "data" in output]
        for place, data in enumerate(shown):
            image = "".join(data.get("image/png", ""))
            assert not image or len(image) > 3000, f"code cell {number}: the picture is still blank"
            assert len(image) < 300_000, f"code cell {number}: a picture takes {len(image)} characters"
            if "labkit-page" in "".join(data.get("text/html", "")):
                turned += 1
            if WIDGET in data:
                assert "playground" in "".join(data["text/plain"]), f"code cell {number}: a live board was saved"
                under = set(shown[place + 1]) if place + 1 < len(shown) else set()
                assert under & {"image/png", "text/markdown"}, f"code cell {number}: nothing under the widget: {under}"
        if re.search(r"await\s+labkit\.watch", source):
            watched += 1
            assert any("image/png" in data for data in shown), f"code cell {number}: no picture of its run"
    size = sum(len(json.dumps(c.get("outputs", ""))) for c in book["cells"])
    # a figure with knobs holds every position
    assert size <= 600_000 + 2_000_000 * turned, f"the outputs take {size} bytes"
    assert moved > 2 or not watched, "no chart moved while a cell was running"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        for shot in check_notebook(argument):
            print(shot)
