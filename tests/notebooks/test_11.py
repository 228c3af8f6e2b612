import pytest
from cut import bug_cells, claims

from labkit.checks import memory_budget

GIB = 2**30
GIVEN = {"batch": 24, "group": 8, "prompt": 256, "new_tokens": 768, "reference": True}  # the lesson's
SMALL = {"batch": 4, "group": 2, "prompt": 32, "new_tokens": 96}


def smaller(given):
    return {**given, "micro_batches": 12, "checkpointing": True, "amp": True}


def test_the_check_that_passes_on_the_fix_fails_on_the_bug_cut_out_of_the_lesson():
    recipe = bug_cells("11")["report_settings"]
    report = memory_budget(recipe, GIVEN, 16 * GIB, prove=False)
    assert not report and report.seen["changed"] == ["batch", "new_tokens", "lora"]
    assert memory_budget(smaller, GIVEN, 16 * GIB, spare=0.25, prove=False)


def test_splitting_alone_leaves_the_cache_of_the_rollout_and_the_check_names_it():
    report = memory_budget(lambda given: {**given, "micro_batches": 96}, GIVEN, 16 * GIB, prove=False)
    assert not report and report.seen["in"] == "generate" and "kv-cache" in report.hint


@pytest.mark.parametrize(
    "wrong, words",
    [
        (lambda given: given, "largest term"),
        (lambda given: {"micro_batches": 4, "amp": True}, "another training run"),
        (lambda given: {**given, "optimizer": "sgd"}, "another training run"),
        (lambda given: {**given, "reference": False}, "another training run"),
        (lambda given: {**given, "micro_batches": 7}, "does not divide"),
        (lambda given: {**given, "checkpoint": True}, "cannot be"),
        (lambda given: given.update(amp=True), "Expected a dict"),
        (None, "no function yet"),
    ],
)
def test_settings_that_change_the_run_or_do_not_fit_are_refused_and_say_why(wrong, words):
    report = memory_budget(wrong, GIVEN, 16 * GIB, prove=False)
    assert not report and words in f"{report.seen} {report.hint}", report


def test_a_proof_runs_the_step_on_a_card_of_that_size():
    """No tenth to spare, and a limit that the prediction just meets: the allocator has the last word."""
    from labkit.memory import Shape, predict

    shape = Shape(layers=2, width=128, heads=4, vocab=8000, positions=128)
    split = {**SMALL, "micro_batches": 2}
    need = predict(shape, **split).peak
    tight = memory_budget(lambda given: split, SMALL, need, spare=0.0, model=shape)
    assert not tight and tight.seen["measured"] == "out of memory"
    roomy = memory_budget(lambda given: split, SMALL, int(need * 1.4), spare=0.0, model=shape)
    assert roomy and roomy.seen["measured"].endswith("MiB")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_solution_of_the_exercise_really_runs_on_a_16_gib_card():
    assert memory_budget(smaller, GIVEN, 16 * GIB, spare=0.25)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("seed", [0, 9])  # no verdict depends on a random number
def test_every_verdict_holds_for_this_seed(tmp_path, monkeypatch, seed, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    committed, made, error = claims("11", tmp_path, SEED=seed, DEVICE="cpu")
    assert not error and made == committed
