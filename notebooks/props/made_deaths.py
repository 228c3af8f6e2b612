"""Made deaths, whose cause is known: a small GRPO loop on simulated cards of many sizes.

The cause of a death is what, once taken away, lets the run live on the same card: the leak, the other process, the long
answers of the last batch, or the pieces (with expandable segments). Where none of these is there, the run is too big.
Deaths with two causes are left out; see `causes_on`. How well somebody reads them: `lesson_15_judges`.
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
Calls = list[tuple]
Death = dict[str, Any]

KINDS: tuple[str, ...] = ("float32", "bfloat16", "LoRA")
LAYERS, ROUNDS = 3, 4
ON = "expandable_segments:True"
CONTEXT = int(0.4 * GIB)
LONGER = 450  # tokens that the last batch has more, where it is the cause
# sizes of cards, in units of what the run has allocated at its peak: those of the page, and those of the check
SHARES = [0.36 + 0.11 * at for at in range(15)]
OTHER_SHARES = [share + 0.055 for share in SHARES]


def build(kind: str) -> Any:
    """GPT-2 with 3 of its 12 layers: in float32, in bfloat16, or in float32 with LoRA on the attention's matrix."""
    model = gpt2(LAYERS)
    if kind == "bfloat16":
        model = model.bfloat16()
    if kind == "LoRA":
        model = with_lora(model, rank=16)
    return model.train()


def record(
    grpo_round: Callable[..., Any], keep: Callable[..., Any], kind: str, seed: int, longer: int = 0
) -> tuple[Calls, int]:
    """(what four rounds ask of the allocator, on fake tensors; the peak of what is allocated).

    keep     what the log keeps of a round's entropy
    longer   tokens that the last batch's answers have more

    A mark before each round has the bytes that are owned then.
    """
    dice = random.Random(seed)
    tap = Tap(fake=True)
    model = tap.build(lambda: build(kind))
    with tap:
        tap.adopt(model)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained)
        log: list[Any] = []
        for number in range(1, ROUNDS + 1):
            length = dice.randrange(440, 513) + longer * (number == ROUNDS)
            answers = torch.zeros(16, length, dtype=torch.long)
            tap.mark(f"{memory.owned(model, optimizer)}")
            log.append(keep(grpo_round(model, optimizer, answers)))
    return tap.ledger.log, tap.peak


def play(calls: Calls, card: Allocator) -> tuple[str, list[int], list[int]]:
    """(the message of its death, or ""; held before each round; owned before each)."""
    live: dict[int, Any] = {}
    held: list[int] = []
    owned: list[int] = []
    for call, *rest in calls:
        if call == "mark":
            held.append(card.allocated_bytes)
            owned.append(int(rest[0]))
        elif call == "free" and rest[0] in live:
            card.free(live.pop(rest[0]))
        elif call == "malloc":
            try:
                live[rest[0]] = card.malloc(rest[1])
            except OutOfMemory as refusal:
                return str(refusal), held, owned
    return "", held, owned


def causes_on(runs: Mapping[str, Calls], total: int) -> Iterator[tuple[str, Any]]:
    """(cause, what `play` returned) of the runs that die on a card of so many bytes.

    runs   "clean"; and the same run with one thing more: "leak", "long"
    """

    def on(name: str, settings: str = "", others: int = 0) -> tuple[str, list[int], list[int]]:
        return play(runs[name], Allocator(total, settings, others=others, context=CONTEXT))

    plain = on("clean")
    if plain[0]:
        if not plain[1]:
            return  # not even the model fits
        in_force = on("clean", ON)
        if not in_force[0]:
            yield "fragments", plain
        elif len(plain[1]) <= 2:
            yield "too big at once", plain
        return
    # The clean run lives here. With one thing more it may not, and then that is the cause; unless the setting alone
    # would help, too: such a death has two.
    for name, cause in (("leak", "a leak"), ("long", "a longer batch")):
        died = on(name)
        if died[0] and on(name, ON)[0]:
            yield cause, died
    beside = on("clean", others=total // 2)
    if beside[0] and beside[1]:
        yield "another owner", beside


def deaths_of(
    grpo_round: Callable[..., Any],
    ways: Mapping[str, Callable[..., Any]],
    kinds: Sequence[str],
    seed: int,
) -> Iterator[Death]:
    """Each death of these kinds of run, on the page's cards and on the check's."""
    for kind in kinds:
        clean, peak = record(grpo_round, ways["clean"], kind, seed)
        leak, _ = record(grpo_round, ways["leak"], kind, seed)
        long, _ = record(grpo_round, ways["clean"], kind, seed, longer=LONGER)
        runs = {"clean": clean, "leak": leak, "long": long}
        for share in (*SHARES, *OTHER_SHARES):
            total = int(share * peak)
            for cause, (message, held, owned) in causes_on(runs, total):
                death = {"cause": cause, "kind": kind, "message": message}
                death |= {"numbers": numbers(message), "held": held, "owned": owned[-1]}
                yield death | {"unseen": share in OTHER_SHARES}


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
