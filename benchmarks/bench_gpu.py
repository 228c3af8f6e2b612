"""What watching costs on a GPU, side by side in one run, as ratios.

    python benchmarks/bench_gpu.py                                the 124 M-parameter policy on CUDA
    python benchmarks/bench_gpu.py --device cpu --scale tiny      the same code without a GPU: not the same figures

1. The health check against reading the parameters' bytes once, and against the loop that asks each tensor twice.
   All three end with a number on the host. (On an H200 health takes 6 to 11 times as long as the read of 0.17 ms. The
   card works as long as for the read; the rest is the host's.)
2. A GRPO step with everything that is measured (health, statistics, snapshot) against one with nothing, and the same
   run carried by the sandbox and recorded by a dashboard's board.
3. A GRPO round here against TRL's GRPOTrainer: same model, prompts, group, new tokens and inner updates. Left out
   where TRL is not installed.
4. Memory that comes out of the allocator's cache against memory that `empty_cache()` gave back before. Left out
   without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import random
import statistics
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from labkit import common, doctor, sandbox
from labkit.display import dashboard
from labkit.grpo import Safety, Sampling, grads, policy, task, train

SETTINGS: dict[str, Any] = {
    "task": "add",
    "sampling": Sampling(prompts=8, num_samples=8, max_new_tokens=16),
    "mu": 4,
    "lr": 1e-5,
    "beta": 0.04,
}
REPEATS = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", default="124M", help="tiny or 124M")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    try:
        device = policy.pick_device(args.device)
    except ValueError as error:  # `make bench` runs this everywhere
        print(f"nothing measured: {error}")
        return 0
    facts: dict[str, Any] = doctor.environment()
    result: dict[str, Any] = {"environment": facts, "device": str(device), "scale": args.scale}
    print(", ".join([" + ".join(facts["gpu"]) or "no GPU", f"torch {facts['torch']}", args.scale, str(device)]))
    result["health"] = health(args.scale, device)
    result["watching"] = watching(args.scale, device, args.rounds)
    result["trl"] = against_trl(args.scale, device, args.rounds)
    if device.type == "cuda":
        result["cache"] = [cached(count, mib) for count, mib in ((40, 100), (10, 1024))]
    if args.json:
        common.write_whole(args.json, json.dumps(result, indent=1) + "\n")
    return 0


# ------------------------------------------------------------------------------------------------ 1. health


def health(scale: str, device: torch.device) -> dict[str, float]:
    model = model_of(scale, str(device))
    step = _forward_and_backward(model, device)
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def loop() -> bool:
        nan = inf = 0
        for p in model.parameters():
            nan += int(torch.isnan(p).sum().item())
            inf += int(torch.isinf(p).sum().item())
        return nan == inf == 0

    ways = {
        "one read of the bytes": lambda: flat.sum().item(),
        "labkit.grads.health": lambda: bool(grads.health(model)),
        "a loop of isnan, isinf": loop,
        "forward and backward": step,
    }
    ms = {name: t * 1e3 for name, t in side_by_side(ways).items()}
    read, ours, theirs, whole = ms.values()
    print(f"\nhealth of {flat.numel() / 1e6:.0f} M parameters ({flat.numel() * 4 / 1e6:.0f} MB)")
    for name, value in ms.items():
        print(f"  {name:30s} {value:9.3f} ms")
    ratios = {
        "health / one read": ours / read,
        "loop / health": theirs / ours,
        "health / forward and backward": ours / whole,
    }
    _print(ratios)
    return {**ms, **ratios}


def _forward_and_backward(model: Any, device: torch.device) -> Callable[[], object]:
    ids = torch.randint(16, (16, 24), device=device)
    params = list(model.parameters())

    def step() -> float:
        loss = model(input_ids=ids, labels=ids).loss
        gradients = torch.autograd.grad(loss, params)
        return gradients[0].sum().item()

    return step


# ---------------------------------------------------------------------------------------------- 2. watching


def watching(scale: str, device: torch.device, rounds: int) -> dict[str, float]:
    ways = {
        "nothing measured": lambda: _seconds_a_step(bare_steps(scale, str(device), rounds)),
        "everything measured": lambda: _seconds_a_step(steps(scale, str(device), rounds)),
        "and sandboxed, recorded": lambda: watched(scale, str(device), rounds),
    }
    for way in ways.values():
        way()  # warm: kernels, the server
    ms: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3):
        for name, way in ways.items():
            ms[name].append(1e3 * way())
    middle = {name: statistics.median(times) for name, times in ms.items()}
    bare, full, carried = middle.values()
    print("\na GRPO step")
    for name, value in middle.items():
        print(f"  {name:30s} {value:9.3f} ms")
    ratios = {"measured / bare": full / bare, "sandboxed, recorded / bare": carried / bare}
    _print(ratios)
    return {**middle, **ratios}


def model_of(scale: str, device: str) -> Any:
    """A GPT-2 with random weights, without dropout; the tiny one with the shipped tokenizer's vocabulary."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tiny = {"n_layer": 2, "n_embd": 128, "n_head": 4, "n_positions": 32, "vocab_size": 16}
    torch.manual_seed(0)
    config = GPT2Config(bos_token_id=0, eos_token_id=0, **(tiny if scale == "tiny" else {}))
    return GPT2LMHeadModel(config).to(device).eval()


def policy_of(scale: str, device: str) -> policy.Policy:
    """A policy of this size that reads the tasks' prompts."""
    return policy.Policy(model_of(scale, device), policy.load("tiny", "cpu").tokenizer, scale)


