import pytest
import torch

from labkit import advantage, checks


def dr_grpo(rewards):
    rows = rewards.view(-1, 4)
    return (rows - rows.mean(1, keepdim=True)).flatten()


def biased_std(rewards):
    rows = rewards.view(-1, 4)
    return ((rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True, correction=0) + 1e-6)).flatten()


def whole_batch(rewards):
    return (rewards - rewards.mean()) / rewards.std()


def batch_scale(
    rewards,
):  # group mean, batch deviation: REINFORCE++-style, not a group advantage's scale but one constant
    return dr_grpo(rewards) / rewards.std()


def interleaved(rewards):
    rows = rewards.view(4, -1)
    return (rows - rows.mean(0)).flatten()


def no_epsilon(rewards):
    rows = rewards.view(-1, 4)
    return ((rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True)).flatten()


def leave_one_out(rewards):  # RLOO: n / (n - 1) times the centred reward
    rows = rewards.view(-1, 4)
    return (rows - (rows.sum(1, keepdim=True) - rows) / 3).flatten()


@pytest.mark.parametrize(
    "fn", [lambda r: advantage.group_advantage(r, 4), dr_grpo, biased_std, batch_scale, leave_one_out]
)
def test_group_advantages_of_every_published_scale_pass(fn):
    assert checks.group_advantage(fn), checks.group_advantage(fn)


@pytest.mark.parametrize(
    ("fn", "hint"),
    [
        (whole_batch, "own mean"),
        (interleaved, "group"),
        (no_epsilon, "standard deviation of zero"),
        (lambda r: -dr_grpo(r), "sign"),
        (lambda r: torch.zeros_like(r), "group"),
        (lambda r: r, "own mean"),
        (lambda r: dr_grpo(r)[:-1], "one per reward"),
        (lambda r: None, "return"),
    ],
)
def test_wrong_advantages_fail_with_a_likely_cause(fn, hint):
    report = checks.group_advantage(fn)
    assert not report and hint in report.hint, report
