"""The accumulation check passes right accumulators of every style and names each usual mistake."""

import pytest
import torch

from labkit.checks import accumulation


def each(write):
    """An accumulator from what is done with one parameter and its gradient."""

    def accumulate(params, grads):
        for p, g in zip(params, grads, strict=True):
            write(p, g)

    return accumulate


def set_grad(p, value):
    p.grad = value


def add_one(p, g):
    p.grad = g.clone() if p.grad is None else p.grad.add_(g)


add = each(add_one)


def by_backward(params, grads):  # what autograd itself does
    torch.autograd.backward([p.mul(1) for p in params], list(grads))


def foreach(params, grads):
    for p in params:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    torch._foreach_add_([p.grad for p in params], list(grads))


out_of_place = each(lambda p, g: set_grad(p, (0 if p.grad is None else p.grad) + g))


@pytest.mark.parametrize("right", [add, out_of_place, by_backward, foreach])
def test_every_right_way_to_add_passes(right):
    report = accumulation(right, reuses_buffers=True)
    assert report and not report.caution, report


def zero_first(params, grads):
    for p in params:
        p.grad = None
    add(params, grads)


def consume(params, grads):
    add(params, grads)
    for g in grads:
        g.zero_()


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
            p.grad = torch.stack([g[i] for g in self.parts if g[i] is not None]).sum(0)


LAST = "Only the last micro-batch is left. Likely `p.grad.copy_(g)`"


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (each(set_grad), LAST),
        (each(lambda p, g: set_grad(p, g.clone())), LAST),
        (zero_first, "zeroed in every call"),
        (each(lambda p, g: add_one(p, -g)), "The sum times -1"),
        (each(lambda p, g: add_one(p, g / 3)), "The sum times 0.333"),
        (lambda params, grads: None, "p.grad is None or zero"),
        (each(lambda p, g: set_grad(p, torch.zeros_like(p))), "p.grad is None or zero"),
        (each(lambda p, g: set_grad(p, torch.full_like(p, torch.nan))), "no known pattern"),
        (each(lambda p, g: p.data.sub_(0.1 * g)), "value changed"),
        (each(lambda p, g: p.grad is None and set_grad(p, g.clone())), "Only the first micro-batch is left"),
        (consume, "The caller's gradient was written to"),
        (each(lambda p, g: add_one(p, g.flatten().roll(1).view_as(g))), "in no known pattern"),
        (Forgets(), "gradient that was there is lost"),
        (LaterSum(), "reuses its gradient buffer"),
    ],
)
def test_each_mistake_fails_with_its_own_cause(wrong, cause):
    report = accumulation(wrong)
    assert report.passed is False and cause in report.hint and not report.caution, report


@pytest.mark.parametrize("of_gradient", [lambda g: g, lambda g: g.view(-1).view_as(g)])
def test_keeping_a_reference_to_the_callers_buffer_passes_with_a_caution(of_gradient):
    keeps = each(lambda p, g: set_grad(p, of_gradient(g) if p.grad is None else p.grad.add_(g)))
    report = accumulation(keeps)
    assert report and not report.hint and "keeps a reference" in report.caution, report
    report = accumulation(keeps, reuses_buffers=True)
    assert not report and "keeps a reference" in report.hint and not report.caution, report
