"""Lesson 07: the recording of the run, the processes that play it, the pictures, and the judges of the two exercises.

The program whose memory this is, the environments and the canary stand in the notebook. A run is recorded once, on fake
tensors, as a list of requests and frees; a process then plays that list to the card: to the device's own allocator on
CUDA, else to a simulated card that has the settings that torch read in that process.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import torch

from labkit import memory, sandbox
from labkit.checks.report import Report
from labkit.events import Run

from .card import Allocator, OutOfMemory, Tap
from .children import events_of

GIB, MIB = 2**30, 2**20
OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
ON = "expandable_segments:True"
CANARY = "max_split_size_mb:1"  # a reader of the variable must refuse it: at least 20 is allowed
ROUNDS = 4
LAYERS = 3

Calls = list[tuple]  # ("malloc", number, bytes, what for), ("free", number), ("mark", phase) ...
Settings = Mapping[str, str]
Way = Mapping[str, Any]


# Okabe and Ito's colours, and greys
COLOURS = {
    "parameter": "#0072B2",
    "gradient": "#D55E00",
    "optimizer": "#E69F00",
    "activation": "#009E73",
    "logits": "#CC79A7",
    "kv-cache": "#56B4E9",
    "backward": "#F0E442",
    "workspace": "#8C8C8C",
    "other": "#4D4D4D",
}

# The recording -------------------------------------------------------------------------------------------------------


def lengths_of(seed: int, rounds: int = ROUNDS) -> list[int]:
    """The longest answer of every round, in tokens: 400 to 512."""
    dice = random.Random(seed)
    return [dice.randrange(400, 513) for _ in range(rounds)]


def record(grpo_round: Callable[..., object], seed: int, rounds: int = ROUNDS) -> Calls:
    """What the rounds ask of the allocator, of a GPT-2 with 3 of its 12 layers and AdamW, on fake tensors."""
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    with Tap(fake=True) as tap, torch.device("cpu"):
        model = GPT2LMHeadModel(GPT2Config(n_layer=LAYERS, **dropout)).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        for number, length in enumerate(lengths_of(seed, rounds), 1):
            answers = torch.zeros(
                16, length, dtype=torch.long
            )  # which tokens they are makes no difference to memory
            mark = lambda phase, n=number: tap.mark(f"round {n}, {phase}")
            grpo_round(model, optimizer, answers, torch.ones(8, 1), mark)
    return tap.ledger.log


def record_in_a_child(grpo_round: Callable[..., object], seed: int) -> Calls:
    """What `record` returns, made in a process that has what the model needs imported."""
    (calls,) = events_of(sandbox.run(_recorded, grpo_round, [seed]), "the recording")
    return calls


def recordings(grpo_round: Callable[..., object], seeds: Sequence[int]) -> list[Calls]:
    """What `record` returns for each seed, made in two children."""
    return _in_two_children(_recorded, seeds, grpo_round=grpo_round)


def _recorded(grpo_round: Callable[..., object], items: Sequence[int]) -> Iterator[Calls]:
    for seed in items:
        yield record(grpo_round, seed)


def _in_two_children(
    function: Callable[..., Iterator[Any]], items: Sequence[Any], **common: Any
) -> list[Any]:
    """What `function` yields for each item, from two children that take half of the items each."""
    half = len(items) // 2
    parts = {"first": {"items": items[:half]}, "second": {"items": items[half:]}}
    runs = sandbox.run_all(function, parts, timeout=300, **common)
    return [row for name, run in runs.items() for row in events_of(run, f"the {name} half")]


def emptied(calls: Calls, phase: str, rounds: Sequence[int] | None = None) -> Calls:
    """The same run with `torch.cuda.empty_cache()` wherever this phase of a round begins, or of these rounds alone."""
    made: Calls = []
    for call in calls:
        made.append(call)
        if call[0] != "mark" or not call[1].endswith(phase):
            continue
        number = int(call[1].split(",")[0].removeprefix("round "))
        if rounds is None or number in rounds:
            made.append(("empty_cache",))
    return made


def state_requests(calls: Calls) -> Calls:
    """The requests of the first update for what is still there when round 2 begins: AdamW's state."""
    first = calls[
        calls.index(("mark", "round 1, update")) : calls.index(("mark", "round 2, score"))
    ]
    given_up = {call[1] for call in first if call[0] == "free"}
    made = [call for call in first if call[0] == "malloc" and call[3] == "optimizer"]
    return [call for call in made if call[1] not in given_up]


