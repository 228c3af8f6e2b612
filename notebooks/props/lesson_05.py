"""What lesson 05 uses and does not teach: its model and card, the loop around the update, pictures, and the diagnosis.

Without a GPU that has room the card is simulated: the model's tensors are fake (sizes and lifetimes, no data), and a
tap plays each allocation to the simulator of PyTorch's allocator. The evaluation and the update are arguments
everywhere, and stand in the notebook.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import memory
from labkit.checks.report import Report
from labkit.events import Run, Step

from .card import Allocator, CardMeter, OutOfMemory, Tap

MIB, GIB = 2**20, 2**30
VOCABULARY = 50_257
CARD = 8 * GIB
STEPS = 7
EVALUATE_BEFORE = (3, 5, 7)
ROWS, LENGTH = 8, 448  # completions of an update, and their tokens
EVALUATED_ROWS, SHORTEST, LONGEST = 3, 340, 372  # of an evaluation's batches
NAMES = ("a leak", "fragments", "another owner", "a longer batch", "too big at once")
DIED_OF = ("a leak", "too big at once", "a longer batch", "a longer batch")  # the runs compared
ORANGE, BLUE, GREY = "#D55E00", "#0072B2", "#999999"

Evaluate = Callable[[Any, Sequence[torch.Tensor], list[Any]], None]
Update = Callable[[Any, Any, torch.Tensor], None]


class Numbers(TorchDispatchMode):
    """`.item()` of a tensor without data gives 0 in place of an error."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            return 0.0


def place(device: str) -> str:
    """ "cuda" where a GPU has room for the card, else "cpu": a simulated card. Exported allocator settings go."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        os.environ.pop(name, None)
    free = torch.cuda.mem_get_info()[0] if device != "cpu" and torch.cuda.is_available() else 0
    return "cuda" if free > CARD + GIB else "cpu"


def at_once(where: str) -> int | None:
    """Runs that may go side by side: on a GPU as many as it has room for cards; None: one for each core."""
    if where != "cuda":
        return None
    room = torch.cuda.mem_get_info()[0] // (CARD + GIB)  # a GiB for each run's CUDA context
    return max(1, min(room, os.cpu_count() or 1))


def card_name(where: str) -> str:
    if where == "cuda":
        return f"{torch.cuda.get_device_name()}, limited to {CARD // GIB} GiB"
    return f"a simulated card of {CARD // GIB} GiB"


@contextlib.contextmanager
def card(where: str, nbytes: int = CARD, stacks: bool = False) -> Iterator[Any]:
    """A card of this size, and its meter. With `stacks` each block knows the lines that asked for it."""
    if where == "cuda":
        if stacks:
            torch.cuda.memory._record_memory_history(stacks="python")
        with memory.limit(nbytes, "cuda"):
            yield memory.meter("cuda")
    else:
        with Tap(nbytes, fake=True, stacks=stacks) as tap, Numbers():
            yield CardMeter(tap)


def empty_cache() -> None:
    """`torch.cuda.empty_cache()`, on the GPU or on the simulated card that is in use."""
    memory.meter().empty_cache()


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Eval mode; afterwards each submodule has its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def tokens(where: Any, rows: int, length: int) -> torch.Tensor:
    return torch.zeros(rows, length, dtype=torch.long, device=where)


def build(where: str) -> Any:
    """GPT-2 with three layers, full width and full vocabulary, no dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    with torch.device(where):
        # 2,048 positions: a longer batch shall ask for memory, not for a position that has no row
        sizes = {"n_layer": 3, "n_positions": 2048}
        model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, **off))
    model.loss_type = "ForCausalLM"
    with torch.no_grad():  # on a GPU cuBLAS takes its workspace here, not in a measurement
        model(input_ids=tokens(model.device, 1, 8))
    return model.train()


def batches(dice: random.Random, where: Any) -> list[torch.Tensor]:
    """The two batches of an evaluation."""
    sizes = [dice.randrange(SHORTEST, LONGEST) for _ in range(2)]
    return [tokens(where, EVALUATED_ROWS, size) for size in sizes]


