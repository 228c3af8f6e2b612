"""What triage answers: findings, best first, each with what it is mistaken for and the test that tells them apart."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from .log import Seen
from .reading import Reading
from .table import APART, CAUSES, QUIET, Rule

LOOKALIKE, RESEMBLANCE = "a lookalike", "a resemblance"
CONFIDENCE = ("settled by the text", "likely", "possible", LOOKALIKE, RESEMBLANCE)


@dataclass(frozen=True)
class Finding:
    """One cause, with its evidence.

    cause       a word of `CAUSES`
    lesson      the number of the lesson that shows it, or ""
    confidence  one of `CONFIDENCE`
    why         one sentence
    evidence    what was seen, with step or line and numbers
    lookalikes  the causes it is mistaken for, each with the test that tells the two apart
    next        the one thing to run now
    source      the lesson, file or thread that taught the rule
    files       of several sources, those that alone show it; empty when they do only together
    """

    cause: str
    lesson: str
    confidence: str
    why: str
    evidence: tuple[str, ...]
    lookalikes: dict[str, str]
    next: str
    source: str
    rule: str
    files: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """A finding; or a lookalike, whose logs show the same; or a resemblance, to known logs by their words."""
        return self.confidence.removeprefix("a ") if self.confidence in (LOOKALIKE, RESEMBLANCE) else "finding"

    @classmethod
    def of(cls, rule: Rule, seen: Seen, files: Sequence[str] = ()) -> Finding:
        """What a rule found."""
        cause = CAUSES[rule.cause]
        return cls(
            cause=rule.cause,
            lesson=cause.lesson,
            confidence=seen.sure or rule.sure,
            why=rule.why,
            evidence=tuple(seen.evidence),
            lookalikes={name: APART[frozenset((rule.cause, name))] for name in rule.likes},
            next=rule.next or cause.next,
            source=rule.source,
            rule=rule.name,
            files=tuple(files),
        )

    def instead(self, other: str) -> Finding:
        """Another cause whose logs show the same, with the test that tells the two apart."""
        cause = CAUSES[other]
        return Finding(
            cause=other,
            lesson=cause.lesson,
            confidence=LOOKALIKE,
            why=f"its logs can show the same; the test: {self.lookalikes[other]}",
            evidence=(),
            lookalikes={},
            next=cause.next,
            source=self.source,
            rule=f"{self.rule}/{other}",
            files=self.files,
        )


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What a log says. `bool(diagnosis)` is True when there is something to act on.

    findings    best first; empty when nothing was found, which does not mean that the run is healthy
    missing     signals that were not logged -> what they would have decided
    read        how much was read, in words
    looked_for  where there is no finding, what was looked for
    turned_out  and what known logs with such words and columns turned out to be, likeliest first; health among them
    columns     and what each column does, in words
    ended       the last line that the process printed, and what it means, where that is known
    """

    findings: tuple[Finding, ...]
    missing: dict[str, str]
    read: str
    notes: tuple[str, ...] = ()
    reading: Reading = field(default_factory=Reading, repr=False, compare=False)
    looked_for: Sequence[str] = ()
    turned_out: Sequence[str] = ()
    columns: Sequence[str] = ()
    ended: str = ""

    @property
    def kind(self) -> str:
        """What kind of answer this is; of several, a finding counts more than a resemblance."""
        return min((finding.kind for finding in self.findings), default="nothing found")

    def __bool__(self) -> bool:
        return any(finding.cause not in QUIET for finding in self.findings)

    def to_json(self) -> str:
        """The same as JSON, without the rows: kind, findings (cause, lesson, evidence, files, ...), and the rest."""
        findings = [{"kind": finding.kind, **asdict(finding)} for finding in self.findings]
        names = ("looked_for", "turned_out", "columns", "missing", "read", "notes", "ended")
        rest = {name: getattr(self, name) for name in names}
        return json.dumps({"kind": self.kind, "findings": findings, **rest}, indent=2, ensure_ascii=False)

    def __repr__(self) -> str:  # as a notebook shows it
        return self.text()

    def text(self, width: int = 110, colour: bool = False) -> str:
        """The answer for people, in lines of at most `width` characters; in `colour` for a terminal that has it."""
        page = _Page(width, colour)
        page.line(f"read: {self.read}")
        for note in self.notes:
            page.line(f"note: {note}")
        if self.ended:
            page.line(f"last line printed: {self.ended}")
        page.blank()
        if not self.findings:
            self._nothing_found(page)
        listed = {finding.cause for finding in self.findings}
        for place, finding in enumerate(self.findings, 1):
            lesson = f", lesson {finding.lesson}" if finding.lesson else ""
            page.heading(f"{place}. {finding.cause}", f" ({finding.confidence}{lesson}): {finding.why}")
            if finding.files:
                page.line(f"in: {', '.join(finding.files)}", 3)
            for words in finding.evidence:
                page.line(f"seen: {words}", 3)
            for other, test in finding.lookalikes.items():
                if other not in listed:
                    page.line(f"not {other}? {test}", 3)
            page.line(f"now: {finding.next}", 3)
            page.line(f"from: {finding.source}", 3)
            page.blank()
        if self.missing:
            page.line("not logged, and what it would have decided:")
            for name, words in self.missing.items():
                page.line(f"{name}: {words}", 3)
        return "\n".join(page.lines).rstrip()

    def _nothing_found(self, page: _Page) -> None:
        few = f" {len(self.reading.rows)} rows are too few for that." if 0 < len(self.reading.rows) < 10 else ""
        page.line("nothing found. That is not the same as healthy: it takes rows that show a policy that moves." + few)
        if self.columns:
            page.line("what the log shows:", 3)
            for words in self.columns:
                page.line(words, 6)
        page.line(f"looked for: {'; '.join(self.looked_for)}", 3)
        if self.turned_out:
            page.line(f"known logs with such words turned out to be {', '.join(self.turned_out)}", 3)
        page.blank()


class _Page:
    """Lines of text that are wrapped, with a heading in bold where there is colour."""

    def __init__(self, width: int, colour: bool):
        self.width, self.colour = max(width, 40), colour
        self.lines: list[str] = []

    def line(self, text: str, indent: int = 0) -> None:
        blank = " " * indent
        wrapper = textwrap.TextWrapper(self.width, initial_indent=blank, subsequent_indent=blank + "   ")
        wrapper.break_long_words = wrapper.break_on_hyphens = False
        self.lines += wrapper.wrap(text)

    def heading(self, name: str, rest: str) -> None:
        before = len(self.lines)
        self.line(name + rest)
        if self.colour:
            self.lines[before] = f"\x1b[1m{name}\x1b[0m" + self.lines[before].removeprefix(name)

    def blank(self) -> None:
        self.lines.append("")
