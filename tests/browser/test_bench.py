"""Lesson 03 in a real JupyterLab: a reader's function, wrong, endless and right, is what the cells below run.

A copy of the checkout's lessons and of what they link to is opened and used by the tests in order: they look at one
page. Screenshots: tests/browser/shots.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import checks
import jupyter
import pytest

from labkit.course import lab as course_lab

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
LESSON = "notebooks/03_kl_of_ten_thousand.ipynb"
HEAD = 'def my_kl(logp, ref_logp):\n    """[B, T] each -> the KL of each token, [B, T], nats."""\n'
WRONG = HEAD + "    d = (ref_logp - logp).clamp(max=10)\n    return d.exp() - d - 1\n"
ENDLESS = HEAD + "    while True:\n        pass\n"
MATRIX_OF_WORDS = HEAD + '    return "half of the square"\n'
RIGHT = HEAD + "    return (ref_logp - logp).square() / 2\n"

# Press Run on the active cell, and time until its live panels are painted and until a picture stands there.
RUN_AND_TIME = """async () => {
    const cell = jupyterapp.shell.currentWidget.content.activeCell.node;
    const wait = () => new Promise((r) => setTimeout(r, 10));
    const start = performance.now(), seconds = () => (performance.now() - start) / 1000;
    jupyterapp.commands.execute("notebook:run-cell");
    while (cell.querySelector(".jp-OutputArea-output img") && seconds() < 60) await wait();
    const blank = document.createElement("canvas");
    const painted = (c) => {
        const data = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        return data.some((value) => value);
    };
    let live = null;
    while (seconds() < 120) {
        const canvas = cell.querySelector(".labkit canvas");
        if (live === null && canvas && canvas.width && painted(canvas)) live = seconds();
        if (cell.querySelector(".jp-OutputArea-output img")) break;
        await wait();
    }
    return [live, seconds()];
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkout of the lessons, for a reader to write in."""
    folder = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for name in ("notebooks", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return folder


@pytest.fixture(scope="module")
def browser(folder):
    root = course_lab.root_of(folder / LESSON)
    with jupyter.Lab(root) as lab, lab.browser(height=1000) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(browser):
    return browser.open(LESSON)


@pytest.fixture(scope="module")
def place(page):
    """Where the cells of the page stand that the tests need."""
    sources = page.sources()

    def first(start: str) -> int:
        return next(number for number, source in enumerate(sources) if source.startswith(start))

    return {
        "watch": next(number for number, source in enumerate(sources) if "await labkit.watch" in source),
        "question": first("labkit.predict("),
        "knob before": first("steps = walk(k3)"),
        "mine": first("def my_kl("),
        "solution": first("def k2("),
        "exercise": first("kl = labkit.exercise("),
        "knob": first("mended = walk(kl)"),
        "curves": first("arms = {"),
        "last": len(sources) - 1,
    }


def words(page, number):
    """What a cell shows, as text; JupyterLab lays a cell out some time after it was scrolled to."""
    shown = page.cell(number).locator(".jp-Cell-outputWrapper")
    return page.until(shown.inner_text, 20, f"cell {number} shows no words")


def errors(page):
    """The cells that raised: number -> the exception's name."""
    found = {}
    for number in range(len(page.sources())):
        names = [o["ename"] for o in page.outputs(number) if o["output_type"] == "error"]
        if names:
            found[number] = names[0]
    return found


def printed(page, number):
    """What a cell printed."""
    return "".join("".join(o["text"]) for o in page.outputs(number) if o["output_type"] == "stream")


def titles(page, number):
    """What the figure with knobs of a cell says it shows."""
    return page.cell(number).locator(".labkit-page img:visible").get_attribute("alt")


def run_one_by_one(page, first, last, timeout):
    for number in range(first, last + 1):
        page.run_cell(number)
        page.page.wait_for_timeout(200)
        page.wait_until_done(timeout)


def shoot(page, number, name):
    page.cell(number)
    page.page.wait_for_timeout(700)
    return page.screenshot(f"bench-{name}")


def test_the_page_runs_to_its_end_with_the_empty_function_and_no_cell_fails(page, place):
    page.restart_and_run_all()
    start = time.monotonic()
    page.wait_until_done(420)
    print(f"Run All of the page: {time.monotonic() - start:.0f} s")
    assert errors(page) == {}
    assert page.sources()[place["mine"]].rstrip().endswith("# your code here")
    assert "Not attempted yet." in words(page, place["exercise"])
    assert "with solution in place of k3" in titles(page, place["knob"])
    assert re.search(r"^solution ", printed(page, place["curves"]), re.MULTILINE)
    checks.check_saved(page.save(), moved=9)


def test_the_first_picture_stands_soon_after_run_is_pressed(page, place):
    page.page.evaluate("n => { jupyterapp.shell.currentWidget.content.activeCellIndex = n }", place["watch"])
    page.cell(place["watch"])
    live, picture = page.page.evaluate(RUN_AND_TIME)
    page.wait_until_done(60)
    print(f"from Run to painted live panels: {live} s; to the picture that stays: {picture:.1f} s")
    assert picture < 30, "on an idle machine it is under 5 s"
    assert page.cell(place["watch"]).locator(".labkit").count() == 0


def test_a_wrong_function_is_told_in_words_and_runs_to_the_end_where_only_the_verdicts_fail(page, place):
    page.write(place["mine"], WRONG)
    page.run_from(place["mine"])
    page.wait_until_done(420)
    said = words(page, place["exercise"])
    assert "✗ Not yet." in said and "At d = 0.5 the slope is" in said and "see what it does" in said
    assert "with yours in place of k3" in titles(page, place["knob"])
    assert re.search(r"^yours ", printed(page, place["curves"]), re.MULTILINE)
    assert list(errors(page)) == [place["last"]]
    tags = page.save()["cells"][place["last"]]["metadata"]["tags"]
    assert {"checked", "hidden"} <= set(tags)
    (error,) = [output for output in page.outputs(place["last"]) if output["output_type"] == "error"]
    assert error["evalue"].startswith("FAIL  yours: far tokens"), "the verdict says whose function it was"
    for name in ("exercise", "knob", "curves"):
        shoot(page, place[name], f"wrong-{name}")


def test_what_is_no_tensor_is_told_in_words_too(page, place):
    page.write(place["mine"], MATRIX_OF_WORDS)
    run_one_by_one(page, place["mine"], place["knob"], 120)
    assert "It returned str. A tensor [B, T] is expected." in words(page, place["exercise"])
    assert list(errors(page)) == [place["last"]], "the figure below it is drawn, though its run died"
    shoot(page, place["knob"], "no-tensor-knob")


def test_an_endless_function_ends_with_a_sentence_and_the_solution_runs(page, place):
    page.write(place["mine"], ENDLESS)
    start = time.monotonic()
    run_one_by_one(page, place["mine"], place["exercise"], 120)
    print(f"the endless function: {time.monotonic() - start:.1f} s")
    said = words(page, place["exercise"])
    assert "`my_kl`" not in said, "code is shown as code"
    assert re.search(r"my_kl (was still computing after 10 s|did not come back within 30 s)", said)
    assert "run the solution" in said
    run_one_by_one(page, place["knob"], place["knob"], 120)
    assert "with solution in place of k3" in titles(page, place["knob"])
    shoot(page, place["exercise"], "endless-exercise")


def test_a_right_function_is_told_so_and_is_what_runs(page, place):
    page.write(place["mine"], RIGHT)
    run_one_by_one(page, place["mine"], place["curves"], 240)
    assert words(page, place["exercise"]).strip().startswith("✓ Right.")
    assert "Hint" not in words(page, place["exercise"])
    assert "with yours in place of k3" in titles(page, place["knob"])
    shoot(page, place["exercise"], "right-exercise")
    shoot(page, place["knob"], "right-knob")
    shoot(page, place["curves"], "right-curves")


def test_the_knob_follows_the_mouse_and_the_arrow_keys_and_jupyterlab_does_not_hear_them(page, place):
    page.page.evaluate("n => { jupyterapp.shell.currentWidget.content.activeCellIndex = n }", place["knob"])
    figure = page.cell(place["knob"]).locator(".labkit-page")
    slider, picture = figure.locator("input[type=range]"), figure.locator("img:visible")
    slider.scroll_into_view_if_needed()
    box, mouse, seen = slider.bounding_box(), page.page.mouse, set()
    y = box["y"] + box["height"] / 2
    mouse.move(box["x"] + 0.3 * box["width"], y)
    mouse.down()
    for part in range(30, 100, 5):
        mouse.move(box["x"] + part / 100 * box["width"], y)
        seen.add(picture.get_attribute("src"))
    mouse.up()
    assert len(seen) >= 6, "the picture follows the finger"
    slider.focus()
    page.page.keyboard.press("Home")
    before, places = picture.get_attribute("src"), []
    cells = len(page.sources())
    for key in ("ArrowRight", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "b", "a", "x"):
        page.page.keyboard.press(key)
        places.append(slider.input_value())
    assert places[:5] == ["1", "2", "1", "0", "1"]
    assert picture.get_attribute("src") != before
    script = "() => { const n = jupyterapp.shell.currentWidget.content; return n.activeCellIndex; }"
    assert page.page.evaluate(script) == place["knob"], "no other cell is selected"
    assert len(page.sources()) == cells, "b and a add no cell, x cuts none"
    more = figure.locator("button[aria-label$='one more']")
    at = picture.get_attribute("alt")
    more.click()
    assert picture.get_attribute("alt") != at


def test_nothing_is_wider_than_a_narrow_page_in_both_themes(page, place):
    page.page.set_viewport_size({"width": 700, "height": 1000})
    for theme in ("Light", "Dark"):
        page.theme(f"JupyterLab {theme}")
        for name in ("watch", "question", "knob", "curves"):
            shoot(page, place[name], f"narrow-{theme.lower()}-{name}")
            assert not page.page.evaluate(checks.TOO_WIDE), f"{name}, {theme}"
    page.page.set_viewport_size({"width": 1280, "height": 1000})
    for name in ("question", "knob", "exercise"):
        shoot(page, place[name], f"dark-{name}")
    page.theme("JupyterLab Light")


def test_a_page_that_was_saved_shut_down_and_reopened_stands_as_it_was(page, place):
    question = page.cell(place["question"]).locator(".labkit-page")
    question.locator("input").nth(2).check()
    question.locator("button").click()
    answered = question.locator(".result").inner_text()
    assert answered.startswith("✓ Right.")
    page.save()
    page.shut_down_and_reopen()
    assert not page.starred()
    shown = []
    for number in range(len(page.sources())):
        shown.append(page.cell(number).text_content())
    page.page.wait_for_timeout(500)
    for number, text in enumerate(shown):
        assert "Error displaying widget" not in text, number
        assert "model not found" not in text, number
    assert not page.page.locator(".jp-OutputArea-output:has-text('Error displaying widget')").count()
    question = page.cell(place["question"]).locator(".labkit-page")
    result = question.locator(".result")
    assert page.until(result.inner_text, 20, "the question is no longer answered") == answered
    assert question.locator("input").nth(2).is_checked()
    figure = page.cell(place["knob"]).locator(".labkit-page")
    picture = figure.locator("img:visible")
    before = picture.get_attribute("src")
    figure.locator("input[type=range]").focus()
    page.page.keyboard.press("End")
    assert picture.get_attribute("src") != before, "the knob turns, and no cell has run"
    image = page.cell(place["watch"]).locator(".jp-OutputArea-output img")
    assert image.count() == 1 and image.evaluate("e => e.naturalWidth") > 800
    shoot(page, place["knob"], "reopened-knob")
    shoot(page, place["question"], "reopened-question")


def test_the_page_had_no_error(page):
    assert not page.problems


# ---- pages that nobody has run


@pytest.mark.parametrize("name", ["notebooks/00_start_here.ipynb", "notebooks/more/03_kl_laboratory.ipynb"])
def test_a_page_that_is_opened_and_saved_does_not_change(browser, folder, name):
    file = folder / name
    committed = file.read_text()
    notebook = browser.open(name)
    notebook.save()
    notebook.page.wait_for_timeout(1000)
    saved = file.read_text()
    notebook.page.close()
    before, after = json.loads(committed), json.loads(saved)
    for book in (before, after):
        book["metadata"]["language_info"].pop("version")
    assert changes(before, after) == []
    lines = zip(committed.splitlines(), saved.splitlines(), strict=True)
    different = [old for old, new in lines if old != new]
    assert all('"version"' in line for line in different), "the lines that git would show"


def changes(before, after, where=""):
    """Where two JSON values differ, in words."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        for key in sorted({*before, *after}):
            found += changes(before.get(key), after.get(key), f"{where}/{key}")
        return found
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        found = []
        for number, pair in enumerate(zip(before, after, strict=True)):
            found += changes(*pair, f"{where}/{number}")
        return found
    return [] if before == after else [f"{where}: {str(before)[:60]!r} became {str(after)[:60]!r}"]


def test_a_link_to_docs_opens_in_jupyterlab_and_the_gallery_has_its_pictures(browser, folder):
    notebook = browser.open("notebooks/01_the_sampler_asserts.ipynb")
    link = notebook.page.locator(".jp-RenderedMarkdown a", has_text="On an H200").first
    link.scroll_into_view_if_needed()
    link.click()
    opened = "() => jupyterapp.shell.currentWidget?.context?.path"
    recording = "docs/recorded/01_the_sampler_asserts.ipynb"
    notebook.until(lambda: notebook.page.evaluate(opened) == recording, 30, "the recording does not open")
    notebook.page.close()

    notebook = browser.open("notebooks/00_start_here.ipynb")
    picture = notebook.page.locator(".jp-RenderedMarkdown img[src*='docs/pictures/gallery']").first
    picture.scroll_into_view_if_needed()
    notebook.until(lambda: picture.evaluate("e => e.naturalWidth") > 50, 20, "the gallery's picture is not there")
    picture.scroll_into_view_if_needed()
    notebook.page.wait_for_timeout(500)
    notebook.screenshot("bench-00-gallery")
    notebook.page.close()


def test_every_link_of_every_page_leads_to_a_file_below_the_root():
    pages = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    pages += sorted((ROOT / "notebooks/more").glob("[0-9][0-9]_*.ipynb"))
    assert len(pages) > 20
    broken = []
    for path in pages:
        root = course_lab.root_of(path)
        cells = json.loads(path.read_text())["cells"]
        prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
            if re.match(r"[a-z]+:", link):
                continue
            target = (path.parent / link).resolve()
            # JupyterLab opens files; at a link to a folder it shows an error
            if not (target.is_file() and target.is_relative_to(root)):
                broken.append((path.name, link))
    assert broken == []
