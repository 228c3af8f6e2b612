import copy
import math

import pytest
import torch
from torch import nn

from labkit.grpo import grads


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


def data(seed=1, n=12):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=g), torch.randn(n, 1, generator=g)


def losses(model, x, y, cuts):
    for i, j in cuts:
        yield (model(x[i:j]) - y[i:j]).square().sum() / len(x)


def assert_equal(ours, theirs):
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("cuts", [[(0, 12)], [(0, 6), (6, 12)], [(0, 1), (1, 4), (4, 12)]])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_an_accumulated_update_equals_one_backward_over_the_whole_batch(cuts, optimizer):
    ours, theirs, (x, y) = net(), net(), data()
    ours_opt, theirs_opt = (optimizer(model.parameters(), lr=0.1) for model in (ours, theirs))
    for _ in range(3):
        grads.inner_update(ours, ours_opt, losses(ours, x, y, cuts))
        theirs_opt.zero_grad()
        nn.functional.mse_loss(theirs(x), y).backward()
        theirs_opt.step()
    assert_equal(ours, theirs)


def test_accumulate_keeps_no_reference_to_the_callers_buffer():
    p, buffer = nn.Parameter(torch.zeros(3)), torch.ones(3)
    grads.accumulate([p], [buffer])
    buffer.fill_(100.0)
    grads.accumulate([p], [None])
    assert p.grad.tolist() == [1.0] * 3


def test_a_clipped_update_equals_torchs_own_clipping():
    ours, theirs, (x, y) = net(), net(), data()
    opt = torch.optim.SGD(ours.parameters(), 0.1)
    grads.inner_update(ours, opt, losses(ours, x, y, [(0, 12)]), grads.guard(0.01, 1e9))
    opt = torch.optim.SGD(theirs.parameters(), 0.1)
    nn.functional.mse_loss(theirs(x), y).backward()
    nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)
    opt.step()
    assert_equal(ours, theirs)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e6])
def test_the_guard_drops_an_update_whose_norm_is_too_large_or_not_finite(bad):
    model = net()
    before, opt = copy.deepcopy(model.state_dict()), torch.optim.SGD(model.parameters(), 0.1)
    update = grads.inner_update(model, opt, [(model[0].weight * bad).sum()], grads.guard(0.3, 10.0))
    assert update.skipped and not update.norm <= 10
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("bad", [[math.nan], [math.inf], [-math.inf], [math.inf, -math.inf]])
def test_health_counts_bad_scalars_and_names_their_parameter(dtype, bad):
    model = net().to(dtype)
    largest = torch.finfo(dtype).max * 0.9  # its sum overflows, and it is finite
    for name, p in list(model.named_parameters())[:2]:
        with torch.no_grad():
            p.fill_(largest)
            assert grads.health(model)
            p.view(-1)[-len(bad) :] = torch.tensor(bad, dtype=dtype)
        health = grads.health(model)
        nan, inf = sum(map(math.isnan, bad)), sum(map(math.isinf, bad))
        assert health.where == {name: (nan, inf)} and not health and health.nonfinite == len(bad)
        assert str(health) == f"{nan} NaN and {inf} Inf in 1 parameters, first {name} ({nan} NaN, {inf} Inf)"
        p.data.fill_(0.0)


def test_health_handles_frozen_integer_empty_and_missing_parameters():
    model = net()
    model.register_parameter("empty", nn.Parameter(torch.zeros(0)))
    model.register_parameter("count", nn.Parameter(torch.tensor([2**31 - 1]), requires_grad=False))
    model[0].weight.requires_grad_(False)
    assert grads.health(model) and grads.health(nn.Identity())
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    assert grads.health(model).nonfinite == 1


def test_restore_brings_back_every_bit_and_forgets_the_optimizers_moments():
    model, (x, y) = net(), data()
    opt = torch.optim.AdamW(model.parameters(), 0.1)
    snapshot, before = grads.Snapshot(model), copy.deepcopy(model.state_dict())
    grads.inner_update(model, opt, losses(model, x, y, [(0, 12)]))
    assert not torch.equal(model[0].weight, before["0.weight"])
    snapshot.restore(model, opt)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items()) and not opt.state


@pytest.mark.parametrize(
    "setting", [{"max_norm": 0}, {"max_norm": -1.0}, {"skip_above": 0.0}, {"skip_above": math.nan}]
)
def test_a_guard_that_cannot_be_is_refused(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        grads.guard(**setting)
