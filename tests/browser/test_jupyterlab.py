"""The displays in a real JupyterLab: they move, stop, overlay, survive a reload and both themes, and leave a picture.

The notebook is written here and run once; the tests look at the one page in order. Screenshots: tests/browser/shots.
"""

from __future__ import annotations

import os
import random

import checks
import jupyter
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from labkit.display import figure, panels
from labkit.display import notebook as displays

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

TRAIN = """
import math, random, time
import labkit
from labkit.events import Step

def train(kind="fix", steps=150, lr=1e-3, pause=0.02, mu=8):
    dice = random.Random(0)
    for s in range(1, steps + 1):
        time.sleep(pause)
        far = s / steps
        norm = math.exp((4 if kind == "bug" else -1) * far) * dice.uniform(0.6, 1.6)
        if kind == "bug" and far > 0.9:
            norm = math.nan
        yield Step(step=s, round=1 + (s - 1) // mu, inner=1 + (s - 1) % mu, grad_norm=norm,
                   kl=(0.5 * far**3 if kind == "bug" else 0.05 * far), reward=far * dice.uniform(0.7, 1),
                   memory_allocated=(300 + 200 * far) * 2**20, memory_reserved=(500 + 300 * far) * 2**20)
    if kind == "bug":
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")

def hung():
    yield from train(steps=5)
    time.sleep(600)
"""
CELLS = [
    TRAIN,
    "bug = await labkit.watch(train, 'bug', label='bug', title='before the fix')\nprint(bug.outcome.signature)",
    "fix = await labkit.watch(train, label='fix', ghost=bug, thresholds={'grad_norm': 10, 'kl': 0.2})",
    "stopped = await labkit.watch(hung)\nprint(stopped.outcome.signature)",
    "pg = labkit.playground(train, {'bug': {'kind': 'bug'}, 'fix': {}},"
    " {'lr': (1e-5, 1e-1, 1e-3, 'log'), 'steps': (50, 400, 300)}, title='Try it')\npg",
    "labkit.predict('Where does `multinomial` die?', ['in round 1', 'in the **next** round'], 1,"
    " 'The parameters are bad only after the update.')",
    "def my_fix(x): ...\nlabkit.exercise(lambda f: f(1) == 2, my_fix, hints=['Look.'])",
    "labkit.show(labkit.kl.k3)",
]
BUG, FIX, HUNG, PLAY = 0, 1, 2, 3  # dashboards, in the order of the page
BLUE, RED = panels.TONES["fix"][0], panels.TONES["bug"][0]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    cells = [new_code_cell(source.strip(), id=f"c{i}") for i, source in enumerate(CELLS)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), folder / "displays.ipynb")
    with jupyter.Lab(folder) as lab, lab.browser(height=1000) as browser:
        yield browser.open("displays.ipynb")


def board(page, number):
    return page.page.locator(f".labkit:has(.panels) >> nth={number}")


def status(page, number):
    """The line that says how its runs are doing; "" while it is not there."""
    line = board(page, number).locator(".status")
    return line.inner_text() if line.count() else ""


def paint(page, number):
    """Pixels of a dashboard's first chart: {colour: count}, colours rounded to steps of 8."""
    script = """c => { const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, n = {};
        for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 60) {
            const k = [d[i], d[i + 1], d[i + 2]].map((v) => v >> 3).join(); n[k] = (n[k] ?? 0) + 1; }
        return n; }"""
    return board(page, number).locator("canvas").first.evaluate(script)


def strength(page, number, colour):
    """How many of its pixels have about this colour."""
    pixels = paint(page, number)
    red, green, blue = (int(colour[i : i + 2], 16) >> 3 for i in (1, 3, 5))
    near = [(red + a, green + b, blue + c) for a in (-1, 0, 1) for b in (-1, 0, 1) for c in (-1, 0, 1)]
    return sum(pixels.get(f"{r},{g},{b}", 0) for r, g, b in near)


def stop_hung_run(page):
    """Wait until the hung run shows steps, press Stop in the page, and time until the cell has returned."""
    page.until(lambda: "5 steps" in status(page, HUNG), 60, "the hung run shows no steps")
    page.page.wait_for_timeout(300)
    seconds = board(page, HUNG).locator("button", has_text="Stop").evaluate(checks.STOP_AND_TIME)
    page.wait_until_done(60)
    return seconds


def test_the_chart_moves_before_its_cell_ends(page):
    page.restart_and_run_all()
    page.until(lambda: board(page, BUG).is_visible(), 60, "no live dashboard")
    pictures = set()

    def moved():
        assert page.starred(), "the run ended before the chart had moved"
        pictures.add(str(paint(page, BUG)))
        return len(pictures) >= 4

    page.until(moved, 30, "the chart does not move")
    page.screenshot("live")


