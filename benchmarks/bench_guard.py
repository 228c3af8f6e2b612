"""What the guard costs: a training step of GPT-2 small with it and without it, side by side, as a ratio.

    python benchmarks/bench_guard.py                 124M, on the GPU where there is one; run it on a quiet machine
    python benchmarks/bench_guard.py --layers 2      a smaller model

The Trainer clips either way; with the guard, the guard clips in its place. Aim: a ratio of at most 1.01.
"""

import argparse
import time
from types import SimpleNamespace

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from labkit.callback import GuardCallback


def seconds_a_step(model, optimizer, ids, guard, steps):
    """Forward, backward, clip at 1 (by the guard, or as the Trainer does), step; the guard's events as at work.

    Returns seconds of a step, and of it what the guard does or the Trainer does in its place.
    """
    began, spent = time.perf_counter(), 0.0
    for number in range(steps):
        model(input_ids=ids, labels=ids).loss.backward()
        state = SimpleNamespace(global_step=number)
        entered = now(ids)
        if guard is None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            guard.on_pre_optimizer_step(None, state, None, model=model, optimizer=optimizer)
        spent += now(ids) - entered
        optimizer.step()
        entered = now(ids)
        if guard is not None:
            guard.on_step_end(None, state, None, model=model)
        spent += now(ids) - entered
        optimizer.zero_grad()
    return (now(ids) - began) / steps, spent / steps


def now(ids):
    """The time, when the device has done what it was given."""
    if ids.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = GPT2LMHeadModel(GPT2Config(n_layer=args.layers)).to(device)
    model.loss_type = "ForCausalLM"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    ids = torch.randint(0, 50257, (args.rows, args.tokens), device=device)
    guard = GuardCallback()
    guard._max_norm = 1.0
    seconds_a_step(model, optimizer, ids, None, 2)
    pairs = [[seconds_a_step(model, optimizer, ids, g, args.steps) for g in (None, guard)] for _ in range(args.pairs)]
    (plain, clip), (guarded, guarding) = (map(min, zip(*column, strict=True)) for column in zip(*pairs, strict=True))
    size = sum(p.numel() for p in model.parameters())
    print(f"{size / 1e6:.0f} M on {device}: {1e3 * plain:.2f} ms a step, with the guard {1e3 * guarded:.2f} ms")
    print(f"of it the Trainer's clipping {1e3 * clip:.2f} ms, the guard {1e3 * guarding:.2f} ms")
    print(f"ratio {1 + (guarding - clip) / plain:.4f} by the parts, {guarded / plain:.4f} by whole steps (noisier)")


if __name__ == "__main__":
    main()
