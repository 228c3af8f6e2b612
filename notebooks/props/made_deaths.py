"""Made deaths, whose cause is known: a small GRPO loop on simulated cards of many sizes. And who reads them.

The cause of a death is what, once taken away, lets the run live on the same card: the leak, the other process, the long
answers of the last batch, or the pieces (with expandable segments). Where none of these is there, the run is too big.
Deaths with two causes are left out; see `causes_on`.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from props.card import Allocator, OutOfMemory, Tap
from props.children import events_of
from props.clinic_pictures import NAMES, Numbers, over
from props.lesson_15 import numbers, right

from labkit import checks, memory, sandbox

GIB = 2**30
Reading = Callable[[dict[str, int], list[int], int | None], str]
Calls = list[tuple]
Death = dict[str, Any]


KINDS = ("float32", "bfloat16", "LoRA")
LAYERS, ROUNDS = 3, 4
ON = "expandable_segments:True"
CONTEXT = int(0.4 * GIB)
LONGER = 450  # tokens that the last batch has more, where it is the cause
# sizes of cards, in units of what the run has allocated at its peak: those of the page, and those of the check
SHARES = [0.36 + 0.11 * at for at in range(15)]
OTHER_SHARES = [share + 0.055 for share in SHARES]


def build(kind: str) -> Any:
    """GPT-2 with 3 of its 12 layers: in float32, in bfloat16, or in float32 with LoRA on the attention's matrix."""
    from transformers import GPT2Config, GPT2LMHeadModel

    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(n_layer=LAYERS, bos_token_id=0, eos_token_id=0, **off))
    if kind == "bfloat16":
        model = model.bfloat16()
    if kind == "LoRA":
        from peft import LoraConfig, get_peft_model

        adapter = LoraConfig(r=16, target_modules=["c_attn"], fan_in_fan_out=True)
        with warnings.catch_warnings():  # peft 0.21 reads a name that transformers 5.23 retires
            warnings.simplefilter("ignore", FutureWarning)
            model = get_peft_model(model, adapter).get_base_model()
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
        deaths_of, parts, grpo_round=grpo_round, ways=ways, seed=seed, timeout=120
    )
    every = [death for name, run in runs.items() for death in events_of(run, name)]
    shown = [death for death in every if not death["unseen"]]
    return shown, [death for death in every if death["unseen"]]


def answers(reading: Reading, deaths: Sequence[Death]) -> list[str]:
    """What a reading says of each death."""
    return [reading(dict(one["numbers"]), list(one["held"]), one["owned"]) for one in deaths]


def in_a_child(
    reading: Reading, deaths: Sequence[Death], rows: Sequence[Mapping[str, Any]]
) -> Iterator[Any]:
    """What a reading says of deaths and of public messages; an answer that raises is its error's name."""
    for one in deaths:
        yield _answer(reading, one["numbers"], one["held"], one["owned"])
    for row in rows:
        yield _answer(reading, row["numbers"], [], None)


def _answer(reading: Reading, figures: Numbers, held: Sequence[int], owned: int | None) -> str:
    try:
        return str(reading(dict(figures), list(held), owned))
    except Exception as error:
        return type(error).__name__


