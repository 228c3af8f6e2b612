"""A judge of sums to practise on: a real HTTP server that is slow and fails by a rule, in a process of its own.

    serve(seed=0, scale=0.02)           starts it on a free port of the loopback, and ends it
    mark(prompt, completion)            what it thinks of a completion, when it answers
    fate(seed, name, number, length)    when, and whether, it will answer a try: without asking it

    process   `serve`
    server    what runs in the judge's process

`judge`, beside this folder, is the client.
"""

from .process import Served, serve
from .server import fate, mark

__all__ = ["Served", "fate", "mark", "serve"]
