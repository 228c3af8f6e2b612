"""The parameter check passes real optimizer steps and names every way in which one moves nothing, or too much."""

import copy

import pytest
import torch
from torch import nn

from labkit.checks import step_changes_parameters


def make(dtype=torch.float32):
    """A model, a batch, and a closure that runs forward and backward."""
    rng = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 4)).to(dtype)
    for p in model.parameters():
        p.data = (0.5 * torch.randn(p.shape, generator=rng)).to(dtype)
    ids = torch.tensor([1, 2, 3, 1])

    def backward(scale=1.0):
        (scale * model(ids).float().square().mean()).backward()

    return model, backward


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


def stepping(model, optimizer, backward, zero=True):
    def step():
        backward()
        optimizer.step()
        if zero:
            optimizer.zero_grad()

    return step


# Right ------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": sgd,
    "momentum": lambda m: sgd(m, momentum=0.9),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-5),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=1e-3),
    "foreach": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-5, foreach=True),
    "two groups": lambda m: torch.optim.AdamW([{"params": [p]} for p in m.parameters()], lr=1e-4),
    "maximize": lambda m: sgd(m, maximize=True),
}


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_step_of_any_optimizer_passes(make_optimizer):
    model, backward = make()
    report = step_changes_parameters(stepping(model, make_optimizer(model), backward), model)
    assert report, report
    assert (report.seen["changed"], report.seen["optimizer_steps"]) == (5, 1)


def test_updates_by_hand_and_a_list_of_parameters_pass():
    model, backward = make()

    def step():
        backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad

    assert step_changes_parameters(step, model)
    assert step_changes_parameters(step, nn.ParameterList(model.parameters()))


def test_frozen_parameters_and_unused_ones_may_stay():
    model, backward = make()
    model[1].weight.requires_grad_(False)
    model[0].add_module("unused", nn.Linear(3, 3))
    report = step_changes_parameters(stepping(model, sgd(model), backward), model)
    assert report, report
    assert [report.seen[k] for k in ("parameters", "changed", "frozen", "without_gradient")] == [7, 4, 1, 2]


def test_the_first_step_of_a_lora_adapter_passes_though_one_factor_has_a_zero_gradient():
    from peft import LoraConfig, get_peft_model

    model, _ = make()
    model = get_peft_model(model, LoraConfig(target_modules=["1"], r=2))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0)
    step = stepping(model, optimizer, lambda: model(torch.tensor([1, 2])).square().mean().backward())
    report = step_changes_parameters(step, model)
    assert report, report
    assert (report.seen["changed"], report.seen["frozen"]) == (1, 5)


def test_a_gradient_of_rounding_noise_need_not_move_its_parameter():
    model, backward = make()
    model.register_parameter("bias_without_effect", nn.Parameter(torch.full((3,), 100.0)))

    def noisy():
        backward()
        model.bias_without_effect.grad = torch.full((3,), 1e-9)

    assert step_changes_parameters(stepping(model, sgd(model), noisy), model)


