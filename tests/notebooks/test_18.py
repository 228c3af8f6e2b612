"""Lesson 18: what the instruments say is true of the runs, they take nothing from them, and the budget is kept."""

import itertools

import pytest
import torch
from cut import Page
from props import asks, mystery
from props import lesson_18 as lab
from props import lesson_18_runs as once
from props.lesson_18_pictures import DOTS, NOTCHES, counted, limit_at
from props.suspects import FAULTS, SUSPECTS

from labkit import sandbox
from labkit.grpo import Hooks, Sampling, generate, load, train
from labkit.grpo.policy import token_logprobs

pytestmark = pytest.mark.timeout(600)
QUICK = {"rounds": 1, "mu": 1, "sampling": Sampling(prompts=2, temperature=0.5)}
CASE = asks.Case({"reward": [0.5] * 5}, {"surprise": {1: 0.5, 5: 20.0}, "grade again": {1: 0.0, 5: 12.0}})


@pytest.fixture(scope="module")
def page():
    return Page("18")


def test_surprise_is_about_1_for_own_draws_and_large_for_hotter_and_for_colder_ones(page):
    torch.manual_seed(0)
    logits = 2 * torch.randn(400, 12)
    for temperature, low, high in ((1.0, 0, 3), (2.0, 6, 99), (0.5, 6, 99)):
        drawn = torch.distributions.Categorical(logits=logits / temperature).sample()
        logp = logits.log_softmax(-1).gather(1, drawn[:, None])[:, 0]
        assert low <= page["surprise"](logp, logits) <= high


def test_surprise_is_the_z_score_of_the_mean_log_prob_by_enumeration(page):
    """Two tokens of a policy with two answers each: all four draws, by hand."""
    logits = torch.tensor([[0.2, 0.8], [0.5, 0.5]]).log()
    draws = list(itertools.product((0, 1), (0, 1)))
    chances = [logits[0].exp()[a] * logits[1].exp()[b] for a, b in draws]
    sums = [logits[0, a] + logits[1, b] for a, b in draws]
    expected = sum(c * s for c, s in zip(chances, sums, strict=True))
    variance = sum(c * (s - expected) ** 2 for c, s in zip(chances, sums, strict=True))
    drawn = torch.stack([logits[0, 0], logits[1, 1]])
    by_hand = abs(drawn.sum() - expected) / variance.sqrt()
    assert page["surprise"](drawn, logits) == pytest.approx(float(by_hand), rel=1e-5)


def test_the_instruments_take_nothing_from_the_run_and_look_at_its_first_and_last_round(page):
    settings = {"rounds": 2, "mu": 1, "seed": 5, "sampling": Sampling(prompts=2, temperature=0.5)}
    events = list(mystery.play(Hooks(micro_batches=2), page["INSTRUMENTS"], **settings))
    watched = [event for event in events if not isinstance(event, dict)]
    alone = list(train("add", hooks=Hooks(micro_batches=2), device="cpu", **settings))
    for ours, theirs in asks.COLUMNS.items():
        assert [step[theirs] for step in watched] == [step[theirs] for step in alone], ours
    sheets = [at for at, event in enumerate(events) if isinstance(event, dict)]
    assert sheets == [1, 3] and set(events[1]) == set(page["INSTRUMENTS"])


def test_each_fault_moves_its_instrument_in_every_run_that_was_played_once_and_in_no_sound_one():
    known = once.kept()
    for button, limit in {"surprise, round 1": 5, "gradient handed over": 0.95, "first tokens": 0.85}.items():
        counts = counted(known, button, limit)
        assert counts["its own"][0] == counts["its own"][1] > 0 and counts[asks.NOTHING][0] == 0, button
    for name, runs in known.items():
        for run in runs:
            assert (run.said["behind the end"][1] > 5) == (name == "padding")
            assert (run.said["grade again"][5] > 5) == (name in ("order", "kind grader"))
            assert (run.said["weights moved"][5] == 0 == max(run.log["KL"])) or name != "copy"


def test_every_suspect_was_played_on_the_same_number_of_seeds_under_each_of_the_settings():
    for setting in once.SETTINGS:
        known = once.kept(setting)
        assert set(known) == set(SUSPECTS) == {asks.NOTHING, *FAULTS}
        assert len({len(runs) for runs in known.values()}) == 1


