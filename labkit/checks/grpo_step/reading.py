"""From the gradient in the table to the weight of every token: d loss / d log-prob, one by one.

A loss that goes through the log-prob of token y leaves (onehot(y) - p) / T in its cell, times the
weight; one that goes through the entropy leaves another vector. Both are fitted to each cell. What
they do not explain is `left`. This file does not say what a weight should be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .probe import VOCABULARY, Probe, cells_of_completion, prompt_lengths

EXACT = 1e-3  # left over of a gradient in float32
ROUNDED = 3e-2  # of one that went through bfloat16 or float16
FAINT = 1e-5  # of the largest weight: as good as none


@dataclass(frozen=True)
class Reading:
    """What one backward pass left in the table.

    weights      [B, C] d loss / d log-prob of each token of a completion
    prompt       [B, P] of each token of a prompt, from its second on
    behind       [B, ...] of what stands behind the batch's last column
    entropies    [B, C] d loss / d entropy of each token's distribution
    left         0..1, the part of the gradient that is neither
    temperature  the logits are divided by it
    shift        0; 1: a token is scored with the logits that follow it; -1: with those one earlier
    rounded      the logits went through bfloat16 or float16
    stray        0..1, the part of the gradient at tokens that belong to no row
    """

    weights: Tensor
    prompt: Tensor
    behind: Tensor
    entropies: Tensor
    left: float
    temperature: float
    shift: int
    rounded: str
    stray: float

    @property
    def tolerance(self) -> float:
        if self.rounded:
            return ROUNDED
        return EXACT

    @property
    def clear(self) -> bool:
        return self.left < self.tolerance


def read(gradient: Tensor, table: Tensor, probe: Probe) -> Reading:
    """Read the gradient at the temperature and the shift that leave the least of it unexplained."""
    gradient, table = gradient.detach().cpu().double(), table.detach().cpu().double()
    rounded = _rounded(gradient)
    best: Reading | None = None
    for temperature, shift in _usual(probe.temperature):
        reading = _read(gradient, table, probe, temperature, shift, rounded)
        if reading.clear:
            return reading
        if best is None or reading.left < best.left:
            best = reading
    for shift in (0, 1, -1):
        temperature = _fitting_temperature(gradient, table, probe, shift)
        reading = _read(gradient, table, probe, temperature, shift, rounded)
        if reading.clear:
            return reading
    assert best is not None
    return best


def _usual(temperature: float) -> Iterator[tuple[float, int]]:
    """The right way of scoring, and the mistakes, the likeliest first."""
    yield temperature, 0
    temperatures = [1.0, temperature**2, 1 / temperature]
    yield from ((other, 0) for other in temperatures)
    for shift in (1, -1):
        yield temperature, shift
        yield from ((other, shift) for other in temperatures)


def _rounded(gradient: Tensor) -> str:
    """The half precision in which every number of the gradient can be written, if there is one."""
    numbers = gradient[gradient != 0].float()
    for name in ("bfloat16", "float16"):
        if len(numbers) and bool((numbers.to(getattr(torch, name)).float() == numbers).all()):
            return name
    return ""


def _fitting_temperature(gradient: Tensor, table: Tensor, probe: Probe, shift: int) -> float:
    """A temperature between 1/8 and 8 that leaves the least, by narrowing a grid."""
    low, high = -3.0, 3.0
    for _ in range(9):
        grid = torch.linspace(low, high, 13).tolist()
        lefts = []
        for power in grid:
            lefts.append(_read(gradient, table, probe, 2.0**power, shift, "").left)
        at = lefts.index(min(lefts))
        low, high = grid[max(at - 1, 0)], grid[min(at + 1, 12)]
    return 2.0 ** ((low + high) / 2)


def _read(
    gradient: Tensor, table: Tensor, probe: Probe, temperature: float, shift: int, rounded: str
) -> Reading:
    count, length = len(probe.sequences), table.shape[1]
    # The next token of each cell. Shifted by one, it is the cell's own.
    targets = torch.tensor([row[: length + 1] for row in probe.sequences])
    targets = targets.roll(shift - 1, 1)[:, :length]
    logp = (table[:count] / temperature).log_softmax(-1)
    p = logp.exp()
    along_token = (F.one_hot(targets, VOCABULARY).double() - p) / temperature
    entropy = -(p * logp).sum(-1, keepdim=True)
    along_entropy = -p * (logp + entropy) / temperature
    cells = gradient[:count]
    weight, entropies = _two_directions(cells, along_token, along_entropy)
    rest = cells - weight[..., None] * along_token - entropies[..., None] * along_entropy
    whole = gradient.norm().clamp(min=1e-300)
    stray = float(gradient[count].norm() / whole)
    at = cells_of_completion(probe.batch["completion_ids"].shape[1]) + shift
    rows = torch.arange(count)[:, None]
    before, behind = weight.clone(), weight.clone()
    # What is left of `before` is the prompts', what is left of `behind` comes after the last
    # column.
    for row, prompt in enumerate(prompt_lengths()):
        before[row, max(prompt - 1 + shift, 0) :] = 0
        behind[row, : int(at[row, -1]) + 1] = 0
    return Reading(
        weights=weight[rows, at],
        prompt=before,
        behind=behind,
        entropies=entropies[rows, at],
        left=float(rest.norm() / whole),
        temperature=temperature,
        shift=shift,
        rounded=rounded,
        stray=stray,
    )


def _two_directions(cells: Tensor, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """Least squares of each cell along two vectors; the second only where the first leaves
    something.
    """
    first = (cells * one).sum(-1) / (one * one).sum(-1)
    rest = cells - first[..., None] * one
    enough = rest.norm() < 1e-5 * cells.norm()
    if bool(enough):
        return first, torch.zeros_like(first)
    pairs = torch.stack([one, two], -1)  # [B, L, V, 2]
    solved = torch.linalg.lstsq(pairs, cells[..., None]).solution[..., 0]
    return solved[..., 0], solved[..., 1]
