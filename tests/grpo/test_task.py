import random

import pytest

from labkit.grpo import task


def test_prompts_of_every_family_are_answered_right_by_plain_arithmetic():
    rng = random.Random(0)
    right = {"+": lambda a, b: a + b, "<": max, ":": lambda a, b: a}
    for family in map(task.get, ("add", "max", "copy")):
        for prompt in family.sample(200, rng):
            a, b = int(prompt[:2]), int(prompt[3:5])
            said = str(right[prompt[2]](a, b))
            assert family.reward(prompt, said) == 1.0 and family.reward(prompt, f" {said}") == 1.0
            assert task.of_prompt(prompt) is family


def test_a_long_answer_must_copy_the_question_twice_and_then_give_the_sum():
    family = task.get("long")
    (prompt,) = family.sample(1, random.Random(0))
    a, b = int(prompt[:2]), int(prompt[3:5])
    assert prompt == f"{a:02d}+{b:02d}:" and task.of_prompt(prompt) is family
    question = f"{a:02d}+{b:02d}="
    assert family.reward(prompt, f"{question}{question}{a + b}") == 1.0
    for wrong in (f"{question}{a + b}", f"{question}{question}{a + b - 10}", f"{a + b}", f"{question}{question}"):
        assert family.reward(prompt, wrong) == 0.0


@pytest.mark.parametrize("said", ["", "4", "466", "46+", "47", "=46", "046", "4 6"])
def test_anything_but_the_right_number_alone_earns_nothing(said):
    assert task.get("add").reward("12+34=", said) == 0.0


def test_bad_names_and_lengths_say_what_was_expected():
    with pytest.raises(ValueError, match="add, max, copy, long"):
        task.get("mul")
    with pytest.raises(ValueError, match="2 prompts for 3 completions"):
        task.rewards(["12+34="] * 2, ["46"] * 3)
    with pytest.raises(ValueError, match="forms"):
        task.of_prompt("hello")
