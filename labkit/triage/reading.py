"""Read a log whatever it is written in: rows of measurements, settings, and the lines a machine writes when it breaks.

Rows are found in Python dicts and JSON (glued to progress bars, broken over lines, a brace missing, numbers quoted), in
`step:1 - key:value` lines, in `key: value` and `key=value` text, in CSV and in tables with a header. A file is read
once, line by line, and what is kept of it is bounded. This file judges nothing.
"""

from __future__ import annotations

import bisect
import codecs
import contextlib
import gzip
import io
import itertools
import math
import os
import re
import sys
import tomllib
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from labkit.events import Run

from .names import canonical, is_metric
from .vocabulary import by_word, find

MOST_LINES = 30_000  # lines that may be part of a row: all of so many, half of as many more, a quarter of twice those
EDGE = 50  # rows at the start and at the end of a log that are all kept
FAR = 20  # lines: a sample has as many at least, and no row is continued over a longer gap
MOST_ODD = 10_000  # lines with something odd that are read beside the sample; a tenth as many rows are kept
MOST_HITS = 64  # of one kind of line that are kept whole
LONGEST = 20_000  # characters of a line that are read
BLOCK = 1 << 20  # bytes that are looked through at once for the words of machine lines
CONTEXT = 4  # lines behind a hit that are kept with it: messages wrap
ARMS = {"run", "arm", "config", "variant", "method"}  # columns of a table whose rows are runs
TAIL = 40  # lines at the end that are kept for their words
MOST_SHAPES = 200_000  # shapes of lines that are remembered as saying nothing

FORMS = tomllib.loads((files(__package__) / "forms.toml").read_text(encoding="utf-8"))
_LINE = {
    name: re.compile(form.replace("NAMED", FORMS["named"]).replace("NUMBER", FORMS["number"]))
    for name, form in FORMS["line"].items()
}
_ODD = [re.compile(form.encode()) for form in FORMS["odd"]]


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
    """A kind of machine line that was met: how often, where first, and its words."""

    line: int
    text: str
    count: int = 0
    groups: list[dict[str, str]] = field(default_factory=list)  # the named parts, and the rank, of the first MOST_HITS
    context: list[list[str]] = field(default_factory=list)  # the first few, each with the lines behind it


@dataclass
class Reading:
    """All that was read. `sources` says from where, `notes` what could not be read."""

    rows: list[Row] = field(default_factory=list)
    hits: dict[str, Hit] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    lines: int = 0
    last: list[str] = field(default_factory=list)  # the last lines, as they are
    sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    parts: list[Reading] = field(default_factory=list)  # of several sources

    @property
    def tail(self) -> list[str]:
        """The last lines behind the last row."""
        behind = [(part.last, part.lines - (part.rows[-1].line if part.rows else 0)) for part in self.parts or [self]]
        return [line for last, count in behind for line in last[max(len(last) - count, 0) :]]

    def ended_by(self, *kinds: str) -> list[Reading]:
        """The sources with a line of such a kind, and no row behind the first of them: there it was not caught."""
        met = [(one, [one.hits[kind].line for kind in kinds if kind in one.hits]) for one in self.parts or [self]]
        return [one for one, lines in met if lines and not (one.rows and one.rows[-1].line > min(lines))]


def read(source: Any, kinds: Sequence[Words], context: Collection[str] = ()) -> list[Reading]:
    """Read a path, a text, "-" (standard input), a Run, or a list of these: a reading for each.

    `kinds` are the machine lines to look for, in a line and across the two before it; a line that has one of them,
    those of `context` apart, is not looked up among the texts of libraries. OSError: a file cannot be opened.
    """
    readings = []
    for one in source if isinstance(source, list | tuple) else [source]:
        readings.append(reading := Reading())
        run = one if isinstance(one, Run) else _saved_run(one)
        if run is not None:
            reading.sources.append("a Run" if run is one else str(one))
            reading.rows += [Row(at, _named(step.log())) for at, step in enumerate(run.steps, 1)]
            reading.settings |= {k: v for k, v in run.meta.items() if isinstance(v, int | float | str)}
            text = "\n".join([run.outcome.stderr, run.outcome.traceback, run.outcome.message])
            _Reader(reading, kinds, context).read([text.encode("utf-8", "replace")])
        else:
            _Reader(reading, kinds, context).read(_blocks(one, reading))
    return readings


