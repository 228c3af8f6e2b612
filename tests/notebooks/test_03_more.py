"""The KL laboratory: what its text says of its formulas and does not show, and that any function of the reader runs."""

import math

import pytest
import torch
from cut import Page
from props import lesson_03_laboratory as lab
from props.arms import last_exam, side_by_side

from labkit.grpo import Hooks
from labkit.grpo.grads import Update
from labkit.grpo.kl import exact


@pytest.fixture(scope="module")
def page():
    return Page("03-more")


def counted(seed):
    """Log-probs of 9 symbols at 30 positions under policy, reference and old policy; the logits of the first two."""
    logits = torch.randn(3, 30, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return [x.log_softmax(-1) for x in logits], logits


@pytest.mark.parametrize("seed", range(5))
def test_the_solution_and_k3_times_ratio_differ_by_what_has_the_mean_0(page, seed):
    (logp, ref_logp, old_logp), _ = counted(seed)
    ratio, d = (logp - old_logp).exp(), ref_logp - logp
    quiet = page["k3_times_ratio"](logp, ref_logp, old_logp)
    torch.testing.assert_close(quiet - page["ratio_times_k1"](logp, ref_logp, old_logp), ratio * d.expm1())
    assert (old_logp.exp() * ratio * d.expm1()).sum(-1).abs().max() < 1e-12


def test_on_fresh_draws_k1_has_no_mean_gradient_and_that_of_a_single_batch_is_not_0(page):
    (_, ref_logp, _), logits = counted(0)
    policy = logits[0].clone().requires_grad_()
    logp = policy.log_softmax(-1)
    value = page["k1"](logp, ref_logp, logp.detach())
    (mean,) = torch.autograd.grad((logp.detach().exp() * value).sum(), policy, retain_graph=True)
    drawn = torch.multinomial(logp.detach().exp(), 1, generator=torch.Generator().manual_seed(0))
    (batch,) = torch.autograd.grad(value.gather(-1, drawn).sum(), policy)
    assert mean.abs().max() < 1e-12 and batch.norm() > 1


def test_k3s_gradient_on_fresh_draws_is_that_of_the_other_kl(page):
    (_, ref_logp, _), logits = counted(1)
    policy = logits[0].clone().requires_grad_()
    logp = policy.log_softmax(-1)
    value = page["k3"](logp, ref_logp, logp.detach())
    (mean,) = torch.autograd.grad((logp.detach().exp() * value).sum(), policy, retain_graph=True)
    (other,) = torch.autograd.grad(exact(logits[1], policy).sum(), policy)
    torch.testing.assert_close(mean, other)


def test_the_slope_of_k3_times_ratio_is_d_times_the_ratio(page):
    logp = torch.tensor([-2.5], dtype=torch.float64, requires_grad=True)
    term = page["k3_times_ratio"](logp, torch.zeros(1, dtype=torch.float64), torch.tensor([-0.5], dtype=torch.float64))
    (by_logp,) = torch.autograd.grad(term.sum(), logp)
    assert -by_logp.item() == pytest.approx(2.5 * math.exp(-2.0))


def test_verls_clamps_are_its_sources_input_20_and_result_10(page):
    """verl at commit b178a3c, core_algos.kl_penalty_forward: exp of d within ±20, minus d, minus 1, within ±10."""
    values = {d: lab.value_and_slope(page["low_var_kl"], d) for d in (-12.0, 2.6, 2.62, 50.0)}
    assert values[-12.0][0] == pytest.approx(10) and values[-12.0][1] == 0
    assert values[2.6][0] < 10 and values[2.6][1] > 12
    assert values[2.62] == values[50.0] == (10, 0)


def test_every_position_of_the_knob_has_all_its_numbers_inside_the_frame(page):
    from matplotlib.figure import Figure

    for curve in ("k2", "k3 × ratio"):
        for d in (-4, 0, 11):
            axes = Figure().subplots(1, 2)
            lab.draw_token(axes, page["tokens"], curve, d)
            low, high = axes[0].get_xlim()
            drawn = [x for line in axes[0].lines for x in line.get_xdata() if line.get_marker() in "oD"]
            assert len(drawn) == 2 * len(page["SEVEN"]) and all(low < x < high for x in drawn)


def died_with(error):
    def raises(logp, ref_logp, old_logp):
        raise error

    return raises


@pytest.mark.parametrize(
    "function",
    [died_with(KeyError("ratio")), lambda *_: 3.0, lambda logp, *_: (logp * 0).detach(), lambda logp, *_: logp[:1]],
    ids=["raises", "a number", "without a gradient", "another shape"],
)
def test_a_wrong_function_of_the_readers_is_a_row_that_died_and_not_an_exception(page, function):
    measured = lab.of_each(page["measure"], {"yours": function, "k2": page["k2"]}, page["old"])
    mine, k2 = lab.rows_of(measured)
    assert k2["gradient's length"] and (mine["KL after a step"] == "" or measured["yours"])


def test_a_run_that_died_has_the_exam_0_and_an_infinite_kl(page):
    arm = page["with_kl"](died_with(KeyError("ratio")))
    settings = {"policy": "tiny", "device": "cpu", "rounds": 1, "mu": 1}
    (run,) = side_by_side({"": arm}, [0], lab.learn, **settings)[""]
    assert not run.outcome and last_exam(run) == 0.0
    assert lab.kl_at_end(run) == lab.norm_of_update_2(run) == math.inf
    assert lab.three([run, run], lab.kl_at_end) == "died died" and lab.three([], lab.kl_at_end) == ""
    assert lab.three([run], last_exam) == "0.00"


def test_a_policy_that_does_not_move_ends_with_a_kl_of_0():
    (*_, end) = lab.learn("tiny", "cpu", Hooks(update=lambda *_: Update(0.0)), seed=0, rounds=1, mu=1)
    assert abs(end[lab.KL_AT_END]) < 1e-6
