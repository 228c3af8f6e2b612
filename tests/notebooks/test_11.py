"""Lesson 11: its log-probs beside the policy's, the simulated card beside an H200, its judges, rows of the reports."""

import math
import sys
from unittest.mock import patch

import pytest
import torch
from cut import Page
from props import lesson_11 as lab
from props import lesson_11_judges as judges
from props import lesson_11_kept as kept
from props import lesson_11_pictures as pictures
from props import lesson_11_seats as seating
from props.card import Tap

from labkit.grpo.policy import token_logprobs


@pytest.fixture(scope="module")
def page():
    return Page("11")


def test_the_lesson_s_log_probs_are_the_policy_s(tiny, page):
    rows = lab.rows_of(tiny, seed=0)
    logp, _ = token_logprobs(tiny.model, rows.ids, rows.attention_mask, rows.new)
    expected = -((logp - rows.old_logp).exp() * rows.advantages * rows.counted).sum()  # the ratio is 1
    torch.testing.assert_close(page["grpo_loss"](tiny.model, rows), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name, update, settings", [
    ("96 answer tokens", "update", {"new": 96}),
    ("checkpointing", "update", {"checkpointing": True}),
    ("4 parts", "update_in_parts", {}),
    ("all weights, 4 parts", "update_in_parts", {"lora": 0}),
    ("64 answer tokens", "update", {"new": 64}),
    ("scoring, at once", "score", {}),
])  # fmt: skip
def test_a_simulated_peak_is_the_h200s_within_two_mib(page, name, update, settings):
    assert lab.tapped(page[update], **settings).peak / 2**30 == pytest.approx(pictures.H200[name], abs=2 / 1024)


def test_a_mask_of_ones_is_what_the_simulation_kept_and_a_card_does_not(page):
    with patch.object(lab, "no_padding", lambda: patch("math.tau", 6)):
        with_mask = lab.tapped(page["update"]).peak
    assert with_mask - lab.tapped(page["update"]).peak == pytest.approx(96 * 2**20, rel=0.02)


def test_qwen3_keeps_what_an_h200_kept_under_the_kernel_that_it_took_there():
    padded, unpadded, padded_h200, unpadded_h200, _ = kept.qwen3([1, 7])
    for rows in ("1 rows", "7 rows"):
        assert padded[rows] == pytest.approx(padded_h200[rows], rel=0.015)
        assert unpadded[rows] == pytest.approx(unpadded_h200[rows], rel=0.015)


def test_an_update_that_dies_or_does_not_come_back_is_a_result(monkeypatch, page):
    def dies(model, optimizer, rows):
        raise ValueError("no")

    def endless(model, optimizer, rows):
        while True:
            pass

    monkeypatch.setattr(lab, "SECONDS", 30.0)
    short = {"rows": 1, "prompt": 8, "new": 8}
    arms = {"dies": dies, "sound": page["update"], "second": page["update"], "endless": endless}
    used = lab.on_cards({name: {"update": update, **short} for name, update in arms.items()})
    assert used["dies"].died == "ValueError: no" and used["endless"].died.startswith("timeout")
    assert used["sound"].peak == used["second"].peak and math.isnan(used["dies"].peak)


def test_the_largest_card_s_line_ends_where_the_card_refuses(page):
    used = lab.on_cards({"": {"update": page["update"]}}, cards=[8, 11])[""]
    held = sum(line[-1] for line in used.stopped.values())
    assert "7.01 GiB is allocated" in used.refused[8] and held == pytest.approx(7.01, abs=0.02)
    assert used.refused[11] == ""


def test_budgets_of_a_function_that_raises_or_gives_no_numbers_are_left_out():
    def half(rows, prompt, new):
        if rows == 2:
            raise ValueError
        return {"weights": 1, "activations": float("nan") if rows == 3 else 1.0, "logits": 2}

    assert list(judges.budgets(half, [(1, 1, 1), (2, 1, 1), (3, 1, 1)])) == [(1, 1, 1)]


def test_an_update_that_takes_no_step_is_infinitely_far(page):
    (event,) = judges.compared(lambda model, optimizer, rows: 0.0, page["update"], 0, "tiny", "cpu")
    assert event["gradient"] == math.inf