def together(readings: Sequence[Reading]) -> Reading:
    """Several readings as one: rows in the order of the sources, kinds of lines added up."""
    whole = Reading(parts=list(readings))
    for one in readings:
        for name in ("rows", "last", "sources", "notes"):
            getattr(whole, name).extend(getattr(one, name))
        whole.settings |= one.settings
        whole.lines += one.lines
        for name, hit in one.hits.items():
            met = whole.hits.setdefault(name, Hit(hit.line, hit.text))
            met.count += hit.count
            met.groups, met.context = met.groups + hit.groups, met.context + hit.context
    return whole


def _saved_run(source: Any) -> Run | None:
    """A run that labkit saved, or None. A damaged one is read as text, as far as that goes."""
    if isinstance(source, str | Path) and os.path.isfile(source):
        with contextlib.suppress(ValueError), open(source, "rb") as file:
            return Run.load(source) if file.read(40).startswith(b'{"format": "labkit-run/') else None
    return None


def _blocks(source: Any, reading: Reading) -> Iterator[bytes]:
    """A source in blocks of whole lines, as UTF-8."""
    name = "standard input" if source == "-" else str(source)
    opened = gzip.open if name.endswith(".gz") else open
    if text := isinstance(source, str) and source != "-" and ("\n" in source or not os.path.isfile(source)):
        name, source = "a text", io.BufferedReader(io.BytesIO(source.encode("utf-8", "replace")))  # type: ignore[arg-type]
    reading.sources.append(name)
    with source if text else sys.stdin.buffer if source == "-" else opened(source, "rb") as file:
        start = file.peek(8192)[:8192]  # type: ignore[union-attr]
        if wide := start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            file = codecs.EncodedFile(file, "utf-8", "utf-16", "replace")  # type: ignore[assignment]
        binary = not wide and b"\0" in start
        if not text and (binary or not start):
            reading.notes.append(f"{name} is no text: it has null bytes" if binary else f"{name} is empty")
            return
        rest = b""
        while block := file.read(BLOCK):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if newline or len(rest) > BLOCK:  # a line without an end is cut
                yield whole + newline or rest
                rest = rest if newline else b""
        yield rest


@dataclass(frozen=True)
class Words:
    """A kind of machine line: its pattern, and words without digits; one of them stands in every match."""

    name: str
    pattern: re.Pattern[str]
    literals: tuple[str, ...]

    @classmethod
    def of(cls, name: str, alternatives: Sequence[str]) -> Words:
        return cls(name, re.compile("|".join(alternatives)), tuple(map(_literal, alternatives)))


def _literal(pattern: str) -> str:
    """The longest run of plain characters outside brackets that a match must have. ValueError: there is none."""
    # an escaped character is plain: it is kept out of the way of what follows, as one of the private area
    plain = re.sub(r"\\([^\w\s])", lambda escaped: chr(0xE000 + ord(escaped[1])), pattern)
    plain = re.sub(r"\\\w|\[[^\]]*\]|[.^$|0-9]", "\0", plain)
    while (shorter := re.sub(r"\([^()]*\)", "\0", plain)) != plain:
        plain = shorter
    plain = re.sub(r".(?:[?*]|\{[^}]*\})\??", "\0", plain)
    runs = [re.sub(r"[\ue000-\ue0ff]", lambda c: chr(ord(c[0]) - 0xE000), run) for run in re.split(r"\0\+?", plain)]
    longest = max(runs, key=len)
    if len(longest) < 3:
        raise ValueError(f"a machine line needs three plain characters in a row, {pattern!r} has {longest!r}")
    return longest


