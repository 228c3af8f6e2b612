"""Predicted against measured memory, and what watching costs. Side by side, one process.

    python benchmarks/bench_memory.py [--random 100]

First table: GPT-2 124M, the settings of the field report: `props.budget.predict` against the peak that the same
workload allocates under a tap with fake tensors. Second: the same on random shapes and settings (with --random N).
Third: a training step with and without a tap, as a ratio. Fourth: the recorded CUDA run, byte by byte.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import sys
import warnings
from pathlib import Path
from time import perf_counter

import torch

from labkit.common import format_size

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("notebooks", "tests/memory")]

from measurement import measure  # noqa: E402
from props.budget import Shape, predict  # noqa: E402
from props.card import Tap  # noqa: E402

TRACE = Path(__file__).parents[1] / "tests/data/allocator-traces/gpt2-train-sdpa.jsonl.gz"
ROWS = {
    "batch 4, 128 new tokens": {},
    "batch 4 as 2 x 2": {"micro_batches": 2},
    "batch 2": {"batch": 2},
    "96 new tokens": {"new_tokens": 96},
    "LoRA, rank 16": {"lora": 16},
    "LoRA, rank 8": {"lora": 8},
    "activation checkpointing": {"checkpointing": True},
    "bfloat16 autocast": {"amp": True},
    "SGD": {"optimizer": "sgd"},
    "written-out attention": {"attention": "eager"},
    "batch 1, group 4, reference": {"batch": 1, "group": 4, "reference": True},
    "fine-tuning, 1024 tokens": {"objective": "lm", "batch": 1, "prompt": 1024, "new_tokens": 0},
    "fine-tuning, 896 tokens": {"objective": "lm", "batch": 1, "prompt": 896, "new_tokens": 0},
    "LoRA 8 and checkpointing": {"lora": 8, "checkpointing": True},
}


def report() -> None:
    print(f"{'GPT-2 124M, AdamW, batch 4, prompt 128':<40}{'predicted':>12}{'measured':>12}{'error':>8}  worst moment")
    for name, options in ROWS.items():
        budget, found = predict("124M", **options), measure("124M", **options)
        error = budget.peak / found.peak - 1
        print(
            f"{name:<40}{format_size(budget.peak):>12}{format_size(found.peak):>12}{error:>+8.1%}  "
            f"{budget.worst.name}: {budget.worst.moment}"
        )


def sweep(count: int) -> None:
    rng, errors = random.Random(0), []
    for _ in range(count):
        heads = rng.choice([4, 8])
        shape = Shape(
            rng.choice([2, 4, 6]), heads * rng.choice([32, 64]), heads, rng.choice([64, 1000, 8000, 32000]), 1024
        )
        options = {
            "batch": rng.choice([2, 4, 8]),
            "prompt": rng.choice([64, 128, 300]),
            "new_tokens": rng.choice([32, 128, 200]),
            "group": rng.choice([1, 4]),
            "objective": rng.choice(["grpo", "lm"]),
            "optimizer": rng.choice(["adamw", "sgd"]),
            "micro_batches": rng.choice([1, 2]),
            "attention": rng.choice(["sdpa", "eager"]),
            "checkpointing": rng.random() < 0.3,
            "amp": rng.random() < 0.3,
            "lora": rng.choice([0, 0, 8]),
            "reference": rng.random() < 0.3,
        }
        errors.append(predict(shape, **options).peak / measure(shape, **options).peak - 1)
    inside = sum(abs(e) < 0.1 for e in errors) / count
    print(
        f"\n{count} random shapes and settings: mean error {statistics.mean(errors):+.1%}, from {min(errors):+.1%} to "
        f"{max(errors):+.1%}; {inside:.0%} within 10 %"
    )


def cost() -> None:
    from labkit.grpo.policy import load

    model = load("tiny", "cpu").model.train()
    ids = torch.zeros(16, 24, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters())

    def steps(count: int = 5) -> float:
        start = perf_counter()
        for _ in range(count):
            model(ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return (perf_counter() - start) / count

    steps(3)
    bare, watched = [], []
    for _ in range(5):
        bare.append(steps())
        with Tap() as tap:
            tap.adopt(model, optimizer)
            watched.append(steps())
    ratio = statistics.median(watched) / statistics.median(bare)
    print(f"\na step of the tiny policy (16 rows of 24 tokens), watched / bare: {ratio:.1f}")
    start = perf_counter()
    found = measure("124M", objective="lm")
    events = len(found.tap.timeline)
    print(f"two steps of GPT-2 124M on fake tensors: {perf_counter() - start:.1f} s, {events} allocator events")
    start = perf_counter()
    found.tap.replay(8 << 30, "expandable_segments:True")
    print(f"the same program replayed with expandable segments: {perf_counter() - start:.2f} s")


def recorded() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    header = json.loads(gzip.decompress(TRACE.read_bytes()).decode().splitlines()[0])
    config = {"n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 4096, "n_positions": 128}
    print("\nthe recorded run (GPT-2, 4 layers, 256 wide, 8 x 128 tokens, AdamW): peak allocated and reserved, step 3")
    theirs = header["step_stats"][-1]
    rows = [("PyTorch's allocator", theirs["peak_allocated_bytes"], theirs["reserved_bytes"])]
    for name, workspace in (("a tap with the cuBLAS workspaces", 32 << 20), ("a tap without them", 0)):
        tap = Tap(fake=True, cublas_workspace=workspace)
        model = tap.build(lambda: GPT2LMHeadModel(GPT2Config(**config, bos_token_id=0, eos_token_id=0)))
        model.loss_type = "ForCausalLM"
        with tap:
            tap.adopt(model)
            ids = torch.zeros(8, 128, dtype=torch.long)
            optimizer = torch.optim.AdamW(model.train().parameters(), foreach=False)
            for _ in range(3):
                model(ids, labels=ids).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            rows.append((name, tap.peak, tap.reserved))
    for name, peak, reserved in rows:
        print(f"{name:<40}{peak:>14,}{reserved:>14,}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=0, metavar="N", help="also N random shapes and settings")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    report()
    if arguments.random:
        sweep(arguments.random)
    cost()
    recorded()