def state_first(calls: Calls) -> Calls:
    """The same run with AdamW's state made before the first scoring. No other call moves."""
    state = state_requests(calls)
    numbers = {call[1] for call in state}
    rest = [call for call in calls if call[0] != "malloc" or call[1] not in numbers]
    at = rest.index(("mark", "round 1, score"))
    return rest[:at] + state + rest[at:]


def changed(
    calls: Calls,
    make_state_first: bool = False,
    empty_before: str = "",
    in_rounds: Sequence[int] | None = None,
) -> Calls:
    """The run with AdamW's state made first, and with `empty_cache` where a phase begins; neither, if not asked."""
    if make_state_first:
        calls = state_first(calls)
    return emptied(calls, empty_before, in_rounds) if empty_before else calls


def leaking(calls: Calls) -> Calls:
    """The same run, but each round keeps the first tensor of its learning that is as wide as the vocabulary."""
    kept, phase = {}, ""
    for call, *rest in calls:
        if call == "mark":
            phase = rest[0]
        elif call == "malloc" and rest[2] == "logits" and phase.endswith("learn"):
            kept.setdefault(phase, rest[0])
    return [call for call in calls if not (call[0] == "free" and call[1] in kept.values())]


# A card, and a process that plays to it ------------------------------------------------------------------------------


class Device:
    """A CUDA device, limited by `memory.limit`, with the methods of the simulated card that are used here."""

    def __init__(self) -> None:
        self.uses: dict[int, str] = {}  # address -> what for

    def malloc(self, nbytes: int, tag: str) -> torch.Tensor:
        block = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        self.uses[block.data_ptr()] = tag
        return block

    def free(self, block: torch.Tensor) -> None: ...  # the caller has let go of it

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()

    @property
    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated()

    @property
    def reserved_bytes(self) -> int:
        return torch.cuda.memory_reserved()

    def snapshot(self) -> list[dict[str, Any]]:
        segments = torch.cuda.memory._snapshot()["segments"]
        for block in (block for segment in segments for block in segment["blocks"]):
            live = block["state"] == "active_allocated"
            block["tag"] = self.uses.get(block["address"], "other") if live else None
        return segments


def is_cuda(device: str, card_gib: float = 0.0) -> bool:
    """Whether the device is a GPU with room for such a card."""
    if device == "cpu" or not torch.cuda.is_available():
        return False
    return torch.cuda.mem_get_info()[0] > (card_gib + 1) * GIB


def first_use(cuda: bool) -> str:
    """What torch reads from its allocator variables when the device is used for the first time in a process.

    A build without CUDA has torch's reader of these variables and no allocator; there the reader is asked.
    """
    if not cuda:
        return torch._C._accelerator_getAllocatorSettings()
    torch.ones(1, device="cuda")
    return torch.cuda.memory._snapshot()["allocator_settings"].get(OLD, "")


def rows_of(card: Any, born: Mapping[int, str]) -> list[dict[str, Any]]:
    """Every segment: its bytes, its free bytes, its largest hole, and who is in it: (what for, bytes, since)."""
    rows = []
    for segment in card.snapshot():
        blocks = segment["blocks"]
        holes = [block["size"] for block in blocks if not block["tag"]]
        tenants = [(b["tag"], b["size"], born.get(b["address"], "")) for b in blocks if b["tag"]]
        rows.append(
            {
                "size": segment["total_size"],
                "free": sum(holes),
                "hole": max(holes, default=0),
                "in": tenants,
            }
        )
    return rows


def play(calls: Calls, card: Any) -> Iterator[tuple[int, str, Any]]:
    """Play a recorded run to a card; yields (calls served, phase, address -> phase of birth) after every call."""
    live: dict[int, Any] = {}
    born: dict[int, str] = {}
    phase = "build"
    for at, (call, *rest) in enumerate(calls):
        if call == "mark":
            phase = rest[0]
        elif call == "malloc":
            live[rest[0]] = card.malloc(rest[1], tag=rest[2])
            block = live[rest[0]]
            born[block.address if hasattr(block, "address") else block.data_ptr()] = phase
        elif call == "free" and rest[0] in live:
            card.free(live.pop(rest[0]))
        elif call == "relabel" and rest[0] in live and hasattr(live[rest[0]], "tag"):
            live[rest[0]].tag = rest[1]  # the recorder learns later what it was for
        elif call == "empty_cache":
            card.empty_cache()
        yield at, phase, born


