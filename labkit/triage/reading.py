"""Read a log whatever it is written in: rows of measurements, settings, and the lines a machine writes when it breaks.

Every line passes one loop (`_Reader.line`): labkit's own printout is left out, machine lines are kept with what stands
behind them, and the rest may be a part of a row. What is kept is bounded. This file judges nothing.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .own import OwnLines
from .rows import Row, Rows, named, rank_of, without_prefix
from .source import Block, blocks, name_of, saved_run
from .vocabulary import by_word, find

MOST_HITS = 64  # of one kind of line that are kept whole
LONGEST = 20_000  # characters of a line that are read
CONTEXT = 4  # lines behind a hit that are kept with it: messages wrap
TAIL = 40  # lines at the end that are kept for their words
TOGETHER = 400  # lines that are looked through at once for the words of machine lines
_COLOUR = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_RETURN = re.compile(r"\r|#015")  # a carriage return of a progress bar ends a line, as does its escape


@dataclass
class Hit:
    """A kind of machine line that was met: how often, where first, and its words."""

    line: int
    text: str
    count: int = 0
    groups: list[dict[str, str]] = field(default_factory=list)  # the named parts, and the rank, of the first MOST_HITS
    context: list[list[str]] = field(default_factory=list)  # the first few, each with the lines behind it
    last: int = 0  # the line where it was met last
    last_text: str = ""  # and its words


@dataclass
class Reading:
    """All that was read. `sources` says from where, `notes` what could not be read."""

    rows: list[Row] = field(default_factory=list)
    runs: list[Row] = field(default_factory=list)  # of tables whose rows are runs
    hits: dict[str, Hit] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    lines: int = 0
    own_lines: int = 0  # that labkit printed, and that are no part of the log
    last: list[str] = field(default_factory=list)  # the last lines, as they are
    sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    parts: list[Reading] = field(default_factory=list)  # of several sources

    @property
    def tail(self) -> list[str]:
        """The last lines behind the last row."""
        behind: list[str] = []
        for part in self.parts or [self]:
            count = part.lines - (part.rows[-1].line if part.rows else 0)
            behind += part.last[max(len(part.last) - count, 0) :]
        return behind

    def ended_by(self, *kinds: str) -> list[Reading]:
        """The sources with a line of such a kind, and no row behind the first of them: there it was not caught."""
        ended = []
        for one in self.parts or [self]:
            lines = [one.hits[kind].line for kind in kinds if kind in one.hits]
            if lines and not (one.rows and one.rows[-1].line > min(lines)):
                ended.append(one)
        return ended


@dataclass(frozen=True)
class Words:
    """A kind of machine line: its pattern, and plain characters; one of them stands in every match."""

    name: str
    pattern: re.Pattern[str]
    literals: tuple[str, ...]

    @classmethod
    def of(cls, name: str, alternatives: Sequence[str]) -> Words:
        return cls(name, re.compile("|".join(alternatives)), tuple(map(_literal, alternatives)))


def read(source: Any, kinds: Sequence[Words], context: Collection[str] = ()) -> list[Reading]:
    """Read a path, a text, "-" (standard input), a Run, or a list of these: a reading for each.

    `kinds` are the machine lines to look for, in a line and across the two before it; a line that has one of them,
    those of `context` apart, is not looked up among the texts of libraries. OSError: a file cannot be opened.
    """
    readings = []
    for one in source if isinstance(source, list | tuple) else [source]:
        reading = Reading(sources=[name_of(one) if isinstance(one, str) or hasattr(one, "parts") else "a Run"])
        reader = _Reader(reading, kinds, context)
        run = saved_run(one)
        if run is None:
            reader.read(blocks(one, reading.notes))
        else:
            reader.read(iter([Block(run.text)]))
            reading.rows[:0] = [Row(at, named(row)) for at, row in enumerate(run.rows, 1)]
            reading.settings |= {k: v for k, v in run.settings.items() if isinstance(v, int | float | str)}
        readings.append(reading)
    return readings


def together(readings: Sequence[Reading]) -> Reading:
    """Several readings as one: rows in the order of the sources, kinds of lines added up."""
    whole = Reading(parts=list(readings))
    for one in readings:
        whole.rows += one.rows
        whole.runs += one.runs
        whole.last += one.last
        whole.sources += one.sources
        whole.notes += one.notes
        whole.settings |= one.settings
        whole.lines += one.lines
        whole.own_lines += one.own_lines
        for name, hit in one.hits.items():
            met = whole.hits.setdefault(name, Hit(hit.line, hit.text))
            met.count += hit.count
            met.groups = met.groups + hit.groups
            met.context = met.context + hit.context
            met.last, met.last_text = hit.last, hit.last_text
    return whole


def _literal(pattern: str) -> str:
    """The longest run of plain characters outside brackets that a match must have. ValueError: there is none."""
    # an escaped character is plain: it is kept out of the way of what follows, as one of the private area
    plain = re.sub(r"\\([^\w\s])", lambda escaped: chr(0xE000 + ord(escaped[1])), pattern)
    plain = re.sub(r"\\\w|\[[^\]]*\]|[.^$|]", "\0", plain)
    while (shorter := re.sub(r"\([^()]*\)", "\0", plain)) != plain:
        plain = shorter
    plain = re.sub(r".(?:[?*]|\{[^}]*\})\??", "\0", plain)
    runs = []
    for run in re.split(r"\0\+?", plain):
        runs.append(re.sub(r"[\ue000-\ue0ff]", lambda c: chr(ord(c[0]) - 0xE000), run))
    longest = max(runs, key=len)
    if len(longest) < 3:
        raise ValueError(f"a machine line needs three plain characters in a row, {pattern!r} has {longest!r}")
    return longest


def _whole_word(literal: str) -> str:
    """The longest word inside some plain characters that no other letter can touch; "" where there is none."""
    return max(re.findall(r"(?<=[^A-Za-z_])[A-Za-z_]{3,}(?=[^A-Za-z_])", literal), key=len, default="")


class _Reader:
    """One pass over one source: every line once, in order."""

    def __init__(self, reading: Reading, kinds: Sequence[Words], context: Collection[str]):
        self.reading = reading
        self.context = context
        self.rows = Rows(reading.settings)
        self.own = OwnLines()
        self.kinds_with: dict[str, list[Words]] = {}  # plain characters -> the kinds of lines that have them
        for kind in kinds:
            for literal in kind.literals:
                self.kinds_with.setdefault(literal, []).append(kind)
        self.word_in = {literal: _whole_word(literal) for literal in self.kinds_with}
        self.near: dict[str, list[Words]] = {}  # of these, what stands somewhere in the lines that are being read
        self.texts_near: list[str] = []  # and plain characters of texts of libraries
        self.before: deque[str] = deque(["", ""], maxlen=2)  # the last two lines, for messages that wrap
        self.filling: list[tuple[list[str], int]] = []  # a context, and the line until which it goes

    def read(self, source: Iterator[Block]) -> None:
        last: deque[str] = deque(maxlen=TAIL)
        for block in source:
            if block.left_out:
                self.rows.close()
                self.reading.lines += block.left_out
            text = _COLOUR.sub("", block.text) if "\x1b" in block.text else block.text
            lines = text.removesuffix("\n").split("\n")
            last.extend(line[:LONGEST].rstrip("\r") for line in lines[-TAIL:])
            for at in range(0, len(lines), TOGETHER):
                some = lines[at : at + TOGETHER]
                self.look_ahead(some)
                for line in some:
                    self.line(line[:LONGEST].rstrip("\r"))
        self.rows.finish()
        self.reading.last = [line for line in last if not self.own.prints(line)]
        self.reading.rows = self.rows.rows
        self.reading.runs = self.rows.runs
        if self.rows.dropped > 1:
            self.reading.notes.append(f"many rows: between the first and the last, one in {self.rows.dropped} was kept")

    def look_ahead(self, lines: list[str]) -> None:
        """Which machine lines may stand in the next lines: searching all patterns in each would take an hour."""
        joined = " ".join([*self.before, *lines])
        words = set(re.findall(r"[A-Za-z_]{3,}", joined))
        self.near = {}
        for literal, kinds in self.kinds_with.items():
            # a lookup of one word spares most searches
            word = self.word_in[literal]
            if (not word or word in words) and literal in joined:
                self.near[literal] = kinds
        texts = itertools.chain.from_iterable(by_word()[word] for word in by_word().keys() & words)
        self.texts_near = [longest for longest in {text.longest for text in texts} if longest in joined]

    def line(self, text: str) -> None:
        """Read one line: it is labkit's own, or machine lines stand in it, or a part of a row, or nothing."""
        self.reading.lines += 1
        if self.own.prints(text):
            self.reading.own_lines += 1
            return
        for part in _RETURN.split(text) if "\r" in text or "#015" in text else (text,):
            bare = without_prefix(part)
            for context, _ in self.filling:
                context.append(bare.rstrip())
            self.filling = [filling for filling in self.filling if self.reading.lines < filling[1]]
            self.machine(bare, rank_of(part))
            self.rows.read(bare, self.reading.lines)
            self.before.append(bare)

    def machine(self, text: str, rank: str | None) -> None:
        """Look for the kinds of lines that may stand here, else for a text of a library."""
        head = "".join(line[-200:] + " " for line in self.before)
        window = head + text
        named_kind = False
        looked_for: set[str] = set()
        for literal, kinds in self.near.items():
            if literal not in window:
                continue
            for kind in kinds:
                if kind.name in looked_for:
                    continue
                looked_for.add(kind.name)
                matches = kind.pattern.finditer(window)
                found = next((match for match in matches if match.end() > len(head)), None)
                found = found or kind.pattern.search(text)  # one that begins where a line begins
                if found:
                    self.met(kind.name, found.groupdict(), text, rank)
                    named_kind = named_kind or kind.name not in self.context
        if named_kind or not any(longest in window for longest in self.texts_near):
            return
        said = find(window, len(head))
        if said:
            self.met(f"vocabulary/{said.cls}", {"library": said.library}, text, rank)

    def met(self, name: str, groups: dict[str, str | None], text: str, rank: str | None) -> None:
        at = self.reading.lines
        hit = self.reading.hits.setdefault(name, Hit(at, " ".join(text.split())[:300]))
        hit.count += 1
        hit.last = at
        hit.last_text = " ".join(text.split())[:300]
        if len(hit.groups) < MOST_HITS:
            parts = {key: value for key, value in groups.items() if value is not None}
            hit.groups.append(parts if rank is None else {"rank": rank, **parts})
        if len(hit.context) < 8:
            hit.context.append([text.strip()[-2000:]])
            self.filling.append((hit.context[-1], at + CONTEXT))
