"""Does a sampler draw the first token of every row separately, or draw one and copy it?

It looks at tokens only. A copied token and a policy that is sure of its first token can look alike; then it says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .report import PASS, CannotJudge, Report, Verdict, attempt, caution, fail, inconclusive, judged

CLAIM = "each row draws its own first token"
ENDED = -1  # stands where a row has no token any more
FALSE_ALARM = -6  # log10: the chance of failing sound code is below this
FIX = "Expand the logits to num_samples rows, then draw for each."
Rows = list[list[int]]  # in a call: row, position. As `calls`: the first tokens of each call


def first_token(
    generate: Callable[..., Any], *, num_samples: int = 16, calls: int = 4, prompt_length: int = 0, prompts: int = 1
) -> Report:
    """Check `generate(num_samples)`, which must return that many completions **of one and the same prompt**.

    It may return a tensor [num_samples, T] or a list of rows, of unequal length too, or one of these in a tuple's first
    place or under `.sequences`.

        num_samples    rows to ask for in each call
        calls          how often; copied first tokens are equal within a call and differ between calls
        prompt_length  tokens to drop, if the rows begin with the prompt (left padding included)
        prompts        with more than one, `generate(num_samples)` returns that many rows of each, the rows of a prompt
                       next to each other: where the prompts' first tokens differ, another order shows

    A token copied within parts of a batch, or to most rows, is found the same way, and so are rows that are made
    different by force. `.seen["false_alarm"]` is the chance that sound code fails, estimated from all the calls.

    **A policy can be sure of its first token.** The report is inconclusive, which is false but no accusation, where
    sound draws and copies look alike. Use a prompt whose first token is open, a higher temperature, or more calls. A
    pass without a caution excludes that half of the rows, or more, share a draw.

    Raises: ValueError names num_samples < 2, calls < 1, prompt_length < 0 or prompts < 1.
    """
    if num_samples < 2 or calls < 1 or prompt_length < 0 or prompts < 1:
        raise ValueError("first_token: expected num_samples >= 2, calls >= 1, prompt_length >= 0 and prompts >= 1")

    def judge(evidence: dict[str, Any]) -> Verdict:
        groups = []
        for _ in range(calls):
            rows = [row[prompt_length:] for row in token_rows(attempt(generate, num_samples))]
            if len(rows) != prompts * num_samples:
                must = f"generate({num_samples}) must return {prompts * num_samples} rows"
                hint = f"{must}. Likely the batch is not expanded."
                raise CannotJudge(hint, rows=len(rows))
            if not any(rows):
                hint = "No row has a token left. Likely nothing is generated, or prompt_length is too large."
                raise CannotJudge(hint, tokens=0)
            groups.append(rows)
        if prompts == 1:
            return _judge(groups, prompt_length, evidence)
        order = _in_order(_at(groups, 0), prompts, evidence)
        if order.kind == "fail":
            return order
        for prompt in range(prompts):
            mine = slice(prompt * num_samples, (prompt + 1) * num_samples)
            verdict = _judge([rows[mine] for rows in groups], prompt_length, evidence)
            if verdict.kind != "pass":
                return Verdict(verdict.kind, f"Prompt {prompt + 1}: {verdict.text}")
        return order

    return judged("first_token", CLAIM, generate, judge)


def _judge(groups: list[Rows], prompt_length: int, evidence: dict[str, Any]) -> Verdict:
    n = len(groups[0])
    calls = _at(groups, 0)
    values = {token for call in calls for token in call}
    calls_alike = len(groups) > 1 and all(rows == groups[0] for rows in groups)
    different = []  # the same call again, from a seed that is set inside, is no new evidence
    for place, rows in enumerate(groups):
        if rows not in groups[:place]:
            different.append(calls[place])
    evidence |= {"rows": n, "calls": len(calls), "first_token_unique": [len(set(call)) for call in calls]}
    evidence["calls_alike"] = calls_alike
    evidence["false_alarm"] = _power_of_ten(_log10_of_blocks(different, n))

    whole_rows = _whole_rows(groups)
    if whole_rows:
        return fail(whole_rows)
    if len(values) == 1:
        return _never_varies(groups, prompt_length, calls_alike)
    for size in _sharing(calls):
        log_chance = _log10_of_blocks(different, size)
        if log_chance < FALSE_ALARM:
            evidence["chance_of_that"] = _power_of_ten(log_chance)
            if size < n:
                return fail(f"First tokens come in {size} equal ones. Likely {n // size} are drawn and copied. {FIX}")
            return fail(
                "The first token is the same in all rows of a call and differs between calls: it is drawn once and "
                f"copied. Likely the prefill runs at batch 1, and its one token is repeated. {FIX}"
            )
    return _made_different(different) or _partly_shared(different, evidence)


def _at(groups: list[Rows], position: int) -> Rows:
    """The tokens at one position: call, row."""
    return [[row[position] if position < len(row) else ENDED for row in rows] for rows in groups]


def _in_order(calls: Rows, prompts: int, evidence: dict[str, Any]) -> Verdict:
    """Whether the rows of a prompt are next to each other: by which grouping first tokens are told apart best."""
    n = len(calls[0]) // prompts
    adjacent = [[token for call in calls for token in call[p * n : (p + 1) * n]] for p in range(prompts)]
    strided = [[token for call in calls for token in call[p::prompts]] for p in range(prompts)]
    pooled = _log_likelihood([[token for call in calls for token in call]])
    gains = [_log_likelihood(groups) - pooled for groups in (adjacent, strided)]
    evidence["nats, rows of a prompt adjacent"], evidence["nats, strided"] = gains
    freedom = (prompts - 1) * len({token for call in calls for token in call})
    if gains[1] > gains[0] + 14:  # e^-14: the chance that sound rows look so
        return fail(
            "The rows come in another order: those of a prompt are strided, not next to each other. Likely "
            "`repeat(n, 1)` where `repeat_interleave(n, 0)` belongs: rewards are compared across prompts."
        )
    if gains[0] < freedom + 14:
        return caution("The prompts' first tokens are alike, so the order of the rows does not show.")
    return PASS


def _log_likelihood(groups: Rows) -> float:
    """Of the tokens, when each group has its own frequencies; nats."""
    total = 0.0
    for group in groups:
        for count in Counter(group).values():
            total += count * math.log(count / len(group))
    return total


def _whole_rows(groups: list[Rows]) -> str:
    """What is wrong with the rows as a whole; one token alone says nothing of that."""
    if max(len(row) for rows in groups for row in rows) < 2:
        return ""
    if any(row != rows[0] for rows in groups for row in rows):
        return ""
    if all(rows == groups[0] for rows in groups):
        return "Every row of every call is the same. Likely greedy decoding, or a seed that is set before each row."
    text = "The rows of a call are the same from end to end, and calls differ: one completion is copied to all rows"
    return f"{text}, or its first token is, and the policy is sure of the rest."


def _never_varies(groups: list[Rows], prompt_length: int, calls_alike: bool) -> Verdict:
    text = "The first token never varies. Likely it is drawn once and copied, or greedily, or the policy is sure of it."
    text += " Use an open prompt or a higher temperature."
    if calls_alike:
        text += " All calls are alike, so a seed is set inside: change it between calls."
    for position in range(1, max(len(row) for rows in groups for row in rows)):
        if len({token for call in _at(groups, position) for token in call}) > 1:
            text += f" If the prompt is included, pass prompt_length={prompt_length + position}: there it varies."
            break
    return inconclusive(text)


def _made_different(calls: Rows) -> Verdict | None:
    """Whether no two rows of a call agree, and rows of different calls do: drawn without replacement, or by rank."""
    if any(len(set(call)) < len(call) for call in calls):
        return None
    total = Counter(token for call in calls for token in call)
    agreeing = sum(count * (count - 1) for count in total.values()) / 2  # all of them between calls
    n = len(calls[0])
    between = n * n * len(calls) * (len(calls) - 1) / 2
    expected = agreeing / max(between, 1) * len(calls) * n * (n - 1) / 2  # pairs of a call that should agree
    if expected < 20:  # where they are rare, none has a chance of about exp(-expected)
        return None
    return fail(
        "No two rows of a call begin with the same token, and rows of different calls do. Likely the tokens are drawn "
        "without replacement, or taken by rank: rare ones come far too often. Draw each row for itself."
    )


def _partly_shared(calls: Rows, evidence: dict[str, Any]) -> Verdict:
    """One draw for most rows of a call, and draws of their own for the others."""
    n = len(calls[0])
    alike = [max(Counter(call).values()) for call in calls]  # rows with the commonest first token
    fewest = min(alike)
    equal = f"In every call at least {fewest} of {n} rows have the same first token"
    log_chance = _log10_of_alike(alike, calls)
    if log_chance < FALSE_ALARM and len(calls) > 1:
        evidence["chance_of_that"] = _power_of_ten(log_chance)
        return fail(f"{equal}, other calls have others. Likely one draw is copied to many rows. {FIX}")
    if fewest >= max(2, n - 1) or (len(calls) == 1 and fewest >= max(2, n // 2)):
        return inconclusive(
            f"{equal}. So looks one draw copied to as many rows, and so do sound draws of a nearly sure policy: "
            "use an open prompt, a higher temperature, or more calls (`calls=16`)."
        )
    if fewest >= max(2, n / 2):
        return caution(f"{equal}, so a draw shared by a part of the rows would show in more calls only (`calls=16`).")
    return PASS


def _log10_of_alike(alike: list[int], calls: Rows) -> float:
    """log10 of the chance that sound calls have tokens as common as these (Fisher's combination of the calls)."""
    n, pooled = len(calls[0]), Counter(token for call in calls for token in call)
    total, log = sum(pooled.values()), 0.0
    for k in alike:
        chance = sum(_at_least(k, n, count / total) for count in pooled.values())
        log += math.log(min(chance, 1.0))
    of_all = torch.special.gammaincc(*torch.tensor([float(len(alike)), -log], dtype=torch.float64))
    return math.log10(max(float(of_all), 1e-300))


def _log10_of_blocks(calls: Rows, size: int) -> float:
    """log10 of the chance that sound sampling gives blocks of `size` equal tokens throughout."""
    blocks = len(calls) * len(calls[0]) // size
    pooled = Counter(token for call in calls for token in call)
    total = sum(pooled.values())
    logs = torch.tensor([size * math.log(count / total) for count in pooled.values()], dtype=torch.float64)
    return blocks * float(logs.logsumexp(0)) / math.log(10)


def _power_of_ten(log10: float) -> str:
    return f"1e{math.floor(log10)}" if log10 < -3 else f"{10**log10:.2g}"


def _at_least(k: int, n: int, p: float) -> float:
    """The chance of k or more of n, each with probability p."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


def _sharing(calls: Rows) -> Iterator[int]:
    """How many rows share a token, where every call repeats itself in runs or in cycles; the largest first."""
    n = len(calls[0])
    for size in range(n, 1, -1):
        if n % size:
            continue
        runs = all(call[i] == call[i - i % size] for call in calls for i in range(n))
        if runs or all(call[i] == call[i % (n // size)] for call in calls for i in range(n)):
            yield size


def token_rows(result: Any) -> Rows:
    """Whatever a sampler returns, as lists of ints."""
    expected = "Expected token ids: a tensor [num_samples, T] or a list of lists."
    result = _listed(getattr(result, "sequences", result))
    if isinstance(result, tuple) and result and (len(result) == 2 or _nested(_listed(result[0]))):
        result = _listed(result[0])  # (rows, masks)
    if result is None:
        raise CannotJudge(expected + " Likely not written yet, or the return is missing.", returned="None")
    if not isinstance(result, (list, tuple)) or not result:
        raise CannotJudge(expected, returned=type(result).__name__)
    rows = [_listed(row) for row in result]
    if len(rows) == 1 and _nested(rows[0]):
        rows = rows[0]  # [1, num_samples, T]
    numbers = []
    for row in rows:
        row = list(row) if isinstance(row, (list, tuple)) else [row]
        try:
            whole = [int(x) for x in row]
        except (TypeError, ValueError):
            whole = []
        if whole != row:
            raise CannotJudge(expected + " These are not whole numbers.", returned="other things than whole numbers")
        numbers.append(whole)
    return numbers


def _nested(value: Any) -> bool:
    """Whether it is a list of rows."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and isinstance(_listed(value[0]), (list, tuple))


def _listed(value: Any) -> Any:
    """A tensor or an array as lists, anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value
