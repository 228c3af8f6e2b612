"""Lesson 00: its loop is labkit's, its gallery has every lesson, and a reader's wrong function is drawn, not raised."""

import re

import pytest
import torch
from cut import FOLDER, NOTEBOOKS, Page, cells, path_of, prose, source

from labkit.display.sheet import sheet
from labkit.events import Exam, Outcome, Run, Step
from labkit.grpo import train
from labkit.grpo.advantage import group_advantage

ROOT = FOLDER.parent
PICTURES = ROOT / "docs" / "pictures"
LESSONS = {path.name for path in NOTEBOOKS if path.parent == FOLDER} - {path_of("00").name}


def steps(events):
    return [event for event in events if isinstance(event, Step)]


def test_the_loop_on_the_page_computes_what_labkits_trainer_computes():
    """A mistake in sampler, mask, KL, clip or the limit of the norm parts them within 8 updates."""

    page = steps(Page("00", DEVICE="cpu")["grpo"](3, rounds=2))
    theirs = list(train("add", device="cpu", seed=3, rounds=2))
    assert len(page) == len(theirs) == 8
    for mine, its in zip(page, theirs, strict=True):
        for name in ("loss", "reward", "kl", "ratio_max", "grad_norm"):
            assert mine[name] == pytest.approx(its[name], abs=2e-5), (mine.step, name)


def test_the_solution_is_labkits_advantage_where_a_group_is_not_tied_and_nearly_0_where_it_is():
    rewards = torch.tensor([1.0, 0, 0, 0, 0.3, 0.3, 0.3, 0.3, -2, 5, 7, 1])
    mine = Page("00")["of_own_group"](rewards, 4)
    torch.testing.assert_close(mine, group_advantage(rewards, 4), atol=0.01, rtol=1e-4)


def test_every_lesson_stands_in_the_gallery_with_its_picture_and_every_link_leads_to_one():
    linked = re.findall(r"\[!\[(\d\d)\]\(\.\./(docs/\S+?)\)\]\((\S+?)\)<br>\[(\d\d)\]\((\S+?)\)", prose("00"))
    assert {file for _, _, file, _, _ in linked} == LESSONS and len(linked) == len(LESSONS)
    for number, picture, file, again, same in linked:
        assert (number, file) == (again, same) and file.startswith(f"{number}_")
        assert (ROOT / picture) == PICTURES / "gallery" / f"{number}.webp" and (ROOT / picture).is_file()


def test_the_script_that_draws_the_gallery_knows_every_lesson_once():
    text = (ROOT / "scripts" / "gallery.py").read_text()
    drawn = re.findall(r'^    Picture\("(\d\d)"', text, re.MULTILINE)
    assert drawn == sorted(name[:2] for name in LESSONS)
    assert "docs/pictures/gallery.webp" in (ROOT / "README.md").read_text()
    assert (PICTURES / "gallery.webp").is_file()


def test_the_defaults_of_trl_that_the_page_names_are_those_of_the_installed_trl():
    fields = pytest.importorskip("trl").GRPOConfig.__dataclass_fields__
    named = re.findall(r"\|`(\w+)`\|([^|\s]+)\|$", prose("00"), re.MULTILINE)
    assert len(named) == 10
    for option, value in named:
        default = fields[option].default
        assert str(default) == value.strip('`"') or float(default) == float(value), option


# a run of a reader's function that died, one that yielded NaN, and one in which nothing moved
DEAD = Run([Exam(0, {"add": 0.455})], Outcome("exception:TypeError", 1, exception="TypeError", message="no\nnumber"))
NAN = float("nan")


def state(value):
    """Of the eight rows, with this value in each place."""
    row = {"loss": value, "kl": value, "advantages": [value] * 8, "ratios": [[value] * 3] * 8}
    return row | {"P": {"9": value, "8": value}, "surrogate norm": value, "KL norm": value}


@pytest.mark.parametrize("states", [[], [state(NAN)] * 9, [state(1e9)] * 9], ids=["dead", "NaN", "huge"])
def test_a_wrong_function_of_the_reader_is_drawn_at_every_position_of_the_knob(states):
    lab = Page("00")["lab"]
    healthy = [state(0.5)] * 9
    for update in range(9):
        with sheet(8, 2, 60) as figure:
            lab.draw_eight(figure.subplots(1, 2), states, update, behind=healthy)
            figure.canvas.draw()


def test_a_dead_run_is_a_cross_in_the_table_and_its_sums_by_hand_say_how_it_ended(capsys):
    page = Page("00")
    assert page["lab"].gains([DEAD]) == "✗" and page["lab"].gain(DEAD) == 0
    assert page["lab"].row_of("yours", [DEAD])["largest ratio"] == "✗"
    loss = page["by_hand"](DEAD)
    assert loss != loss and capsys.readouterr().out == "the run ended: TypeError: no number\n"


def test_the_page_holds_no_answer_of_a_later_lesson():
    text = "\n".join(source(cell) for cell in cells(path_of("00")))
    for answer in ("k2", "square() / 2", "norm <= 10", "repeat_interleave", "health("):
        assert answer not in text, answer