def test_accelerates_step_passes():
    from accelerate import Accelerator

    model, backward = make()
    accelerator = Accelerator(cpu=True)
    prepared, optimizer = accelerator.prepare(model, sgd(model))

    def step():
        accelerator.backward(prepared(torch.tensor([1, 2])).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    report = step_changes_parameters(step, model)
    assert report, report


# Wrong ------------------------------------------------------------------------------------------------------


def case_frozen(model, backward):
    model.requires_grad_(False)
    return lambda: None


def case_no_step(model, backward):
    return backward


def case_nothing(model, backward):
    return lambda: None


def case_swallowed(model, backward):
    def step():
        try:
            backward()
            raise RuntimeError("CUDA error")
        except RuntimeError:
            pass

    return step


def case_other_copy(model, backward):
    other = copy.deepcopy(model)

    def step():
        backward()
        for p, q in zip(other.parameters(), model.parameters(), strict=True):
            p.grad = q.grad
        sgd(other).step()

    return step


def case_rate_zero(model, backward):
    return stepping(model, sgd(model, lr=0.0), backward)


def case_zero_grad_between(model, backward):
    optimizer = sgd(model)

    def step():
        backward()
        optimizer.zero_grad()
        optimizer.step()

    return step


def case_zero_loss(model, backward):  # tied groups: every advantage is 0
    return stepping(model, sgd(model), lambda: backward(0.0))


def case_half_held(model, backward):
    return stepping(model, torch.optim.SGD(model[0].parameters(), lr=0.1), backward)


def case_group_at_zero(model, backward):
    groups = [{"params": model[0].parameters()}, {"params": [*model[1:].parameters()], "lr": 0.0}]
    return stepping(model, torch.optim.SGD(groups, lr=0.1), backward)


def case_thawed(model, backward):
    model[1].requires_grad_(False)

    def step():
        stepping(model, sgd(model), backward)()
        model[1].weight.data.mul_(0.99)

    return step


def case_nan_gradient(model, backward):
    return stepping(model, sgd(model), lambda: backward(float("inf")))


def case_exploded(model, backward):
    return stepping(model, sgd(model, lr=3e38), lambda: backward(100.0))


def case_nan_before(model, backward):
    model[2].weight.data[0, 0] = torch.nan
    return stepping(model, sgd(model), backward)


def case_replaced(model, backward):
    def step():
        model[1].weight = nn.Parameter(model[1].weight.detach() + 1)

    return step


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        (case_frozen, "no parameter requires a gradient"),
        (case_no_step, "backward ran, but no optimizer stepped"),
        (case_nothing, "no backward, no optimizer step"),
        (case_swallowed, "an exception was swallowed"),
        (case_other_copy, "holds none of this model's parameters"),
        (case_rate_zero, "the learning rate is 0"),
        (case_zero_grad_between, "every gradient was None"),
        (case_zero_loss, "every gradient was exactly zero"),
        (case_half_held, "no optimizer holds them"),
        (case_group_at_zero, "a parameter group with learning rate 0"),
        (case_thawed, "A frozen parameter changed"),
        (case_nan_gradient, "A gradient was NaN or inf"),
        (case_exploded, "Likely the learning rate"),
        (case_nan_before, "NaN or inf before the step"),
        (case_replaced, "replaced by new tensors"),
    ],
)
def test_each_mistake_fails_with_its_own_cause(case, cause):
    model, backward = make()
    report = step_changes_parameters(case(model, backward), model)
    assert not report
    assert cause in report.hint, report


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "make_optimizer",
    [lambda m: torch.optim.AdamW(m.parameters(), lr=1e-6, eps=1e-3, weight_decay=0), lambda m: sgd(m, lr=1e-4)],
    ids=["adamw", "sgd"],
)
def test_updates_that_round_away_in_half_precision_are_found_though_some_entries_move(dtype, make_optimizer):
    model, backward = make(dtype)
    report = step_changes_parameters(stepping(model, make_optimizer(model), backward), model)
    assert not report and "rounds away" in report.hint, report
    assert 0 <= report.seen["moved_share"] < 0.5


def test_an_update_large_enough_for_bfloat16_passes():
    model, backward = make(torch.bfloat16)
    report = step_changes_parameters(stepping(model, sgd(model, lr=3.0), backward), model)
    assert report, report
    assert report.seen["moved_share"] > 0.5


def test_no_hook_is_left_behind_even_when_the_step_raises():
    from torch.optim import optimizer as module

    model, backward = make()

    def step():
        backward()
        raise RuntimeError("out of memory")

    before = len(module._global_optimizer_pre_hooks)
    report = step_changes_parameters(step, model)
    assert not report and "out of memory" in report.seen["exception"]
    assert len(module._global_optimizer_pre_hooks) == before
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_what_is_no_model_is_refused_by_name():
    with pytest.raises(ValueError, match="no parameters"):
        step_changes_parameters(lambda: None, nn.ReLU())
    with pytest.raises(TypeError, match="must be an nn.Module, got int"):
        step_changes_parameters(lambda: None, 3)
