"""The KL check passes right estimators, and finds bias, overflow, dead sides and wrong masks in the others.

The published formulas are rewritten here from trl 1.16 (grpo_trainer.py, rloo_trainer.py), verl (core_algos.py,
kl_penalty and kl_penalty_forward, commit 5b986366) and OpenRLHF (models/utils.py, compute_approx_kl, commits
02a26057 and 473f61bd). Where one fails, the finding is true: the table says which, and which knob it passes with.
"""

import functools

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

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


NO_CLAMP = "Likely exp(ref - cur) without a clamp"
DEAD = "the worst tokens are not pulled back. Likely the output is clamped"
TABLE = {  # formula: (passes as a value, or why not; passes as a loss, or why not; the knob with which it does)
    "trl k3": (trl_k3, None, NO_CLAMP, {"finite_to": 80}),
    "trl k3, corrected": (trl_corrected, None, NO_CLAMP, {"finite_to": 80}),
    "trl rloo k1": (trl_rloo, None, "expected gradient is zero", None),
    "verl k1": (published(verl, "k1"), None, "expected gradient is zero", None),
    "verl abs": (published(verl, "abs"), "It is |cur - ref|", "twice the total variation", None),
    "verl k2": (published(verl, "k2"), "It is k2", None, {}),
    "verl k3": (published(verl, "k3"), None, DEAD, {"alive_to": 2.6}),
    "verl k1+": (published(verl, "k1+"), None, None, {}),
    "verl k3+": (published(verl, "k3+"), None, None, {}),
    "OpenRLHF k1": (published(openrlhf, "k1", False), None, "expected gradient is zero", None),
    "OpenRLHF k2": (published(openrlhf, "k2", False), "It is k2", None, {}),
    "OpenRLHF k3": (published(openrlhf, "k3", False), None, NO_CLAMP, {"finite_to": 80}),
    "OpenRLHF k1, clamped": (published(openrlhf, "k1", True), None, "expected gradient is zero", None),
    "OpenRLHF k2, clamped": (published(openrlhf, "k2", True), "It is k2", "from d = 6 on", {"alive_to": 4.4}),
    "OpenRLHF k3, clamped": (
        published(openrlhf, "k3", True),
        None,
        "Likely a clamp after exp: backward multiplies its 0 by inf",
        {"alive_to": 2.6, "finite_to": 80},
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
        ("k3_clamped", True, True),
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
        lambda a, b: kl.k3_clamped(a, b).mean(),
        lambda a, b: kl.k3_clamped(a, b).sum(),
        lambda a, b: 0.001 * kl.k3_clamped(a, b).mean(),
        lambda a, b: kl.k2(a, b).mean(1),
        lambda a, b: kl.k2(a, b).sum(1, keepdim=True),
        lambda a, b: (kl.k2(a, b), {"kl": 0.1}),
        lambda a, b: kl.k2(a.double(), b.double()),
        lambda a, b: kl.k3_clamped(a.bfloat16(), b.bfloat16(), limit=20),
        lambda log_probs, reference, *, token_mask=None: kl.k2(log_probs, reference),
        straight_through_score,
        lambda a, b: kl.k3_clamped(a, b, limit=10.0),
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_dtypes_can_be_asked_for(dtype):
    assert kl_estimator(kl.k3_clamped, role="loss", dtype=dtype)
    assert kl_estimator(kl.k3, role="loss", dtype=torch.float64)  # exp(100) fits there


def test_half_precision_log_probs_are_found_to_be_deaf_to_small_differences():
    report = kl_estimator(lambda a, b: kl.k2(a.half().sub(3), b.half().sub(3)), role="loss")
    assert report, report  # float16 still tells 0.01 apart at -3 ...
    report = kl_estimator(lambda a, b: kl.k2(a.bfloat16().sub(9), b.bfloat16().sub(9)), role="loss")
    assert not report and "half precision" in report.hint, report  # ... bfloat16 does not at -9


def test_half_precision_is_held_to_five_percent_and_float32_to_less():
    slightly_off = lambda a, b: 1.02 * (a - b)
    assert not kl_estimator(slightly_off)
    assert kl_estimator(slightly_off, tolerance=0.03)
    assert kl_estimator(lambda a, b: slightly_off(a, b).half())
    assert not kl_estimator(lambda a, b: 1.1 * (a - b).half())


# Wrong, as a value ------------------------------------------------------------------------------------------


def report_fix(logp, ref):  # the field report's replacement for exp(d) - d - 1
    return (ref - logp).clamp(0, 10)


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (report_fix, "keeps only ref > cur"),
        (lambda a, b: b - a, "the sign is flipped"),
        (lambda a, b: -kl.k3(a, b), "the sign is flipped"),
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
        (trl_k3, ["Not finite from d = 89 on", "exp overflows at 88.7"]),
        (report_fix, ["Only tokens with ref > cur are pulled"]),
        (clamp_after_exp, ["backward multiplies its 0 by inf", "No gradient from d = 2.7 on"]),
        (lambda a, b: kl.k3_clamped(a, b).clamp(max=10), ["No gradient from d = 2.7 on"]),
        (lambda a, b: kl.k3_clamped(a, b, limit=5), ["No gradient from d = 6 on"]),
        (lambda a, b: -kl.k2(a, b), ["sign of the loss is flipped (a k2)"]),
        (lambda a, b: -kl.k3_clamped(a, b), ["sign of the loss is flipped (a k3)"]),
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


# Masks ------------------------------------------------------------------------------------------------------


def masked(estimator, move=lambda mask: mask, count=None):
    """A masked mean over tokens, with the mask moved, or the wrong count below."""

    def fn(logp, ref_logp, mask):
        moved = move(mask).float()
        below = moved.sum() if count is None else count(mask)
        return (estimator(logp, ref_logp) * moved).sum() / below

    return fn


def by_sequence(logp, ref_logp, completion_mask):
    per_token = kl.k3_clamped(logp, ref_logp) * completion_mask
    return (per_token.sum(1) / completion_mask.sum(1)).mean()


def late(mask):
    return torch.roll(mask, 1, 1)


def early(mask):
    return torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], 1)


