"""What a dashboard shows: panels, each with the series it draws and the kind of axis it needs.

A series is a field of `Step` or a key of `Step.extra`. This file does not draw: `figure.py` and `web/dashboard.js`
do, from the same panels.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.common import format_size, number
from labkit.events import TRL_NAMES

OURS = {trl: ours for ours, trl in TRL_NAMES.items()}

# Okabe and Ito's colours, which colour-blind readers can tell apart; the second of each pair is for a dark page.
# `web/dashboard.js` has the same table; a test holds the two together.
TONES = {
    "bug": ("#D55E00", "#F0843A"),
    "fix": ("#0072B2", "#56B4E9"),
    "one": ("#009E73", "#2CC79A"),
    "two": ("#AA4499", "#DD88BB"),
    "three": ("#B07D00", "#E6B93C"),
    "grey": ("#767676", "#9E9E9E"),
}
GHOST = 0.55  # opacity of a run that stays behind
DASHES = "─╌┈┄"  # how the first, second, ... series of a panel are drawn, for its legend


@dataclass(frozen=True)
class Panel:
    """One chart.

    series      `Step` fields or keys of `Step.extra`
    log         a logarithmic axis
    log_above   a linear axis turns logarithmic once a value exceeds this: an exploded run must not flatten the rest
    zero        a linear axis shows zero
    unit        "" or "bytes"
    band        shade the gap between the first two series
    instead     name of the known panel to draw when no run logged these
    lines       dashed thresholds: (value, text)
    optional    leave the panel out when no run logged its series; else it says so
    """

    title: str
    series: tuple[str, ...]
    log: bool = False
    log_above: float = math.inf
    zero: bool = True
    unit: str = ""
    band: bool = False
    instead: str | None = None
    lines: tuple[tuple[float, str], ...] = ()
    optional: bool = False

    @property
    def key(self) -> str:
        return "+".join(self.series)

    @property
    def legend(self) -> str:
        """Which dash is which, where there is more than one: "─ allocated  ╌ reserved"."""
        if len(self.series) == 1:
            return ""
        common = os.path.commonprefix(self.series)
        start = max(common.rfind(mark) for mark in "_/ ") + 1
        names = [name[start:].replace("_", " ") for name in self.series]
        return "  ".join(f"{DASHES[i % 4]} {name}" for i, name in enumerate(names))

    def spec(self) -> dict[str, Any]:
        """The panel for the browser."""
        finite = {"log_above": min(self.log_above, 1e300)}
        return {**vars(self), **finite, "key": self.key, "legend": self.legend}


# What a caller may give; `parse` and `parse_marks` say what each means.
Series = str | Panel | Sequence[str]
Panels = Series | Sequence[Series] | Mapping[str, Series]
Thresholds = Mapping[str, float | tuple[float, str]]

KNOWN = {
    "grad_norm": Panel("grad norm", ("grad_norm",), log=True),
    "kl": Panel("KL(policy‖ref), nats", ("kl",), log_above=10.0),
    "memory": Panel(
        "GPU memory", ("memory_allocated", "memory_reserved"), unit="bytes", band=True, instead="process_memory"
    ),
    "process_memory": Panel("memory of the process", ("process_memory",), unit="bytes"),
    "reward": Panel("reward", ("reward",)),
    "entropy": Panel("entropy, nats", ("entropy",)),
    "loss": Panel("loss", ("loss",), zero=False),
    "ratio_max": Panel("largest ratio", ("ratio_max",), log=True),
    "learning_rate": Panel("learning rate", ("learning_rate",)),
    "reward_std": Panel("reward std in a group", ("reward_std",)),
    "frac_reward_zero_std": Panel("share of tied groups", ("frac_reward_zero_std",)),
    "mean_length": Panel("completion length, tokens", ("mean_length",)),
    "clip_fraction": Panel("clipped share", ("clip_fraction",)),
    "first_token_unique": Panel("distinct first tokens", ("first_token_unique",)),
    "nonfinite_params": Panel("NaN or Inf parameters", ("nonfinite_params",)),
    "memory_allocated": Panel("memory allocated", ("memory_allocated",), unit="bytes"),
    "memory_reserved": Panel("memory reserved", ("memory_reserved",), unit="bytes"),
    "seconds": Panel("seconds per step", ("seconds",)),
}
DEFAULT = ("grad_norm", "kl", "memory", "reward")
DEFAULT_THRESHOLDS: Thresholds = {"grad_norm": 10.0}


def parse(panels: Panels | None = None, thresholds: Thresholds | None = None) -> list[Panel]:
    """The panels a caller asked for. TypeError or ValueError names what does not fit.

    panels       a list whose items are a series name, a list of names (drawn in one panel) or a `Panel`; or a dict of
                 title -> one of these; or None for grad norm, KL, memory and reward, as far as a run has them
    thresholds   series name -> value, or (value, text); None means a line at 10 in the grad norm panel
    """
    if panels is None:
        chosen = [dataclasses.replace(KNOWN[name], optional=True) for name in DEFAULT]
    elif isinstance(panels, (str, Panel)):
        chosen = [_panel(panels)]
    elif isinstance(panels, Mapping):
        chosen = [dataclasses.replace(_panel(item), title=str(title)) for title, item in panels.items()]
    elif isinstance(panels, Iterable):
        chosen = [_panel(item) for item in panels]
    else:
        raise TypeError(f"panels: expected a list of series names, got {panels!r}")
    if not 1 <= len(chosen) <= 12:
        raise ValueError(f"panels: expected 1 to 12 panels, got {len(chosen)}")
    return _with_lines(chosen, thresholds)


def parse_marks(marks: Mapping[int, str] | None) -> dict[int, str]:
    """The events a caller wants marked: step -> a few words. TypeError says what does not fit."""
    found = {} if marks is None else marks
    fits = lambda step, text: isinstance(step, int) and not isinstance(step, bool) and isinstance(text, str)
    if not isinstance(found, Mapping) or not all(fits(step, text) for step, text in found.items()):
        raise TypeError(f'marks: expected a dict of step -> text such as {{12: "norm NaN"}}, got {marks!r}')
    return dict(found)


def columns(panels: Iterable[Panel]) -> list[str]:
    """Every series that these panels, or those that may take their place, can draw: each once, in order."""
    names: dict[str, None] = {}
    for panel in panels:
        names.update(dict.fromkeys(panel.series))
        if panel.instead:
            names.update(dict.fromkeys(KNOWN[panel.instead].series))
    return list(names)


def visible(panels: Sequence[Panel], seen: Collection[str], started: bool) -> list[Panel]:
    """The panels to draw, given the series that were measured so far. Before any step has arrived all of them stand.

    A panel that nobody logged gives way to its `instead`. It goes if that was not logged either, or is there already.
    """
    if not started:
        return list(panels)
    logged = lambda panel: not set(panel.series).isdisjoint(seen)
    drawn: list[Panel] = []
    for panel in panels:
        other = KNOWN[panel.instead] if panel.instead else panel
        if logged(panel) or not (panel.optional or panel.instead):
            drawn.append(panel)
        elif logged(other) and other.key not in [p.key for p in panels]:
            drawn.append(other)
    return drawn or list(panels)


def tone(label: str, taken: Collection[str] = ()) -> str:
    """The colour name of a run: its label's first word where that is `bug` or `fix`, else the first free one."""
    words = label.lower().replace(",", " ").replace(":", " ").split()
    if words and words[0] in ("bug", "fix") and words[0] not in taken:
        return words[0]
    return next((name for name in ("one", "two", "three") if name not in taken), "grey")