def test_the_other_run_stays_behind_while_the_new_one_is_drawn(page):
    page.until(lambda: board(page, FIX).is_visible(), 60, "no second dashboard")
    page.until(lambda: strength(page, FIX, BLUE) > 100, 30, "the fix is not drawn")
    assert page.starred()
    # its opacity is in the alpha channel, which is not compared
    assert strength(page, FIX, RED) > 100, "the ghost is not drawn"
    board(page, FIX).scroll_into_view_if_needed()
    page.screenshot("ghost")
    caption = board(page, FIX).locator("figcaption").first.inner_text()
    assert "bug NaN" in caption and "fix" in caption


def test_stop_returns_the_cell_within_half_a_second(page):
    seconds = [stop_hung_run(page)]
    # when others are using this machine: only the order of magnitude
    limit = 2.0 if os.getloadavg()[0] / os.cpu_count() > 2 else 0.5
    while min(seconds) > limit and len(seconds) < 5:
        page.run_cell(3)
        seconds.append(stop_hung_run(page))
    assert min(seconds) <= limit, seconds
    assert "stopped after 5 steps" in status(page, HUNG)


def test_run_all_goes_past_the_playground_and_the_status_says_how_each_run_ended(page):
    page.wait_until_done(60)
    assert status(page, FIX).startswith("fix: finished: 150 steps")
    assert "bug: crashed in round 19, after 150 steps" in status(page, FIX)


def test_the_saved_file_has_a_picture_of_each_run_and_words_for_the_rest_hidden_while_the_live_panels_show(page):
    book = page.save()
    checks.check_saved(book, moved=9)
    for cell, kind in {1: "image/png", 2: "image/png", 3: "image/png", 4: "text/markdown", 5: "text/markdown"}.items():
        assert kind in book["cells"][cell]["outputs"][1]["data"]
    slots = page.page.locator(".jp-OutputArea-child:has(.labkit) + .jp-OutputArea-child")
    kinds = [slots.nth(i).locator("img, .jp-RenderedMarkdown").count() for i in range(5)]
    assert kinds == [1] * 5 and not any(slots.nth(i).is_visible() for i in range(5))


def test_the_buttons_and_sliders_of_the_playground_work_from_the_keyboard(page):
    play, press = board(page, PLAY), page.page.keyboard.press
    play.scroll_into_view_if_needed()
    play.locator("button", has_text="Run bug").focus()
    press("Tab")
    assert page.page.evaluate("document.activeElement.ariaLabel") == "Run fix"
    play.locator("input[aria-label=lr]").focus()
    for _ in range(25):
        press("ArrowRight")
    assert play.locator("label", has_text="lr").locator("output").inner_text() == "0.01"
    play.locator("input[aria-label=steps]").focus()
    press("Home")
    assert play.locator("label", has_text="steps").locator("output").inner_text() == "50"
    play.locator("button", has_text="Run bug").focus()
    press("Enter")
    page.until(lambda: "crashed" in status(page, PLAY), 60, "Run bug did not run to its end")
    assert "after 50 steps" in status(page, PLAY)


def test_the_playground_overlays_both_runs_and_stops(page):
    play = board(page, PLAY)
    play.locator("input[aria-label=steps]").focus()
    page.page.keyboard.press("End")
    play.locator("button", has_text="Run fix").click()
    page.until(lambda: strength(page, PLAY, BLUE) > 100, 60, "the fix is not drawn")
    assert strength(page, PLAY, RED) > 100 and not page.starred(), "both runs, and no cell is busy"
    page.screenshot("playground")
    play.locator("button", has_text="Stop").click()
    page.until(lambda: "fix: stopped" in status(page, PLAY), 10, "Stop does not stop")
    assert play.locator("button", has_text="Run fix").is_enabled()
    slot = page.save()["cells"][4]["outputs"][1]["data"]
    assert "image/png" in slot, "the picture of the runs is saved, though the cell has long ended"


def test_a_page_that_is_reloaded_draws_what_the_kernel_still_has(page):
    before = paint(page, PLAY)
    page.page.reload()
    page.wait_for_kernel()
    page.until(lambda: board(page, PLAY).is_visible(), 60, "no dashboard after a reload")
    page.until(lambda: paint(page, PLAY) == before, 30, "the chart differs after a reload")


def test_reset_clears_the_runs_and_puts_the_sliders_back(page):
    play = board(page, PLAY)
    play.locator("button", has_text="Reset").click()
    page.until(lambda: "ready" in status(page, PLAY), 10, "Reset does nothing")
    assert play.locator("label", has_text="steps").locator("output").inner_text() == "300"
    page.until(lambda: strength(page, PLAY, BLUE) == 0, 10, "the run is still drawn")


