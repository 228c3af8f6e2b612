"""Pictures of runs: nothing stands on anything else, and what the text speaks of can be seen."""

from __future__ import annotations

import io
import itertools
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
    made = tracks.Track(label, panels.tone(label), tracks.Rows([panel.series]), outcome=Outcome(), **fields)
    made.feed(steps)
    return made


def drawn(panel, runs, marks=()):
    """One panel, drawn as in the picture: its axes and every text on them as (text, box in pixels)."""
    with sheet.sheet(8.6, 2.2, figure.DPI) as canvas:
        axes = canvas.add_axes((0.06, 0.2, 0.42, 0.53))
        figure.draw(axes, panel, runs, [*itertools.starmap(tracks.Mark, marks), *tracks.marks_of(runs)])
        canvas.canvas.draw()
        texts = [t for t in [*axes.texts, *axes.get_yticklabels()] if t.get_text()]
        return axes, [(t.get_text(), t.get_window_extent()) for t in texts]


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def near(image, name, distance):
    """Which pixels have this colour, or nearly."""
    colour = panels.TONES[name][0]
    return np.abs(image - [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).max(-1) <= distance


def assert_apart(texts):
    for (name, one), (other_name, other) in combinations(texts, 2):
        apart = one.x0 >= other.x1 or other.x0 >= one.x1 or one.y0 >= other.y1 or other.y0 >= one.y1
        assert apart, (name, other_name)


@quick
@given(
    st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=40),
    st.sampled_from([None, 10.0, 0.02]),
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from(["evaluation", "parameters break"])), max_size=3),
    st.booleans(),
)
@example([3.0, 160.0, 1e4, 1e5], None, [], True)
@example([105756.0, 0.001], 10.0, [], True)
def test_no_text_of_a_panel_stands_on_another(norms, threshold, marks, log):
    panel = panels.Panel("grad norm", "grad_norm", log=log, threshold=threshold)
    steps = [Step(step=i, grad_norm=v) for i, v in enumerate(norms, 1)]
    axes, texts = drawn(panel, [track(steps, panel, "bug", ghost=True), track(steps[::-1], panel, "fix")], marks)
    assert_apart(texts)
    boxes = dict(texts)
    if threshold:
        assert panel.legend == f"- - threshold {threshold:g}" and boxes[panel.legend].y1 <= axes.bbox.y1


def test_a_text_over_a_full_panel_stands_above_the_curve_and_the_curve_remains():
    (panel,) = panels.parse(["memory_allocated"], {"memory_allocated": 2 * GIB})
    run = track([Step(step=i, memory_allocated=i * GIB / 30) for i in range(1, 60)], panel)
    axes, texts = drawn(panel, [run], [(60, "later")])
    box = dict(texts)["- - threshold 2 GiB"]
    assert axes.get_xlim() == (1, 59) and "later" not in dict(texts)
    assert axes.transData.transform((59, 59 * GIB / 30))[1] < box.y0
    axes, _ = drawn(panel, [run], [(i, "a long word on what happened") for i in range(1, 30)])
    low, high = axes.get_ylim()
    assert math.isfinite(high) and low < 0 and high > 2 * GIB
    axes, _ = drawn(panel, [track([Step(step=1)], panel)])
    assert not len(axes.get_yticks()), "what is not measured has no axis"


@quick
@given(st.lists(st.tuples(st.floats(0, 400), st.floats(1, 200)), max_size=12))
def test_captions_are_stacked_as_low_as_they_go(starts):
    spans = [(left, left + wide) for left, wide in starts]
    lines = figure.stacked(spans)
    for (a, one), (b, other) in combinations(zip(spans, lines, strict=True), 2):
        assert one != other or a[1] < b[0] or b[1] < a[0]
    crowd = max((sum(a <= x <= b for a, b in spans) for x, _ in spans), default=0)
    assert max(lines, default=-1) + 1 == crowd, "no more lines than captions over one place"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e300, 1e300), max_size=20), st.none() | st.floats(1e-6, 1e6), st.booleans())
@example([3.9e-289], None, True)
@example([5e-324], None, True)
@example([5e-324, 0.0], None, True)
@example([0.0, 0.0], None, False)
def test_threshold_largest_value_and_zero_lie_inside_the_axis(values, threshold, log):
    is_log, low, high = figure.y_limits(panels.Panel("x", "kl", log=log, threshold=threshold), values)
    assert low < high and math.isfinite(high - low) and (not is_log or low > 0)
    assert threshold is None or low <= threshold <= high
    if values and (not is_log or max(values) > 0):
        assert max(values) <= high
    assert is_log or low < 0 < high, "a curve that stays at zero does not lie on the frame"