@pytest.mark.slow
def test_a_run_that_was_played_once_comes_out_alike_again(script):
    runs = script("mystery_runs")
    kept = {(row["setting"], row["seed"], row["name"]): row for row in runs.rows_of(once.KEPT)}
    for name in SUSPECTS:
        assert not runs.differences(kept[once.PAGE, 0, name], runs.played(once.PAGE, 0, name))


def test_one_seed_in_five_hides_nothing_and_every_suspect_comes_up():
    names = [asks.hidden(SUSPECTS, seed) for seed in range(400)]
    assert set(names) == set(SUSPECTS) and 0.15 < names.count(asks.NOTHING) / 400 < 0.25


def test_the_fourth_question_is_refused_and_what_nobody_measured_costs_nothing():
    ask = asks.Asks(CASE, budget=3)
    for wrong, error in ((("surprize",), KeyError), (("surprise", 3), ValueError)):
        with pytest.raises(error):
            ask(*wrong)
    assert [ask("surprise", round=1), ask("surprise"), ask("grade again")] == [0.5, 20.0, 12.0]
    with pytest.raises(asks.BudgetSpent):
        ask("surprise", round=1)
    assert [at for _, at, _ in ask.asked] == [1, 5, 5]


def asks_four_times(log, ask):
    return [ask("surprise") for _ in range(4)]


def waits_for_ever(log, ask):
    while True:
        pass


def changes_the_log(log, ask):
    log["reward"].clear()
    return "copy"


@pytest.mark.parametrize(
    ("doctor", "answer"),
    [
        (asks_four_times, "asked a fourth time"),
        (waits_for_ever, "did not come back"),
        (lambda log, ask: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda log, ask: None, "None"),
        (changes_the_log, "copy"),
    ],
)
def test_a_doctor_may_ask_too_often_raise_or_never_come_back_and_the_page_goes_on(doctor, answer, monkeypatch):
    limit = 3.0 if doctor is waits_for_ever else 60.0  # seconds; a busy machine starts a process slowly
    monkeypatch.setattr(lab, "LIMIT", limit)
    rows = lab.rounds_of(doctor, [("copy", CASE), (asks.NOTHING, CASE)])
    assert [row["answer"] for row in rows] == [answer] * 2
    assert CASE.log["reward"]


def test_a_run_that_died_is_no_case():
    def dies():
        yield {"surprise": 1.0}
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="ended early.*no more"):
        asks.Case.of(sandbox.run(dies, timeout=60))


@pytest.mark.parametrize(
    ("name", "hidden", "words"),
    [("", "copy", "No name yet"), ("a gremlin", "copy", "none of the suspects"), ("copy", "copy", "Right"),
     (asks.NOTHING, asks.NOTHING, "Right"), ("order", "copy", "something else")],
)  # fmt: skip
def test_the_reply_knows_right_wrong_unknown_and_nothing(capsys, name, hidden, words):
    ask = asks.Asks(CASE)
    lab.reply(name, ask, hidden)
    assert words in capsys.readouterr().out


def test_every_instrument_has_a_limit_at_each_notch_and_all_surprises_have_the_same():
    for button, (_, _, low, high, _, _) in DOTS.items():
        limits = [limit_at(button, notch) for notch in NOTCHES]
        assert limits == sorted(limits) and low <= limits[0] and limits[-1] <= high, button
    assert limit_at("surprise, round 1", 5) == limit_at("surprise, round 1, 8 draws", 5) == 5


def test_the_surprise_of_a_rollout_in_pieces_is_that_of_all_rows_at_once(page):
    policy = load("tiny", "cpu")
    how = {"num_samples": 6, "temperature": 0.5, "generator": torch.Generator().manual_seed(0)}
    out = generate(policy, ["38+47=", "7+5="], **how)  # one is padded on the left
    length = out.tokens.shape[1]
    with torch.no_grad():
        logp, logits = token_logprobs(policy.model, out.ids, out.attention_mask, length, 0.5)
    whole = page["surprise"](logp[out.mask.bool()], logits[out.mask.bool()])
    rows = (policy.model, out.ids, out.attention_mask, out.mask, 0.5)
    for piece in (5, 64):
        assert page["surprise_of_rollout"](*rows, rows=piece) == pytest.approx(float(whole), rel=1e-3, abs=1e-4)
