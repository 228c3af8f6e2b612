"""Lesson 11's exercise refuses the near misses, and what it says of other people's code is still so."""

import pytest
import torch
from cut import Page
from props import lesson_11 as props

from labkit.policy import token_logprobs


def in_one_piece(head, hidden, answers):
    return head(hidden).log_softmax(-1).gather(-1, answers[..., None]).squeeze(-1)


def chunks_that_stay(head, hidden, answers):
    pairs = zip(hidden.split(64, 1), answers.split(64, 1), strict=True)
    return torch.cat([in_one_piece(head, *pair) for pair in pairs], 1)


def without_gradient(head, hidden, answers):
    return in_one_piece(head, hidden.detach(), answers).requires_grad_()


@pytest.mark.parametrize(
    "wrong, words",
    [
        (chunks_that_stay, "Too much is held"),
        (without_gradient, "not those of the formula"),
        (lambda head, hidden, answers: in_one_piece(head, hidden, answers).mean(1), "one log-prob for each token"),
    ],
)
def test_log_probs_that_hold_the_logits_or_lose_the_gradient_are_refused(wrong, words):
    report = props.holds_few_logits(wrong)
    assert not report and words in report.hint, report


def test_the_lesson_s_log_probs_are_the_policy_s(tiny):
    rows = props.rows_of(tiny, seed=0)
    logp, _ = token_logprobs(tiny.model, rows.ids, rows.attention_mask, rows.new)
    expected = -((logp - rows.old_logp).exp() * rows.advantages * rows.counted).sum()  # the ratio is 1
    torch.testing.assert_close(Page("11")["grpo_loss"](tiny.model, rows), expected, rtol=1e-4, atol=1e-5)
