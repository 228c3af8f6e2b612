"""The trainer of the made runs: `labkit.grpo.train` with flat settings, and with nets that keep a run alive.

    for step in train(policy="tiny", task="add", seed=0): ...

What differs from its defaults: k2 in the loss, gradients clipped to 0.3 and updates above 10 skipped (`grads.guard()`),
clamps of log-ratio, logits and advantages, and a round that broke the parameters is taken back. The made runs of
docs/made-runs.md had these settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from labkit.events import Exam, Step
from labkit.grpo import grads, rollout
from labkit.grpo import task as tasks
from labkit.grpo import train as grpo
from labkit.grpo.kl import AdaptiveBeta, k2
from labkit.grpo.policy import Policy
from labkit.grpo.train import KL, Batch, Hooks, PolicyLoss, Probe, Reward, Safety, Sampling

__all__ = ["Batch", "train"]


def train(
    policy: str | Policy = "tiny",
    task: str | Sequence[str] = "add",
    *,
    seed: int = 0,
    device: str = "auto",
    rounds: int = 12,
    prompts: int | Sequence[str] = 8,
    num_samples: int = 8,
    mu: int = 4,
    micro_batches: int = 1,
    optimizer: str = "adamw",
    lr: float = 5e-5,
    beta: float | AdaptiveBeta = 0.04,
    kl: KL = k2,
    clip: float = 0.2,
    log_ratio_max: float | None = 5.0,
    logit_max: float | None = 100.0,
    advantage_max: float | None = 10.0,
    max_new_tokens: int = 4,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    generate: Callable[..., rollout.Completions] = rollout.generate,
    reward: Reward = tasks.rewards,
    inner_update: Callable[..., grads.Update] = grads.inner_update,
    update: grads.Updater | None = None,
    policy_loss: PolicyLoss | None = None,
    probe: Probe | None = None,
    reference: torch.nn.Module | None = None,
    check: str = "restore",
    exam: bool = False,
) -> Iterator[Step | Exam]:
    """`labkit.grpo.train` with flat settings: see there for what each is. Yields a `Step` after every update.

    update  gradients -> step; default `grads.guard()`
    check   after each round, "restore" the last healthy parameters if any is not finite; or "off"

    Raises: ValueError names a setting that cannot be.
    """
    if check not in ("restore", "off"):
        raise ValueError(f"check {check!r}: expected 'restore' or 'off'")
    yield from grpo(
        task,
        policy=policy,
        seed=seed,
        device=device,
        rounds=rounds,
        mu=mu,
        optimizer=optimizer,
        lr=lr,
        beta=beta,
        kl=kl,
        clip=clip,
        max_norm=None,  # `update` has a limit of its own
        sampling=Sampling(prompts, num_samples, max_new_tokens, temperature, top_k, top_p),
        safety=Safety(log_ratio_max, logit_max, advantage_max, restore=check == "restore"),
        hooks=Hooks(
            generate=generate,
            reward=reward,
            inner_update=inner_update,
            update=update or grads.guard(),
            policy_loss=policy_loss,
            probe=probe,
            reference=reference,
            micro_batches=micro_batches,
        ),
        exam=exam,
    )
