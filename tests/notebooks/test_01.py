import pytest
import torch
from cut import bug_cells, claims

from labkit import checks, grads, kl


def test_the_check_that_passes_on_the_fix_fails_on_the_bug_cut_out_of_the_lesson():
    bug = bug_cells("01")["step_anyway"]
    assert checks.guard(grads.guard())
    assert not checks.guard(bug)


def test_the_lessons_kl_overflows_where_the_fix_does_not():
    bug = bug_cells("01")["exp_kl"]
    far = torch.full((1, 1), -100.0, requires_grad=True), torch.zeros(1, 1)
    assert not bug(*far).isfinite().all()
    assert kl.k3_clamped(*far).isfinite().all()
    assert not checks.kl_estimator(bug, role="loss") and checks.kl_estimator(kl.k3_clamped, role="loss")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("seed", range(10))
def test_every_verdict_holds_for_this_seed(tmp_path, monkeypatch, seed, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    committed, made, error = claims("01", tmp_path, SEED=seed, DEVICE="cpu")
    assert not error and made == committed