def training(
    calls: Calls, card_gib: float, cuda: bool, later: Settings
) -> Iterator[dict[str, Any]]:
    """In a process of its own: read the settings, then play the run to a card of this size.

    later   variables that the script sets after the first use of the device
    """
    read = first_use(cuda)
    yield {"read": read}
    os.environ.update(later)
    size = int(card_gib * GIB)
    card = Device() if cuda else Allocator(size, read)
    at, phase, born, highest, reserved = 0, "build", {}, 0, 0
    with memory.limit(size, "cuda") if cuda else contextlib.nullcontext():
        try:
            for moment in play(calls, card):
                at, phase, born = moment
                highest = max(highest, card.allocated_bytes)
                fell, reserved = card.reserved_bytes < reserved, card.reserved_bytes
                if at % 25 == 0 or fell:  # a point of the picture: the highest since the last one
                    yield {"at": at, "allocated": highest, "reserved": reserved}
                    highest = 0
        except (OutOfMemory, torch.OutOfMemoryError):
            before = card.reserved_bytes
            asked = calls[at + 1][2]
            yield {"at": at, "allocated": card.allocated_bytes, "reserved": reserved}
            yield {"refused": at + 1, "asked": asked, "phase": phase, "free": size - before}
            yield {"segments": rows_of(card, born)}
            card.empty_cache()
            yield {"given back": before - card.reserved_bytes}
            raise
    yield {"finished": at + 1}


def start(
    environment: Settings,
    *,
    calls: Calls,
    card_gib: float,
    device: str,
    later: Settings | None = None,
) -> Run:
    """Start the training in a process that has these allocator variables and no others, and wait for its end."""
    cuda = is_cuda(device, card_gib)
    env = {OLD: None, NEW: None, **environment}
    return sandbox.run(
        training, calls, card_gib, cuda, later or {}, env=env, fresh=cuda, timeout=300
    )


def said(run: Run, word: str) -> Any:
    """The value of this word in the events of a process; 0 where it did not come so far."""
    return next((event[word] for event in run.events if word in event), 0)


def end_of(run: Run) -> str:
    """How a process ended, in words."""
    if said(run, "finished"):
        return "all four rounds"
    if said(run, "refused"):
        return f"out of memory in {said(run, 'phase')}"
    return f"does not start: {run.outcome.message}"


# Pictures ------------------------------------------------------------------------------------------------------------

WORDS = {
    "optimizer": "AdamW's state",
    "logits": "logits of all tokens",
    "parameter": "weights",
    "gradient": "gradients",
}


def largest_hole(run: Run) -> dict[str, Any]:
    """The segment with the largest hole, at the refusal."""
    return max(said(run, "segments"), key=lambda segment: segment["hole"])


def tenants(run: Run) -> str:
    """What sits in that segment, and since which phase."""
    return ", ".join(
        sorted({f"{name} since {since}" for name, _, since in largest_hole(run)["in"]})
    )


def unallocated(run: Run) -> int:
    """Bytes that are reserved and in no tensor, at the refusal."""
    return sum(segment["free"] for segment in said(run, "segments"))


def draw_segments(run: Run, title: str) -> Any:
    """The card at the refusal: its two largest segments, all others, what nobody reserved, and what was asked for.

    Of each segment the longest free piece is drawn first; what is of one kind is drawn together.
    """
    import matplotlib.pyplot as plt

    segments = sorted(said(run, "segments"), key=lambda row: -row["size"])
    rest = segments[2:]
    lump = [tenant for row in rest for tenant in row["in"]]
    bars = [("asked for, and refused", [("asked for:", said(run, "asked"))])]
    for number, row in enumerate(sorted(segments[:2], key=lambda row: -row["hole"]), 1):
        parts = [
            ("free:", row["hole"]),
            ("free, elsewhere:", row["free"] - row["hole"]),
            *sums(row["in"]),
        ]
        bars.append((f"segment {number}", parts))
    bars.append(
        (
            f"the other {len(rest)} segments",
            [*sums(lump), ("free:", sum(row["free"] for row in rest))],
        )
    )
    bars.append(("not reserved", [("free:", said(run, "free"))]))
    figure, axes = plt.subplots(figsize=(8.2, 3.0), layout="constrained")
    for place, (_, parts) in enumerate(bars):
        left = 0.0
        for name, size in parts:
            width = size / GIB
            free = name.startswith("free")
            colour = (
                "#FFFFFF"
                if free
                else "#444444"
                if name == "asked for:"
                else COLOURS.get(name, COLOURS["other"])
            )
            axes.barh(place, width, left=left, color=colour, edgecolor="#444444", lw=0.8)
            if width > 0.2:
                ink = "white" if colour in ("#444444", "#0072B2", "#D55E00", "#009E73") else "black"
                words = f"{WORDS.get(name, name)}\n{size / MIB:,.0f} MiB"
                axes.text(
                    left + width / 2, place, words, ha="center", va="center", size=7, color=ink
                )
            left += width
    axes.axvline(said(run, "asked") / GIB, color="#444444", ls=":", lw=1)
    axes.set_yticks(range(len(bars)), [name for name, _ in bars], size=8.5)
    axes.invert_yaxis()
    axes.set_xlabel("GiB of the card")
    axes.set_title(title, size=10)
    plt.close(figure)
    return figure


