"""What labkit itself prints, so that it is not read as a log: preflight, the guard's report, an answer of triage."""

from __future__ import annotations

import re

# "look  NaN in the log: ...", of preflight and doctor; what to do stands in the line below, behind six blanks
_LEVEL = re.compile(r"(?:ok   |look |stop ) ?[A-Za-z][\w' -]{0,40}: \S")
_WAY_OUT = re.compile(r" {6}\S")
# "read: run.log: 12 lines, 3 rows of measurements (steps 1 to 3)", with which an answer of triage begins
_ANSWER = re.compile(r"read: .*: \d+ lines?, (?:\d+ rows?|no measurements)")
_OF_AN_ANSWER = re.compile(
    r"\s*$| {3}|note: |last line printed: |nothing found\.|\d+\. [a-z-]+ \(|not logged, and what|what the log shows"
)
_GUARD = re.compile(r"\d+ rows recorded, \d+ updates skipped")


class OwnLines:
    """Asked for each line in order whether labkit printed it."""

    def __init__(self) -> None:
        self.in_answer = False
        self.in_level = False

    def prints(self, line: str) -> bool:
        if self.in_answer:
            self.in_answer = _OF_AN_ANSWER.match(line) is not None
        if self.in_level:
            self.in_level = _WAY_OUT.match(line) is not None
        if self.in_answer or self.in_level:
            return True
        if not line.startswith(("read: ", "ok ", "look ", "stop ")) and "updates skipped" not in line:
            return "labkit guard: " in line
        if _ANSWER.match(line):
            self.in_answer = True
            return True
        if _LEVEL.match(line):
            self.in_level = True
            return True
        return _GUARD.match(line) is not None
