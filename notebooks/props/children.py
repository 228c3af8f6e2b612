"""What several lessons do with processes of their own: have them find labkit, take their events, say which failed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import labkit
from labkit.events import Run


def python_path() -> str:
    """PYTHONPATH of a new process: it finds this labkit, and what this process finds by its own PYTHONPATH."""
    here = str(Path(labkit.__file__).resolve().parents[1])
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))


def events_of(run: Run, name: str) -> list[Any]:
    """The events of a run that came to its end.

    Raises: RuntimeError names a run that did not, what it died of, and where it stood.
    """
    outcome = run.outcome
    if not outcome:
        where = outcome.traceback[-600:]
        raise RuntimeError(f"{name}: {outcome.signature}, {outcome.message}\n{where}".rstrip())
    return run.events
