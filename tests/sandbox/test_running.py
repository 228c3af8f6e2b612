"""`run`, `start` and `run_all`: what goes in, what comes back, and how an interrupt ends it."""

import os
import signal
import threading
import time
from functools import partial

import pytest
import torch
from children import at_work, count, hang_holding_the_gil, offspring

from labkit import sandbox
from labkit.events import Run
from labkit.sandbox import running


def test_what_comes_back_is_what_was_yielded():
    run = sandbox.run(count, 3, start=4)
    assert repr(run.events) == repr(list(count(3, start=4))) and run.outcome and isinstance(run, Run)
    assert run.meta["settings"] == {"start": 4} and "count" in run.meta["function"]
    assert sandbox.run(lambda: {"answer": 42}).events == [{"answer": 42}]
    assert sandbox.run(lambda: None).events == []
    assert sandbox.run(lambda: iter([1, None, 2])).events == [1, None, 2]
    assert sandbox.run(lambda: [1, 2]).events == [[1, 2]]


def test_a_function_that_names_a_setting_of_torchs_backends_travels():
    import torch

    def settings():  # both are modules of a class of their own, which cloudpickle alone refuses
        yield torch.backends.cuda.is_built(), torch.backends.cudnn.deterministic

    here = torch.backends.cuda.is_built(), torch.backends.cudnn.deterministic
    assert sandbox.run(settings).events == [here]
    back = sandbox.run(lambda: [settings]).events  # and out again, in an event
    assert list(back[0][0]()) == [here]


def test_drain_gives_each_event_once():
    with sandbox.start(count, 100) as child:
        events = []
        while child.alive:
            events += child.drain()
        events += child.drain()
    assert events == child.result().events and len(events) == 100
    assert child.drain() == []


def test_an_interrupt_in_on_event_returns_the_partial_run_and_what_else_it_raises_is_raised():
    def stop_it(event, error):
        raise error

    run = sandbox.run(hang_holding_the_gil, on_event=partial(stop_it, error=KeyboardInterrupt))
    assert run.events == ["before"] and run.outcome.signature == "stopped"
    with pytest.raises(LookupError):
        sandbox.run(hang_holding_the_gil, on_event=partial(stop_it, error=LookupError))


async def later():
    yield 1


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: sandbox.run(count(3)), TypeError, "already started"),
        (lambda: sandbox.run("count"), TypeError, "function: expected"),
        (lambda: sandbox.start(later), TypeError, "async"),
        (lambda: sandbox.run(count, 1, timeout=0), ValueError, "timeout"),
        (lambda: sandbox.run(count, 1, timeout=float("nan")), ValueError, "timeout"),
        (lambda: sandbox.run(count, 1, timeout="5"), ValueError, "timeout"),
        (lambda: sandbox.run(count, 1, env=["A=1"]), TypeError, "env"),
        (lambda: sandbox.run(count, 1, env={"A": 1}), TypeError, "env: A must be a string"),
        (lambda: sandbox.run(count, 1, env={"A=B": "1"}), ValueError, "env"),
        (lambda: sandbox.run(count, 1, fresh="yes"), TypeError, "fresh"),
        (lambda: sandbox.run(count, threading.Lock()), TypeError, "argument 1, <unlocked"),
        (lambda: sandbox.run(count, n=threading.Lock()), TypeError, "argument 'n', <unlocked"),
        (lambda: sandbox.run_all(at_work, {"a": {"name": "a"}}, at_once=0), ValueError, "at_once: expected a whole"),
        (lambda: sandbox.run_all(at_work, {"a": {}, "b": {"timeout": -1}}), ValueError, "timeout"),
    ],
)
def test_a_bad_operand_is_named_before_anything_starts(call, error, text):
    with pytest.raises(error, match=text):
        call()
    assert not offspring()


def test_several_runs_keep_their_names_their_order_and_their_own_settings():
    settings = {"slow": {"seconds": 0.5}, "crash": {}, "quick": {"seconds": 0.0, "shared": "mine"}}
    runs = sandbox.run_all(at_work, {n: {"name": n, **s} for n, s in settings.items()}, shared="all")
    assert list(runs) == ["slow", "crash", "quick"]
    assert [r.events[0]["name"] for r in runs.values()] == list(runs)
    assert [r.events[0]["shared"] for r in runs.values()] == ["all", "all", "mine"]
    assert [bool(r.outcome) for r in runs.values()] == [True, False, True]


@pytest.mark.parametrize(("gpu", "expected"), [(False, 16), (True, 4)])
def test_on_a_gpu_no_more_than_four_children_start_at_once(monkeypatch, gpu, expected):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)  # a mock: there is no GPU here
    assert running.children_at_once() == expected


@pytest.mark.parametrize("at_once", [1, 3])
def test_no_more_runs_go_on_at_once_than_were_allowed_and_no_fewer(at_once):
    runs = sandbox.run_all(at_work, {str(i): {"name": str(i), "seconds": 0.3} for i in range(4)}, at_once=at_once)
    spans = [(r.events[0]["from"], r.events[1]) for r in runs.values()]
    together = max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)
    assert together == at_once


def test_an_interrupt_stops_all_of_several_runs(bare):
    timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        sandbox.run_all(at_work, {str(i): {"name": str(i), "seconds": 600} for i in range(4)}, at_once=2)
    assert time.monotonic() - began < 30 and not offspring()