def loop(
    evaluate: Evaluate,
    update: Update,
    seed: int,
    meter: Any,
    where: str,
    rows: int = ROWS,
    lengths: dict[int, int] | None = None,
) -> Iterator[dict[str, int] | Step]:
    """Seven updates, and an evaluation of two batches before the third, fifth and seventh.

    rows     completions of an update
    lengths  step -> tokens of its completions, where they are not 448

    Yields {"held": bytes, "evaluation": bytes} before each update, the second only after an evaluation: its peak over
    what was held before it. And after each update a `Step`: "held_bytes", "peak_bytes".
    """
    dice, model = random.Random(seed), build(where)
    kept: list[Any] = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(1, STEPS + 1):
        evaluation = {}
        if step in EVALUATE_BEFORE:
            meter.reset_peak()
            before = meter.read().allocated
            evaluate(model, batches(dice, model.device), kept)
            evaluation = {"evaluation": meter.read().peak_allocated - before}
        held = meter.read().allocated
        yield {"held": held} | evaluation
        meter.reset_peak()
        update(model, optimizer, tokens(model.device, rows, (lengths or {}).get(step, LENGTH)))
        now = meter.read()
        used = {"memory_allocated": now.allocated, "memory_reserved": now.reserved}
        more = {"peak_bytes": now.peak_allocated, "held_bytes": held}
        yield Step(step=step, round=step, **used, extra=more)


def train(
    evaluate: Evaluate, update: Update, seed: int, *, where: str, **settings: Any
) -> Iterator[Any]:
    """`loop` on a card of 8 GiB."""
    with card(where) as meter:
        yield from loop(evaluate, update, seed, meter, where, **settings)


def left_by(
    evaluations: dict[str, Evaluate], seed: int, *, where: str
) -> Iterator[tuple[str, tuple[int, int]]]:
    """(name, (bytes that one evaluation left, its peak over what was held before it)), each on a card of its own."""
    for name, evaluate in evaluations.items():
        with card(where) as meter:
            model, kept = build(where), []
            meter.reset_peak()
            before = meter.read().allocated
            evaluate(model, batches(random.Random(seed), model.device), kept)
            after = meter.read()
            yield name, (after.allocated - before, after.peak_allocated - before)


def blocks(
    evaluate: Evaluate, update: Update, seed: int, *, where: str
) -> Iterator[dict[str, Any]]:
    """`loop` until the first evaluation is over; yields each live block.

    "size", bytes; "asked_by", the line of ours next to the call; "part", which part of the evaluated model it is
    """
    with card(where, stacks=True) as meter:
        run = loop(evaluate, update, seed, meter, where)
        numbers = (event["held"] for event in run if isinstance(event, dict))
        for _ in range(EVALUATE_BEFORE[0]):
            next(numbers)
        segments = (
            torch.cuda.memory._snapshot()["segments"]
            if where == "cuda"
            else meter.simulated.snapshot()
        )
        for block in (block for segment in segments for block in segment["blocks"]):
            if block["state"] == "active_allocated":
                ours = [frame for frame in block["frames"] if _is_ours(frame)]
                by = f"{ours[0]['name']}, line {ours[0]['line']}" if ours else "unknown"
                part = _part(block) if by.startswith("evaluate") else ""
                yield {"size": block["size"], "asked_by": by, "part": part}
        run.close()


def _part(block: dict[str, Any]) -> str:
    """Which part of the evaluated model asked for this block."""
    frames = block["frames"]
    if any("loss_utils" in frame["filename"] for frame in frames):
        return "the loss: log-softmax of the logits"
    if any("cache_utils" in frame["filename"] for frame in frames):
        return "keys and values of the cache"
    logits = 4 * EVALUATED_ROWS * SHORTEST * VOCABULARY
    return "the logits" if block["size"] >= logits else "inside the three layers"


