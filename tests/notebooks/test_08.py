"""What lesson 08 leaves out of its page: transformers' own rules, and a KL term."""

import pytest
import torch
from cut import Page
from props import lesson_08 as props
from transformers import GenerationConfig

from labkit import checks
from labkit.train import train


@pytest.fixture(scope="module")
def page():
    return Page("08", DEVICE="cpu")


def test_copies_have_a_gradient_of_exactly_zero_with_a_kl_term_too(fresh, page):
    before = [parameter.detach().clone() for parameter in fresh.model.parameters()]
    settings = {"rounds": 2, "temperature": 0.7, "beta": 0.04, "mu": 2}
    steps = list(train(fresh, "add", generate=page["of_bug"], **settings))
    assert {step.grad_norm for step in steps} == {0.0}
    assert props.distance(before, fresh) == 0


def test_the_range_is_four_deviations_of_what_chance_does(page):
    torch.manual_seed(0)
    count_of, logits, apart = page["not_the_likeliest"], 2 * torch.randn(300, 16), []
    probabilities = (logits / 0.7).softmax(-1)
    for _ in range(400):
        tokens = probabilities.multinomial(1).squeeze(1)
        count, low, high = count_of(logits, tokens, 0.7)
        apart.append((count - (low + high) / 2) / ((high - low) / 8))
    assert torch.tensor(apart).mean().abs() < 0.2
    assert torch.tensor(apart).std() == pytest.approx(1, abs=0.15)


def test_the_check_that_the_lesson_names_fails_on_the_bug(tiny):
    report = checks.temperature(lambda ids, t: tiny.model.generate(ids, temperature=t, max_new_tokens=4), tiny.model)
    assert report.passed is False


def test_what_is_left_out_comes_from_the_model_and_then_from_the_defaults(fresh):
    assert GenerationConfig._get_default_generation_params()["top_k"] == 50
    fresh.model.generation_config = GenerationConfig(do_sample=True, temperature=0.3, min_p=0.2, **props.SPECIAL)
    config, _ = fresh.model._prepare_generation_config(None, temperature=1.0)
    assert (config.do_sample, config.temperature, config.min_p, config.top_k) == (True, 1.0, 0.2, 50)


@torch.no_grad()
def test_a_top_k_that_is_left_out_draws_from_fifty_tokens():
    model, flags = props.model_of_exercise_a(), {"do_sample": True, "temperature": 1.0} | props.NO_FILTERS
    torch.manual_seed(0)
    ids = torch.randint(2, 200, (1000, 4))
    probabilities = model(input_ids=ids).logits[:, -1].softmax(-1)  # [N, 200]

    def share_outside_of_fifty(**flags):
        rows = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, **flags)
        likelier = (probabilities > probabilities.gather(1, rows[:, -1:])).sum(1)
        return float((likelier >= 50).float().mean())

    expected = float(probabilities.sort(-1, descending=True).values[:, 50:].sum(1).mean())
    assert share_outside_of_fifty(**flags) == pytest.approx(expected, abs=0.05) and expected > 0.1
    del flags["top_k"]
    assert share_outside_of_fifty(**flags) == 0
