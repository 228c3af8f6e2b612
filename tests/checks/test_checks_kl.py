"""The KL check passes right estimators, and finds bias, overflow and dead sides in the others.

The published formulas are rewritten here from trl 1.16 (grpo_trainer.py, rloo_trainer.py), verl (core_algos.py,
kl_penalty and kl_penalty_forward, commit 5b986366) and OpenRLHF (models/utils.py, compute_approx_kl, commits
02a26057 and 473f61bd). Where one fails, the finding is true: the table says which, and which knob it passes with.
"""

import math

import pytest
import torch
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional as F

from labkit.checks import kl_estimator
from labkit.checks.kl import Problem
from labkit.grpo import kl

# Published --------------------------------------------------------------------------------------------------


def verl_k3(logp, ref):
    d = torch.clamp(ref - logp, min=-20, max=20)
    return torch.clamp(torch.exp(d) - d - 1, min=-10, max=10)


NO_CLAMP = "Not finite from d = 89 on. Likely exp without a clamp (it overflows at 88.7 in float32"
DEAD = "the worst tokens are not pulled back. Likely the output is clamped"
NEITHER = "not along that of either KL. Likely k3 with its arguments swapped"
AFTER_EXP = "Likely a clamp after exp: backward multiplies its 0 by inf"
K2 = "1.15 times is k2"
TABLE = {  # formula, why it fails as a value, if it does; as a loss; the knob with which it passes as a loss
    # GRPOTrainer with use_bias_correction_kl=False, and without: times policy / old policy, which is 1 on-policy
    "trl k3": (lambda p, r: torch.exp(r - p) - (r - p) - 1, None, NO_CLAMP, None),
    "trl corrected": (lambda p, r: kl.k3(p, r) * torch.exp(p - p.detach()), None, NO_CLAMP, None),
    "verl k3": (verl_k3, None, DEAD, {"alive_to": 2.6}),
    # the value of one, the gradient of k2
    "verl k3+": (lambda p, r: kl.k2(p, r) - kl.k2(p, r).detach() + verl_k3(p, r).detach(), None, None, {}),
    "openrlhf k2": (lambda p, r: kl.k2(p, r).clamp(-10, 10), K2, "from d = 4.99 on", {"alive_to": 4.4}),
    "openrlhf k3": (lambda p, r: kl.k3(p, r).clamp(-10, 10), None, AFTER_EXP, None),
    "k1": (kl.k1, None, "expected gradient is zero", None),
    "k2": (kl.k2, K2, None, {}),
    "k3_clamped": (kl.k3_clamped, None, "Too steep", None),  # at its default limit of 10 the slope is e^10
    "k3_linear_tail": (kl.k3_linear_tail, None, None, {}),
}


NAMED = {
    "trl k3": "as TRL and torchtune have it",
    "trl corrected": "times the ratio",
    "verl k3": "verl's low_var_kl",
    "openrlhf k2": "OpenRLHF's k2",
    "openrlhf k3": "OpenRLHF's k3",
}


@pytest.mark.parametrize("name", TABLE)
def test_each_published_formula_is_judged_as_its_mathematics_says(name):
    formula, value_flaw, loss_flaw, knobs = TABLE[name]
    for role, flaw in (("value", value_flaw), ("loss", loss_flaw)):
        report = kl_estimator(formula, role=role)
        named = role == "loss" and name in NAMED and flaw is not None
        assert bool(report) == (flaw is None or named), report
        assert (flaw or "") in (report.caution if named else report.hint), report
        if named:  # with a limit of one's own it is refused
            assert NAMED[name] in report.caution
            assert flaw in kl_estimator(formula, role=role, alive_to=5.0, steepest=math.exp(5)).hint
    if knobs is not None:
        report = kl_estimator(formula, role="loss", **knobs)
        assert report, report


def test_the_direction_is_named():
    for estimator, direction in ((kl.k2, "KL(policy‖ref)"), (kl.k3_clamped, "KL(ref‖policy)")):
        seen = kl_estimator(estimator, role="loss").seen
        assert seen["gradient_of"] == direction and seen[f"cosine_{direction}"] > 0.9999
    assert kl_estimator(kl.k1, role="loss").seen["gradient_of"] == "neither"
    dead = kl_estimator(report_fix, role="loss").seen["dead_at"]
    assert -0.01 in dead and max(dead) < 0


