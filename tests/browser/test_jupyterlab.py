"""The displays in a real JupyterLab: they move, stop, overlay, survive a reload and both themes, and leave a picture.

The notebook is written here and run once; the tests look at the one page in order. Screenshots: tests/browser/shots.
"""

from __future__ import annotations

import json
import math
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


def board(number):
    return f".labkit:has(.panels) >> nth={number}"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    cells = [new_code_cell(source.strip(), id=f"c{i}") for i, source in enumerate(CELLS)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), folder / "displays.ipynb")
    with jupyter.Lab(folder) as server:
        yield server


@pytest.fixture(scope="module")
def page(lab):
    with lab.browser(height=1000) as browser:
        yield browser.open("displays.ipynb")


def running(page):
    return page.page.evaluate(checks.RUNNING)


def paint(page, number, canvas=0):
    """Pixels of one chart: {colour: count}, colours rounded to steps of 8."""
    script = """c => { const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, n = {};
        for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 60) {
            const k = [d[i], d[i + 1], d[i + 2]].map((v) => v >> 3).join(); n[k] = (n[k] ?? 0) + 1; }
        return n; }"""
    return page.page.locator(board(number)).locator("canvas").nth(canvas).evaluate(script)


def strength(pixels, colour):
    red, green, blue = (int(colour[i : i + 2], 16) >> 3 for i in (1, 3, 5))
    near = [(red + a, green + b, blue + c) for a in (-1, 0, 1) for b in (-1, 0, 1) for c in (-1, 0, 1)]
    return sum(pixels.get(f"{r},{g},{b}", 0) for r, g, b in near)


def stop_hung_run(page):
    """Wait until the hung run shows steps, press Stop in the page, and time until the cell has returned."""
    status = page.page.locator(board(HUNG)).locator(".status")
    page.until(lambda: status.count() and "5 steps" in status.inner_text(), 60, "the hung run shows no steps")
    page.page.wait_for_timeout(300)
    return page.page.locator(board(HUNG)).locator("button", has_text="Stop").evaluate(checks.STOP_AND_TIME)


def test_the_chart_moves_before_its_cell_ends(page):
    page.restart_and_run_all()
    page.until(lambda: page.page.locator(board(BUG)).is_visible(), 60, "no live dashboard")
    seen = set()

    def moved():
        assert running(page), "the run ended before the chart had moved"
        seen.add(json.dumps(paint(page, BUG), sort_keys=True))
        return len(seen) >= 4

    page.until(moved, 30, "the chart does not move")
    page.screenshot("live")


def test_the_other_run_stays_behind_while_the_new_one_is_drawn(page):
    page.until(lambda: page.page.locator(board(FIX)).is_visible(), 60, "no second dashboard")
    blue = lambda: strength(paint(page, FIX), panels.TONES["fix"][0])
    page.until(lambda: blue() > 100, 30, "the fix is not drawn")
    assert running(page)
    # its opacity is in the alpha channel, which is not compared
    behind = strength(paint(page, FIX), panels.TONES["bug"][0])
    assert behind > 100, "the ghost is not drawn"
    page.page.locator(board(FIX)).scroll_into_view_if_needed()
    page.screenshot("ghost")
    caption = page.page.locator(board(FIX)).locator("figcaption").first.inner_text()
    assert "bug NaN" in caption and "fix" in caption


def test_stop_returns_the_cell_within_half_a_second(page):
    took = [stop_hung_run(page)]
    page.wait_until_done(60)
    # when others are using this machine: only the order of magnitude
    busy = os.getloadavg()[0] / os.cpu_count() > 2
    limit = 2.0 if busy else 0.5
    while min(took) > limit and len(took) < 5:
        page.run_cell(3)
        took.append(stop_hung_run(page))
        page.wait_until_done(60)
    print(f"click to cell returned: {', '.join(f'{t:.3f}' for t in took)} s")
    assert min(took) <= limit
    assert "stopped after 5 steps" in page.page.locator(board(HUNG)).locator(".status").inner_text()


