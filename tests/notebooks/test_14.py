"""Lesson 14: what it says of the KL is so, and its measure measures."""

from types import SimpleNamespace

import pytest
import torch
from props import lesson_14 as props

from labkit.grpo import kl, loss


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
