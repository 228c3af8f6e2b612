"""The KL check passes right estimators, and finds bias, overflow and dead sides in the others.

The published formulas are rewritten here from trl 1.16 (grpo_trainer.py, rloo_trainer.py), verl (core_algos.py,
kl_penalty and kl_penalty_forward, commit 5b986366) and OpenRLHF (models/utils.py, compute_approx_kl, commits
02a26057 and 473f61bd). Where one fails, the finding is true: the table says which, and which knob it passes with.
"""

import functools
import math

import pytest
import torch
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional as F

from labkit import kl
from labkit.checks import kl_estimator
from labkit.checks.kl import Problem

# Published --------------------------------------------------------------------------------------------------


def trl_k3(logp, ref):  # GRPOTrainer, use_bias_correction_kl=False
    return torch.exp(ref - logp) - (ref - logp) - 1


def trl_corrected(logp, ref):  # the default: times the policy / old-policy ratio, which is 1 on-policy
    return trl_k3(logp, ref) * torch.exp(logp - logp.detach())


def trl_rloo(logp, ref):
    return logp - ref


def verl(kind, logp, ref):
    if kind.endswith("+"):  # the value of one, the gradient of k2
        forward, backward = verl(kind[:-1], logp, ref), 0.5 * (logp - ref).square()
        return backward - backward.detach() + forward.detach()
    if kind == "k1":
        return logp - ref
    if kind == "abs":
        return (logp - ref).abs()
    if kind == "k2":
        return 0.5 * (logp - ref).square()
    d = torch.clamp(ref - logp, min=-20, max=20)
    return torch.clamp(torch.exp(d) - d - 1, min=-10, max=10)


def openrlhf(kind, clamped, logp, ref):
    ratio = logp.float() - ref.float()
    ratio = {"k1": ratio, "k2": ratio**2 / 2.0, "k3": (-ratio).exp() - 1 - (-ratio)}[kind]
    return ratio.clamp(min=-10, max=10) if clamped else ratio


def published(family, *settings):
    return functools.partial(family, *settings)


NO_CLAMP = "Likely exp without a clamp"
DEAD = "the worst tokens are not pulled back. Likely the output is clamped"
TABLE = {  # formula: (passes as a value, or why not; passes as a loss, or why not; the knob with which it does)
    "trl k3": (trl_k3, None, NO_CLAMP, None),
    "trl k3, corrected": (trl_corrected, None, NO_CLAMP, None),
    "trl rloo k1": (trl_rloo, None, "expected gradient is zero", None),
    "verl k1": (published(verl, "k1"), None, "expected gradient is zero", None),
    "verl abs": (published(verl, "abs"), "It is |cur - ref|", "twice the total variation", None),
    "verl k2": (published(verl, "k2"), "It is k2", None, {}),
    "verl k3": (published(verl, "k3"), None, DEAD, {"alive_to": 2.6}),
    "verl k1+": (published(verl, "k1+"), None, None, {}),
    "verl k3+": (published(verl, "k3+"), None, None, {}),
    "OpenRLHF k1": (published(openrlhf, "k1", False), None, "expected gradient is zero", None),
    "OpenRLHF k2": (published(openrlhf, "k2", False), "It is k2", None, {}),
    "OpenRLHF k3": (published(openrlhf, "k3", False), None, NO_CLAMP, None),
    "OpenRLHF k1, clamped": (published(openrlhf, "k1", True), None, "expected gradient is zero", None),
    "OpenRLHF k2, clamped": (published(openrlhf, "k2", True), "It is k2", "from d = 4.99 on", {"alive_to": 4.4}),
    "OpenRLHF k3, clamped": (
        published(openrlhf, "k3", True),
        None,
        "Likely a clamp after exp: backward multiplies its 0 by inf",
        None,
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_each_published_formula_is_judged_as_its_mathematics_says(name):
    formula, value_flaw, loss_flaw, knobs = TABLE[name]
    for role, flaw in (("value", value_flaw), ("loss", loss_flaw)):
        report = kl_estimator(formula, role=role)
        assert bool(report) == (flaw is None), report
        assert (flaw or "") in report.hint, report
    if knobs is not None:
        report = kl_estimator(formula, role="loss", **knobs)
        assert report, report


def test_the_direction_is_named():
    for estimator, direction in ((kl.k2, "KL(policy‖ref)"), (kl.k3_clamped, "KL(ref‖policy)")):
        seen = kl_estimator(estimator, role="loss").seen
        assert seen["gradient_of"] == direction
        assert seen[f"cosine_{direction}"] > 0.9999
    assert kl_estimator(trl_corrected, role="loss").seen["gradient_of"] == "KL(policy‖ref)"
    assert kl_estimator(kl.k1, role="loss").seen["gradient_of"] == "neither"


# Our own, and every form of a right one ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "loss"),
    [
        ("k1", True, False),
        ("k2", False, True),
        ("k3", True, False),
        ("k3_clamped", True, False),  # at its default limit of 10 the slope is e^10
        ("k3_linear_tail", True, True),
    ],
)
def test_the_labs_own_estimators_are_what_their_docstrings_say(name, value, loss):
    assert bool(kl_estimator(kl.estimators[name], role="value")) == value
    assert bool(kl_estimator(kl.estimators[name], role="loss")) == loss


def straight_through_score(logp, ref):  # gradient of k2, not its value
    return (logp - ref).detach() * logp


@pytest.mark.parametrize(
    "loss",
    [
        lambda a, b: kl.k3_clamped(a, b, limit=5.0).mean(),
        lambda a, b: kl.k3_linear_tail(a, b).sum(),
        lambda a, b: 0.001 * kl.k3_linear_tail(a, b).mean(),
        lambda a, b: kl.k2(a, b).mean(1),
        lambda a, b: kl.k2(a, b).sum(1, keepdim=True),
        lambda a, b: (kl.k2(a, b), {"kl": 0.1}),
        lambda a, b: kl.k2(a.double(), b.double()),
        lambda a, b: kl.k3_clamped(a.bfloat16(), b.bfloat16(), limit=5),
        lambda log_probs, reference, *, token_mask=None: kl.k2(log_probs, reference),
        straight_through_score,
        lambda a, b: kl.k3_clamped(a, b, limit=5.0),
    ],
)
def test_a_right_loss_passes_whatever_it_returns(loss):
    report = kl_estimator(loss, role="loss")
    assert report, report


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (lambda a, b: kl.k1(a, b).mean().item(), "one number, float32"),
        (lambda a, b: kl.k3(a, b).mean(1), "per sequence, float32"),
        (lambda a, b: (kl.k3(a, b), None), "per token, float32"),
        (lambda a, b: kl.k3(a.double(), b.double()), "per token, float64"),
        (lambda a, b: kl.k3(a.bfloat16(), b.bfloat16()), "per token, bfloat16"),
        (lambda a, b: a.sub_(b), "per token, float32"),
    ],
)
def test_a_right_value_passes_whatever_its_form(value, form):
    report = kl_estimator(value)
    assert report, report
    assert report.seen["output"] == form