def _is_ours(frame: dict[str, Any]) -> bool:
    """Code of the lesson, and not the mode that stands between it and torch."""
    theirs = (
        "site-packages",
        "dist-packages",
        "labkit",
        f"props{os.sep}card",
        "<frozen",
        "/lib/python",
        "multiprocessing",
    )
    here = frame["name"] == "__torch_dispatch__"
    return not here and not any(part in frame["filename"] for part in theirs)


# ---- what a run says


def held(run: Run) -> list[int]:
    """Bytes allocated before each update, the refused one included."""
    return [event["held"] for event in run.events if isinstance(event, dict)]


def needs(run: Run) -> list[int]:
    """What each update took at its peak over what was held before it; without the first, in which AdamW's state comes."""
    return [int(step["peak_bytes"] - step["held_bytes"]) for step in run.steps[1:]]


def evaluations(run: Run) -> list[int]:
    """What each evaluation took at its peak over what was held before it."""
    events = [event for event in run.events if isinstance(event, dict)]
    return [event["evaluation"] for event in events if "evaluation" in event]


def levels(run: Run) -> str:
    """What was held before update 2 and before the last one, in words."""
    sizes = [f"{size / GIB:.2f}" for size in held(run)]
    if len(sizes) < 3:
        return f"{sizes[-1]} (update {len(sizes)})"
    return f"{sizes[1]} (update 2), {sizes[-1]} (update {len(sizes)})"


def halves(left: dict[str, tuple[int, int]], room: int) -> list[dict[str, Any]]:
    """What one evaluation leaves and takes, and the number of them after which what is left passes `room` bytes."""
    return [
        {
            "": name,
            "one evaluation leaves, GiB": f"{size / GIB:.2f}",
            "its own peak, GiB": f"{peak / GIB:.2f}",
            "evaluations until held + need pass the card": room // size + 1
            if size > MIB
            else "never",
        }
        for name, (size, peak) in left.items()
    ]


def readings(died: dict[str, Run]) -> list[dict[str, str]]:
    """A line of a table for each run that died: what was held, and what `labkit.memory.owner` makes of it."""
    return [
        {
            "": name,
            "held, GiB": levels(run),
            "with what was held": memory.owner(run.outcome.message, held(run)).verdict,
            "by the message alone": memory.owner(run.outcome.message).verdict,
        }
        for name, run in died.items()
    ]


# ---- pictures


def staircase(run: Run, title: str) -> Any:
    """Each update in two parts: held before it, and its own need. A refused one gets the need of the one before."""
    import matplotlib.pyplot as plt  # here: 0.4 s that no child of the sandbox needs

    sizes = [size / GIB for size in held(run)]
    taken = [(step["peak_bytes"] - step["held_bytes"]) / GIB for step in run.steps]
    figure, axes = plt.subplots(figsize=(7.4, 3.4), layout="constrained")
    numbers = range(1, len(sizes) + 1)
    axes.bar(numbers, sizes, color=ORANGE, label="held before the update")
    under, done = sizes[: len(taken)], range(1, len(taken) + 1)
    axes.bar(done, taken, bottom=under, color="#F3C9A8", label="the update's own need, at its peak")
    if taken and len(sizes) > len(taken):
        last, bottom, need = len(sizes), sizes[-1], taken[-1]
        style = {"color": "white", "edgecolor": "black", "linestyle": ":"}
        axes.bar(last, need, bottom=bottom, label="the same need: refused", **style)
        text = f"{bottom:.2f} + {need:.2f}\n= {bottom + need:.2f}"
        axes.annotate(
            text, (last, bottom + need), (0, 3), textcoords="offset points", ha="center", fontsize=8
        )
    _evaluations(axes, len(sizes))
    axes.set(xlabel="update", ylabel="GiB", ylim=(0, 11), xlim=(0.4, STEPS + 0.6), title=title)
    axes.legend(fontsize=7.5, loc="upper left", ncols=3)
    plt.close(figure)
    return figure


