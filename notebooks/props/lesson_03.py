"""What lesson 03 and its laboratory measure: runs on `add` with every limit of the course's trainer switched off.

A run is GRPO on 8 prompts × 8 answers a round with plain SGD, unless it says otherwise. The KL and the step are the notebook's.
This file makes no claim.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from labkit import checks, sandbox
from labkit.grpo import grads, kl
from labkit.events import Run
from labkit.grpo.policy import load, token_logprobs
from labkit.grpo.train import Batch
from labkit.train import train

# (logp, ref_logp) [B, T] -> KL per token
Estimator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

BETA, RATE, ROUNDS, UPDATES = 0.15, 0.02, 4, 8


def train_on_add(
    estimator: Estimator,
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


def train_arms(
    arms: Mapping[str, Mapping[str, Any]], seeds: Sequence[int], **common: Any
) -> dict[str, list[Run]]:
    """Arm -> its runs, one for each seed, in children, as many at once as there are cores.

    arms     name -> what `train_on_add` takes, for that arm; goes over `common`
    """
    each = {
        (name, seed): {**common, **arm, "seed": seed}
        for name, arm in arms.items()
        for seed in seeds
    }
    done = sandbox.run_all(
        train_on_add, {f"{name}, seed {seed}": settings for (name, seed), settings in each.items()}
    )
    return {name: [done[f"{name}, seed {seed}"] for seed in seeds] for name in arms}


def updates_of(
    estimator: Estimator, seed: int, *, rounds: int, mu: int, **where: Any
) -> list[tuple[Batch, torch.Tensor]]:
    """The answers and the policy's log-probs [B, T] that each update of a run finds."""
    seen: list[tuple[Batch, torch.Tensor]] = []

    def keep(part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
        seen.append((part, logp))
        return {}

    for _ in train_on_add(estimator, seed, rounds=rounds, mu=mu, exam=False, probe=keep, **where):
        pass
    return seen


def answers_of_round_2(
    estimator: Estimator, seed: int, model: str = "tiny", device: str = "auto"
) -> dict[str, list[str]]:
    """Prompt -> its eight answers, drawn after the updates of round 1."""
    part, _ = updates_of(estimator, seed, rounds=2, mu=UPDATES, model=model, device=device)[-1]
    prompts, samples = _prompts_of(part, model), part.out.num_samples
    return {
        prompts[at]: part.out.texts[at : at + samples] for at in range(0, len(prompts), samples)
    }


def tokens_before_update_2(
    estimator: Estimator, seed: int, model: str = "tiny", device: str = "auto"
) -> list[dict[str, Any]]:
    """Every token of the 64 answers of round 1 as update 2 finds it, the largest d first.

    answer        prompt and answer up to the token, which stands in brackets
    probability   the reference's of this token, and the policy's
    d             the reference's log-prob less the policy's, nats
    """
    part, logp = updates_of(estimator, seed, rounds=1, mu=2, model=model, device=device)[-1]
    decode, prompts = load(model, "cpu").tokenizer.decode, _prompts_of(part, model)
    tokens = []
    for row, at in part.mask.nonzero().tolist():
        *before, symbol = (decode([token]) for token in part.out.tokens[row, : at + 1].tolist())
        now, then = logp[row, at].item(), part.ref_logp[row, at].item()
        tokens.append(
            {
                "answer": f"{prompts[row]}{''.join(before)}[{symbol}]",
                "probability": f"{math.exp(then):.3f} → {math.exp(now):.3f}",
                "d": then - now,
            }
        )
    return sorted(tokens, key=lambda token: token["d"], reverse=True)


def _prompts_of(part: Batch, model: str) -> list[str]:
    decode = load(model, "cpu").tokenizer.decode
    rows = zip(part.out.prompt_tokens, part.out.prompt_mask, strict=True)
    return [decode(tokens[mask.bool()].tolist()) for tokens, mask in rows]


def walk_along_update_2(
    estimator: Estimator,
    seed: int,
    shares: Sequence[float],
    *,
    model: str = "tiny",
    device: str = "auto",
) -> list[dict[str, float]]:
    """Take update 2's step in parts, each from the same parameters, and measure on the same answers where it leads.

    Returns a row for each share of the step (0: none of it, 1: all):
    rare, others   mean d of the tokens that update 1 left at a d above 2, and of all other tokens
    norm           the gradient's, of update 2
    """
    updates: list[tuple[Batch, torch.Tensor]] = []
    rows: list[dict[str, float]] = []

    def in_parts(policy: torch.nn.Module, optimizer: torch.optim.Optimizer) -> grads.Update:
        norm = grads.global_norm(policy.parameters())
        if len(updates) == 1:
            optimizer.step()
            return grads.Update(norm)
        part, logp = updates[1]
        rare = (part.ref_logp - logp > 2) & part.mask.bool()
        start = grads.Snapshot(policy)
        for share in shares:
            with torch.no_grad():
                for parameter in grads.trainable(policy):
                    parameter.sub_(share * RATE * parameter.grad)
            rows.append({"share": share, "norm": norm} | _mean_d(policy, part, rare))
            start.load(policy)
        return grads.Update(norm)

    def keep(part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
        updates.append((part, logp))
        return {}

    where = {"model": model, "device": device, "rounds": 1, "mu": 2, "exam": False}
    for _ in train_on_add(estimator, seed, step=in_parts, probe=keep, **where):
        pass
    return rows


@torch.no_grad()
def _mean_d(policy: Any, part: Batch, rare: torch.Tensor) -> dict[str, float]:
    counted = part.mask.bool()
    logp, _ = token_logprobs(policy, part.out.ids, part.out.attention_mask, counted.shape[1])
    d = part.ref_logp - logp
    return {"rare": d[rare].mean().item(), "others": d[counted & ~rare].mean().item()}


def picture_of_walk(rows: Sequence[Mapping[str, float]], title: str) -> None:
    """Mean d of the rare tokens and of the others, by the share of update 2's step. Equal axes in every picture."""
    import matplotlib.pyplot as plt  # here, so that the runs' processes do not import it

    figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
    shares = [100 * row["share"] for row in rows]
    axis.axhline(0, color="#767676", lw=0.8)
    for name, label, style, colour in (
        ("rare", "mean d of the rare tokens", "o-", "#D55E00"),
        ("others", "mean d of all other tokens", "s--", "#0072B2"),
    ):
        axis.plot(shares, [row[name] for row in rows], style, color=colour, label=label)
    axis.set(xlabel="share of update 2's step that is taken, %", ylabel="nats", ylim=(-1.2, 4.2))
    axis.legend(frameon=False)
    axis.set_title(title, fontsize=10)
    plt.show()


def highest_kl(one: Run) -> float:
    """The highest logged KL of a run; what is not finite counts as inf."""
    values = [float(value) for value in one["kl"]]
    return max(value if math.isfinite(value) else math.inf for value in values)


def exam_at_end(one: Run) -> float:
    """The exam after the last round; 0 where the run died or the exam is NaN."""
    last = one.exam()[-1]
    return last if one.outcome and math.isfinite(last) else 0.0


def logs_of(
    cases: Mapping[str, Mapping[str, Any]], seed: int, **where: Any
) -> dict[str, dict[str, float]]:
    """Case -> what the log of its first round says, and that of the same round with β = 0."""
    alone = {f"{case}, β = 0": {**settings, "beta": 0.0} for case, settings in cases.items()}
    done = train_arms({**cases, **alone}, [seed], rounds=1, exam=False, **where)
    logs = {}
    for case in cases:
        (one,), (without,) = done[case], done[f"{case}, β = 0"]
        logs[case] = {
            "logged KL at update 1": one["kl"][0],
            "highest logged KL": highest_kl(one),
            "highest, with β = 0": highest_kl(without),
        }
    return logs


def judge_kl(estimator: Estimator, seed: int, **where: Any) -> checks.Report:
    """Check the slope of a KL for the loss; train with it, and with k2, where k2 is lost on seed 1."""
    report = checks.kl_estimator(estimator, role="loss", steepest=5, alive_to=10)
    if not report:
        return report
    arms = {"yours": {"estimator": estimator}, "k2": {"estimator": kl.k2}}
    runs = train_arms(arms, [seed], beta=0.5, mu=4, rounds=3, **where)
    ends = {f"exam, {name}": f"{exam_at_end(one):.2f}" for name, (one,) in runs.items()}
    return dataclasses.replace(report, seen=report.seen | ends)


def judge_diagnosis(
    diagnosis: Callable[[dict[str, float]], str],
    cases: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    **where: Any,
) -> checks.Report:
    """Does it name the cause of every case on each of these seeds?"""
    said = "my_diagnosis", f"names the cause of {len(cases) * len(seeds)} unseen runs"
    for seed in seeds:
        for case, log in logs_of(cases, seed, **where).items():
            if (answer := diagnosis(dict(log))) != case:
                seen = {"log": str(log), "answer": str(answer)}
                return checks.Report(*said, False, seen, f"It is {case!r}.")
    return checks.Report(*said, True)


def measure_largest_d(part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
    """A probe for `train_on_add`: the largest d of an update's tokens."""
    return {"largest_d": (part.ref_logp - logp)[part.mask.bool()].max().item()}
