"""Readings of made deaths and public messages: who is right how often, and the judge of the clinic's exercise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from props.clinic_pictures import NAMES, Numbers
from props.lesson_15 import right

from labkit import checks, sandbox

GIB = 2**30
Reading = Callable[[dict[str, int | None], list[int], list[int]], str]
Death = Mapping[str, Any]
FILLING = "rollouts of two rounds"
# what the judge asks for, and the page's verdicts too: messages, shares of the unseen deaths and of each cause
MESSAGES, SHARE, EACH_CAUSE, FALSE_LEAKS = 38, 0.65, 1 / 3, 8


def short(death: Death) -> int:
    """What the request lacked, in bytes; 1 at least."""
    figures = death["numbers"]
    return max(figures["asked"] - figures["free"], 1)


def right_name(death: Death, name: str) -> bool:
    return name in death["causes"]


def is_leak(death: Death) -> bool:
    return "a leak" in death["causes"]


def has_history(death: Death) -> bool:
    """Whether it died in step 3 or later: one step's difference is no growth."""
    return len(death["held"]) > 2


def in_a_child(
    reading: Reading, deaths: Sequence[Death], rows: Sequence[Mapping[str, Any]]
) -> Iterator[Any]:
    """What a reading says of deaths and of public messages; an answer that raises is its error's name."""
    for one in deaths:
        yield _answer(reading, one["numbers"], one["held"], one["owned"])
    for row in rows:
        yield _answer(reading, row["numbers"], [], [])


def _answer(reading: Reading, figures: Numbers, held: Sequence[int], owned: Sequence[int]) -> str:
    try:
        return str(reading(dict(figures), list(held), list(owned)))
    except Exception as error:
        return type(error).__name__


