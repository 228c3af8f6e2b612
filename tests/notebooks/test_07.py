"""Lesson 07: what it leans on and does not show. When torch reads a variable, what is changed in a run, its judges."""

import os

import matplotlib.pyplot as plt
import pytest
import torch
from cut import Page
from props import lesson_07 as lab
from props import lesson_07_cards as cards
from props import lesson_07_judges as judges
from props import lesson_07_pictures as pictures
from props import lesson_07_recording as recording
from props.card import Allocator

from labkit import sandbox
from labkit.display.bench import judge_in_sandbox
from labkit.events import Run

OLD, NEW, ON, MIB = lab.OLD, lab.NEW, lab.ON, lab.MIB


@pytest.fixture(scope="module")
def page():
    return Page("07")


@pytest.fixture(scope="module")
def calls(page):
    """Two rounds of seed 0."""
    lengths = recording.lengths_of(0)[:2]
    return recording.follow(recording.record(page["grpo_round"], 0, lengths=lengths), page["TOKEN_TABLE"])


def test_a_variable_set_after_the_first_use_is_not_read_and_one_set_before_is():
    def process(early):
        if early:
            os.environ[OLD] = judges.CANARY
        torch._C._accelerator_setAllocatorSettings("")  # torch reads its variables
        os.environ[OLD] = judges.CANARY
        torch._C._accelerator_setAllocatorSettings("")
        yield os.environ[OLD]

    late = sandbox.run(process, False)
    assert late.outcome and late.events == [judges.CANARY]
    assert "max_split_size_mb" in sandbox.run(process, True).outcome.message


def test_torch_here_reads_the_old_name_and_the_new_one_only_without_it():
    assert judges.names_read("cpu") == (OLD, NEW)


def test_the_program_is_the_one_that_an_h200_refused(calls, page):
    """docs/h200.md, docs/recorded: 1.34 GiB asked for, 2.03 in tensors, 1.50 unallocated, at 4.25 GiB."""
    refusal = cards.refusal_of(calls, 4.25)
    figures = (refusal.requested, refusal.allocated, refusal.unallocated)
    assert [round(figure / lab.GIB, 2) for figure in figures] == [1.34, 2.03, 1.50]
    at, segments, asked, is_served = cards.at_request(calls, 4.25, refusal.requested)
    assert (at, asked, is_served) == (1037, refusal.requested, False)
    assert page["longest_free"](segments) == lab.longest_free(segments) < asked


def test_the_followed_tensor_is_the_second_moment_of_the_token_table(calls, page):
    """AdamW makes the step, the first moment and the second of each weight in this order; the tables come first."""
    (followed,) = [call for call in calls if call[0] == "malloc" and call[3] == recording.FOLLOWED]
    first_moment, second = [call for call in recording.state_requests(calls) if call[2] == page["TOKEN_TABLE"]]
    assert second == followed and first_moment[1] < second[1]


def test_the_state_made_first_moves_its_requests_and_no_other_call(calls):
    moved = recording.state_first(calls)
    state = recording.state_requests(calls)
    begin = recording.at_mark(calls, "round 1, score")
    assert sum(call[2] for call in state) > 2 * 170 * MIB and not set(state) & set(moved[begin + len(state) :])
    assert [call for call in moved if call not in state] == [call for call in calls if call not in state]
    assert moved[begin : begin + len(state)] == state


def test_empty_cache_comes_where_a_phase_begins_in_the_rounds_that_are_named(calls):
    changed = recording.emptied(calls, "learn", [2])
    at = recording.at_mark(changed, "round 2, learn")
    assert changed[at + 1] == ("empty_cache",) and changed[: at + 1] + changed[at + 2 :] == calls
    assert recording.emptied(calls, "learn").count(("empty_cache",)) == 2


def test_what_is_lost_to_pieces_is_the_smallest_card_minus_the_peak(calls):
    card = Allocator(40 * lab.GIB)
    for _ in lab.play(calls, card):
        pass
    peak = card.peak_allocated_bytes / lab.GIB
    least = peak + cards.lost_to_pieces(calls)
    assert cards.refusal_of(calls, least) is None and cards.refusal_of(calls, least - 0.03) is not None
    assert cards.lost_to_pieces(calls, ON) < 0.2 < cards.lost_to_pieces(calls)


def test_between_scoring_and_learning_alone_nothing_lies_in_the_scorings_segments(calls):
    """The reasons that the page's second question gives, one for each moment."""
    lies = {phase: cards.in_large_segments(calls, 4.25, f"round 1, {phase}") for phase in ("learn", "update", "over")}
    assert lies == {
        "learn": "nothing, nothing",
        "update": "nothing, gradient",
        "over": "nothing, followed and optimizer",
    }
    assert cards.in_large_segments(calls, 4.25, "round 2, score") == lies["over"]


