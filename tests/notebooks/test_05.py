"""Lesson 05: the bug and the fix by labkit's own check, and the diagnosis."""

import copy
import gc
import os

import torch
from cut import Page
from props import lesson_05 as props
from props.card import Tap

from labkit import checks, memory

GIB = 2**30


def test_the_check_fails_on_the_bug_and_on_half_fixes_and_passes_on_the_fix(tiny):
    page, model = Page("05"), copy.deepcopy(tiny.model)
    model.loss_type = "ForCausalLM"
    ids, _ = tiny.encode(["12<34=", "98<25="])
    for name, passes in (
        ("evaluate", False),
        ("no_grad_alone", False),
        ("loss_alone", False),
        ("evaluate_fixed", True),
    ):
        report = checks.leaves_nothing(lambda model, f=page[name], kept=[]: f(model, [ids], kept), model)
        assert report.passed is passes, report
        assert passes or "Every call leaves more" in report.hint


def test_a_tensor_that_only_the_graph_holds_is_alive_and_has_no_referrer_in_python():
    weights = torch.ones(1000, requires_grad=True)

    def loss(referrers):
        saved = torch.ones(1000)
        result = (weights * saved).sum()
        referrers.extend(type(holder).__name__ for holder in gc.get_referrers(saved))
        return result

    with Tap() as tap:
        before, referrers = tap.allocated, []
        kept = loss(referrers)
        assert tap.allocated - before > 4000 and not set(referrers) - {"frame"}
        del kept
        assert tap.allocated == before


def test_exported_settings_go_and_a_gpu_without_the_room_gets_the_simulated_card(monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for free, device, place in ((8.9, "auto", "cpu"), (9.1, "auto", "cuda"), (80, "cpu", "cpu")):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (int(free * GIB), 80 * GIB))
        assert props.place(device) == place
    assert "PYTORCH_ALLOC_CONF" not in os.environ


def test_the_rule_of_the_second_exercise_is_the_librarys_and_half_of_it_is_refused():
    diagnosed = Page("05")["diagnosed"]
    for seed in range(10):
        for name, message, held in props.unseen(seed):
            assert memory.owner(message, held).verdict == name == diagnosed(props.numbers(message), held)
    assert not props.names_all_five(lambda numbers, held: diagnosed(numbers, held[:1]))
