"""Run a generator of events in a process that may die; stream its events, survive its death, keep the evidence.

    run(function, *args, timeout=60)          wait for the end; a `Run`
    start(function, *args)                    a `Child` at work, to drain, wait for or stop
    run_all(function, {name: settings})       several side by side
    warm()                                    start the server now, so that the first run finds torch imported

A CUDA device-side assert poisons its process for good, so anything that may assert runs in a child. It is not a
security boundary, it draws nothing, and this process never imports torch because of it.
"""

from .child import Child, SandboxError, run, run_all, shutdown, start, warm
from .signature import classify, is_index_assert, is_multinomial_assert

__all__ = [
    "Child", "SandboxError", "classify", "is_index_assert", "is_multinomial_assert", "run", "run_all",
    "shutdown", "start", "warm",
]  # fmt: skip