def test_run_all_goes_past_the_playground_and_the_status_says_how_each_run_ended(page):
    page.wait_until_done(60)
    assert not page.errors()
    status = page.page.locator(board(FIX)).locator(".status").inner_text()
    assert status.startswith("fix: finished: 150 steps") and "bug: crashed in round 19, after 150 steps" in status


def test_the_saved_file_has_a_picture_of_each_run_and_words_for_the_rest(page):
    book = page.save()
    checks.check_saved(book, moved=9)
    kinds = [[sorted(o.get("data", {})) for o in c["outputs"]] for c in book["cells"]]
    assert all("image/png" in kinds[cell][1] for cell in (1, 2, 3))
    assert all("text/markdown" in kinds[cell][1] for cell in (4, 5))


def test_the_picture_is_hidden_while_the_live_panels_show(page):
    slots = page.page.locator(".jp-OutputArea-child:has(.labkit) + .jp-OutputArea-child")
    kinds = [slots.nth(i).locator("img, .jp-RenderedMarkdown").count() for i in range(5)]
    assert kinds == [1] * 5 and not any(slots.nth(i).is_visible() for i in range(5))


def test_the_buttons_and_sliders_of_the_playground_work_from_the_keyboard(page):
    play = page.page.locator(board(PLAY))
    play.scroll_into_view_if_needed()
    play.locator("button", has_text="Run bug").focus()
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.ariaLabel") == "Run fix"
    play.locator("input[aria-label=lr]").focus()
    for _ in range(25):
        page.page.keyboard.press("ArrowRight")
    assert play.locator("label", has_text="lr").locator("output").inner_text() == "0.01"
    play.locator("input[aria-label=steps]").focus()
    page.page.keyboard.press("Home")
    assert play.locator("label", has_text="steps").locator("output").inner_text() == "50"
    play.locator("button", has_text="Run bug").focus()
    page.page.keyboard.press("Enter")
    page.until(lambda: "crashed" in play.locator(".status").inner_text(), 60, "Run bug did not run to its end")
    assert "after 50 steps" in play.locator(".status").inner_text()


def test_the_playground_overlays_both_runs_and_stops(page):
    play = page.page.locator(board(PLAY))
    play.locator("input[aria-label=steps]").focus()
    page.page.keyboard.press("End")
    play.locator("button", has_text="Run fix").click()
    blue, red = (panels.TONES[name][0] for name in ("fix", "bug"))
    page.until(lambda: strength(paint(page, PLAY), blue) > 100, 60, "the fix is not drawn")
    assert strength(paint(page, PLAY), red) > 100 and not running(page), "both runs, and no cell is busy"
    page.screenshot("playground")
    play.locator("button", has_text="Stop").click()
    page.until(lambda: "fix: stopped" in play.locator(".status").inner_text(), 10, "Stop does not stop")
    assert play.locator("button", has_text="Run fix").is_enabled()
    slot = page.save()["cells"][4]["outputs"][1]["data"]
    assert "image/png" in slot, "the picture of the runs is saved, though the cell has long ended"


def test_a_page_that_is_reloaded_draws_what_the_kernel_still_has(page):
    before = paint(page, PLAY)
    page.page.reload()
    page.wait_for_kernel()
    page.until(lambda: page.page.locator(board(PLAY)).is_visible(), 60, "no dashboard after a reload")
    page.until(lambda: paint(page, PLAY) == before, 30, "the chart differs after a reload")


def test_reset_clears_the_runs_and_puts_the_sliders_back(page):
    play = page.page.locator(board(PLAY))
    play.locator("button", has_text="Reset").click()
    page.until(lambda: "ready" in play.locator(".status").inner_text(), 10, "Reset does nothing")
    assert play.locator("label", has_text="steps").locator("output").inner_text() == "300"
    page.until(lambda: strength(paint(page, PLAY), panels.TONES["fix"][0]) == 0, 10, "the run is still drawn")


