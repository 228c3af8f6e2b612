"""Lesson 03: what its text says of k3 and of its fix, where no cell of it does."""

import inspect

import pytest
import torch
from cut import Page
from props import lesson_03 as lab

from labkit import checks, kl
from labkit.train import train


@pytest.fixture(scope="module")
def bug():
    return Page("03")["kl_as_written"]


@pytest.fixture(scope="module")
def fix():
    return Page("03")["kl_fixed"]


def slope(estimator, d):
    """How hard one token at each d is pulled to the reference, whose log-prob is 0."""
    d = torch.as_tensor(d, dtype=torch.float32)
    logp = (-d).clone().requires_grad_()
    (by_logp,) = torch.autograd.grad(estimator(logp[None], torch.zeros(1, len(d))).sum(), logp)
    return -by_logp


def test_the_check_accepts_the_fix_and_refuses_k3_and_the_reports_second_clamp(bug, fix):
    def reports(logp, ref_logp):
        return (ref_logp - logp).clamp(-10, 10).clamp(0, 10)

    assert checks.kl_estimator(fix, role="loss")
    assert checks.kl_estimator(bug)  # as an estimate it is sound
    for estimator in (bug, reports):
        assert not checks.kl_estimator(estimator, role="loss")
    assert "Not finite" in checks.kl_estimator(kl.k3, role="loss").caution  # published, and so it passes with a name
    assert not checks.kl_estimator(kl.k3, role="loss", steepest=5)
    assert not checks.kl_estimator(reports)
    assert slope(reports, [-1.0, -5.0]).abs().max() == 0


def test_the_fix_is_trains_default(fix):
    logp, ref_logp = torch.randn(2, 4, 3)
    assert torch.equal(inspect.signature(train).parameters["kl"].default(logp, ref_logp), fix(logp, ref_logp))


def test_the_bugs_slope_is_steep_until_its_clamp_and_k3_at_3_is_16(bug):
    assert slope(bug, [3.0, 8.0, 9.99, 10.01]).tolist() == pytest.approx([19.09, 2979.96, 21806.3, 0.0], rel=1e-3)
    assert slope(bug, [-0.5, -5.0, -50.0]).abs().max() <= 1
    assert kl.k3(torch.tensor([[-3.0]]), torch.zeros(1, 1)).item() == pytest.approx(16.1, abs=0.05)


def test_a_clamp_behind_exp_is_finite_forward_and_nan_backward():
    """OpenRLHF's until PR 1335; verl's clamp of d to ±20 takes the NaN away, leaves no pull from d = 2.61 on, and so a
    slope of at most 12.6."""

    def output_clamp(logp, ref_logp):
        d = ref_logp - logp
        return (d.exp() - d - 1).clamp(max=10)

    def verls(logp, ref_logp):
        return output_clamp(logp.clamp(min=-20), ref_logp)

    assert torch.isnan(slope(output_clamp, [100.0])).all()
    assert slope(verls, [2.62, 2.7, 15.0]).tolist() == [0, 0, 0]
    assert slope(verls, torch.arange(-19, 19, 0.001)).max().item() == pytest.approx(12.6, abs=0.05)


def test_the_slope_of_ratio_times_k3_is_minus_ratio_times_d_token_by_token():
    d, old_logp = torch.linspace(-3, 8, 50), -0.5
    of_both = slope(lambda logp, ref_logp: (logp - old_logp).exp() * kl.k3(logp, ref_logp), d)
    torch.testing.assert_close(of_both, (-d - old_logp).exp() * d, rtol=1e-3, atol=1e-4)


def test_a_walk_ends_where_update_2_ends_and_under_k3_the_others_leave_and_under_k2_they_stay(bug, fix):
    """The ends: the same step, taken by the optimizer."""
    k3 = lab.walk_along_update_2(bug, 0, [0, 0.3, 1], device="cpu")
    k2 = lab.walk_along_update_2(fix, 0, [0, 1], device="cpu")
    _, (_, second), (part, third) = lab.updates_of(bug, 0, rounds=1, mu=3, device="cpu")
    rare = (part.ref_logp - second > 2) & part.mask.bool()
    for row, logp in ((k3[0], second), (k3[2], third)):
        assert row["rare"] == pytest.approx((part.ref_logp - logp)[rare].mean().item(), abs=1e-3)
    assert {**k3[0], "norm": 0} == {**k2[0], "norm": 0}
    assert abs(k3[1]["rare"]) < 0.5 < 2 < k3[0]["rare"] and abs(k3[1]["others"]) < 0.1
    assert k3[2]["rare"] < -0.3 and k3[2]["others"] > 0.2
    assert 0 < k2[1]["rare"] < k2[0]["rare"] and abs(k2[1]["others"]) < 0.1


def test_a_lost_policy_has_no_gradient_under_any_kl():
    logits = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)  # float32: probabilities of exactly 1 and 0
    logp = logits.log_softmax(-1)[:, :1]
    for estimator in (kl.k2, kl.k3):
        (gradient,) = torch.autograd.grad(estimator(logp, torch.tensor([[-5.0]])).sum(), logits, retain_graph=True)
        assert not gradient.any()
