"""Lesson 17, TRL: its clock, what is kept of a run, its judges, and what its text says of TRL and does not show."""

import asyncio
import io
import math

import pytest
import torch
from cut import Page
from props import lesson_17 as lab
from props import lesson_17_cases as cases
from props import lesson_17_pictures as pictures

import labkit
from labkit import sandbox
from labkit.events import Exam, Outcome, Run

pytest.importorskip("trl", reason="needs trl: pip install labkit[trl]")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def page():
    return Page("17", DEVICE="cpu")


def ended(events):
    """The log, the exams, and the last dict of a run in this process."""
    events = list(events)
    words = lab.told(Run(events))
    return words["log"], [event.mean for event in events if isinstance(event, Exam)], words


def without_seconds(log):
    return [{name: value for name, value in row.items() if "time" not in name and "second" not in name} for row in log]


def test_no_two_of_64_calls_take_the_same_time_and_the_seed_alone_decides():
    times = {}
    for seed in (0, 0, 1):
        clock = lab.set_clock(seed)
        drawn = [clock.turns() for _ in range(128)]
        assert len(set(drawn[:64])) == len(set(drawn[64:])) == 64 and min(drawn) >= 1
        assert times.setdefault(seed, drawn) == drawn
    assert times[0] != times[1]


def test_the_bug_sorts_each_groups_rewards_by_the_time_of_their_calls_and_by_nothing_else(page):
    for seed in range(5):
        prompts, completions, worth = cases.answers_to(8, seed)
        clock = lab.set_clock(seed)
        turns = [clock.turns() for _ in prompts]
        expected = []
        for at in range(0, 64, 8):
            expected += [worth[row] for row in sorted(range(at, at + 8), key=turns.__getitem__)]
        lab.set_clock(seed)
        assert asyncio.run(page["as_finished"](prompts=prompts, completions=completions)) == expected != worth


def test_preflight_and_guard_leave_the_run_as_it_is_bit_for_bit(page):
    plain, checked = (
        ended(lab.trained(page["build"], seed=3, checked=checked, reward=page["as_finished"], max_steps=2))
        for checked in (False, True)
    )
    assert without_seconds(plain[0]) == without_seconds(checked[0]) and plain[1] == checked[1] and len(plain[1]) == 3
    assert set(checked[2]["says"]) == {"preflight", "guard", "triage"} and not plain[2]["says"]


def test_where_the_guard_skips_the_log_is_that_of_a_run_without_it(page):
    log, exams, words = ended(lab.trained(page["build"], seed=0, checked=True, **page["FAULTS"]["KL"]))
    assert words["with guard"]["skipped"] and any("update skipped" in text for text in words["says"]["guard"])
    assert math.isnan(exams[-1]) and [row["loss"] for row in log if "loss" in row][-1] == 0
    assert math.isfinite(words["with guard"]["exam"])


def test_with_a_tiny_beta_the_kl_is_zero_where_the_optimizer_holds_a_copy_and_moves_where_it_does_not(page):
    """The second of the page's first three checks, on the run that it finds, a sound one, and a tied one."""
    largest, norms = {}, {}
    for fault in ("optimizer", "healthy", "format"):
        settings = page["FAULTS"].get(fault, {}) | {"beta": 1e-8, "max_steps": 3}
        log, _, _ = ended(lab.trained(page["build"], seed=1, **settings))
        largest[fault] = max(row["kl"] for row in log if "kl" in row)
        norms[fault] = [row["grad_norm"] for row in log if "kl" in row]
    assert largest["optimizer"] == 0 < 0.001 < largest["healthy"]
    assert min(norms["optimizer"]) > 0.5 and max(norms["format"]) < 1e-4, "a norm of 0 says that groups are tied"


def test_trl_logs_no_kl_at_its_own_beta(page):
    log, _, _ = ended(lab.trained(page["build"], seed=0, max_steps=1))
    assert "reward" in log[0] and "kl" not in log[0]


def test_preflight_does_not_see_the_order_because_its_odd_answers_are_all_wrong(page, tmp_path, monkeypatch):
    """It does where the reward function pays for one of them."""
    monkeypatch.chdir(tmp_path)  # TRL makes its output folder at once
    trainer = page["build"](reward=page["as_finished"])

    async def for_nothing(completions, **_):
        calls = [lab.after_a_while(float(text == "")) for text in completions]
        return [await call for call in asyncio.as_completed(calls)]

    seen = {}
    for reward in (page["as_finished"], for_nothing):
        lab.set_clock(0)
        given = trainer.model, trainer.processing_class, trainer.args
        items = labkit.preflight(*given, reward=reward, prompts=["47+52="]).items
        seen[reward.__name__] = [item.level for item in items if item.name == "reward order"]
    assert seen == {"as_finished": [], "for_nothing": ["stop"]}


def test_the_file_that_trl_writes_is_graded_again_by_the_columns_that_it_has(page):
    """`graded_again` on the rows of a run, against the rows that the trainer kept; a tolerance lets rounding pass."""
    rewards = {"as_finished": page["as_finished"], "exact": page["exact"]}
    for name, reward in rewards.items():
        settings = {"reward": reward, "max_steps": 1, "log_completions": True}
        _, _, words = ended(lab.trained(page["build"], seed=2, **settings))
        rows, others = page["graded_again"](io.BytesIO(words["parquet"]), name, page["grade"])
        assert (rows, others) == (64, pictures.regraded(Run([words]))), name
        assert others > 10 if name == "as_finished" else others == 0
        nearly = lambda prompt, text: page["grade"](prompt, text) + 1e-8
        assert page["graded_again"](io.BytesIO(words["parquet"]), name, nearly) == (rows, others)


