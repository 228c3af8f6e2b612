"""Pictures of runs: nothing stands on anything else, and what the text speaks of can be seen."""

from __future__ import annotations

import io
import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from labkit import display
from labkit.display import figure, panels, sheet, tracks
from labkit.events import Outcome, Run, Step

NAN, INF, GIB = math.nan, math.inf, 2**30
quick = settings(max_examples=15, deadline=None)


def track(steps, panel, label="run", **fields):
    made = tracks.Track(label, panels.tone(label), tracks.Rows(panel.series), outcome=Outcome(), **fields)
    made.feed(steps)
    return made


def drawn(panel, runs, marks=None):
    """One panel, drawn as in the picture: its axes and every text on them as (words, box in pixels)."""
    with sheet.sheet(8.6, 2.2, figure.DPI) as canvas:
        axes = canvas.add_axes((0.06, 0.2, 0.42, 0.53))
        found = tracks.marks_of([panel], runs, marks or {})
        figure._draw(axes, panel, runs, figure._x_range(runs), list(found))
        canvas.canvas.draw()
        texts = [t for t in [*axes.texts, *axes.get_yticklabels()] if t.get_text()]
        return axes, [(t.get_text(), t.get_window_extent()) for t in texts]


def overlap(one, other):
    return one.x0 < other.x1 and other.x0 < one.x1 and one.y0 < other.y1 and other.y0 < one.y1


def assert_apart(texts):
    for (name, one), (other_name, other) in combinations(texts, 2):
        assert not overlap(one, other), (name, other_name)


@quick
@given(
    st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=40),
    st.sampled_from([(), ((10.0, "threshold 10"),), ((0.02, "lower edge"), (0.06, "upper edge"))]),
    st.dictionaries(st.integers(1, 40), st.sampled_from(["evaluation", "parameters break"]), max_size=3),
    st.booleans(),
)
@example([3.0, 160.0, 1e4, 1e5], (), {}, True)
@example([105756.0, 0.001], ((10.0, "threshold 10"),), {}, True)
def test_no_text_of_a_panel_stands_on_another(norms, lines, marks, log):
    panel = panels.Panel("grad norm", ("grad_norm",), log=log, lines=lines)
    steps = [Step(step=i, grad_norm=v) for i, v in enumerate(norms, 1)]
    _, texts = drawn(panel, [track(steps, panel, "bug", ghost=True), track(steps[::-1], panel, "fix")], marks)
    assert_apart(texts)
    assert panel.legend in ["", *(words for words, _ in texts)]


def test_the_name_of_a_threshold_stands_in_the_legend_with_its_level():
    (panel,) = panels.parse(["memory_allocated"], {"memory_allocated": (2 * GIB, "the card")})
    assert panel.legend == "- - the card 2 GiB"
    assert panels.parse("grad_norm")[0].legend == "- - threshold 10"
    run = track([Step(step=i, memory_allocated=i * GIB / 30) for i in range(1, 60)], panel)
    axes, texts = drawn(panel, [run])
    (box,) = [box for words, box in texts if words == panel.legend]
    assert axes.transData.transform((59, 59 * GIB / 30))[1] < box.y0 and box.y1 <= axes.bbox.y1


@quick
@given(st.lists(st.tuples(st.floats(0, 400), st.floats(1, 200)), max_size=12))
def test_captions_are_stacked_as_low_as_they_go(given_spans):
    spans = [(left, left + wide) for left, wide in given_spans]
    lines = figure.stacked(spans)
    for (a, one), (b, other) in combinations(zip(spans, lines, strict=True), 2):
        assert one != other or a[1] < b[0] or b[1] < a[0]
    crowd = max((sum(a <= x <= b for a, b in spans) for x, _ in spans), default=0)
    assert max(lines, default=-1) + 1 == crowd, "no more lines than captions over one place"


@pytest.mark.parametrize("values", [[0.0, 0.0], [0.0, 1.0], [0.0, 1e9], [0.3, 0.3]])
def test_zero_does_not_lie_on_the_frame(values):
    _, low, _ = figure.y_limits(panels.Panel("x", ("kl",)), values)
    assert low < 0


def test_a_curve_that_stays_at_zero_is_as_thick_as_another():
    def blue(level):
        panel = panels.Panel("x", ("kl",), lines=((1.0, ""),))
        run = track([Step(step=i, kl=level) for i in range(1, 60)], panel, "fix")
        image = np.asarray(Image.open(io.BytesIO(figure.picture([panel], [run]))).convert("RGB")).astype(int)
        return int((np.abs(image[60:, 90:-40] - [0x00, 0x72, 0xB2]).max(-1) < 60).sum())

    assert blue(0.0) == pytest.approx(blue(0.5), rel=0.1) and blue(0.0) > 500


def test_paper_is_white_and_a_line_has_its_very_colour():
    panel = panels.Panel("x", ("kl",))
    run = track([Step(step=i, kl=0.5) for i in range(1, 60)], panel, "fix")
    image = Image.open(io.BytesIO(figure.picture([panel], [run]))).convert("RGB")
    assert image.getpixel((2, 2)) == (255, 255, 255) and (0x00, 0x72, 0xB2) in [c for _, c in image.getcolors(1 << 24)]


# ------------------------------------------------------------------ which dash is which


@pytest.mark.parametrize(
    ("series", "legend"),
    [
        (("kl",), ""),
        (("memory_allocated", "memory_reserved"), "─ allocated  ╌ reserved"),
        (("kl/max", "kl/copy"), "─ max  ╌ copy"),
        (("kl", "exact_kl"), "─ kl  ╌ exact kl"),
    ],
)
def test_a_panel_of_several_series_says_which_dash_is_which(series, legend):
    panel = panels.Panel("x", series)
    assert panel.legend == panel.spec()["legend"] == legend
    _, texts = drawn(panel, [track([Step(step=1, extra=dict.fromkeys(series, 1.0))], panel)])
    assert legend in ["", *(words for words, _ in texts)]


