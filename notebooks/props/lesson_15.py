"""What the out-of-memory clinic (page 15) uses and does not teach: its four messages and its tables.

The made deaths stand in `made_deaths`, who reads them and the judge in `clinic_scores`, the public messages in
`out_of_memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from props import out_of_memory
from props.clinic_pictures import ANSWERS, Numbers, bars, of_three
from props.clinic_four import CANNOT, FOUR

import labkit
from labkit import memory
from labkit.common import format_size

GIB = 2**30
FIGURES = ("asked", "total", "free", "allocated", "unallocated")
SETS = {  # of the public messages
    "the 49 that the limits were chosen on": out_of_memory.TUNED_ON,
    "41 gathered by somebody who did not know the rules": ("gathered",),
    "16 looked up afterwards": ("after",),
}
# Right when these sets were met, with the rules of then; written down then, and not computed.
AT_FIRST = {("gathered",): "11", ("after",): "12"}


# ---------------------------------------------------------------------------------------------- public messages

NUMBERED = {source: str(at) for at, source in enumerate(FOUR, 1)}  # in the map


def numbers(message: str) -> dict[str, int | None]:
    """The five figures of a message, in bytes, and what the driver counts for this process ("own"; None: not said).

    Raises: ValueError names a figure that the message does not have.
    """
    figures = five(memory.owner(message))
    for name in FIGURES:
        if figures[name] is None:
            raise ValueError(f"{message[:60]!r} does not say what was {name}")
    return figures


def five(read: Any) -> dict[str, int | None]:
    """The figures of what `memory.owner` read, by the names of this page."""
    sizes = (read.tried, read.total, read.free, read.allocated, read.unallocated)
    return dict(zip(FIGURES, sizes, strict=True)) | {"own": read.this_process}


def four() -> list[dict[str, Any]]:
    """The four messages to sort: the cases, in the order of `FOUR`."""
    by_source = {case["source"]: case for case in out_of_memory.cases()}
    return [by_source[source] for source in FOUR]


def table_of_four() -> list[dict[str, Any]]:
    """Their figures, without a name. A difference of two printed numbers is given as roughly as it is known."""
    rows = []
    for at, case in enumerate(four(), 1):
        row: dict[str, Any] = {"message": f"{at}"}
        for name, size in five(memory.owner(out_of_memory.message(case))).items():
            row[name.replace("own", "this process")] = "–" if size is None else format_size(size)
        if "reserved" in case:
            row["unallocated"] = f"about {float(row_gib(case)):.1f} GiB"
        rows.append(row)
    return rows


def row_gib(case: Mapping[str, Any]) -> float:
    """Reserved less allocated, in GiB."""
    return (memory.owner(out_of_memory.message(case)).unallocated or 0) / GIB


def bars_of_four() -> list[tuple[str, dict[str, int | None]]]:
    """Names and figures of the four, for the picture."""
    rows = []
    for at, case in enumerate(four(), 1):
        rows.append((f"message {at}", five(memory.owner(out_of_memory.message(case)))))
    return rows


def ask_for_four() -> None:
    """A question for each of the four."""
    options = [*ANSWERS, CANNOT]
    for at, (source, (answer, why, wrong)) in enumerate(FOUR.items(), 1):
        labkit.predict(
            f"Message {at}: what was in the way?",
            options,
            options.index(answer),
            f"{why} ({source})",
            wrong=[wrong[name] for name in options if name != answer],
        )


def public(*sets: str) -> list[dict[str, Any]]:
    """The messages of these sets with all five figures, or the 49: numbers, cause, form, source, settled."""
    rows = []
    for case in out_of_memory.cases(*(sets or out_of_memory.TUNED_ON)):
        if case["form"] not in out_of_memory.SETTINGS:
            continue
        figures = five(memory.owner(out_of_memory.message(case)))
        if None not in [figures[name] for name in FIGURES]:
            row = {"numbers": figures, "cause": case["cause"], "settled": case["settled"]}
            rows.append(row | {"source": case["source"], "form": case["form"]})
    return rows


def right(rows: Sequence[Mapping[str, Any]], reading: Callable[[Numbers], object]) -> int:
    """How many public messages a reading names as their threads do."""
    return sum(of_three(reading(row["numbers"])) == row["cause"] for row in rows)


def answers_by_cause(
    rows: Sequence[Mapping[str, Any]], reading: Callable[[Numbers], object]
) -> list[dict[str, Any]]:
    """A row for each cause that a thread gives: how often a reading gives which name."""
    table = []
    for cause in ANSWERS:
        those = [row for row in rows if row["cause"] == cause]
        given = [of_three(reading(row["numbers"])) for row in those]
        line: dict[str, Any] = {"cause in the thread": cause, "messages": len(those)}
        line |= {f"read as {name}": given.count(name) for name in ANSWERS}
        table.append(line)
    return table


def table_of_readings(
    rows: Sequence[Mapping[str, Any]], readings: Mapping[str, Callable[[Numbers], object]]
) -> list[dict[str, Any]]:
    """These readings and three more, by the unallocated alone: right of all, and of those that are settled."""

    def above(size: int, limit: float) -> str:
        return "fragments" if size > limit else "tensors"

    more: dict[str, Callable[[Any], object]] = {
        "unallocated above allocated": lambda one: above(one["unallocated"], one["allocated"]),
        "unallocated above a tenth of the card": lambda one: above(
            one["unallocated"], one["total"] / 10
        ),
        "always “tensors”": lambda one: "tensors",
    }
    settled = [row for row in rows if row["settled"]]
    table = []
    for words, reading in {**readings, **more}.items():
        line: dict[str, Any] = {"says *fragments* for": words, "right": right(rows, reading)}
        line["of"] = len(rows)
        line["right of those settled by a cure or a maintainer"] = right(settled, reading)
        table.append(line | {"of these": len(settled)})
    return table


def scores_by_limits(
    rows: Sequence[Mapping[str, Any]], reading_by: Callable[[float, float, Numbers], object]
) -> list[dict[str, Any]]:
    """How many messages are read as in their threads, for every position of the map's two knobs."""
    table = []
    for others in range(0, 60, 10):
        line: dict[str, Any] = {"others above": f"{others} %"}
        for pieces in range(0, 70, 10):
            reading = partial(reading_by, others / 100, pieces / 100)
            line[f"unallocated above {pieces} %"] = right(rows, reading)
        table.append(line)
    return table


