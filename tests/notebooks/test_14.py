"""Lesson 14: what it says of the KL and of TRL is so, its measure measures, its exercises refuse what they should."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from props import lesson_14 as props

from labkit import kl, loss


def gspo_of_each_length(logp, old_logp, advantages, mask, token_range, *, padded=False, both_sides=False):
    length = torch.full_like(advantages, mask.shape[1]) if padded else mask.sum(1)
    ratio = (((logp - old_logp) * mask).sum(1) / length).exp()
    bounded = ratio.clamp(1 - token_range / length, 1 + token_range / length)
    if both_sides:
        return -bounded * advantages
    return -torch.minimum(ratio * advantages, bounded * advantages)


def one_range(logp, old_logp, advantages, mask, token_range):
    return gspo_of_each_length(logp, old_logp, advantages, mask, token_range * mask.sum(1) / mask.shape[1])


@pytest.mark.parametrize(
    "wrong, hint",
    [
        (partial(gspo_of_each_length, padded=True), "tokens that count"),
        (partial(gspo_of_each_length, both_sides=True), "keeps its gradient"),
        (one_range, ""),
    ],
)
def test_the_loss_refuses_the_padded_length_one_range_for_all_and_a_clip_of_both_sides(wrong, hint):
    report = props.loss_is_right(wrong)
    assert not report and hint in report.hint


@pytest.mark.parametrize("answer", [("token", 0.2), ("sequence", 3e-4), ("sequence", 1.0)])
def test_one_answer_for_every_loss_is_refused(answer):
    assert not props.clip_is_named(lambda loss_of: answer)


def test_a_ratio_of_the_sequence_on_the_kl_pushes_a_token_that_agrees_with_the_reference():
    slopes = {}
    for level in ("token", "sequence"):
        logp = torch.tensor([[2.0, 0.0, 0.0, 0.0]], requires_grad=True)
        log_ratio = logp - logp.detach()
        ratio = (log_ratio.mean(1, keepdim=True) if level == "sequence" else log_ratio).exp()
        (kl.k3(logp, torch.zeros(1, 4)) * ratio).sum().backward()
        slopes[level] = logp.grad[0].tolist()
    assert slopes["token"] == pytest.approx([2, 0, 0, 0], abs=1e-6)
    assert slopes["sequence"][1] == pytest.approx(0.284, abs=1e-3)


def test_completions_go_on_behind_the_end_and_the_text_does_not(tiny):
    out = props.go_on(tiny, ["47+52=", "12+34="], num_samples=4, generator=torch.Generator().manual_seed(0))
    assert out.tokens.shape == (8, props.LENGTH) and out.mask.all()
    for text, tokens in zip(out.texts, out.tokens.tolist(), strict=True):
        answer = tokens[: tokens.index(tiny.tokenizer.eos_token_id)]
        assert text == tiny.decode(torch.tensor([answer]))[0]


def scored(policy, texts):
    """A batch of bad completions of 33+65=, filled up with end tokens."""
    end = policy.tokenizer.eos_token_id
    rows = [policy.tokenizer.encode(text, add_special_tokens=False) + [end] * props.LENGTH for text in texts]
    tokens = torch.tensor([row[: props.LENGTH] for row in rows])
    prompt_tokens, prompt_mask = policy.encode(["33+65="] * len(texts))
    out = SimpleNamespace(tokens=tokens, prompt_tokens=prompt_tokens, prompt_mask=prompt_mask)
    return SimpleNamespace(out=out, old_logp=torch.zeros(tokens.shape), advantages=-torch.ones(len(texts)))


def test_a_fall_counts_while_the_loss_pushes_the_completion_and_at_the_first_wrong_token_alone(tiny):
    batch = scored(tiny, ["88", "99", "9", "98", "988"])
    place = props.first_wrong_token(tiny, batch)  # it may be any of the answer, or its end
    assert place.tolist() == [0, 1, 1, -1, 2]
    logp, clipped = torch.zeros(5, props.LENGTH), torch.zeros(5, props.LENGTH, dtype=torch.bool)
    logp[0, 0], logp[1, 0], logp[1, 1] = -3.0, -5.0, -2.0
    for number, fall in ((0, 3.0), (1, 2.0), (5, 0.0)):  # so many completions are clipped
        clipped[:number] = True
        assert props.furthest_fall(place, batch, logp, loss.PolicyLoss(logp, logp, clipped)) == fall
