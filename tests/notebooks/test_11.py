"""Lesson 11: its log-probs beside the policy's."""

import torch
from cut import Page
from props import lesson_11 as props

from labkit.grpo.policy import token_logprobs


def test_the_lesson_s_log_probs_are_the_policy_s(tiny):
    rows = props.rows_of(tiny, seed=0)
    logp, _ = token_logprobs(tiny.model, rows.ids, rows.attention_mask, rows.new)
    expected = -((logp - rows.old_logp).exp() * rows.advantages * rows.counted).sum()  # the ratio is 1
    torch.testing.assert_close(Page("11")["grpo_loss"](tiny.model, rows), expected, rtol=1e-4, atol=1e-5)
