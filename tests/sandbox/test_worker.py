"""What is yielded in a child arrives here, whole, once and in order."""

import os
import signal
import threading

from children import posix, yield_the_unpicklable

from labkit import sandbox
from labkit.events import Lost


def test_an_event_that_cannot_be_read_here_holds_its_place():
    class Trap:
        def __reduce__(self):
            return (int, ("not a number",))

    run = sandbox.run(lambda: iter([1, Trap(), 3]))
    assert run.events[::2] == [1, 3] and run.outcome
    assert isinstance(run.events[1], Lost) and "ValueError" in run.events[1].error


def test_the_error_for_an_event_that_cannot_travel_names_it_and_the_way_out():
    message = sandbox.run(yield_the_unpicklable).outcome.message
    assert message.startswith("event 2, a generator, cannot leave the sandbox") and "Yield a Step" in message


def test_large_events_are_whole_and_a_torn_one_is_dropped():
    def big():
        yield bytes(8 << 20)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        while True:
            yield bytes(1 << 20)

    events = sandbox.run(big, timeout=60).events
    assert len(events[0]) == 8 << 20
    assert {len(e) for e in events[1:]} <= {1 << 20}


@posix
def test_a_signal_handler_that_raises_never_tears_a_frame():
    def interrupted():
        def ring(*_):
            raise InterruptedError("alarm")

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        while True:
            yield b"y" * 3_000_000

    for _ in range(3):
        run = sandbox.run(interrupted, timeout=60)
        assert run.outcome.signature == "exception:InterruptedError", run.outcome
        assert {len(e) for e in run.events} <= {3_000_000}


@posix
def test_a_fork_of_the_child_sends_nothing_twice():
    def split():
        yield 1
        os.fork()
        yield 2

    assert sandbox.run(split).events == [1, 2]


def test_the_callers_random_stream_is_not_repeated_by_every_fork():
    def draw():
        import random

        import numpy

        yield random.random(), float(numpy.random.rand())

    own, numpys = zip(*(sandbox.run(draw).events[0] for _ in range(3)), strict=True)
    assert len(set(own)) == len(set(numpys)) == 3


@posix
def test_the_callers_directory_and_module_path_reach_the_child(tmp_path, monkeypatch):
    (tmp_path / "helper_of_a_notebook.py").write_text("VALUE = 17\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def use():
        import helper_of_a_notebook

        yield helper_of_a_notebook.VALUE, os.getcwd()

    for fresh in (None, True):
        assert sandbox.run(use, fresh=fresh).events == [(17, str(tmp_path))]