def test_half_precision_log_probs_are_found_to_be_deaf_to_small_differences():
    report = kl_estimator(lambda a, b: kl.k2(a.half().sub(3), b.half().sub(3)), role="loss")
    assert report, report  # float16 still tells 0.01 apart at -3 ...
    report = kl_estimator(lambda a, b: kl.k2(a.bfloat16().sub(9), b.bfloat16().sub(9)), role="loss")
    assert not report and "half precision" in report.hint, report  # ... bfloat16 does not at -9


def test_half_precision_is_held_to_five_percent_and_float32_to_less():
    slightly_off = lambda a, b: 1.02 * (a - b)
    assert not kl_estimator(slightly_off)
    assert kl_estimator(lambda a, b: slightly_off(a, b).half())
    assert not kl_estimator(lambda a, b: 1.1 * (a - b).half())


# Wrong, as a value ------------------------------------------------------------------------------------------


def report_fix(logp, ref):  # the field report's replacement for exp(d) - d - 1
    return (ref - logp).clamp(0, 10)


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (report_fix, "keeps only ref > cur"),
        (lambda a, b: b - a, "sign is flipped"),
        (lambda a, b: -kl.k3(a, b), "sign is flipped"),
        (lambda a, b: kl.k3(b, a), "arguments swapped"),
        (lambda a, b: torch.zeros_like(a), "returns zeros"),
        (lambda a, b: 0.0, "returns zeros"),
        (lambda a, b: (b - a).exp() - (b - a), "the `- 1`"),
        (lambda a, b: (b - a).exp() - 1, "the `- d`"),
        (lambda a, b: kl.k2(a, b), "It is k2"),
        (lambda a, b: (a - b) ** 2, "factor 1/2"),
        (lambda a, b: (a - b).abs(), "|cur - ref|"),
        (lambda a, b: (a - b) * a.exp(), "weighs with p once more"),
        (lambda a, b: (a - b).sum(), "the sum over all counted tokens"),
        (lambda a, b: (a - b).sum(1).mean(), "the sum over each sequence"),
        (lambda a, b: (a - b) / 0.6931, "in bits"),
        (lambda a, b: a.log() - b.log(), "read as probabilities"),
        (lambda a, b: 1.3 * (a - b), "1.3 times the KL"),
        (lambda a, b: (a - b)[:, 1:], "Likely a shift or a sum inside"),
    ],
)
def test_each_wrong_value_fails_with_its_own_cause(wrong, cause):
    report = kl_estimator(wrong, role="value")
    assert not report
    assert cause in report.hint, report


