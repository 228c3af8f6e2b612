"""Recordings made on a real GPU, for readers who have none.

`keep(name, thing)` inside a lesson; `labkit course NN --device cuda --record` on a machine with a GPU writes
`NN.json` beside this file; `load("NN")` reads it and `labkit.recording("NN")` shows it. A recording is never written by
hand. This package imports no torch and draws nothing.
"""

from .evidence import collecting, keep, thinned, without_middle
from .files import Recording, check, load, write

__all__ = ["Recording", "check", "collecting", "keep", "load", "thinned", "without_middle", "write"]
