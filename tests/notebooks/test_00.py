import pytest
from cut import bug_cells, claims

from labkit import checks


def test_the_thumbnails_bugs_are_bugs_to_the_checks():
    bug = bug_cells("00")
    assert not checks.accumulation(bug["overwrite"])
    assert not checks.kl_estimator(bug["exp_kl"], role="loss")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(10))
def test_every_verdict_holds_for_this_seed(tmp_path, seed):
    committed, made, error = claims("00", tmp_path, SEED=seed, DEVICE="cpu")
    assert not error and made == committed
