"""The temperature check: sound samplers pass, each mistake is named, and it says so where it cannot tell."""

import math
from functools import partial

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.generation.logits_process import MinPLogitsWarper, TemperatureLogitsWarper

from labkit.checks import temperature
from labkit.grpo import rollout


def draw(logits, t=1.0):
    return torch.multinomial((logits / t).softmax(-1), 1)[:, 0]


def in_cumulative(logits, t):
    found = torch.searchsorted((logits / t).softmax(-1).cumsum(-1), torch.rand(len(logits), 1))
    return found.clamp(max=logits.shape[1] - 1)[:, 0]


SOUND = {
    "multinomial": draw,
    "labkit": rollout.sample_tokens,
    "gumbel": lambda z, t: (z / t - torch.rand_like(z).log().neg().log()).argmax(-1),
    "cumulative": in_cumulative,
    "bfloat16": lambda z, t: draw(z.bfloat16(), t),
    "power": lambda z, t: torch.multinomial(z.softmax(-1) ** (1 / t), 1)[:, 0],
    "in place": lambda z, t: draw(z.div_(t)),
    "seeded": lambda z, t: torch.multinomial((z / t).softmax(-1), 1, generator=torch.Generator().manual_seed(7)),
}


@pytest.mark.parametrize("sample", SOUND.values(), ids=SOUND)
def test_sound_samplers_pass(sample):
    report = temperature(sample)
    assert report, report


def now_and_then_greedy(z, t):
    return torch.where(torch.rand(len(z)) < 0.15, z.argmax(-1), draw(z, t))


WRONG = {
    "greedy": (lambda z, t: z.argmax(-1), "greedy decoding"),
    "ignored": (lambda z, t: draw(z), "no effect"),
    "twice": (lambda z, t: draw(z / t, t), "applied twice"),
    "upside down": (lambda z, t: draw(z * t), "multiplied"),
    "root": (lambda z, t: draw(z, t**0.5), "Not what is asked"),
    "another one": (lambda z, t: draw(z, 0.6), "One temperature, whatever is asked"),
    "greedy when cold": (lambda z, t: z.argmax(-1) if t < 0.6 else draw(z, t), "at 0.5 it is greedy"),
    "top-k": (partial(rollout.sample_tokens, top_k=50), "top_k = 50. Switch the filters off: transformers' generate"),
    "weak top-p": (partial(rollout.sample_tokens, top_p=0.99), "top_p = 0.99"),
    "min-p": (lambda z, t: draw(MinPLogitsWarper(0.05)(None, z / t)), "min_p = 0.05"),
    "top-p, temperature ignored": (lambda z, t: rollout.sample_tokens(z, 1.0, top_p=0.9), "never drawn"),
    "flipped sign": (lambda z, t: draw(-z, t), "it is anti"),
    "rows exchanged": (lambda z, t: draw(z.roll(1, 0), t), "next to nothing"),
    "ids off by one": (lambda z, t: (draw(z, t) + 1) % z.shape[1], "next to nothing"),
    "the last token suppressed": (lambda z, t: draw(z.index_fill(1, torch.tensor([199]), -math.inf), t), "lost tokens"),
    "rounded": (lambda z, t: draw((z / t).round()), "rounded to whole numbers"),
    "softmax over rows": (lambda z, t: torch.multinomial((z / t).softmax(0), 1)[:, 0], "Not what is asked"),
    "floor division": (lambda z, t: draw(z // t), "`//` where `/`"),
    "greedy now and then": (now_and_then_greedy, "Not what is asked"),
    "too few": (lambda z, t: draw(z, t)[1:], "one token for each"),
    "beyond the vocabulary": (lambda z, t: draw(z, t) + 150, "Expected tokens from 0 to 199"),
}


@pytest.mark.parametrize(("sample", "cause"), WRONG.values(), ids=WRONG)
def test_each_mistake_is_refused_and_named(sample, cause):
    report = temperature(sample)
    assert report.passed is False and cause in report.hint, report


# A model and its generate ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    """200 tokens: more than the 50 that transformers' default leaves."""
    torch.manual_seed(0)
    made = GPT2LMHeadModel(
        GPT2Config(vocab_size=200, n_embd=32, n_layer=1, n_head=2, n_positions=16, bos_token_id=1, eos_token_id=1)
    ).eval()
    made.generation_config.pad_token_id = 0
    with torch.no_grad():
        made.transformer.wte.weight.mul_(8)
    return made


def flags(model, **settings):
    return lambda ids, t: model.generate(
        ids, **({"max_new_tokens": 4, "do_sample": True, "temperature": t, "top_k": 0} | settings)
    )


def by_hand(model, prompt=True):
    def generate(ids, t):
        width = ids.shape[1]
        for _ in range(3):
            ids = torch.cat([ids, draw(model(ids).logits[:, -1], t)[:, None]], 1)
        return ids if prompt else ids[:, width:]

    return generate


@pytest.mark.parametrize(
    "generate",
    [flags, by_hand, lambda m: by_hand(m, prompt=False), lambda m: flags(m, return_dict_in_generate=True)],
    ids=["flags", "by hand", "completions only", "dict"],
)
def test_sound_generation_passes(model, generate):
    report = temperature(generate(model), model)
    assert report, report


@pytest.mark.parametrize(
    ("generate", "cause"),
    [
        (lambda m: flags(m, do_sample=False, temperature=None, top_k=None), "greedy"),
        (lambda m: flags(m, do_sample=False, temperature=None, repetition_penalty=1.3), "none is drawn"),
        (lambda m: flags(m, temperature=None), "no effect"),
        (lambda m: lambda ids, t: flags(m, logits_processor=[TemperatureLogitsWarper(t)])(ids, t), "applied twice"),
        (lambda m: lambda ids, t: m.generate(ids, do_sample=True, temperature=t, max_new_tokens=4), "top_k = 50"),
        (lambda m: flags(m, min_p=0.05), "min_p = 0.05"),
        (lambda m: flags(m, repetition_penalty=1.3), "Not what is asked"),
        (lambda m: lambda ids, t: ids, "max_new_tokens"),
        (lambda m: lambda ids, t: flags(m)(ids[1:], t), "one row of tokens for each"),
    ],
)
def test_each_way_to_ask_generate_wrongly_is_named(model, generate, cause):
    report = temperature(generate(model), model)
    assert report.passed is False and cause in report.hint, report


def test_the_small_policy_is_judged_too_and_its_end_token_ends_a_row(tiny):
    assert temperature(flags(tiny.model), tiny.model)
