"""Does a sampler draw the first token of every row separately, or draw one and copy it?

It looks at tokens only. A copied token and a policy that is sure of its first token can look alike; then it says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .mistakes import first
from .report import CannotJudge, Caution, Inconclusive, Report, attempt, judged

CLAIM = "each row draws its own first token"
ENDED = -1  # stands where a row has no token any more
WRAPPERS = ("sequences", "completion_ids", "completions", "tokens", "token_ids", "ids")
LOOKED_AT = 64  # positions
FALSE_ALARM = -6  # log10: the chance of failing sound code is below this
SUSPICIOUS = 1e-3  # a chance below this is no proof, and no pass
FIX = "Expand the logits to num_samples rows, then draw for each."
Rows = list[list[int]]  # in a call: row, position. In a column (the tokens at one position): call, row


def first_token(
    generate: Callable[..., Any],
    *,
    num_samples: int = 16,
    calls: int = 4,
    prompt_length: int = 0,
    vocab: int | None = None,
) -> Report:
    """Check `generate(num_samples)`, which must return that many completions **of one and the same prompt**.

    It may return a tensor [num_samples, T] or a list of rows, of unequal length too, or one of these in a tuple's first
    place or under `.sequences`, `.tokens` or `.completion_ids`.

        num_samples    rows to ask for in each call
        calls          how often; copied first tokens are equal within a call and differ between calls
        prompt_length  tokens to drop, if the rows begin with the prompt (left padding included)
        vocab          the first logits are uniform over so many symbols: sound draws then agree with a chance of
                       V**(1 - num_samples) in one call. Otherwise the chance is estimated from all the calls

    A token copied within parts of a batch, to most rows, or at a later position, is found the same way.
    `.seen["false_alarm"]` is the chance that sound code fails.

    **A policy can be sure of its first token.** The report is inconclusive, which is false but no accusation, where
    sound draws and copies look alike. Use a prompt whose first token is open, a higher temperature, or more calls. A
    pass without a caution excludes that half of the rows, or more, share a draw.

    Raises: ValueError names num_samples < 2, calls < 1, prompt_length < 0 or vocab < 2.
    """
    if num_samples < 2 or calls < 1 or prompt_length < 0:
        got = f"{num_samples}, {calls} and {prompt_length}"
        raise ValueError(f"first_token: expected num_samples >= 2, calls >= 1 and prompt_length >= 0, got {got}")
    if vocab is not None and vocab < 2:
        raise ValueError(f"first_token: a vocab of {vocab} leaves nothing to draw; expected 2 or more")
    draws = _Draws(generate, num_samples, calls, prompt_length, vocab)
    return judged("first_token", CLAIM, generate, draws.judge)


@dataclass
class _Draws:
    generate: Callable[..., Any]
    num_samples: int
    calls: int
    prompt_length: int
    vocab: int | None
    distinct: int = 0  # calls; the same call again is no new evidence

    def judge(self, seen: dict[str, Any]) -> str:
        groups = [self._rows(attempt(self.generate, self.num_samples)) for _ in range(self.calls)]
        different = {tuple(map(tuple, rows)): k for k, rows in enumerate(groups)}
        self.distinct = len(different)
        length = min(max(len(row) for rows in groups for row in rows), LOOKED_AT)
        at = lambda t: [[row[t] if t < len(row) else ENDED for row in rows] for rows in groups]
        columns = [at(t) for t in range(length)]
        chance = _power_of_ten(self._log10_chance(columns[0], self.num_samples, 0))
        calls_alike = self.calls > 1 and all(rows == groups[0] for rows in groups)
        seen |= {"rows": self.num_samples, "calls": self.calls}
        seen |= {"first_token_unique": [len(set(c)) for c in columns[0]]}
        seen |= {"first_token_unique_overall": len(_all(columns[0])), "calls_alike": calls_alike, "false_alarm": chance}
        alike = self._whole_rows(groups) if length > 1 else ""
        if alike:
            return alike
        for t, column in enumerate(columns):
            for size, how in _sharing(column, self.num_samples):
                log_chance = self._log10_chance(column, size, t)
                if log_chance < FALSE_ALARM and len(_all(column)) > 1:
                    seen["position"], seen["chance_of_that"] = t + 1, _power_of_ten(log_chance)
                    return self._shared(t, size, how)
        if len(_all(columns[0])) == 1:
            return self._never_varies(columns, seen)
        return self._partly_shared([columns[0][k] for k in different.values()], seen)

    def _whole_rows(self, groups: list[Rows]) -> str:
        everything = [tuple(row) for rows in groups for row in rows]
        one_completion = all(len({tuple(row) for row in rows}) == 1 for rows in groups)
        return first(
            {
                "Every token is 0. Likely the buffer is returned before it is filled.": not any(map(any, everything)),
                "Every row of every call is the same. Likely greedy decoding (do_sample=False, or a temperature near "
                "0), or the seed is set inside, before each row.": len(set(everything)) == 1,
                "The rows of a call are the same from end to end, and the calls differ. Likely one completion is "
                "copied to all rows, or the generator is seeded anew for each row.": one_completion,
            }
        )

    def _shared(self, position: int, size: int, how: str) -> str:
        which = "The first token" if position == 0 else f"The token at position {position + 1}"
        if size < self.num_samples:
            drawn = f"drawn for {self.num_samples // size} rows and repeated"
            return f"{which} comes in {how} of {size} equal ones. Likely it is {drawn}. {FIX}"
        return (
            f"{which} is the same in all rows of a call and differs between calls: it is drawn once and copied. "
            f"Likely the prefill runs at batch 1, one token is sampled, and that token is repeated. {FIX}"
        )

    def _never_varies(self, columns: list[Rows], seen: dict[str, Any]) -> str:
        later = next((t for t, column in enumerate(columns) if len(_all(column)) > 1), 0)
        advice = "the first token never varies, in no call. "
        if later:
            drop = f"prompt_length={self.prompt_length + later}"
            advice += f"Position {later + 1} is the first that varies: if the prompt is included, pass {drop}. "
        if self.vocab and self._log10_chance(columns[0], self.num_samples, 0) < FALSE_ALARM:
            return f"With {self.vocab} open symbols {advice}Likely its draw is greedy, or not made."
        if seen["calls_alike"] and later:
            advice += "All calls are alike, so a seed is set inside: change it between calls to tell the two apart. "
        advice += "Likely it is drawn once and copied, or greedily, or the policy is sure of it"
        return Inconclusive(f"Inconclusive: {advice}: use an open prompt or a higher temperature.")

    def _partly_shared(self, calls: Rows, seen: dict[str, Any]) -> str:
        """One draw for most rows of a call, and draws of their own for the others. `calls`: their first tokens."""
        alike = [max(Counter(call).values()) for call in calls]  # rows with the commonest first token
        fewest, n = min(alike), self.num_samples
        log_chance = self._log10_chance_of(alike, calls)
        seen["most_alike"] = alike
        equal = f"In every call at least {fewest} of {n}"
        if log_chance < FALSE_ALARM and len(calls) > 1:
            seen["chance_of_that"] = _power_of_ten(log_chance)
            likely = f"Likely one draw is copied to most rows, or to many, and the others are drawn. {FIX}"
            return f"{equal} rows have the same first token, other calls have others. {likely}"
        if fewest >= max(2, n - 1) or (len(calls) == 1 and fewest >= max(2, n // 2)):
            why = "So looks one draw copied to as many rows, and so do sound draws of a policy that is nearly sure: use"
            why += " an open prompt, a higher temperature, or more calls (`calls=16`)."
            return Inconclusive(f"{equal} first tokens are equal. {why}")
        agreement = _chance_of_agreement(calls)
        if agreement < SUSPICIOUS:
            why = f"with a chance of {agreement:.1g} in sound code. Likely some rows share a draw; ask for more calls"
            return Inconclusive(f"Rows of one call agree more often than rows of different calls, {why}.")
        hidden = "so a draw shared by a part of the rows would hardly show. More calls (`calls=16`) would show it."
        return Caution(f"{equal} first tokens are equal, {hidden}") if fewest >= max(2, n / 2) else ""

    def _log10_chance_of(self, alike: list[int], calls: Rows) -> float:
        """log10 of the chance that sound calls have tokens as common as these (Fisher's combination of the calls)."""
        n, pooled = self.num_samples, Counter(token for call in calls for token in call)
        total, log = sum(pooled.values()), 0.0
        for k in alike:
            if self.vocab:
                chance = math.comb(n, k) * self.vocab ** (1 - k)
            else:
                chance = sum(_at_least(k, n, count / total) for count in pooled.values())
            log += math.log(min(chance, 1.0))
        of_all = torch.special.gammaincc(*torch.tensor([float(len(alike)), -log], dtype=torch.float64))
        return math.log10(max(float(of_all), 1e-300))

    def _log10_chance(self, column: Rows, size: int, position: int) -> float:
        """log10 of the chance that sound sampling gives blocks of `size` equal tokens throughout."""
        blocks = self.distinct * self.num_samples // size
        if self.vocab and position == 0:
            return blocks * (1 - size) * math.log10(self.vocab)
        pooled = Counter(token for c in column for token in c)
        total = sum(pooled.values())
        logs = torch.tensor([size * math.log(count / total) for count in pooled.values()], dtype=torch.float64)
        return blocks * float(logs.logsumexp(0)) / math.log(10)

    def _rows(self, result: Any) -> Rows:
        rows = [row[self.prompt_length :] for row in token_rows(result)]
        if len(rows) != self.num_samples:
            raise CannotJudge(
                f"generate({self.num_samples}) must return {self.num_samples} rows. Likely the batch is not "
                "expanded to num_samples, or rows are dropped when they finish.",
                rows=len(rows),
            )
        if not any(rows):
            raise CannotJudge("No row has a token left. Likely nothing is generated, or prompt_length is too large.")
        if self.vocab and max(token for row in rows for token in row) >= self.vocab:
            raise CannotJudge("A token id is outside the vocabulary. Likely ids are shifted by one, or vocab is wrong.")
        return rows


def _all(column: Rows) -> set[int]:
    return {token for call in column for token in call}


def _power_of_ten(log10: float) -> str:
    return f"1e{math.floor(log10)}" if log10 < -3 else f"{10**log10:.2g}"


def _at_least(k: int, n: int, p: float) -> float:
    """The chance of k or more of n, each with probability p."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


def _chance_of_agreement(calls: Rows, trials: int = 2000) -> float:
    """How often rows dealt to the calls anew agree within a call as much as these do; 1 / trials at the least.

    Sound draws do not know which call they are in: any other deal was as likely.
    """
    number = {token: i for i, token in enumerate(_all(calls))}
    tokens = torch.tensor([number[token] for call in calls for token in call])
    call = torch.arange(len(calls)).repeat_interleave(len(calls[0])) * len(number)
    rng = torch.Generator().manual_seed(0)

    def agreeing(deals: torch.Tensor) -> torch.Tensor:  # [S, rows] -> pairs of equal rows within calls [S]
        counts = torch.zeros(len(deals), len(calls) * len(number))
        return counts.scatter_add_(1, call + deals, torch.ones(deals.shape)).square().sum(1)

    reached = 0
    for _ in range(8):  # in parts, for memory
        deals = tokens[torch.rand(trials // 8, len(tokens), generator=rng).argsort(1)]
        reached += int((agreeing(deals) >= agreeing(tokens[None])).sum())
    return max(reached, 1) / trials


def _sharing(column: Rows, n: int) -> Iterator[tuple[int, str]]:
    """(size, how) of each way in which every call's column repeats itself, the largest first."""
    for size in (size for size in range(n, 1, -1) if n % size == 0):
        if all(c[i] == c[i - i % size] for c in column for i in range(n)):
            yield size, "runs"
        elif all(c[i] == c[i % (n // size)] for c in column for i in range(n)):
            yield size, "cycles"


def token_rows(result: Any) -> Rows:
    """Whatever a sampler returns, as lists of ints."""
    expected = "Expected token ids: a tensor [num_samples, T] or a list of lists."
    for name in WRAPPERS:
        if isinstance(result, Mapping):
            result = result.get(name, result)
        elif not isinstance(result, (torch.Tensor, list, tuple)):
            result = getattr(result, name, result)
    if isinstance(result, tuple) and result and not isinstance(result[0], int):
        result = result[0]
    result = _listed(result)
    if result is None:
        raise CannotJudge(expected + " Likely not written yet, or the return is missing.", returned="None")
    if not isinstance(result, (list, tuple)) or not result:
        raise CannotJudge(expected, returned=type(result).__name__)
    rows = [_listed(row) for row in result]
    if len(rows) == 1 and isinstance(rows[0], list) and rows[0] and isinstance(rows[0][0], (list, tuple)):
        rows = rows[0]  # [1, num_samples, T]
    rows = [row if isinstance(row, (list, tuple)) else [row] for row in rows]
    try:
        numbers = [[int(x) for x in row] for row in rows]
        fractions = any(list(row) != found for row, found in zip(rows, numbers, strict=True))
    except (TypeError, ValueError):
        raise CannotJudge(expected, returned="other things than numbers") from None
    if fractions:
        raise CannotJudge(expected + " These are not whole numbers; likely logits.", returned="fractions")
    return numbers


def _listed(value: Any) -> Any:
    """A tensor or an array as lists, anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value
