import pytest
import torch

from labkit import checks
from labkit.grpo import advantage


def grpo(rewards, num_samples, eps=1e-4, correction=1):
    rows = rewards.view(-1, num_samples)
    centred, std = rows - rows.mean(1, keepdim=True), rows.std(1, keepdim=True, correction=correction)
    return (centred / (std + eps)).flatten()


def plain(n, factor=1.0):
    return lambda rewards: (factor * (rewards.view(-1, n) - rewards.view(-1, n).mean(1, keepdim=True))).flatten()


dr_grpo = plain(4)


def leave_one_out(rewards):  # RLOO: n / (n - 1) times the centred reward
    rows = rewards.view(-1, 4)
    return (rows - (rows.sum(1, keepdim=True) - rows) / 3).flatten()


def in_place(rewards):  # `rewards` is the function's own copy
    rows = rewards.view(-1, 4)
    rows -= rows.mean(1, keepdim=True)
    return rewards


def trl_style(rewards, num_generations):  # trl 1.16
    mean = rewards.view(-1, num_generations).mean(1).repeat_interleave(num_generations)
    std = rewards.view(-1, num_generations).std(1).repeat_interleave(num_generations)
    return (rewards - mean) / (std + 1e-4)


def rounded_away(rewards, num_samples):  # compared with a tolerance: the right way
    rows = rewards.view(-1, num_samples)
    tied = rows.amax(1, keepdim=True) == rows.amin(1, keepdim=True)
    centred = (rows - rows.mean(1, keepdim=True)).masked_fill(tied, 0.0)
    return (centred / (rows.std(1, keepdim=True) + 1e-9)).flatten()


@pytest.mark.parametrize(
    "fn",
    [
        lambda r: advantage.group_advantage(r, 4),
        dr_grpo,
        lambda r: grpo(r, 4, 1e-6, correction=0),
        lambda r: dr_grpo(r) / r.std(),  # the deviation of the batch: REINFORCE++-style
        leave_one_out,
        in_place,
        lambda r: dr_grpo(r).tolist(),
        lambda r: dr_grpo(r).numpy(),
        lambda rewards, eps=1e-4: grpo(rewards, 4, eps),  # second parameters that are no size
        lambda rewards, *, scale=True: grpo(rewards, 4),
    ],
)
def test_group_advantages_of_every_published_scale_pass(fn):
    report = checks.group_advantage(fn)
    assert report and not report.caution, report


@pytest.mark.parametrize("right", [trl_style, rounded_away, advantage.group_advantage, grpo])
def test_a_function_of_the_group_size_is_judged_at_4_and_8_and_16(right):
    report = checks.group_advantage(right)
    assert report and not report.caution and report.seen["groups of"] == 16, report


ROUNDING = "the rounding noise of the mean, divided by a tiny eps"


@pytest.mark.parametrize(
    ("fn", "hint"),
    [
        (lambda r: (r - r.mean()) / r.std(), "on the mean of the whole batch"),
        (lambda r: (r.view(4, -1) - r.view(4, -1).mean(0)).flatten(), "not adjacent"),
        (lambda r: grpo(r, 4, 0.0), "standard deviation of zero"),
        (lambda r: -dr_grpo(r), "flipped sign"),
        (lambda r: torch.zeros_like(r), "All zeros"),
        (lambda r: r, "own mean"),
        (lambda r: dr_grpo(r)[:-1], "one per reward"),
        (lambda r: dr_grpo(r).view(-1, 4), "Expected shape [64], one per reward. Likely the last `.flatten()`"),
        (lambda r: grpo(r, 4).clamp(-0.5, 0.5), "a sum is not 0"),
        (plain(8), "groups of another size"),
        (plain(2), "other groups"),
        (lambda r: dr_grpo(r) / r.view(-1, 4).var(1).clamp(min=1e-4).repeat_interleave(4), "its variance"),
        # What is right at 4 alone: the size is a parameter. Nothing is rounded at 4.
        (lambda rewards, num_samples: grpo(rewards, num_samples, 1e-9), ROUNDING),
        (lambda rewards, num_samples: dr_grpo(rewards), "other groups"),
    ],
)
def test_wrong_advantages_fail_with_a_likely_cause(fn, hint):
    report = checks.group_advantage(fn)
    assert report.passed is False and hint in report.hint, report


# At the border ----------------------------------------------------------------------------------------------


def compared_with_0(rewards, n):  # a rounded mean makes the deviation of a tied group not quite 0
    rows = rewards.view(-1, n)
    centred = rows - rows.mean(1, keepdim=True)
    std = centred.square().mean(1, keepdim=True).sqrt()
    return torch.where(std == 0, 0.0, centred / std).flatten()


@pytest.mark.parametrize("n", [3, 6, 7, 8, 12, 16, 32])
def test_a_tiny_eps_over_a_rounded_mean_is_refused_and_not_called_uncentred(n):
    for noisy in (compared_with_0, lambda rewards, n: grpo(rewards, n, 1e-9)):
        report = checks.group_advantage(lambda rewards, noisy=noisy: noisy(rewards, n), num_samples=n)
        assert report.passed is False and ROUNDING in report.hint, report
        assert f"A tied group of {n} rewards of 0." in report.hint


def test_verls_eps_passes_with_a_caution():
    report = checks.group_advantage(lambda rewards: grpo(rewards, 8, 1e-6), num_samples=8)
    assert report and ROUNDING in report.caution and not report.hint, report


def test_with_the_deviation_a_plain_difference_is_refused():
    for right in (lambda r: grpo(r, 4), lambda r: grpo(r, 4, correction=0)):
        assert checks.group_advantage(right, std=True)
    report = checks.group_advantage(dr_grpo, std=True)
    assert not report and "Not divided by the group's standard deviation" in report.hint, report
    report = checks.group_advantage(lambda r: 3 * grpo(r, 4), std=True)
    assert not report and "3 times as long" in report.hint, report


def test_any_one_factor_passes_with_a_caution_when_the_scale_is_not_asked_for():
    report = checks.group_advantage(plain(4, 5.0))
    assert report and "5 times as long" in report.caution, report
    with pytest.raises(ValueError, match="num_samples = 1, expected 2 or more"):
        checks.group_advantage(dr_grpo, num_samples=1)
