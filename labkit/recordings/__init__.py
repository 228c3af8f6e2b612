"""Recordings made on a real GPU, for readers who have none.

`keep(name, thing)` inside a lesson; `labkit course NN --device cuda --record` on a machine with a GPU writes
`NN.json` beside this file; `labkit.recording("NN")` shows it and `as_run("NN", name)` overlays it. A recording is
never written by hand. This package imports no torch and draws nothing (`labkit.display.recording` does).
"""

from .evidence import collecting, keep
from .fit import thinned, without_middle
from .hashing import code_hash
from .schema import Recording, as_run, folder, load, number, validate
from .writing import check, kept_file, summarise, summary, write

__all__ = [
    "Recording", "as_run", "check", "code_hash", "collecting", "folder", "keep", "kept_file", "load", "number",
    "summarise", "summary", "thinned", "validate", "without_middle", "write",
]  # fmt: skip
