import pytest
import torch

from labkit.grpo import loss, policy


def pieces(seed=0, b=6, t=5):
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand(b, t, generator=g) * 3
    return (old + torch.randn(b, t, generator=g) * 0.4).requires_grad_(), old, torch.randn(b, generator=g)


@pytest.mark.parametrize(("clip", "low", "high"), [(0.2, 0.8, 1.2), ((0.2, 0.28), 0.8, 1.28)])
def test_the_loss_and_its_gradient_equal_those_of_trls_grpo_trainer(clip, low, high):
    """Reference: trl's GRPOTrainer._compute_loss arithmetic, by its published lines (trl 1.16, loss_type 'grpo')."""
    logp, old, adv = pieces(2, 40, 9)
    part = loss.grpo(logp, old, adv, clip=clip)
    (gradient,) = torch.autograd.grad(part.loss.sum(), logp)
    coef_1 = torch.exp(logp - old)
    coef_2 = torch.clamp(coef_1, low, high)
    theirs = -torch.min(coef_1 * adv.unsqueeze(1), coef_2 * adv.unsqueeze(1))
    (expected,) = torch.autograd.grad(theirs.sum(), logp)
    torch.testing.assert_close(part.loss, theirs)
    torch.testing.assert_close(gradient, expected)
    assert torch.equal(part.clipped, gradient == 0) and 0 < part.clipped.float().mean() < 1


def test_the_clip_leaves_negative_advantages_unbounded_and_a_clamp_of_the_log_ratio_bounds_them():
    old, logp, adv = torch.zeros(1, 1), torch.full((1, 1), 8.0), torch.tensor([-1.0])
    assert loss.grpo(logp, old, adv).loss.item() == pytest.approx(2981, rel=1e-3)
    assert loss.grpo(logp, old, adv, log_ratio_max=5.0).loss.item() == pytest.approx(148.4, rel=1e-3)


@pytest.mark.parametrize("reduce", ["token_mean", "sequence_mean"])
def test_micro_batches_of_unequal_length_add_up_to_the_whole_batch_and_padding_is_not_read(reduce):
    values, mask = torch.randn(4, 7), (torch.rand(4, 7) > 0.4).long()
    mask[:, 0] = 1
    rows = [row[counts.bool()] for row, counts in zip(values, mask, strict=True)]
    if reduce == "token_mean":
        expected, size = torch.cat(rows).mean(), float(mask.sum())
    else:
        expected, size = torch.stack([row.mean() for row in rows]).mean(), 4
    values = values.masked_fill(mask == 0, float("nan")).requires_grad_()
    mean = getattr(loss, reduce)
    parts = sum(mean(values[i:j], mask[i:j], size) for i, j in ((0, 1), (1, 4)))
    torch.testing.assert_close(parts, expected)
    (gradient,) = torch.autograd.grad(parts, values)
    assert gradient.isfinite().all() and not gradient[mask == 0].any()


def sequences(seed=0, b=8, t=6, spread=1e-3):
    """Completions of unequal length near the old policy, so that the narrow range clips some of them."""
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand(b, t, generator=g) * 3
    logp = (old + torch.randn(b, t, generator=g) * spread).requires_grad_()
    mask = (torch.arange(t) < torch.randint(1, t + 1, (b, 1), generator=g)).long()
    return logp, old, torch.randn(b, generator=g), mask


