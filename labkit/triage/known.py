"""The known logs and the texts of libraries, as far as they are needed at run time: known.json.gz.

The file is made by scripts/triage/pack.py of the logs and texts that lie beside it. This file compares nothing.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple


class KnownLog(NamedTuple):
    """A log whose cause is known: its thread, the cause, and the words of its lines and columns."""

    source: str
    cause: str
    words: frozenset[str]


class KnownText(NamedTuple):
    """A text that a library raises, asserts or warns with; `{}` where a value stands."""

    library: str
    cls: str
    kind: str
    text: str


def words_of(lines: Iterable[str]) -> frozenset[str]:
    """The words of some lines; of a name its parts too: update_weights is also update and weights."""
    names = set(re.findall(r"[A-Za-z_]{3,}", "\n".join(lines)))
    parts = {part for name in names for part in re.split(r"_+|(?<=[a-z])(?=[A-Z])", name) if len(part) > 2}
    return frozenset(word.lower() for word in names | parts)


@functools.cache
def _content() -> dict[str, Any]:
    return json.loads(gzip.decompress((files(__package__) / "known.json.gz").read_bytes()))


@functools.cache
def known_logs() -> Sequence[KnownLog]:
    """The known logs, by the words of their lines and the names of their columns."""
    words = _content()["words"]
    logs = []
    for source, cause, numbers in _content()["logs"]:
        logs.append(KnownLog(source, cause, frozenset(words[number] for number in numbers)))
    return logs


def known_texts() -> Sequence[KnownText]:
    """The texts of libraries, in the order in which they were sorted into classes."""
    return [KnownText(*row) for row in _content()["texts"]]
