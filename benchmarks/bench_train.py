"""One thread against two, for the tiny policy: ms a step, and the ratio. Run it on a quiet machine.

python benchmarks/bench_train.py
"""

import importlib
import time

import torch

from labkit.grpo import Sampling, train

# else `train` takes one thread for a small policy, whatever is set
importlib.import_module("labkit.grpo.train").SMALL = 0


def ms_a_step(threads: int) -> float:
    settings = {"task": "max", "sampling": Sampling(prompts=16), "mu": 2, "seed": 0, "device": "cpu"}
    torch.set_num_threads(threads)
    list(train(rounds=1, **settings))
    began = time.perf_counter()
    steps = len(list(train(rounds=8, **settings)))
    return 1e3 * (time.perf_counter() - began) / steps


if __name__ == "__main__":
    rounds = [(ms_a_step(1), ms_a_step(2)) for _ in range(3)]
    one, two = (min(column) for column in zip(*rounds, strict=True))
    print(f"1 thread {one:.1f} ms a step, 2 threads {two:.1f} ms a step, ratio {two / one:.2f}")
