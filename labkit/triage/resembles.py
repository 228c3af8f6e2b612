"""What the words of an error resemble: the causes of known logs that have the same words. A resemblance is no finding.

Naive Bayes over rare words, as MultinomialNB behind a TfidfVectorizer; docs/decisions/120-triage.md has its scores.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from .diagnosis import RESEMBLANCE, Finding
from .known import KnownLog, words_of
from .table import CAUSES, QUIET

SMOOTHING = 0.03  # what a word weighs in a cause whose logs do not have it
LEAST = 0.05  # a cause with a smaller share is not named
FEWEST = 4  # known words; a log with fewer resembles nothing


def resembling(lines: Iterable[str], known: Sequence[KnownLog], every: bool = False) -> list[tuple[float, Finding]]:
    """The likeliest causes of a log with these lines, each with its share of the likelihood.

    every  also health, and causes with a share below LEAST; else only causes to act on
    """
    known = [log for log in known if every or log.cause not in QUIET]
    counts = Counter(word for log in known for word in log.words)
    rarity = {word: 1 + math.log(len(known) / count) for word, count in counts.items()}

    def scaled(some: Iterable[str]) -> dict[str, float]:  # to a length of 1
        rare = {word: rarity[word] for word in some if word in rarity}
        length = math.hypot(*rare.values())
        return {word: weight / length for word, weight in rare.items()}

    own, often = scaled(sorted(words_of(lines))), Counter(log.cause for log in known)
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
    shares = {cause: math.exp(x) / whole for cause, x in score.items()}
    everywhere = {word: sum(of[word] for of in weight.values()) for word in own}
    answers = []
    for cause in sorted((c for c in shares if every or shares[c] > LEAST), key=shares.__getitem__, reverse=True):
        telling = {word: x * weight[cause][word] / everywhere[word] for word, x in own.items()}
        words = ", ".join(sorted(telling, key=telling.__getitem__, reverse=True)[:6])
        why = f"known logs with these words had this cause: {shares[cause]:.0%} of the likelihood"
        finding = Finding(
            cause=cause,
            lesson=CAUSES[cause].lesson,
            confidence=RESEMBLANCE,
            why=why,
            evidence=(f"words: {words}", f"most like it: {nearest[cause][1]}"),
            lookalikes={},
            next=CAUSES[cause].next,
            source="docs/field-cases.md",
            rule="resembles",
        )
        answers.append((shares[cause], finding))
    return answers