def stairs(arms: dict[str, dict[int, Run]], title: str) -> Any:
    """What was held before each update, every arm and seed; a cross where a run died."""
    import matplotlib.pyplot as plt  # here: 0.4 s that no child of the sandbox needs

    figure, axes = plt.subplots(figsize=(7.4, 3.2), layout="constrained")
    for (name, runs), colour in zip(arms.items(), (ORANGE, BLUE), strict=False):
        for at, run in enumerate(runs.values()):
            levels = [size / GIB for size in held(run)]
            numbers = list(range(1, len(levels) + 1))
            label = f"{name}, seeds {', '.join(map(str, runs))}" if at == 0 else None
            axes.plot(numbers, levels, color=colour, marker=".", alpha=0.8, label=label)
            if len(levels) > len(run.steps):
                axes.plot(numbers[-1:], levels[-1:], color=colour, marker="X", markersize=10)
    _evaluations(axes, STEPS, 5.6)
    axes.set(
        xlabel="update (a cross: it dies in this one)",
        ylabel="held before it, GiB",
        ylim=(0, 8.6),
        title=title,
    )
    axes.legend(fontsize=8, loc="center left")
    plt.close(figure)
    return figure


def _evaluations(axes: Any, until: int, height: float = 0.1) -> None:
    axes.axhline(CARD / GIB, color="#444444", linestyle="--", linewidth=1)
    axes.annotate("the card", (0.5, CARD / GIB), (0, 3), textcoords="offset points", fontsize=8)
    for step in EVALUATE_BEFORE:
        if step <= until:
            axes.axvline(step - 0.5, color=GREY, linewidth=1, linestyle=":")
            axes.annotate("evaluation", (step - 0.5, height), ha="center", fontsize=7, rotation=90)


# ---- the diagnosis


def unseen(seed: int) -> Iterator[tuple[str, str, list[int]]]:
    """(name, message, held) of one run for each name, on simulated cards with other numbers for each seed."""
    dice = random.Random(seed)
    for name in NAMES:
        gib = dice.choice((8, 12, 16))
        total, foreign = gib * GIB, gib * GIB // 2 if name == "another owner" else 0
        gpu = Allocator(total, others=foreign, context=300 * MIB)
        start, number = dice.randrange(500, 900) * MIB, dice.randrange(6, 12)
        levels = [start // 3] + [start] * (number - 1)
        gpu.malloc(start)
        ask = dice.randrange(900, 1100) * MIB
        if name == "a leak":
            jump = dice.randrange(500, 700) * MIB
            leaked = 0
            while gpu.free_bytes > jump + ask:
                gpu.malloc(jump)
                leaked += jump
            share = [leaked * at // (number - 2) for at in range(number - 1)]
            levels = [start // 3] + [start + more for more in share]
        elif name == "fragments":
            size = 1000 * MIB
            pieces = [gpu.malloc(size) for _ in range((total - start) // size - 1)]
            for piece in pieces:
                gpu.free(piece)
            for _ in pieces:
                gpu.malloc(600 * MIB)
            ask = 1200 * MIB
        elif name == "too big at once":
            levels = [start // 3]
        if name in ("a longer batch", "too big at once"):
            ask = total - dice.randrange(100, 400) * MIB
        yield name, _refusal(gpu, ask), levels


def _refusal(gpu: Allocator, ask: int) -> str:
    try:
        while True:
            gpu.malloc(ask)
    except OutOfMemory as no:
        return str(no)


def numbers(message: str) -> dict[str, int | None]:
    """The figures of a message, in bytes, without a verdict."""
    read = memory.owner(message)
    return {
        name: getattr(read, name) for name in ("tried", "total", "free", "allocated", "unallocated")
    }


def names_all_five(diagnose: Callable[..., Any]) -> Report:
    """The check of the diagnosis: each cause is named, on four seeds that no cell has used."""
    claim = "each of the five causes is named"
    for seed in (1001, 1002, 1003, 1004):
        for name, message, levels in unseen(seed):
            said = diagnose(numbers(message), levels)
            if said != name:
                hint = f"For a run with {name!r} it returned {said!r}. The message: {message[:150]} ..."
                return Report("names_all_five", claim, False, {}, hint)
    return Report("names_all_five", claim, True)
