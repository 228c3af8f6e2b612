"""What the KL laboratory draws and trains: one token at a time, and lesson 03's run. It makes no claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from labkit import checks, sandbox
from labkit.events import Run
from labkit.grpo import grads, kl, loss
from labkit.grpo.policy import load
from labkit.grpo.train import Batch
from labkit.train import train

# (logp, ref_logp, old_logp) -> KL per token, all of one shape
Estimator = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#767676"


BETA, RATE, ROUNDS, UPDATES = 0.15, 0.02, 4, 8


def train_on_add(
    estimator: Callable[..., torch.Tensor],
    seed: int,
    *,
    step: Callable[..., Any] = grads.plain_step,
    model: str = "tiny",
    device: str = "auto",
    beta: float = BETA,
    rate: float = RATE,
    rounds: int = ROUNDS,
    mu: int = UPDATES,
    optimizer: str = "sgd",
    policy_loss: Any = None,
    exam: bool = True,
    probe: Any = None,
) -> Iterator[Any]:
    """Train and yield what `labkit.train` yields.

    step    what is done with a gradient; default: an optimizer step, however long the gradient is
    mu      updates from the answers of one round
    policy_loss   what `labkit.train` takes; default: GRPO's
    """
    yield from train(
        load(model, device),
        "add",
        seed=seed,
        rounds=rounds,
        mu=mu,
        optimizer=optimizer,
        lr=rate,
        beta=beta,
        kl=estimator,
        policy_loss=policy_loss,
        log_ratio_max=None,
        logit_max=None,
        advantage_max=None,
        update=step,
        check="off",
        exam=exam,
        probe=probe,
    )


def exam_at_end(one: Run) -> float:
    """The exam after the last round; 0 where the run died or the exam is NaN."""
    last = one.exam()[-1]
    return last if one.outcome and math.isfinite(last) else 0.0


def value_and_pull(estimator: Estimator, d: float) -> tuple[float, float]:
    """Value and pull to the reference of one token, drawn when it had the reference's log-prob of 0; float32."""
    logp, zero = torch.tensor([-float(d)], requires_grad=True), torch.zeros(1)
    value = estimator(logp, zero, zero).sum()
    (slope,) = torch.autograd.grad(value, logp)
    return value.item(), -slope.item()


def picture_of_tokens(estimators: Mapping[str, Estimator], title: str) -> None:
    """Value and pull of one token by its d, a panel for each estimator; what is beyond 20 is not drawn."""
    import matplotlib.pyplot as plt  # here, so that the runs' processes do not import it

    figure, axes = plt.subplots(
        2, 4, figsize=(9, 4.6), layout="constrained", sharex=True, sharey=True
    )
    grid = torch.arange(-5, 12.01, 0.02).tolist()
    panels = axes.flatten()
    for axis, (name, estimator) in zip(panels, estimators.items(), strict=False):
        values, pulls = zip(*(value_and_pull(estimator, d) for d in grid), strict=True)
        axis.axhline(0, color=GREY, lw=0.6)
        axis.axvline(0, color=GREY, lw=0.6)
        axis.plot(grid, values, color=BLUE, lw=1.8, label="value, nats")
        axis.plot(grid, pulls, "--", color=ORANGE, lw=1.8, label="pull to the reference")
        axis.set_title(name, fontsize=9)
        axis.set_ylim(-20, 20)
    for axis in panels[len(estimators) :]:
        axis.axis("off")
    panels[-1].legend(*panels[0].get_legend_handles_labels(), loc="center", frameon=False)
    figure.supxlabel("d = reference's log-prob − policy's", fontsize=9)
    figure.suptitle(title, fontsize=10)
    plt.show()


def train_with(
    estimator: Estimator, seed: int, *, beta: float, step: Callable[..., Any], **settings: Any
) -> Iterator[Any]:
    """Lesson 03's run with a KL that may read the old policy's log-probs, too.

    step    what is done with a gradient
    """

    def policy_loss(logp: torch.Tensor, part: Batch) -> loss.PolicyLoss:
        plain = loss.grpo(logp, part.old_logp, part.advantages)
        penalty = beta * estimator(logp, part.ref_logp, part.old_logp)  # [B, T]
        return loss.PolicyLoss(plain.loss + penalty, plain.ratio, plain.clipped)

    yield from train_on_add(
        kl.k2, seed, beta=0.0, policy_loss=policy_loss, step=step, **settings
    )  # k2 is only logged


