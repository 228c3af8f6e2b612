"""What several lessons do with runs in processes of their own: take their events, or say which one failed."""

from __future__ import annotations

from typing import Any

from labkit.events import Run


def events_of(run: Run, name: str) -> list[Any]:
    """The events of a run that came to its end.

    Raises: RuntimeError names a run that did not, what it died of, and where it stood.
    """
    outcome = run.outcome
    if not outcome:
        where = outcome.traceback[-600:]
        raise RuntimeError(f"{name}: {outcome.signature}, {outcome.message}\n{where}".rstrip())
    return run.events