def scores(by_limits: Callable[[Numbers], object]) -> list[dict[str, Any]]:
    """What the two limits and `labkit.memory.owner` make of each set, beside the yardstick."""
    table = []
    for words, sets in SETS.items():
        cases = out_of_memory.cases(*sets)
        counted = out_of_memory.count(cases)
        constant = out_of_memory.count(cases, out_of_memory.always_tensors)["right"]
        row: dict[str, Any] = {"messages": words, "right, always “tensors”": constant}
        row["with five numbers"] = len(public(*sets))
        row["right by the two limits alone"] = right(public(*sets), by_limits)
        row["`owner`: right when the set was met"] = AT_FIRST.get(tuple(sets), "–")
        row["`owner`: right now"] = counted["right"]
        table.append(row | {"wrong now": counted["wrong"], "not named now": counted["not named"]})
    return table


def right_of(rows: Sequence[Mapping[str, Any]], given: Sequence[str]) -> int:
    """How many answers are as the threads have it."""
    pairs = zip(rows, given, strict=True)
    return sum(of_three(answer) == row["cause"] for row, answer in pairs)


# ------------------------------------------------------------------------------------------ what `owner` makes of it


def texts() -> list[dict[str, str]]:
    """Texts that have no allocator's numbers, and what `owner` makes of them."""
    rows = []
    for form in ("Ray", "the kernel", "an exit code", "an engine's pool", "an engine's share"):
        case = next(case for case in out_of_memory.cases("gathered") if case["form"] == form)
        text = out_of_memory.message(case)
        read = memory.owner(text)
        line = text.splitlines()[0].replace("|", "\\|")
        rows.append({"text": f"`{line}`", "`owner` says": read.verdict, "why": read.why})
    return rows


def show_reading(message: str, held: Sequence[int], owned: Sequence[int] | None) -> None:
    """What `labkit.memory.owner` makes of a text, in words and, where it has all five numbers, as a picture."""
    try:
        read = memory.owner(message, held, owned or None)
    except ValueError as error:
        print(error)
        return
    print(read)
    figures = five(read)
    if None not in [figures[name] for name in FIGURES]:
        bars([("yours", figures)], f"Your card: {read.verdict}")
