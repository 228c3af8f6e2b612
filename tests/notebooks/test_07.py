import os
import random

import pytest
from cut import bug_cells, claims

from labkit.checks.setting_applies import CANARY, first_use, setting_applies

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
ON = "expandable_segments:True"


def by_version(version, environ):
    """The new name where it is read; there the old one must go, since it would win."""
    numbers = tuple(int(n) for n in version.split(".")[:2])
    if numbers < (2, 10):
        return {**environ, OLD: ON}
    return {**{n: v for n, v in environ.items() if n != OLD}, NEW: ON}


def always_old(version, environ):
    return {**environ, OLD: ON}


def test_the_check_that_passes_on_the_fix_fails_on_the_bug_cut_out_of_the_lesson():
    bug = setting_applies(bug_cells("07")["report_environment"])
    assert not bug and bug.seen["torch"] == "2.6.0" and "does not read" in bug.hint
    assert setting_applies(always_old, device="cpu")
    assert setting_applies(by_version, device="cpu").seen["a new process here"] == "reads it"


@pytest.mark.parametrize(
    "wrong, words",
    [
        (lambda version, environ: {**environ, OLD: ON, NEW: ON} if version >= "2.9" else {**environ, NEW: ON}, "2.6.0"),
        (lambda version, environ: {**environ, (NEW if version >= "2.9" else OLD): ON}, "2.9.1"),  # the warning obeyed
        (lambda version, environ: {**environ, (OLD if version < "2.10" else NEW): ON}, "2.6.0"),  # "2.6" > "2.10"
        (lambda version, environ: {OLD: ON}, "inherited environment was lost"),
        (lambda version, environ: {"PATH": "", OLD: ON}, "inherited environment was lost"),
        (lambda version, environ: {"PATH": environ["PATH"], "HOME": environ["HOME"], OLD: ON}, "LD_LIBRARY_PATH"),
        (lambda version, environ: {**environ, "PATH": "/opt:" + environ["PATH"], OLD: ON}, "changed [PATH]"),
        (lambda version, environ: {n: v for n, v in environ.items() if v} | {OLD: ON}, "changed [LD_LIBRARY_PATH]"),
        (lambda version, environ: {**environ, OLD: "expandable_segments:true"}, "reads PYTORCH_CUDA_ALLOC_CONF alone"),
        (lambda version, environ: {**environ, OLD: "expandible_segments:True"}, "reads PYTORCH_CUDA_ALLOC_CONF alone"),
        (lambda version, environ: {**environ, OLD: True}, "texts only"),
        (lambda version, environ: environ.update({OLD: ON}), "return is missing"),
        (lambda version, environ: ON, "Expected a dict"),
        (None, "no function yet"),
    ],
)
def test_environments_that_do_not_switch_it_on_are_refused_and_say_why(wrong, words):
    report = setting_applies(wrong, prove=False)
    assert not report and words in repr(report), report


@pytest.mark.parametrize(
    "right",
    [
        always_old,
        lambda version, environ: environ.update({OLD: ON}) or environ,  # in place
        lambda version, environ: dict(environ, CUDA_VISIBLE_DEVICES="0", **{OLD: ON}),  # more may be added
        lambda version, environ: {n: v for n, v in environ.items() if "ALLOC_CONF" not in n} | {OLD: ON},
    ],
)
def test_an_environment_that_keeps_the_rest_passes(right):
    report = setting_applies(right, prove=False)
    assert report, report


def test_the_environment_of_this_process_is_compared_too(monkeypatch):
    monkeypatch.setenv("LABKIT_TEST_ONLY", "1")
    inherited = ("PATH", "HOME", "LD_LIBRARY_PATH", "WANDB_MODE")
    some = setting_applies(lambda v, environ: {n: environ[n] for n in inherited if n in environ} | {OLD: ON})
    assert not some and "inherited environment was lost" in some.hint, some
    assert "LABKIT_TEST_ONLY" in some.seen["lost or changed"]


def test_a_new_name_beside_an_inherited_old_one_is_found_out():
    report = setting_applies(lambda version, environ: {**environ, NEW: ON}, versions=["2.13.0"], prove=False)
    assert not report and report.seen["inherited"] == f"{OLD}=max_split_size_mb:256"


def test_the_proof_is_torchs_own_and_not_the_tables(monkeypatch):
    """With a table that believes in another name, the process still says that nobody reads it."""
    from labkit.memory import settings

    monkeypatch.setattr(settings, "_reads", lambda version: ["PYTORCH_HIP_ALLOC_CONF"])
    hip_and_old = {"PYTORCH_HIP_ALLOC_CONF": ON, OLD: "max_split_size_mb:64"}
    hip = setting_applies(lambda version, environ: {**environ, **hip_and_old}, device="cpu")
    assert not hip and hip.seen["a new process here"] == "does not read it"


def test_a_variable_set_after_the_first_use_is_not_read_and_one_set_before_is():
    from labkit import sandbox

    def process(early):
        if early:
            os.environ[OLD] = CANARY
        first_use("cpu")
        bug_cells_configure(CANARY)
        first_use("cpu")
        yield os.environ[NEW]

    bug_cells_configure = bug_cells("07")["configure"]
    late = sandbox.run(process, False)
    assert late.outcome and late.events == [CANARY]
    assert "max_split_size_mb" in sandbox.run(process, True).outcome.message


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(10))
def test_every_verdict_holds_for_this_seed(tmp_path, monkeypatch, seed):
    monkeypatch.setenv("OMP_NUM_THREADS", random.Random(seed).choice("12"))  # no tensor is computed in this lesson
    committed, made, error = claims("07", tmp_path, SEED=seed, DEVICE="cpu")
    assert not error and made == committed