# Our own, and every form of a right one ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        kl.k2,
        TABLE["verl k3+"][0],
        lambda a, b: kl.k3_linear_tail(a, b).sum(),
        lambda a, b: kl.k2(a, b).mean(1),
        lambda a, b: (kl.k2(a, b), {"kl": 0.1}),
        lambda a, b: kl.k2(a.double(), b.double()),
        lambda a, b: kl.k3_linear_tail(a.bfloat16(), b.bfloat16()),
        lambda log_probs, reference, *, token_mask=None: kl.k2(log_probs, reference),
        lambda a, b: kl.k2(a.half().sub(3), b.half().sub(3)),  # float16 still tells 0.01 apart there
        lambda a, b: kl.k2(a, b).sum(),
        lambda a, b: (a - b).detach() * a,  # the gradient of k2, and not its value
    ],
)
def test_a_right_loss_passes_whatever_it_returns(loss):
    report = kl_estimator(loss, role="loss")
    assert report and not report.caution and report.seen["steepest"] < 1.05 * math.exp(5), report


@pytest.mark.parametrize(
    "value",
    [
        lambda a, b: kl.k1(a, b).mean().item(),
        lambda a, b: kl.k3(a, b).mean(1),
        lambda a, b: (kl.k3(a, b), None),
        lambda a, b: kl.k3(a.double(), b.double()),
        lambda a, b: kl.k3(a.bfloat16(), b.bfloat16()),
        lambda a, b: a.sub_(b),
        lambda a, b: 1.02 * (a - b).half(),
        lambda a, b, mask=None: kl.k1(a, b),
    ],
)
def test_a_right_value_passes_whatever_its_form(value):
    report = kl_estimator(value)
    assert report, report


# Wrong ------------------------------------------------------------------------------------------------------


def report_fix(logp, ref):  # the field report's replacement for exp(d) - d - 1
    return (ref - logp).clamp(0, 10)


def behind_a_where(logp, ref_logp):
    d = ref_logp - logp
    return torch.where(d == 0, 0.0, d.abs() * (d / d.abs()).abs() * d.abs() / 2)


def clamped_at(limit):
    return lambda a, b: kl.k3_clamped(a, b, limit=limit)


@pytest.mark.parametrize(
    ("wrong", "times"),
    [
        (report_fix, ""),
        (lambda a, b: b - a, "-1 "),
        (lambda a, b: torch.zeros_like(a), "0 "),
        (lambda a, b: (a - b) ** 2, "2.3 "),
        (lambda a, b: (a - b).sum(), "256 "),
        (lambda a, b: (a - b).sum(1).mean(), "4 "),
        (lambda a, b: 1.02 * (a - b), "1.02 "),
        (lambda a, b: 1.1 * (a - b).half(), "1.1 "),
        (lambda a, b: a.log() - b.log(), "NaN "),
    ],
)
def test_each_wrong_value_fails_and_how_far_it_is_off_is_said(wrong, times):
    report = kl_estimator(wrong, role="value")
    assert report.passed is False and f"Its mean is {times}" in report.hint, report
    assert "Likely a shift or a sum inside" in kl_estimator(lambda a, b: (a - b)[:, 1:]).hint


@pytest.mark.parametrize(
    ("wrong", "causes"),
    [
        (report_fix, [NEITHER]),
        (clamped_at(4.9), ["No gradient from d = 4.99 on"]),
        (clamped_at(5.3), ["Too steep"]),
        (lambda a, b: kl.k2(a, b) * (((b - a).abs() < 3) | ((b - a).abs() > 4.5)), ["there is one beyond"]),
        (lambda a, b: -kl.k2(a, b), ["sign of the loss is flipped"]),
        (lambda a, b: kl.k3_clamped(b, a), [NEITHER]),
        (lambda a, b: (a - b).abs(), [NEITHER]),
        (lambda a, b: torch.expm1((b - a).clamp(max=10)), ["pushed away from the reference", "Likely the `- d`"]),
        (lambda a, b: kl.k2(a, b).detach(), ["no gradient"]),
        (lambda a, b: 0 * a, ["Value and gradient are zero"]),
        (lambda a, b: kl.k3(a.half(), b.half()).float(), ["Not finite from d = 12 on", "11.09 in float16"]),
        (lambda a, b: kl.k2(a.bfloat16().sub(9), b.bfloat16().sub(9)), ["half precision"]),
        (lambda a, b: kl.k2(a, b) * (b > a), [NEITHER]),
        (behind_a_where, ["first update of every run"]),
        (lambda a, b: 5 * kl.k2(a, b), ["is 5 times that of KL("]),
        (lambda a, b: (a - b) ** 2, ["is 2 times that of KL(", "d² where k2 is d² / 2"]),
        (lambda a, b: ((a - b) ** 2).sum(1), ["is 2 times that of KL("]),
        (lambda a, b: 2 * kl.k3_linear_tail(a, b), ["is 2 times that of KL("]),
    ],
)
def test_each_wrong_loss_fails_with_its_own_causes(wrong, causes):
    report = kl_estimator(wrong, role="loss")
    assert report.passed is False and all(cause in report.hint for cause in causes), report


