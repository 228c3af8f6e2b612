"""Made deaths, whose cause is known: the memory of a GRPO step on simulated cards of many sizes.

The cause of a death is what, once taken away, lets the run live on the same card: the leak, the other process, the long
answers of the last batch, or the pieces (with expandable segments). Where none of these is there, the run is too big; or,
if earlier steps had gone through and this batch is the longest so far, it is a longer batch. A leak or a longer batch
that expandable segments would have saved, too, has two causes: it is kept, and either name counts as right.

Beside some of the runs something lives that is meant to stay; see `residents`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from props.card import Allocator, OutOfMemory, Tap
from props.children import events_of
from props.gpt2 import gpt2, with_lora
from props.lesson_15 import numbers

from labkit import memory, sandbox

GIB = 2**30
Death = dict[str, Any]

KINDS = ("float32", "bfloat16", "LoRA")
LAYERS, ROUNDS = 3, 5
ON = "expandable_segments:True"
CONTEXT = int(0.4 * GIB)
LONGER = 450  # tokens that the last batch has more, where it is the cause
SHORTEST, LONGEST = 440, 512  # tokens of the other batches
# sizes of cards, in units of what is allocated at the peak: those of the page, and those of the check
SHARES = [0.36 + 0.11 * at for at in range(15)]
OTHER_SHARES = [share + 0.055 for share in SHARES]
BESIDE_SHARES = [0.95, 1.1, 1.25]
OTHER_BESIDE_SHARES = [1.02, 1.17, 1.32]
NEIGHBOURS = (
    0.1,
    0.25,
    0.4,
    0.55,
)  # of the card: what another process holds, on one card after the other
NOTHING = "nothing"


def build(kind: str) -> Any:
    """GPT-2 with 3 of its 12 layers: in float32, in bfloat16, or in float32 with LoRA on the attention's matrix."""
    model = gpt2(LAYERS)
    if kind == "bfloat16":
        model = model.bfloat16()
    if kind == "LoRA":
        model = with_lora(model, rank=16)
    return model.train()


class Recorded:
    """What the rounds ask of the allocator, on fake tensors.

    calls     ("malloc", number, bytes, tag), ("free", number), ("mark", bytes that are owned) before each round
    peak      of what is allocated, in bytes
    weights   bytes of each parameter; trained: of those that have gradients
    lengths   tokens of each round's answers
    """

    def __init__(
        self,
        grpo_round: Callable[..., Any],
        keep: Callable[..., Any],
        kind: str,
        seed: int,
        longer: int = 0,
    ) -> None:
        dice = random.Random(seed)
        self.lengths = [dice.randrange(SHORTEST, LONGEST + 1) for _ in range(ROUNDS)]
        self.lengths[-1] += longer
        tap = Tap(fake=True)
        model = tap.build(lambda: build(kind))
        with tap:
            tap.adopt(model)
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            optimizer = torch.optim.AdamW(trained)
            log: list[Any] = []
            for length in self.lengths:
                answers = torch.zeros(16, length, dtype=torch.long)
                tap.mark(f"{memory.owned(model, optimizer)}")
                log.append(keep(grpo_round(model, optimizer, answers)))
        self.calls, self.peak = tap.ledger.log, tap.peak
        self.weights = [parameter.nbytes for parameter in model.parameters()]
        self.trained = [parameter.nbytes for parameter in trained]


def residents(run: Recorded) -> dict[str, dict[int, list[int]]]:
    """What is meant to stay beside a run: name -> round before which it comes -> bytes of its blocks.

    These are blocks on the simulated card, with the sizes that such things have; they compute nothing.
    """
    cache = [
        int(run.peak / 32)
    ] * 16  # an engine's weights and its KV cache, half of the run's peak
    kept = [int(0.25 * GIB)]
    return {
        "a frozen reference model": {1: run.weights},
        "an engine": {1: run.weights + cache},
        "DDP's buckets": {2: run.trained},  # made in the first backward pass
        "rollouts of two rounds": {
            2: kept,
            3: kept,
        },  # from then on a new one takes an old one's place
    }


def play(
    calls: Sequence[tuple], card: Allocator, resident: Mapping[int, Sequence[int]]
) -> tuple[str, list[int], list[int]]:
    """(the message of its death, or ""; held before each round; owned before each)."""
    live: dict[int, Any] = {}
    held: list[int] = []
    owned: list[int] = []
    try:
        for call, *rest in calls:
            if call == "mark":
                for size in resident.get(len(held) + 1, ()):
                    card.malloc(size)
                held.append(card.allocated_bytes)
                owned.append(int(rest[0]))
            elif call == "free" and rest[0] in live:
                card.free(live.pop(rest[0]))
            elif call == "malloc":
                live[rest[0]] = card.malloc(rest[1])
    except OutOfMemory as refusal:
        return str(refusal), held, owned
    return "", held, owned


