import random

import pytest

from labkit.grpo import task


def test_prompts_of_every_family_are_answered_right_by_plain_arithmetic():
    rng = random.Random(0)
    right = {"+": lambda a, b: a + b, "<": max, ":": lambda a, b: a}
    for family in task.TASKS.values():
        for prompt in family.sample(200, rng):
            a, b = int(prompt[:2]), int(prompt[3:5])
            said = str(right[prompt[2]](a, b))
            assert family.reward(prompt, said) == 1.0 and family.reward(prompt, f" {said}") == 1.0


@pytest.mark.parametrize("said", ["", "4", "466", "46+", "47", "=46", "046", "4 6"])
def test_anything_but_the_right_number_alone_earns_nothing(said):
    assert task.get("add").reward("12+34=", said) == 0.0


def test_bad_names_and_lengths_say_what_was_expected():
    with pytest.raises(ValueError, match="add, max, copy"):
        task.get("mul")
    with pytest.raises(ValueError, match="2 prompts for 3 completions"):
        task.rewards(["12+34="] * 2, ["46"] * 3)
    with pytest.raises(ValueError, match="symbols"):
        task.of_prompt("hello")