def steps(scale: str, device: str, rounds: int) -> Any:
    keeps_healthy = Safety(restore=True)  # a snapshot of the parameters after every round
    yield from train(policy=policy_of(scale, device), rounds=rounds, seed=0, safety=keeps_healthy, **SETTINGS)


def bare_steps(scale: str, device: str, rounds: int) -> Any:
    """The same without health, statistics and snapshot."""

    def nothing(self: Any, *_: Any) -> None:
        self.sums.update(loss=0.0, kl=0.0, entropy=0.0, clipped=0.0)

    healthy = lambda model: grads.Health({})
    core = importlib.import_module("labkit.grpo.train")  # the file: `labkit.grpo.train` is its function
    with unittest.mock.patch.object(core, "health", healthy), unittest.mock.patch.object(core.Record, "count", nothing):
        yield from train(policy=policy_of(scale, device), rounds=rounds, seed=0, **SETTINGS)


def watched(scale: str, device: str, rounds: int) -> float:
    board = dashboard.Board()
    track = board.add("fix")
    arrived: list[float] = []
    child = sandbox.start(steps, scale, device, rounds)
    while True:
        ended = child.wait_for_news()
        if new := child.drain():
            track.feed(new)
            arrived += [time.perf_counter()] * len(new)
        if ended:
            break
    run = child.result()
    if not run.outcome:
        raise RuntimeError(f"the sandboxed run ended with {run.outcome.signature}: {run.outcome.message}")
    return _middle_of_rounds(arrived)


def _seconds_a_step(stream: Any) -> float:
    return _middle_of_rounds([time.perf_counter() for _ in stream])


def _middle_of_rounds(arrived: list[float]) -> float:
    """Seconds a step, rollout included, without the first round: the median over rounds."""
    ends = arrived[SETTINGS["mu"] - 1 :: SETTINGS["mu"]]
    return statistics.median(b - a for a, b in zip(ends, ends[1:], strict=False)) / SETTINGS["mu"]


# --------------------------------------------------------------------------------------------------- 3. TRL


def against_trl(scale: str, device: torch.device, rounds: int) -> dict[str, float] | None:
    if doctor.version("trl") is None or doctor.version("datasets") is None:
        print("\nTRL is not installed here: its round is left out")
        return None
    ours, theirs = [], []
    for _ in range(3):
        ours.append(_seconds_a_step(steps(scale, str(device), rounds)) * SETTINGS["mu"])
        theirs.append(trl_round(scale, device, rounds))
    names = ("here", f"TRL {doctor.version('trl')}")
    middle = {name: 1e3 * statistics.median(times) for name, times in zip(names, (ours, theirs), strict=True)}
    print("\na GRPO round (64 completions of up to 16 tokens, 4 updates)")
    for name, value in middle.items():
        print(f"  {name:30s} {value:9.3f} ms")
    a, b = middle.values()
    _print({"here / TRL": a / b})
    return {**middle, "here / TRL": a / b}


def trl_round(scale: str, device: torch.device, rounds: int) -> float:
    """Seconds a round of TRL's GRPOTrainer, without the first; the median."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    mine = policy_of(scale, str(device))
    mu = SETTINGS["mu"]
    rows = [{"prompt": p} for p in task.get("add").sample(8 * rounds, random.Random(0))]
    arrived: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            arrived.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        mine.model.save_pretrained(f"{folder}/model")  # TRL makes its reference from the name
        mine.tokenizer.save_pretrained(f"{folder}/model")
        config = GRPOConfig(
            output_dir=f"{folder}/out",
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=16,
            num_iterations=mu,
            max_steps=mu * rounds,
            learning_rate=1e-5,
            beta=0.04,
            temperature=1.0,
            bf16=False,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            use_cpu=device.type == "cpu",
            gradient_checkpointing=False,
            seed=0,
            model_init_kwargs={"dtype": "float32"},
        )

        def reward(prompts: list[str], completions: list[str], **_: Any) -> list[Any]:
            return task.rewards(prompts, completions)

        data = Dataset.from_list(rows)
        trainer = GRPOTrainer(
            f"{folder}/model", reward, config, data, processing_class=mine.tokenizer, callbacks=[Clock()]
        )
        with contextlib.redirect_stdout(sys.stderr):  # its log
            trainer.train()
    return _middle_of_rounds(arrived) * mu


# ------------------------------------------------------------------------------------------ 4. the cache


def cached(count: int, mib: int) -> dict[str, float]:
    """`count` tensors of so many MiB, taken and let go: out of the cache, and with the cache given back each time."""

    def take() -> None:
        held = [torch.empty(mib << 20, dtype=torch.uint8, device="cuda") for _ in range(count)]
        del held
        torch.cuda.synchronize()

    def take_and_empty() -> None:
        take()
        torch.cuda.empty_cache()

    take_and_empty()
    emptied = side_by_side({"emptied": take_and_empty})["emptied"]
    kept = side_by_side({"kept": take})["kept"]  # not in turns: the other way would empty the cache
    print(f"\n{count} tensors of {mib} MiB, each of them")
    for name, seconds in {"out of the cache": kept, "after empty_cache": emptied}.items():
        print(f"  {name:30s} {1e3 * seconds / count:9.3f} ms")
    _print({"emptied / kept": emptied / kept})
    return {"kept": kept / count, "emptied": emptied / count}


# ---------------------------------------------------------------------------------------------------- timing


def side_by_side(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each, taken in turns so that a slow moment hits all; each ends with a number on the host."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(REPEATS + 3):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if turn >= 3:  # the first ones warm up
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def _print(ratios: dict[str, float]) -> None:
    for name, value in ratios.items():
        print(f"  {name:30s} {value:9.2f}")


if __name__ == "__main__":
    sys.exit(main())
