"""Lesson 03: what its text says of k3, k2 and verl's clamp where no cell of it does; the judges of its exercises."""

import pytest
import torch
from cut import Page
from props import diagnosis
from props import lesson_03 as lab

from labkit import checks
from labkit.grpo import kl


@pytest.fixture(scope="module")
def page():
    return Page("03")


def test_as_a_loss_the_check_accepts_k2_and_refuses_k3_which_is_sound_as_an_estimate(page):
    assert checks.kl_estimator(page["k2"], role="loss")
    assert checks.kl_estimator(page["k3"]) and not checks.kl_estimator(page["k3"], role="loss")


def test_the_pages_solution_is_labkits_k2(page):
    logp, ref_logp = torch.randn(2, 4, 3)
    torch.testing.assert_close(page["k2"](logp, ref_logp), kl.k2(logp, ref_logp))


def test_k3_is_steep_up_to_its_clamp_and_flat_beyond_and_verls_is_flat_where_its_value_is_10(page):
    bug = page["k3"]
    slopes = [lab.slope_at(bug, d) for d in (3.0, 9.99, 10.01, 50.0)]
    assert slopes == pytest.approx([19.09, 21806.3, 0.0, 0.0], rel=1e-3)
    verl = page["verl_low_var_kl"]
    assert lab.slope_at(verl, 2.6) > 12 and lab.slope_at(verl, 2.62) == lab.slope_at(verl, 15.0) == 0


def test_the_slope_of_k3_times_the_ratio_is_the_ratio_times_d():
    d, old_logp = 2.5, -0.5
    logp = torch.tensor([[-d]], requires_grad=True)
    term = (logp - old_logp).exp() * kl.k3(logp, torch.zeros(1, 1))
    (by_logp,) = torch.autograd.grad(term.sum(), logp)
    ratio = torch.tensor(-d - old_logp).exp().item()
    assert -by_logp.item() == pytest.approx(ratio * d, rel=1e-4)


def test_a_lost_policy_has_no_gradient_under_any_kl():
    logits = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)  # float32: probabilities of exactly 1 and 0
    logp = logits.log_softmax(-1)[:, :1]
    for estimator in (kl.k2, kl.k3):
        (gradient,) = torch.autograd.grad(estimator(logp, torch.tensor([[-5.0]])).sum(), logits, retain_graph=True)
        assert not gradient.any()


def wrong_way(logp, ref_logp):
    return -(ref_logp - logp).square() / 2


WRONG = {
    "At d = 0.5 the slope is 0.649. It should be 0.5": kl.k3,
    "At d = 0.05 the slope is -0.05. It should be 0.05": wrong_way,
    "At d = 0.05 the slope is 1. It should be 0.05": lambda logp, ref_logp: (ref_logp - logp).abs(),
    "At d = 3 the slope is 0. It should pull": lambda a, b: (b - a).clamp(-2, 2).square() / 2,
    "At d = -0.5 the slope is 0. It should be -0.5": lambda a, b: (b - a).clamp(min=0).square() / 2,
}


@pytest.mark.parametrize("words", WRONG)
def test_a_slope_is_judged_on_both_sides_near_and_far(page, words):
    assert lab.judge_slope(page["k2"], most=lambda d: d) and lab.judge_slope(page["huber"], most=lambda d: 1)
    assert not lab.judge_slope(page["k2"], most=lambda d: 1)
    report = lab.judge_slope(WRONG[words], most=lambda d: d)
    assert not report and words in report.hint.replace("is -0.", "is 0.", report.hint.count("is -0. ")), report.hint


def test_a_diagnosis_that_names_all_but_one_hears_which(page):
    logs = [("slope", {"KL of update 1": 0.0, "highest KL": 1e4, "highest KL, β = 1e-8": 0.5})] * 2
    logs.append(("healthy", {"KL of update 1": 0.0, "highest KL": 0.3, "highest KL, β = 1e-8": 15.0}))
    assert diagnosis.judge(page["diagnosis"], logs)
    report = diagnosis.judge(lambda log: "slope", logs)
    assert not report and report.seen == {"right": "2 of 3"} and "Run 3: it says 'slope', and it was" in report.hint
