"""Run a generator of events in a process that may die; stream its events, survive its death, keep the evidence.

    run(function, *args, timeout=60)          wait for the end; a `Run`
    start(function, *args)                    a `Child` at work, to drain, wait for or stop
    run_all(function, {name: settings})       several side by side
    warm()                                    start the server now, so that the first run finds torch imported
    fork_server()                             be forked as the server: for kernels of `labkit course`

A CUDA device-side assert poisons its process for good, so anything that may assert runs in a child. On Linux the child
is forked from a server that has torch imported already; elsewhere, and where an environment variable must be there
before torch is imported, it is a fresh interpreter. It is not a security boundary, it draws nothing, and this process
never imports torch because of it.

    running         the calls above
    child           one child: its events, its limits and its end; `Child._watch` is the way of a call, step by step
    job             what is sent to it
    server, keeper  the server and a child of it, as their caller has them; and what runs in the server's process
    spawn           a child without a server
    worker          what runs in the child's process
    evidence        what a dead child left behind, and the name of its death
"""

from .child import Child, SandboxError
from .evidence import is_index_assert, is_multinomial_assert
from .running import run, run_all, start
from .server import fork_server, shutdown, warm

__all__ = [
    "Child",
    "SandboxError",
    "fork_server",
    "is_index_assert",
    "is_multinomial_assert",
    "run",
    "run_all",
    "shutdown",
    "start",
    "warm",
]
