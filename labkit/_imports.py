"""Import big libraries without the garbage collector running in between.

An import makes a million objects and hardly any garbage, and the collector walks them all again and again: 0.6 s of the
2.0 s that `import transformers.models.gpt2.modeling_gpt2` takes (torch 2.13, transformers 5.23, Python 3.11).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """While this lasts, automatic collection is off in this process; afterwards it is as it was."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