@pytest.mark.parametrize(
    "right",
    [
        masked(kl.k3_clamped),
        by_sequence,
        lambda a, b, mask: kl.k3_clamped(a, b) * mask,
        lambda a, b, response_mask=None: kl.k3_clamped(a, b),  # left to the caller
        lambda a, b, mask: (kl.k3_clamped(a, b) * mask).sum(1) / mask.sum(1),
    ],
)
@pytest.mark.parametrize("role", ["value", "loss"])
def test_a_right_mask_passes(right, role):
    report = kl_estimator(right, role=role)
    assert report, report
    assert report.seen["mask"] == "given"


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (masked(kl.k3_clamped, late), "one position late"),
        (masked(kl.k3_clamped, early), "one position early"),
        (lambda a, b, mask: kl.k3_clamped(a, b) * late(mask), "one position late"),
        (lambda a, b, mask: kl.k3_clamped(a, b) * early(mask), "one position early"),
        (masked(kl.k3_clamped, torch.ones_like), "padding counts"),
        (masked(kl.k3_clamped, lambda mask: 1 - mask), "inverted"),
        (lambda a, b, mask: kl.k3_clamped(a, b) * (1 - mask), "inverted"),
        (masked(kl.k3_clamped, lambda mask: mask.any(0).long().expand_as(mask)), ""),  # as long as the longest row
    ],
)
@pytest.mark.parametrize("role", ["value", "loss"])
def test_a_wrong_mask_fails_with_its_own_cause(wrong, cause, role):
    report = kl_estimator(wrong, role=role)
    assert not report
    assert cause in report.hint, report


def test_a_mean_over_padded_positions_is_a_wrong_value():
    report = kl_estimator(masked(kl.k3, count=lambda mask: mask.numel()))
    assert not report and "padding included" in report.hint, report


# The check's own problem ------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("scale", [0.15, 1.0])
def test_the_batch_is_the_policy_and_the_divergences_are_those_of_torch_distributions(scale, with_mask):
    problem = Problem.make(scale, with_mask, torch.device("cpu"), torch.float64)
    p, r = Categorical(logits=problem.logits), Categorical(logits=problem.ref_logp)
    for t in range(problem.mask.shape[1]):
        counted = problem.tokens[problem.mask[:, t] == 1, t]
        if len(counted):
            share = torch.bincount(counted, minlength=6).double() / len(counted)
            torch.testing.assert_close(share, p.probs[t].detach())
    keep = problem.positions
    forward, backward = kl_divergence(p, r), kl_divergence(r, p)
    for ours, theirs in zip(problem.divergences(), (forward, backward), strict=True):
        torch.testing.assert_close(ours, theirs.detach()[keep])
    for ours, theirs in zip(problem.gradients(), (forward, backward), strict=True):
        torch.testing.assert_close(ours, torch.autograd.grad(theirs.sum(), problem.logits, retain_graph=True)[0][keep])


def test_the_far_error_shows_what_a_clamp_costs():
    assert abs(kl_estimator(kl.k3).seen["error_far"]) < 1e-3
    assert abs(kl_estimator(kl.k3_clamped).seen["error_far"]) < 1e-3
    assert kl_estimator(published(verl, "k3")).seen["error_far"] < -0.1  # it clamps the output at 10


def test_an_unknown_role_is_refused_by_name():
    with pytest.raises(ValueError, match=r"one of \['value', 'loss'\], got 'grad'"):
        kl_estimator(kl.k2, role="grad")
