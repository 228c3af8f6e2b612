"""Forward and backward of one update: each row with its own prompt, against each prompt once per group.

python benchmarks/bench_groups.py
"""

import random
import time

import torch

from labkit.grpo import rollout, task
from labkit.grpo.policy import load, token_logprobs, token_logprobs_of_groups


def ms(function, policy, out: rollout.Completions) -> float:
    began = time.perf_counter()
    for _ in range(20):
        logp, _ = function(policy.model, out.ids, out.attention_mask, out.tokens.shape[1])
        (logp * out.mask).sum().backward()
        policy.model.zero_grad()
    return 1e3 * (time.perf_counter() - began) / 20


if __name__ == "__main__":
    torch.set_num_threads(1)
    policy = load("tiny", "cpu")
    for samples in (2, 8, 16):
        prompts = task.get("add").sample(64 // samples, random.Random(0))
        out = rollout.generate(policy, prompts, num_samples=samples, generator=torch.Generator().manual_seed(0))
        rounds = [(ms(token_logprobs, policy, out), ms(token_logprobs_of_groups, policy, out)) for _ in range(3)]
        each, once = (min(column) for column in zip(*rounds, strict=True))
        print(f"groups of {samples:2}: each row {each:5.1f} ms, once per group {once:5.1f} ms, ratio {each / once:.2f}")