def sums(inside: Sequence[tuple[str, int, str]]) -> list[tuple[str, int]]:
    """Bytes by what they are for, the largest first."""
    held: dict[str, int] = {}
    for name, size, _ in inside:
        held[name] = held.get(name, 0) + size
    return sorted(held.items(), key=lambda pair: -pair[1])


def draw_runs(runs: Mapping[str, Run], card_gib: float, title: str) -> Any:
    """Reserved and allocated over the calls to the allocator, a panel for each run.

    At a refusal: the fall of the reserved line when PyTorch empties its cache, and the request on top of what is left.
    """
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(runs), figsize=(8.2, 3.2), sharey=True, sharex=True, layout="constrained"
    )
    for axes, (name, run) in zip(panels, runs.items(), strict=True):
        points = [event for event in run.events if "at" in event]
        x = [event["at"] for event in points]
        reserved = [event["reserved"] / GIB for event in points]
        allocated = [event["allocated"] / GIB for event in points]
        if said(run, "refused"):
            emptied_to = card_gib - said(run, "free") / GIB
            asked = said(run, "asked") / GIB
            x = [*x, said(run, "refused")]
            reserved, allocated = [*reserved, emptied_to], [*allocated, allocated[-1]]
            _mark_refusal(axes, x[-1], reserved[-2], emptied_to, asked)
        axes.plot(x, reserved, color="#D55E00", label="reserved")
        axes.plot(x, allocated, color="#0072B2", lw=1, label="in tensors")
        axes.axhline(card_gib, color="#444444", ls="--", lw=1)
        axes.text(0, card_gib + 0.08, f"the card: {card_gib} GiB", size=8)
        axes.set(xlabel="calls to the allocator", ylim=(0, card_gib + 1.1))
        axes.set_title(name, size=9)
    panels[0].set_ylabel("GiB")
    panels[0].legend(fontsize=8, loc="lower right")
    figure.suptitle(title, size=10)
    plt.close(figure)
    return figure


def _mark_refusal(axes: Any, x: int, before: float, emptied_to: float, asked: float) -> None:
    """The refused request as a bar on top of what is reserved after the cache was emptied, and both in words."""
    top = emptied_to + asked
    axes.plot([x, x], [emptied_to, top], color="#444444", lw=5, alpha=0.5, solid_capstyle="butt")
    axes.plot(x, top, "x", color="black", ms=8, mew=2)
    axes.plot(x, emptied_to, "v", color="#D55E00", ms=6)
    words = {"xytext": (12, 0), "textcoords": "offset points", "size": 8, "va": "center"}
    axes.annotate(f"refused: {asked:.2f} more", (x, top), **words)
    axes.annotate(f"cache emptied: {before:.2f} to {emptied_to:.2f}", (x, emptied_to), **words)


