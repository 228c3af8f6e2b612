import pytest
import torch
from cut import bug_cells, claims

from labkit import checks, rollout

OPEN = "16+01="  # the policy wavers between several first tokens here


def test_the_check_that_passes_on_the_fix_fails_on_the_bug_cut_out_of_the_lesson(tiny):
    broadcast = bug_cells("04")["broadcast"]
    assert checks.first_token(lambda n: rollout.generate(tiny, [OPEN], num_samples=n).tokens)
    report = checks.first_token(lambda n: broadcast(tiny, [OPEN], num_samples=n).tokens, calls=16)
    assert not report and "drawn once and copied" in report.hint, report


def test_the_lessons_bug_shares_the_draw_and_nothing_else(tiny):
    """Rows of a prompt stay together, and one row of each group is distributed as the fix's rows are."""
    bug = bug_cells("04")
    assert bug["one_for_all"](torch.eye(3), 2, lambda z: z.argmax(-1)).tolist() == [0, 0, 1, 1, 2, 2]
    dice = torch.Generator().manual_seed(0)
    out = bug["broadcast"](tiny, [OPEN] * 3000, num_samples=2, max_new_tokens=1, generator=dice)
    ids, mask = tiny.encode([OPEN])
    p = tiny.model(input_ids=ids, attention_mask=mask).logits[0, -1].softmax(-1)
    seen = torch.bincount(out.tokens[::2, 0], minlength=len(p))
    keep = p * 3000 > 5
    chi2 = ((seen[keep] - 3000 * p[keep]).square() / (3000 * p[keep])).sum()
    assert keep.sum() >= 4 and chi2 < 40  # at most 16 symbols: 1e-3 tail is 37.7


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("seed", range(10))
def test_every_verdict_holds_for_this_seed(tmp_path, monkeypatch, seed, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    committed, made, error = claims("04", tmp_path, SEED=seed, DEVICE="cpu")
    assert not error and made == committed
