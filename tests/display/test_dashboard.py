"""The dashboard without a browser: what it records, when it draws, what it sends, what it leaves behind.

`tests/browser` looks at the same things in a real JupyterLab.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
import re
import signal
import threading
from array import array
from itertools import pairwise

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook
from streams import healthy, hung, with_settings

import labkit
from labkit.display import dashboard, notebook, panels, tracks
from labkit.events import Outcome, Run, Step

NAN, INF = math.nan, math.inf
quick = settings(max_examples=60, deadline=None)
any_float = st.floats(width=32)


def track(rows, names=("grad_norm", "kl", "reward"), **fields):
    made = tracks.Track("run", "one", tracks.Rows(names), **fields)
    made.feed(rows)
    return made


# ------------------------------------------------------------------ recording


@quick
@given(st.lists(st.tuples(st.integers(-5, 5), any_float, st.none() | any_float), min_size=1, max_size=40))
def test_the_rows_keep_what_the_run_itself_says_and_the_x_axis_never_goes_back(rows):
    steps = [Step(step=n, kl=kl, extra={} if h is None else {"kl_H": h}) for n, kl, h in rows]
    recorded = track(steps, ("kl", "kl_H")).rows
    assert array("d", recorded.column("kl")).tobytes() == array("d", Run(steps)["kl"]).tobytes()
    for step, value in zip(steps, recorded.column("kl_H"), strict=True):
        wanted = step.extra.get("kl_H", NAN)
        assert value == wanted or (value != value and wanted != wanted)
    assert all(a < b for a, b in pairwise(recorded.column("step")))


def test_a_nan_is_a_fact_only_where_something_was_measured_before():
    rows = [
        Step(step=1, grad_norm=1.0, reward=0.5, memory_reserved=NAN, extra={"kl_F": 0.1}),
        Step(step=2, grad_norm=NAN, reward=NAN, memory_reserved=NAN),
        Step(step=3, grad_norm=INF, reward=-INF, memory_reserved=NAN, extra={"kl_F": NAN}),
    ]
    recorded = track(rows, ("grad_norm", "reward", "memory_reserved", "kl", "kl_F")).rows
    assert recorded.broken == {"grad_norm": (2, "NaN"), "reward": (3, "-inf"), "kl_F": (3, "NaN")}
    assert recorded.finite == {"grad_norm", "reward", "kl_F"}


# ------------------------------------------------------------------ how a run is said to have ended


@pytest.mark.parametrize(
    ("rows", "mu", "outcome", "text"),
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
def test_the_status_says_where_a_run_died(rows, mu, outcome, text):
    made = track(healthy(rows, mu=mu or 4), mu=mu)
    made.outcome = dataclasses.replace(outcome, seconds=2.0)
    assert made.status() == text


# ------------------------------------------------------------------ panels


def test_panels_are_names_or_titles_and_a_series_has_the_axis_of_its_kind():
    chosen = panels.parse({"KL of H": "kl_H", "length": "mean_length", "norm": "grad_norm"}, {"kl_H": 0.1})
    assert [(p.title, p.series) for p in chosen[:2]] == [("KL of H", "kl_H"), ("length", "mean_length")]
    assert [p.threshold for p in chosen] == [0.1, None, None] and chosen[0].log_above == 10
    assert panels.parse("ratio_max")[0].log and panels.parse(["grad_norm"])[0].threshold == 10
    assert panels.parse("memory_reserved")[0].unit == "bytes"
    with pytest.raises(ValueError, match=r"no panel draws 'reward'; drawn are \['kl'\]"):
        labkit.watch(healthy, panels=["kl"], thresholds={"reward": 1.0})


NUMBERS = {NAN: "NaN", -INF: "-inf", 0.0: "0", 1.138e8: "1.1e8", 0.0123456: "0.0123", 999.7: "1000"}
SIZES = {1.5 * 2**30: "1.5 GiB", 2**30 - 1: "1 GiB", 0: "0 bytes"}


def test_numbers_are_short():
    assert [panels.short(value) for value in NUMBERS] == list(NUMBERS.values())
    assert [panels.short(value, "bytes") for value in SIZES] == list(SIZES.values())


def test_the_browser_and_the_picture_use_the_same_colours():
    table = re.search(r"export const TONES = ({.*?});", notebook.web("dashboard.js"), re.DOTALL)[1]
    colours = {name: (a, b) for name, a, b in re.findall(r'(\w+): \["(#\w+)", "(#\w+)"\]', table)}
    assert colours == panels.TONES


# ------------------------------------------------------------------ what goes over the wire


class Page:
    """A browser's side of the protocol, as `web/dashboard.js` has it, in place of a board's widget."""

    def __init__(self, **settings):
        self.board, self.rows, self.bytes = dashboard.Board(**settings), [], 0
        self.board.add("fix")
        self.spec = self.board._spec()
        self.board.widget = self

    def send(self, content, buffers=()):
        self.bytes += len(json.dumps(content, allow_nan=False)) + sum(map(len, buffers))  # as Jupyter packs it
        if content["kind"] == "rows":
            values, width = array("f", buffers[0]), 1 + len(self.spec["names"])
            self.rows += [None] * (content["from"] - len(self.rows))
            self.rows[content["from"] :] = [values[i : i + width] for i in range(0, len(values), width)]
        elif content["kind"] == "clear":
            self.rows.clear()


@quick
@given(st.lists(st.sampled_from(["steps", "send", "late page", "clear"]), max_size=30))
def test_a_page_that_comes_late_ends_with_the_rows_of_one_that_was_always_there(script):
    page = Page(panels=["kl", "grad_norm"])
    (track,) = page.board.tracks
    source = healthy(1000)
    for action in script:
        if action == "steps":
            track.feed([next(source) for _ in range(3)])
        elif action == "send":
            page.board.refresh()
        elif action == "late page":
            page.rows.clear()  # a reload: it knows nothing
            page.board._receive({"kind": "hello"})
        else:
            page.board.clear(track)
    page.board.refresh()
    width = track.rows.width
    assert page.rows == [array("f", track.rows.data[i : i + width]) for i in range(0, len(track.rows) * width, width)]


def test_an_update_of_twenty_steps_is_half_a_kilobyte_however_long_the_run_is():
    page, source, sizes = Page(), healthy(10_000), []
    for before in (0, 9_900):
        page.board.tracks[0].feed([next(source) for _ in range(before)])
        page.board.refresh()
        page.board.tracks[0].feed([next(source) for _ in range(20)])
        page.bytes = 0
        page.board.refresh("fix: 402 steps, 2.0 s")
        sizes.append(page.bytes)
    assert max(sizes) < 900 and sizes[1] - sizes[0] < 20


def test_a_saved_run_can_be_the_ghost_stands_back_and_says_where_it_died(tmp_path):
    meta = {"settings": {"mu": 4, "seed": 0}, "label": "fix"}
    file = Run(list(healthy(8)), Outcome("oom", 1), meta).save(tmp_path / "on_a_gpu.jsonl")
    board = dashboard.Board()
    ghost = board.add_ended(Run.load(file), ghost=True)
    board.add("fix")
    assert [(t.label, t.tone, t.ghost) for t in board.tracks] == [("earlier fix", "grey", True), ("fix", "fix", False)]
    assert ghost.status() == "crashed in round 3, after 8 steps: oom"


# ------------------------------------------------------------------ watching


def test_outside_a_notebook_watch_is_an_ordinary_call():
    run = labkit.watch(healthy, 6, label="fix", mu=3)
    assert run.outcome and run["grad_norm"] == [s.grad_norm for s in healthy(6)]
    assert run.meta["label"] == "fix" and run.meta["mu"] == 3
    assert labkit.watch(healthy).meta["mu"] == 4 and "mu" not in labkit.watch(with_settings).meta
    with pytest.raises(TypeError, match="without calling it"):
        labkit.watch(healthy())


def test_cancelling_the_cell_or_interrupting_a_script_stops_the_run_and_gives_what_there_is():
    async def cell():
        task = asyncio.ensure_future(labkit.watch(hung, 3))
        await asyncio.sleep(1)
        task.cancel()
        return await task

    assert asyncio.run(asyncio.wait_for(cell(), 60)).outcome.signature == "stopped"
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert labkit.watch(hung, 3).outcome.signature == "stopped"


# ------------------------------------------------------------------ the playground


def test_a_playground_runs_a_variant_with_the_sliders_over_the_fixed_settings():
    sliders = {"steps": (1, 9, 3), "lr": (1e-4, 1.0, 1e-2, "log")}
    pg = labkit.playground(with_settings, {"bug": {"kind": "bug"}, "fix": {}}, sliders, speed=7.0, lr=5.0)

    async def clicks():
        await pg.run("bug")
        return await pg.run("fix", steps=5)

    run = asyncio.run(clicks())
    assert pg.runs["bug"]["kind"] == [1.0] * 3 and pg.runs["bug"]["grad_norm"] == [1e-2] * 3
    assert run["reward"] == [7.0] * 5 and run.meta["sliders"] == {"steps": 5, "lr": 1e-2}
    assert [run.meta["button"] for run in pg.history] == ["bug", "fix"] and pg.history[-1] is run
    assert [(t.label, t.ghost, len(t.rows)) for t in pg.board.tracks] == [("bug", True, 3), ("fix", False, 5)]


def test_stop_ends_a_hung_playground_run_and_then_reset_forgets_it():
    pg = labkit.playground(hung, {"fix": {}}, {"steps": (1, 9, 3)})

    async def clicks():
        pg._pressed({"kind": "run", "variant": "fix", "values": {}})
        await asyncio.sleep(0.5)
        pg._pressed({"kind": "run", "variant": "fix", "values": {}})  # too early: a run is going on
        pg._pressed({"kind": "reset"})
        pg.board.stop()
        await pg._task

    asyncio.run(asyncio.wait_for(clicks(), 60))
    assert pg.runs["fix"].outcome.signature == "stopped"
    pg._pressed({"kind": "reset"})
    assert not pg.runs and not pg.history and not len(pg.board.tracks[0].rows)


def test_a_playgrounds_table_has_a_row_for_every_press_and_none_after_reset():
    def row(run):
        return {"button": run.meta["button"], "steps": len(run.steps)}

    pg = labkit.playground(with_settings, {"bug": {"kind": "bug"}, "fix": {}}, {"steps": (1, 9, 3)}, row=row)
    written = []
    pg._table.put = lambda data: written.append(data["text/markdown"])

    async def clicks():
        await pg.run("bug")
        await pg.run("bug", steps=5)

    asyncio.run(clicks())
    assert written[-1].splitlines()[-2:] == ["| bug | 3 |", "| bug | 5 |"]
    pg.reset()
    assert "becomes a row here" in written[-1]


@pytest.mark.parametrize("slider", [(1.0, 0.0, 0.5), (0.0, 1.0, 0.5, "log"), (0.0, 1.0, 2.0), (0.0, 1.0, NAN)])
def test_a_slider_that_does_not_fit_is_named(slider):
    with pytest.raises(ValueError, match="slider 'lr' needs low <= default <= high, and for log low > 0"):
        labkit.playground(with_settings, {"fix": {}}, {"lr": slider})


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
    "fix = await labkit.watch(train, label='fix', ghost=bug)",
    "labkit.playground(train, {'bug': {'die': True}, 'fix': {}}, {'steps': (2, 20, 8)})",
    "labkit.predict('Which dies?', ['bug', 'fix'], 0, 'It raises.')",
    "labkit.show(train)",
]


@pytest.mark.parametrize("committed", [True, False])
def test_a_saved_notebook_has_the_picture_of_every_run_and_no_widget_but_a_playgrounds(
    tmp_path, monkeypatch, committed
):
    import papermill

    monkeypatch.setenv("LABKIT_SAVED_PAGES", "1" if committed else "")
    cells = [new_code_cell(source.strip(), id=f"c{i}") for i, source in enumerate(CELLS)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), tmp_path / "in.ipynb")
    book = papermill.execute_notebook(tmp_path / "in.ipynb", None, progress_bar=False, cwd=tmp_path)
    outputs = [[o for o in cell.outputs if o.output_type != "stream"] for cell in book.cells]
    for (run,) in outputs[1:3]:
        assert run.data["text/plain"] == dashboard.PICTURE_TEXT
        assert "application/vnd.jupyter.widget-view+json" not in run.data
        assert 5_000 < len(run.data["image/png"]) < 80_000
    assert "RuntimeError" in book.cells[1].outputs[-1].text
    *widget, slot = outputs[3]  # a committed page has no kernel that a button could reach
    assert bool(widget) is not committed
    assert "**Run bug**" in slot.data["text/markdown"] and "`steps` from 2 to 20, at 8" in slot.data["text/markdown"]
    (question,) = outputs[4]
    assert ("text/html" in question.data) is not committed and "Which dies?" in question.data["text/markdown"]
    (source,) = outputs[5]
    assert source.data["text/plain"] == "source of train"
    assert "this notebook · train" in source.data["text/markdown"] and "yield Step" in source.data["text/markdown"]
    assert sum(len(json.dumps(output)) for each in outputs for output in each) < 150_000
