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
        cause = CAUSES[rule.cause]
        others = {name: APART[frozenset((rule.cause, name))] for name in rule.likes}
        said = (seen.sure or rule.sure, rule.why, tuple(seen.evidence), others, rule.next or cause.next)
        return cls(rule.cause, cause.lesson, *said, rule.source, rule.name, tuple(files))

    def instead(self, other: str) -> Finding:
        """Another cause whose logs show the same, with the test that tells the two apart."""
        cause, why = CAUSES[other], f"its logs can show the same; the test: {self.lookalikes[other]}"
        said = (LOOKALIKE, why, (), dict[str, str](), cause.next, self.source, f"{self.rule}/{other}", self.files)
        return Finding(other, cause.lesson, *said)


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What a log says. `bool(diagnosis)` is True when there is something to act on.

    findings    best first; empty when nothing was found, which does not mean that the run is healthy
    missing     signals that were not logged -> what they would have decided
    read        how much was read, in words
    looked_for  where there is no finding, what was looked for
    turned_out  and what known logs with such words and columns turned out to be, likeliest first; health among them
    """

    findings: tuple[Finding, ...]
    missing: dict[str, str]
    read: str
    notes: tuple[str, ...] = ()
    reading: Reading = field(default_factory=Reading, repr=False, compare=False)
    looked_for: Sequence[str] = ()
    turned_out: Sequence[str] = ()

    @property
    def kind(self) -> str:
        """What kind of answer this is; of several, a finding counts more than a resemblance."""
        return min((finding.kind for finding in self.findings), default="nothing found")

    def __bool__(self) -> bool:
        return any(finding.cause not in QUIET for finding in self.findings)

    def to_json(self) -> str:
        """The same as JSON, without the rows: kind, findings (cause, lesson, evidence, files, ...), and the rest."""
        findings = [{"kind": finding.kind, **asdict(finding)} for finding in self.findings]
        rest = {name: getattr(self, name) for name in ("looked_for", "turned_out", "missing", "read", "notes")}
        return json.dumps({"kind": self.kind, "findings": findings, **rest}, indent=2, ensure_ascii=False)

    def __repr__(self) -> str:  # as a notebook shows it
        lines = [f"read: {self.read}", *(f"note: {note}" for note in self.notes), ""]
        if not self.findings:
            none = "nothing found. That is not the same as healthy: it takes rows that show a policy that moves."
            lines += [none, *_wrapped(f"looked for: {'; '.join(self.looked_for)}", "   ")]
            alike = ", ".join(self.turned_out) or "nothing: there is none"
            lines += [*_wrapped(f"known logs with such words turned out to be {alike}", "   "), ""]
        listed = {finding.cause for finding in self.findings}
        for at, finding in enumerate(self.findings, 1):
            lesson = f", lesson {finding.lesson}" if finding.lesson else ""
            lines += _wrapped(f"{at}. {finding.cause} ({finding.confidence}{lesson}): {finding.why}", "")
            lines += _wrapped(f"in: {', '.join(finding.files)}", "   ") if finding.files else []
            lines += [line for words in finding.evidence for line in _wrapped(f"seen: {words}", "   ")]
            for other, test in finding.lookalikes.items():
                lines += _wrapped(f"not {other}? {test}", "   ") if other not in listed else []
            lines += [*_wrapped(f"now: {finding.next}", "   "), *_wrapped(f"from: {finding.source}", "   "), ""]
        if self.missing:
            lines += ["not logged, and what it would have decided:"]
            lines += [line for name, words in self.missing.items() for line in _wrapped(f"{name}: {words}", "   ")]
        return "\n".join(lines).rstrip()


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.TextWrapper(110, indent, indent + "   ", break_long_words=False, break_on_hyphens=False).wrap(text)
