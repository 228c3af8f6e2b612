"""The policy of long answers that ships with labkit is what the recipe in scripts/make_checkpoint.py makes."""

import dataclasses
import json
import random

import pytest
import torch

from labkit.grpo import exam, load, policy, task

FOLDER = policy.CHECKPOINTS / "tiny-long"
RECIPE_FILE = json.loads((FOLDER / "recipe.json").read_text())


@pytest.fixture(scope="module")
def long():
    return load("tiny-long", "cpu")


@pytest.fixture
def maker(script):
    return script("make_checkpoint")


def test_it_was_made_by_the_recipe_that_stands_in_the_script(maker):
    assert dataclasses.asdict(maker.RECIPES["tiny-long"]) == RECIPE_FILE["recipe"]


def test_the_first_steps_of_the_recipe_have_the_losses_that_were_kept(maker):
    recipe = maker.RECIPES["tiny-long"]
    steps = maker.train(maker.beginning(recipe), maker.make_tokenizer(), recipe)
    kept = RECIPE_FILE["first losses"]
    # float32, another number of threads or another torch: the losses may part slowly
    assert [next(steps) for _ in kept] == pytest.approx(kept, rel=1e-2)


def test_the_shipped_weights_have_the_loss_of_the_recipes_last_step(maker, long):
    """The last step's rows come from the recipe's own generator; by then the rate is a 900th of its first value."""
    recipe, rng = maker.RECIPES["tiny-long"], random.Random(0)
    for _ in range(recipe.steps):
        rows = maker.rows(recipe.batch, rng, recipe.shares, recipe.wrong)
    with torch.no_grad():
        loss = maker.loss_of(long.model, long.tokenizer, rows, recipe.width)
        other = maker.loss_of(load("tiny", "cpu").model, long.tokenizer, rows, recipe.width)
    assert loss.item() == pytest.approx(RECIPE_FILE["last loss"], rel=1e-3) and other > 1


def test_it_copies_and_its_sum_is_right_or_ten_off(maker, long):
    prompts = task.get("long").held_out()
    answers = [task.get("long").answer(prompt) for prompt in prompts]
    wrong = [maker.wrong_answer("long", prompt) for prompt in prompts]
    right, off = (exam.paper_of(long.tokenizer, prompts, texts).chances(long.model) for texts in (answers, wrong))
    assert 0.40 < right.mean() < 0.47 and 0.46 < off.mean() < 0.54 and (right + off).mean() > 0.9
    lengths = {len(answer) + 1 for answer in answers}  # with the end token
    assert lengths >= {15, 16}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_recipe_makes_it_again(maker, long):
    recipe = maker.RECIPES["tiny-long"]
    torch.set_num_threads(1)
    model, tokenizer = maker.beginning(recipe), maker.make_tokenizer()
    for _ in maker.train(model, tokenizer, recipe):
        pass
    paper = exam.paper(tokenizer, "long")
    apart = (paper.chances(model) - paper.chances(long.model)).abs()
    assert apart.mean() < 0.05
