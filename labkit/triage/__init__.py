"""From a log to a likely cause: findings with evidence, what each is mistaken for, and the one test that decides.

    diagnosis = labkit.diagnose("trainer_state.json")       a path, a text, a Run, or a list of these
    print(diagnosis)                                        findings, best first; also what was not logged
    labkit triage run.log err.log --json                    the same in a terminal

Kinds of answer: a finding; a lookalike of it; a resemblance to known logs; nothing found, and what was looked for.
`reading` turns a log into rows and machine lines, rules.toml is one table a reader can follow, vocabulary.jsonl has
what libraries say, and cases.jsonl the logs whose cause is known. Nothing is run, and your machine is not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from labkit.common import number

from .diagnosis import CONFIDENCE, Diagnosis, Finding
from .log import Log, Seen
from .reading import read, together
from .refusal import owner
from .known import known_logs
from .resembles import resembling
from .table import APART, CAUSES, CONTEXT, KINDS, LATER, LOOKED_FOR, QUIET, REMARKS, RULES, WANTED, Rule

__all__ = ["APART", "CAUSES", "CONFIDENCE", "RULES", "Diagnosis", "Finding", "diagnose", "owner"]


def diagnose(source: Any, settings: Mapping[str, Any] | None = None) -> Diagnosis:
    """The likely causes of what a log shows, best first.

    source    a path, a text, "-" for standard input, a `labkit.Run`, or a list of these, read as one run
    settings  what the run was started with, where you know it: beta, temperature, top_p, ...

    Content never raises: what cannot be read is told in `notes`. Raises: OSError when a file cannot be opened.
    """
    readings = read(source, KINDS, CONTEXT)
    reading = together(readings)
    log = Log(reading, settings)
    held = [(rule, seen) for rule in RULES if not rule.alone and (seen := rule.look(log))]
    hidden = frozenset().union(*(rule.hides for rule, _ in held))
    held = _first_in_time([(rule, seen) for rule, seen in held if rule.name not in hidden], log, len(readings) > 1)
    doubtful = [rule for rule, _ in held if rule.sure == CONFIDENCE[2] and not rule.ask]
    notices = [rule for rule in doubtful if rule.first_line(log, error=True) is None]
    weak = {rule.name for rule in notices if rule.cause != "healthy-normal"} | LATER | {"beta-zero"}
    no_cause = all(rule.name in weak for rule, _ in held)
    signs: list[tuple[Rule, Seen]] = []
    if no_cause and not any(rule.name in LATER for rule, _ in held):
        remarks = [words for remark in REMARKS if (seen := remark.look(log)) for words in seen.evidence[:1]]
        signs = [(rule, seen) for rule in RULES if rule.alone and (seen := rule.look(log))]
        held = [] if signs and signs[0][0].measured and notices else held  # what the rows show outweighs a notice
        held += [(rule, replace(seen, evidence=seen.evidence + remarks * rule.measured)) for rule, seen in signs]
    alone = [(one.sources[0], Log(one, log.settings)) for one in readings if one.sources and len(readings) > 1]
    shown = [[name for name, part in alone if rule.look(part)] for rule, _ in held]
    findings = [Finding.of(rule, seen, names) for (rule, seen), names in zip(held, shown, strict=True)]
    findings.sort(key=lambda finding: CONFIDENCE.index(finding.confidence))
    if (no_cause and not signs) or findings[0].rule.startswith("vocabulary/"):
        findings = _with_resemblances(findings, log, [name for name, part in alone if part.broken])
    wanted = {n: words for n, words in WANTED.items() if not log.has(n)} if log.rows and not log.dpo else {}
    looked = () if findings else LOOKED_FOR["rows" if log.rows else "lines"]
    alike = () if findings else resembling(log.lines + reading.last, known_logs(), every=True)[:3]
    turned_out = [finding.cause for _, finding in alike]
    findings += _lookalikes(findings)
    surest = {finding.cause: finding for finding in reversed(findings)}
    findings = [finding for finding in findings if finding is surest[finding.cause]]
    return Diagnosis(tuple(findings), wanted, _read_words(log), tuple(reading.notes), reading, looked, turned_out)


def _first_in_time(held: list[tuple[Rule, Seen]], log: Log, several: bool) -> list[tuple[Rule, Seen]]:
    """Without what other processes and the launcher say behind the first error. `several` files: behind any error."""
    errors = [line for rule, _ in held if rule.name not in LATER and (line := rule.first_line(log, True))]
    first = 0 if several and errors else min(errors, default=math.inf)
    return [(rule, seen) for rule, seen in held if rule.name not in LATER or (rule.first_line(log) or 0) <= first]


def _with_resemblances(findings: list[Finding], log: Log, names: Sequence[str]) -> list[Finding]:
    """With what known logs of the same words were: behind the findings, or before those that are possible or news."""
    crashed = [part for part in log.broken if not part.rows or part.ended_by("traceback", "frames")]
    if not crashed and (log.rows or not log.hits.keys() - CONTEXT - {"vocabulary/notice"}):
        return findings
    known = {finding.cause for finding in findings}
    likely = [pair for pair in resembling(log.lines, known_logs()) if pair[1].cause not in known]
    doubtful = all(finding.confidence == CONFIDENCE[2] or finding.rule in LATER for finding in findings)
    first = doubtful and bool(likely) and likely[0][0] > 0.5
    alike = [replace(finding, files=tuple(names)) for _, finding in likely[: max(3 - len(findings), 0)]]
    return [*alike[:first], *findings, *alike[first:]]


def _lookalikes(findings: list[Finding]) -> list[Finding]:
    """Of a first finding that is not settled, what else shows the same, as far as three answers have room."""
    known = {finding.cause for finding in findings} | {"healthy-normal"}
    if not findings or findings[0].cause in QUIET or findings[0].confidence == CONFIDENCE[0]:
        return []
    others = [other for other in findings[0].lookalikes if other not in known]
    return [findings[0].instead(other) for other in others[: max(4 - len(known), 0)]]


def _read_words(log: Log) -> str:
    reading, steps, count = log.reading, log.values("step"), len(log.reading.rows)
    rows = f"{count} row{'s' * (count > 1)} of measurements" if count else "no measurements"
    span = f" (steps {number(min(steps))} to {number(max(steps))})" if steps else ""
    return f"{', '.join(reading.sources) or 'nothing'}: {reading.lines} line{'s' * (reading.lines != 1)}, {rows}{span}"
