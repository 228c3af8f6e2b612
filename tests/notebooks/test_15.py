"""Lesson 15: the ways to seat, and numbers of its text."""

import pytest
from cut import Page
from props import lesson_15 as props


@pytest.fixture(scope="module")
def page():
    return Page("15")


def test_every_seating_has_all_models_on_cards_that_exist_and_none_twice():
    seatings = [tuple(seats.values()) for seats in props.every_seating(3, prompts=4)]
    assert len(seatings) == len(set(seatings))
    assert all(len(seats) == 3 and set().union(*seats) <= {0, 1, 2} for seats in seatings)
    assert {len(policy) for policy, *_ in seatings} == {1, 2, 3}
    assert list(props.every_seating(1, prompts=4)) == [{model: (0,) for model in props.MODELS}]


def test_of_three_copies_one_still_has_two_of_four_prompts(page):
    gib = [props.fullest(page["taken"], n, size="GPT-2 medium", copies=k) for n, k in ((2, 2), (3, 3), (3, 2))]
    own = props.need("policy", 2, size="GPT-2 medium")
    assert gib[0] == pytest.approx(gib[1]) and gib[2] == pytest.approx(own.standing + own.moment)


def test_one_card_has_no_room_for_two_models_at_work(page):
    needs = {model: props.need(model, 4) for model in props.MODELS}
    standing, moments = ({model: getattr(one, part) for model, one in needs.items()} for part in ("standing", "moment"))
    at_once = page["at_once"]
    assert round(at_once(standing, moments, [["policy"], ["reference"], ["reward"]]), 1) == 13.4
    assert round(at_once(standing, moments, [["policy", "reference"], ["reward"]]), 1) == 16.5 > 0.9 * 16
