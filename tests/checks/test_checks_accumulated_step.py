"""The step check passes right steps in every style, and names each usual mistake.

The published loss aggregations are rewritten here from trl 1.16 (`GRPOTrainer._compute_loss`), transformers 5.23
(`loss_utils.fixed_cross_entropy`), verl (core_algos.agg_loss, commit 5b986366) and OpenRLHF (models/loss.py,
commit 09f5acef). Where one fails, the finding is true: it is said why.
"""

import pytest
import torch
from torch.nn import functional as F

from labkit.checks import accumulated_step
from labkit.checks.accumulated_step import TinyCausalLM


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


def of_tokens(formula):
    """A loss from the token losses x and their mask m, [B, T - 1]: `formula(x, m, micro_batch, all micro-batches)`."""
    return lambda model, mb, mbs: formula(*token_losses(model, mb), mb, mbs)


# Right ------------------------------------------------------------------------------------------------------


def by_logprob(model, mb, mbs):
    logits = model(mb["input_ids"], mb["attention_mask"])["logits"]
    logp = logits.log_softmax(-1)[:, :-1].gather(-1, mb["input_ids"][:, 1:, None])[..., 0]
    return -(logp * mb["loss_mask"][:, 1:]).sum() / mb["num_items_in_batch"]


own_sum = of_tokens(lambda x, m, mb, mbs: (x * m).sum() / whole_tokens(mbs))
# trl 1.16, also cispo and vespo: num_items_in_batch spans the accumulation window
trl_dapo = of_tokens(lambda x, m, mb, mbs: (x * m).sum() / mb["num_items_in_batch"].clamp(min=1.0))
RIGHT = {
    "own sum": own_sum,
    "own mean, reweighted": of_tokens(lambda x, m, mb, mbs: (x * m).sum() / m.sum() * (m.sum() / whole_tokens(mbs))),
    "transformers 5.23": lambda model, mb, mbs: model(**mb).loss,  # it divides by num_items_in_batch itself
    "trl's dapo": trl_dapo,
    "log-probs": by_logprob,
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_step_normalised_by_the_tokens_of_the_whole_batch_passes(name):
    report = accumulated_step(make_step(RIGHT[name]))
    # a mean over no token is 0 / 0, however it is weighted later
    expected = "no token that counts" if name == "own mean, reweighted" else ""
    assert report and (expected in report.caution if expected else not report.caution), report


def one_backward(model, optimizer, micro_batches):
    optimizer.zero_grad()
    sum(own_sum(model, mb, micro_batches) for mb in micro_batches).backward()
    optimizer.step()


def by_hand(model, optimizer, micro_batches):
    model.zero_grad()
    for mb in micro_batches:
        own_sum(model, mb, micro_batches).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= optimizer.param_groups[0]["lr"] * p.grad


def changes_its_arguments(model, optimizer, micro_batches):
    optimizer.zero_grad()
    for mb in micro_batches:
        own_sum(model, mb, micro_batches).backward()
        mb["input_ids"][:] = 0
    optimizer.step()


@pytest.mark.parametrize("step", [one_backward, by_hand, changes_its_arguments])
def test_other_ways_to_make_the_step_pass(step):
    assert accumulated_step(step)


# 1.16: mean over sequences, over the accumulation steps; and a constant
trl_grpo = of_tokens(lambda x, m, mb, mbs: ((x * m).sum(-1) / m.sum(-1).clamp(min=1.0)).mean() / len(mbs))
trl_dr_grpo = of_tokens(lambda x, m, mb, mbs: (x * m).sum() / (len(x) * 256) / len(mbs))


trl_bnpo = of_tokens(lambda x, m, mb, mbs: (x * m).sum() / m.sum().clamp(min=1.0) / len(mbs))


@pytest.mark.parametrize(
    ("loss_of", "normalize", "words"),
    [
        (trl_grpo, "sequences", "normalize='sequences'"),
        (trl_dr_grpo, "constant", "at another length"),
        (trl_bnpo, "micro-batches", "own token means"),  # nanochat's, too
    ],
)
def test_losses_that_are_no_token_mean_are_told_apart_and_pass_under_their_own_name(loss_of, normalize, words):
    assert accumulated_step(make_step(loss_of), normalize=normalize)
    wrong = accumulated_step(make_step(loss_of))
    assert not wrong and words in wrong.hint, wrong


# Wrong ------------------------------------------------------------------------------------------------------

# Also trl 1.16 "bnpo" ("normalization is performed over the local batch only"), and OpenRLHF's PolicyLoss with
# token_level_loss under gradient accumulation: both do depend on how the batch is cut. The finding is true.
mean_of_means = of_tokens(lambda x, m, mb, mbs: (x * m).sum() / m.sum() / len(mbs))
with_prompt = of_tokens(lambda x, m, mb, mbs: (x * mb["attention_mask"][:, 1:]).sum() / whole_tokens(mbs))


def transformers_before_the_fix(model, mb, mbs):  # until October 2024: huggingface.co/blog/gradient_accumulation
    return model(mb["input_ids"], mb["attention_mask"], labels=mb["labels"]).loss / len(mbs)


def step_inside(model, optimizer, micro_batches):  # bug (a) of the field report
    for mb in micro_batches:
        optimizer.zero_grad()
        own_sum(model, mb, micro_batches).backward()
        optimizer.step()


def never_stepped(model, optimizer, micro_batches):
    for mb in micro_batches:
        own_sum(model, mb, micro_batches).backward()


def first_two(model, optimizer, micro_batches):
    for mb in micro_batches[:2]:
        own_sum(model, mb, micro_batches).backward()
    optimizer.step()


def clipping(norm, inside=False):
    """A step that clips after each backward, or once before the optimizer."""

    def step(model, optimizer, micro_batches):
        optimizer.zero_grad()
        for mb in micro_batches:
            own_sum(model, mb, micro_batches).backward()
            if inside:
                torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
        torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()

    return step


def under_autocast(loss_of):
    def step(model, optimizer, micro_batches):
        for mb in micro_batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, mb, micro_batches)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def own_place(model, mb, mbs):
    logits = model(mb["input_ids"], mb["attention_mask"]).logits
    return F.cross_entropy(logits.transpose(1, 2), mb["labels"], reduction="sum") / whole_tokens(mbs)


