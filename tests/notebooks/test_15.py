"""Lesson 15: the rule against `labkit.memory`, the ways to seat, a gradient in parts, what it says of others."""

import json
import sys

import pytest
import torch
from cut import FOLDER, installed, path_of
from props.budget import predict

sys.path.append(str(FOLDER))
from props import lesson_15 as props

TEXT = path_of("15").read_text()
ONE = {model: (0,) for model in props.MODELS}


@pytest.fixture(scope="module")
def lesson():
    """Names of the cells with the bug and with the fix."""
    space = {}
    cells = [cell for cell in json.loads(TEXT)["cells"] if cell["cell_type"] == "code"]
    exec("import math\nfrom props.lesson_15 import every_seating, in_words, need, residents", space)
    for cell in cells:
        if {"bug", "fix"} & set(cell["metadata"].get("tags", [])):
            exec("".join(cell["source"]), space)
    return space


@pytest.mark.parametrize("prompts", [1, 4])
def test_on_one_card_the_rule_is_the_prediction_of_the_whole_step(lesson, prompts):
    with_reference = {"policy": (0,), "reference": (0,), "reward": (1,)}
    whole = predict("124M", batch=prompts, group=8, reference=True).peak / props.GIB
    assert lesson["taken"](0, with_reference, prompts) == pytest.approx(whole, rel=1e-6)


def test_more_of_equal_cards_never_hold_more_and_an_empty_card_holds_nothing(lesson):
    gib = [props.fullest(lesson["taken"], count) for count in (1, 2, 3, 4, 5, 6)]
    assert (
        gib == sorted(gib, reverse=True) and gib[4] == gib[5]
    )  # four copies, the frozen models apart: no use for a sixth
    assert lesson["taken"](4, ONE, 4) == 0


def test_every_seating_has_all_models_on_cards_that_exist_and_none_twice():
    seatings = [tuple(seats.values()) for seats in props.every_seating(3, prompts=4)]
    assert len(seatings) == len(set(seatings))
    assert all(len(seats) == 3 and set().union(*seats) <= {0, 1, 2} for seats in seatings)
    assert {len(policy) for policy, *_ in seatings} == {1, 2, 3}
    assert list(props.every_seating(1, prompts=4)) == [ONE]


def test_a_plan_is_refused_only_where_no_seats_leave_a_tenth_free(lesson):
    plan, taken = lesson["planned_seats"], lesson["taken"]
    for size in (4, 6, 7.5, 8, 9, 14, 15):
        for count in (1, 2, 3):
            fits = props.fullest(taken, count) < 0.9 * size
            assert (props.answer_of(plan, [size] * count) == "starts") == fits, (count, size)


def test_unequal_cards_are_planned_as_they_are(lesson):
    for cards, policy in (([16, 4], (0,)), ([4, 16], (1,)), ([4, 16, 16], (1, 2)), ([16, 16, 16], (0, 1))):
        seats = lesson["planned_seats"](cards)
        assert all(lesson["taken"](card, seats, 4) < 0.9 * gib for card, gib in enumerate(cards))
        assert seats["policy"] == policy


def test_of_three_copies_one_still_has_two_of_four_prompts(lesson):
    gib = [props.fullest(lesson["taken"], n, size="GPT-2 medium", copies=k) for n, k in ((2, 2), (3, 3), (3, 2))]
    own = props.need("policy", 2, size="GPT-2 medium")
    assert gib[0] == pytest.approx(gib[1]) and gib[2] == pytest.approx(own.standing + own.moment)


def test_parts_add_up_to_the_gradient_of_all_and_the_tokens_of_all_matter():
    batch = props.sample("tiny", "cpu", seed=3)
    whole = props.gradient(batch)
    halves = batch.part(range(5)), batch.part(range(5, 8))
    assert props.distance(props.gradient(*halves), whole) < 1e-5
    own = [props.gradient(half) for half in halves]  # each by its own tokens
    assert props.distance((own[0] + own[1]) / 2, whole) > 1e-2
    assert props.distance(props.gradient(*halves, own=True), (own[0] + own[1]) / 2) < 1e-5
    assert batch.part(range(8), 2).out.texts == [batch.out.texts[8 * i + j] for i in range(8) for j in (0, 1)]


def test_groups_are_tied_where_all_rewards_are_equal():
    batch = props.sample("tiny", "cpu", seed=3)
    rows = batch.rewards.view(8, 8)
    assert props.tied(batch) == (rows.std(1) == 0).float().mean().item()
    assert props.tied(batch.part(range(4)), batch.part(range(4, 8))) == props.tied(batch)


def test_a_simulated_card_that_is_too_small_says_so_in_pytorchs_words():
    apart = {"policy": (0,), "reference": (1,), "reward": (0,)}
    small, big = (props.on_simulated_cards(apart, [32, gib], prompts=1)[1] for gib in (0.5, 8))
    assert "CUDA out of memory. Tried to allocate" in small.died and not big.died
    assert big.peak == pytest.approx(sum(vars(props.need("reference", 1)).values()), rel=0.01)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (lambda card, standing, moments: max(0, 0.9 - (sum(standing) + sum(moments)) / card), "one after the other"),
        (lambda card, standing, moments: max(0, 1 - (sum(standing) + max(moments)) / card), "tenth"),
        (lambda card, standing, moments: 0.9 - (sum(standing) + max(moments)) / card, "0, not less"),
        (lambda card, standing, moments: 0.3, "got 0.300"),
    ],
)
def test_the_exercise_names_the_usual_mistakes(wrong, word):
    report = props.part_for_vllm(wrong)
    assert not report and word in report.hint


def at_once(standing, moments, phases):
    return sum(standing.values()) + max(sum(moments[model] for model in one) for one in phases)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (lambda standing, moments, phases: sum(standing.values()) + max(moments.values()), "moments meet"),
        (lambda standing, moments, phases: at_once(standing, moments, [sum(phases, [])]), "one after the other"),
        (lambda standing, moments, phases: at_once({}, moments, phases), "in every phase"),
        (lambda standing, moments, phases: 16.5, "got 16.500"),
    ],
)
def test_the_second_exercise_too(wrong, word):
    report = props.fullest_at_once(wrong)
    assert not report and word in report.hint


def test_one_card_has_no_room_for_two_models_at_work():
    needs = {model: props.need(model, 4) for model in props.MODELS}
    standing, moments = ({model: getattr(one, part) for model, one in needs.items()} for part in ("standing", "moment"))
    assert round(at_once(standing, moments, [["policy"], ["reference"], ["reward"]]), 1) == 13.4
    assert round(at_once(standing, moments, [["policy", "reference"], ["reward"]]), 1) == 16.5 > 0.9 * 16


def test_it_says_of_trl_and_transformers_what_is_installed():
    assert not hasattr(torch.nn.DataParallel, "generate")
    config = installed("trl", "trainer/grpo_config.py")
    assert 'default="colocate"' in config and "vllm_gpu_memory_utilization: float" in config
    assert "model = nn.DataParallel(model)" in installed("transformers", "trainer.py")
