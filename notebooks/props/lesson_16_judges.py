"""Page 16: the judges of its exercises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from props.diagnosis import fault_of, report_of
from props.lesson_16 import ADD
from props.scorers import unseen

from labkit import checks
from labkit.grpo.policy import Policy

MASKS = (
    # one row, without pads
    [[1, 1, 1, 1]],
    # on the left
    [[0, 0, 1, 1, 1], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1]],
    # on both sides, on the right, on the left
    [[0, 0, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1]],
    # one token that counts
    [[0, 0, 0, 0, 0, 0, 0, 1]],
)


def judge_positions(positions: Callable[[torch.Tensor], Any]) -> checks.Report:
    """Do the tokens that count get 0, 1, 2 and so on in each row, and the pads positions that exist?"""
    hints = []
    for rows in MASKS:
        for mask in (torch.tensor(rows), torch.tensor(rows).bool()):
            given = mask.clone()
            hints.append(fault_of_positions(positions(given), mask))
            if not torch.equal(given, mask):
                hints.append("It changed the mask that it was given.")
    hint = next(filter(None, hints), "")
    return checks.Report("my_positions", "numbers the tokens that count", not hint, {}, hint)


def fault_of_positions(found: Any, mask: torch.Tensor) -> str:
    """A sentence about the first row of positions that is wrong; an empty one if none is."""
    if not isinstance(found, torch.Tensor):
        return f"It returned {type(found).__name__}. Return a tensor as large as the mask."
    if found.shape != mask.shape:
        return f"It returned {tuple(found.shape)}. Return a tensor as large as the mask."
    if found.dtype != torch.long:
        return f"A table is looked up by torch.long, and it returned {found.dtype}."
    for line, counts in zip(found, mask.bool(), strict=True):
        asked = f"For the mask {counts.long().tolist()} it returned {line.tolist()}."
        if not torch.equal(line[counts], torch.arange(int(counts.sum()))):
            return f"{asked} The tokens that count should get 0, 1, 2 and so on."
        if line.min() < 0 or line.max() >= len(line):
            return f"{asked} A pad's position should be from 0 to T − 1."
    return ""


def judge_cause(cause_of: Callable[..., str], policy: Policy, seed: int) -> checks.Report:
    """How many of the unseen scorers the reader's function names. Its rows are sums with their right answers."""
    prompts = [prompt for prompt in ADD.held_out() if len(ADD.answer(prompt)) == 2][:6]
    texts = [prompt + ADD.answer(prompt) for prompt in prompts]
    ids = torch.tensor(policy.tokenizer(texts)["input_ids"], device=policy.device)  # [6, 8]
    faults = []
    for cause, score in unseen(policy, seed):
        answer = cause_of(score, ids.clone(), torch.ones_like(ids), 2)
        faults.append(fault_of(answer, cause))
    return report_of(faults, "my_cause", "names the unseen scorers", "Scorer")