MEANS = "mean of the micro-batches' own token means"
LAST = "Only the last micro-batch moved the parameters"


@pytest.mark.parametrize(
    ("step", "cause"),
    [
        (make_step(mean_of_means), MEANS),
        (make_step(transformers_before_the_fix), MEANS),
        (make_step(lambda *a: -mean_of_means(*a)), "the sign is flipped. It is the mean of the micro-batches' own"),
        (make_step(of_tokens(lambda x, m, mb, mbs: (x * m).mean() / len(mbs))), "no known pattern"),
        (make_step(of_tokens(lambda x, m, mb, mbs: (x * m).sum(1).mean() / len(mbs))), "Likely another divisor"),
        (make_step(lambda *a: 2 * own_sum(*a)), "another learning rate. (And 2 times as long"),
        (make_step(lambda *a: own_sum(*a) / 3), "another learning rate. (And 0.333 times as long"),
        (make_step(lambda *a: -own_sum(*a)), "goes uphill: the sign is flipped"),
        (make_step(lambda *a: 0 * own_sum(*a)), "No parameter moved"),
        (make_step(lambda *a: own_sum(*a).detach().requires_grad_()), "No parameter moved"),
        (make_step(of_tokens(lambda x, m, mb, mbs: (x * mb["loss_mask"][:, :-1]).sum() / 19)), "one token late"),
        (make_step(own_place), "from the logits at its own place"),
        (make_step(with_prompt), "counts prompt tokens too"),
        (step_inside, "`optimizer.step()` ran 3 times"),
        (first_two, "no known pattern"),
        (make_step(own_sum, after=lambda optimizer: None), "`zero_grad` is missing"),
        (never_stepped, "No parameter moved"),
        (make_step(own_sum, inside=lambda optimizer: optimizer.zero_grad()), LAST),
        (clipping(0.01), "a clip"),
        (clipping(0.3, inside=True), "Likely a clip inside the loop"),
        # Autocast excuses no mistake.
        (under_autocast(mean_of_means), MEANS),
        (under_autocast(with_prompt), "counts prompt tokens too"),
    ],
)
def test_each_wrong_step_fails_with_its_own_cause(step, cause):
    report = accumulated_step(step)
    assert report.passed is False and cause in report.hint, report


# At the border ----------------------------------------------------------------------------------------------


half_loss = of_tokens(lambda x, m, mb, mbs: (x.bfloat16() * m.bfloat16()).sum() / whole_tokens(mbs))


@pytest.mark.parametrize("step", [under_autocast(own_sum), under_autocast(trl_dapo), make_step(half_loss)])
def test_a_right_step_under_autocast_or_of_a_half_loss_passes_with_a_caution(step):
    report = accumulated_step(step)
    assert report and "up to the rounding of half precision" in report.caution, report
    assert report.seen["relative_error"] < 3e-2


@pytest.mark.parametrize("norm", [0.3, 1.0, 2.0])
def test_a_clip_after_the_loop_passes(norm):
    assert accumulated_step(clipping(norm))


def test_an_unknown_normalisation_is_refused_by_name():
    with pytest.raises(ValueError, match=r"one of \['tokens', 'sequences', 'constant', 'micro-batches'\], got 'token'"):
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


def test_a_hint_has_no_length_where_it_is_the_right_one():
    assert "times as long" not in accumulated_step(make_step(mean_of_means)).hint


def test_a_micro_batch_without_a_token_is_a_caution_where_it_makes_nan():
    own = of_tokens(lambda x, m, mb, mbs: (x * m).sum() / m.sum() / len(mbs))
    report = accumulated_step(make_step(own), normalize="micro-batches")
    assert report and "no token that counts" in report.caution
    assert not accumulated_step(make_step(trl_bnpo), normalize="micro-batches").caution


def test_a_tolerance_can_be_asked_for():
    rough = make_step(lambda *a: 1.01 * own_sum(*a))
    assert not accumulated_step(rough) and accumulated_step(rough, tolerance=0.02)
