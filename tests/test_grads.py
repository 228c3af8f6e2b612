import copy
import math
import pickle

import pytest
import torch
from torch import nn

from labkit import grads


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


def data(seed=1, n=12):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=g), torch.randn(n, 1, generator=g)


def losses(model, x, y, cuts):
    for i, j in cuts:
        yield (model(x[i:j]) - y[i:j]).square().sum() / len(x)


@pytest.mark.parametrize("cuts", [[(0, 12)], [(0, 6), (6, 12)], [(0, 1), (1, 4), (4, 12)]])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_an_accumulated_update_equals_one_backward_over_the_whole_batch(cuts, optimizer):
    ours, theirs, (x, y) = net(), net(), data()
    for model in (ours, theirs):
        opt = optimizer(model.parameters(), lr=0.1)
        for _ in range(3):
            if model is ours:
                grads.inner_update(model, opt, losses(model, x, y, cuts))
            else:
                opt.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                opt.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_accumulate_keeps_no_reference_to_the_callers_buffer():
    p, buffer = nn.Parameter(torch.zeros(3)), torch.ones(3)
    grads.accumulate([p], [buffer])
    buffer.fill_(100.0)
    grads.accumulate([p], [None])
    assert p.grad.tolist() == [1.0] * 3


def test_a_clipped_update_equals_torchs_own_clipping():
    ours, theirs, (x, y) = net(), net(), data()
    grads.inner_update(
        ours, torch.optim.SGD(ours.parameters(), 0.1), losses(ours, x, y, [(0, 12)]), grads.guard(0.01, 1e9)
    )
    opt = torch.optim.SGD(theirs.parameters(), 0.1)
    nn.functional.mse_loss(theirs(x), y).backward()
    nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)
    opt.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e6])
def test_the_guard_drops_an_update_whose_norm_is_too_large_or_not_finite(bad):
    model = net()
    before, opt = copy.deepcopy(model.state_dict()), torch.optim.SGD(model.parameters(), 0.1)
    done = grads.inner_update(model, opt, [(p * bad).sum() for p in [model[0].weight]], grads.guard(0.3, 10.0))
    assert done.skipped and not done.norm <= 10
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_without_the_guard_a_nan_gradient_reaches_the_parameters_and_clipping_does_not_help():
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1)

    def clip_only(model, opt):
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        opt.step()
        return grads.Update(float(norm))

    grads.inner_update(model, opt, [(model[0].weight[0, 0] * math.nan) + model(data()[0]).sum()], clip_only)
    found = grads.health(model)
    assert found.nan == sum(p.numel() for p in model.parameters())  # NaN * every gradient: all of them


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_health_finds_one_bad_scalar_anywhere_and_names_its_parameter(dtype, bad):
    g = torch.Generator().manual_seed(0)
    for _ in range(5):
        model = net().to(dtype)
        name, p = list(model.named_parameters())[int(torch.randint(4, (1,), generator=g))]
        where = int(torch.randint(p.numel(), (1,), generator=g))
        with torch.no_grad():
            p.view(-1)[where] = bad
        found = grads.health(model)
        assert not found and found.where == {name: (int(bad != bad), int(bad == bad))} and name in str(found)


def test_infinities_of_both_signs_do_not_cancel_and_huge_finite_values_are_healthy():
    model = net()
    with torch.no_grad():
        model[0].weight[0, :2] = torch.tensor([math.inf, -math.inf])
    assert grads.health(model).inf == 2
    with torch.no_grad():
        model[0].weight.fill_(3e38)  # the sum of squares overflows, the parameters do not
    assert grads.health(model)
    half = net().half()
    with torch.no_grad():
        half[0].weight.fill_(6e4)
    assert grads.health(half)


def test_health_handles_frozen_integer_empty_and_missing_parameters():
    model = net()
    model.register_parameter("empty", nn.Parameter(torch.zeros(0)))
    model.register_parameter("count", nn.Parameter(torch.tensor([2**31 - 1]), requires_grad=False))
    model[0].weight.requires_grad_(False)
    assert grads.health(model) and grads.health(nn.Identity())
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    assert grads.health(model).nan == 1


def test_restore_brings_back_every_bit_and_forgets_the_optimizers_moments():
    model, (x, y) = net(), data()
    opt = torch.optim.AdamW(model.parameters(), 0.1)
    kept, before = grads.Snapshot(model), copy.deepcopy(model.state_dict())
    grads.inner_update(model, opt, losses(model, x, y, [(0, 12)]))
    assert not torch.equal(model[0].weight, before["0.weight"])
    kept.restore(model, opt)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items()) and not opt.state


@pytest.mark.parametrize(
    "setting", [{"max_norm": 0}, {"max_norm": -1.0}, {"skip_above": 0.0}, {"skip_above": math.nan}]
)
def test_a_guard_that_cannot_be_is_refused(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        grads.guard(**setting)


def test_unhealthy_parameters_survive_pickling():
    model = net()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    error = grads.UnhealthyParameters(grads.health(model), "after round 1")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is grads.UnhealthyParameters and back.health == error.health and back.health.nan == 1
    assert (
        str(back)
        == str(error)
        == (
            "after round 1: 1 NaN and 0 Inf in 1 parameters, first 0.weight (1 NaN, 0 Inf); "
            "restore a healthy snapshot before the next rollout"
        )
    )
