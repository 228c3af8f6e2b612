"""What trainers call the same measurement: TRL, transformers, verl, OpenRLHF, ms-swift, and loops of people's own."""

from __future__ import annotations

import functools
import itertools
import re
import tomllib
from importlib.resources import files

_TABLE = tomllib.loads((files(__package__) / "names.toml").read_text(encoding="utf-8"))
_WORD = re.compile(r"[A-Z]*[a-z]+\d*|[A-Z]+\d*|\d+")
_PLAIN = frozenset(_TABLE["plain"].split())
NAMES = _TABLE["words"].keys() | _TABLE["aliases"].keys()


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name: grad_norm, GradNorm and Grad. Norm are grad and norm."""
    return tuple(word.lower() for word in _WORD.findall(name))


# the words of a name that is written out -> the canonical name
_ALIASES = {words_of(alias): name for name, aliases in _TABLE["aliases"].items() for alias in aliases.split()}
_RULES = {name: [frozenset(some.split()) for some in rule["words"]] for name, rule in _TABLE["words"].items()}
_BUT = {name: frozenset(rule.get("but", "").split()) for name, rule in _TABLE["words"].items()}
_BESIDE = {name: rule["beside"].split() for name, rule in _TABLE["words"].items() if "beside" in rule}
_ONLY = {name: _PLAIN.union(*_RULES[name], words) for name, words in _BESIDE.items()}  # all words that it may have
_TELLING = frozenset().union(*(rule[0] for rule in _RULES.values()), *_ALIASES)  # a name has one of these


def _fits(words: frozenset[str], name: str) -> bool:
    """Whether a name of these words is that measurement."""
    needed = all(words & some for some in _RULES[name])
    return needed and words.isdisjoint(_BUT[name]) and words <= _ONLY.get(name, words)


@functools.lru_cache(4096)
def canonical(name: str) -> str:
    """The name a measurement goes by here, or "". Words before it do not count: "Average window reward" is a reward."""
    parts = [words_of(part) for part in name.strip().strip("*`'\"").removeprefix("eval_").split(" ")]
    if _TELLING.isdisjoint(itertools.chain(*parts)):
        return ""
    for start in range(len(parts)):
        words = tuple(itertools.chain(*parts[start:]))
        if any(map(str.isdigit, words)) and words not in _ALIASES:  # a name and its number
            continue
        fitting = (name for name in _RULES if _fits(frozenset(words), name))
        if found := _ALIASES.get(words) or next(fitting, ""):
            return "" if found.startswith("elsewhere") else found
    return ""


def is_metric(name: str) -> bool:
    """Whether a name, canonical or as it was written, makes a row one of measurements."""
    if name in NAMES:
        return name not in _TABLE["beside"]
    return name.startswith(("rewards/", "clip_ratio/", "logits/")) or name.endswith(("_reward", "/loss", "_loss"))