# Wrong, as a loss -------------------------------------------------------------------------------------------


def clamp_after_exp(logp, ref):
    return (torch.exp(ref - logp) - (ref - logp) - 1).clamp(max=10)


@pytest.mark.parametrize(
    ("wrong", "causes"),
    [
        (kl.k1, ["expected gradient is zero"]),
        (trl_k3, ["Not finite from d = 89 on", "overflows at 88.7"]),
        (report_fix, ["Only tokens with ref > cur are pulled"]),
        (clamp_after_exp, ["backward multiplies its 0 by inf", "No gradient from d = 2.7 on"]),
        (lambda a, b: kl.k3_clamped(a, b).clamp(max=10), ["No gradient from d = 2.7 on"]),
        (lambda a, b: kl.k3_clamped(a, b, limit=3), ["No gradient from d = 4 on"]),
        (lambda a, b: -kl.k2(a, b), ["sign of the loss is flipped"]),
        (lambda a, b: -kl.k3_clamped(a, b), ["sign of the loss is flipped"]),
        (lambda a, b: kl.k3_clamped(b, a), ["arguments swapped"]),
        (lambda a, b: (a - b).abs(), ["twice the total variation"]),
        (lambda a, b: torch.expm1((b - a).clamp(max=10)), ["pushed away from the reference", "Likely the `- d`"]),
        (lambda a, b: kl.k2(a, b).detach(), ["no gradient"]),
        (lambda a, b: 0 * a, ["Value and gradient are zero"]),
        (lambda a, b: kl.k3(a.half(), b.half()).float(), ["Not finite from d = 12 on", "11.09 in float16"]),
        (lambda a, b: kl.k2(a, b) * (b > a), ["in no pattern known here"]),
    ],
)
def test_each_wrong_loss_fails_with_its_own_causes(wrong, causes):
    report = kl_estimator(wrong, role="loss")
    assert not report
    assert all(cause in report.hint for cause in causes), report


def test_the_dead_sides_of_the_field_reports_fix_are_listed():
    seen = kl_estimator(report_fix, role="loss").seen
    assert seen["dead_at"] == [d for d in seen["dead_at"] if d < 0] and -0.01 in seen["dead_at"]
    assert kl_estimator(kl.k1, role="loss").seen["wrong_way_at"][0] == 0.01


# At the border ----------------------------------------------------------------------------------------------


def clamped_at(limit):
    return lambda a, b: kl.k3_clamped(a, b, limit=limit)


def where_tail(logp, ref_logp):  # the tangent beyond 5, but exp is still computed there: 0 * inf in backward
    d = ref_logp - logp
    slope = math.expm1(5.0)
    return torch.where(d > 5, slope * (d - 5) + slope - 5, torch.exp(d) - 1 - d)


@pytest.mark.parametrize("limit", [10, 20, 80])
def test_input_clamps_are_told_apart_by_their_slope(limit):
    report = kl_estimator(clamped_at(limit), role="loss")
    assert report.passed is False and f"Too steep: at d = {limit} " in report.hint, report
    assert "Clamp the input" in report.hint and "so clamp d at 5" in report.hint, report
    assert report.seen["steepest"] == pytest.approx(math.exp(limit), rel=1e-2)
    assert kl_estimator(clamped_at(limit), role="loss", steepest=math.exp(limit))


@pytest.mark.parametrize("limit", [5.0, 4.995])
def test_the_rule_is_met_by_a_clamp_at_5_with_a_word_on_what_it_costs(limit):
    report = kl_estimator(clamped_at(limit), role="loss")
    assert report and "No gradient from d = 5" in report.caution and "clamped_fraction" in report.caution, report
    assert report.seen["steepest"] == pytest.approx(math.exp(5), rel=0.02)
    beyond = kl_estimator(clamped_at(limit), role="loss", alive_to=10)
    assert not beyond and "No gradient from d = 5" in beyond.hint, beyond


@pytest.mark.parametrize(
    ("limit", "why"),
    [(5.3, "Too steep"), (5.5, "Too steep"), (6.0, "Too steep"), (4.9, "No gradient from d = 4.99 on")],
)
def test_a_clamp_just_beside_5_is_refused(limit, why):
    report = kl_estimator(clamped_at(limit), role="loss")
    assert report.passed is False and why in report.hint, report


