"""What lesson 08 leaves out of its page: transformers' and TRL's own rules, a KL term, penalties, wrong exercises."""

import json
import sys
from functools import partial

import pytest
import torch
from cut import FOLDER, installed, path_of
from transformers import GenerationConfig, LogitsProcessorList, TemperatureLogitsWarper

from labkit import checks, sampling
from labkit.train import train

sys.path.append(str(FOLDER))  # as labkit.warm() does for a notebook
from props import lesson_08 as props

BUG = {"temperature": 0.7}
FIX = {"do_sample": True, "temperature": 0.7, "top_k": 0}


def sample(policy, prompts, flags, *, num_samples, max_new_tokens, generator, **_):
    ids, mask = policy.encode([prompt for prompt in prompts for _ in range(num_samples)])
    torch.manual_seed(props.seed_from(generator))
    rows = policy.model.generate(ids, attention_mask=mask, max_new_tokens=max_new_tokens, **flags)
    return props.packed_for_the_trainer(policy, rows, ids, mask, num_samples)


def ask(policy, flags, prompts):
    return props.ask(policy, partial(sample, flags=flags), seed=0, prompts=prompts)


def reading(policy, prompts=50, **flags):
    """The temperature of a rollout, with an interval that misses it once in 10,000 times."""
    read = props.logits_and_tokens(policy, ask(policy, flags, prompts))
    return sampling.estimate_temperature(*read, confidence=0.9999)


# The message --------------------------------------------------------------------------------------------------


def test_the_warning_is_worded_so_comes_once_and_not_for_the_defaults(tiny):
    with props.lines_about_flags() as lines:
        for _ in range(3):
            reading(tiny, prompts=1, temperature=1.0, top_k=50)
    assert not lines
    with props.lines_about_flags() as lines:
        for _ in range(3):
            reading(tiny, prompts=1, temperature=0.9, top_p=0.9)
    assert lines == [
        "The following generation flags are not valid and may be ignored: ['temperature', 'top_p']."
        " Set `TRANSFORMERS_VERBOSITY=info` for more details."
    ]


def test_a_warper_in_the_list_brings_no_warning_does_not_draw_and_divides_twice(tiny):
    warper = LogitsProcessorList([TemperatureLogitsWarper(0.5)])
    with props.lines_about_flags() as lines:
        assert reading(tiny, logits_processor=warper).verdict == "greedy"
    assert not lines
    twice = reading(tiny, prompts=200, do_sample=True, temperature=0.5, top_k=0, logits_processor=warper)
    assert 0.25 in twice and twice.high < 0.5
    assert "up to v4.49.0, this function threw" in installed("transformers", "generation/utils.py")


# The bug under other settings than the lesson's ---------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"beta": 0.04, "mu": 2}])
def test_copies_have_a_gradient_of_exactly_zero_with_a_kl_term_too(fresh, settings):
    before = [parameter.detach().clone() for parameter in fresh.model.parameters()]
    steps = list(train(fresh, "add", generate=partial(sample, flags=BUG), rounds=2, temperature=0.7, **settings))
    assert {step.grad_norm for step in steps} == {0.0}
    assert props.distance(before, fresh) == 0


def test_a_gradient_is_taken_only_where_completions_differ(tiny):
    norms = []
    for flags in (BUG, FIX):
        out = ask(tiny, flags, prompts=8)
        norms.append(props.gradient_norm(tiny, out, props.rewards_of(tiny, out), torch.float32))
    assert norms[0] == 0 and norms[1] > 0.05


# The count -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def not_the_likeliest():
    """The function of the page."""
    cells = json.loads(path_of("08").read_text())["cells"]
    (code,) = [text for cell in cells if "def not_the_likeliest" in (text := "".join(cell["source"]))]
    space = {"torch": torch}
    exec(code, space)
    return space["not_the_likeliest"]


def test_the_range_is_four_deviations_of_what_chance_does(not_the_likeliest):
    torch.manual_seed(0)
    logits, apart = 2 * torch.randn(300, 16), []
    probabilities = (logits / 0.7).softmax(-1)
    for _ in range(400):
        tokens = probabilities.multinomial(1).squeeze(1)
        count, low, high = not_the_likeliest(logits, tokens, 0.7)
        apart.append((count - (low + high) / 2) / ((high - low) / 8))
    assert torch.tensor(apart).mean().abs() < 0.2
    assert torch.tensor(apart).std() == pytest.approx(1, abs=0.15)
    assert not_the_likeliest(logits / 0.7, tokens, 1.0) == pytest.approx((count, low, high), abs=1e-3)


def test_one_seed_for_every_request_gives_copies_of_fair_draws(tiny):
    whole = props.ask(tiny, partial(props.one_seed_for_every_request, flags=FIX), seed=0, prompts=200)
    assert all(len(set(group)) == 1 for group in props.groups_of(whole))
    first = props.logits_and_tokens(tiny, props.first_of_groups(whole))
    reading = sampling.estimate_temperature(*first, confidence=0.9999)
    assert 0.7 in reading and reading.verdict == "measured"


# The configuration ---------------------------------------------------------------------------------------------