def read_all(
    reading: Any, deaths: Sequence[Death], rows: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """(its answers to the deaths, its answers to the messages); "no answer" where it does not come back."""
    run = sandbox.run(in_a_child, reading, list(deaths), list(rows), timeout=60)
    given = [str(event) for event in run.events]
    given += ["no answer"] * (len(deaths) + len(rows) - len(given))
    return given[: len(deaths)], given[len(deaths) :]


def rows_of(deaths: Sequence[Death]) -> dict[str, list[int]]:
    """The rows of the table of deaths: a label -> places in the list."""
    rows: dict[str, list[int]] = {}
    for name in NAMES:
        rows[name] = [at for at, one in enumerate(deaths) if one["causes"] == [name]]
    late = [at for at in rows["a leak"] if has_history(deaths[at])]
    rows["a leak, in step 2"] = [at for at in rows["a leak"] if at not in late]
    rows["a leak"] = late
    rows["two causes: either counts"] = [
        at for at, one in enumerate(deaths) if len(one["causes"]) > 1
    ]
    rows["no single cause"] = [at for at, one in enumerate(deaths) if not one["causes"]]
    return rows


def table_of_deaths(
    both: Sequence[Death], ways: Mapping[str, Sequence[str]], seen: Sequence[Death] = ()
) -> list[dict[str, Any]]:
    """A row for each cause: how many deaths, and how many each way of reading names.

    seen   the first of them, which the table leaves out
    """
    deaths = both[len(seen) :]
    table = []
    for label, places in rows_of(deaths).items():
        row: dict[str, Any] = {"cause": label, "deaths": len(places)}
        for name, given in ways.items():
            row[name] = sum(right_name(deaths[at], given[len(seen) + at]) for at in places)
        table.append(row)
    total: dict[str, Any] = {"cause": "all", "deaths": len(deaths)}
    for name in ways:
        total[name] = sum(row[name] for row in table)
    of_fragments: dict[str, Any] = {"cause": "says *fragments*: right, of", "deaths": ""}
    for name, given in ways.items():
        pairs = zip(deaths, given[len(seen) :], strict=True)
        said = [one for one, answer in pairs if answer == "fragments"]
        agree = sum(right_name(one, "fragments") for one in said)
        of_fragments[name] = f"{agree} of {len(said)}"
    return [*table, total, of_fragments]


def by_the_step(deaths: Sequence[Death]) -> list[str]:
    """The baseline: size, told apart by the step's number, without one number of the message."""
    return ["too big at once" if len(one["held"]) <= 2 else "a longer batch" for one in deaths]


def without_fragments(deaths: Sequence[Death], names: Sequence[str]) -> list[str]:
    """The same answers, with "fragments" taken for size."""
    size = by_the_step(deaths)
    return [size[at] if name == "fragments" else name for at, name in enumerate(names)]


def named(deaths: Sequence[Death], names: Sequence[str]) -> int:
    """How many deaths have been given a name of their cause."""
    return sum(right_name(death, name) for name, death in zip(names, deaths, strict=True))


def false_leaks(deaths: Sequence[Death], names: Sequence[str]) -> int:
    """How many that are no leak have been called one."""
    pairs = zip(names, deaths, strict=True)
    return sum(name == "a leak" and not is_leak(death) for name, death in pairs)


def table_of_leaks(
    deaths: Sequence[Death], ways: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """A row for each thing that lives beside the run: leaks found, and others that are called one."""
    besides = list(dict.fromkeys(death["beside"] for death in deaths))
    table = []
    for beside in [*besides, "all"]:
        places = [at for at, one in enumerate(deaths) if beside in (one["beside"], "all")]
        some = [deaths[at] for at in places]
        row: dict[str, Any] = {"beside the run": beside, "leaks": sum(map(is_leak, some))}
        row["no leaks"] = len(some) - row["leaks"]
        for name, given in ways.items():
            called = [given[at] for at in places]
            pairs = zip(some, called, strict=True)
            row[f"{name}: leaks found"] = sum(
                is_leak(one) and answer == "a leak" for one, answer in pairs
            )
            row[f"{name}: false leaks"] = false_leaks(some, called)
        table.append(row)
    return table


def ranges(deaths: Sequence[Death], growth: Callable[[Death], float]) -> tuple[float, float, float]:
    """(the smallest growth of a leak from step 3 on; the largest of all others; the same beside rollouts that fill)."""
    leaks, others, filling = [], [], []
    for death in deaths:
        if is_leak(death) and has_history(death):
            leaks.append(growth(death))
        elif not is_leak(death):
            beside = filling if death["beside"] == FILLING else others
            beside.append(growth(death))
    return min(leaks), max(others), max(filling, default=0.0)


def mistakes(deaths: Sequence[Death], names: Sequence[str]) -> str:
    """What the wrongly named deaths were, and what they were called: all of them."""
    wrong = []
    for death, name in zip(deaths, names, strict=True):
        if not right_name(death, name):
            wrong.append((" or ".join(death["causes"]) or "no single cause", name))
    counted = Counter(wrong).most_common()
    return ", ".join(f"{number} × {cause} as {name}" for (cause, name), number in counted)


# ------------------------------------------------------------------------------------------------------- the judge


def judge(reading: Reading, deaths: Sequence[Death], rows: Sequence[Mapping[str, Any]]) -> Any:
    """65 % of the unseen deaths, a third of each cause at least, eight false leaks at most; and 38 of the 49 messages."""
    claim = f"names {SHARE:.0%} of the unseen deaths, a third of each cause, {FALSE_LEAKS} false leaks at most, and "
    claim += f"{MESSAGES} of {len(rows)} messages"
    given = [str(reading(dict(one["numbers"]), list(one["held"]), list(one["owned"]))) for one in deaths]  # fmt: skip
    counted: dict[str, str] = {}
    hint = ""
    rows_of_deaths = rows_of(deaths)
    wrong = [at for at, one in enumerate(deaths) if given[at] == "a leak" and not is_leak(one)]
    counted["false leaks"] = str(len(wrong))
    if len(wrong) > FALSE_LEAKS:
        first = deaths[wrong[-1]]
        hint = f"{len(wrong)} deaths are called a leak and are none. The last of them has {first['beside']} beside it: "
        hint += in_words(first)
    for cause in NAMES:
        places = rows_of_deaths[cause]
        wrong = [at for at in places if given[at] != cause]
        counted[cause] = f"{len(places) - len(wrong)} of {len(places)}"
        if len(places) - len(wrong) < EACH_CAUSE * len(places) and not hint:
            first = wrong[0]
            hint = f"{len(wrong)} of {len(places)} deaths by {cause!r} are read otherwise. "
            hint += f"The first, as {given[first]!r}: {in_words(deaths[first])}"
    all_named = named(deaths, given)
    counted["all"] = f"{all_named} of {len(deaths)}"
    if all_named < SHARE * len(deaths) and not hint:
        at = next(at for at, one in enumerate(deaths) if not right_name(one, given[at]))
        hint = f"{all_named} of {len(deaths)} deaths are named. The first of the others is read as {given[at]!r}, and "
        hint += f"was {' or '.join(deaths[at]['causes'])!r}: {in_words(deaths[at])}"
    agree = right(rows, lambda figures: reading(dict(figures), [], []))
    counted["messages"] = f"{agree} of {len(rows)}"
    if agree < MESSAGES and not hint:
        hint = f"Of the messages, which come without `held`, {agree} of {len(rows)} are read as their threads do."
    return checks.Report("my_reading", claim, not hint, counted, hint)


def in_words(one: Mapping[str, Any]) -> str:
    """The figures of a death, in GiB."""
    words = ", ".join(f"{name} {(size or 0) / GIB:.2f}" for name, size in one["numbers"].items())
    for name in ("held", "owned"):
        words += f"; {name} before each step " + " ".join(f"{size / GIB:.2f}" for size in one[name])
    return f"{words} GiB."
