"""labkit.kl against enumeration over the vocabulary, torch.distributions, and float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, kl_divergence

from labkit.grpo import kl

UNBIASED = ("k1", "k3", "k3_clamped", "k3_linear_tail")
logits = st.lists(st.floats(-2, 2), min_size=5, max_size=5)


def pair(policy, reference):
    """Policy logits (a leaf) and reference logits, [1, 5], float64."""
    return (
        torch.tensor([policy], dtype=torch.float64, requires_grad=True),
        torch.tensor([reference], dtype=torch.float64),
    )


def expected(estimator, policy, reference):
    """E over the policy's own draws of the estimator and of its gradient, by summing over all symbols."""
    logp, ref_logp = policy.log_softmax(-1), reference.log_softmax(-1)
    terms = estimator(logp, ref_logp)
    weights = logp.exp().detach()
    (gradient,) = torch.autograd.grad((weights * terms).sum(), policy)
    return (weights * terms).sum().item(), gradient


def true_gradient(policy, reference, forward):
    """The gradient of KL(policy‖ref), or of KL(ref‖policy), by torch.distributions."""
    p, r = Categorical(logits=policy), Categorical(logits=reference)
    divergence = kl_divergence(p, r) if forward else kl_divergence(r, p)
    return torch.autograd.grad(divergence.sum(), policy)[0]


@given(logits, logits)
@settings(max_examples=50, deadline=None)
def test_exact_is_the_divergence_of_torch_distributions_in_value_and_gradient(policy, reference):
    p, r = pair(policy, reference)
    ours = kl.exact(p, r)
    theirs = kl_divergence(Categorical(logits=p), Categorical(logits=r))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours.sum(), p)[0], true_gradient(p, r, forward=True))


def test_exact_gives_a_forbidden_symbol_no_weight_and_no_nan():
    p = torch.tensor([0.0, 1.0, -math.inf], requires_grad=True)
    r = torch.tensor([0.5, 0.0, -math.inf])
    value = kl.exact(p, r)
    value.backward()
    torch.testing.assert_close(value, kl.exact(p[:2], r[:2]))
    assert p.grad[2] == 0 and p.grad.isfinite().all()
    assert kl.exact(torch.zeros(3), r) == math.inf


@pytest.mark.parametrize("name", UNBIASED)
@given(logits, logits)
@settings(max_examples=30, deadline=None)
def test_the_expected_value_is_the_divergence(name, policy, reference):
    p, r = pair(policy, reference)
    value, _ = expected(kl.estimators[name], p, r)
    assert value == pytest.approx(kl_divergence(Categorical(logits=p), Categorical(logits=r)).item(), abs=1e-9)


def test_k2_is_biased_as_a_value():
    p, r = pair([0.0, 1.0, 2.0, 0.0, -1.0], [1.0, 0.0, 0.0, 0.0, 0.0])
    assert expected(kl.k2, p, r)[0] > 1.05 * kl.exact(p, r).item()


@given(logits, logits)
@settings(max_examples=50, deadline=None)
def test_the_expected_gradient_is_zero_for_k1_the_policys_kl_for_k2_and_the_references_for_k3(policy, reference):
    p, r = pair(policy, reference)
    torch.testing.assert_close(expected(kl.k1, p, r)[1], torch.zeros_like(p))
    torch.testing.assert_close(expected(kl.k2, p, r)[1], true_gradient(p, r, forward=True))
    for estimator in (kl.k3, kl.k3_clamped, kl.k3_linear_tail):
        torch.testing.assert_close(expected(estimator, p, r)[1], true_gradient(p, r, forward=False))
    corrected = lambda logp, ref_logp: kl.k3(logp, ref_logp) * (logp - logp.detach()).exp()  # trl's; as the module says
    torch.testing.assert_close(expected(corrected, p, r)[1], true_gradient(p, r, forward=True))


@given(st.floats(-80, 80))
@settings(deadline=None)
def test_k3_is_never_negative_and_keeps_its_digits_near_zero(d):
    x = torch.tensor([d], dtype=torch.float32)
    value = kl.k3(torch.zeros(1), x)
    assert value >= 0
    if 1e-4 <= abs(d) <= 1:
        true = math.expm1(x.double().item()) - x.double().item()
        assert value.item() == pytest.approx(true, rel=2e-3)


@pytest.mark.parametrize(
    ("dtype", "holds", "overflows"),
    [(torch.float32, 88.72, 88.73), (torch.bfloat16, 88.5, 89.0), (torch.float16, 11.08, 11.1)],
)
def test_k3_overflows_where_the_module_says(dtype, holds, overflows):
    zero = torch.zeros(1, dtype=dtype)
    assert kl.k3(zero, torch.tensor([holds], dtype=dtype)).isfinite()
    assert not kl.k3(zero, torch.tensor([overflows], dtype=dtype)).isfinite()