def train_each(
    estimators: Mapping[str, Estimator],
    steps: Mapping[str, Callable[..., Any]],
    seeds: Sequence[int],
    **settings: Any,
) -> dict[str, dict[str, list[Run]]]:
    """Name of a step -> name of an estimator -> its runs, one for each seed."""
    done = sandbox.run_all(
        train_with,
        {
            f"{name}, {limit}, seed {seed}": {"estimator": estimator, "step": step, "seed": seed}
            for limit, step in steps.items()
            for name, estimator in estimators.items()
            for seed in seeds
        },
        **settings,
    )
    return {
        limit: {
            name: [done[f"{name}, {limit}, seed {seed}"] for seed in seeds] for name in estimators
        }
        for limit in steps
    }


def picture_of_training(runs: Mapping[str, Mapping[str, Sequence[Run]]], title: str) -> None:
    """The exam by round: a panel for each step, a colour for each estimator, a line for each seed."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(runs), figsize=(9, 3.2), layout="constrained", sharex=True, sharey=True
    )
    for axis, (limit, arms) in zip(axes, runs.items(), strict=True):
        axis.set_title(limit, fontsize=9)
        axis.set_xlabel("round")
        axis.xaxis.get_major_locator().set_params(integer=True)
        for (name, several), colour, line in zip(
            arms.items(), (GREY, BLUE, ORANGE, GREEN), ("-", "-", "--", ":"), strict=True
        ):
            for at, one in enumerate(several):
                exams = [x if math.isfinite(x) else 0.0 for x in one.exam()]
                axis.plot(exams, line, color=colour, lw=1.6, label="" if at else name)
                if not one.outcome:
                    axis.plot(len(exams) - 1, 0, "x", color=colour, ms=9, mew=2, clip_on=False)
    axes[0].set_ylabel("chance of a right answer")
    axes[0].set_ylim(0, 0.75)
    figure.suptitle(title, fontsize=10)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    plt.show()


def judge(estimator: Estimator) -> checks.Report:
    """On tokens of an *old* policy: does its mean read KL(policy‖reference), and is its gradient the KL's?

    Counted over all symbols, on ten problems.
    """
    said = "my_kl", "on old draws its mean and its gradient are those of KL(policy‖ref)"
    wrong_mean = wrong_gradient = 0.0
    for number in range(10):
        dice = torch.Generator().manual_seed(number)
        logits, old, reference = torch.randn(3, 20, 8, generator=dice, dtype=torch.float64)
        logits.requires_grad_()
        logp, old_logp = logits.log_softmax(-1), old.log_softmax(-1)
        per_token = estimator(logp, reference.log_softmax(-1), old_logp)
        if not isinstance(per_token, torch.Tensor) or per_token.shape != logp.shape:
            return checks.Report(
                *said, False, {"returned": str(per_token)[:80]}, "One number per token."
            )
        mean, true = (old_logp.exp() * per_token).sum(), kl.exact(logits, reference).sum()
        (right,) = torch.autograd.grad(true, logits)
        gradient = torch.zeros_like(right)
        if mean.requires_grad:
            (gradient,) = torch.autograd.grad(mean, logits)
        wrong_mean = max(wrong_mean, abs((mean / true - 1).item()))
        wrong_gradient = max(wrong_gradient, ((gradient - right).norm() / right.norm()).item())
    hint = ""
    if not wrong_mean < 1e-6:
        hint = "Weigh each token with how much more often the policy draws it than the old one did."
    elif not wrong_gradient < 1e-6:
        hint = (
            "The mean is right, and its gradient is not: does a gradient flow through the weight?"
        )
    seen = {"mean is off by": f"{wrong_mean:.2g}", "gradient is off by": f"{wrong_gradient:.2g}"}
    return checks.Report(*said, not hint, seen, hint)
