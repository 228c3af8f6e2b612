"""Which text of a library stands in a line. The texts are in known.json.gz, what they mean in vocabulary.toml."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter, defaultdict
from dataclasses import dataclass

from .known import known_texts

RAISED = re.compile(r"Error|Exception|Exit|Assert|error:|\bERROR\b|\bFATAL\b")
ENOUGH = 30  # plain characters from its start by which a text is known: advice behind them changes with the version
_WHOLE_WORD = re.compile(r"(?<![\w}])[A-Za-z_]{3,}(?![\w{])", re.ASCII)  # that no digit and no value touches


@dataclass(frozen=True)
class Text:
    """One text: the library and version it was read in, the class it belongs to, and its plain parts in order."""

    library: str
    cls: str
    kind: str  # raise, assert, warn, or looked up
    parts: tuple[str, ...]

    @functools.cached_property
    def needed(self) -> tuple[str, ...]:
        """The parts that must stand in a line: the first that have enough characters together, or all."""
        lengths = itertools.accumulate(map(len, self.parts))
        return self.parts[: next((at for at, length in enumerate(lengths, 1) if length >= ENOUGH), None)]

    @functools.cached_property
    def longest(self) -> str:
        """The longest of these: a line without it has not the text."""
        return max(self.needed, key=len)

    def begins(self, line: str) -> bool:
        """Whether a line begins with the text, and has enough of it."""
        return line.lstrip(" >|").startswith(self.parts[0]) and len(self.parts[0]) >= ENOUGH // 2

    def said(self, line: str) -> tuple[int, int]:
        """How many characters of the text stand in a line, in order, and where they end; (0, -1): it is not said."""
        count = at = 0
        for number, part in enumerate(self.parts):
            if (found := line.find(part, at)) < 0:
                return (count, at) if number >= len(self.needed) else (0, -1)
            count, at = count + len(part), found + len(part)
        return count, at


@functools.cache
def by_word() -> dict[str, list[Text]]:
    """Each text under its rarest word: a line that has not that word has not the text."""
    texts = []
    for known in known_texts():
        parts = [part.strip() for part in re.split(r"\{\}|(?<=[\w)][.:;,!?]) ", known.text)]
        text = Text(known.library, known.cls, known.kind, tuple(part for part in parts if part))
        needed = known.text[: known.text.find(text.needed[-1]) + len(text.needed[-1])]
        texts.append((text, set(_WHOLE_WORD.findall(needed))))
    common = Counter(word for _, words in texts for word in words)
    index = defaultdict(list)
    for text, words in texts:
        if words:
            index[min(words, key=lambda word: (common[word], -len(word), word))].append(text)
    return dict(index)


def find(line: str, start: int) -> Text | None:
    """The longest text of the vocabulary in a line that ends behind `start`; None when there is none."""
    start, line = len(re.sub(r"\s+", " ", line[:start])), re.sub(r"\s+", " ", line)
    near = [text for word in set(re.findall(r"[A-Za-z_]{3,}", line)) for text in by_word().get(word, ())]
    if not RAISED.search(line):  # a message alone, without the name of its exception, is known by how it begins
        near = [text for text in near if text.kind not in ("raise", "assert") or text.begins(line[start:])]
    stands = [(*text.said(line), text) for text in near]
    best = max(stands, key=lambda said: (said[0], -len(said[2].parts)), default=(0, -1, None))
    return best[2] if best[1] > start else None
