"""Lesson 02: the bug cut out of the lesson, the exact zero, and how accelerate meets it."""

import pytest
import torch
from cut import Page

from labkit import checks
from labkit.grpo import grads


def losses_of(model, micro_batches):
    for batch in micro_batches:
        yield model(**batch).loss  # the sum over num_items_in_batch


def step_with(inner_update):
    return lambda model, optimizer, mbs: inner_update(model, optimizer, losses_of(model, mbs), grads.plain_step)


def test_the_checks_tell_the_bug_of_the_lesson_from_a_sound_update():
    assert checks.accumulated_step(step_with(grads.inner_update))
    report = checks.accumulated_step(step_with(Page("02")["bug_update"]))
    assert not report and "Only the last micro-batch" in report.hint


@pytest.mark.parametrize("decay, moves", [(0.0, False), (0.01, True)])
def test_a_zero_gradient_stops_adamw_unless_it_has_a_decay_or_a_momentum(decay, moves):
    """The lesson's account of 0.000: averages that began at 0, and `train`'s optimizer without a decay."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=5e-5, weight_decay=decay)

    def moved_by(gradient):
        before, weight.grad = weight.detach().clone(), torch.full_like(weight, gradient)
        optimizer.step()
        return (before - weight).max().item()

    first = moved_by(0.0)
    assert (first != 0) == moves and first == pytest.approx(5e-5 * decay, abs=1e-7)
    moved_by(1.0)
    assert moved_by(0.0) > 1e-5  # the momentum moves it by about half of the rate


def test_accelerates_accumulate_passes_and_the_same_loop_without_it_is_the_bug():
    accelerate = pytest.importorskip("accelerate")

    def step(model, optimizer, micro_batches):
        number = len(micro_batches)
        accelerator = accelerate.Accelerator(gradient_accumulation_steps=number, cpu=True)
        model, optimizer = accelerator.prepare(model, optimizer)
        for loss in losses_of(model, micro_batches):
            with accelerator.accumulate(model):
                accelerator.backward(loss * number)
                optimizer.step()
                optimizer.zero_grad()

    def without(model, optimizer, micro_batches):
        for loss in losses_of(model, micro_batches):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    assert checks.accumulated_step(step)
    assert "inside the loop" in checks.accumulated_step(without).hint
