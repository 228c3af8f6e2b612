"""The tables triage works from, read when it is first imported: rules, families of errors, mechanisms, causes."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from labkit.memory import refusal

from . import courses, health, machine, measured
from .log import Log, Seen
from .mechanisms import LEAST, Mechanism
from .reading import Words
from .vocabulary import RAISED


@dataclass(frozen=True)
class Cause:
    """One word of the vocabulary. `lesson` is the number of the lesson that shows it, "" where there is none."""

    means: str
    lesson: str
    next: str  # the one thing to run now


@dataclass(frozen=True)
class Rule:
    """One row of rules.toml, where its words are explained. `ask` is None where a machine line alone decides."""

    name: str
    cause: str
    why: str = ""
    source: str = ""
    sure: str = "likely"
    next: str = ""
    ask: Callable[[Log], Seen | None] | None = None
    measured: bool = False  # whether it looks at measurements, not at lines alone
    alone: bool = False
    mechanism: Mechanism | None = None  # of mechanisms.toml: asked where no other rule has an answer
    passing: bool = False  # no finding in a run whose rows go on behind the line
    hides: frozenset[str] = frozenset()
    likes: Sequence[str] = ()
    of: Sequence[str] = ()
    beside: Sequence[str] = ()
    without: Sequence[str] = ()
    stated: Sequence[str] = ()
    at_most: Mapping[str, float] = field(default_factory=dict)
    count: int = 1

    def met(self, log: Log) -> list[str]:
        """The kinds of machine lines that the rule rests on, as far as the log has them."""
        return [name for name in self.of or (self.name,) if name in log.hits]

    def first_line(self, log: Log, error: bool = False) -> int | None:
        """The first line that the rule rests on, with `error` only one that tells of an error; None: there is none."""
        hits = [log.hits[name] for name in self.met(log)]
        return min((hit.line for hit in hits if not error or RAISED.search(hit.text)), default=None)

    def look(self, log: Log) -> Seen | None:
        """What the rule sees in a log; None where it does not hold."""
        small = [value <= most for name, most in self.at_most.items() if (value := log.setting(name)) is not None]
        met = all(map(log.met, self.beside)) and not any(map(log.met, self.without))
        if not met or (self.at_most and not any(small)) or (self.stated and not log.stated(*self.stated)):
            return None
        if self.ask:
            return self.ask(log)
        names = self.met(log)
        if not names or log.hits[names[0]].count < self.count or (self.passing and not log.reading.ended_by(*names)):
            return None
        hit = log.hits[names[0]]
        numbers = sorted({group["rank"] for group in hit.groups if "rank" in group}, key=int)
        ranks = f", ranks {', '.join(numbers)}" if numbers else ""
        whose = f" (a text of {hit.groups[0]['library']})" if hit.groups and "library" in hit.groups[0] else ""
        return Seen([f"line {hit.line}, {hit.count} time{'s' * (hit.count > 1)}{ranks}: {hit.text[:160]}{whose}"])


def _table(name: str) -> dict:
    return tomllib.loads((files(__package__) / name).read_text(encoding="utf-8"))


def _lines(patterns: list[str] | str) -> Sequence[str]:
    """Patterns of a row; where it has a name, those that stand with the rules of `labkit.memory.owner`."""
    if isinstance(patterns, str):
        return getattr(refusal, patterns)
    return patterns


def _rule(row: dict[str, Any]) -> Rule:
    other = ("lines", "words", "given", "ask")
    fields = {key.replace("-", "_"): value for key, value in row.items() if key not in other}
    fields["hides"] = frozenset().union(*(_GROUPS.get(name, [name]) for name in row.get("hides", []))) - {row["name"]}
    if asked := row.get("ask"):
        ask = next(getattr(module, asked) for module in (machine, measured, courses, health) if hasattr(module, asked))
        fields["measured"] = not hasattr(machine, asked)
        fields["ask"] = functools.partial(ask, **row.get("given", {}))
    return Rule(**fields)


def _mechanism(row: dict[str, Any]) -> Rule:
    """A row of mechanisms.toml as a rule that asks for what speaks for it."""
    weighed = Mechanism(
        name=row["name"],
        cause=row["cause"],
        needs=row["needs"],
        weights=row["for"],
        against=row.get("against", {}),
        least=row.get("least", LEAST),
    )
    rest = {key: row[key] for key in ("name", "cause", "why", "likes", "source", "next") if key in row}
    return Rule(**rest, sure="possible", ask=weighed.look, measured=True, mechanism=weighed)


_FAMILIES = _table("families.toml")["family"]
_RULES, _CLASSES = _table("rules.toml"), _table("vocabulary.toml")["class"]
_SAYING = {f"vocabulary/{name}": row for name, row in _CLASSES.items() if row["cause"]}  # what broke
_GROUPS: dict[str, list[str]] = _RULES["groups"] | {"vocabulary": [*_SAYING]}
_CAUSES = _table("causes.toml")
APART = {frozenset(pair.split(" | ")): test for pair, test in _CAUSES.pop("apart").items()}
QUIET = ("healthy-normal", "beta-zero-expected")  # causes that are nothing to act on
CAUSES = {name: Cause(**row) for name, row in _CAUSES.items()}
RULES = [_rule(row) for row in _RULES["rule"]]
MECHANISMS = [_mechanism(row) for row in _table("mechanisms.toml")["mechanism"]]
REMARKS = [_rule({"name": "remark", "cause": "healthy-normal", **row}) for row in _RULES["remark"]]  # beside health
RULES += [  # of the classes of texts: they say what broke, in the words of a library
    _rule({"name": name, "source": "the vocabulary of libraries", "passing": True, **row})
    for name, row in _SAYING.items()
]
FAMILIES = [_rule({"passing": True, **row, "name": f"family/{row['name']}"}) for row in _FAMILIES]
WANTED: dict[str, str] = _RULES["wanted"]
LOOKED_FOR: dict[str, list[str]] = _RULES["looked-for"]
# Machine lines: those of rules, and those that several rules ask for.
KINDS = [Words.of(name, lines) for name, lines in _RULES["lines"].items()]
for row in _RULES["rule"]:
    # the others ask for a measurement, or for the lines of another rule
    if "lines" in row:
        KINDS.append(Words.of(row["name"], _lines(row["lines"])))
for row in _FAMILIES:
    KINDS.append(Words.of(f"family/{row['name']}", row["lines"]))
# a line of a family is looked up among the texts of libraries all the same
CONTEXT: frozenset[str] = frozenset([*_GROUPS["context"], *(rule.name for rule in FAMILIES)])
LATER: frozenset[str] = frozenset(_GROUPS["later"])
