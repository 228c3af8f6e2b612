"""The runs that scripts/mystery_runs.py has played once, and the tables of lesson 18 that are made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median

from .asks import NOTHING, Case

Cases = Sequence[tuple[str, Case]]  # what is in a run, and the run
Log = Mapping[str, Sequence[float]]  # column -> a number for each round
PAGE = "this page"  # its own settings
SETTINGS = (
    PAGE,
    "one update a round, no KL",
    "a quarter of the rate",
)  # those that were played once
START = 0.455  # the exam before training

KEPT = Path(__file__).with_name("mystery_runs.jsonl")


def kept(setting: str = PAGE) -> dict[str, list[Case]]:
    """Name of what is in it -> the runs with it under these settings, one for each seed."""
    found: dict[str, list[Case]] = {}
    for line in KEPT.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["setting"] == setting:
            said = {}
            for name, values in row["said"].items():
                said[name] = {int(at): value for at, value in values.items()}
            found.setdefault(row["name"], []).append(Case(row["log"], said))
    return found


def pairs(cases: Mapping[str, Sequence[Case]]) -> Cases:
    """The same runs as pairs of name and run."""
    flat = []
    for name, runs in cases.items():
        flat += [(name, run) for run in runs]
    return flat


def numbers(runs: Sequence[Case], what: str, at: int = 5) -> list[float]:
    """What an instrument said of these runs, without those of which it said nothing: 0 divided by 0."""
    values = [run.said[what][at] for run in runs]
    return [value for value in values if value == value]


def span(values: Sequence[float], form: str = ".2f") -> str:
    """The smallest and the largest, for a table."""
    if not values:
        return ""
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


def late_reward(run: Case) -> float:
    """Mean reward of rounds 3 to 5."""
    return mean(run.log["reward"][2:])


def ranges(cases: Mapping[str, Sequence[Case]]) -> list[dict[str, str]]:
    """A row for each name: smallest and largest of its runs, first of what the log shows, then of the instruments."""
    rows = []
    for name, runs in cases.items():
        rows.append(
            {
                "fault": name,
                "reward, round 1": span([run.log["reward"][0] for run in runs]),
                "reward, rounds 3 to 5": span([late_reward(run) for run in runs]),
                "smallest length": span([min(run.log["length"]) for run in runs]),
                "tied groups, mean": span([mean(run.log["tied groups"]) for run in runs]),
                "surprise, 1": span(numbers(runs, "surprise", 1), ".1f"),
                "surprise, 5": span(numbers(runs, "surprise"), ".1f"),
                "gradient, 1": of_defined(runs, "gradient handed over", 1),
                "grade again, 5": span(numbers(runs, "grade again"), ".0f"),
                "weights moved, 5": span(numbers(runs, "weights moved"), ".3f"),
            }
        )
    return rows


def of_defined(runs: Sequence[Case], what: str, at: int) -> str:
    """Smallest to largest, and how many runs have the number, where some have 0 divided by 0."""
    values = numbers(runs, what, at)
    some = f" ({len(values)} runs)" if len(values) < len(runs) else ""
    return span(values) + some


def exams(settings: Sequence[str]) -> list[dict[str, str]]:
    """A row for each name: what the exam gained, the smallest and the largest, under each of the settings; and how it
    compares with the sound run of the same seed under the page's own."""
    rows: dict[str, dict[str, str]] = {}
    for setting in settings:
        for name, runs in kept(setting).items():
            row = rows.setdefault(name, {"fault": name})
            row[f"{setting}, {len(runs)} seeds"] = span(numbers(runs, "exam"))
            if setting == PAGE:
                row["minus sound, median"] = f"{minus_sound(runs, kept()[NOTHING]):+.3f}"
    return list(rows.values())


def minus_sound(runs: Sequence[Case], sound: Sequence[Case]) -> float:
    """The median gain in the exam minus that of the sound run of the same seed."""
    gains = zip(numbers(runs, "exam"), numbers(sound, "exam"), strict=True)
    return median(with_fault - without for with_fault, without in gains)


def outside(run: Log, sound: Sequence[Log]) -> int:
    """How many points of a log lie below the lowest or above the highest of these sound logs."""
    count = 0
    for column, values in run.items():
        for at, value in enumerate(values):
            of_sound = [other[column][at] for other in sound]
            count += not min(of_sound) <= value <= max(of_sound)
    return count


def outside_in_words(log: Log, sound: Sequence[Case]) -> str:
    """The reader's log against the band, and each sound run against the band of the others."""
    logs = [run.log for run in sound]
    each = [outside(one, logs[:at] + logs[at + 1 :]) for at, one in enumerate(logs)]
    points = sum(len(values) for values in log.values())
    text = f"outside the band: your run with {outside(log, logs)} of {points} points; "
    return text + f"a sound run, over the band of the others: {min(each)} to {max(each)}"


def unlike_sound(cases: Mapping[str, Sequence[Case]]) -> str:
    """Of each name, how many runs are paid less in rounds 3 to 5 than every sound run, or more than every one."""
    of_sound = [late_reward(run) for run in cases[NOTHING]]
    parts = []
    for name, runs in cases.items():
        late = [late_reward(run) for run in runs]
        low = sum(value < min(of_sound) for value in late)
        high = sum(value > max(of_sound) for value in late)
        if low:
            parts.append(f"{name} {low} less")
        if high:
            parts.append(f"{name} {high} more")
    return ", ".join(parts)


def look_alikes(cases: Mapping[str, Sequence[Case]]) -> list[dict[str, str]]:
    """Pairs that one number does not tell apart, and the number that does: smallest to largest of the runs."""
    tied = [run for run in cases["kind grader"] if numbers([run], "weights moved") == [0.0]]
    pairs_of: list[tuple[str, Sequence[Case], str, str]] = [
        ("temperature", cases["temperature"], "surprise, 5", "surprise, 1"),
        ("stale sampler", cases["stale sampler"], "surprise, 5", "surprise, 1"),
        ("stale sampler", cases["stale sampler"], "reward, rounds 3 to 5", "grade again, 5"),
        ("order", cases["order"], "reward, rounds 3 to 5", "grade again, 5"),
        ("copy", cases["copy"], "weights moved, 5", "reward, round 1"),
        (f"kind grader, all tied ({len(tied)} runs)", tied, "weights moved, 5", "reward, round 1"),
        ("lost gradient", cases["lost gradient"], "exam, 5", "gradient, 1"),
        ("padding", cases["padding"], "exam, 5", "gradient, 1"),
    ]
    rows = []
    for name, runs, alike, telling in pairs_of:
        row = {"fault": name, "close in": f"{alike}: {span(values_of(runs, alike))}"}
        rows.append(row | {"what tells them apart": f"{telling}: {span(values_of(runs, telling))}"})
    return rows


def values_of(runs: Sequence[Case], what: str) -> list[float]:
    """A number of each run: of the log by its name, of an instrument by "name, round"."""
    if what == "reward, rounds 3 to 5":
        return [late_reward(run) for run in runs]
    if what == "reward, round 1":
        return [run.log["reward"][0] for run in runs]
    name, at = what.split(", ")
    return numbers(runs, name.replace("gradient", "gradient handed over"), int(at))
