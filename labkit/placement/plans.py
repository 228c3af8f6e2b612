"""Choose a layout; where none fits, look for the nearest change of the settings that makes one fit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labkit.common import format_size, shown
from labkit.memory import Shape, Workload, predict

from .layouts import Card, Layout, layouts

GIB = 2**30
_size = functools.partial(format_size, short=True)
SPARE = 0.1  # of each card, for what is not predicted
LARGEST_GIB = 100_000  # a card of at most this many is in GiB, else in bytes


@dataclass(frozen=True)
class Change:
    """New settings, as they are passed to `plan`, the layout that they give, and what they cost."""

    settings: dict[str, Any]
    layout: Layout
    cost: str

    def __str__(self) -> str:
        words = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{words}: {self.cost}; the fullest card would be at {self.layout.fullest:.0%}"


@dataclass(frozen=True)
class Plan:
    """Who sits on which card. True where everything fits; `str()` is a table.

    layout    the one that fits, or, where none does, the one that comes nearest to it
    changes   single changes that would make it fit, the nearest first; several together where no single one does for
              this model; () where it fits or where nothing helps
    least     bytes of the smallest card on which `layout` would fit, were all cards of that size
    """

    layout: Layout
    settings: dict[str, Any]
    changes: tuple[Change, ...]
    spare: float

    @property
    def cards(self) -> tuple[Card, ...]:
        return self.layout.cards

    @property
    def least(self) -> int:
        return int(max(card.bytes for card in self.cards) / (1 - self.spare)) + 1

    def __bool__(self) -> bool:
        return self.layout.fits(self.spare)

    def __str__(self) -> str:
        words = ", ".join(f"{name}={shown(value)}" for name, value in self.settings.items())
        rows = [f"{'fits' if self else 'does not fit'}: {words}"]
        for number, card in enumerate(self.cards):
            over = "  TOO FULL" if card.share > 1 - self.spare else ""
            rows.append(
                f"GPU {number}  {_size(card.bytes):>8} of {_size(card.total):<8} {card.share:>4.0%}  {card}{over}"
            )
            largest = sorted(card.parts.items(), key=lambda part: -part[1])
            rows += ["       " + ", ".join(f"{name} {_size(size)}" for name, size in largest)] if largest else []
        if self:
            return "\n".join(rows)
        rows += [f"would fit with {change}" for change in self.changes]
        if not self.changes:
            rows.append(
                "no change that can be predicted makes it fit: shard it (FSDP, DeepSpeed ZeRO-3), or larger cards"
            )
        rows.append(f"as it is, it needs cards of {_size(self.least)}")
        return "\n".join(rows)


def plan(
    gpus: Sequence[float],
    model: Any = "124M",
    batch: int = 4,
    group: int = 8,
    *,
    reference: bool = True,
    reward: bool = False,
    spare: float = SPARE,
    **options: Any,
) -> Plan:
    """Seat the policy, the reference and the reward model on the cards that there are.

        gpus        the memory of each, in bytes, or in GiB up to 100,000; unequal ones will do
        model       "124M", "tiny", a transformers GPT2Config or a `Shape`; of the reference and the reward model too
        batch       prompts per step, over all cards; group: completions per prompt
        reference   whether there is one (beta above 0); with LoRA it takes no weights of its own
        reward      whether the reward is a model on a card; False: a function, or a service elsewhere
        spare       the part of each card that stays free for what is not predicted
        options     other fields of `labkit.memory.Workload`, per card: `new_tokens`, `amp`, `lora`, ...

    Of the layouts that fit, the one is taken whose copies of the policy have the fewest prompts each; of these the one
    whose fullest card is emptiest.

    Returns a `Plan`, also when nothing fits.
    Raises: ValueError names a setting that cannot be.
    """
    totals = tuple(_bytes(i, size) for i, size in enumerate(gpus))
    if not totals:
        raise ValueError("gpus: got no card; expected the memory of each, for example [16, 16, 16]")
    if not 0 <= spare < 1:
        raise ValueError(f"spare = {spare}: expected a part of a card, from 0 to below 1")
    if options.get("objective", "grpo") != "grpo":
        raise ValueError(f"objective = {options['objective']!r}: a plan is for 'grpo'; use labkit.memory.predict")
    settings = {"batch": batch, "group": group, "reference": reference, "reward": reward, **options}
    shape = Shape.of(model)
    predict(shape, batch=batch, group=group, **options)  # names a setting that cannot be
    best = _best(totals, shape, settings, spare)
    return Plan(best, settings, () if best.fits(spare) else _changes(totals, shape, settings, spare), spare)


def _bytes(index: int, size: float) -> int:
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < 1 << 60:
        raise ValueError(f"gpus[{index}] = {size!r}: expected bytes, or GiB up to {LARGEST_GIB:,}")
    return int(size * GIB) if size <= LARGEST_GIB else int(size)


def _best(totals: tuple[int, ...], shape: Shape, settings: dict[str, Any], spare: float) -> Layout:
    """Of those that fit, the one with the fewest prompts per copy of the policy; then, by how full the cards are."""
    rank = lambda layout: (not layout.fits(spare), layout.share * layout.fits(spare), layout.fullest)
    return min(layouts(totals, shape, settings), key=rank)


Step = dict[str, Any]  # one change of the settings; "model" may be among them


def _changes(totals: tuple[int, ...], shape: Shape, settings: Step, spare: float) -> tuple[Change, ...]:
    """Of each setting the smallest change that makes it fit by itself; where none does for this model, several."""
    tried = functools.partial(_tried, totals, shape, settings, spare)
    ladder = _ladder(shape, settings)
    found: list[Change | None] = []
    for steps, cost in ladder:
        fitting = (change for step in steps if (change := tried(step, cost)) and change.layout.fits(spare))
        found.append(next(fitting, None))
    if not any(found[:-1]):
        steps_alone = [steps for steps, _ in ladder]
        # What leaves the step as it is may free more once an adapter is trained: these come up twice.
        found.insert(-1, _together(tried, steps_alone[:4] + steps_alone, spare))
    return tuple(change for change in found if change)


def _together(tried: Callable[[Step, str], Change | None], ladder: list[list[Step]], spare: float) -> Change | None:
    """The changes of the ladder on top of each other, until it fits; those that free nothing are left out."""
    together: Step = {}
    emptiest = float("inf")
    for steps in ladder:
        for step in steps:
            change = tried(together | step, "no single change is enough")
            if change and change.layout.fits(spare):
                return change
        if steps and change and change.layout.fullest < emptiest:
            together, emptiest = change.settings, change.layout.fullest
    return None


def _tried(totals: tuple[int, ...], shape: Shape, settings: Step, spare: float, step: Step, cost: str) -> Change | None:
    """The change and the best layout with it; None where it does not go with the other settings."""
    changed = {**settings, **step}
    rows, split = changed["batch"] * changed["group"], changed.get("micro_batches", 1)
    if split > rows:  # at most one pass per row
        step = {**step, "micro_batches": rows}
        changed |= step
    elif rows % split:
        return None
    return Change(step, _best(totals, changed.pop("model", shape), changed, spare), cost)


def _ladder(shape: Shape, settings: Step) -> list[tuple[list[Step], str]]:
    """What may be changed, the least harmful first: steps from small to large, and what each costs."""
    rows, split = settings["batch"] * settings["group"], settings.get("micro_batches", 1)
    tokens = settings.get("new_tokens", Workload.new_tokens)
    layers = [replace(shape, layers=n) for n in _halves(shape.layers, 1)]
    ladder = [
        (
            _each("micro_batches", [m for m in range(split + 1, rows + 1) if rows % m == 0]),
            "the same step in more passes",
        ),
        (_each("checkpointing", [True]), "the same step, its forward pass made twice"),
        (_each("amp", [True]), "arithmetic in bfloat16"),
        (_each("lora", [16]), "trains an adapter in place of the model"),
        (_each("group", _halves(settings["group"], 2)), "advantages from fewer completions"),
        (_each("batch", _halves(settings["batch"], 1)), "fewer prompts per step"),
        (_each("new_tokens", _halves(tokens, 16)), "completions cut off sooner"),
        (_each("reference", [False]), "no KL to a reference"),
        (_each("model", layers), "a model of fewer layers"),
    ]
    return [([s for s in steps if not settings.items() >= s.items()], cost) for steps, cost in ladder]


def _each(name: str, values: Sequence[Any]) -> list[Step]:
    return [{name: value} for value in values]


def _halves(value: int, least: int) -> list[int]:
    """Half of it, a quarter, ... down to `least`."""
    found = []
    while value // 2 >= least:
        value //= 2
        found.append(value)
    return found
