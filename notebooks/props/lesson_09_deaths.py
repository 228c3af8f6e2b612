"""Page 09: deaths by a bad index whose cause is known. Every one is run, on small models of drawn sizes, on the CPU.

What is shown of a death is what its owner could print: the message, the ids, and the sizes of all tables.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from props.diagnosis import Log, shuffled

NAMES = ("policy", "reference", "reward model")


def unseen_deaths(seed: int) -> list[tuple[str, Log]]:
    """(cause, what is known of the death), two of each cause, in an order of the seed's."""
    dice = random.Random(seed)
    deaths = {}
    for cause in (*NAMES, "positions", "label", "none of these"):
        for variant in (1, 2):
            deaths[f"{cause} {variant}"] = death_of(cause, variant, dice)
    return shuffled(deaths, seed)


def death_of(cause: str, variant: int, dice: random.Random) -> dict[str, Any]:
    """One death. The second of a cause has another operation, or a second suspect that is innocent."""
    case = Case(dice)
    if cause in NAMES:
        case.cut(cause)
        if variant == 2:
            case.widen()  # more columns than positions, and nobody looks the columns up
        asked = case.gather if (cause, variant) == ("reference", 2) else case.look_up
        return case.dies_in(lambda: asked(cause))
    if cause == "positions":
        case.lengthen()
        return case.dies_in(lambda: case.look_up(NAMES[variant]))
    if cause == "label":
        if variant == 1:
            case.ids[0, :3] = -100
            return case.dies_in(lambda: case.look_up("policy"))
        return case.dies_in(case.gather_labels)
    case.widen()
    return case.dies_in(case.fetch_rows if variant == 1 else case.fetch_numbers)


class Case:
    """Three models of drawn sizes, and a batch that all of them can look up until something is done to it."""

    def __init__(self, dice: random.Random):
        self.positions = dice.randrange(20, 40)
        largest = dice.randrange(40, 90)
        self.rows = {name: largest + 1 + dice.randrange(9) for name in NAMES}
        columns = dice.randrange(8, 16)
        generator = torch.Generator().manual_seed(dice.randrange(10**6))
        self.ids = torch.randint(0, largest, (3, columns), generator=generator)
        self.ids[1, dice.randrange(columns)] = largest
        self.mask = torch.ones_like(self.ids)

    def cut(self, name: str) -> None:
        """One model has a row less than the largest id needs."""
        self.rows[name] = int(self.ids.max())

    def widen(self) -> None:
        """Gaps in front of all rows, more than there are positions."""
        self._fill_up(mask=0)

    def lengthen(self) -> None:
        """The same with tokens that count."""
        self._fill_up(mask=1)

    def _fill_up(self, mask: int) -> None:
        front = torch.ones(len(self.ids), self.positions, dtype=torch.long)
        self.ids = torch.cat([front, self.ids], 1)
        self.mask = torch.cat([front * mask, self.mask], 1)

    def logits(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        """What a small GPT-2 of this model's sizes returns; it counts positions by the mask."""
        from transformers import GPT2Config, GPT2LMHeadModel

        size: dict[str, Any] = {"vocab_size": self.rows[name], "n_positions": self.positions}
        model = GPT2LMHeadModel(
            GPT2Config(**size, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
        )
        position = (self.mask.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            return model(input_ids=ids, attention_mask=self.mask, position_ids=position).logits

    def look_up(self, name: str) -> None:
        self.logits(name, self.ids)

    def gather(self, name: str) -> None:
        """Log-probs of all ids, where the lookup itself is spared by a clamp."""
        logits = self.logits(name, self.ids.clamp(max=self.rows[name] - 1))
        logits.gather(-1, self.ids[..., None])

    def gather_labels(self) -> None:
        labels = self.ids.clone()
        labels[:, :3] = -100
        self.logits("policy", self.ids).gather(-1, labels[..., None])

    def fetch_rows(self) -> None:
        logits = self.logits("policy", self.ids)
        logits.index_select(0, torch.tensor([0, len(logits)]))

    def fetch_numbers(self) -> None:
        rewards = torch.zeros(len(self.ids))
        rewards[torch.tensor([0, len(rewards)])]

    def dies_in(self, call: Callable[[], None]) -> dict[str, Any]:
        """What is known of the death that the call dies."""
        try:
            call()
        except (IndexError, RuntimeError) as error:
            said = f"{type(error).__name__}: {error}"
        else:
            raise RuntimeError("a case that should die did not")
        known: dict[str, Any] = {"said": said}
        known |= {"smallest id": int(self.ids.min()), "largest id": int(self.ids.max())}
        known |= {"columns": self.ids.shape[1], "longest": int(self.mask.sum(1).max())}
        return known | self.rows | {"positions": self.positions}


def rows_of(deaths: Sequence[tuple[str, Log]]) -> Iterator[dict[str, Any]]:
    """Rows of a table, without the causes."""
    for number, (_, death) in enumerate(deaths, 1):
        row: dict[str, Any] = {"death": number}
        yield row | dict(death)