class OnCards:
    """A run and its variants ("clean", "leak", "long") on cards of many sizes, beside what stays with it."""

    def __init__(self, runs: Mapping[str, Recorded], resident: Mapping[int, Sequence[int]]) -> None:
        self.runs, self.resident = runs, resident
        self.peak = runs["clean"].peak + sum(map(sum, resident.values()))
        self.enough: dict[
            tuple[str, str], int
        ] = {}  # with so many bytes it has lived, and never ran short

    def on(
        self, total: int, name: str, settings: str = "", others: int = 0
    ) -> tuple[str, list[int], list[int]]:
        """What `play` returns on a card of so many bytes."""
        known = self.enough.get((name, settings))
        if known is not None and total - others >= known:
            return "", [], []
        card = Allocator(total, settings, others=others, context=CONTEXT)
        played = play(self.runs[name].calls, card, self.resident)
        if not played[0] and not card.num_alloc_retries:
            self.enough[name, settings] = total - others
        return played

    def causes(self, total: int, others: int) -> Iterator[tuple[list[str], Any]]:
        """(the names that are right, what `play` returned) of each run that dies on a card of so many bytes.

        others   what another process holds beside the clean run, which lives alone; 0: none
        """
        plain = self.on(total, "clean")
        if plain[0]:
            if plain[1]:  # else not even the model fits
                yield self.of_the_clean_run(total, plain[1]), plain
            return
        # The clean run lives here. With one thing more it may not, and then that is the cause.
        for name, cause in (("leak", "a leak"), ("long", "a longer batch")):
            died = self.on(total, name)
            if died[0] and died[1]:
                pieces_too = not self.on(total, name, ON)[0]
                yield [cause, "fragments"] if pieces_too else [cause], died
        if others:
            beside = self.on(total, "clean", others=others)
            if beside[0] and beside[1]:
                yield ["another owner"], beside

    def of_the_clean_run(self, total: int, held: Sequence[int]) -> list[str]:
        """Why the clean run died; [] where no one thing is the cause."""
        if not self.on(total, "clean", ON)[0]:
            return ["fragments"]
        if len(held) <= 2:
            return ["too big at once"]
        *before, last = self.runs["clean"].lengths[: len(held)]
        return ["a longer batch"] if last > max(before) else []


def deaths_of(
    grpo_round: Callable[..., Any],
    ways: Mapping[str, Callable[..., Any]],
    kinds: Sequence[str],
    seed: int,
) -> Iterator[Death]:
    """Each death of these kinds of run, on the page's cards and on the check's."""
    for kind in kinds:
        clean = Recorded(grpo_round, ways["clean"], kind, seed)
        runs = {"clean": clean, "leak": Recorded(grpo_round, ways["leak"], kind, seed)}
        runs["long"] = Recorded(grpo_round, ways["clean"], kind, seed, LONGER)
        for beside, resident in {NOTHING: {}, **residents(clean)}.items():
            cards = OnCards(runs, resident)
            shown, unseen = (SHARES, OTHER_SHARES)
            if resident:
                shown, unseen = (BESIDE_SHARES, OTHER_BESIDE_SHARES)
            for at, share in enumerate(sorted([*shown, *unseen])):
                total = int(share * cards.peak)
                others = 0 if resident else int(NEIGHBOURS[at // 2 % 4] * total)
                for names, (message, held, owned) in cards.causes(total, others):
                    death = {"causes": names, "kind": kind, "beside": beside, "message": message}
                    death |= {"numbers": numbers(message), "held": held, "owned": owned}
                    yield death | {"unseen": share in unseen}


def made_deaths(
    grpo_round: Callable[..., None], ways: Mapping[str, Callable[..., Any]], seed: int
) -> tuple[list[Death], list[Death]]:
    """(the page's, the check's), from two children."""
    parts = {"first": {"kinds": KINDS[:1]}, "second": {"kinds": KINDS[1:]}}
    runs = sandbox.run_all(
        deaths_of, parts, grpo_round=grpo_round, ways=ways, seed=seed, timeout=300
    )
    every = [death for name, run in runs.items() for death in events_of(run, name)]
    shown = [death for death in every if not death["unseen"]]
    return shown, [death for death in every if death["unseen"]]
