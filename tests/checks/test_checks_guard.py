import math

import pytest
from torch import nn

from labkit import checks
from labkit.grpo import grads


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


def skip_with_a_comparison_that_nan_passes(model, optimizer):
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    if norm > 10:
        optimizer.zero_grad()
    optimizer.step()


def zero_and_step(model, optimizer):
    if not norm_of(model) <= 10:
        for p in model.parameters():
            p.grad.zero_()
    nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    optimizer.step()


def put_back(model, optimizer):
    norm, weights = norm_of(model), {name: t.clone() for name, t in model.state_dict().items()}
    nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    optimizer.step()
    if not norm <= 10:
        model.load_state_dict(weights)


def clip(model):
    nn.utils.clip_grad_norm_(model.parameters(), 0.3)


def step_if(may_step, shorten=clip):
    """An update that steps along shortened gradients, or not at all."""

    def update(model, optimizer):
        if may_step(model):
            shorten(model)
            optimizer.step()

    return update


def small(model):
    return norm_of(model) <= 10


def by_value(model):
    if norm_of(model) > 0.3:
        nn.utils.clip_grad_value_(model.parameters(), 0.01)


def in_float64(model, optimizer):
    norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
    if norm <= 10.0:  # false for NaN, too
        for p in model.parameters():
            p.grad.mul_(min(1.0, 0.3 / norm))
        optimizer.step()


@pytest.mark.parametrize("update", [grads.guard(), accelerate_style, in_float64, step_if(small)])
def test_sound_guards_pass_at_the_border(update):
    report = checks.guard(update)
    assert report and report.seen["moved at 10.1"] == 0 and report.seen["moved at 9.9"] > 0.29, report


@pytest.mark.parametrize(
    ("update", "hint"),
    [
        (zero_and_step, "With AdamW a skipped update changes the parameters"),
        (put_back, "With AdamW a skipped update changes the moments"),
        (step_if(lambda m: m.weight.grad.isfinite().all() and not norm_of(m) > 10), "in the bias alone"),
        (step_if(small, lambda m: [nn.utils.clip_grad_norm_([p], 0.3) for p in m.parameters()]), "turns the gradient"),
        (grads.plain_step, "neither clips nor skips"),
        (skip_with_a_comparison_that_nan_passes, "NaN > 10 is false"),
        (step_if(lambda m: False), "no step"),
        (lambda *_: grads.guard(), "a function that makes an update and is none"),
        (grads.guard(math.inf, 10.0), "not clipped"),
        (grads.guard(0.3, 11.0), "A norm of 10.1 is not skipped, and the limit is 10:"),
        (step_if(lambda m: all(p.grad.norm() <= 10 for p in m.parameters())), "A norm of 10.1 is not skipped"),
        (grads.guard(0.3, 9.0), "A norm of 9.9 is skipped, and the limit is 10."),
        (grads.guard(1.0, 10.0), "should move parameters by 0.3 times lr, not by 0.33"),
        (grads.guard(0.2, 10.0), "A healthy step is not the plain one"),
        (step_if(lambda m: math.isfinite(norm_of(m))), "A norm of 10.1 is not skipped"),
        (step_if(small, by_value), "entry by entry"),
    ],
)
def test_a_guard_with_a_hole_or_another_limit_fails_and_says_where(update, hint):
    report = checks.guard(update)
    assert report.passed is False and hint in report.hint, report


def test_other_limits_are_judged_and_impossible_ones_refused():
    assert checks.guard(grads.guard(1.0, 5.0), max_norm=1.0, skip_above=5.0)
    assert not checks.guard(grads.guard(1.0, math.inf), max_norm=1.0, skip_above=5.0)
    assert checks.guard(grads.guard(1e-4, 1e-3), max_norm=1e-4, skip_above=1e-3)
    for limits in ({"skip_above": 0.0}, {"skip_above": math.nan}, {"max_norm": -1.0}, {"max_norm": math.inf}):
        with pytest.raises(ValueError, match="expected 0 < 2 max_norm <= skip_above"):
            checks.guard(grads.guard(), **limits)
