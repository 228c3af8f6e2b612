import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.grpo.advantage import group_advantage, masked_advantage, reward_std, zero_std_fraction


def test_advantages_equal_numpys_standardised_scores_group_by_group():
    import numpy as np

    rewards = torch.tensor([1.0, 0, 0, 0, 3, 1, 2, 2])
    rows = rewards.view(2, 4).numpy()
    expected = (rows - rows.mean(1, keepdims=True)) / (rows.std(1, ddof=1, keepdims=True) + 1e-4)
    np.testing.assert_allclose(group_advantage(rewards, 4).view(2, 4).numpy(), expected, rtol=1e-5)


@given(st.floats(-1e6, 1e6, width=32), st.integers(2, 9))
@settings(deadline=None)
def test_a_tied_group_teaches_exactly_nothing_whatever_the_reward(reward, n):
    rewards = torch.full((n,), reward)
    assert group_advantage(rewards, n).tolist() == [0.0] * n
    assert group_advantage(rewards, n, scale=False).tolist() == [0.0] * n
    assert zero_std_fraction(rewards, n) == 1.0


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=8, max_size=8), st.floats(-3, 3))
@settings(deadline=None)
def test_a_constant_added_to_every_reward_changes_no_advantage(values, shift):
    rewards = torch.tensor(values)
    torch.testing.assert_close(group_advantage(rewards, 4), group_advantage(rewards + shift, 4), atol=2e-3, rtol=1e-3)


def test_the_limit_bounds_an_outlier_and_none_lets_it_through():
    rewards = torch.tensor([0.0] * 999 + [1.0])
    assert group_advantage(rewards, 1000, limit=10.0).max() == 10.0
    assert group_advantage(rewards, 1000, limit=None).max() > 30


@pytest.mark.parametrize(("count", "n"), [(4, 1), (5, 2), (0, 2), (4, 0)])
def test_rows_that_do_not_split_into_groups_are_refused(count, n):
    with pytest.raises(ValueError, match="group"):
        group_advantage(torch.zeros(count), n)


NAN = float("nan")


def test_a_group_keeps_its_mean_over_the_rewards_that_came_and_one_of_one_is_dropped():
    rewards = torch.tensor([1.0, NAN, 0, 1, NAN, NAN, 2, NAN, 0, 1, 1, 0])
    advantages, counts = masked_advantage(rewards, 4)
    assert counts.tolist() == [True, False, True, True] + [False] * 4 + [True] * 4
    torch.testing.assert_close(advantages[[0, 2, 3]], group_advantage(rewards[[0, 2, 3]], 3))
    torch.testing.assert_close(advantages[8:], group_advantage(rewards[8:], 4))
    assert not advantages[~counts].any()


@given(st.lists(st.floats(-3, 3, width=32), min_size=12, max_size=12))
@settings(deadline=None)
def test_with_nothing_missing_it_is_the_group_advantage_bit_for_bit(values):
    rewards = torch.tensor(values)
    advantages, counts = masked_advantage(rewards, 4)
    assert torch.equal(advantages, group_advantage(rewards, 4)) and counts.all()


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, NAN]), min_size=12, max_size=12), st.sampled_from([2, 3, 4, 6]))
@settings(deadline=None)
def test_whatever_is_missing_it_is_finite_and_every_group_sums_to_zero(values, n):
    advantages, counts = masked_advantage(torch.tensor(values), n)
    assert advantages.isfinite().all() and not advantages[~counts].any()
    assert advantages.view(-1, n).sum(1).abs().max() < 1e-4


def test_statistics_of_groups_are_means_over_groups_of_the_rewards_that_came():
    assert reward_std(torch.tensor([0.0, 1, 1, 1]), 2) == pytest.approx(0.5 * 0.5**0.5)
    rewards = torch.tensor([1.0, NAN, 0, 1, NAN, NAN, 2, NAN, 1, 1, NAN, 1])
    assert zero_std_fraction(rewards, 4) == pytest.approx(2 / 3)  # one that is alone teaches nothing either
    assert reward_std(rewards, 4) == pytest.approx((float(torch.tensor([1.0, 0, 1]).std()) + 0.0) / 2)
