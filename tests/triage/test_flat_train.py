"""The trainer of the made runs: its flat settings are labkit's, with nets."""

from labkit import grads, kl
from labkit.grpo import Hooks, Safety, Sampling
from labkit.grpo import train as grouped

SAME = ("loss", "reward", "kl", "grad_norm", "ratio_max", "entropy", "clip_fraction", "skipped")


def numbers(events):
    return [[step[name] for name in SAME] for step in events]


def test_the_flat_defaults_are_k2_the_guard_and_all_clamps_and_flat_settings_arrive_where_they_belong(script):
    train = script("triage/flat_train").train
    guarded = {"safety": Safety.recommended(), "hooks": Hooks(update=grads.guard()), "kl": kl.k2}
    assert numbers(train(seed=3, rounds=2)) == numbers(grouped(seed=3, rounds=2, **guarded))
    flat = {"prompts": 3, "num_samples": 4, "max_new_tokens": 3, "temperature": 0.7, "top_k": 5, "top_p": 0.9}
    plain = {"log_ratio_max": None, "logit_max": None, "advantage_max": None, "update": grads.plain_step}
    old = numbers(train("tiny", "max", rounds=1, kl=kl.k3, check="off", **flat, **plain))
    new = numbers(grouped("max", rounds=1, sampling=Sampling(**flat), max_norm=None))
    assert old == new
