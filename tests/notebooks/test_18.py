"""Lesson 18: the mysteries are real bugs in real runs, its sheet measures them, the reward is as the text says."""

import math
import random
import sys

import pytest
import torch
from cut import FOLDER, bug_cells

from labkit import triage

sys.path.append(str(FOLDER))
from props import lesson_18 as props
from props import mystery

pytestmark = pytest.mark.timeout(300)
QUICK = ["nothing is wrong", "one first token for the whole group", "the grader cannot read the text"]
EACH = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in mystery.FAILURES]

# number of the sheet that its bug moves -> out of this interval
MOVED = {
    "the gradient exploded": ("weights not finite", 0, 0),
    "the KL term outweighs the reward": ("pull of the KL", 0, 10),
    "the learning rate is far too high": ("way of the weights", 0, 0.5),
    "every evaluation stays in memory": ("tensors with a graph", 0, 100),
    "greedy decoding": ("different answers", 1.01, 8),
    "the grader cannot read the text": ("reward", 0.001, 1),
    "micro-batches overwrite each other": ("gradient handed over", 0.9, 1.1),
    "the optimizer steps a copy of the model": ("KL", 1e-9, 9),
    "padding is counted": ("counted behind the end", 0, 0),
    "one first token for the whole group": ("first tokens", 0.85, 2),
    "the sampler ignores the temperature": ("surprise, first round", 0, 4),
    "the sampler keeps its first weights": ("surprise, last round", 0, 4),
}


def sheet_of(name, **settings):
    """The sheet of a run in this process, whether or not the run died, and its steps."""
    events = []
    try:
        for event in mystery.played(name, 0, **settings):
            events.append(event)
    except RuntimeError:
        assert name == "the gradient exploded" and not settings.get("sound")
    return events[-1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EACH)
def test_a_bug_moves_its_number_and_without_the_bug_it_stays(name):
    if name not in MOVED:
        assert set(sheet_of(name)) == set(mystery.SHEET)
        return
    number, low, high = MOVED[name]
    assert not low <= sheet_of(name)[number] <= high
    assert low <= sheet_of(name, sound=True)[number] <= high


def test_every_bug_has_a_cause_of_triage_and_the_silent_ones_all_come_up():
    assert {failure.cause for failure in mystery.FAILURES.values()} <= set(triage.CAUSES) | {"other"}
    assert {mystery.chosen(seed) for seed in range(4)} == set(mystery.SILENT)
    assert all(mystery.FAILURES[name].code for name in mystery.SILENT)


def test_the_score_knows_right_wrong_unknown_and_nothing(capsys):
    for answer, word in (("", "No answer"), ("a gremlin", "none of the causes"), (mystery.chosen(3), "Right"),
                         ("greedy decoding", "No.")):  # fmt: skip
        props.scored(answer, 3)
        assert capsys.readouterr().out.startswith(word) or word in "none of the causes"


def test_the_reward_divides_by_nearly_zero_where_the_answer_is_zero_only():
    import labkit

    space = bug_cells("18") | {"ADD": labkit.task.get("add")}
    reward = space["relative_error"]
    reward.__globals__["ADD"] = space["ADD"]
    assert reward(["12+34="], ["46"]) == [0.0] and reward(["12+34="], ["23"]) == [pytest.approx(-0.5)]
    (huge,) = reward(["00+00="], ["6"])
    assert math.isfinite(huge) and huge == pytest.approx(-6e8)


def test_rewards_in_another_order_stay_in_their_group_and_are_the_same_for_the_same_texts():
    dice = random.Random(0)
    prompts = [prompt for prompt in props.ADD.sample(3, dice) for _ in range(8)]
    texts = [props.ADD.answer(prompt) if dice.random() < 0.5 else "1" for prompt in prompts]
    strict, mixed = mystery.tasks.rewards(prompts, texts), mystery.as_they_come(prompts, texts)
    assert mixed != strict and mixed == mystery.as_they_come(prompts, texts)
    for at in range(0, 24, 8):
        assert sorted(mixed[at : at + 8]) == sorted(strict[at : at + 8])


def test_surprise_is_about_1_for_own_draws_and_large_for_hotter_and_for_colder_ones():
    torch.manual_seed(0)
    logits = 2 * torch.randn(400, 12)
    for heat, low, high in ((1.0, 0, 3), (2.0, 6, 99), (0.5, 6, 99)):
        drawn = torch.distributions.Categorical(logits=logits / heat).sample()
        logp = logits.log_softmax(-1).gather(1, drawn[:, None])[:, 0]
        assert low <= mystery.surprise(logp, logits) <= high


def test_the_diagnosis_takes_the_solution_and_refuses_halves_of_it():
    def again(rows):
        return [float(row["completion"] == props.ADD.answer(row["prompt"])) for row in rows]

    def used(rows):
        return [row["reward"] for row in rows]

    def by_sum(rows):
        return props.KIND if sum(again(rows)) != sum(used(rows)) else "nothing found"

    def by_rows(rows):
        return "nothing found" if again(rows) == used(rows) else props.ORDER

    def by_round(rows):  # takes the sum of the round, and every other difference for kindness
        if again(rows) == used(rows):
            return "nothing found"
        return props.ORDER if sum(again(rows)) == sum(used(rows)) else props.KIND

    for wrong in (by_sum, by_rows, by_round, lambda rows: "nothing found"):
        assert not props.names_all_three(wrong)
