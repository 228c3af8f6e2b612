"""What trainers call the same measurement: TRL, transformers, verl, OpenRLHF, ms-swift, and loops of people's own."""

from __future__ import annotations

import functools
import re
import tomllib
from importlib.resources import files

_TABLE = tomllib.loads((files(__package__) / "names.toml").read_text(encoding="utf-8"))
# canonical name: the names it is written under
ALIASES: dict[str, list[str]] = {name: aliases.split() for name, aliases in _TABLE["aliases"].items()}
_CANONICAL = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
# What names end in; nothing else is looked for in running text.
LAST_WORDS = {re.split(r"[^a-z]", alias.rstrip(")"))[-1] for alias in _CANONICAL} | {"reward", "loss"}


@functools.lru_cache(4096)
def canonical(name: str) -> str:
    """The name a measurement goes by here, or "". Words before it do not count: "Average window reward" is a reward."""
    name = re.sub(r"\s*/\s*", "/", name.strip().strip("*`'\"").lower())
    words = re.sub(r"\s+", " ", name.removeprefix("eval_")).split(" ")
    for start in range(len(words)):
        if found := _CANONICAL.get("_".join(words[start:])):
            return found
    place, _, rest = name.partition("/")
    if place in _TABLE["places"] and rest:
        return canonical(rest)
    bare = re.sub(r"^(?:mean|avg|average)_|(?:/all)?[/_](?:mean|avg|average)$|_[gm]i?b$", "", "_".join(words))
    return _CANONICAL.get(bare, "")


def is_metric(name: str) -> bool:
    """Whether a name, canonical or as it was written, makes a row one of measurements."""
    if name in ALIASES:
        return name not in _TABLE["beside"]
    return name.startswith(("rewards/", "clip_ratio/", "logits/")) or name.endswith(("_reward", "/loss", "_loss"))
