"""What lesson 05 uses and does not teach: its model and card, the loop around the update, what a run says.

Without a GPU that has room the card is simulated: the model's tensors are fake (sizes and lifetimes, no data), and a
tap plays each allocation to the simulator of PyTorch's allocator. The evaluation and the update are arguments
everywhere, and stand in the notebook. Its pictures stand in `lesson_05_pictures`, its judges in `lesson_05_judges`.
"""

from __future__ import annotations

import contextlib
import os
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import memory, sandbox
from labkit.events import Run, Step

from .card import CardMeter, Tap

MIB, GIB = 2**20, 2**30
CARD = 8 * GIB
UPDATES = 9
ROWS, LENGTH = 8, 448  # completions of an update, and their tokens
SHORTEST, LONGEST = 340, 372  # tokens of an evaluation's batches: the seed draws them

Evaluate = Callable[[Any, Sequence[torch.Tensor], list[Any]], None]
Update = Callable[[Any, Any, torch.Tensor], Any]


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
def model_on_card(
    where: str, card: int, kind: str = "float32", layers: int = 3, stacks: bool = False
) -> Iterator[tuple[Any, Any]]:
    """A model on a card of so many bytes, and the card's meter. With `stacks` a block knows who asked for it."""
    if where == "cuda":
        if stacks:
            torch.cuda.memory._record_memory_history(stacks="python")
        with memory.limit(card, "cuda"):
            yield build(where, kind, layers), memory.meter("cuda")
        return
    tap = Tap(card, fake=True, stacks=stacks)
    model = None
    if kind in ("bfloat16", "LoRA"):  # torch cannot move or convert a fake model
        model = tap.build(lambda: build(None, kind, layers))
    with tap, Numbers():
        if model is None:
            model = build(where, kind, layers)
        else:
            tap.adopt(model)
        yield model, CardMeter(tap)