def root_of_the_square(logp, ref_logp):
    return ((ref_logp - logp) ** 2).sqrt() ** 2 / 2


def behind_a_where(logp, ref_logp):
    d = ref_logp - logp
    return torch.where(d == 0, 0.0, d.abs() * (d / d.abs()).abs() * d.abs() / 2)


@pytest.mark.parametrize("estimator", [root_of_the_square, behind_a_where])
def test_a_gradient_that_is_nan_where_every_run_begins_is_refused(estimator):
    report = kl_estimator(estimator, role="loss")
    assert not report and report.seen["not_finite_at"] == [0] and "first update of every run" in report.hint, report


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


@pytest.mark.parametrize("estimator", [kl.k2, kl.k3_linear_tail, straight_through_score, published(verl, "k3+")])
def test_what_goes_on_pulling_with_a_bounded_slope_has_no_caution(estimator):
    report = kl_estimator(estimator, role="loss")
    assert report and not report.caution and report.seen["steepest"] < math.exp(5), report


@pytest.mark.parametrize(
    "twice",
    [
        lambda a, b: (a - b) ** 2,
        lambda a, b: (a - b).square().mean(),
        lambda a, b: ((a - b) ** 2).sum(),
        lambda a, b: ((a - b) ** 2).sum(1),
        lambda a, b: ((a - b) ** 2).half(),
        lambda a, b, mask: ((a - b) ** 2 * mask).sum() / mask.sum(),
        lambda a, b: 2 * kl.k3_linear_tail(a, b),
    ],
)
def test_d_squared_without_the_half_is_refused_as_twice_a_kl(twice):
    report = kl_estimator(twice, role="loss")
    assert report.passed is False and "its expected gradient is 2 times that of KL(" in report.hint, report
    assert "d² where k2 is d² / 2" in report.hint
    assert report.seen["times"] == pytest.approx(2, rel=0.02)


def test_a_smaller_factor_passes_with_a_caution_a_larger_one_does_not_and_sums_have_none():
    report = kl_estimator(lambda a, b: 5 * kl.k2(a, b), role="loss")
    assert report.passed is False and "is 5 times that of KL(" in report.hint, report
    report = kl_estimator(lambda a, b: 0.04 * kl.k2(a, b).mean(), role="loss")
    assert report and "0.04 times that of KL(policy‖ref)" in report.caution, report
    for sound in (lambda a, b: kl.k2(a, b).sum(), lambda a, b: kl.k2(a, b).sum(1)):
        report = kl_estimator(sound, role="loss")
        assert report and not report.caution, report


def test_a_clamp_is_blamed_only_where_everything_beyond_is_dead():
    def hole(logp, ref_logp):  # no pull between 3 and 4.5, and a pull beyond
        d = (ref_logp - logp).abs()
        return kl.k2(logp, ref_logp) * ((d < 3) | (d > 4.5))

    report = kl_estimator(hole, role="loss")
    assert not report and "there is one beyond" in report.hint and "clamped" not in report.hint, report
    dead = kl_estimator(lambda a, b: kl.k2(a, b).clamp(max=8), role="loss")
    assert not dead and "Likely the output is clamped" in dead.hint, dead


def test_a_third_parameter_without_a_default_gets_a_mask_of_ones():
    assert kl_estimator(lambda a, b, mask: ((a - b) * mask).sum() / mask.sum())
    assert kl_estimator(lambda a, b, mask: (kl.k2(a, b) * mask).sum(1) / mask.sum(1), role="loss")
    assert kl_estimator(lambda a, b, mask=None: kl.k1(a, b))


# The check's own problem ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.15, 1.0])
def test_the_batch_is_the_policy_and_the_divergences_are_those_of_torch_distributions(scale):
    problem = Problem.make(scale, torch.float64)
    p, r = Categorical(logits=problem.logits), Categorical(logits=problem.ref_logp)
    for t, drawn in enumerate(problem.tokens.T):
        torch.testing.assert_close(torch.bincount(drawn, minlength=6).double() / len(drawn), p.probs[t].detach())
    forward, backward = kl_divergence(p, r), kl_divergence(r, p)
    for ours, theirs in zip(problem.divergences(), (forward, backward), strict=True):
        torch.testing.assert_close(ours, theirs.detach())
    for ours, theirs in zip(problem.gradients(), (forward, backward), strict=True):
        torch.testing.assert_close(ours, torch.autograd.grad(theirs.sum(), problem.logits, retain_graph=True)[0])


def test_an_unknown_role_is_refused_by_name():
    with pytest.raises(ValueError, match=r"one of \['value', 'loss'\], got 'grad'"):
        kl_estimator(kl.k2, role="grad")
