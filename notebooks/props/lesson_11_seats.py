"""Page 11, its last part: what three models take on a simulated card, and every way to seat them.

GPT-2 124M in float32, all weights trained by AdamW; 4 prompts with 8 answers each.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from labkit import checks, sandbox
from labkit.checks.report import PASS, Verdict, attempt, fail, judged

from .card import Tap
from .children import events_of
from .gpt2 import checkpoint, gpt2
from .lesson_11 import CUBLAS, GIB, SECONDS, Update, make_state, no_padding, rows_without_data

PROMPTS, GROUP = 4, 8
CARDS = (0, 1, 2, 3)
WAYS = ("at once", "4 parts", "checkpointing")
COPIES = {"one copy": (0,), "two copies": (0, 1), "four copies": CARDS}
Seats = Mapping[str, Sequence[int]]  # model -> the cards that it has a copy on


@dataclass(frozen=True)
class Block:
    """GiB that a model holds all the time, and GiB that come and go at its fullest moment."""

    standing: float
    moment: float


class Card:
    """A simulated card without a limit, with some of the models on it."""

    def __init__(self, models: Sequence[str], checkpointing: bool = False):
        self.tap = Tap(fake=True, cublas_workspace=CUBLAS)
        self.models = {}
        for name in models:
            self.models[name] = self.tap.build(lambda: gpt2().train())
            self.models[name].requires_grad_(name == "policy")
        if checkpointing:
            checkpoint(self.models["policy"])
        if "reward" in models:
            self.head = self.tap.build(lambda: torch.nn.Linear(768, 1))
        self.standing = 0.0

    def steps(
        self,
        update: Update,
        log_probs: Callable[..., Any],
        prompts: Sequence[int],
        prompt: int,
        new: int,
    ) -> Iterator[float]:
        """A GRPO step after another, for so many prompts each: the peak in GiB. Frozen models score 8 answers at a time.

        Generation is left out, and all that is not a tensor: CUDA's context, NCCL's buffers.
        """
        with self.tap, no_padding():
            self.tap.adopt(*self.models.values())
            optimizer = None
            if "policy" in self.models:
                optimizer = torch.optim.AdamW(self.models["policy"].parameters())
                make_state(optimizer)
            self.standing = self.tap.allocated / GIB
            for count in prompts:
                self.tap.reset_peak()
                rows = rows_without_data(count * GROUP, prompt, new)
                self.score(rows.split(count), log_probs)
                if optimizer is not None:
                    update(self.models["policy"], optimizer, rows)
                yield self.tap.peak / GIB

    @torch.no_grad()
    def score(self, parts: Sequence[Any], log_probs: Callable[..., Any]) -> None:
        for part in parts:
            if "reference" in self.models:
                log_probs(self.models["reference"], part)
            if "reward" in self.models:
                layers = self.models["reward"].transformer
                mask = part.attention_mask
                out = layers(
                    input_ids=part.ids, attention_mask=mask, use_cache=False
                ).last_hidden_state
                self.head(out[:, -1])
                del out


@dataclass(frozen=True)
class Placed:
    """Models that are on one card, and the prompts of each GRPO step that is run there."""

    models: Sequence[str]
    prompts: Sequence[int]
    checkpointing: bool = False


POLICY, ALL = ("policy",), ("policy", "reference", "reward")
PROMPTS_OF_A_COPY = (1, 2, 4)  # of four copies of the policy, of two, of one
RUNS = {  # a process for each
    "at once": Placed(POLICY, PROMPTS_OF_A_COPY),
    "4 parts": Placed(POLICY, PROMPTS_OF_A_COPY),
    "checkpointing": Placed(POLICY, PROMPTS_OF_A_COPY, checkpointing=True),
    "reference": Placed(("reference",), (1,)),
    "reward": Placed(("reward",), (1,)),
    "4 parts, together": Placed(ALL, (PROMPTS,)),
    "checkpointing, together": Placed(ALL, (PROMPTS,), checkpointing=True),
}
UNKNOWN = Block(math.nan, math.nan)


def _peaks(placed: Placed, **step: Any) -> Iterator[tuple[int, Block]]:
    card = Card(placed.models, placed.checkpointing)
    for count, peak in zip(placed.prompts, card.steps(prompts=placed.prompts, **step), strict=True):
        yield count, Block(card.standing, peak - card.standing)


def blocks(updates: Mapping[str, Update], **step: Any) -> tuple[dict[Any, Block], dict[str, float]]:
    """What each model takes alone on a simulated card; and for two ways the peak of all three together on one, GiB.

    updates   way -> the policy's update; the one in four parts is the reader's, and NaN where it died
    step      `log_probs`, and the tokens of a `prompt` and of a `new` answer

    The blocks' keys: (way, prompts of a copy) for the policy's; "reference" and "reward". The peaks': the way.
    """
    jobs = {}
    for name, placed in RUNS.items():
        way = name.removesuffix(", together")
        jobs[name] = {"placed": placed, "update": updates.get(way)}  # frozen models have none
    runs = sandbox.run_all(_peaks, jobs, timeout=SECONDS, **step)
    found: dict[Any, Block] = {}
    together = {}
    for name, placed in RUNS.items():
        of_a_reader = name.startswith("4 parts")
        seen = dict(runs[name].events if of_a_reader else events_of(runs[name], name))
        for count in placed.prompts:
            block = seen.get(count, UNKNOWN)
            if placed.models == ALL:
                together[name.removesuffix(", together")] = block.standing + block.moment
            elif placed.models == POLICY:
                found[name, count] = block
            else:
                found[name] = block
    return found, together


def rows_of_blocks(found: Mapping[Any, Block]) -> list[dict[str, Any]]:
    """The blocks as a table: a row for each way to update the policy, and one for each frozen model."""
    table = []
    for way in WAYS:
        row: dict[str, Any] = {"model": f"policy, {way}", "stands": found[way, 1].standing}
        for count in PROMPTS_OF_A_COPY:
            row[f"its moment, {count} of {PROMPTS} prompts"] = found[way, count].moment
        table.append(row)
    for name in ("reference", "reward"):  # they score one prompt after another
        row = {"model": name, "stands": found[name].standing}
        for count in PROMPTS_OF_A_COPY:
            row[f"its moment, {count} of {PROMPTS} prompts"] = found[name].moment
        table.append(row)
    return table


def on_card(card: int, way: str, seats: Seats, found: Mapping[Any, Block]) -> dict[str, Block]:
    """The blocks that a card has with these seats: model -> block."""
    here = {}
    if card in seats["policy"]:
        here["policy"] = found[way, math.ceil(PROMPTS / len(seats["policy"]))]
    for name in ("reference", "reward"):
        if card in seats[name]:
            here[name] = found[name]
    return here


def every_seating() -> Iterator[tuple[str, Seats]]:
    """(way, seats): one, two or four copies of the policy, each frozen model on one of four cards."""
    for way, policy, reference, reward in itertools.product(WAYS, COPIES.values(), CARDS, CARDS):
        yield way, {"policy": policy, "reference": (reference,), "reward": (reward,)}


def cards_of(seats: Seats) -> list[int]:
    """The cards that hold anything."""
    return sorted({card for places in seats.values() for card in places})


def in_words(seats: Seats) -> str:
    """ "GPU 0: policy, reference; GPU 1: policy, reward" """
    rows = []
    for card in cards_of(seats):
        rows.append(f"GPU {card}: {', '.join(model for model in seats if card in seats[model])}")
    return "; ".join(rows)


def filled(taken: Callable[..., Any], found: Mapping[Any, Block]) -> dict[Any, list[float]]:
    """(way, seats in words) -> GiB of each of four cards, by the reader's rule; NaN where it gives no number."""
    run = sandbox.run(_filled, taken, found, timeout=SECONDS)
    came = dict(run.events)
    every = [(way, in_words(seats)) for way, seats in every_seating()]
    return {seating: came.get(seating, [math.nan] * len(CARDS)) for seating in every}


