"""Run a function in a child: wait for its end (`run`), go on at once (`start`), or run several (`run_all`)."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from labkit.events import Run

from .child import Child
from .job import Job


def run(
    function: Callable[..., Any], /, *args: Any, on_event: Callable[[Any], object] | None = None, **settings: Any
) -> Run:
    """Run `function(*args, **settings)` in a child and return its `Run`, however the child ended.

    function  a generator function of events, or one whose return value is a single event (None is no event). It and
              its arguments travel by cloudpickle, so notebook cells, lambdas and closures will do
    on_event  called here with each event as it arrives; what it raises stops the child and is raised
    timeout   seconds, from when the child is ready to run; then it is killed (signature `timeout`), and
              `Outcome.traceback` says where it was; None for no limit
    env       environment variables for the child, on top of the caller's; None removes one
    fresh     True for a fresh interpreter in place of a fork; None takes one when `env` changes a variable that is
              read at import time (`IMPORT_TIME` in server.py); its imports count as run time
    settings  the others are the function's own. A parameter of the function that is named like one of ours goes in
              by `functools.partial`

    At-exit code does not run in the child.

    Returns the events and the outcome. KeyboardInterrupt stops the child and returns the partial run (signature
    `stopped`).
    Raises: TypeError or ValueError names a bad operand; `SandboxError` says that no child could be started.
    """
    with Child(Job(function, args, settings)) as child, contextlib.suppress(KeyboardInterrupt):
        child.launch()
        ended = False
        while not ended:
            ended = child.wait_for_news()
            for event in child.drain():
                if on_event is not None:
                    on_event(event)
    return child.result()


def start(function: Callable[..., Any], /, *args: Any, **settings: Any) -> Child:
    """Start `function(*args, **settings)` in a child. The operands are those of `run`, without `on_event`.

    Returns the `Child` at once.
    Raises: TypeError or ValueError names a bad operand.
    """
    child = Child(Job(function, args, settings))
    child.launch()
    return child


def children_at_once() -> int:
    """One per core; at most four where torch sees a GPU: each child that uses it takes half a GiB for its context."""
    cores = os.cpu_count() or 1
    torch = sys.modules.get("torch")  # who trains on a GPU has imported it
    return min(cores, 4) if torch and torch.cuda.is_available() else cores


def run_all(
    function: Callable[..., Any],
    settings: Mapping[str, Mapping[str, Any]],
    /,
    *,
    at_once: int | None = None,
    **common: Any,
) -> dict[str, Run]:
    """Run `function(**common, **settings[name])` in a child for each name.

    settings  name -> what `run` takes by name, for that run; goes over the common ones
    at_once   children at a time; None: `children_at_once()`. They share the cores' threads unless OMP_NUM_THREADS is
              set: two children of two threads each on two cores wait for each other, and take twice as long
    common    the same for every run

    Returns name -> `Run`, in the same order; a run that crashed is returned like any other. KeyboardInterrupt stops
    all children and is raised.
    Raises: TypeError or ValueError names a bad operand.
    """
    workers = children_at_once() if at_once is None else at_once
    if not isinstance(workers, int) or workers < 1:
        raise ValueError(f"at_once: expected a whole number of children, at least 1, got {at_once!r}")
    threads = max(1, (os.cpu_count() or 1) // workers)
    # made here, so that a bad operand is named before anything starts
    children = {name: Child(Job(function, (), {**common, **own}, threads)) for name, own in settings.items()}
    free = threading.Semaphore(workers)
    try:
        for child in children.values():
            free.acquire()
            child.launch(at_end=free.release)
        return {name: child.result() for name, child in children.items()}
    except BaseException:
        for child in children.values():
            child.stop()
        raise
