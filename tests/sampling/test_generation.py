"""The flags and processors, on transformers' own generate."""

import logging
import math

import pytest
import torch
import transformers
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from labkit import rollout
from labkit.sampling import Finite, Frequency, Presence, estimate_temperature, generation_kwargs

SHIPPED = dict(do_sample=True, temperature=0.6, top_k=20, top_p=0.8, min_p=0.1, repetition_penalty=1.1)
PROMPT = "16+01="


@pytest.fixture
def model(fresh):
    return fresh.model


def generated(policy, n=300, **kwargs):
    """(logits, tokens, mask) of n completions of one prompt."""
    torch.manual_seed(0)
    ids, mask = policy.encode([PROMPT] * n)
    out = policy.model.generate(ids, attention_mask=mask, **({"max_new_tokens": 4} | kwargs))
    new = out[:, ids.shape[1] :]
    alive = (new == 1).cumsum(1) - (new == 1).long() == 0
    with torch.no_grad():
        return policy.model(input_ids=out[:, :-1]).logits[:, ids.shape[1] - 1 :], new, alive


def test_rollout_is_where_a_newcomer_finds_it():
    assert rollout.generation_kwargs is generation_kwargs


@pytest.mark.parametrize("temperature", [0.5, 1, 2])
def test_whatever_the_model_ships_is_overridden(fresh, temperature):
    fresh.model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0, no_repeat_ngram_size=2, **SHIPPED)
    found = estimate_temperature(*generated(fresh, **generation_kwargs(do_sample=True, temperature=temperature)))
    assert found.value == pytest.approx(temperature, rel=0.12)


def test_greedy_is_greedy_and_nobody_is_warned(fresh, caplog):
    logging.getLogger("transformers").addHandler(caplog.handler)
    for kwargs in (generation_kwargs(max_new_tokens=3), generation_kwargs(do_sample=True, max_new_tokens=3)):
        logits, tokens, mask = generated(fresh, **kwargs)
        assert (estimate_temperature(logits, tokens, mask).verdict == "greedy") != kwargs["do_sample"]
    logging.getLogger("transformers").removeHandler(caplog.handler)
    assert not caplog.records


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (dict(temperature=0.9, top_p=0.9), "temperature = 0.9: ignored without do_sample=True.*top_p = 0.9"),
        (dict(do_sample=False, temperature=1.0), "temperature = 1.0: ignored"),
        (dict(top_k=50), "top_k = 50: ignored"),
        (dict(min_p=0.1), "min_p"),
        (dict(typical_p=0.9), "typical_p"),
        (dict(num_return_sequences=4), "num_return_sequences"),
        (dict(do_sample=True, top_p=95), "top_p = 95: must be from 0 to 1"),
        (dict(do_sample=True, temperature=0), "temperature = 0: must be above 0"),
        (dict(do_sample=True, top_k=-1), "top_k = -1"),
        (dict(do_sample=True, num_beams=3), "num_beams"),
        (dict(do_sample=True, length_penalty=0.5), "length_penalty"),
        (dict(do_sample=True, early_stopping=True), "early_stopping"),
        (dict(do_sample=True, diversity_penalty=0.5), "diversity_penalty"),
        (dict(do_sample=True, output_scores=True), "output_scores"),
        (dict(do_sample=True, presence_penalty=0.5), "labkit.sampling.Presence"),
        (dict(do_sample=True, temprature=0.5), "temprature: not a flag"),
        (dict(do_sample=True, max_tokens=5), "max_new_tokens"),
        (dict(do_sample=True, max_length=9, max_new_tokens=5), "max_length: max_new_tokens overrides"),
        (dict(do_sample=True, generation_config=GenerationConfig()), "filled from the model's own"),
        (dict(do_sample=True, logits_processor=[TemperatureLogitsWarper(0.5)]), "TemperatureLogitsWarper"),
        (dict(logits_processor=LogitsProcessorList([TopPLogitsWarper(0.5)])), "pass top_p= alone"),
        (
            dict(do_sample=True, repetition_penalty=1.2, logits_processor=[RepetitionPenaltyLogitsProcessor(1.1)]),
            "repetition_penalty: overridden",
        ),
    ],
)
def test_flags_that_would_not_do_what_they_say_are_refused(flags, words):
    with pytest.raises(ValueError, match=words):
        generation_kwargs(**flags)


