"""Read a log whatever it is written in: rows of measurements, settings, and the lines a machine writes when it breaks.

Rows are found in Python dicts and JSON (glued to progress bars, broken over lines, a brace missing, numbers quoted), in
`step:1 - key:value` lines, in `key: value` and `key=value` text, in CSV and in tables with a header. A file is read
once, line by line, and what is kept of it is bounded. This file judges nothing.
"""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.events import Run

from .names import LAST_WORDS, canonical, is_metric

MOST_ROWS = 20_000  # past this every second row of the middle is dropped; a row with a NaN or an infinity stays
MOST_HITS = 64  # of one kind of line that are kept whole
LONGEST = 20_000  # characters of a line that are read
BATCH = 500  # lines that are looked through at once for the words of machine lines
CONTEXT = 4  # lines behind a hit that are kept with it: messages wrap

# A number, bare or quoted; `1,568,987.96` has separators of thousands.
NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_MARK = re.compile(
    r"""(?P<brace>[{}])|(?P<q>['"])(?P<key>[^'"\n{}]{1,120})(?P=q)\s*:\s*"""
    rf"""(?P<value>(?:np\.float\d+\(|tensor\()?{NUMBER}(?![\w.])|'[^'\n]{{0,200}}'|"[^"\n]{{0,200}}"|\w+|\[)""",
    re.IGNORECASE,
)
_PAIR = re.compile(
    r"(?:^|(?<=[\s,;|(\[\])]))(?P<key>[A-Za-z_][\w./@()%-]*(?: [\w./()-]+){0,5}?)\s*[:=]\s*"
    rf"(?P<value>{NUMBER})(?=$|[\s,;|)\]])",
    re.IGNORECASE,
)
_NAMED = re.compile(r"([A-Za-z]+)\)?\s?[:=]\s*[-+]?(?:\d|\.|[nN]a|[iI]n|tensor)")
_WHOLE = re.compile(
    r"^(?:.*[\]>|]\s|.*?\b(?:DEBUG|INFO|WARNING)\b[: -]*)?"
    rf"\W*(?P<key>[A-Za-z_][\w ./()-]{{1,80}}?)\s*[:=]\s*(?:tensor\(\[?)?(?P<value>{NUMBER})[^A-Za-z]*$",
    re.IGNORECASE,
)
_PREFIX = re.compile(  # "[rank1]:", "[Rank 2]", "(TaskRunner pid=222265)", "(raylet)", a date
    r"^(?:\s*(?:\[(?:rank|Rank )\d+\]:?|\([\w.]*(?: pid=\d+)?(?:, ip=[\d.]+)?\)(?= )"
    r"|\[?\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[-+:\d]*)\]?))+\s?"
)
_RANK = re.compile(r"\[?(?:rank|Rank )\s?(\d+)\]")
_STEP = re.compile(r"\b(?:step|update|iter(?:ation)?)\W{1,2}(\d+)|[(\[](\d+)/\d+[)\]]", re.IGNORECASE)
_SPLIT = re.compile(r"\s*[|\t]\s*|\s*,\s*|\s{2,}")
_SPACED = re.compile(rf"(?:^|:|,)\s*(?P<key>[A-Za-z][\w ]*?) (?P<value>{NUMBER})(?= ?[A-Za-z]*(?:,|$))", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """One row of measurements, as far as it could be read.

    line    where it ends in its source, from 1
    values  canonical name, or the name as written where there is none, to the number
    """

    line: int
    values: dict[str, float]

    @property
    def at(self) -> str:
        """Where it stands, for people: its step where it has one."""
        step = self.values.get("step", math.nan)
        return f"step {step:g}" if step == step else f"line {self.line}"


@dataclass
class Hit:
    """A kind of machine line that was met: how often, where first, on which ranks, and its words."""

    line: int
    text: str
    count: int = 0
    ranks: set[int] = field(default_factory=set)
    groups: list[dict[str, str]] = field(default_factory=list)  # the named parts of the first MOST_HITS
    context: list[str] = field(default_factory=list)  # the first few with the lines behind them, joined


@dataclass
class Reading:
    """All that was read. `sources` says from where, `notes` what could not be read."""

    rows: list[Row] = field(default_factory=list)
    hits: dict[str, Hit] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    lines: int = 0
    sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read(source: Any, kinds: Sequence[Words]) -> Reading:
    """Read a path, a text, "-" (standard input), an open file, a Run, or a list of these.

    `kinds` are the machine lines to look for, in a line and across the two before it.
    Raises: OSError when a file cannot be opened.
    """
    reading = Reading()
    for one in source if isinstance(source, list | tuple) else [source]:
        run = one if isinstance(one, Run) else _saved_run(one)
        if run is not None:
            reading.sources.append("a Run" if run is one else str(one))
            own = [Row(at, _named(step.log())) for at, step in enumerate(run.steps, 1)]
            reading.rows += own
            reading.settings |= {k: v for k, v in run.meta.items() if isinstance(v, int | float | str)}
            text = "\n".join([run.outcome.stderr, run.outcome.traceback, run.outcome.message])
            _Reader(reading, kinds).read(text.splitlines())
        else:
            _Reader(reading, kinds).read(_lines(one, reading))
    return reading


def _saved_run(source: Any) -> Run | None:
    """A run that labkit saved, or None. A damaged one is read as text, as far as that goes."""
    if not isinstance(source, str | Path) or source == "-" or not _is_file(source):
        return None
    with open(source, "rb") as file:
        if not file.read(40).startswith(b'{"format": "labkit-run/'):
            return None
    try:
        return Run.load(source)
    except ValueError:
        return None


def _lines(source: Any, reading: Reading) -> Iterator[str]:
    if isinstance(source, str) and source != "-" and ("\n" in source or not _is_file(source)):
        reading.sources.append("a text")
        yield from io.StringIO(source.replace("\r\n", "\n"))
        return
    if hasattr(source, "read"):
        reading.sources.append("an open file")
        yield from (line if isinstance(line, str) else line.decode("utf-8", "replace") for line in source)
        return
    name = "standard input" if source == "-" else str(source)
    reading.sources.append(name)
    with _opened(source) as file:
        start = file.peek(8192)[:8192]
        encoding = "utf-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8"
        if encoding == "utf-8" and b"\0" in start:
            reading.notes.append(f"{name} is no text: it has null bytes")
            return
        if not start:
            reading.notes.append(f"{name} is empty")
        with io.TextIOWrapper(file, encoding, "replace") as text:
            yield from text


def _is_file(text: str | Path) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _opened(source: Any) -> io.BufferedReader:
    if source == "-":
        return sys.stdin.buffer  # type: ignore[return-value]
    if str(source).endswith(".gz"):
        return gzip.open(source, "rb")  # type: ignore[return-value]
    return open(source, "rb")


@dataclass(frozen=True)
class Words:
    """A kind of machine line: its pattern, and words of which one stands in every line that matches."""

    name: str
    pattern: re.Pattern[str]
    literals: tuple[str, ...]

    def may_stand_in(self, text: str) -> bool:
        return any(literal in text for literal in self.literals)

    @classmethod
    def of(cls, name: str, alternatives: Sequence[str]) -> Words:
        return cls(name, re.compile("|".join(alternatives)), tuple(map(_literal, alternatives)))


def _literal(pattern: str) -> str:
    """The longest run of plain characters outside brackets that a match must have. ValueError: there is none."""
    # an escaped character is plain: it is kept out of the way of what follows, as one of the private area
    plain = re.sub(r"\\([^\w\s])", lambda escaped: chr(0xE000 + ord(escaped[1])), pattern)
    plain = re.sub(r"\\\w|\[[^\]]*\]|[.^$|]", "\0", plain)
    while (shorter := re.sub(r"\([^()]*\)", "\0", plain)) != plain:
        plain = shorter
    plain = re.sub(r".[?*]\??", "\0", plain)
    runs = [re.sub(r"[\ue000-\ue0ff]", lambda c: chr(ord(c[0]) - 0xE000), run) for run in re.split(r"\0\+?", plain)]
    longest = max(runs, key=len)
    if len(longest) < 3:
        raise ValueError(f"a machine line needs three plain characters in a row, {pattern!r} has {longest!r}")
    return longest


class _Reader:
    """The state of one pass over one source."""

    def __init__(self, reading: Reading, kinds: Sequence[Words]):
        self.reading, self.kinds = reading, kinds
        self.near: list[Words] = []  # the kinds that may stand in this batch of lines
        self.open: dict[str, Any] | None = None  # the dict row that is being read
        self.carry = ""  # its broken end
        self.plain: dict[str, float] = {}  # the row of key: value text that is being read
        self.plain_line = 0
        self.header: list[str] | None = None  # of a table or of CSV
        self.before: list[str] = []  # the last two lines, for words that wrap
        self.filling: list[tuple[Hit, int, int]] = []  # hit, which context, until which line

    def read(self, lines: Iterable[str]) -> None:
        lines = iter(lines)
        while batch := [line.rstrip("\r\n")[:LONGEST] for line in itertools.islice(lines, BATCH)]:
            whole = " ".join([*self.before, *batch])
            self.near = [kind for kind in self.kinds if kind.may_stand_in(whole)]
            for raw in batch:
                self.reading.lines += 1
                # a carriage return of a progress bar ends a line, as does its escape in some collectors
                for part in re.split(r"\r|#015", raw) if "\r" in raw or "#015" in raw else [raw]:
                    self.line(part)
        self.close_dict()
        self.close_plain()

    def line(self, text: str) -> None:
        at = self.reading.lines
        rank = _RANK.search(text) if "ank" in text else None
        bare = _PREFIX.sub("", text)
        self.machine(bare, at, int(rank[1]) if rank else None)
        if self.dicts(bare, at):
            return
        if self.table(bare, at):
            return
        self.pairs(bare, at)

    # -- lines that a machine writes

    def machine(self, text: str, at: int, rank: int | None) -> None:
        for hit, which, until in self.filling:
            if at <= until:
                # a line that was cut at a fixed width goes on in the middle of a word
                hit.context[which] += (
                    "" if len(hit.context[which]) % 10 and text[:1].islower() else " "
                ) + text.strip()
        self.filling = [f for f in self.filling if at < f[2]]
        head = "".join(line[-200:] + " " for line in self.before)
        window = head + text
        for kind in self.near:
            if not kind.may_stand_in(window):
                continue
            matches = kind.pattern.finditer(window)
            if found := next((match for match in matches if match.end() > len(head)), None):
                self.met(kind.name, found, text, at, rank)
        self.before = [*self.before[-1:], text]

    def met(self, name: str, found: re.Match[str], text: str, at: int, rank: int | None) -> None:
        hit = self.reading.hits.setdefault(name, Hit(at, " ".join(text.split())[:300]))
        hit.count += 1
        if rank is not None:
            hit.ranks.add(rank)
        if len(hit.groups) < MOST_HITS:
            whose = {} if rank is None else {"rank": str(rank)}
            hit.groups.append(whose | {k: v for k, v in found.groupdict().items() if v is not None})
        if len(hit.context) < 8:
            hit.context.append(text.strip()[-2000:])
            self.filling.append((hit, len(hit.context) - 1, at + CONTEXT))

    # -- rows

    def dicts(self, text: str, at: int) -> bool:
        """Read the `'key': value` pairs of a line. True when it had some, or ended a dict."""
        if self.open is None and not ("': " in text or "':" in text or '":' in text or '" :' in text):
            return False
        if self.carry:
            text, self.carry = self.carry + (text if text[:1].isspace() else text.lstrip("\ufeff")), ""
        end, seen = 0, False
        for mark in _MARK.finditer(text):
            seen = True
            if mark["brace"]:
                self.close_dict()
                end = mark.end()
                continue
            value = mark["value"]
            if mark.end() == len(text) and re.match(r"[-+\d.]", value) and self.open is not None:
                break  # a number at the very end of a line may go on in the next
            key = mark["key"].strip()
            if self.open is not None and key in self.open:
                self.close_dict()
            self.open = {} if self.open is None else self.open
            self.open[key] = value
            end = mark.end()
        if self.open is not None:
            rest = text[end:]
            if "'" in rest or '"' in rest or re.search(r"[-+\d.]$", rest):
                self.carry = rest[-300:]
            elif not seen and text.strip(" ,]"):
                self.close_dict()  # a line of something else: the brace was missing
        return seen

    def close_dict(self) -> None:
        if self.carry and self.open is not None:
            for mark in _MARK.finditer(self.carry):
                if mark["key"]:
                    self.open.setdefault(mark["key"].strip(), mark["value"])
        values, self.open, self.carry = self.open, None, ""
        if not values:
            return
        row = _named(values)
        if any(is_metric(name) for name in row):
            self.add(row, self.reading.lines)
        else:
            kept = {k: v.strip("'\"") for k, v in values.items() if len(v) < 80}
            if len(self.reading.settings) < 500:
                self.reading.settings |= {k: v for k, v in kept.items() if canonical(k) or re.fullmatch(r"\w+", k)}

    def table(self, text: str, at: int) -> bool:
        """Read a line of CSV or of a table, once a header has named its columns."""
        if not ("|" in text or "\t" in text or "," in text or "  " in text.strip()):
            self.header = None if self.header and text.strip() else self.header
            return False
        cells = _SPLIT.split(text.strip().strip("|").strip())
        names = [canonical(cell) for cell in cells]
        known = [name for name in names if name and (is_metric(name) or name == "step")]
        if len(known) >= (1 if "|" in text and len(cells) > 2 else 2) and not any(
            _number(cell) is not None for cell in cells
        ):
            self.header = [name or cell for name, cell in zip(names, cells, strict=True)]
            return True
        if not self.header or len(cells) != len(self.header):
            return False
        row = {
            name: value for name, cell in zip(self.header, cells, strict=True) if (value := _number(cell)) is not None
        }
        if row:
            self.add(row, at)
        return bool(row)

    def pairs(self, text: str, at: int) -> None:
        """Read `key: value` and `key=value` text: two known names on a line, or one that is all the line says."""
        spaced = text.count(",") > 2 and "oss " in text
        if not spaced and not any(name.lower() in LAST_WORDS for name in _NAMED.findall(text)):
            return
        found: dict[str, float] = {}
        for pair in itertools.chain(_PAIR.finditer(text), _SPACED.finditer(text) if spaced else []):
            found.setdefault(_metric(pair["key"]), float(_number(pair["value"]) or 0.0))
        found.pop("", None)
        if len([name for name in found if is_metric(name) or name == "step"]) < 2:
            whole = _WHOLE.match(text)
            name = _metric(whole["key"]) if whole else ""
            found = {name: _number(whole["value"]) or 0.0} if whole and is_metric(name) else {}
        if not found:
            return
        if "step" not in found and (steps := _STEP.findall(text)):
            found["step"] = float(next((named for named, _ in steps if named), steps[-1][1]))
        if any(name in self.plain for name in found):
            self.close_plain()
        self.plain |= found
        self.plain_line = at

    def close_plain(self) -> None:
        row, self.plain = self.plain, {}
        if any(is_metric(name) for name in row):
            self.add(row, self.plain_line)

    def add(self, row: dict[str, float], line: int) -> None:
        rows = self.reading.rows
        rows.append(Row(line, row))
        if len(rows) > MOST_ROWS:
            middle = range(1000, MOST_ROWS - 1000)
            rows[:] = [
                r
                for at, r in enumerate(rows)
                if at not in middle or at % 2 or not all(map(math.isfinite, r.values.values()))
            ][-MOST_ROWS:]


def _named(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a dict row under canonical names; a name that has none stays as it was written."""
    row: dict[str, float] = {}
    for key, value in values.items():
        number = _number(value) if isinstance(value, str) else float(value) if isinstance(value, int | float) else None
        name = canonical(key) or key
        if name == "step" and number is None and isinstance(value, str):
            number = _number(value.strip("'\"").split("/")[0])
        if number is not None:
            row.setdefault(name, number)
    return row


def _metric(key: str) -> str:
    """The canonical name, or the name as written where that is a reward function's or a loss's; else ""."""
    return canonical(key) or (key.strip() if is_metric(key.strip().lower()) else "")


def _number(text: str) -> float | None:
    text = text.strip().strip("'\"").replace(",", "")
    text = re.sub(r"^(?:np\.float\d+\(|tensor\()", "", text)
    try:
        return float(text) if len(text) < 40 else None
    except ValueError:
        return None
