"""Placements: every byte is the prediction's, everything that fits is said to fit, every change offered does fit."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from labkit.display import cards
from labkit.memory import Shape, measure, predict
from labkit.placement import plan

GIB = 2**30
MEDIUM = Shape(24, 1024, 16, 50257, 1024)
XL = Shape(48, 1600, 25, 50257, 1024)
SMALL = Shape(layers=2, width=128, heads=4, vocab=8000, positions=256)

REPORT = {  # gpus, batch, group: the report's tables
    "3 x 16 GB": ([16, 16, 16], 4, 8),
    "3 x 8 GB": ([8, 8, 8], 1, 4),
    "for speed": ([16, 16, 16], 8, 4),
    "48 GB and more": ([24, 24], 4, 8),
    "32 GB and more": ([16, 16], 2, 4),
    "less": ([16], 1, 2),
}


@pytest.mark.parametrize("name", REPORT)
def test_the_reports_tables_fit_with_gpt2_and_the_policy_is_on_a_card(name):
    gpus, batch, group = REPORT[name]
    found = plan(gpus, "124M", batch, group, reward=True)
    assert found and not found.changes and len(found.cards) == len(gpus)
    seated = [name for card in found.cards for name in card.residents]
    assert {"policy", "reference", "reward"} == set(seated) and max(c.share for c in found.cards) <= 0.9


def test_the_reports_own_seats_come_out_policy_on_two_cards_the_frozen_models_on_the_third():
    found = plan([16, 16, 16], "124M", 4, 8, reward=True)
    assert [c.residents for c in found.cards] == [("policy",), ("policy",), ("reference", "reward")]


def test_three_cards_needed_and_two_there_is_a_plan_for_two():
    found = plan([16, 16], "124M", 4, 8, reward=True)
    assert found and [c.residents for c in found.cards] == [("policy", "reference"), ("policy", "reward")]


def test_one_card_at_97_per_cent_is_too_full_and_three_are_not():
    full = plan([16], MEDIUM, 3, 4, reward=True)
    assert not full and 0.95 < full.layout.fullest < 1 and full.changes
    assert plan([16] * 3, MEDIUM, 3, 4, reward=True)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_card_with_everybody_holds_what_is_predicted(count):
    """With one copy of the policy on one card, the plan's bytes are those of `predict`; more cards never hold more."""
    found = plan([80] * count, "124M", 4, 8)
    one = predict("124M", batch=4, group=8, reference=True)
    assert found and max(c.bytes for c in found.cards) <= one.peak
    if count == 1:
        assert found.cards[0].bytes == one.peak and found.cards[0].phase == one.worst.name


@pytest.mark.parametrize("options", [{}, {"lora": 8}, {"amp": True}, {"micro_batches": 4}, {"checkpointing": True}])
def test_a_copy_of_the_policy_holds_what_is_measured_under_the_tap(options):
    found = plan([40, 40], SMALL, 4, 4, prompt=64, new_tokens=64, **options)
    assert found.layout.copies == 2
    here = next(c for c in found.cards if "policy" in c.residents)
    with_reference = "reference" in here.residents
    measured = measure(SMALL, batch=2, group=4, prompt=64, new_tokens=64, reference=with_reference, **options)
    assert here.bytes == pytest.approx(measured.peak, rel=0.05)


def test_frozen_models_on_a_card_of_their_own_hold_what_is_measured():
    """Their weights, and one pass over the rows at a time."""
    found = plan([16, 16, 16], "124M", 4, 8)
    alone = next(c for c in found.cards if c.residents == ("reference",))
    scored = measure("124M", batch=2, group=8, optimizer="sgd").phases["score"]
    assert alone.bytes == pytest.approx(sum(scored.values()), rel=0.05)


def test_a_reward_models_weights_are_the_models_without_a_second_head():
    both = plan([16], "124M", 1, 2, reward=True).cards[0].parts
    assert both["reward weights"] == pytest.approx(4 * Shape.of("124M").parameters, rel=1e-4)


def test_with_lora_the_reference_is_the_policy_itself():
    found = plan([16, 16], "124M", 4, 8, lora=16)
    assert [c.residents for c in found.cards] == [("policy",), ("policy",)]


HARD = {
    "medium on one card": ([16], MEDIUM, 4, 8),
    "medium on two": ([16, 16], MEDIUM, 4, 8),
    "XL on three small ones": ([8, 8, 8], XL, 4, 8),
    "XL on two": ([24, 24], XL, 4, 8),
    "gpt2 on a tiny card": ([2], "124M", 4, 8),
    "unequal cards": ([4, 8, 6], MEDIUM, 6, 5),
    "eight small ones": ([4] * 8, MEDIUM, 8, 8),
}


