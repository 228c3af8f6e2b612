import pytest
import torch

from labkit import sampling

SAME, OTHER = ["17", "17", "17", "17"], ["17", "18", "19", "17"]


@pytest.mark.parametrize(
    ("completions", "rewards", "verdict", "counts"),
    [
        (SAME + SAME, [1.0] * 4 + [0.0] * 4, "identical completions", (2, 2, 0, 0)),
        (OTHER + OTHER, [0.0] * 8, "tied rewards", (2, 0, 2, 0)),
        (OTHER + SAME, [1.0] * 8, "tied rewards", (2, 1, 1, 0)),  # the sampler draws: one prompt is easy
        (OTHER + SAME, [1.0, 0.0, 0.0, 1.0] + [1.0] * 4, "live", (2, 1, 0, 0)),
        (SAME + SAME, [0.1, 0.9, 0.3, 0.4] * 2, "identical completions", (2, 2, 0, 2)),  # a judge that guesses
        (OTHER, [1.0, 0.0, 0.0, 1.0], "live", (1, 0, 0, 0)),
    ],
)
def test_identical_completions_are_told_from_tied_rewards(completions, rewards, verdict, counts):
    found = sampling.ties(completions, rewards, 4)
    assert found.verdict == verdict
    assert (found.groups, found.identical, found.tied, found.noisy) == counts


def test_tensors_lists_and_texts_are_read_alike():
    tokens = torch.tensor([[3, 1, 0], [3, 1, 0], [4, 1, 0], [5, 5, 1]])
    for rows in (tokens, tokens.tolist(), list(tokens), ["3", "3", "4", "55"]):
        found = sampling.ties(rows, torch.tensor([1.0, 1.0, 0.0, 0.0]), 2)
        assert (found.identical, found.tied) == (1, 1)


@pytest.mark.parametrize(
    ("rows", "rewards", "n"), [(OTHER, [1.0], 2), (OTHER, [1.0] * 4, 3), (OTHER, [1.0] * 4, 1), ([], [], 2)]
)
def test_lengths_that_do_not_fit_are_named(rows, rewards, n):
    with pytest.raises(ValueError, match="num_samples"):
        sampling.ties(rows, rewards, n)