def test_at_a_call_that_a_run_did_not_reach_the_picture_says_that_it_has_ended():
    whole_card = [[("free", 4 * lab.GIB)]]
    run = Run([{"call": 10, "phase": "round 1, score", "reserved": 0, "segments": whole_card}])
    for call, words in {10: "round 1, score", 11: "the run has ended, at call 10"}.items():
        _, axes = plt.subplots()
        pictures.moment(axes, run, call, 4.25, 11, lab.GIB)
        plt.close()
        assert [text for text in axes.texts if text.get_text().startswith(words)], words


def test_other_ways_to_the_same_end_are_right(calls):
    reads = (OLD, NEW)
    ways = [
        lambda inherited: {name: text for name, text in inherited.items() if name != OLD} | {NEW: ON},
        lambda inherited: {**inherited, OLD: f"{ON},garbage_collection_threshold:0.9"},
        lambda inherited: {**inherited, OLD: ON, NEW: ON},
    ]
    for way in ways:
        assert judges.judge_environment(way, calls=calls, card_gib=4.25, reads=reads), way
    without_the_old = ways[0]
    report = judges.judge_environment(without_the_old, calls=calls, card_gib=4.25, reads=(OLD,))  # torch 2.9
    assert not report and "torch reads ''" in report.hint


@pytest.mark.parametrize("text", ["max_split_size_mb:1", "expandable_segments:perhaps", "no_such_key:1"])
def test_any_value_that_torch_refuses_is_a_canary(text):
    def which_is_read(environment, starts):
        for name in set(environment) & {OLD, NEW}:
            if not starts(environment | {name: text}):
                return name
        return None

    assert judges.judge_which_is_read(which_is_read)


def test_a_reader_may_find_the_name_without_a_canary_in_both(page):
    """First the one, and if that is not read the other, alone or not; and by taking a name away."""

    def by_taking_away(environment, starts):
        canary = "max_split_size_mb:1"
        present = [name for name in (NEW, OLD) if name in environment]
        if not present or starts(environment | dict.fromkeys(present, canary)):
            return None  # neither is read
        return present[0] if not starts(environment | {present[0]: canary}) else present[-1]

    assert judges.judge_which_is_read(by_taking_away)


def test_each_process_that_is_asked_for_is_started_once_and_for_real(page):
    both = {OLD: judges.OFF, NEW: ON}
    rows, answer = judges.ask(page["by_canary"], both, "cpu")
    assert answer == OLD and rows == [
        {"the old name": judges.OFF, "the new name": judges.CANARY, "the process": "starts"},
        {"the old name": judges.CANARY, "the new name": ON, "the process": "refuses to start"},
    ]

    def quiet_then_loud(environment, starts):
        quiet, again = (starts(environment | {NEW: judges.CANARY}) for _ in range(2))
        return f"{quiet} {again} {starts(environment | {OLD: judges.CANARY})}"

    rows, answer = judges.ask(quiet_then_loud, both, "cpu")
    assert answer == "True True False" and [row["the process"] for row in rows] == ["starts", "refuses to start"]


def caught(environment, starts):
    try:
        return starts({**environment, NEW: "no_such_key:1"})
    except BaseException:
        return "caught"


@pytest.mark.parametrize(
    ("which_is_read", "processes", "answer"),
    [
        (lambda environment, starts: OLD, 0, OLD),  # a right guess, without a process
        (lambda environment, starts: None, 0, "neither name"),
        (lambda environment, starts: [OLD] * 9, 0, "and 3 more"),
        (lambda environment, starts: 1 / 0, 0, "no answer: division by zero"),
        (lambda environment, starts: starts(OLD), 0, "no answer: a dict of variables is expected"),
        (lambda environment: OLD, 0, "no answer: "),
        (caught, 1, "yes"),
        (lambda environment, starts: [starts({"TRIED": f"{n}"}) for n in range(99)], 8, "no answer: it asks for more"),
    ],
)
def test_whatever_a_reader_asks_has_a_row_for_each_process_and_an_answer_in_words(which_is_read, processes, answer):
    rows, words = judges.ask(which_is_read, {}, "cpu")
    assert len(rows) == max(processes, 1) and answer in words
    assert (rows[0]["the process"] == "none was asked for") is (processes == 0)


def endless(*_):
    while True:
        pass


def test_whatever_a_reader_writes_has_a_run_and_an_end_in_words(calls):
    settings = {"calls": calls, "card_gib": 4.25, "device": "cpu"}
    for wrong, words in {
        (lambda inherited: None): "a dict of variables is expected",
        (lambda inherited: {"": "1"}): "no process can have",
        (lambda inherited: {OLD: "expandable_segments:perhaps"}): "does not start",
        (lambda inherited: 1 / 0): "division by zero",
    }.items():
        run = lab.start_with(wrong, {}, **settings)
        assert words in lab.end_of(run) and not lab.value(run, "served"), lab.end_of(run)
    assert not judge_in_sandbox(judges.judge_which_is_read, endless, 1).safe