@pytest.mark.parametrize("name", HARD)
def test_every_change_that_is_offered_makes_it_fit(name):
    gpus, model, batch, group = HARD[name]
    found = plan(gpus, model, batch, group, reward=True)
    assert not found and found.changes and "would fit with" in str(found) and "TOO FULL" in str(found)
    for change in found.changes:
        settings = {"model": model, **found.settings, **change.settings}
        again = plan(gpus, **settings)
        assert again and again.layout == change.layout, change.settings


def test_the_nearest_change_comes_first_and_is_the_smallest_of_its_kind():
    first = plan([16, 16], MEDIUM, 4, 8, reward=True).changes[0]
    assert first.settings == {"micro_batches": 2}
    assert not plan([9, 9], MEDIUM, 4, 8, reward=True, micro_batches=2)


def test_where_no_single_change_is_enough_several_are_offered_together():
    found = plan([8, 8, 8], XL, 4, 8, reward=True)
    together, smaller = found.changes
    assert len(together.settings) > 1 and "model" not in together.settings and set(smaller.settings) == {"model"}


def test_a_model_that_fits_nowhere_is_a_clear_answer():
    found = plan([0.01] * 2, XL)
    assert not found and not found.changes and found.least > 10 * GIB
    assert "FSDP" in str(found) and "needs cards of" in str(found)
    assert plan([found.least] * 2, XL)


def test_more_memory_and_more_cards_never_turn_a_plan_that_fits_into_one_that_does_not():
    fitting = [bool(plan([size] * 2, MEDIUM, 4, 4)) for size in (4, 8, 12, 16, 24, 48)]
    assert fitting == sorted(fitting) and any(fitting) and not all(fitting)
    counted = [bool(plan([10] * count, MEDIUM, 8, 4)) for count in (1, 2, 3, 4, 8)]
    assert counted == sorted(counted)


def test_cards_beyond_the_prompts_stay_empty_and_unequal_cards_are_used_by_size():
    idle = plan([16] * 8, "124M", 1, 4)
    assert idle and idle.layout.copies == 1 and sum(not c.residents for c in idle.cards) == 6
    unequal = plan([2, 16], MEDIUM, 1, 4)
    assert unequal.cards[1].residents[0] == "policy"


def test_bytes_and_gigabytes_name_the_same_card():
    assert (
        plan([16 * GIB], "tiny", 2, 4, prompt=8, new_tokens=8).cards
        == plan([16], "tiny", 2, 4, prompt=8, new_tokens=8).cards
    )


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"gpus": []}, "gpus"),
        ({"gpus": [16, 0]}, r"gpus\[1\]"),
        ({"gpus": [16, "8"]}, r"gpus\[1\]"),
        ({"gpus": [float("nan")]}, r"gpus\[0\]"),
        ({"gpus": [16], "batch": 0}, "batch"),
        ({"gpus": [16], "group": 2.5}, "group"),
        ({"gpus": [16], "micro_batches": 3}, "micro_batches"),
        ({"gpus": [16], "new_tokens": 4000}, "positions"),
        ({"gpus": [16], "objective": "lm"}, "objective"),
        ({"gpus": [16], "spare": 1.0}, "spare"),
        ({"gpus": [16], "model": "7B"}, "7B"),
    ],
)
def test_a_setting_that_cannot_be_is_named(settings, word):
    with pytest.raises(ValueError, match=word):
        plan(**settings)


def test_the_picture_is_to_scale_and_marks_what_is_too_full():
    found = plan([16], MEDIUM, 3, 4, reward=True)
    picture = cards({"one": found, "three": plan([16] * 3, MEDIUM, 3, 4, reward=True)})
    image = np.asarray(Image.open(io.BytesIO(picture.png)).convert("RGB")).astype(int)
    blue = np.array([0x00, 0x72, 0xB2])
    rows = (np.abs(image - blue).max(-1) < 12).sum(1)
    width = rows[rows > 20].max()
    expected = found.cards[0].parts["policy weights"] / found.cards[0].total * (814 - 20)
    assert width == pytest.approx(expected, rel=0.08)
    assert repr(picture) == "<placement: 1 cards, 3 cards>"


@pytest.mark.parametrize("wrong", [None, {}, {"a": 3}, torch.zeros(2)])
def test_what_is_not_a_plan_cannot_be_drawn(wrong):
    with pytest.raises(ValueError, match="Plan"):
        cards(wrong)
