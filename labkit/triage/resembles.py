"""What the words of an error resemble: the causes of known logs that have the same words. A resemblance is no finding.

It is naive Bayes over rare words, as scikit-learn's MultinomialNB behind a TfidfVectorizer would do it. The known logs
are those of docs/field-cases.md; docs/decisions/120-triage.md has how often it was right on unseen ones.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import NamedTuple

from .diagnosis import CONFIDENCE, Finding
from .table import CAUSES

SMOOTHING = 0.03  # what a word weighs in a cause whose logs do not have it
LEAST = 0.05  # a cause with a smaller share is not named
FEWEST = 4  # known words; a log with fewer resembles nothing


class KnownLog(NamedTuple):
    source: str  # its thread
    cause: str
    words: frozenset[str]  # of its lines


def words_of(lines: Iterable[str]) -> frozenset[str]:
    """The words of some lines; of a name its parts too: update_weights is also update and weights."""
    names = set(re.findall(r"[A-Za-z_]{3,}", "\n".join(lines)))
    parts = {part for name in names for part in re.split(r"_+|(?<=[a-z])(?=[A-Z])", name) if len(part) > 2}
    return frozenset(word.lower() for word in names | parts)


@functools.cache
def known_logs() -> Sequence[KnownLog]:
    """The known logs that have lines of a machine: rows of measurements have no words."""
    cases = map(json.loads, (files(__package__) / "cases.jsonl").read_text(encoding="utf-8").splitlines())
    lines = [(case, [part for part in case["log"] if isinstance(part, str)]) for case in cases]
    logs = [KnownLog(case["source"], case["label"], words_of(some)) for case, some in lines if some]
    return [log for log in logs if log.cause not in ("healthy-normal", "beta-zero-expected")]


def resembling(lines: Iterable[str], known: Sequence[KnownLog]) -> list[tuple[float, Finding]]:
    """The causes that an error with these lines may have, likeliest first, each with its share of the likelihood."""
    counts = Counter(word for log in known for word in log.words)
    rarity = {word: 1 + math.log(len(known) / count) for word, count in counts.items()}

    def scaled(some: Iterable[str]) -> dict[str, float]:  # to a length of 1
        rare = {word: rarity[word] for word in some if word in rarity}
        length = math.hypot(*rare.values())
        return {word: weight / length for word, weight in rare.items()}

    own, often = scaled(words_of(lines)), Counter(log.cause for log in known)
    if len(own) < FEWEST:
        return []
    weight: dict[str, dict[str, float]] = {cause: defaultdict(float) for cause in often}  # of a word in a cause
    nearest = dict.fromkeys(often, (-1.0, ""))  # the similarity of the most similar log, and its thread
    for log in known:
        scales = scaled(log.words)
        for word, x in scales.items():
            weight[log.cause][word] += x
        alike = sum(x * own.get(word, 0.0) for word, x in scales.items())
        nearest[log.cause] = max(nearest[log.cause], (alike, log.source))
    score = {cause: math.log(count / len(known)) for cause, count in often.items()}
    for cause, of in weight.items():
        total = sum(of.values()) + SMOOTHING * len(rarity)
        score[cause] += sum(x * math.log((of[word] + SMOOTHING) / total) for word, x in own.items())
    whole = sum(map(math.exp, score.values()))
    answers = []
    for cause in sorted(score, key=score.__getitem__, reverse=True):
        share, row = math.exp(score[cause]) / whole, CAUSES[cause]
        of = {word: own[word] * weight[cause][word] / sum(weight[c][word] for c in often) for word in own}
        telling = sorted(of, key=of.__getitem__, reverse=True)[:6]
        why = f"known logs with these words had this cause: {share:.0%} of the likelihood"
        seen, source = (f"words: {', '.join(telling)}", f"most like it: {nearest[cause][1]}"), "docs/field-cases.md"
        answers.append((share, Finding(cause, row.lesson, CONFIDENCE[4], why, seen, {}, row.next, source, "resembles")))
    return [(share, finding) for share, finding in answers if share > LEAST]
