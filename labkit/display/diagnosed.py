"""A diagnosis with its picture: the signals that were read, with the step marked that a finding speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit import triage
from labkit.common import kernel
from labkit.events import Run, Step
from labkit.triage import Diagnosis

from .dashboard import picture
from .sheet import Picture

# The signals that are drawn, where they were logged; at most five.
SIGNALS = ("grad_norm", "kl", "reward", "frac_reward_zero_std", "memory_allocated", "is_ratio", "dpo_margin", "loss")


def diagnose(source: Any, settings: Mapping[str, Any] | None = None) -> Diagnosis:
    """The likely causes of what a log shows, best first. In a notebook a picture of its signals comes with it.

    source    a path, a text, a `labkit.Run`, or a list of these: any trainer's log, captured stderr
    settings  what the run was started with, where you know it: {"beta": 0.0, "temperature": 0.9}

    Content never raises: what cannot be read is told in `notes`. Raises: OSError when a file cannot be opened.
    """
    diagnosis = triage.diagnose(source, settings)
    if kernel() and (signals := drawing(diagnosis)) is not None:
        from IPython.display import display

        display(signals)
    return diagnosis


def drawing(diagnosis: Diagnosis) -> Picture | None:
    """The picture; None when fewer than three rows were read."""
    rows = diagnosis.reading.rows
    names = [name for name in SIGNALS if any(name in row.values for row in rows)][:5]
    if len(rows) < 3 or not names:
        return None
    places = [float(row.values.get("step", -1.0)) for row in rows]
    if places != sorted(set(places)) or not all(place.is_integer() for place in places):
        places = [float(number) for number in range(1, len(rows) + 1)]
    steps = []
    for place, row in zip(places, rows, strict=True):
        steps.append(Step.from_log({**row.values, "step": int(place)}))
    marks: dict[int, str] = {}
    for finding in diagnosis.findings:
        for place, row in zip(places, rows, strict=True):
            if len(marks) < 3 and any(text.startswith((f"{row.at}:", f"{row.at},")) for text in finding.evidence):
                marks.setdefault(int(place), finding.cause)
    title = "Nothing found"
    if diagnosis.findings:
        title = f"{diagnosis.findings[0].cause}: {diagnosis.findings[0].why}"
    return picture(Run(steps), panels=names, thresholds={}, marks=marks, title=title)
