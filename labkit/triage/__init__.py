"""From a log to a likely cause: findings with evidence, what each is mistaken for, and the one test that decides.

    diagnosis = labkit.diagnose("trainer_state.json")       a path, a text, a Run, or a list of these
    print(diagnosis)                                        findings, best first; also what was not logged
    labkit triage run.log err.log --json                    the same in a terminal

Kinds of answer: a finding; a lookalike of it; a resemblance to known logs; nothing found, with what the columns do.
`source` opens a log, `rows` and `reading` turn it into rows and machine lines, `curves` says what a column does.
rules.toml is one table a reader can follow, causes.toml what each cause means; known.json.gz has what libraries say and
the logs whose cause is known. Nothing is run, and your machine is not looked at. It imports nothing of labkit but
`common`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from labkit.common import number
from labkit.memory.refusal import owner

from .diagnosis import CONFIDENCE, Diagnosis, Finding
from .known import known_logs
from .log import Log, Seen
from .mechanisms import signs_of
from .reading import read, together
from .resembles import resembling
from .table import (
    APART,
    CAUSES,
    CONTEXT,
    FAMILIES,
    KINDS,
    LATER,
    LOOKED_FOR,
    MECHANISMS,
    QUIET,
    REMARKS,
    RULES,
    WANTED,
    Rule,
)

__all__ = ["APART", "CAUSES", "CONFIDENCE", "RULES", "Diagnosis", "Finding", "diagnose", "owner"]

SHOWN = (
    "reward",
    "kl",
    "entropy",
    "mean_length",
    "truncated",
    "frac_reward_zero_std",
    "clip_ratio",
    "grad_norm",
    "loss",
)


# rules that say less than a family of errors does
BROADER = frozenset({"child-died", "key", "crashed"})
# causes of a fall that steps which are too large do not bring about; a KL and an entropy that climb they do
OF_THEIR_OWN = ("sync-or-logprob-mismatch", "clip-saturation", "length-runaway", "truncation", "critic-failure")
# and mechanisms that say more of a fall than that
BEFORE_A_FALL = (
    "far-from-its-reference",
    "weight-of-the-kl-runs-away",
    "narrows",
    "tools-are-given-up",
    "form-is-lost",
)
# signs that a table of runs can show: the column, and what it must be in every run
SHARED_BY_RUNS = (("cut-high", "truncated", 0.5), ("ties-high", "frac_reward_zero_std", 0.5))


class Match(NamedTuple):
    """A rule that holds, and what it saw."""

    rule: Rule
    seen: Seen


def diagnose(source: Any, settings: Mapping[str, Any] | None = None) -> Diagnosis:
    """The likely causes of what a log shows, best first.

    source    a path, a text, "-" for standard input, a `labkit.Run`, or a list of these, read as one run
    settings  what the run was started with, where you know it: beta, temperature, top_p, ...

    Content never raises: what cannot be read is told in `notes`. Raises: OSError when a file cannot be opened.
    """
    # 1. read: one log of all sources, and each source alone
    readings = read(source, KINDS, CONTEXT)
    reading = together(readings)
    log = Log(reading, settings)
    alone: dict[str, Log] = {}
    if len(readings) > 1:
        alone = {one.sources[0]: Log(one, log.settings) for one in readings if one.sources}

    # 2. ask every rule, and leave out what is a mere consequence of another
    matches = [Match(rule, seen) for rule in RULES if not rule.alone and (seen := rule.look(log))]
    hidden = {name for match in matches for name in match.rule.hides}
    matches = [match for match in matches if match.rule.name not in hidden]
    matches = _first_in_time(matches, log, several=len(readings) > 1)

    # 3. where no rule knows the line, families of errors; where nothing of weight was found, weigh the signs of the
    # rows; then ask what is asked last: health, no gradient at all
    if all(match.rule.name.startswith("vocabulary/") or match.rule.name in BROADER for match in matches):
        matches = _families(log) + matches
    no_cause = _no_cause(matches, log)
    if any(match.rule.name in ("collapse", "held-out-sinks") for match in matches):
        matches = _why_it_fell(log) + matches
    if no_cause and (log.rows or reading.runs):
        weighed = _weighed(log if log.rows else _of_runs(log))
        if weighed and _notices(matches, log):
            matches = []  # what the rows show outweighs a notice
        matches += weighed
        no_cause = not weighed
    if no_cause and not any(match.rule.name in LATER for match in matches):
        last = _asked_last(log)
        if last and last[0].rule.measured and _notices(matches, log):
            matches = []  # what the rows show outweighs a notice
        matches += last
        no_cause = not last

    # 4. findings, the surest first, with the sources that show them alone
    findings = []
    for match in matches:
        shown_by = [name for name, part in alone.items() if match.rule.look(part)]
        findings.append(Finding.of(match.rule, match.seen, shown_by))
    findings.sort(key=lambda finding: CONFIDENCE.index(finding.confidence))
    rules = {match.rule.name: match.rule for match in matches}
    surest = [rules[finding.rule] for finding in findings]

    # 5. known logs with the same words, where no rule's own words convict
    if no_cause or findings[0].rule.startswith("vocabulary/"):
        broken = [name for name, part in alone.items() if part.broken]
        findings = _with_resemblances(findings, log, broken)

    # 6. what else can show the same; and of each cause its surest finding alone
    nothing = not findings
    findings += _lookalikes(findings)
    of_a_cause = {finding.cause: finding for finding in reversed(findings)}
    findings = [finding for finding in findings if finding is of_a_cause[finding.cause]]

    # 7. where nothing was found: what was looked for, what the columns do, what such logs turned out to be
    wanted: dict[str, str] = {}
    if log.rows and not log.dpo:
        wanted = {name: words for name, words in WANTED.items() if not log.has(name)}
    looked_for: Sequence[str] = ()
    columns: list[str] = []
    turned_out: list[str] = []
    if nothing:
        looked_for = LOOKED_FOR["rows" if log.rows else "lines"]
        columns = [log.curve(name).words for name in SHOWN if log.curve(name)] + _remarks(log)
        alike = resembling(log.lines + reading.last, known_logs(), every=True)
        turned_out = [finding.cause for _, finding in alike[:3]]
    return Diagnosis(
        findings=tuple(findings),
        missing=wanted,
        read=_read_words(log),
        notes=tuple(reading.notes),
        reading=reading,
        looked_for=looked_for,
        turned_out=turned_out,
        columns=columns,
        ended=_last_line(log, surest),
    )


def _no_cause(matches: Sequence[Match], log: Log) -> bool:
    """Whether all that was found is a notice, news of another error, or a remark about beta."""
    notices = [match for match in _notices(matches, log) if match.rule.cause != "healthy-normal"]
    weak = {match.rule.name for match in notices} | LATER | {"beta-zero"}
    weak |= {rule.name for rule in FAMILIES if rule.sure == CONFIDENCE[2]}
    return all(match.rule.name in weak for match in matches)


def _notices(matches: Sequence[Match], log: Log) -> list[Match]:
    """Those that rest on a line alone, are merely possible, and tell of no error; health is none of them."""
    found = []
    for match in matches:
        possible = match.rule.sure == CONFIDENCE[2] and match.rule.ask is None
        if possible and match.rule.first_line(log, error=True) is None:
            found.append(match)
    return found


def _asked_last(log: Log) -> list[Match]:
    """The rules that are asked only where no other holds; what is no fault is said beside health."""
    remarks = _remarks(log)
    found = []
    for rule in RULES:
        if rule.alone and (seen := rule.look(log)):
            evidence = seen.evidence + remarks if rule.measured else seen.evidence
            found.append(Match(rule, replace(seen, evidence=evidence)))
    return found


def _families(log: Log) -> list[Match]:
    """The families of errors that a log has, two at most: the surest first, then as the table has them."""
    found = []
    for rule in FAMILIES:
        seen = rule.look(log)
        if seen:
            found.append(Match(rule, seen))
    found.sort(key=lambda match: CONFIDENCE.index(match.rule.sure))
    return found[:2]


def _of_runs(log: Log) -> Log:
    """The rows of a table that compares runs, with no sign but what holds in every one of them."""
    runs = Log(replace(log.reading, rows=log.reading.runs, parts=[]), log.settings)
    runs.signs = {}
    for name, column, least in SHARED_BY_RUNS:
        curve = runs.curve(column)
        if len(curve) >= 3 and min(curve.values) >= least:
            runs.signs[name] = f"{curve.label} at least {number(min(curve.values))} in all {len(curve)} runs"
    return runs


def _weighed(log: Log) -> list[Match]:
    """The mechanism that the signs of the rows support best, and the next one where it is not far behind."""
    held = []
    for rule in MECHANISMS:
        seen = rule.look(log)
        if seen and rule.mechanism:
            held.append((rule.mechanism.weight(signs_of(log)), Match(rule, seen)))
    held.sort(key=lambda pair: -pair[0])
    found: list[Match] = []
    for weight, match in held:
        same = any(match.rule.cause == other.rule.cause for other in found)
        if weight >= held[0][0] - 1.5 and not same and len(found) < 2:
            found.append(match)
    return found


def _why_it_fell(log: Log) -> list[Match]:
    """The mechanism of a reward that falls, where the other columns support one better than mere steps too large."""
    best = _weighed(log)[:1]
    if best and (best[0].rule.cause in OF_THEIR_OWN or best[0].rule.name in BEFORE_A_FALL):
        return best
    return []


def _remarks(log: Log) -> list[str]:
    """What looks like a fault in these rows and is none."""
    seen = [remark.look(log) for remark in REMARKS]
    return [one.evidence[0] for one in seen if one]


def _first_in_time(matches: Sequence[Match], log: Log, several: bool) -> list[Match]:
    """Without what other processes and the launcher say behind the first error. `several` files: behind any error."""
    errors = []
    for match in matches:
        line = match.rule.first_line(log, error=True)
        if match.rule.name not in LATER and line:
            errors.append(line)
    first = 0 if several and errors else min(errors, default=math.inf)
    kept = []
    for match in matches:
        if match.rule.name not in LATER or (match.rule.first_line(log) or 0) <= first:
            kept.append(match)
    return kept


def _with_resemblances(findings: list[Finding], log: Log, names: Sequence[str]) -> list[Finding]:
    """With what known logs of the same words were: behind the findings, or before those that are possible or news."""
    crashed = [part for part in log.broken if not part.rows or part.ended_by("traceback", "frames")]
    if not crashed and (log.rows or not log.hits.keys() - CONTEXT - {"vocabulary/notice"}):
        return findings
    known = {finding.cause for finding in findings}
    likely = [pair for pair in resembling(log.lines, known_logs()) if pair[1].cause not in known]
    doubtful = all(finding.confidence == CONFIDENCE[2] or finding.rule in LATER for finding in findings)
    alike = [replace(finding, files=tuple(names)) for _, finding in likely[: max(3 - len(findings), 0)]]
    if doubtful and alike and likely[0][0] > 0.5:
        return [alike[0], *findings, *alike[1:]]
    return [*findings, *alike]


def _lookalikes(findings: list[Finding]) -> list[Finding]:
    """Of a first finding that is not settled, what else shows the same, as far as three answers have room."""
    known = {finding.cause for finding in findings} | {"healthy-normal"}
    if not findings or findings[0].cause in QUIET or findings[0].confidence == CONFIDENCE[0]:
        return []
    others = [other for other in findings[0].lookalikes if other not in known]
    return [findings[0].instead(other) for other in others[: max(4 - len(known), 0)]]


def _last_line(log: Log, surest: Sequence[Rule]) -> str:
    """The last line that was printed, and what it means, where a rule knows it that holds. `surest` are asked first."""
    last = next((line for line in reversed(log.reading.last) if line.strip()), "")
    words = " ".join(last.split())
    for rule in [*surest, *RULES, *FAMILIES]:
        if rule.why and _rests_on(rule, words, log) and rule.look(log):
            return f"{_shortened(words)} ({rule.why})"
    return ""


def _rests_on(rule: Rule, words: str, log: Log) -> bool:
    """Whether these words are the last line of a kind that a rule rests on, and tell of more than a context."""
    for name in rule.met(log):
        hit = log.hits[name]
        telling = name not in CONTEXT or name == rule.name
        if telling and hit.last_text and hit.last_text in words:
            return True
    return False


def _shortened(words: str, most: int = 240) -> str:
    """So many characters at most, whole words; an out-of-memory message has its processes in them."""
    if len(words) <= most:
        return words
    return words[:most].rpartition(" ")[0] + " …"


def _read_words(log: Log) -> str:
    reading, steps, count = log.reading, log.values("step"), len(log.reading.rows)
    sources = ", ".join(reading.sources) or "nothing"
    lines = f"{reading.lines} line" + ("" if reading.lines == 1 else "s")
    rows = "no measurements"
    if count:
        rows = f"{count} row" + ("" if count == 1 else "s") + " of measurements"
    span = f" (steps {number(min(steps))} to {number(max(steps))})" if steps else ""
    own = f"; {reading.own_lines} that labkit printed were passed over" if reading.own_lines else ""
    return f"{sources}: {lines}, {rows}{span}{own}"
