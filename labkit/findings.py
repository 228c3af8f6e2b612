"""One finding: what was looked at, how bad it is, what was measured, and what to do. And how a list of them is written.

`labkit doctor` examines a machine and `labkit.preflight` a run; both give a list of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OK, LOOK, STOP = "ok", "look", "stop"


@dataclass(frozen=True)
class Finding:
    """What one look at the machine or the run gave.

    name      what was looked at
    level     "ok", "look" (something to look at) or "stop" (it will not work)
    measured  what was measured or read
    way_out   what to do; "" where nothing is to be done
    """

    name: str
    level: str
    measured: str
    way_out: str = ""


def as_text(findings: Sequence[Finding]) -> str:
    """A line for each, and below it the way out."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:5} {finding.name}: {finding.measured}")
        if finding.way_out:
            lines.append(f"{'':6}{finding.way_out}")
    return "\n".join(lines)
