"""`run`, `start` and `run_all`: what goes in, what comes back, and how an interrupt ends it."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from children import ROOT, at_work, count, offspring, posix, sleep_forever, slowly, system_exit

from labkit import sandbox
from labkit.events import Run


def test_what_comes_back_is_what_was_yielded():
    run = sandbox.run(count, 3, start=4)
    assert repr(run.events) == repr(list(count(3, start=4))) and run.outcome and isinstance(run, Run)
    assert run.meta["settings"] == {"start": 4} and "count" in run.meta["function"]
    assert sandbox.run(lambda: {"answer": 42}).events == [{"answer": 42}]
    assert sandbox.run(lambda: None).events == []
    assert sandbox.run(lambda: iter([1, None, 2])).events == [1, None, 2]
    assert sandbox.run(lambda: [1, 2]).events == [[1, 2]]
    assert sandbox.run(partial(system_exit, 0)).outcome.signature == "ok"


def test_a_function_that_names_a_setting_of_torchs_backends_travels():
    import torch

    def settings():  # both are modules of a class of their own, which cloudpickle alone refuses
        yield torch.backends.cuda.is_built(), torch.backends.cudnn.deterministic

    (seen,) = sandbox.run(settings).events
    assert seen == (torch.backends.cuda.is_built(), torch.backends.cudnn.deterministic)
    back = sandbox.run(lambda: [settings]).events  # and out again, in an event
    assert list(back[0][0]()) == [seen]


def test_drain_gives_each_event_once_and_never_waits():
    with sandbox.start(slowly, 5) as child:
        seen = []
        while child.alive:
            began = time.monotonic()
            seen += child.drain()
            assert time.monotonic() - began < 5
            time.sleep(0.005)
        seen += child.drain()
        assert seen == [0, 1, 2, 3, 4] == child.result().events
        assert child.drain() == []


def test_a_slow_producers_event_shows_before_the_next_one():
    def tick(path):
        yield "first"
        while not os.path.exists(path):  # the caller makes it once it has seen the first
            time.sleep(0.005)
        yield "second"

    gate = Path(os.environ.get("TMPDIR", "/tmp")) / f"labkit-{os.getpid()}-gate"
    try:
        run = sandbox.run(tick, str(gate), timeout=60, on_event=lambda event: gate.touch())
        assert run.events == ["first", "second"] and run.outcome
    finally:
        gate.unlink()


def test_what_on_event_raises_stops_the_child_and_is_raised():
    def refuse(event):
        raise LookupError(event)

    with pytest.raises(LookupError, match="before"):
        sandbox.run(sleep_forever, on_event=refuse)


def test_an_interrupt_in_on_event_returns_the_partial_run():
    def interrupt(event):
        raise KeyboardInterrupt

    run = sandbox.run(sleep_forever, on_event=interrupt)
    assert run.events == ["before"] and run.outcome.signature == "stopped"


@posix
def test_an_interrupt_of_the_calling_process_returns_the_partial_run():
    script = """
    import time
    from labkit import sandbox
    sandbox.server.PRELOAD = ()

    def train():
        n = 0
        while True:
            n += 1
            yield n
            time.sleep(0.01)

    run = sandbox.run(train, on_event=lambda n: print(n, flush=True) if n == 3 else None)
    print(run.outcome.signature, run.events[:3], run.events == list(range(1, len(run.events) + 1)), flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True, start_new_session=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "3\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        assert process.stdout.readline() == "stopped [1, 2, 3] True\n"
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: sandbox.run(count(3)), TypeError, "already started"),
        (lambda: sandbox.run("count"), TypeError, "function: expected"),
        (lambda: sandbox.run(count, 1, timeout=0), ValueError, "timeout"),
        (lambda: sandbox.run(count, 1, timeout=float("nan")), ValueError, "timeout"),
        (lambda: sandbox.run(count, 1, timeout="5"), ValueError, "timeout"),
        (lambda: sandbox.run(count, 1, env=["A=1"]), TypeError, "env"),
        (lambda: sandbox.run(count, 1, env={"A": 1}), TypeError, "env: A must be a string"),
        (lambda: sandbox.run(count, 1, env={"A=B": "1"}), ValueError, "env"),
        (lambda: sandbox.run(count, 1, fresh="yes"), TypeError, "fresh"),
        (lambda: sandbox.run(count, threading.Lock()), TypeError, "argument 1, <unlocked"),
        (lambda: sandbox.run(count, n=threading.Lock()), TypeError, "argument 'n', <unlocked"),
    ],
)
def test_a_bad_operand_is_named_before_anything_starts(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_an_async_function_is_refused():
    async def later():
        yield 1

    with pytest.raises(TypeError, match="async"):
        sandbox.start(later)


def test_a_wrong_argument_list_is_the_functions_own_error():
    outcome = sandbox.run(count).outcome
    assert outcome.signature == "exception:TypeError" and "required positional argument" in outcome.message


def test_several_runs_keep_their_names_their_order_and_their_own_settings():
    settings = {"slow": {"seconds": 0.5}, "crash": {}, "quick": {"seconds": 0.0, "shared": "mine"}}
    runs = sandbox.run_all(at_work, {n: {"name": n, **s} for n, s in settings.items()}, shared="all")
    assert list(runs) == ["slow", "crash", "quick"]
    assert [r.events[0]["name"] for r in runs.values()] == list(runs)
    assert [r.events[0]["shared"] for r in runs.values()] == ["all", "all", "mine"]
    assert [bool(r.outcome) for r in runs.values()] == [True, False, True]


@pytest.mark.parametrize("at_once", [1, 3])
def test_no_more_runs_go_on_at_once_than_were_allowed_and_no_fewer(at_once):
    runs = sandbox.run_all(at_work, {str(i): {"name": str(i), "seconds": 0.5} for i in range(4)}, at_once=at_once)
    spans = [(r.events[0]["from"], r.events[1]) for r in runs.values()]
    together = max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)
    assert together == at_once


def test_an_interrupt_stops_all_of_several_runs(bare):
    timer = threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT])
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        sandbox.run_all(at_work, {str(i): {"name": str(i), "seconds": 600} for i in range(4)}, at_once=2)
    assert time.monotonic() - began < 30 and not offspring()


def test_a_bad_operand_of_several_runs_is_named_before_anything_starts():
    with pytest.raises(ValueError, match="at_once: expected a whole number"):
        sandbox.run_all(at_work, {"a": {"name": "a"}}, at_once=0)
    with pytest.raises(ValueError, match="timeout"):
        sandbox.run_all(at_work, {"a": {"name": "a"}}, timeout=-1)
    assert not offspring()
