"""In a real JupyterLab: a question answered and a hint opened in the page are lines of the learner's file."""

from __future__ import annotations

from pathlib import Path

import jupyter
import pytest

from labkit import course, lessons, progress

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

PAGE = "02_kl_stays_at_zero.ipynb"
WRONG = "def my_write(parameters, gradients):\n    for p, g in zip(parameters, gradients):\n        p.grad = g\n"


def test_an_answer_an_attempt_and_a_hint_are_noted_and_no_pop_up_asks_about_news(checkout, monkeypatch):
    copy = course.bring_up_to_date(checkout).copy
    (checkout.parent / "docs").mkdir()
    config = Path(course.__file__).with_name("jupyter")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(config))
    monkeypatch.setenv("PYTHONPATH", str(Path(lessons.__file__).parents[1]))
    with jupyter.Lab(checkout.parent) as lab, lab.browser() as browser:
        page = browser.open(f"my-notebooks/{PAGE}")
        sources = page.sources()
        starts = ("import labkit\n", "labkit.predict(", "def my_write(", "def add_up(", "mine = labkit.exercise(")
        setup, question, mine, solution, exercise = (
            next(at for at, source in enumerate(sources) if source.startswith(start)) for start in starts
        )
        page.write(mine, WRONG)
        # what the page's cells in between define is not needed here
        for cell in (1, setup, question, mine, solution, exercise):
            page.run_cell(cell)
            page.wait_until_done(120)
        asked = page.cell(question)
        asked.locator("input[type=radio]").first.check()
        asked.locator("button[type=submit]").click()
        judged = page.cell(exercise)
        judged.get_by_text("Hint 1 of 2").click()
        judged.get_by_text("Hint 2 of 2").click()
        judged.get_by_text("Hint 1 of 2").click()  # closed again: no hint is opened

        def noted():
            lines = progress.read(copy / progress.FILE)
            return lines if len(lines) >= 4 else None

        lines = page.until(noted, 20, "nothing is noted")
        kinds = [(line["kind"], line.get("right"), line.get("hint")) for line in lines]
        wanted = [("exercise", False, None), ("question", False, None), ("hint", None, 1), ("hint", None, 2)]
        assert kinds == wanted
        assert lines[1]["name"].startswith("The loop of `add` and `copy` has ended") and not page.problems
        page.page.wait_for_timeout(1000)
        assert not page.page.get_by_text("Jupyter news").count()
        page.screenshot("progress")