@pytest.mark.parametrize(
    "flags", [dict(length_penalty=0.5), dict(temperature=0.5), dict(output_scores=True), dict(top_k=7)]
)
def test_what_transformers_warns_of_is_refused(flags, caplog):
    """The other way round: each flag that makes it warn, labkit refuses."""
    transformers.utils.logging.warning_once.cache_clear()
    logger, level = logging.getLogger("transformers"), transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_warning()  # a lesson's helper in the same process may have made it quiet
    logger.addHandler(caplog.handler)
    GenerationConfig(**flags)
    logger.removeHandler(caplog.handler)
    transformers.logging.set_verbosity(level)
    assert f"may be ignored: {list(flags)}" in caplog.text
    with pytest.raises(ValueError, match=next(iter(flags))):
        generation_kwargs(**flags)


@pytest.mark.parametrize("given", [lambda m: m, lambda m: m.generation_config, lambda m: m.generation_config.to_dict()])
def test_what_the_model_ships_must_be_mentioned(model, given):
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0, **SHIPPED)
    with pytest.raises(ValueError, match="temperature.*top_k=20 to keep it, top_k=0 to switch it off") as raised:
        generation_kwargs(given(model), do_sample=True)
    assert all(name in str(raised.value) for name in ("top_p", "min_p", "repetition_penalty"))
    said = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=None, repetition_penalty=1.0)
    assert generation_kwargs(given(model), do_sample=True, **said)["top_k"] == 0
    with pytest.raises(ValueError, match="say which you want"):
        generation_kwargs(given(model))
    greedy = generation_kwargs(given(model), do_sample=False, repetition_penalty=1.0)  # filters do nothing there
    assert greedy["do_sample"] is False and greedy["top_k"] is None


def test_another_thing_than_a_model_is_named():
    with pytest.raises(ValueError, match="model is a int"):
        generation_kwargs(3, do_sample=True)


# Processors --------------------------------------------------------------------------------------------------


def test_presence_and_frequency_count_the_completion_only():
    rows = torch.tensor([[5, 6, 7, 2, 2, 3], [0, 0, 7, 4, 4, 4]])
    scores = torch.zeros(2, 8)
    assert Presence(0.5, 3)(rows, scores)[0].tolist() == [0, 0, -0.5, -0.5, 0, 0, 0, 0]
    assert Frequency(0.5, 3)(rows, scores)[1].tolist() == [0, 0, 0, 0, -1.5, 0, 0, 0]
    assert not Presence(0.5, 6)(rows, scores).any()
    with pytest.raises(ValueError, match="make one per batch"):
        Presence(0.5, 7)(rows, scores)


@pytest.mark.parametrize("kind", [Presence, Frequency])
def test_a_strong_penalty_forbids_repeats_of_the_completion_in_generate(fresh, kind):
    width = fresh.encode([PROMPT])[0].shape[1]
    _, tokens, mask = generated(fresh, **generation_kwargs(do_sample=True, logits_processor=[kind(1e4, width)]))
    rows = [row[keep].tolist() for row, keep in zip(tokens, mask, strict=True)]
    assert all(len(set(row)) == len(row) for row in rows)
    prompt = set(fresh.encode([PROMPT])[0][0].tolist())
    assert prompt & {token for row in rows for token in row}  # what the prompt has may come


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_finite_never_leaves_a_row_without_a_finite_logit(dtype):
    scores = torch.randn(4, 6).to(dtype)
    scores[0] = math.nan
    scores[1] = -math.inf
    scores[2, :5] = torch.tensor([math.nan, math.inf, -math.inf, 1.0, 2.0]).to(dtype)
    sane = Finite(end=1)
    out = sane(torch.zeros(4, 3), scores)
    assert out.isfinite().any(1).all() and out.softmax(-1).isfinite().all() and sane.rescued == 2
    assert out[:2].argmax(-1).tolist() == [1, 1] and out[2].argmax() == 1 and torch.equal(out[3], scores[3])
    assert math.isnan(scores[0, 0])  # what came in is left as it was


def test_finite_lets_a_broken_policy_end_its_rows_and_counts_them(fresh):
    with torch.no_grad():
        fresh.model.transformer.wte.weight.fill_(math.nan)
    sane = Finite(end=1)
    _, tokens, _ = generated(fresh, n=3, **generation_kwargs(do_sample=True, logits_processor=[sane]))
    assert (tokens[:, 0] == 1).all() and sane.rescued == 3
    with pytest.raises(RuntimeError, match="probability tensor"):
        generated(fresh, n=3, **generation_kwargs(do_sample=True))
