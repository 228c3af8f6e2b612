"""A figure with knobs: each position is what `draw` draws there; readers without a kernel or script see it, too."""

import base64
import io
import itertools
import json
import re

import IPython.display
import numpy as np
import pytest
from PIL import Image

from labkit.display import knobs, notebook


@pytest.fixture
def displayed(monkeypatch):
    """Every bundle that was displayed or put in the place of one, as if in a notebook."""
    shown = []

    class Handle:
        def update(self, bundle, **_):
            shown.append(bundle)

    def display(bundle, **_):
        shown.append(bundle)
        return Handle()

    monkeypatch.setattr(notebook, "kernel", lambda: object())
    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.delenv("LABKIT_SAVED_PAGES", raising=False)
    return shown


def bar(axes, share, colour="red"):
    """The bar fills a share of the axes with the colour."""
    axes.bar([0], [share], width=1, color=colour)
    axes.set(xlim=(-0.5, 0.5), ylim=(0, 1))


def spec_of(bundle):
    return json.loads(re.search(r"\)\(root, (.*)\); root\.querySelectorAll", bundle["text/html"], re.DOTALL)[1])


def share_of(frame, colour):
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(frame))).convert("RGB")).astype(int)
    wanted = {"red": (255, 0, 0), "blue": (0, 0, 255)}[colour]
    return (np.abs(pixels - wanted).sum(2) < 120).mean()


def test_each_position_holds_the_picture_of_its_own_values_the_last_knob_turning_fastest(displayed):
    knobs.explore(bar, saved=[{"colour": "blue", "share": 0.5}], colour=["red", "blue"], share=(0.25, 1, 0.25))
    spec = spec_of(displayed[-1])
    assert [(knob["kind"], knob["labels"], knob["at"]) for knob in spec["knobs"]] == [
        ("buttons", ["red", "blue"], 1),
        ("slider", ["0.25", "0.5", "0.75", "1"], 1),
    ]
    positions = list(itertools.product(["red", "blue"], [0.25, 0.5, 0.75, 1.0]))
    full = share_of(spec["frames"][3], "red")
    assert full > 0.4
    for frame, (colour, share) in zip(spec["frames"], positions, strict=True):
        assert share_of(frame, colour) == pytest.approx(full * share, abs=0.03)
        assert share_of(frame, {"red": "blue", "blue": "red"}[colour]) == 0


def test_the_first_thing_to_be_seen_is_a_picture_and_it_stays_for_readers_without_script(displayed):
    knobs.explore(bar, saved=[{"share": 1}], share=[0, 1])
    first, last = displayed
    assert set(first) == {"image/png", "text/plain"} and first["text/plain"] == last["text/plain"]
    assert first["image/png"] in last["text/html"].split("<script>")[0]


def test_a_committed_page_holds_the_named_positions_alone(displayed, monkeypatch):
    monkeypatch.setenv("LABKIT_SAVED_PAGES", "1")
    knobs.explore(bar, saved=[{"share": 0.25}, {"share": 1}], share=(0, 1, 0.05), title="a bar")
    (bundle,) = displayed
    assert set(bundle) == {"image/png", "text/plain"} and bundle["text/plain"] == "figure with the knob 'share': a bar"
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(bundle["image/png"]))).convert("RGB")).astype(int)
    red = np.abs(pixels - (255, 0, 0)).sum(2) < 120
    half = len(red) // 2
    assert red[half:].sum() == pytest.approx(4 * red[:half].sum(), rel=0.1)


@pytest.mark.parametrize(
    "values, kind",
    [
        ((0, 8, 1), "slider"),
        ([2, 3, 4], "stepper"),
        ([1, 2, 3, 4, 5, 6], "slider"),
        (["k2", "k3"], "buttons"),
        ([False, True], "check"),
    ],
)
def test_the_kind_of_a_knob_follows_from_its_values(values, kind):
    assert knobs._knob("a_name", values).kind == kind and knobs._knob("a_name", values).name == "a name"


def test_a_check_box_is_off_or_on_in_words():
    assert knobs._knob("clamp", [False, True]).labels == ["off", "on"]


def test_a_sliders_values_are_those_that_were_computed_with_the_same_decimals():
    assert knobs._knob("share", (0, 1, 0.1)).values == [round(0.1 * i, 1) for i in range(11)]


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"saved": [{}]}, "at least one knob"),
        ({"saved": [], "share": [1, 2]}, "at least one position"),
        ({"saved": [{"part": 1}], "share": [1, 2]}, r"has \['part'\]; the knobs are \['share'\]"),
        ({"saved": [{"share": 3}], "share": [1, 2]}, r"no 3; it has \['1', '2'\]"),
        ({"saved": [{}], "share": (0, 1, 0.001)}, "1001 positions, at most 250"),
        ({"saved": [{}], "share": (0, 1, -1)}, "room for a step"),
        ({"saved": [{}], "share": []}, "no values"),
    ],
)
def test_what_cannot_be_turned_is_named(settings, words):
    with pytest.raises(ValueError, match=words):
        knobs.explore(bar, **settings)


def test_several_panels_stand_side_by_side_and_a_script_prints_nothing(capsys, displayed, monkeypatch):
    widths = []

    def draw(axes, at):
        widths.append([each.get_position().width for each in axes])

    knobs.explore(draw, saved=[{"at": 1}], at=[1, 2], panels=(2, 1))
    assert all(left > 1.5 * right for left, right in widths)
    monkeypatch.setattr(notebook, "kernel", lambda: None)
    knobs.explore(bar, saved=[{"share": 1}], share=[0, 1])
    assert capsys.readouterr().out == ""