def test_moments_that_do_not_meet_are_not_added(page):
    assert seating.judge_taken(page["of_a_card"])
    report = seating.judge_taken(lambda standing, moments: sum(standing) + sum(moments))
    assert not report and "one after the other" in report.hint


def test_a_reader_s_update_that_dies_leaves_its_way_without_a_plan_and_the_others_with_theirs(page):
    def dies(model, optimizer, rows):
        raise ValueError("no")

    updates = {"at once": page["update"], "4 parts": dies, "checkpointing": page["update"]}
    blocks, together = seating.blocks(updates, log_probs=page["log_probs"], prompt=8, new=8)
    full = seating.filled(page["of_a_card"], blocks)
    assert math.isnan(together["4 parts"]) and math.isnan(blocks["4 parts", 4].moment)
    assert together["checkpointing"] > 0
    assert page["planned_seats"](full, "4 parts") is None
    assert page["planned_seats"](full, "at once")[0] == page["planned_seats"](full, "checkpointing")[0] == 1


def test_every_seating_stands_once_and_a_card_has_the_blocks_of_its_seats():
    every = [(way, seating.in_words(seats)) for way, seats in seating.every_seating()]
    assert len(every) == len(set(every)) == 3 * 3 * 4 * 4
    found = {("at once", prompts): seating.Block(1.0, prompts) for prompts in (1, 2, 4)}
    found |= {"reference": seating.Block(2.0, 0.5), "reward": seating.Block(3.0, 0.25)}
    seats = {"policy": (0, 1), "reference": (1,), "reward": (2,)}
    here = [seating.on_card(card, "at once", seats, found) for card in seating.CARDS]
    assert [list(one) for one in here] == [["policy"], ["policy", "reference"], ["reward"], []]
    assert here[0]["policy"].moment == 2


def test_a_plan_takes_the_fewest_cards_and_then_the_emptiest_and_none_if_nothing_fits(page):
    filled = {
        ("at once", "two"): [7.0, 1.0, 0.0, 0.0],
        ("at once", "one, too full"): [7.3, 0.0, 0.0, 0.0],
        ("at once", "two, emptier"): [6.0, 2.0, 0.0, 0.0],
        ("checkpointing", "one"): [5.0, 0.0, 0.0, 0.0],
    }
    assert page["planned_seats"](filled, "at once") == (2, 6.0, "two, emptier")
    assert page["planned_seats"]({("at once", "no"): [math.nan] * 4}, "at once") is None


def test_a_rule_that_gives_no_number_for_one_card_has_no_plan_and_one_that_does_not_come_back_fills_no_card(
    monkeypatch, page
):
    assert page["planned_seats"]({("at once", "no"): [6.9, math.nan, 0.0, 0.0]}, "at once") is None

    def endless(standing, moments):
        while True:
            pass

    monkeypatch.setattr(seating, "SECONDS", 2.0)
    full = seating.filled(endless, {"reference": seating.UNKNOWN, "reward": seating.UNKNOWN} | {
        (way, prompts): seating.UNKNOWN for way in seating.WAYS for prompts in (1, 2, 4)
    })  # fmt: skip
    assert len(full) == 144 and all(math.isnan(gib) for cards in full.values() for gib in cards)


def test_data_parallel_puts_the_whole_policy_on_the_second_card_and_none_of_it_can_generate():
    """The report's "half of the policy on each GPU". Only the copy over the bus is stood in for."""
    tap = Tap(fake=True)
    model = tap.build(lambda: lab.build(lora=0, layers=2))

    def send(tensors, devices, detach=False):
        with tap.category("GPU 1"):
            return [tensors, [tensor.clone() for tensor in tensors]]

    module = sys.modules["torch.nn.parallel.replicate"]
    with tap, patch.object(module, "_broadcast_coalesced_reshape", send):
        tap.adopt(model)
        copies = module.replicate(model, [0, 1])  # held until the bytes are read
        held = dict(tap.by_category)
        assert copies
    assert held["GPU 1"] == pytest.approx(held["parameter"], rel=0.01)
    assert not hasattr(torch.nn.DataParallel, "generate")
