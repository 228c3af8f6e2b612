"""The checks of lesson 10's exercises: rows and draws of each process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.checks import Report

ROWS = 200
WORLDS = (1, 2, 4, 8)
Dealt = tuple[list[str], torch.Generator]


def judge_deal(my_deal: Callable[..., Any], deal: Callable[..., Dealt]) -> Report:
    """Is every row of `deal` on one process, as many on each, and does each process draw for itself?"""
    hint = ""
    for world in WORLDS:
        for seed in (3, 4):
            hint = hint or fault_of(my_deal, deal, world, seed)
    if not hint and first_draws(my_deal(0, 2, 3)) == first_draws(my_deal(0, 2, 4)):
        hint = "Process 0 draws the same with seeds 3 and 4. Another seed should be another run."
    return Report("my_deal", "each row on one process, and no two draw alike", not hint, {}, hint)


def fault_of(my_deal: Callable[..., Any], deal: Callable[..., Dealt], world: int, seed: int) -> str:
    """A sentence about what is wrong with this deal; an empty one if nothing is."""
    dealt = [my_deal(rank, world, seed) for rank in range(world)]
    for one in dealt:
        if not isinstance(one, tuple) or len(one) != 2 or not isinstance(one[1], torch.Generator):
            return "Return two things, as `deal` does: a list of rows, and a torch.Generator."
    asked = f"With {world} processes"
    parts = [list(rows) for rows, _ in dealt]
    lengths = [len(part) for part in parts]
    if len(set(lengths)) > 1:
        return f"{asked} they get {lengths} rows. The ones with more would wait for the others."
    wanted, _ = deal(0, 1, seed)
    found: Counter[str] = Counter()
    for part in parts:
        found.update(part)
    if found != Counter(wanted):
        twice = sum((found - Counter(wanted)).values())
        lost = sum((Counter(wanted) - found).values())
        return (
            f"{asked}, of {ROWS} rows {lost} are on no process, and {twice} stand once too often."
        )
    draws = [first_draws(one) for one in dealt]
    if len(set(draws)) < world:
        return f"{asked}, two have rows of their own and the same draws."
    again = [my_deal(rank, world, seed) for rank in range(world)]
    if [list(rows) for rows, _ in again] != parts or [first_draws(one) for one in again] != draws:
        return (
            "Called again with the same arguments, it deals otherwise: the run cannot be repeated."
        )
    return ""


def first_draws(dealt: Sequence[Any]) -> tuple[float, ...]:
    """The first numbers of a deal's generator; the generator stays where it was."""
    generator = dealt[1]
    state = generator.get_state()
    numbers = torch.rand(4, generator=generator, device=generator.device)
    generator.set_state(state)
    return tuple(numbers.tolist())
