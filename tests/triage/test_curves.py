"""What a column does: level, trend, change, spikes, zeros; and what rules say of whole curves."""

import random
from pathlib import Path

import pytest

from labkit import triage
from labkit.triage.curves import Curve, Point
from labkit.triage.rows import Row

HERE = Path(__file__).parent


def curve(*values):
    return Curve("reward", [Point(at, Row(at, {"step": at}), value) for at, value in enumerate(values)])


def test_noise_alone_neither_rises_nor_falls_and_a_slope_in_it_is_found():
    wrong = 0
    for seed in range(60):
        dice = random.Random(seed)
        noise = [dice.gauss(0, 1) for _ in range(40)]
        wrong += curve(*noise).rises or curve(*noise).falls
        assert curve(*(value + 0.2 * at for at, value in enumerate(noise))).rises
    assert wrong <= 3


def test_the_first_change_of_level_is_found_where_it_was_made():
    dice = random.Random(0)
    values = [dice.gauss(1, 0.1) for _ in range(17)] + [dice.gauss(0.2, 0.1) for _ in range(13)]
    change = curve(*values).change
    assert change.at == 17 and change.clear and change.before > 0.9 and change.after < 0.3


def test_a_spike_comes_back_and_a_step_does_not():
    assert [spike.value for spike in curve(0.01, 0.01, 9.0, 0.01, 0.02, 0.01, 11.0, 0.01).spikes(100, 1)] == [9.0, 11.0]
    assert not curve(0.01, 0.01, 9.0, 9.5, 11.0, 12.0).spikes(100, 1)


def test_a_gradient_that_dies_is_told_from_one_that_never_was_and_from_single_zeros():
    assert curve(4.0, 3.0, 0.0, 0.0).zero_from.at == 2
    assert curve(0.0, 0.0, 0.0).zero_from is None and curve(4.0, 0.0, 3.0, 0.0).zero_from is None


# the six curves of docs/field-cases.md, with what each of them must be called first
SIX = {
    "truncated-all": "truncation",
    "truncated-most": "truncation",
    "length-runaway": "length-runaway",
    "stale-sync-kl-spikes": "sync-or-logprob-mismatch",
    "dead-gradient-by-clip": "clip-saturation",
    "collapse-after-peak": "learning-rate",
}


@pytest.mark.parametrize("name", SIX)
def test_a_curve_of_a_public_thread_is_called_what_it_was(name):
    diagnosis = triage.diagnose(HERE / "curves" / f"{name}.csv")
    assert diagnosis.findings[0].cause == SIX[name] and diagnosis.findings[0].kind == "finding"


# TRL's own logs of the lab's page on TRL: a fault, and what may be said of it; () means that no health may be
TRL = {
    "cut": ("truncation",),
    "topk1": ("identical-completions",),
    "wants": ("tied-rewards", "reward-function-failure"),
    "lastdigit": ("tied-rewards",),
    "othercopy-beta": ("overwritten-or-lost-gradient",),
    "othercopy": (),
    "lr1e-3": (),
    "order-8": (),
}
SOUND = ("sound", "beta", "mu4", "drgrpo", "cispo", "gspo", "temp2")


def test_runs_of_trl_that_are_broken_are_never_called_healthy_and_sound_ones_raise_no_alarm():
    logs = sorted((HERE / "trl").glob("*.log"))
    assert len(logs) > 60
    for path in logs:
        kind = next((name for name in sorted(TRL, key=len, reverse=True) if path.name.startswith(name)), "")
        found = [one.cause for one in triage.diagnose(path).findings]
        if kind:
            assert "healthy-normal" not in found, path.name
            assert not TRL[kind] or found[0] in TRL[kind], path.name
        elif path.name.startswith(SOUND):
            assert set(found) <= {"healthy-normal"}, (path.name, found)
