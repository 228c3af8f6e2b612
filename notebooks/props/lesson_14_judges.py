"""Page 14: the judges of its exercises, and the losses that the last one is tried on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from props.diagnosis import report_of

from labkit import checks
from labkit.grpo import loss

# logp [B, T], old_logp [B, T], advantages [B], mask [B, T] -> the loss, a scalar
LossOf = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# how far below 1 the ratio may go in the unseen losses: somewhere from the first to the second number
RANGES = ((2e-4, 2e-3), (5e-3, 5e-2), (0.1, 0.4))
NO_LOWER_END = 1.0  # the ratio may go to 0


# ------------------------------------------------------------------------------------------------------- my_reading


def loss_with(level: str, below: float) -> LossOf:
    """A policy loss that can be called with tensors of one's own: the ratio of each "token" or of the "sequence".

    below   how far below 1 the ratio may go; 1: to 0, there is no lower end
    """
    above = 2 * below  # another one, so that it does not pass for the lower one
    clip = (below, above)

    def of_tokens(
        logp: torch.Tensor, old_logp: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        each = loss.grpo(logp, old_logp, advantages, clip=clip)
        return loss.token_mean(each.loss, mask, float(mask.sum()))

    def of_sequences(
        logp: torch.Tensor, old_logp: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        each = loss.gspo(logp, old_logp, advantages, mask, clip=clip)
        return loss.sequence_mean(each.loss, mask, len(mask))

    return {"token": of_tokens, "sequence": of_sequences}[level]


def unseen_losses(seed: int) -> list[tuple[str, float]]:
    """Level and lower end of eight losses: each level with three ranges and with none, as the seed decides."""
    draws = torch.Generator().manual_seed(seed)
    cases = []
    for level in ("token", "sequence"):
        for low, high in RANGES:
            share = float(torch.rand((), generator=draws))
            cases.append((level, low * (high / low) ** share))
        cases.append((level, NO_LOWER_END))
    order = torch.randperm(len(cases), generator=draws).tolist()
    return [cases[at] for at in order]


def judge_reading(reading: Callable[[LossOf], Any], seed: int) -> checks.Report:
    """Of how many unseen losses does it say whose ratio they hold, and, within a tenth, how far below 1?"""
    faults = []
    for level, below in unseen_losses(seed):
        answer = reading(loss_with(level, below))
        faults.append(fault_of_reading(answer, level, below))
    return report_of(faults, "my_reading", "reads unseen losses", "Loss")


def fault_of_reading(answer: Any, level: str, below: float) -> str:
    """What is wrong with an answer; empty where nothing is."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        return f"it returned {answer!r}. A pair is expected: whose ratio, how far below 1."
    whose, end = answer
    if whose != level:
        return f"it says {whose!r}, and the ratio is that of the {level}."
    if not isinstance(end, int | float):
        return f"how far below 1 is a {type(end).__name__}. A number is expected."
    # "not <=": NaN is wrong, too
    if not abs(end - below) <= 0.1 * below:
        end_of_range = f"{below:.3g} below 1"
        if below == NO_LOWER_END:
            end_of_range += " (there is no lower end)"
        return f"it says {end:.3g}, and this {level}'s ratio may fall {end_of_range}."
    return ""


# --------------------------------------------------------------------------------------------------------- my_range


def judge_range(range_of: Callable[[torch.Tensor], Any]) -> checks.Report:
    """Is the range 0.2 divided by each answer's own counted tokens, at both ends, for lengths of 1 to 16?"""
    lengths = torch.tensor([16, 1, 15, 2, 7])
    hint = ""
    for width in (16, 20):  # at 20 every row is padded
        mask = (torch.arange(width) < lengths[:, None]).long()
        hint = fault_of_range(range_of(mask), lengths.tolist(), width)
        if hint:
            break
    claim = "0.2 divided by the number of the answer's own tokens that count"
    return checks.Report("my_range", claim, not hint, {}, hint)


def fault_of_range(answer: Any, lengths: list[int], width: int) -> str:
    """What is wrong with a range for answers of these lengths in a mask of this width; empty where nothing is."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        return f"It returned {type(answer).__name__}. A pair (below, above) is expected."
    for name, end in zip(("below", "above"), answer, strict=True):
        expected = f"{name}: expected a tensor [{len(lengths)}, 1], a number for each answer."
        if not isinstance(end, torch.Tensor):
            return f"{expected} It is {type(end).__name__}."
        if end.shape != (len(lengths), 1):
            return f"{expected} It is {list(end.shape)}."
        for length, given in zip(lengths, end[:, 0].tolist(), strict=True):
            wanted = 0.2 / length
            if not abs(given - wanted) <= 1e-6:
                where = f"For an answer of {length} tokens in a mask [{len(lengths)}, {width}]"
                return f"{where} {name} is {given:.4g}. It should be {wanted:.4g}."
    return ""
