"""Lesson 12: the bug by labkit's own check, the lesson's mask beside labkit's, and what the text says of TRL."""

import torch
from cut import Page

from labkit import checks
from labkit.advantage import group_advantage, masked_advantage


def late(prompt, answer):
    raise TimeoutError


def test_the_check_refuses_the_bugs_zero():
    assert Page("12")["score"](late, ["62+45="], ["107"]) == [0.0]
    report = checks.missing_rewards(lambda rewards: group_advantage(rewards.nan_to_num(0.0), 4))
    assert not report and "filled with 0" in report.hint


def test_the_mask_of_the_lesson_is_that_of_labkit():
    generator = torch.Generator().manual_seed(0)
    rewards = torch.rand(400, generator=generator)
    rewards[torch.rand(400, generator=generator) < 0.6] = torch.nan
    for ours, theirs in zip(Page("12")["masked"](rewards, 8), masked_advantage(rewards, 8), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
