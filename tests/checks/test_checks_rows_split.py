"""`checks.rows_split` accepts every sound way to share rows out, and refuses what loses, doubles or unbalances them."""

import random

import pytest
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from labkit.checks import rows_split


def filled(rows, rank, world):
    each = -(-len(rows) // world)
    return (rows * world)[: each * world][rank::world]


def contiguous(rows, rank, world):
    each = -(-len(rows) // world)
    whole = rows + [rows[-1]] * (each * world - len(rows))
    return whole[rank * each : (rank + 1) * each]


def shuffled(rows, rank, world):
    order = random.Random(7).sample(rows, len(rows))
    return filled(order, rank, world)


def sampler(rows, rank, world, **options):
    return [rows[i] for i in DistributedSampler(rows, world, rank, **options)]


def prepared(rows, rank, world):
    """As accelerate deals a loader's batches out."""
    from accelerate.data_loader import BatchSamplerShard

    batches = BatchSampler(SequentialSampler(rows), 1, drop_last=False)
    return [rows[i] for batch in BatchSamplerShard(batches, world, rank) for i in batch]


@pytest.mark.parametrize("sound", [filled, contiguous, shuffled, sampler, prepared, lambda *a: tuple(filled(*a))])
def test_sound_splits_pass(sound):
    report = rows_split(sound)
    assert report, report


def unseeded(rows, rank, world):
    return filled(random.sample(rows, len(rows)), rank, world)


def in_place(rows, rank, world):
    rows.reverse()
    return filled(rows, rank, world)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda rows, rank, world: rows, "not split"),
        (lambda rows, rank, world: rows[rank::world], "unequal length"),
        (lambda rows, rank, world: rows[: len(rows) // world * world][rank::world], "lost"),
        # fills up with the first rows, where more are missing than there are
        (lambda rows, rank, world: (rows + rows[: -len(rows) % world])[rank::world], "unequal length"),
        (unseeded, "lost"),
        (lambda rows, rank, world: filled(rows, (rank + 1) // 2, world), "lost"),
        (lambda rows, rank, world: filled(rows, rank, world) * 2, "more often"),
        (lambda rows, rank, world: list(filled(list(range(len(rows))), rank, world)), "not indices"),
        (lambda rows, rank, world: None, "Expected a list"),
        (lambda *a: set(filled(*a)), "Expected a list"),
        (in_place, "changed in place"),
    ],
)
def test_wrong_splits_are_refused_and_say_why(wrong, words):
    report = rows_split(wrong)
    assert report.passed is False and words in f"{report.hint} {report.seen}", report