def test_a_curve_has_its_very_colour_on_white_and_is_as_thick_at_zero():
    panel = panels.Panel("x", "kl", threshold=1.0)

    def image(level):
        return pixels(figure.picture([panel], [track([Step(step=i, kl=level) for i in range(1, 60)], panel, "fix")]))

    zero, half = (near(image(level)[60:, 90:-40], "fix", 60).sum() for level in (0.0, 0.5))
    assert zero == pytest.approx(half, rel=0.1) and zero > 500
    assert (image(0.5)[2, 2] == 255).all() and near(image(0.5), "fix", 0).any()


def test_the_picture_of_two_long_runs_is_small_shows_both_and_no_spike_is_lost():
    def make(label, **fields):
        rows = []
        for i in range(1, 10_001):
            norm = math.exp(math.sin(i * 12.9898) * 3)
            rows.append(Step(step=i, grad_norm=norm, kl=norm / 99, reward=float(i == 5_003), entropy=1.0))
        chosen = tracks.Track(label, label, tracks.Rows(panels.columns(panels.parse())), outcome=Outcome(), **fields)
        chosen.feed(rows)
        return chosen

    both = [make("bug", ghost=True), make("fix")]
    png = figure.picture(panels.parse(), both, "ten thousand steps")
    assert len(png) <= 60_000
    image = pixels(png)
    assert near(image, "fix", 12).sum() > 1000 and near(image, "bug", 12).sum() > 20, "the ghost's label"
    alone = pixels(figure.picture(panels.parse(), both[:1]))
    assert not near(alone, "fix", 12).any()
    spike = pixels(figure.picture(panels.parse("reward"), both[1:]))
    rows = np.flatnonzero(near(spike[:, spike.shape[1] // 3 : 2 * spike.shape[1] // 3], "fix", 90).any(1))
    assert rows.max() - rows.min() > spike.shape[0] / 3


@pytest.mark.parametrize("rows", [[], [Step(step=1)], [Step(step=1, grad_norm=NAN)], [Step(step=1, grad_norm=0.0)]])
def test_a_run_with_next_to_nothing_still_has_a_picture_and_the_reader_his_settings(rows):
    import matplotlib

    before = dict(matplotlib.rcParams)
    run = tracks.Track("run", "one", tracks.Rows(panels.columns(panels.parse())), outcome=Outcome("oom", 1))
    run.feed(rows)
    png = figure.picture(panels.parse(), [run], "$x_y$")
    assert pixels(png).shape[1] == 125 * sheet.SHOWN["width"] // 100 == 1075
    assert dict(matplotlib.rcParams) == before


# ------------------------------------------------------------------ marks


def test_where_a_series_breaks_its_panel_says_so_and_a_broken_norm_marks_them_all():
    board = display.Board(["grad_norm", "kl"])
    board.add("bug").feed([Step(step=i, grad_norm=NAN if i > 3 else 1.0, kl=INF if i > 6 else 0.1) for i in range(9)])
    sent = []
    board.widget = type("Page", (), {"spec": {}, "send": lambda self, content, buffers=None: sent.append(content)})()
    board.refresh("bug: 9 steps")
    assert sent[-1]["marks"] == [
        {"step": 4, "text": "", "series": None, "run": 0},
        {"step": 4, "text": "bug: NaN at step 4", "series": "grad_norm", "run": 0},
        {"step": 7, "text": "bug: inf at step 7", "series": "kl", "run": 0},
    ]


# ------------------------------------------------------------------ panels and colours


def test_a_panel_that_no_run_has_data_for_goes():
    keys = lambda measured: [p.series for p in panels.visible(panels.parse(), measured)]
    assert keys({"kl", "memory_allocated", "process_memory"}) == ["kl", "memory_allocated"]
    assert len(keys(set())) == 5, "a run that measures nothing has all of them"


def test_eight_arms_have_eight_colours_and_an_older_run_of_a_name_gives_way():
    board = display.Board(["kl"])
    for arm in ["bug", "fix", *(f"beta {number}" for number in range(6))]:
        board.add(arm)
    assert len({t.tone for t in board.tracks} - {"grey"}) == 8
    board.add("beta 3")
    assert board.tracks[5].tone == "grey" and len({t.label for t in board.tracks}) == 9


def test_runs_that_have_ended_are_drawn_like_those_that_were_watched(tmp_path):
    steps = [Step(step=i, grad_norm=1.0, kl=0.1 * i, reward=0.5) for i in range(1, 9)]
    runs = {"bug": Run(steps[:5], Outcome("oom", 1)), "fix": Run(steps)}
    picture = display.picture(runs, title="the fix goes on", marks={5: "out of memory"})
    assert repr(picture) == "picture of the run"
    assert picture.save(tmp_path / "a" / "b.png").read_bytes() == picture.png
    assert picture._repr_png_() == (picture.png, {"width": 860})
    assert len(display.picture(Run(steps), panels="kl").png) < len(picture.png)
