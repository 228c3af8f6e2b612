"""Lesson 06: the pipe, the peaks on a simulated card, and the tables of results. Nothing here runs a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from props.lesson_06_card import SAMPLING, run_peak, step_peak
from props.lesson_06_way import BEFORE, LANES, STATIONS, STORED, Way, ratio

from labkit.display.panels import TONES

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
COLOURS = {2: TONES["one"][0], 4: TONES["four"][0]}
GATES = (
    "Linear",
    "norm, if any",
    "rotation",
    "store",
    "attention",
)  # what stands before each station

PASSES = {("query", STORED), ("value", BEFORE)}  # gates that a lane does not go through


def first_missing(way: Way, lane: str) -> int:
    """The number of the first station that a lane did not reach; one more than there are where it reached all."""
    for at, station in enumerate(STATIONS):
        if station not in way[lane] and ((lane, station) not in PASSES or not way[lane]):
            return at
    return len(STATIONS)


def draw_pipe(axes: Any, way: Way) -> None:
    """Three lanes from left to right, as wide as a number has bytes; at their end what becomes of the cache. A cross is
    where the pass died, at the first gate that a lane did not leave."""
    ends = {lane: first_missing(way, lane) for lane in LANES}
    for row, lane in enumerate(LANES):
        height = 2 - row
        _draw_lane(axes, way, lane, ends[lane], height)
        axes.text(-0.06, height, lane, ha="right", va="center", fontsize=9)
        if ends[lane] < len(STATIONS) and ends[lane] == min(ends.values()):
            axes.plot(ends[lane] + 0.08, height, "X", ms=10, color="black", zorder=4)
    for at, gate in enumerate(GATES):
        axes.axvline(at, ymin=0.14, ymax=0.92, color="#222222", lw=1.2, zorder=3)
        axes.text(at, 2.66, gate, ha="center", fontsize=8, color="#222222")
    if not way["error"]:
        axes.text(5.1, 1.15, ratio(way), fontsize=17, va="center", weight="bold")
        axes.text(5.1, 0.62, "cache / plan", fontsize=8, va="center")
    axes.text(0, -0.72, way["error"][:125], fontsize=7.5, va="center")
    axes.set(xlim=(-0.5, 5.75), ylim=(-0.9, 2.95), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _draw_lane(axes: Any, way: Way, lane: str, end: int, height: float) -> None:
    """A lane up to its end. A pale piece passes a gate by: the query the store, the value norm and rotation."""
    dtype = ""
    for at, station in enumerate(STATIONS[:end]):
        passes = (lane, station) in PASSES
        if not passes:
            dtype = way[lane][station][0]
            style = {"color": "white", "ha": "center", "va": "center", "fontsize": 7.5}
            axes.text(at + 0.5, height, dtype, **style)
        size = BYTES.get(dtype, 8)
        colour = COLOURS.get(size, TONES["grey"][0])
        alpha = 0.35 if passes else 1
        axes.barh(height, 1, left=at, height=0.17 * size, color=colour, alpha=alpha, lw=0)


def as_rows(
    way: Way, stations: Sequence[str] = STATIONS, digits: bool = True
) -> list[dict[str, str]]:
    """For `labkit.table`: one key and one value of 32 numbers, at each station; `digits`: with the count of those that
    bfloat16 cannot hold."""
    rows = []
    for lane in ("key", "value"):
        for station in stations:
            if station not in way[lane]:
                continue
            dtype, numbers = way[lane][station]
            exact = torch.tensor(numbers)
            cut = int((exact != exact.bfloat16().float()).sum())
            row = {"": f"{lane}, {station}", "dtype": dtype}
            row["bytes"] = str(len(numbers) * BYTES.get(dtype, 8))
            row["first number"] = f"{numbers[0]:.8f}"
            if digits:
                row["of 32, bfloat16 cannot hold"] = str(cut)
            rows.append(row)
    return rows


def table_of_ways(pipes: Mapping[str, Way]) -> list[dict[str, str]]:
    """For `labkit.table`: what decides, and the cache."""
    rows = []
    for name, way in pipes.items():
        row = {"run": name}
        row["hidden state"], row["cos and sin"] = way["hidden state"], way["cos and sin"]
        row["cache / plan"] = way["error"] or ratio(way)
        rows.append(row)
    return rows


def table_of_prices(
    seeds: Sequence[Mapping[str, tuple[float, float, float]]],
) -> list[dict[str, str]]:
    """For `labkit.table`: a row for each way, with its change of the log-probs on each seed that came to its end."""
    if not seeds:
        return [{"": "no run came to its end"}]
    rows = []
    for name in seeds[0]:
        ratios, largest, mean = zip(*(of_seed[name] for of_seed in seeds), strict=True)
        row = {"": name, "cache / plan": f"{max(ratios):.2f}"}
        row["largest change, each seed"] = "  ".join(f"{change:.4f}" for change in largest)
        row["mean change, each seed"] = "  ".join(f"{change:.5f}" for change in mean)
        rows.append(row)
    return rows


def draw_peaks(axes: Any, peaks: Mapping[str, Mapping[str, float]], rows: int) -> None:
    """For bug and fix the peaks of sampling and of a step; the higher one is the run's. A cross where a run died."""
    tones = {"bug": "bug", "yours": "fix", "solution": "fix"}
    for at, (name, of_arm) in enumerate(peaks.items()):
        colour = TONES[tones[name]][0]
        axes.text(-120, 1 - at, name, ha="right", va="center", fontsize=9)
        if not of_arm:
            axes.plot(200, 1 - at, "X", ms=10, color=colour)
            continue
        top = run_peak(of_arm, rows)
        about = "" if rows in (1, 8) else " ≈"
        bars = (
            ("sampling", of_arm[SAMPLING], 0.18),
            (f"step{about}", step_peak(of_arm, rows), -0.18),
        )
        for label, size, shift in bars:
            alpha, ink = (1.0, "white") if size == top else (0.35, "black")
            place = 1 - at + shift
            axes.barh(place, size, height=0.32, color=colour, alpha=alpha, lw=0)
            axes.text(60, place, f"{label} {size:,.0f}", color=ink, va="center", fontsize=8)
        axes.plot([top, top], [0.6 - at, 1.4 - at], color="black", lw=2)
    axes.set(xlim=(-1400, 12_400), ylim=(-0.5, 1.5), yticks=[])
    axes.set_xlabel("peak, MiB (simulated; black: the run's)", fontsize=8)
    axes.spines["left"].set_visible(False)