def test_the_legend_stands_in_the_panel_and_on_nothing():
    panel = panels.Panel("allocated and reserved on the card", ("memory_allocated", "memory_reserved"), unit="bytes")
    steps = [Step(step=i, memory_allocated=i * GIB, memory_reserved=(i + 1.234) * GIB) for i in range(1, 9)]
    runs = [track(steps, panel, "bug", ghost=True), track(steps, panel, "fix")]
    axes, texts = drawn(panel, runs, {2: "evaluation"})
    (legend,) = [box for words, box in texts if "╌ reserved" in words]
    assert legend.y1 <= axes.bbox.y1 and legend.x0 >= axes.bbox.x0
    assert_apart(texts)


# ------------------------------------------------------------------ marks


def test_a_mark_is_in_every_panel_and_a_broken_norm_too():
    both = panels.parse(["grad_norm", "reward"])
    steps = [Step(step=i, grad_norm=1.0 if i < 4 else NAN, reward=0.1) for i in range(1, 9)]
    run = tracks.Track("bug", "bug", tracks.Rows(panels.columns(both)))
    run.feed(steps)
    found = list(tracks.marks_of(both, [run], {6: "evaluation"}))
    for panel, words in ((both[0], ["evaluation", "bug: NaN at step 4"]), (both[1], ["evaluation"])):
        here = [m for m in found if m.panel in (None, panel.key)]
        assert {m.step for m in here} == {4, 6} and [m.text for m in here if m.text] == words


def test_a_mark_outside_the_run_does_not_stretch_the_axis():
    panel = panels.Panel("x", ("kl",))
    axes, texts = drawn(panel, [track([Step(step=i, kl=0.1) for i in (1, 2, 3)], panel)], {7: "later"})
    assert axes.get_xlim() == (1, 3) and "later" not in [words for words, _ in texts]


def test_a_panel_full_of_captions_keeps_its_curve():
    panel = panels.Panel("x", ("kl",))
    run = track([Step(step=i, kl=i / 9) for i in range(1, 40)], panel)
    axes, _ = drawn(panel, [run], {i: "a long word on what happened" for i in range(1, 30)})
    low, high = axes.get_ylim()
    assert math.isfinite(high) and low < 0 < 39 / 9 < high


def test_marks_reach_the_page():
    board = display.Board(["grad_norm", "kl"], marks={2: "round 1 ends"})
    run = board.add("bug")
    sent = []
    board.widget = type("Page", (), {"spec": {}, "send": lambda self, content, buffers=None: sent.append(content)})()
    run.feed([Step(step=1, kl=0.1), Step(step=2, kl=INF)])
    board.refresh("bug: 2 steps")
    assert sent[-1]["marks"] == [
        {"step": 2, "text": "round 1 ends", "panel": None, "series": None, "run": None},
        {"step": 2, "text": "bug: inf at step 2", "panel": "kl", "series": "kl", "run": 0},
    ]


# ------------------------------------------------------------------ which panels are drawn


def test_a_panel_that_no_run_has_data_for_goes():
    keys = lambda chosen, seen: [p.key for p in panels.visible(panels.parse(chosen), seen)]
    assert keys(None, {"reward"}) == ["reward"]
    assert keys(None, {"kl", "memory_allocated"}) == ["kl", "memory_allocated+memory_reserved"]
    assert keys(None, {"kl", "process_memory"}) == ["kl"]
    assert len(keys(None, set())) == 5, "a run that measures nothing has all of them"


def test_what_is_not_measured_has_no_axis():
    panel = panels.Panel("x", ("memory_allocated",), unit="bytes")
    axes, _ = drawn(panel, [track([Step(step=1)], panel)])
    assert not len(axes.get_yticks())


# ------------------------------------------------------------------ runs that have ended


def test_eight_arms_have_eight_colours():
    arms = ["bug", "fix", *(f"beta {number}" for number in range(6))]
    taken = []
    for arm in arms:
        taken.append(panels.tone(arm, taken))
    assert len({panels.TONES[name] for name in taken}) == 8 and "grey" not in taken


def test_runs_with_names_of_their_own_have_colours_of_their_own():
    board = display.Board(["kl"])
    for label in ("beta 0.04", "beta 0.5", "fix", "beta 1", "beta 0.5"):
        board.add(label)
    assert [t.tone for t in board.tracks] == ["one", "grey", "fix", "three", "two"]
    assert len({t.label for t in board.tracks}) == 5


def test_runs_that_have_ended_are_drawn_like_those_that_were_watched(tmp_path):
    steps = [Step(step=i, grad_norm=1.0, kl=0.1 * i, reward=0.5) for i in range(1, 9)]
    runs = {"bug": Run(steps[:5], Outcome("oom", 1)), "fix": Run(steps)}
    made = display.picture(runs, title="the fix goes on", marks={5: "out of memory"})
    assert repr(made) == "picture of the run" and made.save(tmp_path / "a" / "b.png").read_bytes() == made.png
    data, shown = made._repr_png_()
    assert data == made.png and shown["width"] == 860
    alone = display.picture(Run(steps, meta={"label": "fix"}), panels="kl")
    assert len(alone.png) < len(made.png)
    with pytest.raises(TypeError, match="bug: expected a Run, got 3"):
        display.picture({"bug": 3})
    for nothing in ({}, None, [Run(steps)]):
        with pytest.raises(TypeError, match="expected a Run or a dict of label -> Run"):
            display.picture(nothing)