def test_what_is_left_out_comes_from_the_model_and_then_from_the_defaults(fresh):
    assert GenerationConfig._get_default_generation_params()["top_k"] == 50
    fresh.model.generation_config = GenerationConfig(do_sample=True, temperature=0.3, min_p=0.2, **props.SPECIAL)
    config, _ = fresh.model._prepare_generation_config(None, temperature=1.0)
    assert (config.do_sample, config.temperature, config.min_p, config.top_k) == (True, 1.0, 0.2, 50)
    config, _ = fresh.model._prepare_generation_config(GenerationConfig(temperature=None, min_p=None))
    assert (config.temperature, config.min_p) == (0.3, 0.2)
    config, _ = fresh.model._prepare_generation_config(None, temperature=None, min_p=None, top_k=None)
    assert (config.temperature, config.min_p, config.top_k) == (None, None, None)


def test_strict_validation_raises_and_does_not_see_a_temperature_of_one():
    with pytest.raises(ValueError, match="temperature"):
        GenerationConfig(temperature=0.9).validate(strict=True)
    GenerationConfig(temperature=1.0, top_k=50, do_sample=False).validate(strict=True)


def test_trl_draws_divides_and_does_not_filter_when_it_scores():
    fields = pytest.importorskip("trl").GRPOConfig.__dataclass_fields__
    names = ("temperature", "top_p", "top_k", "min_p", "beta", "num_iterations")
    assert [fields[name].default for name in names] == [1.0, 1.0, 0, None, 0.0, 1]
    trainer, utils = installed("trl", "trainer/grpo_trainer.py"), installed("trl", "trainer/utils.py")
    assert '"do_sample": True' in trainer and "logits = logits / temperature" in utils
    assert trainer.count("self.top_p") == 3 and "top_p" not in utils  # set, and handed to the two samplers


@torch.no_grad()
def outside_of_fifty(model, flags):
    """Share of 1,000 first tokens outside the model's 50 likeliest: by its distribution, and as they were drawn."""
    torch.manual_seed(0)
    ids = torch.randint(2, 200, (1000, 4))
    rows = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, **flags)
    probabilities = model(input_ids=ids).logits[:, -1].softmax(-1)  # [N, 200]
    likelier = (probabilities > probabilities.gather(1, rows[:, -1:])).sum(1)
    expected = probabilities.sort(-1, descending=True).values[:, 50:].sum(1).mean()
    return float(expected), float((likelier >= 50).float().mean())


def test_a_top_k_that_is_left_out_draws_from_fifty_tokens():
    model, flags = props.model_of_exercise_a(), {"do_sample": True, "temperature": 1.0} | props.NO_FILTERS
    expected, drawn = outside_of_fifty(model, flags)
    assert drawn == pytest.approx(expected, abs=0.05) and expected > 0.1
    del flags["top_k"]
    assert outside_of_fifty(model, flags)[1] == 0


# The exercises -------------------------------------------------------------------------------------------------


SETTINGS = {"do_sample": True, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_new_tokens": 4}


def generate_without(name):
    settings = {key: value for key, value in SETTINGS.items() if key != name}
    return lambda model, ids, temperature: model.generate(ids, temperature=temperature, **settings)


def changes_the_model(model, ids, temperature):
    model.generation_config = GenerationConfig(**props.SPECIAL)
    return model.generate(ids, temperature=temperature, **SETTINGS)


def in_an_object(model, ids, temperature):
    config = GenerationConfig(**(SETTINGS | {"top_p": None}), temperature=temperature)
    return model.generate(ids, generation_config=config)


def one_token(model, ids, temperature):
    return model.generate(ids, temperature=temperature, **(SETTINGS | {"max_new_tokens": 1}))


@pytest.mark.parametrize("wrong", [*map(generate_without, SETTINGS), changes_the_model, in_an_object, one_token])
def test_the_first_exercise_refuses_each_flag_left_out(wrong):
    assert props.judge_generate(wrong).passed is False


def test_the_first_exercise_names_greedy_decoding():
    assert "nothing was drawn" in props.judge_generate(generate_without("do_sample")).hint
    assert props.judge_generate(generate_without("nothing"))


def by_rewards(groups, rewards, logits, tokens):
    return "nothing wrong" if float(rewards.std(1).max()) > 0 else "greedy decoding"


def by_copies(groups, rewards, logits, tokens):
    copies = all(len(set(group)) == 1 for group in groups)
    return "greedy decoding" if copies else "nothing wrong"


def without_the_range(groups, rewards, logits, tokens):
    if by_copies(groups, rewards, logits, tokens) == "nothing wrong":
        return "nothing wrong"
    return "greedy decoding" if torch.equal(logits.argmax(-1), tokens) else "one draw copied"


@pytest.mark.parametrize("wrong", [by_rewards, by_copies, without_the_range, lambda *_: "cannot tell"])
def test_the_second_exercise_refuses_half_a_diagnosis(wrong):
    assert not props.judge_diagnosis(wrong)


def test_the_check_that_the_lesson_names_fails_on_the_bug(tiny):
    report = checks.temperature(lambda ids, t: tiny.model.generate(ids, temperature=t, max_new_tokens=4), tiny.model)
    assert report.passed is False
