"""The out-of-memory clinic: its made deaths have the cause that they say, and any reader's function reaches the end."""

import random

import pytest
import torch
from cut import Page
from props import lesson_15 as lab
from props import lesson_15_judges as judges
from props import made_deaths as made
from props import out_of_memory
from props.card import Allocator

from labkit import memory

GIB = 2**30


@pytest.fixture(scope="module")
def page():
    return Page("15", unseen=[], deaths=[])


@pytest.fixture(scope="module")
def runs(page):
    """The LoRA run, clean and with the leak: (calls, peak)."""
    return {name: made.record(page["grpo_round"], page["WAYS"][name], "LoRA", 5) for name in ("clean", "leak")}


@pytest.fixture(scope="module")
def deaths(page):
    return list(made.deaths_of(page["grpo_round"], page["WAYS"], ["LoRA"], 5))


def test_a_clean_run_holds_what_is_owned_before_every_step_and_a_leaking_one_more_each_time(runs):
    big = 80 * GIB
    message, held, owned = made.play(runs["clean"][0], Allocator(big))
    assert message == "" and len(held) == made.ROUNDS
    for before, own in zip(held, owned, strict=True):
        assert before == pytest.approx(own, abs=2**20)  # blocks are rounded up to 512 bytes
    _, leaked, owned_too = made.play(runs["leak"][0], Allocator(big))
    assert owned_too == owned
    over = [before - own for before, own in zip(leaked, owned, strict=True)]
    vocabulary, shortest = 50257, 439
    for before, after in zip(over, over[1:], strict=False):
        # at least the log-probs of eight answers, whose graph the entropy holds
        assert after - before > 8 * shortest * vocabulary * 4


def test_under_lora_only_the_adapters_have_gradients_and_state():
    model = made.build("LoRA")
    weights = sum(parameter.nbytes for parameter in model.parameters())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    adapters = sum(parameter.nbytes for parameter in trained)
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    steps = 4 * len(trained)  # the counts of steps, on the CPU like the model here
    assert memory.owned(model, optimizer) == weights + buffers + 3 * adapters + steps
    assert adapters < weights / 100


def test_every_cause_is_among_the_deaths_and_each_message_is_read_with_its_five_figures(deaths):
    assert {death["cause"] for death in deaths} == set(judges.NAMES)
    for death in deaths:
        assert death["numbers"]["total"] > death["numbers"]["asked"] > 0
        assert (death["cause"] == "another owner") == ("Process " in death["message"])


def test_owner_reads_the_deaths_as_the_pages_solution_does(page, deaths):
    solution = judges.answers(page["reading"], deaths)
    owner = [memory.owner(death["message"], death["held"], death["owned"]).verdict for death in deaths]
    assert solution == owner


def test_the_solution_passes_and_a_reading_that_asks_for_pieces_before_the_leak_does_not(page, deaths):
    public = lab.public()
    assert judges.judge(page["reading"], deaths, public)

    def pieces_first(numbers, held, owned):
        if numbers["asked"] <= numbers["free"] + numbers["unallocated"]:
            return "fragments"
        return page["reading"](numbers, held, owned)

    report = judges.judge(pieces_first, deaths, public)
    assert not report and "GiB" in report.hint


def leaves(numbers, held, owned):
    raise SystemExit


@pytest.mark.parametrize(
    ("reading", "answer"),
    [
        (lambda numbers, held, owned: None, "None"),
        (lambda numbers, held, owned: held[-1] - owned, "IndexError"),
        (lambda numbers: "a leak", "TypeError"),
        (lambda numbers, held, owned: ["a leak"] * 1000, str(["a leak"] * 1000)[:60]),
        (leaves, "no answer"),
    ],
)
def test_a_wrong_reading_is_an_answer_and_no_exception(deaths, reading, answer):
    some = [{**deaths[0], "held": [], "owned": None}]
    public = lab.public()
    given, of_public = judges.read_all(reading, some, public)
    assert (given, of_public) == ([answer], [answer] * len(public))
    assert judges.right_of(public, of_public) == 0 < judges.right_of(public, ["too big at once"] * len(public))


def test_the_six_have_three_causes_twice_each_and_a_sentence_for_every_wrong_answer():
    causes = [case["cause"] for case in lab.six()]
    assert sorted(causes) == sorted(2 * lab.ANSWERS)
    for case in lab.six():
        assert set(lab.SIX[case["source"]][1]) == set(lab.ANSWERS) - {case["cause"]}


def test_a_pasted_traceback_is_read_whatever_stands_around_it_and_anything_else_gets_a_sentence(capsys):
    case = random.Random(0).choice(out_of_memory.cases("last"))
    text = f'Traceback (most recent call last):\n  File "train.py", line 3\n{out_of_memory.message(case)}\nKilled'
    lab.show_reading(text.replace(". ", ".\n"), [], None)
    first = capsys.readouterr().out
    assert first.startswith(memory.owner(out_of_memory.message(case)).verdict) and "Next: " in first
    lab.show_reading("it stopped", [], None)
    assert "is no message of an allocator" in capsys.readouterr().out


def test_a_message_without_one_of_the_five_figures_is_named_and_not_read_as_nothing():
    whole = out_of_memory.message(lab.six()[0])
    assert set(lab.numbers(whole)) == set(lab.FIGURES)
    with pytest.raises(ValueError, match="does not say what was unallocated"):
        lab.numbers(whole[: whole.index(", and 70.13 MiB")])


def test_the_table_of_limits_has_the_maps_score_at_every_position(page):
    public = lab.public()
    for row in lab.scores_by_limits(public, page["reading_by"]):
        others = int(row["others above"].split()[0]) / 100
        for pieces in (0, 30, 60):
            counted = sum(
                lab.of_three(page["reading_by"](others, pieces / 100, one["numbers"])) == one["cause"] for one in public
            )
            assert row[f"unallocated above {pieces} %"] == counted


def test_the_map_has_a_plateau_and_no_position_reads_all(page):
    public = lab.public()
    right = {}
    for others in range(0, 60, 10):
        for pieces in range(0, 70, 10):
            limits = others / 100, pieces / 100
            right[others, pieces] = lab.right(public, lambda one, at=limits: page["reading_by"](*at, one))
    plateau = {right[others, pieces] for others in (20, 30) for pieces in (10, 20, 30)}
    assert plateau == {max(right.values())} == {44} and len(public) == 49
