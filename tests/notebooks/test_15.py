"""The out-of-memory clinic: its made deaths have the causes that they say; any reader's function reaches the end."""

import random

import pytest
import torch
from cut import Page
from props import clinic_scores as scores
from props import lesson_15 as lab
from props import made_deaths as made
from props import out_of_memory
from props.card import Allocator
from props.clinic_pictures import NAMES, parts_of

from labkit import memory

GIB = 2**30


@pytest.fixture(scope="module")
def page():
    return Page("15", unseen=[], deaths=[])


@pytest.fixture(scope="module")
def runs(page):
    """The bfloat16 run, clean and with the leak."""
    return {name: made.Recorded(page["grpo_round"], page["WAYS"][name], "bfloat16", 5) for name in ("clean", "leak")}


@pytest.fixture(scope="module")
def deaths(page):
    return list(made.deaths_of(page["grpo_round"], page["WAYS"], ["bfloat16"], 5))


def beside(run, resident):
    """Held beyond what is owned, before each round, on a card that is large enough."""
    message, held, owned = made.play(run.calls, Allocator(80 * GIB), resident)
    assert message == "" and len(held) == made.ROUNDS
    return [before - own for before, own in zip(held, owned, strict=True)]


def test_a_clean_run_holds_what_is_owned_and_a_leaking_one_more_each_time(runs):
    for over in beside(runs["clean"], {}):
        assert over == pytest.approx(0, abs=16 * 2**20)  # blocks are rounded up, by less than 1 MiB each
    leaked = beside(runs["leak"], {})
    vocabulary, shortest = 50257, made.SHORTEST - 1
    for before, after in zip(leaked, leaked[1:], strict=False):
        # at least the log-probs of one answer, whose graph the entropy holds
        assert after - before > shortest * vocabulary * 2


def test_what_lives_beside_a_run_has_its_size_and_comes_when_it_says(runs):
    clean = runs["clean"]
    for name, resident in made.residents(clean).items():
        extra = beside(clean, resident)
        bytes_ = [sum(resident.get(number, ())) for number in range(1, made.ROUNDS + 1)]
        for number in range(made.ROUNDS):
            assert extra[number] == pytest.approx(sum(bytes_[: number + 1]), abs=48 * 2**20), name
    assert sum(clean.weights) > 100 * 2**20


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


def test_every_cause_is_among_the_deaths_and_each_message_is_read_with_its_figures(deaths):
    assert {name for death in deaths for name in death["causes"]} == set(NAMES)
    for death in deaths:
        assert death["numbers"]["total"] > death["numbers"]["asked"] > 0
        # the context is in what the message says of this process
        inside = death["numbers"]["allocated"] + death["numbers"]["unallocated"]
        assert death["numbers"]["own"] - inside == pytest.approx(made.CONTEXT, abs=0.02 * GIB)
        assert (death["causes"] == ["another owner"]) == ("Process " in death["message"])
        assert len(death["held"]) == len(death["owned"]) >= 1


def test_a_card_on_which_a_run_has_lived_is_not_played_again_and_the_answer_would_be_the_same(runs):
    cards = made.OnCards(runs, {})
    large, larger = 4 * cards.peak, 5 * cards.peak
    assert cards.on(large, "clean")[0] == ""
    assert ("clean", "") in cards.enough
    assert cards.on(larger, "clean") == ("", [], [])
    assert made.play(runs["clean"].calls, Allocator(larger, context=made.CONTEXT), {})[0] == ""


def test_owner_reads_the_deaths_as_the_pages_solution_does(page, deaths):
    solution = [page["reading"](one["numbers"], one["held"], one["owned"]) for one in deaths]
    owner = [memory.owner(death["message"], death["held"], death["owned"]).verdict for death in deaths]
    assert solution == owner


def test_the_solution_passes_and_held_minus_owned_at_the_end_does_not(page, deaths):
    public = lab.public()
    assert scores.judge(page["reading"], deaths, public)

    def at_the_end(numbers, held, owned):
        if held and held[-1] - owned[-1] >= numbers["asked"] - numbers["free"]:
            return "a leak"
        return page["reading"](numbers, held, owned)

    report = scores.judge(at_the_end, deaths, public)
    assert not report and "are called a leak and are none" in report.hint and " beside it: " in report.hint