def draw_cards(cards: Mapping[str, Sequence[float]], title: str) -> Any:
    """The smallest card for every way, as the median of the seeds, and each seed as a dot."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.2, 0.36 * len(cards) + 0.9), layout="constrained")
    for place, (_, sizes) in enumerate(cards.items()):
        axes.barh(place, median(sizes), color="#D55E00" if place == 0 else "#56B4E9", height=0.6)
        axes.plot(sizes, [place] * len(sizes), "o", color="black", ms=3)
        axes.text(max(sizes) + 0.05, place, f"{median(sizes):.2f}", va="center", size=8.5)
    axes.set_yticks(range(len(cards)), cards, size=8.5)
    axes.invert_yaxis()
    axes.set(
        xlim=(0, 6),
        xlabel="GiB of the smallest simulated card on which all rounds run; dots: six seeds",
    )
    axes.set_title(title, size=10)
    plt.close(figure)
    return figure


# Smallest cards ------------------------------------------------------------------------------------------------------


def refusal_of(calls: Calls, card_gib: float, settings: str = "") -> OutOfMemory | None:
    """What a simulated card of this size refuses, or None."""
    try:
        for _ in play(calls, Allocator(int(card_gib * GIB), settings)):
            pass
    except OutOfMemory as refusal:
        return refusal
    return None


def smallest(calls: Calls, settings: str = "", high: float = 10.0) -> float:
    """The smallest simulated card on which all rounds run, in GiB, to 0.02."""
    low = 2.0
    while high - low > 0.02:
        middle = (low + high) / 2
        if refusal_of(calls, middle, settings) is None:
            high = middle
        else:
            low = middle
    return high


def largest_that_dies(calls: Calls, settings: str = "") -> float:
    """A simulated card a tenth of a GiB or so below the smallest on which the run ends, in GiB."""
    card = smallest(calls, settings) - 0.1
    while (
        refusal_of(calls, card, settings) is None
    ):  # a smaller card now and then serves where a larger one does not
        card -= 0.05
    return card


def saved(cards: Mapping[str, Sequence[float]], way: str) -> list[float]:
    """By how many GiB a way lowers the smallest card of every seed."""
    return [before - after for before, after in zip(cards["as it is"], cards[way], strict=True)]


def _smallest_of_each(
    ways: Mapping[str, Way], items: Sequence[Calls]
) -> Iterator[dict[str, float]]:
    for calls in items:
        cards = {}
        for name, way in ways.items():
            settings = way.get("settings", "")
            changes = {key: value for key, value in way.items() if key != "settings"}
            cards[name] = smallest(changed(calls, **changes), settings)
        yield cards


def smallest_cards(recorded: Sequence[Calls], ways: Mapping[str, Way]) -> dict[str, list[float]]:
    """For every way (`settings`, and arguments of `changed`) the smallest card of every run, in GiB."""
    rows = _in_two_children(_smallest_of_each, recorded, ways=ways)
    return {name: [row[name] for row in rows] for name in ways}


SCORING, LATER = "refused while scoring", "refused after the scoring"
HELD_BY = {"optimizer": "AdamW's state", "activation": "activations", "kv-cache": "activations"}


def ends_of(
    recorded: Sequence[Calls], ways: Mapping[str, Way], card_gib: float
) -> list[dict[str, Any]]:
    """For every way: of so many runs, how many are refused while scoring, after it, or run to the end.

    The last column: what lies in the segment that has the largest hole, at those refusals.
    """
    rows = []
    for name, way in ways.items():
        row = {"six seeds": name, SCORING: 0, LATER: 0, "all rounds": 0}
        inside: set[str] = set()
        for calls in recorded:
            phase, tags = _end_on(changed(calls, **way), card_gib)
            row[phase] += 1
            inside |= {HELD_BY.get(tag, WORDS.get(tag, tag)) for tag in tags}
        row["beside the largest hole"] = ", ".join(sorted(inside))
        rows.append(row)
    return rows


def _end_on(calls: Calls, card_gib: float) -> tuple[str, set[str]]:
    card = Allocator(int(card_gib * GIB))
    phase, born = "build", {}
    try:
        for _, phase, born in play(calls, card):  # noqa: B007 where it stopped
            pass
    except OutOfMemory:
        hole = max(rows_of(card, born), key=lambda segment: segment["hole"])
        inside = {tag for tag, _, _ in hole["in"]}
        return SCORING if phase.endswith("score") else LATER, inside
    return "all rounds", set()


def at_round_starts(calls: Calls, card_gib: float, settings: str = "") -> list[float]:
    """GiB in tensors as each round begins, on a simulated card, as far as the run comes."""
    card = Allocator(int(card_gib * GIB), settings)
    held: dict[str, float] = {}
    with contextlib.suppress(OutOfMemory):
        for _, phase, _ in play(calls, card):
            if phase.endswith("score"):
                held.setdefault(phase, round(card.allocated_bytes / GIB, 2))
    return list(held.values())


# Look-alikes, and the logs of the diagnosis --------------------------------------------------------------------------


def log_of(calls: Calls, card_gib: float, settings: str, canary: str) -> dict[str, Any]:
    """What a log has of a run that dies on a simulated card; sizes in GiB.

    canary   what became of a process that was started with `max_split_size_mb:1` under the script's name
    """
    refusal = refusal_of(calls, card_gib, settings)
    if refusal is None:
        raise ValueError(f"log_of: the run ends on {card_gib} GiB, a log of its death was expected")
    sizes = {"tried": refusal.requested, "free": refusal.free, "unallocated": refusal.unallocated}
    figures = {name: round(size / GIB, 2) for name, size in sizes.items()}
    return {"allocated": at_round_starts(calls, card_gib, settings), **figures, "canary": canary}


READ, UNREAD = "does not start", "runs"
CAUSES = ("setting not read", "leak", "too big")


def logs(calls: Calls) -> list[tuple[dict[str, Any], str]]:
    """Six logs and their causes."""
    leak = leaking(calls)
    with_setting, without = largest_that_dies(leak, ON), largest_that_dies(leak)
    return [
        (log_of(calls, 4.25, "", UNREAD), "setting not read"),
        (log_of(calls, 2.25, ON, READ), "too big"),
        (log_of(leak, with_setting, ON, READ), "leak"),
        (log_of(calls, 4.4, "", UNREAD), "setting not read"),
        (log_of(leak, without, "", UNREAD), "leak"),
        (log_of(calls, 2.5, "", UNREAD), "too big"),
    ]


def diagnosis(calls: Calls) -> Callable[[Callable[[dict], str]], Report]:
    """The judge of exercise B: names the cause of all six logs."""

    def judge(diagnose: Callable[[dict], str]) -> Report:
        wrong = []
        for number, (log, cause) in enumerate(logs(calls), 1):
            answer = diagnose(dict(log))
            if answer != cause:
                wrong.append(f"log {number}: {answer!r}, and it is a case of {cause!r}")
        seen = {"logs": 6, "right": 6 - len(wrong)}
        return Report(
            "diagnose", "the cause of every log", not wrong, seen, wrong[0] if wrong else ""
        )

    return judge


# The judge of exercise A ---------------------------------------------------------------------------------------------


def process_of(reads: Sequence[str]) -> Callable[[Settings], bool]:
    """`starts` for a torch that reads the first of these variables that is set."""

    def starts(environment: Settings) -> bool:
        name = next((name for name in reads if name in environment), None)
        return name is None or environment[name] != CANARY

    return starts


def real_process(device: str) -> Callable[[Settings], bool]:
    """`starts` for the torch that is installed here: a process is started for every question."""

    def starts(environment: Settings) -> bool:
        cuda = is_cuda(device)
        env = {OLD: None, NEW: None, **environment}
        run = sandbox.run(first_use, cuda, env=env, fresh=cuda, timeout=300)
        return "max_split_size_mb" not in run.outcome.message

    return starts


PROCESSES = {
    "a torch that reads the old name alone": (OLD,),
    "a torch that reads the new name if the old one is not set": (OLD, NEW),
    "a torch that reads the new name first": (NEW, OLD),
    "a process that set both too late": (),
}
ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {NEW: ON},
    {OLD: ON},
    {OLD: "expandable_segments:False", NEW: ON},
    {"HOME": "/root"},
)


def probe(device: str) -> Callable[[Callable[..., Any]], Report]:
    """The judge of exercise A: which variable is read, for four kinds of processes, and for a real one here."""

    def judge(which_is_read: Callable[..., Any]) -> Report:
        right = 0
        for kind, reads in PROCESSES.items():
            for environment in ENVIRONMENTS:
                expected = next((name for name in reads if name in environment), None)
                answer = which_is_read(dict(environment), process_of(reads))
                if answer != expected:
                    hint = (
                        f"In {kind}, started with {environment}: {answer!r}, expected {expected!r}."
                    )
                    return Report(
                        "which_is_read", "the variable that is read", False, {"right": right}, hint
                    )
                right += 1
        answer = which_is_read(dict(ENVIRONMENTS[2]), real_process(device))
        seen = {"right": right, "of": 16, "both set, here": answer}
        hint = (
            "" if answer == OLD else "The process that was really started here reads another one."
        )
        return Report("which_is_read", "the variable that is read", answer == OLD, seen, hint)

    return judge
