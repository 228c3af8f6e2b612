"""Does a sampler draw the first token of every row separately, or draw one and copy it?

It looks at tokens only. It does not load a model, and it cannot tell a copied token from a policy that is
sure of its first token; it says so where it matters.
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
SUSPICIOUS = 1e-3  # a chance below this is no proof, and no pass
FIX = "Expand the logits to num_samples rows, then draw for each."
HINTS = {
    "zeros": "Every token is 0. Likely the buffer is returned before it is filled, or nothing is drawn.",
    "greedy": "Every row of every call is the same. Likely greedy decoding (do_sample=False, or a temperature near "
    "0), or the seed is set inside, before each row.",
    "one completion": "The rows of a call are the same from end to end, and the calls differ. Likely one completion "
    "is copied to all rows, or the generator is seeded anew for each row.",
    "one draw": "{which} is the same in all rows of a call and differs between calls: it is drawn once and copied. "
    f"Likely the prefill runs at batch 1, one token is sampled, and that token is repeated. {FIX}",
    "shared": "{which} comes in {how} of {size} equal ones. Likely it is drawn for {draws} rows and repeated. " + FIX,
    "most rows": "In every call at least {alike} of {rows} rows have the same first token, other calls have others. "
    "Likely one draw is copied to most rows, or to many, and the others are drawn. " + FIX,
    "too alike": "In every call at least {alike} of {rows} first tokens are equal. One draw copied to as many rows "
    "looks like that, and so do sound draws of a policy that is nearly sure: use an open prompt, a higher temperature, "
    "or more calls (`calls=16`).",
    "in part": "In every call at least {alike} of {rows} first tokens are equal, so a draw shared by a part of the rows"
    " would hardly show here. A more open prompt or more calls (`calls=16`) would show it.",
    "agree": "Rows of one call agree more often than rows of different calls, with a chance of {chance} in sound code. "
    "Likely some rows share a draw; ask for more calls (`calls=16`) to be sure.",
    "never": "The first token never varies, in no call. {advice}Likely its draw is greedy, or not made.",
    "inconclusive": "Inconclusive: the first token never varies, in no call. {advice}Likely it is drawn once and "
    "copied, or greedily, or the policy is sure of it: use an open prompt or a higher temperature, or give "
    "min_entropy and vocab.",
}
VARIES_LATER = "Position {position} is the first that varies: if the prompt is included, pass prompt_length={drop}. "
SEEDED = "All calls are alike, so a seed is set inside: change it between calls to tell the two apart. "
Rows = list[list[int]]


def first_token(
    generate: Callable[..., Any],
    *,
    num_samples: int = 16,
    calls: int = 4,
    prompt_length: int = 0,
    pad_token_id: int | None = None,
    vocab: int | None = None,
    min_entropy: float | None = None,
    false_alarm: float = 1e-6,
) -> Report:
    """Check `generate(num_samples)`, which must return that many completions **of one and the same prompt**.

    It may return a tensor [num_samples, T], a list of lists or of tensors, rows of unequal length, or one of
    these in a tuple's first place or under `.sequences`, `.tokens` or `.completion_ids`. If the rows begin with
    the prompt, say how many tokens to drop: `prompt_length` (left padding included). With `pad_token_id`, pads
    before the first real token are dropped too.

    It is called `calls` times. Copied first tokens are equal within a call and differ between calls. Rows that
    are equal from end to end, and calls that return other than `num_samples` rows, have hints of their own. A
    token copied within parts of a batch (each twice, or the same few over and over), or at a later position,
    is found the same way; so is one draw for most rows while the others are drawn.

    The chance of failing sound code (`.seen["false_alarm"]`) must be below `false_alarm`. With uniform logits
    over V symbols, `vocab=V`, it is V**(1 - num_samples) for one call. For a policy whose first token has at
    least `min_entropy` nats over `vocab` symbols it is bounded by Fano's inequality. With neither it is
    estimated from the first tokens of all calls together.

    **A policy can be sure of its first token.** The report is inconclusive, which is false but no accusation, where
    sound draws and copies look alike: the first token never varies over all the calls (unless `min_entropy` or
    `vocab` rules that policy out), in no call do two rows differ from the others, or rows of a call agree more often
    than those of different calls, but not by enough. Use a prompt whose first token is open, a higher temperature, or
    more calls. A pass without a caution excludes that half of the rows, or more, share a draw.

    Raises: ValueError names num_samples < 2, calls < 1, vocab < 2, or a min_entropy without a vocab that can have it.
    """
    if num_samples < 2 or calls < 1 or prompt_length < 0:
        raise ValueError(
            "first_token: expected num_samples >= 2, calls >= 1 and prompt_length >= 0, got "
            f"{num_samples}, {calls} and {prompt_length}"
        )
    if vocab is not None and vocab < 2:
        raise ValueError(f"first_token: a vocab of {vocab} leaves nothing to draw; expected 2 or more")
    if min_entropy is not None and (vocab is None or not 0 < min_entropy <= math.log(vocab) + 1e-9):
        raise ValueError(
            f"first_token: min_entropy={min_entropy} needs a vocab with log(vocab) of at least that, in nats, got "
            f"vocab={vocab}"
        )
    largest = None if vocab is None else _largest_probability(vocab, min_entropy)
    draws = _Draws(generate, num_samples, calls, prompt_length, pad_token_id, vocab, largest, false_alarm)
    return judged("first_token", CLAIM, generate, draws.judge)


@dataclass
class _Draws:
    generate: Callable[..., Any]
    num_samples: int
    calls: int
    prompt_length: int
    pad_token_id: int | None
    vocab: int | None
    largest: float | None  # no first token can be likelier than this
    alarm: float
    distinct: int = 0

    def judge(self, seen: dict[str, Any]) -> str:
        groups = [self._rows(attempt(self.generate, self.num_samples)) for _ in range(self.calls)]
        # The same call again is no new evidence.
        different = {tuple(map(tuple, rows)): k for k, rows in enumerate(groups)}
        self.distinct = len(different)
        length = min(max(len(row) for rows in groups for row in rows), LOOKED_AT)
        columns = [[_column(rows, t) for rows in groups] for t in range(length)]
        seen |= {
            "rows": self.num_samples,
            "calls": self.calls,
            "first_token_unique": [len(set(c)) for c in columns[0]],
            "first_token_unique_overall": len({token for c in columns[0] for token in c}),
            "calls_alike": self.calls > 1 and all(rows == groups[0] for rows in groups),
            "second_token_unique": [len(set(c)) for c in columns[1]] if length > 1 else [],
            "false_alarm": _power_of_ten(self._log10_chance(columns[0], self.num_samples, 0)),
        }
        return self._cause(groups, columns, seen) or self._partly_shared(
            [columns[0][k] for k in different.values()], seen
        )

    def _cause(self, groups: list[Rows], columns: list[list[list[int]]], seen: dict[str, Any]) -> str:
        everything = [tuple(row) for rows in groups for row in rows]
        longer = len(columns) > 1
        alike = first(
            HINTS,
            {
                "zeros": longer and not any(map(any, everything)),
                "greedy": longer and len(set(everything)) == 1,
                "one completion": longer and all(len({tuple(r) for r in rows}) == 1 for rows in groups),
            },
        )
        if alike:
            return alike
        for t, column in enumerate(columns):
            for size, how in _sharing(column, self.num_samples):
                log_chance = self._log10_chance(column, size, t)
                if log_chance < math.log10(self.alarm) and len({x for c in column for x in c}) > 1:
                    seen["position"], seen["chance_of_that"] = t + 1, _power_of_ten(log_chance)
                    return _shared(t, size, how, self.num_samples)
        return self._never_varies(columns, seen) if seen["first_token_unique_overall"] == 1 else ""

    def _never_varies(self, columns: list[list[list[int]]], seen: dict[str, Any]) -> str:
        later = next((t for t, c in enumerate(columns) if len({x for call in c for x in call}) > 1), None)
        advice = VARIES_LATER.format(position=later + 1, drop=self.prompt_length + later) if later else ""
        chance = self._log10_chance(columns[0], self.num_samples, 0)
        if self.largest is not None and chance < math.log10(self.alarm):
            return HINTS["never"].format(advice=advice)
        advice += SEEDED if seen["calls_alike"] and later else ""
        return self._undecided("inconclusive", seen, advice=advice)

    def _partly_shared(self, calls: list[list[int]], seen: dict[str, Any]) -> str:
        """One draw for most rows of a call, and draws of their own for the others. `calls`: their first tokens."""
        alike = [max(Counter(call).values()) for call in calls]  # rows with the commonest first token
        fewest, n = min(alike), self.num_samples
        log_chance = self._log10_chance_of(alike, calls)
        seen["most_alike"] = alike
        if log_chance < math.log10(self.alarm) and len(calls) > 1:
            seen["chance_of_that"] = _power_of_ten(log_chance)
            return HINTS["most rows"].format(alike=fewest, rows=n)
        if fewest >= max(2, n - 1) or (len(calls) == 1 and fewest >= max(2, n // 2)):
            return self._undecided("too alike", seen, alike=fewest, rows=n)
        agreement = _chance_of_agreement(calls)
        if agreement < SUSPICIOUS:
            return self._undecided("agree", seen, chance=f"{agreement:.1g}")
        return Caution(HINTS["in part"].format(alike=fewest, rows=n)) if fewest >= max(2, n / 2) else ""

    def _undecided(self, name: str, seen: dict[str, Any], **words: Any) -> Inconclusive:
        seen["conclusive"] = False
        return Inconclusive(HINTS[name].format(**words))

    def _log10_chance_of(self, alike: list[int], calls: list[list[int]]) -> float:
        """log10 of the chance that sound calls have tokens as common as these (Fisher's combination of the calls)."""
        n, pooled = self.num_samples, Counter(token for call in calls for token in call)
        total, log = sum(pooled.values()), 0.0
        for k in alike:
            if self.largest is not None:
                chance = math.comb(n, k) * self.largest ** (k - 1)
            else:
                chance = sum(_at_least(k, n, count / total) for count in pooled.values())
            log += math.log(min(chance, 1.0))
        of_all = torch.special.gammaincc(*torch.tensor([float(len(alike)), -log], dtype=torch.float64))
        return math.log10(max(float(of_all), 1e-300))

    def _log10_chance(self, column: list[list[int]], size: int, position: int) -> float:
        """log10 of the chance that sound sampling gives blocks of `size` equal tokens throughout."""
        blocks = self.distinct * self.num_samples // size
        if self.largest is not None and position == 0:
            return blocks * (size - 1) * math.log10(self.largest)
        pooled = Counter(token for c in column for token in c)
        total = sum(pooled.values())
        logs = torch.tensor([size * math.log(count / total) for count in pooled.values()], dtype=torch.float64)
        return blocks * float(logs.logsumexp(0)) / math.log(10)

    def _rows(self, result: Any) -> Rows:
        rows = [row[self.prompt_length :] for row in _token_rows(result)]
        if len(rows) != self.num_samples:
            raise CannotJudge(
                f"generate({self.num_samples}) must return {self.num_samples} rows. Likely the batch is not "
                "expanded to num_samples, or rows are dropped when they finish.",
                rows=len(rows),
                asked=self.num_samples,
            )
        if self.pad_token_id is not None:
            rows = [_without_leading(row, self.pad_token_id) for row in rows]
        if not any(rows):
            raise CannotJudge(
                "No row has a token left. Likely nothing is generated, or prompt_length is too large.",
                rows=len(rows),
                prompt_length=self.prompt_length,
            )
        largest = max(token for row in rows for token in row)
        if self.vocab is not None and largest >= self.vocab:
            raise CannotJudge(
                "A token id is outside the vocabulary. Likely ids are shifted by one, or vocab is wrong.",
                largest_id=largest,
                vocab=self.vocab,
            )
        return rows


def _at_least(k: int, n: int, p: float) -> float:
    """The chance of k or more of n, each with probability p."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


def _chance_of_agreement(calls: list[list[int]], trials: int = 2000) -> float:
    """How often rows dealt to the calls anew agree within a call as much as these do; 1 / trials at the least.

    Sound draws do not know which call they are in: any other deal was as likely.
    """
    number = {token: i for i, token in enumerate({token for call in calls for token in call})}
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


def _shared(position: int, size: int, how: str, num_samples: int) -> str:
    which = "The first token" if position == 0 else f"The token at position {position + 1}"
    hint = HINTS["one draw"] if size == num_samples else HINTS["shared"]
    return hint.format(which=which, how=how, size=size, draws=num_samples // size)


def _sharing(column: list[list[int]], n: int) -> Iterator[tuple[int, str]]:
    """(size, how) of each way in which every call's column repeats itself, the largest first."""
    for size in range(n, 1, -1):
        if n % size:
            continue
        count = n // size
        if all(c[i] == c[i - i % size] for c in column for i in range(n)):
            yield size, "runs"
        elif all(c[i] == c[i % count] for c in column for i in range(n)):
            yield size, "cycles"


def _largest_probability(vocab: int, min_entropy: float | None) -> float:
    """The likeliest symbol's probability can be no larger, given the entropy in nats (Fano's inequality)."""
    if min_entropy is None:
        return 1 / vocab
    low, high = 1 / vocab, 1.0
    for _ in range(60):
        p = (low + high) / 2
        entropy = -p * math.log(p) - (1 - p) * math.log((1 - p) / (vocab - 1)) if p < 1 else 0.0
        low, high = (p, high) if entropy > min_entropy else (low, p)
    return high


def _power_of_ten(log10: float) -> str:
    return f"1e{math.floor(log10)}" if log10 < -3 else f"{10**log10:.2g}"


def _column(rows: Rows, t: int) -> list[int]:
    return [row[t] if t < len(row) else ENDED for row in rows]


def _without_leading(row: list[int], pad: int) -> list[int]:
    start = next((i for i, token in enumerate(row) if token != pad), len(row))
    return row[start:]


def _token_rows(result: Any) -> Rows:
    """Whatever a sampler returns, as lists of ints."""
    expected = "Expected token ids: a tensor [num_samples, T] or a list of lists."
    for name in WRAPPERS:
        if isinstance(result, Mapping) and name in result:
            result = result[name]
        elif not isinstance(result, (Mapping, torch.Tensor, list, tuple)) and hasattr(result, name):
            result = getattr(result, name)
    if isinstance(result, tuple) and result and not isinstance(result[0], int):
        result = result[0]
    if hasattr(result, "__array__") and not isinstance(result, torch.Tensor):
        result = torch.as_tensor(result)
    if isinstance(result, torch.Tensor):
        while result.dim() > 2 and 1 in result.shape:
            result = result.squeeze(list(result.shape).index(1))
        if result.dim() not in (1, 2):
            raise CannotJudge(expected, returned=f"tensor of shape {list(result.shape)}")
        return [_ints(row, expected) for row in result]
    if result is None:
        raise CannotJudge(expected + " Likely not written yet, or the return is missing.", returned="None")
    if not isinstance(result, (list, tuple)) or not result:
        raise CannotJudge(expected, returned=type(result).__name__)
    if len(result) == 1 and isinstance(result[0], (list, tuple)) and isinstance(result[0][0], (list, tuple)):
        result = result[0]
    return [_ints(row, expected) for row in result]


def _ints(row: Any, expected: str) -> list[int]:
    if isinstance(row, torch.Tensor):
        row = row.detach().reshape(-1).tolist()
    row = [row] if isinstance(row, (int, float)) else row
    if isinstance(row, str) or not isinstance(row, (list, tuple)):
        raise CannotJudge(expected, returned=f"rows of type {type(row).__name__}")
    try:
        numbers = [float(x) for x in row]
    except (TypeError, ValueError):
        raise CannotJudge(expected, returned=f"a row of {type(row[0]).__name__}") from None
    if any(x != int(x) for x in numbers):
        raise CannotJudge(expected + " These are not whole numbers; likely logits.", returned="fractions")
    return [int(x) for x in numbers]
