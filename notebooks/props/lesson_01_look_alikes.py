"""What page 01 compares its crash with: other ways to die while sampling, and the logs of its last exercise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from props.arms import LIMIT
from props.lesson_01 import INK, draw_to_its_end

from labkit import sandbox
from labkit.display.panels import TONES
from labkit.events import Run
from labkit.grpo import Hooks, Sampling, grads, kl, load, task, train


def in_half(logits: torch.Tensor) -> torch.Tensor:
    return (logits.half() / 1e-4).float().softmax(-1)


def all_forbidden(logits: torch.Tensor) -> torch.Tensor:
    return torch.full_like(logits, -math.inf).softmax(-1)


# cause -> settings of `sample_once`; token ids of the tiny policy end at 15
LOOK_ALIKES: dict[str, dict[str, Any]] = {
    "logits / 1e-4 in half precision": {"change": in_half},
    "every token forbidden by filters": {"change": all_forbidden},
    "probabilities all zero": {"change": torch.zeros_like},
    "token id outside the embedding": {"shift": 100},
}


def sample_once(policy: Any, device: str, change: Any = None, shift: int = 0) -> Iterator[Any]:
    """Draw one token for eight prompts.

    change  logits [B, V] -> probabilities [B, V], in place of softmax
    shift   added to every token id
    """
    sampled = load(policy, device) if isinstance(policy, str) else policy
    yield {"not finite": grads.health(sampled.model).nonfinite}
    ids, mask = sampled.encode(task.get("add").held_out()[:8])
    with torch.no_grad():
        logits = sampled.model(ids + shift, attention_mask=mask).logits[:, -1]
    drawn = torch.multinomial(change(logits) if change else logits.softmax(-1), 1)
    drawn.sum().item()  # on CUDA an assert surfaces when a result is read


def row_of_cause(cause: str, run: Run) -> dict[str, Any]:
    """What is known of a run that died: its norms up to the first NaN, its parameters, the message."""
    norms = run["grad_norm"]
    lost = [at for at, norm in enumerate(norms, 1) if math.isnan(norm)] + [0]
    last = [f"{norm:,.3g}" for norm in norms[max(0, lost[0] - 4) : lost[0]]]
    counts = [int(step.nonfinite_params) for step in run.steps]
    counts += [int(event["not finite"]) for event in run.events if isinstance(event, dict)]
    row = {"cause": cause, "norms before the crash": " → ".join(last) or "–"}
    row |= {"parameters not finite": counts[-1]}
    return row | {"message": " ".join(run.outcome.message.splitlines()[:1])}


# ------------------------------------------------------------------------------------ logs of other runs

SGD = {"optimizer": "sgd", "mu": 8, "beta": 0.04, "kl": kl.k3}
# rounds with a guard; answers in a group
CASES = {"step": (1, 2), "loss": (4, 5), "logits": (1, 2)}
Log = dict[str, Any]


class Unguarded:
    """labkit's guard for so many updates, and then a step that nothing limits."""

    def __init__(self, guarded: int):
        self.left, self.guard = guarded, grads.guard()

    def __call__(self, model: Any, optimizer: Any) -> grads.Update:
        self.left -= 1
        return (self.guard if self.left >= 0 else grads.plain_step)(model, optimizer)


def dying(
    cause: str, number: int, policy: str, device: str, seed: int, zero_by_zero: Any
) -> Iterator[Any]:
    """A run that dies of this cause while it samples; its steps are the log."""
    trained = load(policy, device)
    settings = {"policy": trained, "seed": seed, "lr": 0.05, "rounds": 5, **SGD}
    if cause == "step":
        settings["hooks"] = Hooks(update=Unguarded(8 * number))
    elif cause == "loss":
        settings |= {"lr": 0.003, "rounds": 12, "sampling": Sampling(num_samples=number)}
        settings["hooks"] = Hooks(update=grads.plain_step, policy_loss=zero_by_zero)
    else:
        settings |= {"rounds": number, "hooks": Hooks(update=grads.guard())}
    yield from train("add", **settings)
    if cause == "logits":  # an evaluation after the training, almost greedy, in half precision
        yield from sample_once(trained, device, in_half)


def unseen_logs(seed: int, zero_by_zero: Any, **where: str) -> list[tuple[tuple[str, int], Log]]:
    """Six runs that died while they sampled, in an order of the seed's: ((cause, update to undo), log).

    The update is known from how the run was made: the first without the guard, the first with a tied group, 0 for none.
    """
    jobs = {}
    for cause, numbers in CASES.items():
        for number in numbers:
            # a seed for each, so that no log is the beginning of another
            own_seed = seed + number + (5 if cause == "logits" else 0)
            jobs[cause, number] = {"cause": cause, "number": number, "seed": own_seed}
    runs = sandbox.run_all(dying, jobs, zero_by_zero=zero_by_zero, **where, timeout=LIMIT)
    logs = []
    for (cause, number), run in runs.items():
        tied = [step.step for step in run.steps if step.frac_reward_zero_std > 0]
        undo = {"step": 8 * number + 1, "loss": tied[0] if tied else 0, "logits": 0}[cause]
        log: Log = {"norms": list(run["grad_norm"]), "kls": list(run["kl"])}
        log["broken"] = [int(step.nonfinite_params) for step in run.steps]
        logs.append(((cause, undo), log))
    order = torch.randperm(len(logs), generator=torch.Generator().manual_seed(seed)).tolist()
    return [logs[place] for place in order]


def draw_logs(logs: Sequence[tuple[Any, Log]], title: str) -> None:
    """Norm and KL of each log, by update; a cross where they are no numbers any more."""
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(2, 3, figsize=(8.6, 3.9), layout="constrained", sharey=True)
    for number, (axes, (_, log)) in enumerate(zip(grid.flat, logs, strict=True), 1):
        axes.set(yscale="log", ylim=(1e-3, 1e7), xlim=(0, 25))
        draw_to_its_end(axes, log["norms"], INK, "gradient norm")
        draw_to_its_end(axes, log["kls"], TONES["two"][0], "KL")
        broken = "not finite" if log["broken"][-1] else "finite"
        axes.set_title(f"run {number}: parameters {broken}", fontsize=8, loc="left", pad=9)
        axes.set_xlabel("update", fontsize=7)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].legend(frameon=False, fontsize=7)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left", weight="bold")
    plt.show()
