"""Streams of steps to watch. A light module of its own: the process of a run imports the module of its function."""

import time

from labkit.events import Step


def healthy(steps=12, mu=4):
    """A stream with the shape of a training run: rounds of `mu` inner updates."""
    for s in range(1, steps + 1):
        yield Step(step=s, round=1 + (s - 1) // mu, inner=1 + (s - 1) % mu, grad_norm=1.0 / s, kl=0.01 * s, reward=0.1)


def hung(steps=3):
    yield from healthy(steps)
    time.sleep(600)


def with_settings(steps=4, speed=1.0, kind="fix", lr=0.1):
    """Steps that say which settings arrived."""
    for s in range(1, steps + 1):
        yield Step(step=s, reward=speed, grad_norm=lr, extra={"kind": float(kind == "bug")})
