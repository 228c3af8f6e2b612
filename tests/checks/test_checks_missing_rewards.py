import numpy as np
import pytest
import torch

from labkit import checks
from labkit.grpo.advantage import group_advantage, masked_advantage

N = 4
NAN = float("nan")


def rows_of(rewards, n=N):
    return rewards.view(-1, n)


# Sound, as people write it ------------------------------------------------------------------------------------------


def dr_grpo(rewards):
    rows = rows_of(rewards)
    few = (~rows.isnan()).sum(1, keepdim=True) < 2
    return (rows - rows.nanmean(1, keepdim=True)).masked_fill(rows.isnan() | few, 0.0).flatten()


def trl(rewards, num_generations, eps=1e-4):  # trl 1.16, sum_then_normalize, scale_rewards="group"
    rows = rewards.view(-1, num_generations)
    count = (~rows.isnan()).sum(1)
    mean = rows.nanmean(1)
    variance = (rows - mean[:, None]).square().nanmean(1) * count / (count - 1)
    mean, std = (x.repeat_interleave(num_generations) for x in (mean, variance.sqrt()))
    return torch.nan_to_num((rewards - mean) / (std + eps), nan=0.0)


def leave_one_out(rewards):
    rows = rows_of(rewards)
    came = (~rows.isnan()).sum(1, keepdim=True)
    others = (rows.nansum(1, keepdim=True) - rows) / (came - 1)
    return torch.where((came > 1) & ~rows.isnan(), rows - others, 0.0).flatten()


def of_numpy(rewards):
    rows = rewards.reshape(-1, N)
    return np.nan_to_num(
        (rows - np.nanmean(rows, 1, keepdims=True)) / (np.nanstd(rows, 1, keepdims=True) + 1e-4)
    ).ravel()


def with_mask(rewards):
    return dr_grpo(rewards), masked_advantage(rewards, N)[1]


def in_place(rewards):
    out = dr_grpo(rewards)
    rewards[:] = 0.0
    return out


SOUND = [masked_advantage, dr_grpo, trl, leave_one_out, of_numpy, with_mask, in_place]
SOUND += [lambda r: dr_grpo(r) / r[~r.isnan()].std(), lambda rewards, min_samples=2: dr_grpo(rewards)]


@pytest.mark.parametrize("fn", SOUND)
def test_sound_functions_pass(fn):
    report = checks.missing_rewards(fn)
    assert report, report


@pytest.mark.parametrize("n", [3, 5, 8, 16])
def test_groups_of_every_size_are_judged(n):
    assert checks.missing_rewards(lambda r: masked_advantage(r, n), num_samples=n)
    zero = checks.missing_rewards(lambda r: group_advantage(r.nan_to_num(0.0), n), num_samples=n)
    assert zero.passed is False and "filled with 0" in zero.hint, zero


def test_the_groups_own_mean_filled_in_and_no_mask_pass_with_a_caution():
    def filled(rewards):
        mean = rows_of(rewards).nanmean(1).repeat_interleave(N).nan_to_num(0.0)
        return group_advantage(torch.where(rewards.isnan(), mean, rewards), N)

    report = checks.missing_rewards(filled)
    assert report and "pulls harder the more it misses" in report.caution, report
    assert "returns no mask" in checks.missing_rewards(dr_grpo).caution
    assert not checks.missing_rewards(with_mask).caution and not checks.missing_rewards(masked_advantage).caution


# Mistakes -----------------------------------------------------------------------------------------------------------


def fill(value):
    return lambda r: group_advantage(torch.where(r.isnan(), torch.as_tensor(value(r)), r), N)


def zero_mean(rewards):
    rows = rows_of(rewards)
    return (rows - rows.nan_to_num(0.0).mean(1, keepdim=True)).nan_to_num(0.0).flatten()


def alone(rewards):  # the mean of one is left out
    rows = rows_of(rewards)
    mean = rows.nanmean(1, keepdim=True) * ((~rows.isnan()).sum(1, keepdim=True) > 1)
    return (rows - mean).nan_to_num(0.0).flatten()


def scaled(std):
    return lambda r: (dr_grpo(r).view(-1, N) / (std(rows_of(r))[:, None] + 1e-4)).flatten()


WRONG = {
    "zeros": (fill(lambda r: 0.0), "filled with 0"),
    "the batch's mean": (fill(lambda r: r.nanmean()), "the mean of the batch"),
    "minus one": (fill(lambda r: -1.0), "A reward that did not come has an advantage"),
    "the highest": (fill(lambda r: r[~r.isnan()].max()), "did not come"),
    "nothing done": (lambda r: group_advantage(r, N), "whole group NaN"),
    "nan rows": (lambda r: (rows_of(r) - rows_of(r).nanmean(1, True)).flatten(), "choose with `torch.where`"),
    "nan where few came": (lambda r: trl(r, N) * rows_of(r).nanmean(1).repeat_interleave(N), "a mean of nothing"),
    "groups dropped": (lambda r: group_advantage(r, N).nan_to_num(0.0), "6 of the 6 groups"),
    "all dropped": (lambda r: torch.zeros_like(r), "All zeros"),
    "a mean that counts zeros": (zero_mean, "counts its missing rewards as 0"),
    "the whole batch": (lambda r: (r - r.nanmean()).nan_to_num(0.0), "the mean is the batch's"),
    "0 is taken for missing": (lambda r: dr_grpo(torch.where(r == 0, NAN, r)), "true"),
    "a deviation of zeros": (scaled(lambda rows: rows.nan_to_num(0.0).std(1)), "counts missing rewards"),
    "the largest": (scaled(lambda rows: rows.nan_to_num(-9.0).amax(1)), "something of its own"),
    "a tiny eps": (lambda rewards, size: trl(rewards, size, 1e-12), "the rounding of its mean"),
    "one alone": (alone, "nothing to compare"),
    "a flipped sign": (lambda r: -dr_grpo(r), "flipped sign"),
    "the rewards": (lambda r: r.nan_to_num(0.0), "proportion"),
    "only what came": (lambda r: r[~r.isnan()], "also for those without a reward"),
    "a scalar": (lambda r: r.nanmean(), "Expected advantages"),
    "all in the mask": (lambda r: (dr_grpo(r), torch.ones_like(r)), "counts rows without a reward"),
    "the mask inverted": (lambda r: (dr_grpo(r), r.isnan()), "other way round"),
    "a mask that drops groups": (
        lambda r: (dr_grpo(r), (~rows_of(r).isnan()).all(1).repeat_interleave(N)),
        "leaves out",
    ),
}


@pytest.mark.parametrize(("fn", "hint"), WRONG.values(), ids=WRONG)
def test_mistakes_are_refused_with_their_cause(fn, hint):
    report = checks.missing_rewards(fn)
    assert report.passed is False and hint in report.hint and report.hint, report


def test_what_is_right_at_4_alone_is_found_out_where_the_size_is_a_parameter():
    report = checks.missing_rewards(lambda rewards, num_samples: dr_grpo(rewards))
    assert report.passed is False and report.seen["groups of"] == 8, report
    with pytest.raises(ValueError, match="num_samples = 2, expected 3 or more"):
        checks.missing_rewards(dr_grpo, num_samples=2)
