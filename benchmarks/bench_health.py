"""The report's health check against labkit's, at 124 M parameters, in one process, as ratios.

    python benchmarks/bench_health.py

Also against the time of a training step (the goal is at most 1 %), and against reading the same bytes once.
"""

import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from labkit.grpo import grads


def report_loop(model: torch.nn.Module) -> bool:
    nan = inf = total = 0
    for p in model.parameters():
        nan += torch.isnan(p).sum().item()
        inf += torch.isinf(p).sum().item()
        total += p.numel()
    return nan == 0 and inf == 0


def best(call, repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    model = GPT2LMHeadModel(GPT2Config()).eval()
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    ids = torch.randint(50257, (8, 64))
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), ids.flatten()).backward()
        optimizer.step()

    for threads in (1, torch.get_num_threads()):
        torch.set_num_threads(threads)
        slow, fast = best(lambda: report_loop(model), 5), best(lambda: grads.health(model), 20)
        read = best(lambda: torch.dot(flat, flat), 20)
        train = best(step, 2)
        print(
            f"{threads} thread(s): report {slow * 1e3:.0f} ms, labkit {fast * 1e3:.1f} ms, ratio {slow / fast:.1f}; "
            f"one read of the bytes {read * 1e3:.1f} ms ({fast / read:.2f} x); "
            f"a step of 8 x 64 tokens {train:.2f} s ({100 * fast / train:.2f} %)"
        )


if __name__ == "__main__":
    main()
