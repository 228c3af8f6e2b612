"""The dashboard without a browser: what it records, when it draws, what it sends, what it leaves behind.

`tests/browser` looks at the same things in a real JupyterLab.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from array import array
from itertools import pairwise

import nbformat
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook
from PIL import Image

import labkit
from labkit.display import controls, dashboard, figure, notebook, panels, tracks
from labkit.events import Outcome, Run, Step

NAN, INF = math.nan, math.inf
quick = settings(max_examples=60, deadline=None)
any_float = st.floats(width=32)


def healthy(steps=12, pause=0.0, mu=4):
    """A stream with the shape of a training run: rounds of `mu` inner updates."""
    for s in range(1, steps + 1):
        time.sleep(pause)
        yield Step(step=s, round=1 + (s - 1) // mu, inner=1 + (s - 1) % mu, grad_norm=1.0 / s, kl=0.01 * s, reward=0.1)


def doomed(steps=4, mu=4):
    yield from healthy(steps, mu=mu)
    raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")


def hung(steps=3):
    yield from healthy(steps)
    time.sleep(600)


def track(rows, names=("grad_norm", "kl", "reward"), label="run", **fields):
    made = tracks.Track(label, panels.tone(label), tracks.Rows(names), **fields)
    made.feed(rows)
    return made


# ------------------------------------------------------------------ recording


@quick
@given(st.lists(st.tuples(any_float, any_float, st.booleans()), max_size=40))
def test_the_rows_keep_what_the_run_itself_says(rows):
    steps = [
        Step(step=i, kl=kl, extra={"kl_H": other} if there else {}) for i, (kl, other, there) in enumerate(rows, 1)
    ]
    rec = track(steps, ("kl", "kl_H")).rows
    assert array("d", rec.column("kl")).tobytes() == array("d", Run(steps)["kl"]).tobytes()
    for step, value in zip(steps, rec.column("kl_H"), strict=True):
        wanted = step.extra.get("kl_H", NAN)
        assert value == wanted or (value != value and wanted != wanted)


@quick
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=60))
def test_the_x_axis_never_goes_back_whatever_the_steps_are_called(numbers):
    rec = track([Step(step=n) for n in numbers]).rows
    assert all(a < b for a, b in pairwise(rec.column("step")))


def test_a_nan_is_a_fact_only_where_something_was_measured_before():
    rows = [
        Step(step=1, grad_norm=1.0, reward=0.5, memory_reserved=NAN, extra={"kl_F": 0.1}),
        Step(step=2, grad_norm=NAN, reward=NAN, memory_reserved=NAN),
        Step(step=3, grad_norm=INF, reward=-INF, memory_reserved=NAN, extra={"kl_F": NAN}),
    ]
    rec = track(rows, ("grad_norm", "reward", "memory_reserved", "kl", "kl_F")).rows
    assert rec.bad == {"grad_norm": (2, "NaN"), "reward": (3, "-inf"), "kl_F": (3, "NaN")}
    assert rec.seen == {"grad_norm", "reward", "kl_F"}


@quick
@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), min_size=1, max_size=50))
def test_drawing_never_takes_more_than_its_share_also_when_it_raises(draws):
    now = [0.0]

    def work(cost, fails):
        now[0] += cost
        if fails:
            raise ZeroDivisionError

    pace = tracks.Pace()
    starts = []
    with pytest.MonkeyPatch.context() as patch:
        for clock in ("perf_counter", "thread_time"):
            patch.setattr(tracks.time, clock, lambda: now[0])
        for cost, fails in draws:
            now[0] = max(now[0], pace.next)
            assert pace.due()
            starts.append(now[0])
            with contextlib.suppress(ZeroDivisionError):
                pace.run(functools.partial(work, cost, fails))
            assert not pace.due()
    assert pace.spent <= tracks.SHARE * (pace.next - starts[0]) * (1 + 1e-9) + 1e-12
    assert all(b - a >= tracks.SHORTEST - 1e-12 for a, b in pairwise(starts))


# ------------------------------------------------------------------ how a run is said to have ended


@pytest.mark.parametrize(
    ("rows", "mu", "outcome", "words"),
    [
        (8, 8, Outcome("exception:RuntimeError", 1), "crashed in round 2, after 8 steps: exception:RuntimeError"),
        (5, 8, Outcome("exception:RuntimeError", 1), "crashed in round 1, after 5 steps: exception:RuntimeError"),
        (8, None, Outcome("signal:9", None), "crashed after 8 steps (round 2): signal:9"),
        (0, 8, Outcome("oom", 1), "crashed before the first step: oom"),
        (1, 8, Outcome("timeout", None), "timed out in round 1, after 1 step: timeout"),
        (3, 8, Outcome("stopped", None), "stopped after 3 steps, 2.0 s"),
        (3, 8, Outcome(), "finished: 3 steps, 2.0 s"),
    ],
)
def test_the_status_says_where_a_run_died(rows, mu, outcome, words):
    made = track(healthy(rows, mu=mu or 4), mu=mu)
    made.outcome = dataclasses.replace(outcome, seconds=2.0)
    assert made.status() == words


# ------------------------------------------------------------------ panels


def test_panels_may_be_names_lists_or_titles():
    chosen = panels.parse({"both KLs": ["kl_F", "kl_H"], "length": "mean_length"}, {"kl_H": (0.1, "wanted")})
    assert [(p.title, p.series) for p in chosen] == [("both KLs", ("kl_F", "kl_H")), ("length", ("mean_length",))]
    assert chosen[0].lines == ((0.1, "wanted"),) and chosen[0].log_above == 10
    assert panels.parse("ratio_max", {})[0].log


@pytest.mark.parametrize(
    ("given_panels", "thresholds", "words"),
    [
        (7, None, "expected a series name, a list of names or a Panel, got 7"),
        ([3.0], None, "expected a series name, a list of names or a Panel, got 3.0"),
        ([], None, "expected at least one panel"),
        (["kl"], {"reward": 1.0}, "no panel draws 'reward'; drawn are \\['kl'\\]"),
        (["kl"], {"kl": NAN}, "'kl' needs a finite number"),
    ],
)
def test_a_panel_that_does_not_fit_is_named(given_panels, thresholds, words):
    with pytest.raises((TypeError, ValueError), match=words):
        panels.parse(given_panels, thresholds)


@pytest.mark.parametrize("series", ["kl", ()])
def test_the_series_of_a_panel_are_a_tuple(series):
    with pytest.raises(ValueError, match="Panel 'x': series must be a tuple of names"):
        panels.Panel("x", series)


@quick
@given(st.lists(st.floats(-1e300, 1e300), max_size=20), st.lists(st.floats(1e-6, 1e6), max_size=2), st.booleans())
@example([3.9e-289], [], True)
@example([5e-324], [], True)
@example([5e-324, 0.0], [], True)
def test_thresholds_and_the_largest_value_lie_inside_the_axis(values, lines, log):
    panel = panels.Panel("x", ("kl",), log=log, lines=tuple((v, "") for v in lines))
    is_log, low, high = figure.y_limits(panel, values)
    assert low < high and math.isfinite(high - low) and (not is_log or low > 0)
    assert all(low <= v <= high for v in lines)
    if values and (not is_log or max(values) > 0):
        assert max(values) <= high
    if not is_log:
        assert low <= 0 <= high


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (NAN, "", "NaN"),
        (-INF, "", "-inf"),
        (0.0, "", "0"),
        (1.138e8, "", "1.1e8"),
        (1e-5, "", "1e-5"),
        (1234.5, "", "1234"),
        (0.0123456, "", "0.0123"),
        (750 * 2**20, "bytes", "750 MiB"),
        (1.5 * 2**30, "bytes", "1.5 GiB"),
        (2**30, "bytes", "1 GiB"),
        (2**30 - 1, "bytes", "1 GiB"),
        (1023, "bytes", "1023 bytes"),
        (0, "bytes", "0 bytes"),
        (999.7, "", "1000"),
    ],
)
def test_numbers_are_short(value, unit, text):
    assert panels.written(value, unit) == text


def test_the_browser_and_the_picture_use_the_same_colours():
    table = re.search(r"export const TONES = ({.*?});", notebook.web("dashboard.js"), re.DOTALL)[1]
    found = {name: (a, b) for name, a, b in re.findall(r'(\w+): \["(#\w+)", "(#\w+)"\]', table)}
    assert found == panels.TONES


# ------------------------------------------------------------------ the static picture


def pixels(png):
    return Image.open(io.BytesIO(png)).convert("RGB")


def has_colour(png, colour, near=12):
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    colours = pixels(png).getcolors(1 << 24)
    return sum(n for n, rgb in colours if max(abs(a - b) for a, b in zip(rgb, wanted, strict=True)) <= near)


def test_the_picture_of_two_long_runs_is_small_and_shows_both():
    noise = lambda i, seed: math.exp(math.sin(i * 12.9898 + seed) * 3)

    def make(seed, label, **fields):
        norms = [(i, noise(i, seed)) for i in range(1, 10_001)]
        rows = [Step(step=i, grad_norm=v, kl=v / 99, reward=v / 30, entropy=1.0) for i, v in norms]
        return track(rows, panels.columns(panels.parse()), label, outcome=Outcome(), **fields)

    both = [make(1, "bug", ghost=True), make(2, "fix")]
    png = figure.picture(panels.parse(), both, "ten thousand steps")
    assert len(png) <= 60_000
    assert has_colour(png, panels.TONES["fix"][0]) > 1000
    assert has_colour(png, panels.TONES["bug"][0]) > 20, "the ghost's label"
    alone = figure.picture(panels.parse(), both[:1], "")
    assert has_colour(alone, panels.TONES["fix"][0]) == 0


def test_a_single_spike_among_ten_thousand_steps_reaches_the_top_of_the_picture():
    rows = [Step(step=i, reward=1.0 if i == 5_003 else 0.01) for i in range(1, 10_001)]
    image = pixels(figure.picture(panels.parse("reward", {}), [track(rows, label="fix")]))
    blue = [int(panels.TONES["fix"][0][i : i + 2], 16) for i in (1, 3, 5)]
    drawn = [
        y
        for x in range(image.width // 3, 2 * image.width // 3)
        for y in range(image.height)
        if max(abs(a - b) for a, b in zip(image.getpixel((x, y)), blue, strict=True)) < 90
    ]
    assert max(drawn) - min(drawn) > image.height / 3


@pytest.mark.parametrize("rows", [[], [Step(step=1)], [Step(step=1, grad_norm=NAN)], [Step(step=1, grad_norm=0.0)]])
def test_a_run_with_next_to_nothing_still_has_a_picture(rows):
    png = figure.picture(
        panels.parse(), [track(rows, panels.columns(panels.parse()), outcome=Outcome("oom", 1))], "$x_y$"
    )
    assert pixels(png).width == 125 * figure.SHOWN["width"] // 100 == 1075


def test_drawing_leaves_the_reader_own_matplotlib_settings_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    figure.picture(panels.parse("kl"), [track(healthy())])
    assert dict(matplotlib.rcParams) == before


# ------------------------------------------------------------------ what goes over the wire


class Page:
    """A browser's side of the protocol, as `web/dashboard.js` has it, plus the widget that the board talks to."""

    def __init__(self, board):
        self.board, self.rows, self.bytes, self.state = board, {}, 0, {}
        self.spec = board._spec(board._visible())

    def send(self, content, buffers=None):
        json.dumps(content, allow_nan=False)  # as Jupyter packs it
        self.bytes += len(json.dumps(content)) + sum(map(len, buffers or []))
        if content["kind"] == "rows":
            width, values = 1 + len(self.spec["names"]), array("f", buffers[0])
            have = self.rows.setdefault(content["run"], [])
            while len(have) < content["from"]:
                have.append(None)
            for i in range(len(values) // width):
                have[content["from"] + i : content["from"] + i + 1] = [list(values[i * width : (i + 1) * width])]
        elif content["kind"] == "clear":
            self.rows.pop(content["run"], None)
        if "text" in content:
            self.state = content


def paged_board(**kwargs):
    board = dashboard.Board(**kwargs)
    board.add("fix")
    board.widget = Page(board)
    return board, board.widget


@quick
@given(st.lists(st.sampled_from(["steps", "send", "late page", "clear"]), max_size=30))
def test_a_page_that_comes_late_ends_with_the_rows_of_one_that_was_always_there(script):
    board, page = paged_board(panels=["kl", "grad_norm"])
    source = healthy(1000)
    for action in script:
        if action == "steps":
            board.tracks[0].feed([next(source) for _ in range(3)])
        elif action == "send":
            board.refresh()
        elif action == "late page":
            page.rows.clear()  # a reload: it knows nothing
            board._receive({"kind": "hello"})
        else:
            board.clear(board.tracks[0])
    board.refresh()
    rec = board.tracks[0].rows
    sent = [array("f", row) for row in page.rows.get(0, [])]
    assert sent == [array("f", rec.data[i * rec.width : (i + 1) * rec.width]) for i in range(len(rec))]


def test_an_update_of_twenty_steps_is_half_a_kilobyte_however_long_the_run_is():
    board, page = paged_board()
    source = healthy(10_000)
    sizes = []
    for _ in range(500):
        board.tracks[0].feed([next(source) for _ in range(20)])
        before = page.bytes
        board.refresh("fix: 402 steps, 2.0 s")
        sizes.append(page.bytes - before)
    assert max(sizes) < 900 and sizes[-1] - sizes[0] < 20


def test_a_ghost_of_the_same_name_stands_back_and_says_so():
    board = dashboard.Board()
    board.add_ended(Run(list(healthy()), meta={"label": "fix"}), ghost=True)
    board.add("fix")
    assert [(t.label, t.tone, t.ghost) for t in board.tracks] == [("earlier fix", "grey", True), ("fix", "fix", False)]


def test_a_saved_run_can_be_the_ghost_and_its_settings_say_where_it_died(tmp_path):
    meta = {"settings": {"mu": 4, "seed": 0}}
    file = Run(list(healthy(8)), Outcome("oom", 1), meta).save(tmp_path / "on_a_gpu.jsonl")
    ghost = dashboard.Board().add_ended(Run.load(file), ghost=True)
    assert ghost.label == "run" and ghost.status() == "crashed in round 3, after 8 steps: oom"
    with pytest.raises(TypeError, match="ghost: expected a Run, got 7"):
        labkit.watch(healthy, ghost=7)


# ------------------------------------------------------------------ watching


def test_outside_a_notebook_watch_is_an_ordinary_call():
    run = labkit.watch(healthy, 6, label="fix", mu=3)
    assert run.outcome and run["grad_norm"] == [s.grad_norm for s in healthy(6)]
    assert run.meta["label"] == "fix"


def test_inside_an_event_loop_it_waits_for_await_and_gives_the_same_run():
    async def cell():
        pending = labkit.watch(doomed, 4)
        with pytest.raises(AttributeError, match="await labkit.watch"):
            _ = pending.steps
        assert "await" in repr(pending)
        return await pending, await pending

    first, again = asyncio.run(cell())
    assert first is again and len(first.steps) == 4
    assert first.outcome.signature == "exception:RuntimeError"


def test_cancelling_the_cell_stops_the_run_and_gives_what_there_is():
    async def cell():
        task = asyncio.ensure_future(labkit.watch(hung, 3))
        await asyncio.sleep(3)
        task.cancel()
        return await task

    run = asyncio.run(asyncio.wait_for(cell(), 60))
    assert run.outcome.signature == "stopped"


def test_an_interrupt_of_a_script_stops_the_run_and_gives_what_there_is():
    threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert labkit.watch(hung, 3).outcome.signature == "stopped"


def test_what_cannot_be_watched_is_said_before_anything_starts():
    with pytest.raises(TypeError, match="without calling it"):
        labkit.watch(healthy())
    with pytest.raises(ValueError, match="no panel draws"):
        labkit.watch(healthy, thresholds={"reward_": 1})


def test_the_inner_updates_of_a_round_are_read_off_the_function():
    assert dashboard.known_mu(healthy, {}) == 4
    assert dashboard.known_mu(healthy, {"mu": 8}) == 8
    assert dashboard.known_mu(hung, {}) is None


def test_importing_what_draws_loads_nothing_that_is_heavy():
    code = (
        "import sys, labkit.display.dashboard, labkit.display.controls, labkit.display.quiz, labkit.display.texts\n"
        "print([m for m in ('torch', 'matplotlib', 'numpy', 'IPython', 'ipywidgets', 'anywidget') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


# ------------------------------------------------------------------ the playground


def sped(steps=4, speed=1.0, kind="fix", lr=0.1):
    for s in range(1, steps + 1):
        yield Step(step=s, reward=speed, grad_norm=lr, extra={"kind": float(kind == "bug")})


def test_a_playground_runs_a_variant_with_the_sliders_over_the_fixed_settings():
    sliders = {"steps": (1, 9, 3), "lr": (1e-4, 1.0, 1e-2, "log")}
    pg = labkit.playground(sped, {"bug": {"kind": "bug"}, "fix": {}}, sliders, speed=7.0, lr=5.0)

    async def clicks():
        await pg.run("bug")
        return await pg.run("fix", steps=5)

    run = asyncio.run(clicks())
    assert pg.runs["bug"]["kind"] == [1.0] * 3 and pg.runs["bug"]["grad_norm"] == [1e-2] * 3
    assert run["reward"] == [7.0] * 5 and run.meta["sliders"] == {"steps": 5, "lr": 1e-2}
    assert [(t.label, t.ghost, len(t.rows)) for t in pg.board.tracks] == [("bug", True, 3), ("fix", False, 5)]
    pg.reset()
    assert not pg.runs and not any(len(t.rows) for t in pg.board.tracks)


def test_stop_ends_a_hung_playground_run_and_then_reset_forgets_it():
    pg = labkit.playground(hung, {"fix": {}}, {"steps": (1, 9, 3)})

    async def clicks():
        task = asyncio.ensure_future(pg.run("fix"))
        await asyncio.sleep(0.5)
        with pytest.raises(RuntimeError, match="'fix' is still running"):
            await pg.run("fix")
        pg._pressed({"kind": "reset"})  # too early: a run is going on
        pg.board.stop()
        return await task

    assert asyncio.run(asyncio.wait_for(clicks(), 60)).outcome.signature == "stopped"
    assert pg.runs
    pg._pressed({"kind": "reset"})
    assert not pg.runs and not len(pg.board.tracks[0].rows)


@pytest.mark.parametrize(
    ("variants", "sliders", "words"),
    [
        ({"bug": {"lr": 1.0}}, {"lr": (0.0, 1.0, 0.5)}, r"\['lr'\] is a slider and a setting of 'bug'"),
        (None, {"lr": (1.0, 0.0, 0.5)}, "needs low < high"),
        (None, {"lr": (0.0, 1.0, 0.5, "log")}, "low > 0 for log"),
        (None, {"lr": (0.0, 1.0)}, r"needs \(low, high, default\)"),
        (None, {"lr": (0.0, INF, 1.0)}, "all finite"),
        (None, {"lr": (0.0, 1.0, NAN)}, "all finite"),
    ],
)
def test_controls_that_do_not_fit_are_named(variants, sliders, words):
    with pytest.raises((TypeError, ValueError), match=words):
        labkit.playground(sped, variants, sliders)


def test_a_value_from_the_page_is_checked_before_anything_runs():
    pg = labkit.playground(sped, None, {"steps": (1, 9, 3)})
    for values, words in [
        ({"steps": 10}, "from 1 to 9, got 10"),
        ({"step": 1}, "no slider 'step'"),
        ({"steps": "3"}, "is a number from 1 to 9"),
    ]:
        with pytest.raises(ValueError, match=words):
            asyncio.run(pg.run("run", **values))
    with pytest.raises(ValueError, match="no variant 'bug'"):
        asyncio.run(pg.run("bug"))
    assert isinstance(pg, controls.Playground) and pg.board.running is None


# ------------------------------------------------------------------ in a real kernel, with no browser


CELLS = [
    """
import labkit
from labkit.events import Step

def train(steps=8, die=False):
    for s in range(1, steps + 1):
        yield Step(step=s, round=1 + (s > 4), grad_norm=float(s), kl=0.1 / s, reward=s / 9)
    if die:
        raise RuntimeError("no more")
""",
    "bug = await labkit.watch(train, die=True, label='bug', title='before')\nprint(bug)",
    "fix = await labkit.watch(train, label='fix', ghost=bug)\n"
    "labkit.verdict('the fix ends', fix.outcome.signature, '==', 'ok')",
    "labkit.playground(train, {'bug': {'die': True}, 'fix': {}}, {'steps': (2, 20, 8)})",
    "pg = labkit.playground(train, {'bug': {'die': True}, 'fix': {}})\nprint(await pg.run('fix'))",
    "labkit.predict('Which dies?', ['bug', 'fix'], 0, 'It raises.')",
    "labkit.show(train)",
    "def mine(x): ...\nlabkit.exercise(lambda f: 1 / 0, mine, hints=['Look.'])",
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A notebook of every display, run by papermill, and its file."""
    import papermill

    folder = tmp_path_factory.mktemp("headless")
    cells = [new_code_cell(source.strip(), id=f"c{i}") for i, source in enumerate(CELLS)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), folder / "in.ipynb")
    papermill.execute_notebook(folder / "in.ipynb", folder / "out.ipynb", progress_bar=False, cwd=folder)
    return folder / "out.ipynb"


def outputs(file, cell):
    return [o for o in nbformat.read(file, 4).cells[cell].outputs if o.output_type != "stream"]


def test_papermill_leaves_a_picture_of_every_run_in_the_saved_notebook(executed):
    for cell in (1, 2):
        widget, slot = outputs(executed, cell)
        assert "application/vnd.jupyter.widget-view+json" in widget.data
        assert slot.data["text/plain"] == dashboard.PICTURE_TEXT
        png = slot.data["image/png"]
        assert 5_000 < len(png) < 80_000
        assert png.strip() != notebook.BLANK
    assert "RuntimeError" in nbformat.read(executed, 4).cells[1].outputs[-1].text


def test_an_untouched_playground_leaves_words_and_costs_nothing(executed):
    widget, slot = outputs(executed, 3)
    assert "**Run bug**" in slot.data["text/markdown"] and "`steps` from 2 to 20, at 8" in slot.data["text/markdown"]
    assert not outputs(executed, 4), "an object that is only assigned shows nothing"


def test_the_code_of_the_widgets_is_saved_once_and_the_saved_notebook_is_small(executed):
    state = nbformat.read(executed, 4).metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    with_code = [m for m in state.values() if len(json.dumps(m)) > 4000]
    assert len(with_code) == 2, "dashboard.js and quiz.js"
    assert sum(len(json.dumps(o)) for c in nbformat.read(executed, 4).cells for o in c.outputs) < 150_000


def test_nbval_finds_the_same_outputs_again(executed):
    pytest_nbval = [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    done = subprocess.run(
        [*pytest_nbval, "-c", "/dev/null", "--rootdir", str(executed.parent), str(executed)],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=executed.parent,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_function_of_the_notebook_can_be_shown(executed):
    (shown,) = outputs(executed, 6)
    assert shown.data["text/plain"] == "source of train"
    assert "this notebook · train" in shown.data["text/markdown"] and "yield Step" in shown.data["text/markdown"]
