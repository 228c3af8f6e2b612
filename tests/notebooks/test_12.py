"""Lesson 12: its mask beside labkit's."""

import torch
from cut import Page

from labkit.grpo.advantage import masked_advantage


def test_the_mask_of_the_lesson_is_that_of_labkit():
    generator = torch.Generator().manual_seed(0)
    rewards = torch.rand(400, generator=generator)
    rewards[torch.rand(400, generator=generator) < 0.6] = torch.nan
    for ours, theirs in zip(Page("12")["masked"](rewards, 8), masked_advantage(rewards, 8), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