def leaves(numbers, held, owned):
    raise SystemExit


@pytest.mark.parametrize(
    ("reading", "answer"),
    [
        (lambda numbers, held, owned: None, "None"),
        (lambda numbers, held, owned: held[-1] - owned[-1], "IndexError"),
        (lambda numbers: "a leak", "TypeError"),
        (leaves, "no answer"),
    ],
)
def test_a_wrong_reading_is_an_answer_and_no_exception(deaths, reading, answer):
    some = [{**deaths[0], "held": [], "owned": []}]
    public = lab.public()[:2]
    assert scores.read_all(reading, some, public) == ([answer], [answer] * 2)


def test_the_four_have_every_answer_and_the_tool_gives_none_that_the_page_calls_wrong():
    answers = [answer for answer, _, _ in lab.FOUR.values()]
    assert set(answers) == {*lab.ANSWERS, lab.CANNOT}
    for case, (answer, _, wrong) in zip(lab.four(), lab.FOUR.values(), strict=True):
        assert set(wrong) == {*lab.ANSWERS, lab.CANNOT} - {answer}
        said = out_of_memory.named(case)
        assert said == answer.replace(lab.CANNOT, memory.CANNOT_TELL)
        assert case["settled"], case


def test_the_parts_of_a_bar_are_the_card_whatever_the_message_leaves_out():
    for _, one in lab.bars_of_four():
        assert sum(size for size, _ in parts_of(one).values()) == pytest.approx(one["total"], rel=0.01)


def test_a_pasted_traceback_is_read_whatever_stands_around_it_and_anything_else_gets_a_sentence(capsys):
    case = random.Random(0).choice(out_of_memory.cases("last"))
    text = f'Traceback (most recent call last):\n  File "train.py", line 3\n{out_of_memory.message(case)}\nKilled'
    lab.show_reading(text.replace(". ", ".\n"), [], [])
    first = capsys.readouterr().out
    assert first.startswith(memory.owner(out_of_memory.message(case)).verdict) and "Next: " in first
    lab.show_reading("it stopped", [], [])
    assert "is no message of an allocator" in capsys.readouterr().out
    lab.show_reading(text, [GIB, GIB], [GIB])
    assert "held has 2 steps and owned 1" in capsys.readouterr().out


def test_a_message_without_one_of_the_five_figures_is_named_and_not_read_as_nothing():
    whole = out_of_memory.message(lab.four()[0])
    assert set(lab.numbers(whole)) == {*lab.FIGURES, "own"}
    with pytest.raises(ValueError, match="does not say what was unallocated"):
        lab.numbers(whole[: whole.index(", and 70.13 MiB")])


def test_the_map_has_a_plateau_no_position_reads_all_and_the_table_has_each_positions_score(page):
    public = lab.public()
    table = lab.scores_by_limits(public, page["reading_by"])
    right = {}
    for row in table:
        others = int(row["others above"].split()[0])
        for pieces in range(0, 70, 10):
            right[others, pieces] = row[f"unallocated above {pieces} %"]
    counted = sum(lab.of_three(page["reading_by"](0.2, 0.1, one["numbers"])) == one["cause"] for one in public)
    plateau = {right[others, pieces] for others in (20, 30) for pieces in (10, 20, 30)}
    assert plateau == {max(right.values())} == {counted} == {44} and len(public) == 49


def test_by_the_messages_alone_the_usual_reading_is_no_better_than_a_constant_and_the_limits_are(page):
    public = lab.public()
    constant = lab.right(public, lambda numbers: "tensors")
    assert lab.right(public, page["usual_reading"]) < constant == 28
    assert {
        name: row["`owner`: right now"] for name, row in zip(lab.SETS, lab.scores(page["usual_reading"]), strict=True)
    } == {name: count for name, count in zip(lab.SETS, (45, 21, 15), strict=True)}
    gathered = lab.public("gathered")
    limits = lab.right(gathered, lambda numbers: page["reading_by"](0.2, 0.1, numbers))
    assert (limits, len(gathered)) == (11, 13)
