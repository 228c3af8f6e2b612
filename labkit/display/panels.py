"""What a dashboard shows: panels, each with the series that it draws and the kind of axis that this needs.

A series is a field of `Step` or a key of `Step.extra`. This file does not draw: `figure.py` and `web/dashboard.js`
do, from the same panels.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.common import format_size, number

# One palette for the course: a colour means one thing. The first of a pair is for a light page, the second
# for a dark one. The first five are told apart with each kind of colour blindness (20 or more apart in
# CIELAB) and in grey (8 or more apart in lightness); tests/display/test_palette.py holds that.
# `web/dashboard.js` has the same table.
TONES = {
    "bug": ("#C44E00", "#F08A30"),  # the fault runs
    "fix": ("#1B55AE", "#9CC6FF"),  # the reader's function, or the solution
    "healthy": ("#2A9D78", "#8FF5DA"),  # a run that nothing was done to
    "without": ("#2E0F45", "#E060BE"),  # the suspect is taken away
    "far": ("#7A0014", "#E5284F"),  # single tokens, rows or bytes that the page follows
    "one": ("#009E73", "#2CC79A"),
    "two": ("#AA4499", "#DD88BB"),
    "three": ("#6B5D00", "#E6B93C"),
    "four": ("#4400AA", "#7766FF"),
    "five": ("#771100", "#FFFFAA"),
    "six": ("#000000", "#CCFFFF"),
    "grey": ("#767676", "#9E9E9E"),
}
# how the line of a run is drawn, in points; a solid line where nothing stands here
DASHES = {"without": (4, 2), "healthy": (7, 2, 1.5, 2)}
# words with which a label begins -> the colour that it means; anything else gets the first free one
MEANINGS = {
    "bug": "bug",
    "fix": "fix",
    "yours": "fix",
    "solution": "fix",
    "healthy": "healthy",
    "without": "without",
    "no step": "grey",  # the policy before training
}
FREE = ("one", "two", "three", "four", "five", "six")  # for runs without a meaning; after these, grey
GHOST = 0.55  # opacity of a run that stays behind


@dataclass(frozen=True)
class Panel:
    """One chart of one series.

    series      a field of `Step` or a key of `Step.extra`
    log         a logarithmic axis
    log_above   a linear axis, which shows zero, turns logarithmic once a value exceeds this: an exploded run must not
                flatten the rest
    unit        "" or "bytes"
    threshold   a dashed line there, if any
    """

    title: str
    series: str
    log: bool = False
    log_above: float = math.inf
    unit: str = ""
    threshold: float | None = None

    @property
    def legend(self) -> str:
        return "" if self.threshold is None else f"- - threshold {short(self.threshold, self.unit)}"

    def spec(self) -> dict[str, Any]:
        """The panel for the browser."""
        return {**vars(self), "log_above": min(self.log_above, 1e300), "legend": self.legend}


Panels = str | Sequence[str] | Mapping[str, str]
Thresholds = Mapping[str, float]

KNOWN = {
    "grad_norm": Panel("grad norm", "grad_norm", log=True),
    "kl": Panel("KL(policy‖ref), nats", "kl", log_above=10.0),
    "memory_allocated": Panel("GPU memory allocated", "memory_allocated", unit="bytes"),
    "entropy": Panel("entropy, nats", "entropy"),
    "exam": Panel("chance of a right answer", "exam"),
    "frac_reward_zero_std": Panel("share of tied groups", "frac_reward_zero_std"),
}
DEFAULT = ("grad_norm", "kl", "reward", "entropy", "memory_allocated")


def parse(panels: Panels | None = None, thresholds: Thresholds | None = None) -> list[Panel]:
    """The panels that a caller wants.

    panels       names of series, or a dict of title -> name; None for grad norm, KL, reward, entropy and GPU memory
    thresholds   series name -> value; None means a line at 10 in the grad norm panel

    Raises: ValueError names a threshold of a series that is not drawn.
    """
    if isinstance(panels, Mapping):
        chosen = [dataclasses.replace(_panel(name), title=title) for title, name in panels.items()]
    else:
        names = [panels] if isinstance(panels, str) else panels or DEFAULT
        chosen = [_panel(name) for name in names]
    names = columns(chosen)
    if thresholds is None:
        thresholds = {"grad_norm": 10.0} if "grad_norm" in names else {}
    for name in thresholds:
        if name not in names:
            raise ValueError(f"thresholds: no panel draws {name!r}; drawn are {sorted(names)}")
    return [dataclasses.replace(panel, threshold=thresholds.get(panel.series)) for panel in chosen]


def columns(panels: Iterable[Panel]) -> list[str]:
    """Every series that these panels draw: each once, in order."""
    return list(dict.fromkeys(panel.series for panel in panels))


def visible(panels: Sequence[Panel], measured: Collection[str]) -> list[Panel]:
    """The panels that have something to show, given the series that were measured so far; all where none was."""
    return [panel for panel in panels if panel.series in measured] or list(panels)


def tone(label: str, taken: Collection[str] = ()) -> str:
    """The colour name of a run: what the first words of its label mean (`MEANINGS`), else the first that is free."""
    words = label.lower().replace(",", " ").replace(":", " ").split()
    for length in (2, 1):
        meaning = MEANINGS.get(" ".join(words[:length]))
        if meaning == "grey" or (meaning is not None and meaning not in taken):
            return meaning
    return next((name for name in FREE if name not in taken), "grey")


def short(value: float, unit: str = "") -> str:
    """A short number for people, with its unit."""
    return format_size(value, short=True) if unit == "bytes" and math.isfinite(value) else number(value)


def _panel(series: str) -> Panel:
    """A lesson's own series get the axis of their kind: a KL, a norm or bytes."""
    if series in KNOWN:
        return KNOWN[series]
    kind = series.lower()
    return Panel(
        title=series.replace("_", " "),
        series=series,
        log=kind.startswith(("grad_norm", "ratio")),
        log_above=KNOWN["kl"].log_above if kind.startswith("kl") else math.inf,
        unit="bytes" if kind.startswith("memory") or kind.endswith("bytes") else "",
    )