def trls_loss(tmp_path, loss_type, prompts, tokens, mask, old, advantages, **config):
    """(loss, gradients of all parameters, log-probs) of trl's own GRPOTrainer on a tiny policy."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    loaded = policy.load("tiny", "cpu")
    sizes = {"per_device_train_batch_size": len(tokens), "num_generations": len(tokens), "beta": 0.0}
    quiet = {"bf16": False, "report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    trainer = trl.GRPOTrainer(
        model=loaded.model,
        processing_class=loaded.tokenizer,
        args=trl.GRPOConfig(str(tmp_path), loss_type=loss_type, **sizes, **quiet, **config),
        reward_funcs=lambda completions, **_: [0.0 for _ in completions],
        train_dataset=datasets.Dataset.from_dict({"prompt": ["12+34="]}),
    )
    trainer.current_gradient_accumulation_steps = 1
    ids, prompt_mask = prompts
    inputs = {"prompt_ids": ids, "prompt_mask": prompt_mask, "completion_ids": tokens, "completion_mask": mask}
    inputs |= {"advantages": advantages, "old_per_token_logps": old, "num_items_in_batch": mask.sum()}
    total = trainer._compute_loss(loaded.model.eval(), inputs)
    total.backward()
    return total.item(), torch.cat([p.grad.flatten() for p in loaded.model.parameters()])


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")  # trl's own
@pytest.mark.parametrize("longest, spread", [(6, 3e-3), (6, 0.3), (1, 1e-3)])
def test_gspo_and_its_gradients_are_those_of_trls_own_trainer(tmp_path, longest, spread):
    loaded = policy.load("tiny", "cpu")
    g = torch.Generator().manual_seed(longest)
    # of one length: trl gives a padded prompt no position ids
    prompts = loaded.encode(["12+34=", "21+13=", "56+11=", "99+97="] * 2)
    tokens = torch.randint(0, 10, (8, longest), generator=g)
    mask = (torch.arange(longest) < torch.randint(1, longest + 1, (8, 1), generator=g)).long()
    advantages = torch.randn(8, generator=g)
    both = torch.cat([prompts[0], tokens], 1), torch.cat([prompts[1], mask], 1)
    logp, _ = policy.token_logprobs(loaded.model, *both, longest)
    old = logp.detach() + spread * torch.randn(logp.shape, generator=g)
    part = loss.gspo(logp, old, advantages, mask)
    ours = loss.sequence_mean(part.loss, mask, 8)
    ours.backward()
    gradients = torch.cat([p.grad.flatten() for p in loaded.model.parameters()])
    config = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
    theirs, expected = trls_loss(tmp_path, "grpo", prompts, tokens, mask, old, advantages, **config)
    assert ours.item() == pytest.approx(theirs, abs=1e-6)
    torch.testing.assert_close(gradients, expected, rtol=1e-5, atol=1e-6)
    assert gradients.abs().max() > 1e-3 and 0 < part.clipped.float().mean() < 1


def test_gspos_clipped_completions_are_exactly_those_without_gradient():
    logp, old, adv, mask = sequences(1, 60)
    part = loss.gspo(logp, old, adv, mask)
    loss.sequence_mean(part.loss, mask, 60).backward()
    counted = mask.bool()
    assert torch.equal(part.clipped[counted], logp.grad[counted] == 0) and 0 < part.clipped.float().mean() < 1


def test_gspo_is_not_reached_by_what_padding_holds():
    logp, old, adv, mask = sequences()
    clean = loss.gspo(logp, old, adv, mask)
    mask[3] = 0
    dirty = loss.gspo(logp.masked_fill(mask == 0, float("nan")), old.masked_fill(mask == 0, -float("inf")), adv, mask)
    total = loss.sequence_mean(dirty.loss, mask, 8)
    (gradient,) = torch.autograd.grad(total, logp)
    assert total.isfinite() and gradient.isfinite().all() and (gradient[mask == 0] == 0).all()
    assert torch.equal(dirty.ratio[:3], clean.ratio[:3]) and dirty.ratio[3, 0] == 1


@pytest.mark.parametrize("at", range(4))
def test_a_shape_that_does_not_fit_is_named(at):
    operands = [torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2), torch.ones(2, 3)]
    operands[at] = torch.zeros(5)
    with pytest.raises(ValueError, match=r"gspo: expected logp \[B, T\].* got .*\[5\]"):
        loss.gspo(*operands)
    if at < 3:
        with pytest.raises(ValueError, match=r"grpo: expected logp \[B, T\].* got .*\[5\]"):
            loss.grpo(*operands[:3])
