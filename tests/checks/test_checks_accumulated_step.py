"""The step check passes right steps in every style, and names each usual mistake.

The published loss aggregations are rewritten here from trl 1.16 (`GRPOTrainer._compute_loss`), transformers 5.23
(`loss_utils.fixed_cross_entropy`), verl (core_algos.agg_loss, commit 5b986366) and OpenRLHF (models/loss.py,
commit 09f5acef). Where one fails, the finding is true: it is said why.
"""

import pytest
import torch
from torch.nn import functional as F

from labkit.checks import accumulated_step
from labkit.checks.accumulated_step import TinyCausalLM, make_micro_batches


def token_losses(model, mb):
    """-log p of every token but the first, and the mask that goes with them, [B, T - 1]."""
    logits = model(mb["input_ids"], attention_mask=mb["attention_mask"]).logits[:, :-1]
    losses = F.cross_entropy(logits.transpose(1, 2), mb["input_ids"][:, 1:], reduction="none")
    return losses, mb["loss_mask"][:, 1:].float()


def make_step(loss_of, inside=lambda optimizer: None, after=lambda optimizer: optimizer.zero_grad()):
    """A step from a loss of one micro-batch: `loss_of(model, micro_batch, all micro-batches)`."""

    def step(model, optimizer, micro_batches):
        for mb in micro_batches:
            inside(optimizer)
            loss_of(model, mb, micro_batches).backward()
        optimizer.step()
        after(optimizer)

    return step


def whole_tokens(mbs):
    return sum(int(mb["loss_mask"].sum()) for mb in mbs)


# Right ------------------------------------------------------------------------------------------------------


def own_sum(model, mb, mbs):
    losses, mask = token_losses(model, mb)
    return (losses * mask).sum() / whole_tokens(mbs)


def own_mean_reweighted(model, mb, mbs):
    losses, mask = token_losses(model, mb)
    return (losses * mask).sum() / mask.sum() * (mask.sum() / whole_tokens(mbs))


def transformers(model, mb, mbs):  # 5.23: the model divides by num_items_in_batch itself
    return model(**mb).loss


def trl_dapo(model, mb, mbs):  # 1.16, also cispo and vespo: num_items_in_batch spans the accumulation window
    losses, mask = token_losses(model, mb)
    return (losses * mask).sum() / mb["num_items_in_batch"].clamp(min=1.0)


def verl_token_mean(model, mb, mbs):  # agg_loss(..., "token-mean", batch_num_tokens=...)
    losses, mask = token_losses(model, mb)
    return (losses * mask).sum() / whole_tokens(mbs) * 1


def by_logprob(model, mb, mbs):
    logits = model(mb["input_ids"], mb["attention_mask"])["logits"]
    logp = logits.log_softmax(-1)[:, :-1].gather(-1, mb["input_ids"][:, 1:, None])[..., 0]
    return -(logp * mb["loss_mask"][:, 1:]).sum() / mb["num_items_in_batch"]


RIGHT = [own_sum, own_mean_reweighted, transformers, trl_dapo, verl_token_mean, by_logprob]


@pytest.mark.parametrize("loss_of", RIGHT)
def test_a_step_normalised_by_the_tokens_of_the_whole_batch_passes(loss_of):
    report = accumulated_step(make_step(loss_of))
    assert report, report


