"""The accumulation check passes right accumulators of every style and names each usual mistake."""

import pytest
import torch

from labkit.checks import accumulation


def add(params, grads):
    for p, g in zip(params, grads, strict=True):
        if g is not None:
            p.grad = g.to(p.dtype, copy=True) if p.grad is None else p.grad.add_(g)


def add_out_of_place(params, grads):
    for p, g in zip(params, grads, strict=True):
        p.grad = (0 if p.grad is None else p.grad) + (torch.zeros_like(p) if g is None else g.to(p.dtype))


def add_without_unused(params, grads):  # raises on None: loud, so not a failure
    for p, g in zip(params, grads, strict=True):
        p.grad = g.clone().to(p.dtype) if p.grad is None else p.grad + g.to(p.dtype)


def by_backward(params, grads):  # what autograd itself does
    used = [(p, g.to(p.dtype)) for p, g in zip(params, grads, strict=True) if g is not None]
    torch.autograd.backward([p.mul(1) for p, _ in used], [g for _, g in used])


def foreach(params, grads):
    for p in params:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    torch._foreach_add_([p.grad for p in params], list(grads))


def from_vector(params, vector, write):
    """The field report's helper, with the line in question left open."""
    offset = 0
    for p in params:
        g = vector[offset : offset + p.numel()].view_as(p)
        if p.grad is None:
            p.grad = g.clone().to(p.dtype)
        else:
            write(p.grad, g)
        offset += p.numel()


def vector_add(params, vector):
    from_vector(params, vector, lambda grad, g: grad.add_(g))


@pytest.mark.parametrize("right", [add, add_out_of_place, add_without_unused, by_backward, foreach])
def test_every_right_way_to_add_passes(right):
    report = accumulation(right)
    assert report and not report.caution and report.seen["grads"] == "list", report


def test_a_flat_vector_is_recognised_and_an_exception_for_an_unused_parameter_is_noted():
    report = accumulation(vector_add)
    assert report and report.seen["grads"] == "flat vector", report
    assert accumulation(add_without_unused).seen["unused_parameter"].startswith("raises AttributeError")


def vector_copy(params, vector):  # the bug of the field report
    from_vector(params, vector, lambda grad, g: grad.copy_(g))


def assign(params, grads):
    for p, g in zip(params, grads, strict=True):
        p.grad = g


def assign_clone(params, grads):
    for p, g in zip(params, grads, strict=True):
        p.grad = None if g is None else g.clone().to(p.dtype)


def zero_first(params, grads):
    for p in params:
        p.grad = None
    add(params, grads)


def times(factor):
    return lambda params, grads: add(params, [None if g is None else factor * g for g in grads])


def fill(value):
    def write(params, grads):
        for p in params:
            p.grad = torch.full_like(p, value)

    return write


def into_data(params, grads):
    for p, g in zip(params, grads, strict=True):
        p.data.sub_(0.1 * (0 if g is None else g))


def only_first(params, grads):
    for p, g in zip(params, grads, strict=True):
        if p.grad is None:
            p.grad = torch.zeros_like(p) if g is None else g.clone()


def consume(params, grads):
    add(params, grads)
    for g in grads:
        if g is not None:
            g.zero_()


def vector_off_by_one(params, vector):
    from_vector(params, torch.roll(vector, -1), lambda grad, g: grad.add_(g))


def lose_unused(params, grads):
    for p, g in zip(params, grads, strict=True):
        if g is None:
            p.grad = None
        else:
            add([p], [g])


def overwrite_half(params, grads):
    for p, g in zip(params, grads, strict=True):
        if p.dtype == torch.bfloat16:
            p.grad = g.to(p.dtype)
        else:
            add([p], [g])


class Forgets:
    """Zeroes when it sees parameters for the first time."""

    params = [None]

    def __call__(self, params, grads):
        if self.params[0] is not params[0]:
            self.params = params
            for p in params:
                p.grad = None
        add(params, grads)


class LaterSum:
    """Keeps the caller's tensors and adds them all up again in every call."""

    params = [None]

    def __call__(self, params, grads):
        if self.params[0] is not params[0]:
            self.params, self.parts = params, [[p.grad for p in params]]
        self.parts.append(grads)
        for i, p in enumerate(params):
            p.grad = torch.stack([g[i].to(p.dtype) for g in self.parts if g[i] is not None]).sum(0)


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (vector_copy, "Only the last micro-batch is left. Likely `p.grad.copy_(g)`"),
        (assign, "Only the last micro-batch is left"),
        (assign_clone, "Only the last micro-batch is left"),
        (zero_first, "zeroed in every call"),
        (times(-1), "The sum times -1"),
        (times(1 / 3), "The sum times 0.333"),
        (times(2), "The sum times 2"),
        (lambda params, grads: None, "p.grad is None or zero"),
        (fill(0.0), "p.grad is None or zero"),
        (fill(torch.nan), "no known pattern"),
        (into_data, "value changed"),
        (only_first, "Only the first micro-batch is left"),
        (consume, "The caller's gradient was written to"),
        (vector_off_by_one, "in no known pattern"),
        (lose_unused, "p.grad is not the sum"),
        (overwrite_half, "no known pattern"),
        (Forgets(), "gradient that was there is lost"),
        (LaterSum(), "reuses its gradient buffer"),
    ],
)
def test_each_mistake_fails_with_its_own_cause(wrong, cause):
    report = accumulation(wrong)
    assert report.passed is False and cause in report.hint and not report.caution, report


def alias(params, grads):
    for p, g in zip(params, grads, strict=True):
        if g is not None:
            p.grad = g if p.grad is None else p.grad.add_(g)


def alias_view(params, vector):  # p.grad is a view of the caller's vector
    offset = 0
    for p in params:
        g = vector[offset : offset + p.numel()].view_as(p).to(p.dtype)
        p.grad = g if p.grad is None else p.grad + g
        offset += p.numel()


@pytest.mark.parametrize("keeps", [alias, alias_view])
def test_keeping_a_reference_to_the_callers_buffer_passes_with_a_caution(keeps):
    report = accumulation(keeps)
    assert report and not report.hint and "keeps a reference" in report.caution, report
    report = accumulation(keeps, reuses_buffers=True)
    assert not report and "keeps a reference" in report.hint and not report.caution, report
