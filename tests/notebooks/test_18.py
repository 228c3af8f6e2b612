"""Lesson 18: the mysteries are real bugs in real runs, and the reward is as the text says."""

import pytest
import torch
from cut import Page
from props import lesson_18 as props
from props import mystery

from labkit import triage
from labkit.verdicts import holds

pytestmark = pytest.mark.timeout(300)
QUICK = ["nothing is wrong", "one first token for the whole group", "the grader cannot read the text"]
EACH = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in mystery.FAILURES]


@pytest.fixture(scope="module")
def page():
    return Page("18")


def sheet_of(name, **settings):
    """The sheet of a run in this process, whether or not the run died."""
    events = []
    try:
        events.extend(mystery.played(name, 0, **settings))
    except RuntimeError:
        assert name == "the gradient exploded" and not settings
    return events[-1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EACH)
def test_a_bug_moves_the_number_that_the_lesson_asks_for_and_without_the_bug_it_stays(name, page):
    sheet = sheet_of(name)
    assert set(sheet) == set(mystery.SHEET)
    for number, relation, limit, cause in page["QUESTIONS"]:
        if cause == name:
            assert holds(sheet[number], relation, limit)
            assert not holds(sheet_of(name, sound=True)[number], relation, limit)


def test_every_bug_has_a_cause_of_triage_and_the_silent_ones_all_come_up():
    assert {failure.cause for failure in mystery.FAILURES.values()} <= set(triage.CAUSES) | {"other"}
    assert {mystery.chosen(seed) for seed in range(4)} == set(mystery.SILENT)
    assert all(mystery.FAILURES[name].code for name in mystery.SILENT)


@pytest.mark.parametrize(
    "answer, words",
    [("", "No answer"), ("a gremlin", "'a gremlin' is none"), (mystery.chosen(3), "Right"), ("greedy decoding", "No.")],
)
def test_the_score_knows_right_wrong_unknown_and_nothing(capsys, answer, words):
    props.scored(answer, 3)
    assert capsys.readouterr().out.startswith(words)


def test_the_reward_divides_by_nearly_zero_where_the_answer_is_zero_only(page):
    reward = page["relative_error"]
    assert reward(["12+34="], ["46"]) == [0.0] and reward(["12+34="], ["23"]) == [pytest.approx(-0.5)]
    assert reward(["00+00="], ["6"]) == [pytest.approx(-6e8)]


def test_surprise_is_about_1_for_own_draws_and_large_for_hotter_and_for_colder_ones():
    torch.manual_seed(0)
    logits = 2 * torch.randn(400, 12)
    for temperature, low, high in ((1.0, 0, 3), (2.0, 6, 99), (0.5, 6, 99)):
        drawn = torch.distributions.Categorical(logits=logits / temperature).sample()
        logp = logits.log_softmax(-1).gather(1, drawn[:, None])[:, 0]
        assert low <= mystery.surprise(logp, logits) <= high