def test_a_prediction_is_judged_at_once(page):
    quiz = page.page.locator(".labkit.quiz")
    quiz.scroll_into_view_if_needed()
    assert quiz.locator("button").is_disabled()
    quiz.locator("input").nth(0).check()
    quiz.locator("button").click()
    assert "Not this one" in quiz.locator(".result").inner_text()
    assert "only after the update" not in quiz.inner_text(), "a wrong choice must not give the reason away"
    for key in ("Shift+Tab", "ArrowDown", "Enter"):
        page.page.keyboard.press(key)
    assert "Right. The parameters are bad only after the update." in quiz.locator(".result").inner_text()


def test_the_dark_theme_has_its_own_colours(page):
    page.theme("JupyterLab Dark")
    board(page, FIX).scroll_into_view_if_needed()
    page.page.wait_for_timeout(600)
    page.screenshot("dark")
    assert strength(page, FIX, panels.TONES["fix"][1]) > 100 and strength(page, FIX, BLUE) == 0
    page.theme("JupyterLab Light")


@pytest.mark.parametrize(("width", "columns"), [(700, 1), (1280, 2), (1920, 2)])
def test_the_panels_stand_two_by_two_or_in_one_column(page, width, columns):
    page.page.set_viewport_size({"width": width, "height": 1000})
    page.page.wait_for_timeout(500)
    board(page, FIX).scroll_into_view_if_needed()
    lefts = board(page, FIX).locator("figure").evaluate_all("f => f.map(e => e.offsetLeft)")
    page.screenshot(f"wide-{width}")
    page.page.set_viewport_size({"width": 1280, "height": 1000})
    assert len(lefts) == 4 and len(set(lefts)) == columns


def test_every_chart_and_button_has_a_name_for_a_screen_reader(page):
    # four of each run; after its reset the playground has all five, for nothing is measured yet
    names = page.page.locator(".labkit canvas").evaluate_all("c => c.map(e => [e.getAttribute('role'), e.ariaLabel])")
    assert len(names) == 17 and all(role == "img" and name.startswith("Chart of ") for role, name in names)
    assert any("step 150: bug" in name and "fix" in name for _, name in names)
    broken = [name for _, name in names if "bug: NaN at step 136" in name]
    assert len(broken) == 2 and all("Chart of grad norm (log)" in name for name in broken)
    assert page.page.locator(".labkit .heard[role=status]").count() == 4


def in_the_browser(page, expression, rows):
    """What the page's own functions, as `code`, give for each row."""
    script = f"""async ([js, rows]) => {{
        const code = await import(URL.createObjectURL(new Blob([js], {{ type: "text/javascript" }})));
        return rows.map({expression}); }}"""
    return page.page.evaluate(script, [displays.web("dashboard.js"), rows])


def test_the_browser_computes_the_axes_that_the_picture_has(page):
    generator = random.Random(0)
    cases = []
    for _ in range(200):
        signs = [generator.choice([-1, 0, 1, 1, 1]) for _ in range(generator.randint(0, 5))]
        threshold = generator.choice([None, 10 ** generator.uniform(-3, 3)])
        above = generator.choice([10.0, 1e300])
        panel = panels.Panel("x", "kl", generator.random() < 0.5, above, threshold=threshold)
        cases.append((panel, [sign * 10 ** generator.uniform(-12, 12) for sign in signs]))
    for values in ([3.9e-289], [5e-324], [5e-324, 0.0], [1e-200, 1e300]):
        cases.append((panels.Panel("x", "kl", log=True), values))
    rows = []
    for panel, values in cases:
        positive = [value for value in values if value > 0]
        rows.append([panel.spec(), min(values, default=None), max(values, default=None), min(positive, default=None)])
    limits = "([p, a, b, c]) => code.limits(p, a ?? Infinity, b ?? -Infinity, c ?? Infinity)"
    for (panel, values), (log, low, high) in zip(cases, in_the_browser(page, limits, rows), strict=True):
        expected = figure.y_limits(panel, values)
        assert log is expected[0], (panel, values)
        assert (low, high) == pytest.approx(expected[1:], rel=1e-9, abs=0), (panel, values)


def test_the_browser_writes_the_numbers_that_the_picture_has(page):
    generator = random.Random(0)
    numbers = [[generator.choice([-1, 1]) * 10 ** generator.uniform(-9, 14), ""] for _ in range(150)]
    numbers += [[generator.choice([-1, 1]) * round(2 ** generator.uniform(0, 46)), "bytes"] for _ in range(120)]
    numbers += [[1024**power + off, "bytes"] for power in (1, 2, 3) for off in (-700, -600, -1, 0, 1)]
    numbers += [[v, ""] for v in (0, 999.4, 999.5, 999.7, 1000, 99_999, 1e5, 1e-3, 9.99e-4, 0.1, 0.5, 1, 2, 5, 10)]
    texts = in_the_browser(page, "([v, unit]) => code.short(v, unit)", numbers)
    same = [panels.short(v, unit) == text for (v, unit), text in zip(numbers, texts, strict=True)]
    assert sum(same) >= 295, "halves may round either way"


def test_the_page_has_no_error(page):
    assert not page.problems