def test_one_forward_over_everything_zeroing_first_and_clipping_at_the_usual_norms_pass():
    def one_backward(model, optimizer, micro_batches):
        optimizer.zero_grad()
        sum(own_sum(model, mb, micro_batches) for mb in micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()

    def by_hand(model, optimizer, micro_batches):
        model.zero_grad()
        for mb in micro_batches:
            own_sum(model, mb, micro_batches).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= optimizer.param_groups[0]["lr"] * p.grad

    assert accumulated_step(one_backward)
    assert accumulated_step(by_hand)


def trl_grpo(model, mb, mbs):  # 1.16: mean over sequences, over the accumulation steps
    losses, mask = token_losses(model, mb)
    return ((losses * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean() / len(mbs)


def trl_dr_grpo(model, mb, mbs):
    losses, mask = token_losses(model, mb)
    return (losses * mask).sum() / (losses.size(0) * 256) / len(mbs)


@pytest.mark.parametrize(("loss_of", "normalize"), [(trl_grpo, "sequences"), (trl_dr_grpo, "constant")])
def test_losses_that_are_no_token_mean_are_told_apart_and_pass_under_their_own_name(loss_of, normalize):
    assert accumulated_step(make_step(loss_of), normalize=normalize)
    wrong = accumulated_step(make_step(loss_of))
    assert not wrong
    expected = "normalize='sequences'" if normalize == "sequences" else "The right direction, 0.0124 times as long"
    assert expected in wrong.hint, wrong


# Wrong ------------------------------------------------------------------------------------------------------


def mean_of_means(model, mb, mbs):
    # Also trl 1.16 "bnpo" ("normalization is performed over the local batch only"), and OpenRLHF's PolicyLoss with
    # token_level_loss under gradient accumulation: both do depend on how the batch is cut. The finding is true.
    losses, mask = token_losses(model, mb)
    return (losses * mask).sum() / mask.sum() / len(mbs)


def transformers_before_the_fix(model, mb, mbs):  # until October 2024: huggingface.co/blog/gradient_accumulation
    return model(mb["input_ids"], mb["attention_mask"], labels=mb["labels"]).loss / len(mbs)


def undivided(model, mb, mbs):
    return model(mb["input_ids"], mb["attention_mask"], labels=mb["labels"]).loss


def divided_twice(model, mb, mbs):
    return model(**mb).loss / len(mbs)


def raw_sum(model, mb, mbs):
    losses, mask = token_losses(model, mb)
    return (losses * mask).sum()


def flipped(model, mb, mbs):
    return -own_sum(model, mb, mbs)


def zero(model, mb, mbs):
    return 0 * own_sum(model, mb, mbs)


def mask_late(model, mb, mbs):  # the mask is cut like the logits
    losses, _ = token_losses(model, mb)
    return (losses * mb["loss_mask"][:, :-1]).sum() / whole_tokens(mbs)


def unshifted(model, mb, mbs):
    logits = model(mb["input_ids"], mb["attention_mask"]).logits
    return F.cross_entropy(logits.transpose(1, 2), mb["labels"], reduction="sum") / whole_tokens(mbs)


def with_prompt(model, mb, mbs):
    losses, _ = token_losses(model, mb)
    return (losses * mb["attention_mask"][:, 1:]).sum() / whole_tokens(mbs)


def with_padding(model, mb, mbs):
    losses, _ = token_losses(model, mb)
    return losses.mean() / len(mbs)


def twice_the_rate(model, mb, mbs):
    return 2 * own_sum(model, mb, mbs)


@pytest.mark.parametrize(
    ("loss_of", "cause"),
    [
        (mean_of_means, "mean of the micro-batches' own token means"),
        (transformers_before_the_fix, "mean of the micro-batches' own token means"),
        (undivided, "sum of the micro-batches' own token means"),
        (divided_twice, "Likely divided twice"),
        (raw_sum, "division by the number of tokens is missing"),
        (flipped, "goes uphill: the sign is flipped"),
        (lambda *a: -mean_of_means(*a), "the sign is flipped. Likely a missing minus before the log-prob. Besides:"),
        (zero, "with no gradient, or a zero one"),
        (mask_late, "positions one after the right ones"),
        (unshifted, "Each position predicts itself"),
        (with_prompt, "counts prompt tokens too"),
        (with_padding, "counts padding too"),
        (twice_the_rate, "The right direction, 2 times as long"),
    ],
)
def test_each_wrong_loss_fails_with_its_own_cause(loss_of, cause):
    report = accumulated_step(make_step(loss_of))
    assert not report
    assert cause in report.hint, report


def step_inside(model, optimizer, micro_batches):  # bug (a) of the field report
    for mb in micro_batches:
        optimizer.zero_grad()
        own_sum(model, mb, micro_batches).backward()
        optimizer.step()


def overwrite(model, optimizer, micro_batches):  # bug (b) of the field report
    params = list(model.parameters())
    optimizer.zero_grad()
    for mb in micro_batches:
        for p, g in zip(params, torch.autograd.grad(own_sum(model, mb, micro_batches), params), strict=True):
            if p.grad is None:
                p.grad = g.clone()
            else:
                p.grad.copy_(g)
    optimizer.step()


def zero_inside(model, optimizer, micro_batches):
    make_step(mean_of_means, inside=lambda optimizer: optimizer.zero_grad())(model, optimizer, micro_batches)


def never_zeroed(model, optimizer, micro_batches):
    make_step(own_sum, after=lambda optimizer: None)(model, optimizer, micro_batches)


def never_stepped(model, optimizer, micro_batches):
    for mb in micro_batches:
        own_sum(model, mb, micro_batches).backward()


def zeroed_before_step(model, optimizer, micro_batches):
    never_stepped(model, optimizer, micro_batches)
    optimizer.zero_grad()
    optimizer.step()


def detached(model, optimizer, micro_batches):
    for mb in micro_batches:
        own_sum(model, mb, micro_batches).detach().requires_grad_().backward()
    optimizer.step()


def first_only(model, optimizer, micro_batches):
    own_sum(model, micro_batches[0], micro_batches).backward()
    optimizer.step()


def off_by_one(model, optimizer, micro_batches):
    for mb in micro_batches[:-1]:
        own_sum(model, mb, micro_batches).backward()
    optimizer.step()


def off_by_one_at_the_start(model, optimizer, micro_batches):
    for mb in micro_batches[1:]:
        own_sum(model, mb, micro_batches).backward()
    optimizer.step()


def clipped_hard(model, optimizer, micro_batches):
    never_stepped(model, optimizer, micro_batches)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()


@pytest.mark.parametrize(
    ("step", "cause"),
    [
        (step_inside, "`optimizer.step()` ran once per micro-batch"),
        (overwrite, "Only the last micro-batch moved the parameters. Likely p.grad is overwritten"),
        (zero_inside, "Only the last micro-batch moved the parameters. Likely `zero_grad` stands inside"),
        (never_zeroed, "`zero_grad` is missing"),
        (never_stepped, "`optimizer.step()` was never called"),
        (zeroed_before_step, "`zero_grad` ran between backward and step"),
        (detached, "no gradient, or a zero one"),
        (first_only, "Only the first micro-batch"),
        (off_by_one, "The last micro-batch is missing"),
        (off_by_one_at_the_start, "The first micro-batch is missing"),
        (clipped_hard, "a clip"),
    ],
)
def test_each_wrong_loop_fails_with_its_own_cause(step, cause):
    report = accumulated_step(step)
    assert not report
    assert cause in report.hint, report


# At the border ----------------------------------------------------------------------------------------------


def under_autocast(loss_of, dtype=torch.bfloat16):
    def step(model, optimizer, micro_batches):
        for mb in micro_batches:
            with torch.autocast("cpu", dtype=dtype):
                loss = loss_of(model, mb, micro_batches)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize("step", [under_autocast(own_sum), under_autocast(trl_dapo)])
def test_a_right_step_under_autocast_passes_with_a_caution(step):
    report = accumulated_step(step)
    assert report and "up to the rounding of half precision" in report.caution, report
    assert report.seen["relative_error"] < 3e-2


@pytest.mark.parametrize(
    ("loss_of", "cause"),
    [(mean_of_means, "own token means"), (mask_late, "one after the right ones"), (flipped, "goes uphill")],
)
def test_autocast_excuses_no_mistake(loss_of, cause):
    report = accumulated_step(under_autocast(loss_of))
    assert report.passed is False and cause in report.hint, report


def test_a_model_cast_to_half_precision_and_a_loss_in_it_are_told_apart():
    def cast(model, optimizer, micro_batches):
        model.to(torch.bfloat16)
        make_step(own_sum)(model, optimizer, micro_batches)

    def half_loss(model, mb, mbs):
        losses, mask = token_losses(model, mb)
        return (losses.bfloat16() * mask.bfloat16()).sum() / whole_tokens(mbs)

    assert "not float32 any more" in accumulated_step(cast).hint
    report = accumulated_step(make_step(half_loss))
    assert report and "rounding of half precision" in report.caution, report


def clipping(inside=None, outside=None):
    """A step that calls these on the parameters: after each backward, and once before the optimizer."""

    def step(model, optimizer, micro_batches):
        optimizer.zero_grad()
        for mb in micro_batches:
            own_sum(model, mb, micro_batches).backward()
            if inside:
                inside(model.parameters())
        if outside:
            outside(model.parameters())
        optimizer.step()

    return step


@pytest.mark.parametrize("norm", [0.3, 1.0, 2.0])
def test_a_clip_inside_the_loop_is_refused_and_one_after_it_passes(norm):
    clip = lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, norm)
    inside = accumulated_step(clipping(inside=clip))
    assert inside.passed is False and "Likely a clip inside the loop" in inside.hint, inside
    assert accumulated_step(clipping(outside=clip))


def test_the_micro_batches_belong_to_the_function():
    def step(model, optimizer, micro_batches):
        optimizer.zero_grad()
        for mb in micro_batches:
            losses, mask = token_losses(model, mb)
            (losses * mask).sum().div(19).backward()
            mb["input_ids"][:] = 0
        optimizer.step()

    assert accumulated_step(step)


def sum_per_row(model, mb, mbs):  # verl's "seq-mean-token-sum", over the whole batch
    losses, mask = token_losses(model, mb)
    return (losses * mask).sum(1).sum() / sum(len(m["input_ids"]) for m in mbs)


def own_sum_per_row(model, mb, mbs):
    losses, mask = token_losses(model, mb)
    return (losses * mask).sum(1).mean() / len(mbs)


def mean_over_positions(model, mb, mbs):
    losses, mask = token_losses(model, mb)
    return (losses * mask).mean() / len(mbs)


@pytest.mark.parametrize(
    ("loss_of", "cause"),
    [
        (mean_over_positions, "zeros are in the mean"),
        (sum_per_row, "the sum over each row's tokens, averaged over rows"),
        (own_sum_per_row, "the sum over each row's tokens, averaged over rows"),
    ],
)
def test_other_ways_to_divide_are_named(loss_of, cause):
    report = accumulated_step(make_step(loss_of))
    assert report.passed is False and cause in report.hint, report


def test_an_unknown_normalisation_is_refused_by_name():
    with pytest.raises(ValueError, match=r"one of \['tokens', 'sequences', 'constant'\], got 'token'"):
        accumulated_step(make_step(own_sum), normalize="token")


# The check's own problem ------------------------------------------------------------------------------------


def test_the_checks_model_is_causal_and_blind_to_padding_on_either_side():
    model = TinyCausalLM(torch.Generator().manual_seed(0))
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    logits = model(ids, torch.ones_like(ids)).logits
    changed = ids.clone()
    changed[0, 3] = 9
    assert torch.equal(model(changed).logits[:, :3], logits[:, :3])
    assert not torch.equal(model(changed).logits[:, 3:], logits[:, 3:])
    for left, right in ((2, 0), (0, 3)):
        padded = model(F.pad(ids, (left, right), value=7), F.pad(torch.ones_like(ids), (left, right))).logits
        torch.testing.assert_close(padded[:, left : left + 5], logits)


def test_the_checks_loss_is_that_of_transformers():
    from transformers.loss.loss_utils import ForCausalLMLoss

    rng = torch.Generator().manual_seed(0)
    model = TinyCausalLM(rng)
    for mb in make_micro_batches(rng):
        logits = model(mb["input_ids"], mb["attention_mask"]).logits
        items = mb["num_items_in_batch"]
        ours = model(mb["input_ids"], mb["attention_mask"], labels=mb["labels"]).loss
        torch.testing.assert_close(ours, ForCausalLMLoss(logits, mb["labels"], 13))
        torch.testing.assert_close(model(**mb).loss, ForCausalLMLoss(logits, mb["labels"], 13, items))


def test_micro_batches_differ_in_tokens_length_and_padding_side():
    mbs = make_micro_batches(torch.Generator().manual_seed(0))
    assert [int(mb["loss_mask"].sum()) for mb in mbs] == [6, 2, 11]
    assert len({mb["input_ids"].shape for mb in mbs}) == 3
    assert [bool((mb["attention_mask"][:, 0] == 0).any()) for mb in mbs] == [False, True, False]
    for mb in mbs:
        assert int(mb["num_items_in_batch"]) == 19
        assert torch.equal(mb["labels"] != -100, mb["loss_mask"] == 1)
        assert (mb["loss_mask"] <= mb["attention_mask"]).all()
        assert not mb["loss_mask"][:, 0].any()