def read_all(
    reading: Any, deaths: Sequence[Death], rows: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """(its answers to the deaths, its answers to the messages); "no answer" where it does not come back."""
    run = sandbox.run(in_a_child, reading, list(deaths), list(rows), timeout=30)
    given = [str(event) for event in run.events]
    given += ["no answer"] * (len(deaths) + len(rows) - len(given))
    return given[: len(deaths)], given[len(deaths) :]


def table_of_deaths(
    deaths: Sequence[Death], ways: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """A row for each cause: how many deaths, and how many each way of reading names."""
    table = []
    for cause in NAMES:
        places = [at for at, death in enumerate(deaths) if death["cause"] == cause]
        row: dict[str, Any] = {"cause": cause, "deaths": len(places)}
        for name, given in ways.items():
            row[name] = sum(given[at] == cause for at in places)
        table.append(row)
    total: dict[str, Any] = {"cause": "all", "deaths": len(deaths)}
    for name in ways:
        total[name] = sum(row[name] for row in table)
    return [*table, total]


def named(deaths: Sequence[Death], names: Sequence[str]) -> int:
    """How many deaths have been given the name of their cause."""
    return sum(name == death["cause"] for name, death in zip(names, deaths, strict=True))


def mistakes(deaths: Sequence[Death], names: Sequence[str]) -> str:
    """What the wrongly named deaths were, and what they were called."""
    pairs = zip(deaths, names, strict=True)
    wrong = [(death["cause"], name) for death, name in pairs if name != death["cause"]]
    counted = Counter(wrong).most_common()
    return ", ".join(f"{number} × {cause} as {name}" for (cause, name), number in counted)


def ranges(deaths: Sequence[Death]) -> str:
    """(held − owned) / short of the leaks, and of all other deaths, in words."""
    leaks = [over(death) for death in deaths if death["cause"] == "a leak"]
    others = [over(death) for death in deaths if death["cause"] != "a leak"]
    return f"leaks {min(leaks):.2f} to {max(leaks):.2f}, all others {max(others):.2f} at most"


def by_kind(deaths: Sequence[Death], cause: str) -> str:
    """How many deaths of this cause each kind of run has, in words."""
    counted = Counter(death["kind"] for death in deaths if death["cause"] == cause)
    return ", ".join(f"{counted[kind]} in {kind}" for kind in KINDS)


def most_common(deaths: Sequence[Death]) -> str:
    return Counter(death["cause"] for death in deaths).most_common(1)[0][0]


# ------------------------------------------------------------------------------------------------------- the judge


def judge(reading: Reading, deaths: Sequence[Death], rows: Sequence[Mapping[str, Any]]) -> Any:
    """Four fifths of the unseen deaths, half of each cause at least; and 38 of the 49 messages by three names."""
    claim = "names four fifths of the unseen deaths, half of each cause, and 38 of 49 messages"
    given = answers(reading, deaths)
    counted: dict[str, str] = {}
    hint = ""
    for cause in NAMES:
        places = [at for at, death in enumerate(deaths) if death["cause"] == cause]
        wrong = [at for at in places if given[at] != cause]
        counted[cause] = f"{len(places) - len(wrong)} of {len(places)}"
        if len(wrong) > len(places) / 2 and not hint:
            first = wrong[0]
            hint = f"{len(wrong)} of {len(places)} deaths by {cause!r} are read otherwise. "
            hint += f"The first, as {given[first]!r}: {in_words(deaths[first])}"
    if named(deaths, given) < 0.8 * len(deaths) and not hint:
        first = next(at for at, death in enumerate(deaths) if given[at] != death["cause"])
        hint = f"{named(deaths, given)} of {len(deaths)} deaths are named. The first of the others was "
        hint += f"{deaths[first]['cause']!r}, and is read as {given[first]!r}: {in_words(deaths[first])}"
    agree = right(rows, lambda figures: reading(dict(figures), [], None))
    counted["messages"] = f"{agree} of {len(rows)}"
    if agree < 38 and not hint:
        hint = f"Of the messages, which come without `held`, {agree} of {len(rows)} are read as their threads do."
    return checks.Report("my_reading", claim, not hint, counted, hint)


def in_words(one: Mapping[str, Any]) -> str:
    """The figures of a death or a message, in GiB."""
    words = ", ".join(f"{name} {size / GIB:.2f}" for name, size in one["numbers"].items())
    if one.get("held"):
        held = " ".join(f"{size / GIB:.2f}" for size in one["held"])
        words += f"; held before each step {held}, owned {one['owned'] / GIB:.2f}"
    return f"{words} GiB."
