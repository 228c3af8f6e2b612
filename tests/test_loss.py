import pytest
import torch

from labkit import loss


def pieces(seed=0, b=6, t=5):
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand(b, t, generator=g) * 3
    return (old + torch.randn(b, t, generator=g) * 0.4).requires_grad_(), old, torch.randn(b, generator=g)


def test_the_loss_and_its_gradient_equal_those_of_trls_grpo_trainer():
    """Reference: trl's GRPOTrainer._compute_loss arithmetic, by its published lines (trl 1.16, loss_type 'grpo')."""
    logp, old, adv = pieces()
    ours = loss.grpo(logp, old, adv, clip=0.2).loss
    (g_ours,) = torch.autograd.grad(ours.sum(), logp, retain_graph=True)
    coef_1 = torch.exp(logp - old)
    coef_2 = torch.clamp(coef_1, 1 - 0.2, 1 + 0.2)
    theirs = -torch.min(coef_1 * adv.unsqueeze(1), coef_2 * adv.unsqueeze(1))
    (g_theirs,) = torch.autograd.grad(theirs.sum(), logp)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(g_ours, g_theirs)


def test_on_policy_the_gradient_is_the_policy_gradient():
    """At ratio 1 the gradient of the loss in logp is minus the advantage, token by token."""
    _, old, adv = pieces()
    logp = old.clone().requires_grad_()
    loss.grpo(logp, old, adv).loss.sum().backward()
    torch.testing.assert_close(logp.grad, -adv[:, None].expand_as(old))


def test_the_clip_leaves_negative_advantages_unbounded_and_dual_clip_does_not():
    old, logp, adv = torch.zeros(1, 1), torch.full((1, 1), 8.0), torch.tensor([-1.0])
    assert loss.grpo(logp, old, adv).loss.item() == pytest.approx(2981, rel=1e-3)
    bounded = loss.grpo(logp, old, adv, dual_clip=3.0)
    assert bounded.loss.item() == 3.0 and bounded.clipped.all()
    assert loss.grpo(logp, old, adv, log_ratio_max=5.0).loss.item() == pytest.approx(148.4, rel=1e-3)


def test_clipped_tokens_are_exactly_those_without_gradient():
    logp, old, adv = pieces(3, 40, 9)
    part = loss.grpo(logp, old, adv, clip=0.1)
    part.loss.sum().backward()
    assert torch.equal(part.clipped, logp.grad == 0) and 0 < part.clipped.float().mean() < 1


def test_micro_batches_of_unequal_length_add_up_to_the_whole_batch():
    values, mask = torch.randn(4, 7), (torch.rand(4, 7) > 0.4).long()
    whole = loss.token_mean(values, mask, float(mask.sum()))
    parts = sum(loss.token_mean(values[i:j], mask[i:j], float(mask.sum())) for i, j in ((0, 1), (1, 4)))
    torch.testing.assert_close(whole, values[mask.bool()].mean())
    torch.testing.assert_close(parts, whole)


def test_a_masked_nan_does_not_reach_the_loss_or_its_gradient():
    values = torch.tensor([[1.0, float("nan")]], requires_grad=True)
    total = loss.token_mean(values, torch.tensor([[1, 0]]), 1.0)
    total.backward()
    assert total.item() == 1.0 and values.grad.tolist() == [[1.0, 0.0]]


def test_mismatched_shapes_are_named():
    with pytest.raises(ValueError, match=r"\[B, T\]"):
        loss.grpo(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3))