# At the border ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [10, 80])
def test_input_clamps_are_told_apart_by_their_slope(limit):
    report = kl_estimator(clamped_at(limit), role="loss")
    assert report.passed is False and f"Too steep: at d = {limit} " in report.hint, report
    assert "or clamp d at 5" in report.hint, report
    assert report.seen["steepest"] == pytest.approx(math.exp(limit), rel=1e-2)


@pytest.mark.parametrize("limit", [5.0, 4.995])
def test_the_rule_is_met_by_a_clamp_at_5_with_a_word_on_what_it_costs(limit):
    report = kl_estimator(clamped_at(limit), role="loss")
    assert report and "No gradient from d = 5" in report.caution and "clamped_fraction" in report.caution, report
    assert report.seen["steepest"] == pytest.approx(math.exp(5), rel=0.02)
    beyond = kl_estimator(clamped_at(limit), role="loss", alive_to=10)
    assert not beyond and "No gradient from d = 5" in beyond.hint, beyond


def test_the_way_out_of_too_steep_passes_the_same_check():
    tight = {"role": "loss", "steepest": 5.0, "alive_to": 10.0}
    for steep in (kl.k2, kl.k3):
        assert "huber_loss(logp, ref_logp, reduction='none', delta=5)" in kl_estimator(steep, **tight).hint
    assert kl_estimator(lambda p, r: F.huber_loss(p, r, reduction="none", delta=5.0), **tight)


@pytest.mark.parametrize("steepest", [50.0, 1000.0, math.exp(10)])
def test_another_limit_moves_the_clamp_that_passes(steepest):
    at = math.log(steepest)
    assert kl_estimator(clamped_at(at), role="loss", steepest=steepest, alive_to=at)
    report = kl_estimator(clamped_at(1.12 * at), role="loss", steepest=steepest, alive_to=at)
    assert not report and "Too steep" in report.hint, report
    with pytest.raises(ValueError, match="steepest must be above 0"):
        kl_estimator(kl.k2, role="loss", steepest=0)


def test_a_smaller_factor_passes_with_a_caution():
    report = kl_estimator(lambda a, b: 0.04 * kl.k2(a, b).mean(), role="loss")
    assert report and "0.04 times that of KL(policy‖ref)" in report.caution, report


# The check's own problem ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.15, 1.0])
def test_the_batch_is_the_policy_and_the_divergences_are_those_of_torch_distributions(scale):
    problem = Problem.make(scale, torch.float64)
    p, r = Categorical(logits=problem.logits), Categorical(logits=problem.ref_logp)
    for t, drawn in enumerate(problem.tokens.T):
        torch.testing.assert_close(torch.bincount(drawn, minlength=6).double() / len(drawn), p.probs[t].detach())
    forward, backward = kl_divergence(p, r), kl_divergence(r, p)
    torch.testing.assert_close(problem.divergence(), forward.detach())
    for ours, theirs in zip(problem.gradients(), (forward, backward), strict=True):
        torch.testing.assert_close(ours, torch.autograd.grad(theirs.sum(), problem.logits, retain_graph=True)[0])


def test_an_unknown_role_is_refused_by_name():
    with pytest.raises(ValueError, match=r"one of \['value', 'loss'\], got 'grad'"):
        kl_estimator(kl.k2, role="grad")


def test_a_kl_that_takes_the_mask_and_returns_a_mean_is_judged():
    def masked(logp, ref_logp, mask):
        return (kl.k2(logp, ref_logp) * mask).sum() / mask.sum()

    assert kl_estimator(masked, role="loss")
    assert kl_estimator(lambda logp, ref, *, mask=None: (kl.k3(logp, ref) * mask).sum() / mask.sum())
