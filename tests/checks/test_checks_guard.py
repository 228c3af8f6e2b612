import math

import pytest
import torch
from torch import nn

from labkit import checks, grads


def norm_of(model):
    return float(nn.utils.get_total_norm([p.grad for p in model.parameters()]))


def accelerate_style(model, optimizer):
    """The same layer written with torch's clip_grad_norm_ and error_if_nonfinite, as a foreign trainer would."""
    try:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3, error_if_nonfinite=True)
    except RuntimeError:
        norm = math.nan
    if norm <= 10:
        optimizer.step()
    optimizer.zero_grad()


def clip_only(model, optimizer):
    nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    optimizer.step()


def skip_with_a_comparison_that_nan_passes(model, optimizer):
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    if norm > 10:
        optimizer.zero_grad()
    optimizer.step()


def never(model, optimizer):
    optimizer.zero_grad()


def ascent(model, optimizer):
    if norm_of(model) <= 10:
        for p in model.parameters():
            p.grad.mul_(-3)
        optimizer.step()


def skip_only(model, optimizer):
    if norm_of(model) <= 10:
        optimizer.step()


@pytest.mark.parametrize("update", [grads.guard(), accelerate_style])
def test_a_guard_that_clips_and_skips_passes(update):
    report = checks.guard(update)
    assert report and not report.hint


@pytest.mark.parametrize(
    ("update", "hint"),
    [
        (grads.plain_step, "NaN"),
        (clip_only, "NaN"),
        (skip_with_a_comparison_that_nan_passes, "NaN > 10 is false"),
        (never, "no step"),
        (ascent, "not the plain one"),
        (skip_only, "not clipped"),
        (lambda model, optimizer: 1 / 0, "raised"),
    ],
)
def test_a_guard_with_a_hole_fails_and_says_where(update, hint):
    report = checks.guard(update)
    assert not report and hint in report.hint and report.seen


def test_other_thresholds_are_honoured_and_randomness_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert checks.guard(grads.guard(1.0, 5.0), max_norm=1.0, skip_above=5.0)
    assert not checks.guard(grads.guard(1.0, math.inf), max_norm=1.0, skip_above=5.0)
    assert torch.rand(1) == expected
