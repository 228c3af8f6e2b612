"""How a reading of page 15 does on made deaths and on public messages: its answers, the tables of them, and the judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from props.clinic_pictures import NAMES, Numbers, of_three, over
from props.lesson_15 import right
from props.made_deaths import GIB, KINDS, Death

from labkit import checks, sandbox
from labkit.common import shown

Reading = Callable[[dict[str, int], list[int], int | None], str]


def answers(reading: Reading, deaths: Sequence[Death]) -> list[str]:
    """What a reading says of each death."""
    return [reading(dict(one["numbers"]), list(one["held"]), one["owned"]) for one in deaths]


def in_a_child(
    reading: Reading, deaths: Sequence[Death], rows: Sequence[Mapping[str, Any]]
) -> Iterator[Any]:
    """What a reading says of deaths and of public messages; an answer that raises is its error's name."""
    for one in deaths:
        yield _answer(reading, one["numbers"], one["held"], one["owned"])
    for row in rows:
        yield _answer(reading, row["numbers"], [], None)


def _answer(reading: Reading, figures: Numbers, held: Sequence[int], owned: int | None) -> str:
    try:
        return str(reading(dict(figures), list(held), owned))[:60]  # whatever it is, a line
    except Exception as error:
        return type(error).__name__


def read_all(
    reading: Any, deaths: Sequence[Death], rows: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """(its answers to the deaths, its answers to the messages); "no answer" where it does not come back."""
    run = sandbox.run(in_a_child, reading, list(deaths), list(rows), timeout=30)
    given = [str(event) for event in run.events]
    given += ["no answer"] * (len(deaths) + len(rows) - len(given))
    return given[: len(deaths)], given[len(deaths) :]


def table_of_deaths(
    deaths: Sequence[Death], ways: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """A row for each cause: how many deaths, and how many each way of reading names."""
    table = []
    for cause in NAMES:
        places = [at for at, death in enumerate(deaths) if death["cause"] == cause]
        row: dict[str, Any] = {"cause": cause, "deaths": len(places)}
        for name, given in ways.items():
            row[name] = sum(given[at] == cause for at in places)
        table.append(row)
    total: dict[str, Any] = {"cause": "all", "deaths": len(deaths)}
    for name in ways:
        total[name] = sum(row[name] for row in table)
    return [*table, total]


def named(deaths: Sequence[Death], names: Sequence[str]) -> int:
    """How many deaths have been given the name of their cause."""
    return sum(name == death["cause"] for name, death in zip(names, deaths, strict=True))


def right_of(rows: Sequence[Mapping[str, Any]], given: Sequence[str]) -> int:
    """How many answers are as the threads have it."""
    pairs = zip(rows, given, strict=True)
    return sum(of_three(answer) == row["cause"] for row, answer in pairs)


def mistakes(deaths: Sequence[Death], names: Sequence[str]) -> str:
    """What the wrongly named deaths were, and what they were called."""
    pairs = zip(deaths, names, strict=True)
    wrong = [(death["cause"], name) for death, name in pairs if name != death["cause"]]
    counted = Counter(wrong).most_common()
    return ", ".join(f"{number} × {cause} as {name}" for (cause, name), number in counted)


def ranges(deaths: Sequence[Death]) -> str:
    """(held − owned) / short of the leaks, and of all other deaths, in words."""
    leaks = [over(death) for death in deaths if death["cause"] == "a leak"]
    others = [over(death) for death in deaths if death["cause"] != "a leak"]
    return f"leaks {min(leaks):.2f} to {max(leaks):.2f}, all others {max(others):.2f} at most"


def by_kind(deaths: Sequence[Death], cause: str) -> str:
    """How many deaths of this cause each kind of run has, in words."""
    counted = Counter(death["kind"] for death in deaths if death["cause"] == cause)
    return ", ".join(f"{counted[kind]} in {kind}" for kind in KINDS)


def most_common(deaths: Sequence[Death]) -> str:
    return Counter(death["cause"] for death in deaths).most_common(1)[0][0]


# ------------------------------------------------------------------------------------------------------- the judge


def judge(reading: Reading, deaths: Sequence[Death], rows: Sequence[Mapping[str, Any]]) -> Any:
    """Four fifths of the unseen deaths, half of each cause at least; and 38 of the 49 messages by three names."""
    claim = "names four fifths of the unseen deaths, half of each cause, and 38 of 49 messages"
    given = answers(reading, deaths)
    counted: dict[str, str] = {}
    hint = ""
    for cause in NAMES:
        places = [at for at, death in enumerate(deaths) if death["cause"] == cause]
        wrong = [at for at in places if given[at] != cause]
        counted[cause] = f"{len(places) - len(wrong)} of {len(places)}"
        if len(wrong) > len(places) / 2 and not hint:
            first = wrong[0]
            hint = f"{len(wrong)} of {len(places)} deaths by {cause!r} are read otherwise. "
            hint += f"The first, as {shown(given[first])}: {in_words(deaths[first])}"
    if named(deaths, given) < 0.8 * len(deaths) and not hint:
        first = next(at for at, death in enumerate(deaths) if given[at] != death["cause"])
        hint = f"{named(deaths, given)} of {len(deaths)} deaths are named. The first of the others was "
        hint += f"{deaths[first]['cause']!r}, and is read as {shown(given[first])}: {in_words(deaths[first])}"
    agree = right(rows, lambda figures: reading(dict(figures), [], None))
    counted["messages"] = f"{agree} of {len(rows)}"
    if agree < 38 and not hint:
        hint = f"Of the messages, which come without `held`, {agree} of {len(rows)} are read as their threads do."
    return checks.Report("my_reading", claim, not hint, counted, hint)


def in_words(one: Mapping[str, Any]) -> str:
    """The figures of a death or a message, in GiB."""
    words = ", ".join(f"{name} {size / GIB:.2f}" for name, size in one["numbers"].items())
    if one.get("held"):
        held = " ".join(f"{size / GIB:.2f}" for size in one["held"])
        words += f"; held before each step {held}, owned {one['owned'] / GIB:.2f}"
    return f"{words} GiB."
