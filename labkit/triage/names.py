"""What trainers call the same measurement: TRL, transformers, verl, OpenRLHF, ms-swift, and loops of people's own."""

from __future__ import annotations

import functools
import itertools
import re
import tomllib
from importlib.resources import files

_TABLE = tomllib.loads((files(__package__) / "names.toml").read_text(encoding="utf-8"))
_RULES = {name: [(words[0], frozenset(words.strip("-+").split())) for words in rule] for name, rule in _TABLE["words"].items()}
_PLAIN = frozenset(_TABLE["plain"].split())


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name: grad_norm, GradNorm and Grad. Norm are grad and norm."""
    return tuple(re.findall(r"[a-z]+\d*|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))


# the words of a name that is written out -> the canonical name
_ALIASES = {words_of(alias): name for name, aliases in _TABLE["aliases"].items() for alias in aliases.split()}
NAMES = _RULES.keys() | _TABLE["aliases"].keys()
# What names end in; nothing else is looked for in running text.
LAST_WORDS = _PLAIN.union(*(some for name in NAMES - {"elsewhere"} for mark, some in _RULES.get(name, ()) if mark != "-"), *_ALIASES)


def _by_words(words: frozenset[str]) -> str:
    """The first name whose rule the words fit, or "". What has a number in it is no name."""
    if any(map(str.isdigit, words)):
        return ""
    for name, rule in _RULES.items():
        needed = [some for mark, some in rule if mark not in "-+"]
        barred = frozenset().union(*(some for mark, some in rule if mark == "-"))
        beside = [some for mark, some in rule if mark == "+"]
        if all(words & some for some in needed) and not words & barred:
            if not beside or words <= _PLAIN.union(*needed, *beside):
                return name
    return ""


@functools.lru_cache(4096)
def canonical(name: str) -> str:
    """The name a measurement goes by here, or "". Words before it do not count: "Average window reward" is a reward."""
    parts = name.strip().strip("*`'\"").removeprefix("eval_").split(" ")
    for start in range(len(parts)):
        words = words_of(" ".join(parts[start:]))
        if found := _ALIASES.get(words) or _by_words(frozenset(words)):
            return found.replace("elsewhere", "")
    return ""


def is_metric(name: str) -> bool:
    """Whether a name, canonical or as it was written, makes a row one of measurements."""
    if name in NAMES:
        return name not in _TABLE["beside"]
    return name.startswith(("rewards/", "clip_ratio/", "logits/")) or name.endswith(("_reward", "/loss", "_loss"))
