"""Page 09's figure: a round as five stations, and what each table was asked for in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from props.lesson_09_rounds import STATIONS

from labkit.display.panels import TONES
from labkit.events import Run

INK, GREY = "#444444", "#D0D0D0"
TABLES = ("tokens", "positions", "columns of logits")


def draw_round(axes: Sequence[Any], frame: Mapping[str, Any] | None, tone: str = "grey") -> None:
    """Stations on the left: what ran is filled, where it died is red. Tables on the right, a bar for the rows.

    frame  of `lesson_09_rounds.rounds_of`; None where no round came
    tone   the name of the colour of stations that ran
    """
    stations, tables = axes
    stations.set(xlim=(0, 1), ylim=(len(STATIONS), 0))
    stations.set_axis_off()
    tables.spines[["left", "bottom"]].set_visible(False)
    if frame is None:
        tables.set_axis_off()
        stations.text(0, 1, "ended by an error before a round began", fontsize=9)
        return
    draw_stations(stations, frame, TONES[tone][0])
    draw_tables(tables, frame)


def draw_stations(axes: Any, frame: Mapping[str, Any], colour: str) -> None:
    """The five parts of a round from top to bottom, with a mark for each."""
    reached, died = frame["reached"], bool(frame["said"])
    for place, station in enumerate(STATIONS):
        text, look = station, {"fc": colour, "ec": colour}
        ink = INK
        if station not in reached:
            look, ink = {"fc": "none", "ec": GREY}, GREY
        elif died and station == reached[-1]:
            look, ink = {"fc": "none", "ec": TONES["far"][0]}, TONES["far"][0]
            text = f"{station}: dies in {article(frame['operation'])}"
        axes.add_patch(square(0.01, place + 0.2, 0.05, 0.6, look))
        axes.text(0.1, place + 0.5, text, va="center", fontsize=9, color=ink)


def square(left: float, top: float, width: float, height: float, look: Mapping[str, Any]) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((left, top), width, height, lw=1.5, **look)


def article(operation: str) -> str:
    """An operation with its article: "an embedding", "a gather"."""
    return f"an {operation}" if operation[:1] in "aeiou" else f"a {operation}"


def draw_tables(axes: Any, frame: Mapping[str, Any]) -> None:
    """A bar of its rows for each table, and a mark at the largest index that it was asked for, red beyond the bar."""
    names = []
    for whose in ("policy", "reference"):
        names += [f"{whose}: {table}" for table in TABLES]
    for place, name in enumerate(names):
        rows = frame["rows"][name]
        # row 0 lies from -0.5 to 0.5, so that a mark stands in its row
        axes.barh(place, rows, left=-0.5, height=0.62, color=GREY)
        largest = frame["asked"].get(name)
        text, ink = "not asked", INK
        if largest is not None:
            beyond = largest >= rows
            ink = TONES["far"][0] if beyond else INK
            axes.plot(largest, place, "X" if beyond else "o", color=ink, ms=6)
            text = f"0 to {rows - 1}, asked for {largest}"
        axes.text(max(rows, largest or 0) + 1.2, place, text, va="center", fontsize=7.5, color=ink)
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
    axes.set(xlim=(-0.6, 50), xticks=[])
    axes.tick_params(axis="y", length=0)


def title_of(whose: str, run: Run) -> str:
    """A title: how many rounds come to their step with the reader's function, or with the solution."""
    models = "the solution's models"
    if whose == "yours":
        models = "your models"
    if not run.outcome:
        error = run.outcome.exception or run.outcome.signature
        return f"With {models} the run ended by an error ({error})"
    frames = run.events
    stepped = sum("step" in frame["reached"] and not frame["said"] for frame in frames)
    return f"With {models} {stepped} of {len(frames)} rounds reach the step"
