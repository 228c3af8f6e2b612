"""What page 07 uses and does not teach: recordings of a program, the processes that play them, and two judges.

The program whose memory this is, the environments and what is changed in a run stand in the notebook. A run is recorded
once, on fake tensors, as a list of requests and frees. A process then plays that list to a card: on CUDA to the device's
own allocator, else to a simulated card that has the settings that torch read in that process. The pictures stand in
`lesson_07_pictures`.
"""

from __future__ import annotations

import contextlib
import os
import random
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
ROUNDS, ANSWERS, LAYERS = 4, 16, 3
FOLLOWED = "followed"  # the tag of the one tensor that the page follows

Calls = list[
    tuple
]  # ("malloc", number, bytes, tag), ("free", number), ("mark", phase), ("empty_cache",), ...
Settings = Mapping[str, str]
Pieces = Sequence[
    tuple[str, int]
]  # a segment in order: (what lies there, bytes); "free" where nothing lies

# ------------------------------------------------------------------------------------------------- the recording


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
    before = tap.build(lambda: _adapted(_model(), lora)) if lora else None
    half = torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast)
    with tap, torch.device("cpu"), half:
        model = (before or _model()).train()
        tap.adopt(model)
        if checkpointing:
            _checkpoint(model)
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        step = optimizer(trained, lr=1e-5)
        for number, length in enumerate(lengths or lengths_of(seed), 1):
            # which tokens they are makes no difference to memory
            answers = torch.zeros(ANSWERS, length, dtype=torch.long)
            mark = lambda phase, n=number: tap.mark(f"round {n}, {phase}")
            grpo_round(model, step, answers, torch.ones(ANSWERS // 2, 1), mark)
    return tap.ledger.log


def _model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(n_layer=LAYERS, **dropout))


def _adapted(model: Any, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(r=rank, target_modules=["c_attn"], fan_in_fan_out=True)
    with warnings.catch_warnings():  # peft 0.21 reads a name that transformers 5.23 retires
        warnings.simplefilter("ignore")
        return get_peft_model(model, adapter).get_base_model()


def _checkpoint(model: Any) -> None:
    model.config.use_cache = False
    model.enable_input_require_grads()  # frozen weights (LoRA): else there is nothing to go back through
    with warnings.catch_warnings():  # the name has changed in transformers 5.23
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable({"use_reentrant": False})


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


# ------------------------------------------------------------------------- a card, and a process that plays to it


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


def segments_of(card: Any) -> list[Pieces]:
    """Every segment of a card. Neighbours that are alike are one piece."""
    rows: list[Pieces] = []
    for segment in card.snapshot():
        pieces: list[tuple[str, int]] = []
        for block in segment["blocks"]:
            tag, size = block["tag"] or "free", block["size"]
            if pieces and pieces[-1][0] == tag:
                size += pieces.pop()[1]
            pieces.append((tag, size))
        rows.append(pieces)
    return rows


def play(calls: Calls, card: Any) -> Iterator[tuple[int, str]]:
    """Play a recorded run to a card; yields (the call's number, the phase) after every call."""
    live: dict[int, Any] = {}
    phase = "build"
    for at, (call, *rest) in enumerate(calls):
        if call == "mark":
            phase = rest[0]
        elif call == "malloc":
            live[rest[0]] = card.malloc(rest[1], tag=rest[2])
        elif call == "free" and rest[0] in live:
            card.free(live.pop(rest[0]))
        elif call == "relabel" and rest[0] in live and hasattr(live[rest[0]], "tag"):
            live[rest[0]].tag = rest[1]  # the recorder learns later what it was for
        elif call == "empty_cache":
            card.empty_cache()
        yield at, phase


def training(
    calls: Calls, card_gib: float, cuda: bool, later: Settings, watch: Collection[int]
) -> Iterator[dict[str, Any]]:
    """In a process of its own: read the settings, then play the run to a card of this size.

    later   variables that the script sets after the first use of the device
    """
    read = first_use(cuda)
    yield {"read": read}
    os.environ.update(later)
    size = int(card_gib * GIB)
    card = Device() if cuda else Allocator(size, read)
    at, phase = -1, "build"
    with memory.limit(size, "cuda") if cuda else contextlib.nullcontext():
        try:
            for at, phase in play(calls, card):
                if at + 1 in watch:
                    yield {"call": at + 1, "phase": phase, **_seen(card)}
        except (OutOfMemory, torch.OutOfMemoryError):
            before, asked = card.reserved_bytes, calls[at + 1][2]
            yield {"call": at + 1, "phase": phase, **_seen(card)}
            yield {"refused": at + 1, "asked": asked, "free": size - before}
            card.empty_cache()
            yield {"given back": before - card.reserved_bytes}
            raise
    yield {"served": at + 1}


def _seen(card: Any) -> dict[str, Any]:
    return {"reserved": card.reserved_bytes, "segments": segments_of(card)}


def start(
    environment: Settings,
    *,
    calls: Calls,
    card_gib: float,
    device: str,
    later: Settings | None = None,
    watch: Collection[int] = (),
) -> Run:
    """Start the training in a process that has these allocator variables and no others, and wait for its end.

    watch   the calls before which it reports what lies on the card
    """
    cuda = is_cuda(device, card_gib)
    env = {OLD: None, NEW: None, **environment}
    return sandbox.run(
        training, calls, card_gib, cuda, later or {}, set(watch), env=env, fresh=cuda, timeout=300
    )


def start_with(make: Callable[..., Any], *inherited: Any, **settings: Any) -> Run:
    """`start`, in the environment that a reader's function makes. One that makes none has a run that ended at once."""
    made = sandbox.run(_environment, make, inherited, timeout=30)
    return start(made.events[0], **settings) if made.outcome else made


def _environment(make: Callable[..., Any], inherited: Sequence[Any]) -> Iterator[dict[str, str]]:
    given = [dict(one) if isinstance(one, Mapping) else one for one in inherited]
    made = make(*given)
    if fault := fault_of(made):
        raise TypeError(fault)
    yield dict(made)


def fault_of(environment: Any) -> str:
    """Why no process can have this environment, in words; "" where one can."""
    if not isinstance(environment, Mapping):
        return f"a dict of variables is expected, it returned {environment!r}"
    for name, text in environment.items():
        if not isinstance(name, str) or not isinstance(text, str):
            return f"names and values are texts; it has {name!r}: {text!r}"
        if not name or "=" in name or "\0" in name + text:
            return f"no process can have a variable {name!r}: {text!r}"
    return ""


def value(run: Run, word: str) -> Any:
    """What the process reported under this word; 0 where it did not come so far."""
    return next((event[word] for event in run.events if word in event), 0)


def moments(run: Run) -> dict[int, dict[str, Any]]:
    """Call -> what lay on the card before it; at a refusal after PyTorch had given back what it could."""
    return {event["call"]: event for event in run.events if "call" in event}


def end_of(run: Run) -> str:
    """How a process ended, in words."""
    if value(run, "served"):
        return "all four rounds"
    if value(run, "refused"):
        last = max(moments(run))
        return f"out of memory in {moments(run)[last]['phase']}"
    return f"does not start: {run.outcome.message}"


def rows_of(runs: Mapping[str, Run]) -> list[dict[str, str]]:
    """A row for each process: what torch read there, and its end."""
    rows = []
    for name, run in runs.items():
        row = {"the process has": name, "torch read": value(run, "read") or "nothing"}
        rows.append(row | {"its end": end_of(run)})
    return rows


def reaction(run: Run) -> str:
    """What a process did when torch read its variables."""
    return "starts" if any("read" in event for event in run.events) else "refuses to start"


def longest_free(segments: Sequence[Pieces]) -> int:
    """Bytes of the longest free piece."""
    return max((size for pieces in segments for tag, size in pieces if tag == "free"), default=0)


def beside_the_longest(segments: Sequence[Pieces]) -> dict[str, int]:
    """What lies in the segment that has the longest free piece: what for -> MiB."""
    longest = longest_free(segments)
    segment = next(pieces for pieces in segments if ("free", longest) in pieces)
    sizes: dict[str, int] = {}
    for tag, size in segment:
        sizes[tag] = sizes.get(tag, 0) + size
    return {tag: round(size / MIB) for tag, size in sorted(sizes.items()) if tag != "free"}


# ------------------------------------------------------------------------------------------------ simulated cards


def refusal_of(calls: Calls, card_gib: float, settings: str = "") -> OutOfMemory | None:
    """What a simulated card of this size refuses, or None."""
    try:
        for _ in play(calls, Allocator(int(card_gib * GIB), settings)):
            pass
    except OutOfMemory as refusal:
        return refusal
    return None


def card_after_round_1(calls: Calls, card_gib: float, settings: str = "") -> Allocator:
    """A simulated card of this size, as the first round leaves it."""
    card = Allocator(int(card_gib * GIB), settings)
    for _, phase in play(calls, card):
        if phase == "round 1, over":
            break
    return card


def in_large_segments(calls: Calls, card_gib: float, phase: str) -> str:
    """What lies in each segment of more than a GiB when this phase begins, in words."""
    card = Allocator(int(card_gib * GIB))
    for _, now in play(calls, card):
        if now == phase:
            break
    words = []
    for pieces in segments_of(card):
        if sum(size for _, size in pieces) > GIB:
            tags = {tag for tag, _ in pieces if tag != "free"}
            words.append(" and ".join(sorted(tags)) or "nothing")
    return ", ".join(words)


def last_moment(
    calls: Calls, card_gib: float, settings: str = ""
) -> tuple[int, list[Pieces], int, bool]:
    """(the call, the segments, bytes asked, False) before the refusal; of a run that finishes the last is True, and the
    moment that before the largest request of round 2's scoring."""
    card = Allocator(int(card_gib * GIB), settings)
    begin, end = at_mark(calls, "round 2, score"), at_mark(calls, "round 2, learn")
    sizes = {at: calls[at][2] for at in range(begin, end) if calls[at][0] == "malloc"}
    wanted = max(sizes, key=lambda at: (sizes[at], at))
    at, seen = -1, None
    try:
        for at, _ in play(calls, card):
            if at == wanted - 1:
                seen = (wanted, segments_of(card), sizes[wanted], True)
    except OutOfMemory as refusal:
        return at + 1, segments_of(card), refusal.requested, False
    assert seen is not None, "the run came past round 2"
    return seen


def most_in_tensors(calls: Calls) -> float:
    """GiB: the most that is in tensors at one time."""
    card = Allocator(40 * GIB)
    for _ in play(calls, card):
        pass
    return card.peak_allocated_bytes / GIB


def lost_to_pieces(calls: Calls, settings: str = "") -> float:
    """GiB: the smallest simulated card on which the run finishes, to 0.02, minus the most that is in tensors."""
    peak = most_in_tensors(calls)
    low, high = peak - 0.02, 3 * peak
    while high - low > 0.02:
        middle = (low + high) / 2
        if refusal_of(calls, middle, settings) is None:
            high = middle
        else:
            low = middle
    return high - peak


Lost = dict[str, list[float]]  # arm -> GiB that each seed loses to pieces


def lost_and_peak(recorded: Sequence[Calls], arms: Mapping[str, str]) -> tuple[Lost, list[float]]:
    """Of several runs: what each loses under each of the allocator's settings, and the most that it has in tensors."""
    lost_by_arm: Lost = {}
    for arm, text in arms.items():
        lost_by_arm[arm] = [lost_to_pieces(calls, text) for calls in recorded]
    return lost_by_arm, [most_in_tensors(calls) for calls in recorded]


def lost(
    rows: Mapping[str, Mapping[str, Any]], arms: Mapping[str, str], **common: Any
) -> Iterator[tuple[str, Lost, list[float]]]:
    """For each row: its name, and what `lost_and_peak` says of its seeds. Two rows run at a time.

    rows    name -> `seeds`, `grpo_round` and what `record` takes beside; they go over the common ones
    arms    name -> the allocator's settings
    """
    names = list(rows)
    for at in range(0, len(names), 2):
        jobs = {name: {**common, **rows[name]} for name in names[at : at + 2]}
        for name, run in sandbox.run_all(_lost, jobs, timeout=300, arms=arms).items():
            by_arm, peaks = events_of(run, name)[0]
            yield name, by_arm, peaks


def _lost(
    arms: Mapping[str, str], seeds: Sequence[int], **settings: Any
) -> Iterator[tuple[Lost, list[float]]]:
    recorded = [record(seed=seed, **settings) for seed in seeds]
    yield lost_and_peak(recorded, arms)


# ------------------------------------------------------------------------------------------------------ the judges

CANARY = "max_split_size_mb:1"  # a reader of the variable must refuse it: at least 20 is allowed
OFF = "expandable_segments:False"
INHERITED: tuple[dict[str, str], ...] = (
    {OLD: OFF, "HOME": "/root", "NCCL_DEBUG": "WARN"},
    {OLD: OFF, NEW: OFF, "LANG": "C"},
    {"HOME": "/root"},
)
# Which names a torch reads, the first that is set: those that there are, and two that there may be.
KINDS: tuple[tuple[str, ...], ...] = ((OLD,), (OLD, NEW), (NEW, OLD), ())


def names_read(device: str) -> tuple[str, ...]:
    """The names that torch reads here, the first that is set: found by processes that should refuse to start."""
    cuda = is_cuda(device)
    cases = {
        f"{name}, {others}": {"env": {OLD: others, NEW: others, name: CANARY}}
        for others in (ON, None)
        for name in (OLD, NEW)
    }
    runs = sandbox.run_all(first_use, cases, timeout=300, cuda=cuda, fresh=cuda)
    dead = [case.partition(",")[0] for case, run in runs.items() if not run.outcome]
    return tuple(dict.fromkeys(dead))


def text_read(environment: Settings, reads: Sequence[str]) -> str:
    """The text that a torch takes its settings from; it reads the first of these names that is set."""
    return next((environment[name] for name in reads if name in environment), "")


def judge_environment(
    my_environment: Callable[..., Any], *, calls: Calls, card_gib: float, reads: Sequence[str]
) -> Report:
    """From three launchers: is every call served on a simulated card, and every other variable as it was?"""
    claim = "every call is served, and no other variable has changed"

    def failed(hint: str, **measured: Any) -> Report:
        return Report("environment", claim, False, measured, hint)

    for inherited in INHERITED:
        made = my_environment(dict(inherited))
        if fault := fault_of(made):
            return failed(f"Here {fault}.")
        allocator = {name: made[name] for name in (OLD, NEW) if name in made}
        others = {name: text for name, text in made.items() if name not in allocator}
        if others != {name: text for name, text in inherited.items() if name not in (OLD, NEW)}:
            return failed(
                f"From {inherited} it makes {made}. Leave the other variables as they are."
            )
        text = text_read(allocator, reads)
        try:
            refusal = refusal_of(calls, card_gib, text)
        except ValueError as error:
            return failed(f"Started with {allocator}, torch refuses to start: {error}.")
        if refusal is not None:
            words = f"{refusal.requested / MIB:,.0f} MiB are refused"
            return failed(
                f"Inherited: {inherited}. It makes {allocator}, torch reads {text!r}, and {words}."
            )
    return Report("environment", claim, True, {"served": len(calls), "launchers": len(INHERITED)})


def judge_canary(my_canary: Callable[..., Any]) -> Report:
    """Of four kinds of torch: does one that reads the name refuse to start, and does any other live?"""
    claim = "a torch that reads the name refuses to start, any other starts"
    right = 0
    for inherited in ({OLD: OFF, NEW: ON, "HOME": "/root"}, {NEW: ON}, {OLD: ON}):
        for name in (name for name in (OLD, NEW) if name in inherited):
            made = my_canary(dict(inherited), name)
            if fault := fault_of(made):
                return Report("canary", claim, False, {"right": right}, f"Here {fault}.")
            changed = {one for one in {*made, *inherited} if made.get(one) != inherited.get(one)}
            if changed - {name}:
                hint = f"It also changed {sorted(changed - {name})}. Change {name} alone."
                return Report("canary", claim, False, {"right": right}, hint)
            for reads in KINDS:
                first = next((one for one in reads if one in inherited), None)
                if _starts(text_read(made, reads)) == (first == name):
                    what = f"a torch that reads {first or 'neither name'}"
                    end = "refuses to start" if first != name else "starts"
                    hint = f"From {inherited}, asked about {name}, it makes {made}: {what} {end}."
                    return Report("canary", claim, False, {"right": right}, hint)
                right += 1
    return Report("canary", claim, True, {"right": right, "of": right})


def _starts(text: str) -> bool:
    try:
        Allocator(GIB, text)
    except ValueError:
        return False
    return True
