"""The check is fed sound losses in the ways people write them, and each usual mistake."""

import pytest
import torch

from labkit.checks import shared_loss


def sound(per_token, mask, total, world):
    return (per_token * mask).sum() * world / total(mask.sum())


def two_sums(per_token, mask, total, world):
    tokens = torch.stack([mask.sum(), torch.tensor(len(mask))])
    counted, rows = total(tokens)
    total(rows)
    return world * (per_token * mask).sum() / counted


def in_place(per_token, mask, total, world):  # in a trainer per_token is no leaf either
    per_token *= mask
    return per_token.sum() * world / total(mask.sum())


@pytest.mark.parametrize("loss", [
    sound, in_place, two_sums,
    lambda p, m, total, w: (p * m).sum() / (total(m.sum()) / w),  # as TRL: the tokens of all, over the processes
    lambda p, m, total, w: p[m == 1].sum() / total(int(m.sum())) * w,
    lambda p, m, total, w: (p * m).sum() / m.sum().clamp(min=1) * m.sum() / total(m.sum()) * w,
])  # fmt: skip
def test_sound_losses_pass(loss):
    report = shared_loss(loss)
    assert report and max(report.seen.values()) < 1e-5, report


WRONG = [
    (lambda p, m, total, w: (p * m).sum() / m.sum().clamp(min=1), "its own tokens"),
    (lambda p, m, total, w: (p * m).sum() / total(m.sum()), "times 0.333, of 19 tokens in 3 processes"),
    (lambda p, m, total, w: (p * m).sum() * w * w / total(m.sum()), "times 3, "),
    (lambda p, m, total, w: (p * m).sum(), "times 6.33, "),
    (lambda p, m, total, w: -sound(p, m, total, w), "times -1, "),
    (
        lambda p, m, total, w: ((p * m).sum(1) / m.sum(1).clamp(min=1)).sum() * w / total(torch.tensor(len(m))),
        "completion counts the same however long",
    ),
    (lambda p, m, total, w: p.sum() * w / total(m.sum()), "no known pattern"),
    (lambda p, m, total, w: (p * m).sum() / m.sum() * m.sum() / total(m.sum()) * w, "divides by 0"),
    (lambda p, m, total, w: sound(p, m, total, w) if m.sum() > 5 else (p * m).sum(), "wait for ever"),
    (
        lambda p, m, total, w: (
            sound(p, m, total, w) if m.any() else 0 * total(m.sum()) + torch.ones((), requires_grad=True)
        ),
        "reaches no parameter",
    ),
    (lambda p, m, total, w: total((p * m).sum()) / total(m.sum()), "no graph"),
    (lambda p, m, total, w: p * m * w / total(m.sum()), "scalar"),
    (lambda p, m, total, w: None, "not written"),
    (lambda p, m, total, w: [total(m.sum()) for _ in range(50)][0], "loop"),
    (lambda p, m, total, w: (p * m).sum() * w / (total(m.sum()) + 1 + p.sum()), "no known pattern"),
]


@pytest.mark.parametrize(("loss", "cause"), WRONG)
def test_wrong_losses_are_refused_and_told_why(loss, cause):
    report = shared_loss(loss)
    assert not report and cause in report.hint, report


def test_a_function_that_catches_exceptions_is_still_asked_again():
    def careful(per_token, mask, total, world):
        try:
            return sound(per_token, mask, total, world)
        except Exception:
            return per_token.sum()

    assert shared_loss(careful)