@pytest.mark.parametrize("estimator", [kl.k3_clamped, kl.k3_linear_tail])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@given(d=st.floats(-100, 100))
@settings(max_examples=50, deadline=None)
def test_the_guarded_forms_are_finite_both_ways_and_equal_k3_within_the_limit(estimator, dtype, d):
    ref_logp = torch.tensor([d], dtype=dtype)
    logp = torch.zeros(1, dtype=dtype, requires_grad=True)
    value = estimator(logp, ref_logp, limit=4.0)
    value.backward()
    assert value.isfinite() and value >= 0 and logp.grad.isfinite()
    if d < 4:  # the whole lower side too
        other = torch.zeros(1, dtype=dtype, requires_grad=True)
        kl.k3(other, ref_logp).backward()
        assert torch.equal(value, kl.k3(logp, ref_logp)) and torch.equal(logp.grad, other.grad)


@given(st.floats(5.1, 100))
@settings(deadline=None)
def test_beyond_the_limit_the_clamp_is_dead_and_the_tail_pulls_back_with_its_largest_slope(d):
    slope = []
    for estimator in (kl.k3_clamped, kl.k3_linear_tail):
        logp = torch.zeros(1, requires_grad=True)
        estimator(logp, torch.tensor([d]), limit=5.0).backward()
        slope.append(logp.grad.item())
    assert slope[0] == 0
    assert slope[1] == pytest.approx(-math.expm1(5.0))


def test_a_limit_that_cannot_protect_the_dtype_is_refused():
    half = torch.zeros(2, dtype=torch.float16)
    for estimator in (kl.k3_clamped, kl.k3_linear_tail):
        with pytest.raises(ValueError, match=r"limit=20 does not protect torch.float16.*above 11.09"):
            estimator(half, half, limit=20)
        with pytest.raises(ValueError, match="limit=-1 .* expected a positive number of nats"):
            estimator(half, half, limit=-1)


def test_the_clamped_fraction_counts_only_tokens_that_count():
    ref = torch.tensor([[0.0, 11.0, -11.0, 50.0], [0.0, 9.0, 50.0, 50.0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    assert kl.clamped_fraction(torch.zeros(2, 4), ref, mask=mask) == pytest.approx(1 / 5)
    assert kl.clamped_fraction(torch.zeros(2, 4), ref) == pytest.approx(4 / 8)


def test_the_masked_mean_does_not_read_padding_in_value_or_gradient():
    x = torch.tensor([[1.0, math.nan], [3.0, math.inf]], requires_grad=True)
    mean = kl.masked_mean(x, torch.tensor([[1, 0], [1, 0]]))
    mean.backward()
    assert mean == 2 and x.grad.tolist() == [[0.5, 0], [0.5, 0]]
    assert kl.masked_mean(x, torch.zeros(2, 2)) == 0


def test_a_shape_that_would_broadcast_is_refused_by_name():
    with pytest.raises(ValueError, match=r"logp and ref_logp .* \[2, 3\] and \[2, 1\]"):
        kl.k3(torch.zeros(2, 3), torch.zeros(2, 1))
    with pytest.raises(ValueError, match=r"x and mask .* \[2, 3\] and \[3\]"):
        kl.masked_mean(torch.zeros(2, 3), torch.ones(3))


def kl_under(beta, steps=400):
    """Exact policy gradient on a six-symbol bandit, reward against a KL penalty; `beta` maps KL to beta."""
    reward = torch.tensor([1.0, 0.5, 0.0, 0.0, 0.0, -1.0])
    reference = torch.zeros(6)
    theta = torch.zeros(6, requires_grad=True)
    divergences, coefficient = [], beta(0.0)
    for _ in range(steps):
        divergence = kl.exact(theta, reference)
        objective = (theta.softmax(-1) * reward).sum() - coefficient * divergence
        (gradient,) = torch.autograd.grad(objective, theta)
        theta.data += 0.5 * gradient
        divergences.append(divergence.item())
        coefficient = beta(divergences[-1])
    return divergences


@pytest.mark.parametrize("start", [1e-3, 10.0])
def test_the_controller_brings_the_kl_into_its_band_and_keeps_it_there(start):
    settled = kl_under(kl.AdaptiveBeta(start).update)[-100:]
    assert all(0.015 < value < 0.075 for value in settled)
    assert 0.02 <= sum(settled) / len(settled) <= 0.06
    assert not 0.02 <= kl_under(lambda _: start)[-1] <= 0.06


def test_the_controller_stays_between_its_stops_and_refuses_what_cannot_work():
    controller = kl.AdaptiveBeta(1.0, minimum=0.5, maximum=2.0)
    assert [controller.update(value) for value in (math.nan, 0.04)] == [1.0, 1.0]
    assert controller.update(math.inf) == pytest.approx(1.2)
    assert [controller.update(1e30) for _ in range(9)][-1] == 2.0
    assert [controller.update(-1.0) for _ in range(30)][-1] == 0.5
    with pytest.raises(ValueError, match="AdaptiveBeta: target_low=0.1"):
        kl.AdaptiveBeta(target_low=0.1)