def test_rewards_at_random_are_each_groups_own_in_another_order(page):
    prompts, completions, worth = cases.answers_to(8, 3)
    found = page["at_random"](prompts, completions)
    groups = [(sorted(found[at : at + 8]), sorted(worth[at : at + 8])) for at in range(0, 64, 8)]
    assert all(got == wanted for got, wanted in groups) and found != worth


def wrong_rewards(page):
    async def too_few(prompts, completions, **_):
        return (await page["in_their_place"](prompts, completions))[:-1]

    async def twice(prompts, completions, **_):
        await page["in_their_place"](prompts, completions)
        return await page["in_their_place"](prompts, completions)

    return {
        "and the judge says": page["as_finished"],
        "64 rows it returned 63 values": too_few,
        "it returned NoneType": lambda prompts, completions, **_: None,
        "asks the judge 2 times a row": twice,
        "For 13 rows it returned": lambda prompts, completions, **_: page["exact"](
            prompts[: len(prompts) // 8 * 8], completions[: len(prompts) // 8 * 8]
        ),
    }


def test_rewards_are_judged_by_place_number_and_calls_and_hear_which(page):
    assert cases.judge_reward(page["in_their_place"])
    assert cases.judge_reward(page["exact"]), "who needs no judge is right, too"
    for words, reward in wrong_rewards(page).items():
        report = cases.judge_reward(reward)
        assert not report and words in report.hint, report.hint


def test_each_mend_is_judged_alone_and_another_one_that_works_is_taken(page):
    faults, right = page["FAULTS"], page["settings_that_mend"]
    assert cases.judge_mends(right, faults)
    wrong = {
        "rate": {"learning_rate": 8e-4},
        "cut": {"mask_truncated_completions": False},
        "top_k": {"temperature": 2.0},
        "format": {"reward": page["last_digit"]},
        "last digit": {"scale_rewards": "none"},
        "optimizer": {"optimizer": page["of_a_copy"]},
        "KL": {"num_iterations": 1},
    }
    for fault, settings in wrong.items():
        report = cases.judge_mends(lambda name, f=fault, s=settings: s if name == f else right(name), faults)
        assert not report and f"For '{fault}'" in report.hint and report.seen == {"mended": "6 of 7"}, report.hint
    others = {
        "optimizer": {"optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=2e-4)},
        "KL": {"max_grad_norm": 1.0},
        "format": {"reward": page["in_their_place"]},
        "top_k": {"top_k": None},
    }
    assert cases.judge_mends(lambda name: others.get(name) or right(name), faults)
    for odd, words in {"no dict": None, "'topk'": {"topk": 0}}.items():
        report = cases.judge_mends(lambda name, odd=words: odd, faults)
        assert not report and odd in report.hint


def test_a_readers_mend_that_is_no_dict_dies_in_its_child_and_leaves_the_other_run(page):
    faults = {name: page["FAULTS"][name] | {"max_steps": 1} for name in ("top_k", "rate")}
    runs = cases.mended(lambda fault: {"top_k": 0} if fault == "top_k" else None, faults, page["build"], 0)
    assert runs["top_k"].outcome and lab.told(runs["top_k"])["mend"] == ["top_k=0"]
    assert not runs["rate"].outcome and lab.exams_of(runs["rate"]) == []
    sandbox.shutdown()


def said(**words):
    return Run([{"log": [], "first": [], "says": {"preflight": {}, "guard": [], "triage": []} | words}])


def test_an_answer_is_what_is_said_beyond_the_healthy_run_and_triage_is_taken_by_its_first():
    usual = said(preflight={"NaN in the log": "a NaN loss will not be seen"})
    of = lambda who, fault="rate", **words: pictures.answer_of(fault, who, said(**words), usual)
    assert of("preflight", preflight={"NaN in the log": "a NaN loss will not be seen"}) == "silent"
    assert of("preflight", preflight={"NaN in the log": "", "learning rate": "0.001"}) == "right"
    assert of("triage", triage=["learning-rate", "kl-blowup"]) == "right"
    assert of("triage", triage=["kl-blowup", "learning-rate"]) == "wrong"
    assert of("guard", "top_k", guard=["step 5: in 5 logs in a row every group is tied, ..."]) == "symptom"
    assert of("guard", "rate", guard=["step 5: in 5 logs in a row every group is tied, ..."]) == "wrong"
    assert of("triage", "KL", triage=["kl-blowup", "learning-rate"]) == "symptom"
    assert of("guard", "order", guard=["step 4: KL 11 nats"]) == "wrong"
    runs = [said(triage=["learning-rate"]), said()]
    assert pictures.answers("rate", "triage", runs, [usual, usual]) == "right, silent"


def test_a_picture_takes_a_run_that_died_and_leaves_a_gap_for_what_is_no_number():
    from matplotlib.figure import Figure

    axes = Figure().subplots(1, 7)
    rows = [{"loss": 0.0, "reward": 0.5, "grad_norm": value} for value in (1.0, math.inf, math.nan)]
    runs = {"bug": Run([{"log": rows, "first": []}]), "yours": Run([], Outcome(signature="timeout"))}
    pictures.draw_fault(axes, ["top_k=1"], {"guard": "silent"}, runs)
    line, of_the_dead = axes[2].lines
    assert not of_the_dead.get_ydata().size
    assert line.get_ydata()[0] == 1 and all(math.isnan(value) for value in line.get_ydata()[1:])
    assert axes[5].texts[0].get_text() == "not logged" and not axes[6].lines[1].get_ydata().size
    words = [text.get_text() for text in axes[0].texts]
    assert words == ["top_k=1", "guard: silent", "— bug", "— yours"]