def written(value: float, unit: str = "") -> str:
    """A short number for people, with its unit."""
    return format_size(value, short=True) if unit == "bytes" and math.isfinite(value) else number(value)


def _panel(item: Any) -> Panel:
    if isinstance(item, Panel):
        return _checked(item)
    if isinstance(item, str):
        item = OURS.get(item, item)
        return KNOWN[item] if item in KNOWN else _plain((item,), item)
    if isinstance(item, (list, tuple)) and item and all(isinstance(name, str) for name in item):
        names = tuple(OURS.get(str(name), str(name)) for name in item)
        return _plain(names, ", ".join(names))
    raise TypeError(f"panels: expected a series name, a list of names or a Panel, got {item!r}")


def _plain(names: tuple[str, ...], title: str) -> Panel:
    """A panel for a lesson's own series; those that are a KL, a norm or bytes get the axis of their kind."""
    first = names[0].lower()
    title = title.replace("_", " ")
    if first.startswith("kl"):
        return Panel(title, names, log_above=KNOWN["kl"].log_above)
    if first.startswith(("grad_norm", "ratio")):
        return Panel(title, names, log=True)
    like = KNOWN.get(first)
    bytes_ = first.startswith("memory") or first.endswith("bytes")
    return Panel(title, names, zero=like.zero if like else True, unit="bytes" if bytes_ else "")


def _checked(panel: Panel) -> Panel:
    if not panel.series or not all(isinstance(name, str) for name in panel.series):
        raise ValueError(f"Panel {panel.title!r}: series must be a tuple of names, got {panel.series!r}")
    if panel.unit not in ("", "bytes"):
        raise ValueError(f"Panel {panel.title!r}: unit must be '' or 'bytes', got {panel.unit!r}")
    if panel.band and len(panel.series) < 2:
        raise ValueError(f"Panel {panel.title!r}: band shades between two series, got {panel.series!r}")
    if panel.instead is not None and panel.instead not in KNOWN:
        raise ValueError(f"Panel {panel.title!r}: instead must be one of {sorted(KNOWN)}, got {panel.instead!r}")
    return panel


def _with_lines(panels: list[Panel], thresholds: Thresholds | None) -> list[Panel]:
    given = DEFAULT_THRESHOLDS if thresholds is None else thresholds
    if not isinstance(given, Mapping):
        raise TypeError(f'thresholds: expected a dict such as {{"grad_norm": 10.0}}, got {given!r}')
    drawn = columns(panels)
    lines = {OURS.get(name, name): _line(OURS.get(name, name), value) for name, value in given.items()}
    for name, (level, _) in lines.items():
        # 10 for grad_norm is the documented default: writing it out must not need a grad norm panel
        if name not in drawn and DEFAULT_THRESHOLDS.get(name) != level:
            raise ValueError(f"thresholds: no panel draws {name!r}; drawn are {sorted(drawn)}")
    return [dataclasses.replace(p, lines=p.lines + tuple(lines[n] for n in p.series if n in lines)) for p in panels]


def _line(name: str, value: Any) -> tuple[float, str]:
    level, text = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value, "")
    if isinstance(level, bool) or not isinstance(level, (int, float)) or not math.isfinite(level):
        raise ValueError(f"thresholds: {name!r} needs a finite number or (number, text), got {value!r}")
    return float(level), str(text) or f"threshold {number(float(level))}"