class _Reader:
    """The state of one pass over one source.

    Most lines of a long log have a shape that was met before: such a line is passed over without being decoded when
    nothing stood in that shape. Of what may have something of a row the first MOST_LINES are read and the end; between
    them a run of lines from each block, the shorter the longer the log, and the rows before are thinned as much.
    """

    def __init__(self, reading: Reading, kinds: Sequence[Words], context: Collection[str]):
        self.reading, self.kinds, self.context = reading, kinds, context
        self.quiet: set[int] = set()  # shapes of lines that no kind and no text of a library stands in
        self.rowless: set[int] = set()  # shapes of lines that are no part of a row
        self.begins: set[int] = set()  # shapes of lines with which a row of several lines begins
        # a kind of lines is a bit, a text of a library the lowest: which may stand where a literal stands
        self.literals: dict[bytes, int] = {}
        for at, kind in enumerate(kinds, 1):
            for literal in kind.literals:
                self.literals[literal.encode()] = self.literals.get(literal.encode(), 0) | 1 << at
        self.often = Counter[bytes]()  # in how many lines a literal was met
        self.words: set[bytes] = set()  # that were met
        self.alive: dict[bytes, int] = {}  # the literals whose words were met
        self.step, self.met_lines, self.met_odd = 1, 0, 0  # one line in `step` is read
        self.read_to, self.sampled = 0, False  # the last line that was read; whether a block was not read whole
        self.open: dict[str, Any] | None = None  # the dict row that is being read
        self.carry = ""  # its broken end
        self.plain: dict[str, float] = {}  # the row of key: value text that is being read
        self.plain_line = 0
        self.header: list[str] | None = None  # of a table or of CSV
        self.before: list[str] = []  # the last two lines, for words that wrap
        self.filling: list[tuple[list[str], int]] = []  # a context, until which line

    def read(self, blocks: Iterable[bytes]) -> None:
        last, middle = list[bytes](), 0
        tail: deque[bytes] = deque(maxlen=TAIL)
        blocks = itertools.chain(filter(None, blocks), [b"", b""])
        held = deque(itertools.islice(blocks, 2))
        for newest in blocks:
            held.append(newest)
            block, at_end = held.popleft().removesuffix(b"\n"), not newest  # the last two are read whole
            lines, shapes = block.split(b"\n"), block.translate(None, b"0123456789").split(b"\n")
            base, hashes, at = self.reading.lines, list(map(hash, shapes)), 0
            loud = self.loud(shapes, hashes, at_end)
            worth, sampled_to = self.worth_reading(block, lines, hashes, at_end)
            ahead = sorted({*loud, *worth, len(lines)})
            # while nothing is open: on to the next line that may say something
            while (at := at if self.busy(at < sampled_to) else ahead[bisect.bisect_left(ahead, at)]) < len(lines):
                if self.sampled and base + at - self.read_to > FAR:
                    self.close()
                self.reading.lines = self.read_to = base + at + 1
                if at in loud:
                    before = (last + lines[max(at - 2, 0) : at])[-2:]
                    self.before = [_LINE["prefix"].sub("", _text(line)) for line in before]
                self.one(lines[at], shapes[at], loud.get(at, 0))
                at += 1
            self.reading.lines, last = base + len(lines), lines[-2:]
            middle = middle if at_end else len(self.reading.rows)
            tail.extend(lines[-TAIL:])
        self.close()
        if self.sampled:
            self.reading.rows[middle:-EDGE] = _thinned(self.reading.rows[middle:-EDGE], self.step)
            self.reading.notes.append(f"a long log: of its middle, one line in up to {self.step} was read")
        self.reading.last = [_text(line) for line in tail]

    def busy(self, in_table: bool = True) -> bool:
        """Whether the meaning of a line depends on those before it: a row, a table or a message is being read."""
        return self.open is not None or bool(self.carry or self.filling) or (in_table and self.header is not None)

    def worth_reading(self, block: bytes, lines: list[bytes], hashes: list[int], at_end: bool) -> tuple[list[int], int]:
        """The lines of a block that may have something of a row; of a long log a sample of them, and where it ends."""
        ahead = [at for at, shape in enumerate(hashes) if shape not in self.rowless]
        self.met_lines += sum(1 + len(lines[at]) // 200 for at in ahead)  # a long line counts as several
        while self.met_lines > MOST_LINES * self.step and not at_end:
            self.step *= 2  # and what was read before is as thin as what will be
            self.reading.rows[EDGE:] = _thinned(self.reading.rows[EDGE:], 2)
        self.sampled |= self.step > 1 and not at_end
        if not self.sampled:
            return ahead, len(lines)
        size, start = len(ahead) if at_end else max(len(ahead) // self.step, FAR), 0
        if self.read_to < self.reading.lines:  # there is a gap before this block: go on where a row begins
            start = next((at for at, line in enumerate(ahead) if hashes[line] in self.begins), 0)
        forms = [form for form in _ODD if form.search(block)] if self.met_odd < MOST_ODD else []
        odd = [at for at in ahead if any(form.search(lines[at]) for form in forms)] if forms else []
        self.met_odd += len(odd)
        if self.begins:  # the rows in which they stand
            begun = [[n for n in range(max(at - FAR, 0), at + 1) if hashes[n] in self.begins] or [at] for at in odd]
            odd = [line for *_, first in begun for line in range(first, min(first + FAR, len(lines)))]
        sample = ahead[start : start + size]
        return [*sample, *odd], sample[-1] + 1 if sample else 0

    def one(self, raw: bytes, shape: bytes, kinds: int) -> None:
        """Read one line, and remember of its shape that it is no part of a row, or that a row begins with it."""
        busy, rows = self.busy(), len(self.reading.rows)
        text = _text(raw)
        # a carriage return of a progress bar ends a line, as does its escape in some collectors
        parts = re.split(r"\r|#015", text) if "\r" in text or "#015" in text else [text]
        had = [self.line(part, kinds, self.reading.lines) for part in parts]
        if busy or self.busy():
            return
        # without digits a line may have the shape of a row whose value is missing
        if not any(had) and len(self.rowless) < MOST_SHAPES and (shape != raw or raw.rstrip()[-1:] not in b":="):
            self.rowless.add(hash(shape))
        if any(had) and len(self.reading.rows) > rows and self.plain and len(self.begins) < MOST_SHAPES:
            self.begins.add(hash(shape))

    def loud(self, shapes: list[bytes], hashes: list[int], at_end: bool) -> dict[int, int]:
        """The lines in which a kind or a text of a library may stand, with their bits; the commonest are sampled."""
        fresh = [at for at, shape in enumerate(hashes) if shape not in self.quiet]
        words = set(b" ".join([shapes[at] for at in fresh]).split()) - self.words
        words = {word for word in words if len(word) < 2000}  # a longer one is an image: no message has it
        if words:
            joined = b" ".join(words)
            self.alive |= {some: bits for some, bits in self.literals.items() if max(some.split(), key=len) in joined}
            for word in by_word().keys() & set(re.findall(rb"[A-Za-z_]{3,}", joined)):
                for text in by_word()[word]:
                    self.alive[text.longest] = self.alive.get(text.longest, 0) | 1
            self.words |= words if len(self.words) < MOST_SHAPES else set()
        found: dict[int, int] = {}
        if fresh and self.alive:
            flat = b" ".join(shapes)
            starts = list(itertools.accumulate((len(shape) + 1 for shape in shapes), initial=0))
            for literal, bits in self.alive.items():
                at, left = flat.find(literal), len(flat) if at_end or self.often[literal] < MOST_ODD else FAR
                while at >= 0:
                    line = bisect.bisect_right(starts, at + len(literal) - 1) - 1
                    for near in range(line, min(line + 3, len(shapes))):  # a pattern may end in the next lines
                        found[near] = found.get(near, 0) | bits * (left > 0)
                    at, left = flat.find(literal, starts[line + 1]), left - 1
                    self.often[literal] += 1
        if len(self.quiet) < MOST_SHAPES:
            self.quiet |= {hashes[at] for at in fresh if at not in found}
        return {line: bits for line, bits in found.items() if bits}

    def line(self, text: str, kinds: int, at: int) -> bool:
        """Read a line, or a part of one. Whether it had something of a row."""
        bare = _LINE["prefix"].sub("", text)
        bare = _LINE["scalar"].sub(r"\1\2", bare) if "(" in bare or "[" in bare or "mean=" in bare else bare
        for context, _ in self.filling:
            context.append(bare.rstrip())
        self.filling = [filling for filling in self.filling if at < filling[1]]
        if kinds:
            rank = _LINE["rank"].search(text) if "ank" in text else None
            self.machine(bare, at, rank[1] if rank else None, kinds)
            self.before = [*self.before[-1:], bare]
        return self.dicts(bare, at) or self.table(bare, at) or self.pairs(bare, at)

    def machine(self, text: str, at: int, rank: str | None, kinds: int) -> None:
        """Look for the kinds of lines that may stand here, else for a text of a library."""
        head = "".join(line[-200:] + " " for line in self.before)
        window, named = head + text, False
        for bit, kind in enumerate(self.kinds, 1):
            if kinds >> bit & 1:
                matches = kind.pattern.finditer(window)
                if found := next((match for match in matches if match.end() > len(head)), None):
                    self.met(kind.name, found.groupdict(), text, at, rank)
                    named = named or kind.name not in self.context
        if kinds & 1 and not named and (said := find(window, len(head))):
            self.met(f"vocabulary/{said.cls}", {"library": said.library}, text, at, rank)

    def met(self, name: str, groups: dict[str, str | None], text: str, at: int, rank: str | None) -> None:
        hit = self.reading.hits.setdefault(name, Hit(at, " ".join(text.split())[:300]))
        hit.count += 1
        if len(hit.groups) < MOST_HITS:
            hit.groups.append({k: v for k, v in [("rank", rank), *groups.items()] if v is not None})
        if len(hit.context) < 8:
            hit.context.append([text.strip()[-2000:]])
            self.filling.append((hit.context[-1], at + CONTEXT))

    def dicts(self, text: str, at: int) -> bool:
        """Read the `'key': value` pairs of a line. True when it had some, or ended a dict."""
        if self.open is None and not ("': " in text or "':" in text or '":' in text or '" :' in text):
            return False
        if self.carry:
            text, self.carry = self.carry + (text if text[:1].isspace() else text.lstrip("\ufeff")), ""
        end, seen = 0, False
        for mark in _LINE["mark"].finditer(text):
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

    def close(self) -> None:
        self.close_dict()
        self.close_plain()

    def close_dict(self) -> None:
        values, self.open, self.carry = self.open, None, ""
        if not values:
            return
        row = _named(values)
        if any(is_metric(name) for name in row):
            self.reading.rows.append(Row(self.reading.lines, row))
        else:
            kept = {k: v.strip("'\"") for k, v in values.items() if len(v) < 80}
            if len(self.reading.settings) < 500:
                self.reading.settings |= {k: v for k, v in kept.items() if canonical(k) or re.fullmatch(r"\w+", k)}

    def table(self, text: str, at: int) -> bool:
        """Read a line of CSV or of a table, once a header has named its columns."""
        if not ("|" in text or "\t" in text or "," in text or "  " in text.strip()):
            self.header = None if text.strip() else self.header
            return False
        cells = _LINE["split"].split(text.strip().strip("|").strip())
        names, values = [canonical(cell) for cell in cells], [_number(cell) for cell in cells]
        known = [name for name in names if name]
        measured = "step" in known or any(map(is_metric, known))
        bare = set(values) == {None} and not _LINE["value"].search(text)
        enough = len(known) >= (1 if "|" in text and len(cells) > 2 else 2)
        if measured and bare and enough and ARMS.isdisjoint(map(str.lower, cells)):
            self.header = [name or cell for name, cell in zip(names, cells, strict=True)]
            return True
        if not self.header or len(cells) - len(self.header) not in (0, 1):  # pandas writes an index before them
            return False
        row = {n: x for n, x in zip(self.header, values[-len(self.header) :], strict=True) if x is not None}
        if row:
            self.reading.rows.append(Row(at, row))
        return bool(row)

    def pairs(self, text: str, at: int) -> bool:
        """Read `key: value` and `key=value` text: two known names on a line, or one that is all the line says."""
        if cells := _cells(text):
            return self.extend_plain(cells, at)
        begins, found = _LINE["begins"].match(text), dict[str, float]()
        spaced = (begins or "," in text or "|" in text) and _LINE["bare"].search(text)
        if not spaced and not _LINE["value"].search(text):
            return False
        for pair in itertools.chain(_LINE["pair"].finditer(text), _LINE["spaced"].finditer(text) if spaced else []):
            found.setdefault(_metric(pair["key"]), float(_number(pair["value"]) or 0.0))
        found.pop("", None)
        known = [name for name in found if is_metric(name) or name in ("step", "epoch", "learning_rate")]
        # what is not finite counts wherever it stands
        if len(known) < (1 if begins else 2) and all(map(math.isfinite, map(found.__getitem__, known))):
            whole = _LINE["whole"].match(text)
            name = _metric(whole["key"]) if whole else ""
            ours = is_metric(name) or (name == "learning_rate" and bool(self.plain))  # of the row that is being read
            found = {name: _number(whole["value"]) or 0.0} if whole and ours else {}
        if found and "step" not in found and (steps := _LINE["step"].findall(text)):
            found["step"] = float(next((named for named, _ in steps if named), steps[-1][1]))
        return bool(found) and self.extend_plain(found, at)

    def extend_plain(self, found: dict[str, float], at: int) -> bool:
        """Put names and numbers into the row that is being read; a name that it has begins the next row."""
        if not found.keys().isdisjoint(self.plain):
            self.close_plain()
        self.plain, self.plain_line = self.plain | found, at
        return True

    def close_plain(self) -> None:
        row, self.plain = self.plain, {}
        if any(is_metric(name) for name in row):
            self.reading.rows.append(Row(self.plain_line, row))


def _thinned(rows: list[Row], by: int) -> list[Row]:
    """One row in `by`, and the first that are odd."""
    odd = set(itertools.islice((at for at, row in enumerate(rows) if _odd(row.values)), MOST_ODD // 10))
    return [row for at, row in enumerate(rows) if at % by == 0 or at in odd]


def _odd(row: dict[str, float]) -> bool:
    """Whether a row must not be dropped: something is not finite, or a gradient or a KL is enormous."""
    return not all(map(math.isfinite, row.values())) or max(row.get("grad_norm", 0), row.get("kl", 0)) > 1e3


def _text(raw: bytes) -> str:
    bare = re.sub(rb"\x1b\[[\d;]*[A-Za-z]", b"", raw[:LONGEST])  # without colours
    return bare.rstrip(b"\r").decode("utf-8", "replace")


def _named(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a dict row under canonical names; a name that has none stays as it was written."""
    row: dict[str, float] = {}
    for key, value in values.items():
        number = _number(value) if isinstance(value, str) else float(value) if isinstance(value, int | float) else None
        name = canonical(key) or key.removeprefix("eval_")
        if name == "step" and number is None and isinstance(value, str):
            number = _number(value.strip("'\"").split("/")[0])
        if number is not None:
            row.setdefault(name, number)
    if "kl" in row and "dpo_margin" in row:  # KTO's is summed over the answer, and healthy at tens of nats
        row["kl_sum"] = row.pop("kl")
    return row


def _cells(text: str) -> dict[str, float]:
    """What a line says that is one of a table, `| name | number |`, or has many names: `a / b / c: 1 / 2 / 3`."""
    cells: list[str] = []
    if text.lstrip().startswith(("|", "\u2502")):
        cells = [cell.strip() for cell in text.replace("\u2502", "|").strip().strip("|").split("|")]
    elif len(text) < 4000 and _LINE["words"].match(text):
        cells = [*itertools.chain(*_LINE["named"].findall(text))]
    pairs = [(_metric(name), _number(value)) for name, value in zip(cells[::2], cells[1::2], strict=False)]
    return {name: value for name, value in pairs if name and value is not None}


def _metric(key: str) -> str:
    """The canonical name, or the name as written where that is a reward function's or a loss's; else ""."""
    return canonical(key) or (key.strip() if is_metric(key.strip().lower()) else "")


def _number(text: str) -> float | None:
    text = text.strip().strip("'\"").replace(",", "")
    try:
        return float(text) if len(text) < 40 else None
    except ValueError:
        return None
