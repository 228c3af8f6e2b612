import inspect
import json
import math
import re

import pytest
import torch
from cut import bug_cells, path_of

from labkit import checks, kl


@pytest.fixture(scope="module")
def bugs():
    return bug_cells("03")


def pulls(estimator, d, **more):
    """The pull towards the reference of one token at each d."""
    d = torch.as_tensor(d, dtype=torch.float32)
    logp = (-d).clone().requires_grad_()
    (slope,) = torch.autograd.grad(estimator(logp[None], torch.zeros(1, len(d)), **more).sum(), logp)
    return -slope


def test_the_check_that_passes_on_the_fix_fails_on_the_formulas_cut_out_of_the_lesson(bugs):
    assert checks.kl_estimator(kl.k2, role="loss")
    for name in ("k3_as_written", "report_clamp", "output_clamp"):
        assert not checks.kl_estimator(bugs[name], role="loss"), name


def test_the_lessons_bug_is_a_sound_estimate_and_only_its_slope_is_not(bugs):
    """Unbiased by enumeration over a vocabulary, and at d = 6 four hundred times the pull of d = 0.69."""
    assert checks.kl_estimator(bugs["k3_as_written"])
    assert pulls(bugs["k3_as_written"], [6.0, math.log(2)]).tolist() == pytest.approx([402.43, 1.0], rel=1e-4)


def test_the_reports_clamp_is_no_kl_in_value_or_gradient(bugs):
    report = checks.kl_estimator(bugs["report_clamp"])
    assert not report and "other side counts as 0" in report.hint


def test_clamping_the_output_is_finite_forward_and_nan_backward(bugs):
    logp = torch.tensor([[-100.0]], requires_grad=True)
    value = bugs["output_clamp"](logp, torch.zeros(1, 1))
    value.sum().backward()
    assert value.item() == 10.0 and torch.isnan(logp.grad).all()


def test_an_output_clamp_at_10_pulls_as_an_input_clamp_at_2_61_does_and_so_does_verls(bugs):
    """verl, commit b178a3cd, clamps d to ±20 first: that takes the NaN away and no more."""

    def verl(logp, ref_logp):
        d = (ref_logp - logp).clamp(-20, 20)
        return (d.exp() - d - 1).clamp(-10, 10)

    d = torch.linspace(-6, 12, 400)
    output = pulls(bugs["output_clamp"], d)
    assert torch.equal(output, pulls(verl, d))
    dead = d[output.abs() == 0]
    assert dead.min() == pytest.approx(2.61, abs=0.05) and output.max() == pytest.approx(12.6, abs=0.6)
    torch.testing.assert_close(output, pulls(lambda a, b: kl.k3_clamped(a, b, limit=dead.min() - 1e-3), d))


def test_the_slope_of_ratio_times_k3_is_minus_ratio_times_d_on_fresh_and_on_old_tokens(bugs):
    d = torch.linspace(-3, 8, 50)
    torch.testing.assert_close(pulls(bugs["k3_ratio"], d), d, rtol=1e-4, atol=1e-4)
    old = torch.full((1, 50), -0.5)
    ratio = (-d - old[0]).exp()
    torch.testing.assert_close(pulls(bugs["k3_ratio"], d, old_logp=old), ratio * d, rtol=1e-3, atol=1e-4)


def test_both_forms_of_k3_have_the_same_slope(bugs):
    """So the lost digits of `exp(d) - d - 1` cannot matter in training."""
    d = torch.logspace(-7, 1, 200)
    torch.testing.assert_close(pulls(bugs["k3_as_written"], d), pulls(kl.k3, d), rtol=1e-6, atol=2e-7)


def test_the_controllers_largest_steps_are_20_percent_and_ziegler_et_als_2():
    for gain, most in ((1.0, 1.2), (0.1, 1.02)):
        beta = kl.AdaptiveBeta(0.25, gain=gain)
        assert beta.update(100.0) / 0.25 == pytest.approx(most)


# The exercise ----------------------------------------------------------------------------------------------


def solution():
    cells = json.loads(path_of("03").read_text())["cells"]
    (source,) = ["".join(c["source"]) for c in cells if "labkit.exercise(" in "".join(c["source"])]
    space = {}
    exec(re.search(r"```python\n(.*?)```", source, re.DOTALL)[1], space)
    return space["my_kl"]


def test_the_solution_can_be_pasted_and_passes():
    assert checks.kl_estimator(solution(), role="loss", steepest=5, alive_to=10)


def test_the_exercise_refuses_every_formula_of_the_lesson(bugs):
    formulas = {**kl.estimators, **{name: bugs[name] for name in ("report_clamp", "output_clamp", "k3_ratio")}}
    for name, formula in formulas.items():
        assert not checks.kl_estimator(formula, role="loss", steepest=5, alive_to=10), name


# What the lesson says of the frameworks --------------------------------------------------------------------


def test_trls_default_is_no_kl_term_and_with_one_k3_times_the_ratio():
    trl = pytest.importorskip("trl")
    fields = trl.GRPOConfig.__dataclass_fields__
    assert fields["beta"].default == 0.0 and fields["use_bias_correction_kl"].default is True
    source = " ".join(inspect.getsource(trl.GRPOTrainer._compute_loss).split())
    plain = "torch.exp(ref_per_token_logps - per_token_logps) - (ref_per_token_logps - per_token_logps) - 1"
    assert plain in source and "per_token_kl = per_token_kl * coef_1" in source
    assert "kl_log_ratio_clip" not in fields


def test_transformers_and_trl_clip_gradients_at_1_unless_told_otherwise():
    transformers, trl = pytest.importorskip("transformers"), pytest.importorskip("trl")
    for config in (transformers.TrainingArguments, trl.GRPOConfig):
        assert config.__dataclass_fields__["max_grad_norm"].default == 1.0


def test_the_fix_compares_nothing_on_the_cpu_with_what_is_on_another_device():
    cells = ["".join(cell["source"]) for cell in json.loads(path_of("03").read_text())["cells"]]
    space = {"torch": torch, "k3_ratio": lambda logp, ref_logp, old_logp: old_logp}
    exec(next(source for source in cells if source.startswith("class RatioK3")), space)
    there = torch.zeros(2, 3, device="meta")  # a first call, on a device that is not the CPU
    assert space["RatioK3"]()(there, there).device.type == "meta"
