"""Lesson 02: the bug and the solution cut out of the page, what its text says where no cell runs it, its diagnosis."""

import math
from functools import partial

import pytest
import torch
from cut import Page
from props import lesson_02 as lab
from props import lesson_02_look_alikes as look_alikes
from props import lesson_02_pictures as pictures
from props.arms import side_by_side
from props.diagnosis import judge

from labkit import checks
from labkit.grpo import Hooks, Sampling, grads, train


@pytest.fixture(scope="module")
def page():
    return Page("02")


def losses_of(model, micro_batches):
    for batch in micro_batches:
        yield model(**batch).loss  # the sum over num_items_in_batch


def step_with(inner_update):
    return lambda model, optimizer, mbs: inner_update(model, optimizer, losses_of(model, mbs), grads.plain_step)


def test_the_checks_tell_the_bug_of_the_page_from_its_solution(page):
    update_with = page["update_with"]
    assert checks.accumulated_step(step_with(partial(update_with, page["add_up"])))
    for faulty in (partial(update_with, page["write"]), page["zero_grad_inside"]):
        report = checks.accumulated_step(step_with(faulty))
        assert not report and "Only the last micro-batch" in report.hint


def gradient_after(inner_update, seed, objectives):
    batch = lab.Batch("tiny", "cpu", seed, objectives)
    optimizer = torch.optim.AdamW(batch.model.parameters())
    losses = list(batch.losses.values())
    wanted = torch.autograd.grad(sum(losses), list(batch.model.parameters()), retain_graph=True)
    inner_update(batch.model, optimizer, losses, lambda model, optimizer: None)
    return [p.grad for p in batch.model.parameters()], wanted, list(batch.model.parameters())


def test_zero_grad_in_the_loop_leaves_the_gradient_that_the_bug_leaves(page):
    bug, _, _ = gradient_after(partial(page["update_with"], page["write"]), 1, ("add", "max"))
    inside, _, _ = gradient_after(page["zero_grad_inside"], 1, ("add", "max"))
    for one, other in zip(bug, inside, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def test_the_distance_is_0_for_the_sum_1_without_a_gradient_and_large_for_the_last_on_other_batches(page):
    distance = page["distance"]
    for seed in (1, 2, 3, 4):
        bug = partial(page["update_with"], page["write"])
        _, wanted, parameters = gradient_after(bug, seed, ("max", "add"))
        assert distance(parameters, wanted) > 0.3
        _, wanted, parameters = gradient_after(partial(page["update_with"], page["add_up"]), seed, ("max", "add"))
        assert distance(parameters, wanted) < 1e-6
    for parameter in parameters:
        parameter.grad = None
    assert distance(parameters, wanted) == pytest.approx(1)


def test_where_a_solved_objective_comes_first_overwriting_takes_nothing_from_the_run(page):
    bug = Hooks(inner_update=partial(page["update_with"], page["write"]))
    settings = {"sampling": Sampling(prompts=4), "rounds": 1, "exam": True, "device": "cpu"}
    ends = [list(train(("copy", "add"), **settings, hooks=hooks))[-1].chances["add"] for hooks in (bug, Hooks())]
    assert ends[0] == pytest.approx(ends[1], abs=5e-3) and ends[0] > 0.48


def test_under_sgd_too_the_first_objective_learns_with_the_sum_alone(page):
    settings = {"sampling": Sampling(prompts=4), "rounds": 2, "exam": True, "device": "cpu"}
    settings |= {"optimizer": "sgd", "lr": 0.02}
    bug = Hooks(inner_update=partial(page["update_with"], page["write"]))
    by_bug, by_sum = (list(train(("add", "copy"), **settings, hooks=hooks)) for hooks in (bug, Hooks()))
    assert by_bug[-1].chances["add"] - by_bug[0].chances["add"] < 0.01
    assert by_sum[-1].chances["add"] - by_sum[0].chances["add"] > 0.05


@pytest.mark.parametrize("decay, moves", [(0.0, False), (0.01, True)])
def test_a_zero_gradient_stops_adamw_unless_it_has_a_decay_or_a_momentum(decay, moves):
    """The page's account of 0.000: averages that began at 0, and `train`'s optimizer without a decay."""
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


@pytest.mark.parametrize("seed", [5, 17])
def test_the_solution_names_the_unseen_logs_of_other_seeds_and_a_guess_hears_which_it_missed(page, seed):
    bug = partial(page["update_with"], page["write"])
    where = {"policy": "tiny", "device": "cpu", "distance": page["distance"]}
    logs = look_alikes.unseen_logs(seed, bug, page["zero_grad_inside"], **where)
    assert judge(page["diagnosis"], logs)
    report = judge(lambda log: "healthy", logs)
    assert not report and report.seen == {"right": "2 of 12"} and "it says 'healthy', and it was" in report.hint


def test_a_run_that_died_gains_nothing_has_no_kl_and_its_box_stays_empty(page):
    def wrong(parameters, gradients):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = parameter.grad + gradient  # None + gradient

    frames = pictures.frames_of(page["fill"], wrong)
    assert set(frames) == {("add, copy", "zero_grad")}
    hooks = Hooks(inner_update=partial(page["update_with"], wrong))
    (run,) = side_by_side({"": {"task": ("add", "copy")}}, [0], rounds=1, exam=True, hooks=hooks)[""]
    assert not run.outcome and lab.gain(run) == 0 and math.isnan(lab.mean_kl(run))


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
