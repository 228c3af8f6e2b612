"""Page 07's recordings: a program, run once on fake tensors, as the list of what it asks of the allocator.

The program and what is changed in a run stand in the notebook. Nothing here knows a card: `lesson_07` plays the list
to one in a process of its own, `lesson_07_cards` to simulated ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from labkit import sandbox

from .card import Tap
from .children import events_of
from .gpt2 import checkpoint, gpt2, with_lora

ROUNDS, ANSWERS, LAYERS = 4, 16, 3
FOLLOWED = "followed"  # the tag of the one tensor that the page follows

# ("malloc", number, bytes, tag), ("free", number), ("relabel", number, tag), ("mark", phase), ("empty_cache",)
Call = tuple[Any, ...]
Calls = list[Call]


def lengths_of(seed: int, rounds: int = ROUNDS) -> list[int]:
    """The longest answer of every round, in tokens: 400 to 512."""
    generator = random.Random(seed)
    return [generator.randrange(400, 513) for _ in range(rounds)]


def record(
    grpo_round: Callable[..., object],
    seed: int,
    *,
    lengths: Sequence[int] = (),
    optimizer: Callable[..., Any] = torch.optim.AdamW,
    autocast: bool = False,
    checkpointing: bool = False,
    lora: int = 0,
) -> Calls:
    """What the rounds ask of the allocator: GPT-2 with 3 of its 12 layers, on fake tensors.

    lengths   of the answers, a number for each round; those of the seed if there are none
    autocast  the rounds run under bfloat16 autocast, as trainers do with `bf16=True`; the weights are float32
    lora      the rank of adapters on the attention's matrix, which alone are trained then; 0: all weights are trained
    """
    tap = Tap(fake=True)
    # peft replaces layers, which torch cannot do with fake ones: such a model is built before
    before = tap.build(lambda: with_lora(gpt2(LAYERS), lora)) if lora else None
    half = torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast)
    with tap, torch.device("cpu"), half:
        model = (before or gpt2(LAYERS)).train()
        tap.adopt(model)
        if checkpointing:
            model.config.use_cache = False
            model.enable_input_require_grads()  # weights frozen by LoRA: else there is no way back
            checkpoint(model)
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        step = optimizer(trained, lr=1e-5)
        for number, length in enumerate(lengths or lengths_of(seed), 1):
            # which tokens they are makes no difference to memory
            answers = torch.zeros(ANSWERS, length, dtype=torch.long)
            grpo_round(model, step, answers, torch.ones(ANSWERS // 2, 1), _marker(tap, number))
        # a copy, before the model goes: when its tensors do depends on the garbage collector
        return list(tap.ledger.log)


def _marker(tap: Tap, number: int) -> Callable[[str], None]:
    """What a round calls when a phase of it begins: "round 1, learn" stands in the recording then."""

    def mark(phase: str) -> None:
        tap.mark(f"round {number}, {phase}")

    return mark


def recordings(grpo_round: Callable[..., object], seeds: Sequence[int]) -> list[Calls]:
    """What `record` returns for each seed, made in processes of their own, as many at once as there are cores."""
    jobs = {f"the recording of seed {seed}": {"seed": seed} for seed in seeds}
    done = sandbox.run_all(_recorded, jobs, timeout=300, grpo_round=grpo_round)
    return [events_of(run, name)[0] for name, run in done.items()]


def _recorded(grpo_round: Callable[..., object], seed: int) -> Iterator[Calls]:
    yield record(grpo_round, seed)


def at_mark(calls: Calls, phase: str) -> int:
    """The place of a mark, "round 1, learn", among the calls."""
    return calls.index(("mark", phase))


def state_requests(calls: Calls) -> Calls:
    """The requests of the first update for what is still there when round 2 begins: the optimizer's state."""
    first = calls[at_mark(calls, "round 1, update") : at_mark(calls, "round 2, score")]
    given_up = {call[1] for call in first if call[0] == "free"}
    made = [call for call in first if call[0] == "malloc" and call[3] in ("optimizer", FOLLOWED)]
    return [call for call in made if call[1] not in given_up]


def follow(calls: Calls, nbytes: int) -> Calls:
    """The same run; the last tensor of this size in the optimizer's state gets a tag of its own."""
    *_, last = [call for call in state_requests(calls) if call[2] == nbytes]
    marked = (*last[:3], FOLLOWED)
    return [marked if call == last else call for call in calls]


def state_first(calls: Calls) -> Calls:
    """The same run with the optimizer's state made before the first scoring. No other call moves."""
    state = state_requests(calls)
    numbers = {call[1] for call in state}
    rest = [call for call in calls if call[0] != "malloc" or call[1] not in numbers]
    at = at_mark(rest, "round 1, score")
    return rest[:at] + state + rest[at:]


def emptied(calls: Calls, phase: str, rounds: Collection[int] = range(1, ROUNDS + 1)) -> Calls:
    """The same run with `torch.cuda.empty_cache()` where this phase of a round begins."""
    places = {("mark", f"round {number}, {phase}") for number in rounds}
    made: Calls = []
    for call in calls:
        made.append(call)
        if call in places:
            made.append(("empty_cache",))
    return made
