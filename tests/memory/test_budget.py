"""The budget is predicted from the settings; what it is compared with is allocated by the model itself, under a tap."""

from __future__ import annotations

import pytest
import torch
from measurement import autocast, measure, model_of
from props.budget import Shape, Workload, layer_terms, predict
from props.card import Tap

SMALL = Shape(layers=2, width=128, heads=4, vocab=8000, positions=256)
# GPT-2 124M with two of its twelve layers: what one layer adds is exact, see the next test, and each costs time.
SHALLOW = Shape(layers=2, width=768, heads=12, vocab=50257, positions=1024)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ("124M", {"objective": "lm"}),
        (SHALLOW, {"micro_batches": 2}),
        (SHALLOW, {"group": 4, "batch": 1, "reference": True, "optimizer": "sgd"}),
        (SHALLOW, {"lora": 16}),
        (SHALLOW, {"checkpointing": True}),
        (SHALLOW, {"amp": True}),
        (SHALLOW, {"objective": "lm", "batch": 1, "prompt": 896, "new_tokens": 0}),
        (SMALL, {"attention": "eager", "micro_batches": 2}),
        (SMALL, {"attention": "eager", "amp": True, "objective": "lm"}),
        (SMALL, {"checkpointing": True, "objective": "lm", "optimizer": "sgd"}),
        (SMALL, {"lora": 8, "amp": True}),
    ],
    ids=str,
)
def test_every_phases_peak_is_predicted_within_ten_per_cent(shape, options):
    predicted, measured = predict(shape, **options), measure(shape, **options)
    assert [phase.name for phase in predicted.phases] == list(measured.phases)
    for phase in predicted.phases:
        assert phase.bytes == pytest.approx(sum(measured.phases[phase.name].values()), rel=0.10), phase.name
    assert predicted.peak == pytest.approx(measured.peak, rel=0.10)


@pytest.mark.parametrize(
    "options", [{}, {"attention": "eager"}, {"amp": True}, {"attention": "eager", "amp": True}, {"lora": 8}], ids=str
)
def test_a_layers_terms_are_what_one_more_layer_keeps_alive_after_the_forward_pass(options):
    work = Workload(batch=4, prompt=128, new_tokens=0, objective="lm", **options)

    def kept(layers):
        shape = Shape(layers, 256, 4, 100, 128)
        tap = Tap(fake=True)
        model = tap.build(lambda: model_of(shape, work))
        with tap:
            tap.adopt(model)
            ids = torch.zeros(4, 128, dtype=torch.long)
            with autocast(work):
                logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
            live = [b for s in tap.snapshot() for b in s["blocks"] if b["tag"] == "activation"]
            assert logits.requires_grad
            return sum(block["requested_size"] for block in live), shape

    (three, shape), (two, _) = kept(3), kept(2)
    weights = 2 * shape.matrices if work.amp else 0
    terms = sum(layer_terms(shape, work, 4, 128).values())
    assert three - two - weights == pytest.approx(terms, rel=0.02)


def test_parameters_are_counted_as_transformers_counts_them():
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        config = GPT2Config(n_layer=3, n_embd=96, n_head=4, vocab_size=500, n_positions=64)
        model = GPT2LMHeadModel(config)
    assert Shape.of(config).parameters == sum(p.numel() for p in model.parameters())
    assert Shape.of("124M").parameters == 124_439_808


def test_lora_parameters_are_counted_as_peft_counts_them():
    with torch.device("meta"):
        model = model_of(SMALL, Workload(lora=8))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    gradients = [t for p in predict(SMALL, lora=8).phases for t in p.terms if t.category == "gradient"]
    assert gradients[-1].bytes == 4 * trained


def test_a_workload_that_does_not_fit_the_card_runs_out_of_memory_and_one_that_fits_does_not():
    need = predict(SMALL, batch=16).peak
    with pytest.raises(torch.OutOfMemoryError):
        measure(SMALL, batch=16, total_memory=int(need * 0.8))
    assert measure(SMALL, batch=16, total_memory=int(need * 1.4)).peak < need * 1.1
    assert predict(SMALL, batch=16).fits(int(need * 1.2)) and not predict(SMALL, batch=16).fits(int(need * 1.05))


def test_a_budget_reads_as_a_table_whose_terms_add_up():
    budget = predict("124M", group=2, reference=True)
    text = str(budget)
    assert text.startswith("peak ") and "the reference model" in text and "group=2, reference=True" in text
    for phase in budget.phases:
        assert sum(phase.by_category.values()) == phase.bytes == sum(t.bytes for t in phase.terms)
    assert budget.by_category == budget.worst.by_category and budget.peak == max(p.bytes for p in budget.phases)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"batch": 0}, "batch = 0: expected a whole number, at least 1"),
        ({"batch": True}, "batch = True"),
        ({"micro_batches": 3}, "micro_batches = 3: does not divide the 4 rows"),
        ({"optimizer": "adam"}, "optimizer = 'adam': expected one of adamw, sgd"),
        ({"objective": "ppo"}, "objective = 'ppo'"),
        ({"new_tokens": 0}, "use objective='lm'"),
        ({"prompt": 1000, "new_tokens": 100}, "the model has 1024 positions"),
    ],
)
def test_a_setting_that_cannot_be_is_named(options, words):
    with pytest.raises(ValueError, match=words):
        predict("124M", **options)


def test_models_whose_terms_were_not_derived_are_refused():
    from transformers import GPT2Config, LlamaConfig

    for config in (LlamaConfig(), GPT2Config(activation_function="relu"), "7B"):
        with pytest.raises(ValueError, match="config '.*: expected tiny or 124M, .*measure others with props.card.Tap"):
            predict(config)
    with pytest.raises(TypeError):
        predict("124M", colour="blue")
