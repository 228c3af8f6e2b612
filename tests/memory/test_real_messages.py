"""What the rules make of real messages, carried as figures (notebooks/props/out_of_memory.jsonl), and their page."""

from collections import Counter

from props import out_of_memory as book

from labkit import memory
from labkit.triage import diagnose


def test_each_wording_of_pytorch_is_read_with_its_numbers_and_a_cut_one_with_those_that_it_has():
    wordings = Counter(case["form"] for case in book.cases())
    assert set(wordings) == set(book.FORMS) and min(wordings[form] for form in book.SETTINGS) >= 2
    figures = {"tried": "tried", "total": "total", "free": "free", "allocated": "allocated", "own": "own"}
    for case in book.cases():
        if case["form"] not in book.SETTINGS:
            continue
        read = memory.owner(book.message(case))
        for figure, name in figures.items():
            # a process of 0 bytes: in a container the driver knows it by another number
            there = figure in case and not (figure == "own" and case[figure] == "0 bytes")
            assert (getattr(read, name) is not None) is there, case
        assert (read.unallocated is not None) is bool({"unallocated", "reserved"} & set(case))
        assert len(read.listed) == len(case.get("listed", []))


def test_the_rules_read_more_than_the_best_single_answer_on_each_set_and_docs_and_clinic_say_how_many():
    right = {name: book.count(book.cases(name))["right"] for name in (*book.TUNED_ON, "gathered", "after")}
    assert right == {"carried": 30, "fresh": 7, "last": 8, "gathered": 21, "after": 15}
    for name, count in right.items():
        assert count > book.best_constant(book.cases(name))
    assert sum(book.count(book.cases(name))["wrong"] for name in ("gathered", "after")) == 2


def test_no_message_is_called_another_owners_that_a_settled_thread_gives_to_its_own_tensors():
    for case in book.cases():
        mistaken = case["settled"] and case["cause"] == "tensors" and book.named(case) == "another owner"
        assert not mistaken, case


def test_the_page_of_real_messages_is_the_one_that_the_script_writes(script):
    module = script("out_of_memory")
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "python scripts/out_of_memory.py --write"


TRIAGE = {  # what `owner` says -> the causes that triage may put first
    "another owner": {"other-owner-memory", "launcher-or-distributed", "allocator-setting"},
    "fragments": {"fragmentation"},
    "tensors": {"too-big-batch", "allocator-setting"},
    "cannot be told": {"too-big-batch"},
    "host memory": {"other"},
}


def test_triage_reads_every_message_by_the_same_rules():
    for case in book.cases():
        said = book.named(case)
        if said == "not read":
            continue
        first = diagnose(book.message(case) + "\n").findings[0]
        assert first.cause in TRIAGE[said], case
        # ranks that share a card, and a request beside much that is free, have rules of their own in triage
        if first.cause == "launcher-or-distributed":
            assert first.rule == "oom-ranks"
        if first.cause == "allocator-setting":
            assert first.rule == "room-there"
