"""What trainers call the same measurement: TRL, transformers, verl, OpenRLHF, ms-swift, and loops of people's own.

names.toml has the words. A name that is none of the known measurements may still say which way is better (`better`),
and whether it was measured on data that was not trained on (`held_out`).
"""

from __future__ import annotations

import functools
import re
import tomllib
from importlib.resources import files

_TABLE = tomllib.loads((files(__package__) / "names.toml").read_text(encoding="utf-8"))
_WORD = re.compile(r"[A-Z]*[a-z]+\d*|[A-Z]+\d*|\d+")
_REMARK = re.compile(r"\s*[(\[].*")  # "eval/minerva (base 28.20%)"
_OF_SO_MANY = re.compile(r"/\d+$")  # "zero_std/8": of eight groups
_TRANSLATED: dict[str, str] = _TABLE["translated"]
NAMES = _TABLE["words"].keys() | _TABLE["aliases"].keys()


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name: grad_norm, GradNorm and Grad. Norm are grad and norm."""
    return tuple(word.lower() for word in _WORD.findall(name))


class _Measurement:
    """A row of [words]: how a measurement is known by the words of its name."""

    def __init__(self, name: str, row: dict[str, object]):
        self.name = name
        self.needed = [frozenset(alternatives.split()) for alternatives in row["words"]]  # type: ignore[attr-defined]
        self.forbidden = frozenset(str(row.get("but", "")).split())
        self.allowed: frozenset[str] | None = None  # None: any other word may stand beside those
        if "beside" in row:
            plain = _TABLE["plain"].split()
            self.allowed = frozenset(str(row["beside"]).split()).union(plain, *self.needed)

    def fits(self, words: frozenset[str]) -> bool:
        """Whether a name of these words is that measurement."""
        if not all(words & alternatives for alternatives in self.needed):
            return False
        if words & self.forbidden:
            return False
        return self.allowed is None or words <= self.allowed


def _aliases() -> dict[tuple[str, ...], str]:
    """The words of each name that is written out -> the canonical name."""
    found = {}
    for name, aliases in _TABLE["aliases"].items():
        for alias in aliases.split():
            found[words_of(alias)] = name
    return found


_MEASUREMENTS = [_Measurement(name, row) for name, row in _TABLE["words"].items()]
_ALIASES = _aliases()
_TELLING_BEFORE = frozenset(_TABLE["telling-before"].split())
# a name that has none of these words is no measurement: most keys of a log are dismissed here
_TELLING = frozenset().union(*(one.needed[0] for one in _MEASUREMENTS), *_ALIASES)


@functools.lru_cache(4096)
def canonical(name: str) -> str:
    """The name a measurement goes by here, or "". Words before it do not count: "Average window reward" is a reward."""
    bare = _REMARK.sub("", name.strip().strip("*`'\"")) if not name.isascii() else name.strip().strip("*`'\"")
    bare = _TRANSLATED.get(bare.strip("*` "), bare)
    bare = _OF_SO_MANY.sub("", bare)
    if bare == "eval_loss":
        return ""  # beside the loss that is trained on it says whether that is learned by heart
    bare = bare.removeprefix("eval_")
    parts = [words_of(part) for part in bare.split(" ")]
    for start in range(len(parts)):
        words = tuple(word for part in parts[start:] for word in part)
        if _TELLING.isdisjoint(words):
            return ""
        found = _known(words)
        before = {word for part in parts[:start] for word in part}
        if found and before & _TELLING_BEFORE:
            return ""  # "Max Reward"
        if found:
            return "" if found.startswith("elsewhere") else found
    return ""


def _known(words: tuple[str, ...]) -> str:
    """The measurement that these words name, one that is `elsewhere` included; "" where there is none."""
    if words in _ALIASES:
        return _ALIASES[words]
    if any(word.isdigit() for word in words):  # a name and its number
        return ""
    for measurement in _MEASUREMENTS:
        if measurement.fits(frozenset(words)):
            return measurement.name
    return ""


def is_metric(name: str) -> bool:
    """Whether a name, canonical or as it was written, makes a row one of measurements."""
    if name in NAMES:
        return name not in _TABLE["beside"]
    return name.startswith(("rewards/", "clip_ratio/", "logits/")) or name.endswith(("_reward", "/loss", "_loss"))


# ---- names that are none of the known measurements

_SIDES = {side: frozenset(words.split()) for side, words in _TABLE["sides"].items()}


@functools.lru_cache(4096)
def better(name: str) -> int:
    """Which way a score is better by its name: 1 more, -1 less, 0 where the name does not say."""
    known = canonical(name) or name
    if known in NAMES:
        return int(known in _TABLE["shares-of-right"].split())  # what is known is judged by rules of its own
    words = frozenset(words_of(_REMARK.sub("", name)))
    if words & _SIDES["neither"]:
        return 0
    if words & _SIDES["less"]:
        return -1
    if words & _SIDES["more"]:
        return 1
    return int(held_out(name))  # "eval/minerva_math": what is evaluated is a score


@functools.lru_cache(4096)
def held_out(name: str) -> bool:
    """Whether it was measured on data that was not trained on: eval/..., val_score, a benchmark's name."""
    words = frozenset(words_of(_REMARK.sub("", name)))
    return bool(words & _SIDES["held-out"]) and not words & _SIDES["not-held-out"]