def _filled(
    taken: Callable[..., Any], found: Mapping[Any, Block]
) -> Iterator[tuple[Any, list[float]]]:
    for way, seats in every_seating():
        cards = []
        for card in CARDS:
            here = on_card(card, way, seats, found).values()
            try:
                gib = float(taken([one.standing for one in here], [one.moment for one in here]))
            except Exception:
                gib = math.nan
            cards.append(gib)
        yield (way, in_words(seats)), cards


def judge_taken(answer: Callable[..., Any]) -> checks.Report:
    """Does `answer(standing, moments)` give the GiB of a card whose models work one after the other?"""

    def judge(evidence: dict[str, Any]) -> Verdict:
        generator = random.Random(11)
        for count in (1, 2, 3, 3, 0):
            standing = [generator.uniform(0.1, 6) for _ in range(count)]
            moments = [generator.uniform(0.1, 9) for _ in range(count)]
            gib = attempt(answer, list(standing), list(moments))
            if isinstance(gib, bool) or not isinstance(gib, int | float):
                return fail(f"Expected a number of GiB, got {gib!r}. (A card may also be empty.)")
            if abs(gib - sum(standing) - max(moments, default=0)) < 1e-6:
                continue
            if abs(gib - sum(standing) - sum(moments)) < 1e-6:
                return fail("The moments do not meet: the models work one after the other.")
            if abs(gib - max(moments, default=0)) < 1e-6:
                return fail("What stands is there as well, all the time.")
            shown = [[round(one, 1) for one in numbers] for numbers in (standing, moments)]
            return fail(f"standing {shown[0]}, moments {shown[1]}: got {gib:.3g}.")
        return PASS

    return judged("my_taken", "what a card holds at its fullest", answer, judge)
