"""What a dashboard shows: panels, each with the series it draws and the kind of axis it needs.

A series is a field of `Step` or a key of `Step.extra`. This file does not draw: `figure.py` and `web/dashboard.js`
do, from the same panels.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.common import format_size, number

# Okabe and Ito's colours and, from `four` on, darker ones (on a dark page lighter) that colour-blind readers can tell
# from these: 20 or more apart in CIELAB with each kind of colour blindness simulated. The second of each pair is for
# a dark page. `web/dashboard.js` has the same table; a test holds the two together.
TONES = {
    "bug": ("#D55E00", "#F0843A"),
    "fix": ("#0072B2", "#56B4E9"),
    "one": ("#009E73", "#2CC79A"),
    "two": ("#AA4499", "#DD88BB"),
    "three": ("#B07D00", "#E6B93C"),
    "four": ("#4400AA", "#7766FF"),
    "five": ("#771100", "#FFFFAA"),
    "six": ("#000000", "#CCFFFF"),
    "grey": ("#767676", "#9E9E9E"),
}
FREE = ("one", "two", "three", "four", "five", "six")  # for runs without a colour of their own; after these, grey
GHOST = 0.55  # opacity of a run that stays behind
DASHES = "─╌┈┄"  # how the first, second, ... series of a panel are drawn, for its legend


@dataclass(frozen=True)
class Panel:
    """One chart.

    series      `Step` fields or keys of `Step.extra`
    log         a logarithmic axis
    log_above   a linear axis, which shows zero, turns logarithmic once a value exceeds this: an exploded run must not
                flatten the rest
    unit        "" or "bytes"
    lines       dashed thresholds: (value, text); the legend has them, but for one without a text
    """

    title: str
    series: tuple[str, ...]
    log: bool = False
    log_above: float = math.inf
    unit: str = ""
    lines: tuple[tuple[float, str], ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.series, str) or not self.series:
            raise ValueError(f"Panel {self.title!r}: series must be a tuple of names, got {self.series!r}")

    @property
    def key(self) -> str:
        return "+".join(self.series)

    @functools.cached_property
    def legend(self) -> str:
        """Which dash is which: "─ allocated  ╌ reserved  - - threshold 10"."""
        common = os.path.commonprefix(self.series)
        start = max(common.rfind(mark) for mark in "_/ ") + 1
        names = [name[start:].replace("_", " ") for name in self.series] if len(self.series) > 1 else []
        dashes = [f"{DASHES[i % 4]} {name}" for i, name in enumerate(names)]
        return "  ".join(dashes + [f"- - {text} {written(level, self.unit)}" for level, text in self.lines if text])

    def spec(self) -> dict[str, Any]:
        """The panel for the browser."""
        return {**vars(self), "log_above": min(self.log_above, 1e300), "key": self.key, "legend": self.legend}


Series = str | Panel | Sequence[str]
Panels = Series | Sequence[Series] | Mapping[str, Series]
Thresholds = Mapping[str, float | tuple[float, str]]

KNOWN = {
    "grad_norm": Panel("grad norm", ("grad_norm",), log=True),
    "kl": Panel("KL(policy‖ref), nats", ("kl",), log_above=10.0),
    "memory": Panel("GPU memory", ("memory_allocated", "memory_reserved"), unit="bytes"),
    "process_memory": Panel("memory of the process", ("process_memory",), unit="bytes"),
    "entropy": Panel("entropy, nats", ("entropy",)),
    "exam": Panel("chance of a right answer", ("exam",)),
    "ratio_max": Panel("largest ratio", ("ratio_max",), log=True),
    "reward_std": Panel("reward std in a group", ("reward_std",)),
    "frac_reward_zero_std": Panel("share of tied groups", ("frac_reward_zero_std",)),
    "mean_length": Panel("completion length, tokens", ("mean_length",)),
    "clip_fraction": Panel("clipped share", ("clip_fraction",)),
    "first_token_unique": Panel("distinct first tokens", ("first_token_unique",)),
    "nonfinite_params": Panel("NaN or Inf parameters", ("nonfinite_params",)),
}
DEFAULT = ("grad_norm", "kl", "reward", "entropy", "memory")


def parse(panels: Panels | None = None, thresholds: Thresholds | None = None) -> list[Panel]:
    """The panels a caller asked for. TypeError or ValueError names what does not fit.

    panels       a list whose items are a series name, a list of names (drawn in one panel) or a `Panel`; or a dict of
                 title -> one of these; or None for grad norm, KL, reward, entropy and GPU memory
    thresholds   series name -> value, or (value, text); None means a line at 10 in the grad norm panel
    """
    if isinstance(panels, Mapping):
        chosen = [dataclasses.replace(_panel(item), title=str(title)) for title, item in panels.items()]
    else:
        given = DEFAULT if panels is None else panels
        chosen = [_panel(item) for item in (given if isinstance(given, (list, tuple)) else [given])]
    if not chosen:
        raise ValueError("panels: expected at least one panel")
    return _with_lines(chosen, thresholds)


def columns(panels: Iterable[Panel]) -> list[str]:
    """Every series that these panels draw: each once, in order."""
    return list(dict.fromkeys(name for panel in panels for name in panel.series))


def visible(panels: Sequence[Panel], seen: Collection[str]) -> list[Panel]:
    """The panels that have something to show, given the series that were measured so far; all where none was."""
    return [panel for panel in panels if not set(panel.series).isdisjoint(seen)] or list(panels)


def tone(label: str, taken: Collection[str] = ()) -> str:
    """The colour name of a run: its own where the label begins with `bug`, `fix` or `no step`, else the first free."""
    words = label.lower().replace(",", " ").replace(":", " ").split()
    if words and words[0] in ("bug", "fix") and words[0] not in taken:
        return words[0]
    if words[:2] == ["no", "step"]:  # the policy as it came
        return "grey"
    return next((name for name in FREE if name not in taken), "grey")


def written(value: float, unit: str = "") -> str:
    """A short number for people, with its unit."""
    return format_size(value, short=True) if unit == "bytes" and math.isfinite(value) else number(value)


def _panel(item: Any) -> Panel:
    """A lesson's own series get the axis of their kind: a KL, a norm or bytes."""
    if isinstance(item, Panel):
        return item
    names = (item,) if isinstance(item, str) else item
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"panels: expected a series name, a list of names or a Panel, got {item!r}")
    if names[0] in KNOWN and len(names) == 1:
        return KNOWN[names[0]]
    title, first = ", ".join(names).replace("_", " "), names[0].lower()
    log_above = KNOWN["kl"].log_above if first.startswith("kl") else math.inf
    unit = "bytes" if first.startswith("memory") or first.endswith("bytes") else ""
    log = first.startswith(("grad_norm", "ratio"))
    return Panel(title, tuple(names), log, log_above, unit)


def _with_lines(panels: list[Panel], thresholds: Thresholds | None) -> list[Panel]:
    drawn, lines = columns(panels), {}
    given = {"grad_norm": 10.0} if thresholds is None and "grad_norm" in drawn else thresholds or {}
    for name, value in given.items():
        level, text = value if isinstance(value, (tuple, list)) else (value, "threshold")
        if not math.isfinite(level):
            raise ValueError(f"thresholds: {name!r} needs a finite number or (number, text), got {value!r}")
        if name not in drawn:
            raise ValueError(f"thresholds: no panel draws {name!r}; drawn are {sorted(drawn)}")
        lines[name] = (float(level), text)
    return [dataclasses.replace(p, lines=p.lines + tuple(lines[n] for n in p.series if n in lines)) for p in panels]
