"""What the out-of-memory clinic (page 15) uses and does not teach: its six messages and its tables.

The made deaths stand in `made_deaths`, who reads them in `lesson_15_judges`, the public messages in `out_of_memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from props import out_of_memory
from props.clinic_pictures import ANSWERS, Numbers, bars, of_three

import labkit
from labkit import memory
from labkit.common import format_size

GIB = 2**30
FIGURES = ("asked", "total", "free", "allocated", "unallocated")
SETS = {  # of the public messages
    "the 49 that the limits were chosen on": out_of_memory.TUNED_ON,
    "41 gathered by somebody who did not know the rules": ("gathered",),
    "16 looked up when the rules stood": ("after",),
}


# ---------------------------------------------------------------------------------------------- public messages

SIX = {  # source -> why the right answer is right, and what each wrong one would need
    "huggingface/trl#5750": (
        "Free, allocated and unallocated are 4.1 GiB together; the card has 14.7. The rest is somebody else's: TRL's "
        "tests ran in several processes on one card.",
        {
            "fragments": "Only 0.07 GiB are unallocated: there is nothing to be in pieces.",
            "tensors": "This process has 3.3 GiB in tensors, on a card of 14.7.",
        },
    ),
    "pytorch/pytorch#31353": (
        "5.1 GiB are unallocated, and 1.9 are refused: there is room enough, in pieces. With empty_cache() in the loop "
        "the reporter's largest batch rose from 226 to over 256.",
        {
            "another owner": "Free, allocated and unallocated add up to nearly the whole card.",
            "tensors": "So it would be if what is free and unallocated were less than what was asked.",
        },
    ),
    "hiyouga/LlamaFactory#182": (
        "5.2 GiB are this process's, on a full card of 31.8. The run was meant for GPU 5, and the setting for that had been "
        "overwritten by a later command.",
        {
            "fragments": "Reserved and allocated are the same to 0.01 GiB: nothing is unallocated.",
            "tensors": "26 GiB of the card are not this process's.",
        },
    ),
    "NVIDIA/mellotron#24": (
        "10.8 of 11.2 GiB are in tensors, and 54 MiB are unallocated: the card is full. The reporter found some texts of "
        "the data set to be the cause.",
        {
            "another owner": "All but 0.3 GiB of the card are this process's.",
            "fragments": "54 MiB would hold the 2 MiB asked, but they are half a per cent of the card: scraps.",
        },
    ),
    "eps696/aphantasia#22": (
        "4.4 of 6 GiB are reserved, nearly all of it in tensors, and a smaller batch was the way out. 1.5 GiB are not "
        "PyTorch's; whose they are, the thread does not say.",
        {
            "another owner": "It looks so: a quarter of the card is not PyTorch's. Where the line is, the map asks.",
            "fragments": "0.3 GiB are unallocated, a twentieth of the card.",
        },
    ),
    "kaito-project/kaito#976": (
        "The thread's answer is the setting against fragments (whether it cured this run, it does not say). A twentieth "
        "of the card is unallocated: many a full card has that, and a rule that calls this one right is wrong on others.",
        {
            "another owner": "Free, allocated and unallocated add up to all but 0.8 GiB, and the message gives those to this process: its context, its libraries.",
            "tensors": "It looks so, and `labkit.memory.owner` says so.",
        },
    ),
}


def numbers(message: str) -> dict[str, int]:
    """The five figures of a message, in bytes.

    Raises: ValueError names one that the message does not have.
    """
    figures = five(memory.owner(message))
    for name, size in figures.items():
        if size is None:
            raise ValueError(f"{message[:60]!r} does not say what was {name}")
    return {name: size or 0 for name, size in figures.items()}


def five(read: Any) -> dict[str, int | None]:
    """The five figures of what `memory.owner` read, by the names of this page."""
    sizes = (read.tried, read.total, read.free, read.allocated, read.unallocated)
    return dict(zip(FIGURES, sizes, strict=True))


def six() -> list[dict[str, Any]]:
    """The six messages to sort: the cases, in the order of `SIX`."""
    by_source = {case["source"]: case for case in out_of_memory.cases()}
    return [by_source[source] for source in SIX]


def table_of_six() -> list[dict[str, Any]]:
    """Their figures, without a name."""
    rows = []
    for at, case in enumerate(six(), 1):
        row: dict[str, Any] = {"message": f"{at}"}
        for name, size in numbers(out_of_memory.message(case)).items():
            row[name] = format_size(size)
        rows.append(row)
    return rows


def bars_of_six() -> list[tuple[str, dict[str, int]]]:
    """Names and figures of the six, for the picture."""
    rows = []
    for at, case in enumerate(six(), 1):
        rows.append((f"message {at}", numbers(out_of_memory.message(case))))
    return rows


def ask_for_six() -> None:
    """A question for each of the six."""
    for at, case in enumerate(six(), 1):
        why, wrong = SIX[case["source"]]
        labkit.predict(
            f"Message {at}: what was in the way?",
            ANSWERS,
            ANSWERS.index(case["cause"]),
            f"{why} ({case['source']})",
            wrong=[wrong[name] for name in ANSWERS if name != case["cause"]],
        )


def public() -> list[dict[str, Any]]:
    """The 49 messages with all five figures: numbers, cause, form, source."""
    rows = []
    for case in out_of_memory.cases(*out_of_memory.TUNED_ON):
        row = {"numbers": numbers(out_of_memory.message(case)), "cause": case["cause"]}
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


def scores() -> list[dict[str, Any]]:
    """What `labkit.memory.owner` makes of each set, beside the yardstick."""
    table = []
    for words, sets in SETS.items():
        cases = out_of_memory.cases(*sets)
        counted = out_of_memory.count(cases)
        row: dict[str, Any] = {"messages": words, "right": counted["right"]}
        row |= {"wrong": counted["wrong"], "not named": counted["not named"]}
        row["right, always “tensors”"] = out_of_memory.count(cases, out_of_memory.always_tensors)[
            "right"
        ]
        table.append(row)
    return table


NUMBERED = {source: str(at) for at, source in enumerate(SIX, 1)}  # in the map


# ------------------------------------------------------------------------------------------ what `owner` makes of it

CUTS = {
    "the whole message": "",
    "without unallocated": ", and ",
    "without allocated": " Of the allocated",
    "without free": " of which",
    "only what was asked": " GPU 0",
}


def what_the_message_lacks() -> list[dict[str, Any]]:
    """The messages of torch 2, cut short from behind: how many `owner` still names, and as it names the whole one."""
    whole = []
    for case in out_of_memory.cases(*out_of_memory.TUNED_ON):
        if out_of_memory.SETTINGS[case["form"]]:
            whole.append(out_of_memory.message(case))
    table = []
    for words, end in CUTS.items():
        named = agree = 0
        for text in whole:
            cut = text[: text.rindex(end)] if end else text
            answer = out_of_memory.by_owner(cut)
            named += answer not in out_of_memory.NOT_NAMED
            agree += answer == out_of_memory.by_owner(text)
        row = {"the message has": words, "named": f"{named} of {len(whole)}"}
        table.append(row | {"with the whole one's name": agree})
    return table


def texts() -> list[dict[str, str]]:
    """Texts that have no allocator's numbers, and what `owner` makes of them."""
    rows = []
    for form in ("Ray", "the kernel", "an exit code", "an engine's pool", "an engine's share"):
        case = next(case for case in out_of_memory.cases("gathered") if case["form"] == form)
        read = memory.owner(out_of_memory.message(case))
        rows.append({"text of": form, "`owner` says": read.verdict, "next": read.next})
    return rows


def show_reading(message: str, held: Sequence[int], owned: int | None) -> None:
    """What `labkit.memory.owner` makes of a text, in words and, where it has all five numbers, as a picture."""
    try:
        read = memory.owner(message, held, owned)
    except ValueError as error:
        print(error)
        return
    print(read)
    if None not in five(read).values():
        bars([("yours", numbers(message))], f"Your card: {read.verdict}")