def test_a_prediction_is_judged_at_once(page):
    quiz = page.page.locator(".labkit.quiz")
    quiz.scroll_into_view_if_needed()
    assert quiz.locator("button").is_disabled()
    quiz.locator("input").nth(0).check()
    quiz.locator("button").click()
    assert "Not this one" in quiz.locator(".result").inner_text()
    assert "only after the update" not in quiz.inner_text(), "a wrong choice must not give the reason away"
    page.page.keyboard.press("Shift+Tab")
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("Enter")
    assert "Right. The parameters are bad only after the update." in quiz.locator(".result").inner_text()
    page.screenshot("quiz")


def test_the_dark_theme_has_its_own_colours(page):
    page.theme("JupyterLab Dark")
    page.page.locator(board(FIX)).scroll_into_view_if_needed()
    page.page.wait_for_timeout(600)
    page.screenshot("dark")
    pixels = paint(page, FIX)
    assert strength(pixels, panels.TONES["fix"][1]) > 100 and strength(pixels, panels.TONES["fix"][0]) == 0
    page.theme("JupyterLab Light")


@pytest.mark.parametrize(("width", "columns"), [(700, 1), (1280, 2), (1920, 2)])
def test_the_panels_stand_two_by_two_or_in_one_column(page, width, columns):
    page.page.set_viewport_size({"width": width, "height": 1000})
    page.page.wait_for_timeout(500)
    page.page.locator(board(FIX)).scroll_into_view_if_needed()
    lefts = page.page.locator(board(FIX)).locator("figure").evaluate_all("f => f.map(e => e.offsetLeft)")
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


def test_the_browser_computes_the_axes_and_numbers_that_the_picture_has(page):
    dice = random.Random(0)
    cases = []
    for _ in range(200):
        values = [dice.choice([-1, 0, 1, 1, 1]) * 10 ** dice.uniform(-12, 12) for _ in range(dice.randint(0, 5))]
        threshold = dice.choice([None, 10 ** dice.uniform(-3, 3)])
        above = dice.choice([10.0, 1e300])
        panel = panels.Panel("x", "kl", dice.random() < 0.5, above, threshold=threshold)
        cases.append((panel, values))
    tiny = panels.Panel("x", "kl", log=True)
    cases += [(tiny, [3.9e-289]), (tiny, [5e-324]), (tiny, [5e-324, 0.0]), (tiny, [1e-200, 1e300])]
    asked = [
        [p.spec(), min(v, default=None), max(v, default=None), min((x for x in v if x > 0), default=None)]
        for p, v in cases
    ]
    script = """async ([js, cases, numbers]) => {
        const code = await import(URL.createObjectURL(new Blob([js], { type: "text/javascript" })));
        return [cases.map(([p, a, b, c]) => code.limits(p, a ?? Infinity, b ?? -Infinity, c ?? Infinity)),
                numbers.map(([v, unit]) => code.short(v, unit))];
    }"""
    numbers = [[dice.choice([-1, 1]) * 10 ** dice.uniform(-9, 14), ""] for _ in range(150)]
    numbers += [[dice.choice([-1, 1]) * round(2 ** dice.uniform(0, 46)), "bytes"] for _ in range(120)]
    numbers += [[1024**power + off, "bytes"] for power in (1, 2, 3) for off in (-700, -600, -1, 0, 1)]
    numbers += [[v, ""] for v in (0, 999.4, 999.5, 999.7, 1000, 99_999, 1e5, 1e-3, 9.99e-4, 0.1, 0.5, 1, 2, 5, 10)]
    found, short = page.page.evaluate(script, [displays.web("dashboard.js"), asked, numbers])
    for (panel, values), (log, low, high) in zip(cases, found, strict=True):
        wanted = figure.y_limits(panel, values)
        assert log is wanted[0], (panel, values)
        assert math.isclose(low, wanted[1], rel_tol=1e-9), (panel, values)
        assert math.isclose(high, wanted[2], rel_tol=1e-9), (panel, values)
    same = [panels.short(v, unit) == text for (v, unit), text in zip(numbers, short, strict=True)]
    assert sum(same) >= 295, "halves may round either way"


def test_the_page_has_no_error(page):
    assert not page.problems
