"""Lesson 12: the bug and the fix by labkit's own check, the rule beside the mask, and what the text says of TRL."""

import json
import sys

import torch
from cut import FOLDER, bug_cells, installed, path_of

from labkit import checks
from labkit.advantage import group_advantage, masked_advantage

sys.path.append(str(FOLDER))
from props import lesson_12 as props
from props import slow_judge

CELLS = json.loads(path_of("12").read_text())["cells"]


def defined(name):
    """A function of the lesson's cells, alone."""
    (source,) = [
        "".join(c["source"]) for c in CELLS if c["cell_type"] == "code" and f"def {name}(" in "".join(c["source"])
    ]
    space = {"torch": torch}
    exec(source.split("\n\n\n")[0], space)
    return space[name]


def late(prompt, answer):
    raise TimeoutError


def test_the_check_refuses_the_bugs_zero_and_accepts_the_mask():
    assert bug_cells("12")["score"](late, ["62+45="], ["107"]) == [0.0]
    assert defined("score_or_none")(late, ["62+45="], ["107"]) == [None]
    report = checks.missing_rewards(lambda r: group_advantage(r.nan_to_num(0.0), 4))
    assert report.passed is False and "filled with 0" in report.hint
    assert checks.missing_rewards(defined("masked"))


def test_the_mask_of_the_lesson_is_that_of_labkit():
    dice = torch.Generator().manual_seed(0)
    rewards = torch.rand(400, generator=dice)
    rewards[torch.rand(400, generator=dice) < 0.6] = torch.nan
    for ours, theirs in zip(defined("masked")(rewards, 8), masked_advantage(rewards, 8), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_the_means_of_the_group_are_passed_with_a_caution():
    def filled(rewards):
        rows = rewards.view(-1, 4)
        mean = rows.nanmean(1, keepdim=True).nan_to_num(0.0)
        return group_advantage(torch.where(rows.isnan(), mean, rows).flatten(), 4)

    report = checks.missing_rewards(filled)
    assert report and report.caution


def test_what_is_late_by_the_rule_depends_on_the_length_and_on_the_settings():
    def missing(digits, timeout, retries):
        return 1 - sum(props.comes(0, number, digits, timeout, retries) for number in range(2000)) / 2000

    assert 0.45 < missing(3, 10, 1) < 0.6 and missing(2, 10, 1) < 0.1
    assert missing(3, 15, 2) < 0.1
    assert slow_judge.fate(0, "1", 1, 3) == slow_judge.fate(0, "1", 1, 3)


def test_trl_leaves_a_row_out_only_where_every_function_returned_none():
    trainer = installed("trl", "trainer/grpo_trainer.py")
    assert "unscorable_mask = torch.isnan(rewards_per_func).all(dim=1)" in trainer
    assert ".nansum(dim=1)" in trainer
    assert "advantages = torch.nan_to_num(advantages, nan=0.0)" in trainer