def build(where: str | None, kind: str, layers: int) -> Any:
    """GPT-2 with three of its twelve layers, full width and full vocabulary, no dropout.

    where  None: on torch's default device, and the model has not run yet
    kind   "float32", "bfloat16", "LoRA" (float32, adapters on the attention's matrix), "checkpointing" (float32)
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    with torch.device(where) if where else contextlib.nullcontext():
        sizes = {"n_layer": layers, "n_positions": 2048}
        model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, **off))
    model.loss_type = "ForCausalLM"
    if kind == "bfloat16":
        model = model.bfloat16()
    if kind == "checkpointing":
        model.gradient_checkpointing_enable()
    if kind == "LoRA":
        from peft import LoraConfig, get_peft_model

        adapter = LoraConfig(r=16, target_modules=["c_attn"], fan_in_fan_out=True)
        with warnings.catch_warnings():  # peft 0.21 reads a name that transformers 5.23 retires
            warnings.simplefilter("ignore", FutureWarning)
            model = get_peft_model(model, adapter).get_base_model()
    if where:
        with torch.no_grad():  # on a GPU cuBLAS takes its workspace here, not in a measurement
            model(input_ids=tokens(model.device, 1, 8))
    return model.train()


def tokens(where: Any, rows: int, length: int) -> torch.Tensor:
    return torch.zeros(rows, length, dtype=torch.long, device=where)


def batches(dice: random.Random, where: Any, rows: int) -> list[torch.Tensor]:
    """The two batches of an evaluation."""
    sizes = [dice.randrange(SHORTEST, LONGEST) for _ in range(2)]
    return [tokens(where, rows, size) for size in sizes]


def empty_cache() -> None:
    """`torch.cuda.empty_cache()`, on the GPU or on the simulated card that is in use."""
    memory.meter().empty_cache()


def train(
    evaluate: Evaluate,
    update: Update,
    *,
    rows: int,
    before: Sequence[int],
    card: int,
    seed: int,
    where: str,
    updates: int = UPDATES,
    layers: int = 3,
    kind: str = "float32",
) -> Iterator[dict[str, Any] | Step]:
    """Updates of 8 completions each, and before some of them an evaluation of two batches of `rows` rows.

    Yields {"held": bytes, "owned": bytes} before each update. After an evaluation that has "evaluation", its peak over
    what was held, and "not owned": bytes held minus owned right before and right after it. And after each update a
    `Step`: "held_bytes", "peak_bytes".
    """
    dice = random.Random(seed)
    with model_on_card(where, card, kind, layers) as (model, meter):
        kept: list[Any] = []
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
        for step in range(1, updates + 1):
            evaluation: dict[str, Any] = {}
            if step in before:
                meter.reset_peak()
                held = meter.read().allocated
                extra = held - memory.owned(model, optimizer)
                evaluate(model, batches(dice, model.device, rows), kept)
                now = meter.read()
                extra_after = now.allocated - memory.owned(model, optimizer)
                evaluation["evaluation"] = now.peak_allocated - held
                evaluation["not owned"] = (extra, extra_after)
            held = meter.read().allocated
            yield {"held": held, "owned": memory.owned(model, optimizer)} | evaluation
            meter.reset_peak()
            update(model, optimizer, tokens(model.device, ROWS, LENGTH))
            now = meter.read()
            used = {"memory_allocated": now.allocated, "memory_reserved": now.reserved}
            more = {"peak_bytes": now.peak_allocated, "held_bytes": held}
            yield Step(step=step, round=step, **used, extra=more)


def one_evaluation(
    evaluate: Evaluate,
    seed: int,
    rows: int,
    where: str,
    kind: str = "float32",
    look: Callable[[Any, list[Any]], Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """What one evaluation leaves, and its peak over what was held before it: bytes.

    look  called with the model and `kept` while the card is there; what it returns is "seen"
    """
    with model_on_card(where, CARD, kind) as (model, meter):
        kept: list[Any] = []
        meter.reset_peak()
        before = meter.read().allocated
        evaluate(model, batches(random.Random(seed), model.device, rows), kept)
        after = meter.read()
        seen = look(model, kept) if look else None
        yield {
            "left": after.allocated - before,
            "peak": after.peak_allocated - before,
            "seen": seen,
        }


def segments_after(
    evaluate: Evaluate, update: Update, rows: int, seed: int, where: str
) -> Iterator[Any]:
    """The allocator's segments after two updates and an evaluation, each block with the stack of whoever asked for it.

    The frames of the simulation itself are left out.
    """
    with model_on_card(where, CARD, stacks=True) as (model, meter):
        optimizer, kept = torch.optim.AdamW(model.parameters(), lr=1e-4), []
        for _ in range(2):
            update(model, optimizer, tokens(model.device, ROWS, LENGTH))
        evaluate(model, batches(random.Random(seed), model.device, rows), kept)
        if where == "cuda":
            segments = torch.cuda.memory._snapshot()["segments"]
        else:
            segments = meter.simulated.snapshot()
        for segment in segments:
            for block in segment["blocks"]:
                frames = [frame for frame in block.get("frames", []) if not _simulates(frame)]
                block["frames"] = frames
        yield segments


def _simulates(frame: Mapping[str, Any]) -> bool:
    here = frame["name"] == "__torch_dispatch__"
    return here or f"props{os.sep}card" in frame["filename"]


def measured(
    ways: Mapping[Any, Mapping[str, Any]], seed: int, where: str
) -> dict[Any, dict[str, int]]:
    """name -> what one evaluation leaves and takes, each on a card of its own; a way that did not return has none.

    A way gives `one_evaluation` its "evaluate" and "rows", and a "kind" if it has one.
    """
    shared = {"seed": seed, "where": where}
    runs = sandbox.run_all(one_evaluation, ways, at_once=at_once(where), timeout=60, **shared)
    return {name: run.events[0] for name, run in runs.items() if run.events}


# ---- what a run says


def held(run: Run) -> list[int]:
    """Bytes allocated before each update, the refused one included."""
    return [event["held"] for event in run.events if isinstance(event, dict)]


def owned(run: Run) -> list[int]:
    """Bytes of model, gradients and optimizer state before each update."""
    return [event["owned"] for event in run.events if isinstance(event, dict)]


def needs(run: Run) -> list[int]:
    """What each update took at its peak over what was held before it; without the first, in which AdamW's state comes."""
    return [int(step["peak_bytes"] - step["held_bytes"]) for step in run.steps[1:]]


def evaluations(run: Run) -> list[int]:
    """What each evaluation took at its peak over what was held before it."""
    events = [event for event in run.events if isinstance(event, dict)]
    return [event["evaluation"] for event in events if "evaluation" in event]
