"""What trainers call the same measurement: TRL, transformers, verl, OpenRLHF, ms-swift, and loops of people's own."""

from __future__ import annotations

import functools
import re
import tomllib
from importlib.resources import files
from typing import Any

_TABLE = tomllib.loads((files(__package__) / "names.toml").read_text(encoding="utf-8"))
_PLAIN = frozenset(_TABLE["plain"].split())
NAMES = _TABLE["words"].keys() | _TABLE["aliases"].keys()


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name: grad_norm, GradNorm and Grad. Norm are grad and norm."""
    return tuple(re.findall(r"[a-z]+\d*|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))


def _fits(words: frozenset[str], rule: dict[str, Any]) -> bool:
    """Whether a name of these words is the rule's measurement."""
    needed = [set(some.split()) for some in rule["words"]]
    plain = "beside" not in rule or words <= _PLAIN.union(*needed, rule["beside"].split())
    return plain and words.isdisjoint(rule.get("but", "").split()) and all(words & some for some in needed)


# the words of a name that is written out -> the canonical name
_ALIASES = {words_of(alias): name for name, aliases in _TABLE["aliases"].items() for alias in aliases.split()}
# What stands before a number in running text, else nothing is looked for there.
KNOWN_WORDS = _PLAIN.union(*(some.split() for rule in _TABLE["words"].values() for some in rule["words"]), *_ALIASES)


@functools.lru_cache(4096)
def canonical(name: str) -> str:
    """The name a measurement goes by here, or "". Words before it do not count: "Average window reward" is a reward."""
    parts = name.strip().strip("*`'\"").removeprefix("eval_").split(" ")
    for start in range(len(parts)):
        words = words_of(" ".join(parts[start:]))
        if any(map(str.isdigit, words)) and words not in _ALIASES:  # a name and its number
            continue
        fitting = (name for name, rule in _TABLE["words"].items() if _fits(frozenset(words), rule))
        if found := _ALIASES.get(words) or next(fitting, ""):
            return found.replace("elsewhere", "")
    return ""


def is_metric(name: str) -> bool:
    """Whether a name, canonical or as it was written, makes a row one of measurements."""
    if name in NAMES:
        return name not in _TABLE["beside"]
    return name.startswith(("rewards/", "clip_ratio/", "logits/")) or name.endswith(("_reward", "/loss", "_loss"))
