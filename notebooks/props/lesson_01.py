"""What lesson 01 uses and does not teach: its run, its tables' rows, its look-alikes, and the cases of its exercise.

The KL, the update and the settings stand in the notebook.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from labkit import sandbox
from labkit.grpo import grads, loss, rollout, task
from labkit.grpo import kl as kls
from labkit.checks.report import Report
from labkit.events import Exam, Run, Step
from labkit.grpo.policy import load
from labkit.train import train

NO_CLAMPS = {"log_ratio_max": None, "logit_max": None, "advantage_max": None, "check": "off"}
CAUSES = ("step", "loss", "logits")


def run(
    policy: str, device: str, kl: Any, update: Any, seed: int, **settings: Any
) -> Iterator[Step | Exam]:
    """One run on `add` without labkit's clamps and restore. Every step's `extra` says what its batch's d are:

    d_max    the largest d of a counted token
    d_first  the d of the token whose d was the largest at update 2, in the updates of round 1
    share    the share of counted tokens whose d is above 3

    A policy whose probabilities are NaN can give no answer: its exam is 0.
    """
    updates, rarest = 0, 0

    def probe(part: Any, logp: torch.Tensor, _: torch.Tensor) -> dict[str, float]:
        nonlocal updates, rarest
        updates += 1
        d = (part.ref_logp - logp)[part.mask.bool()]  # [tokens], the same ones all through a round
        if updates == 2:
            rarest = int(d.argmax())
        first = float(d[rarest]) if updates <= settings["mu"] else math.nan
        share = math.nan if d.isnan().any() else float((d > 3).float().mean())
        return {"d_max": float(d.max()), "d_first": first, "share": share}

    made = NO_CLAMPS | {"exam": True, "probe": probe} | settings
    for event in train(policy, "add", device=device, kl=kl, update=update, seed=seed, **made):
        if isinstance(event, Exam) and math.isnan(event.mean):
            event = Exam(event.round, dict.fromkeys(event.chances, 0.0))
        yield event


def of_seeds(seeds: Sequence[int], kl: Any, update: Any, **settings: Any) -> list[Run]:
    """The same run on each seed, two at a time."""
    each = {seed: {"seed": seed} for seed in seeds}
    return list(sandbox.run_all(run, each, kl=kl, update=update, **settings).values())


def asserted(one: Run) -> bool:
    """Whether the run died in `torch.multinomial`."""
    return sandbox.is_multinomial_assert(one.outcome)


def gain(one: Run, rounds: int) -> float:
    """The exam after so many rounds, less that of the policy as it came; a run that died before has 0 there."""
    exams = one.exam()
    return (exams[rounds] if len(exams) > rounds else 0.0) - exams[0]


def ending(one: Run) -> str:
    """How a run ended, in words."""
    return "lives" if one.outcome else f"dies in round {one.rounds + 1}"


def exams(one: Run) -> str:
    return " ".join(f"{chance:.2f}" for chance in one.exam())


def rows_of(arms: dict[str, Sequence[Run]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The table of the arms: a row for each run."""
    rows = []
    for arm, runs in arms.items():
        for seed, one in zip(seeds, runs, strict=True):
            row: dict[str, Any] = {"arm": arm, "seed": seed, "end": ending(one)}
            row |= {"KL at update 2": one["kl"][1], "norm of update 2": one["grad_norm"][1]}
            rows.append(row | {"largest norm": largest_norm(one), "exam by round": exams(one)})
    return rows


def largest_norm(one: Run) -> float:
    """NaN where a norm was NaN."""
    norms = one["grad_norm"]
    return max(norms) if all(map(math.isfinite, norms)) else math.nan


def remedy_row(remedy: str, long_step: Run, tied: Run) -> dict[str, Any]:
    """A row of the table of remedies."""
    row: dict[str, Any] = {"remedy": remedy, "long step": ending(long_step)}
    row["skips"] = f"{sum(long_step['skipped']):.0f} of {len(long_step.steps)}"
    row |= {"exam": exams(long_step), "0 / 0": ending(tied)}
    return row | {"its exam": exams(tied)}


def adamw_row(name: str, one: Run) -> dict[str, Any]:
    norms = [f"{norm:.3g}" for norm in one["grad_norm"][:3]]
    return {"run": name, "first norms": ", ".join(norms), "end": ending(one), "exam": exams(one)}


COLOURS = {"bug": "#d55e00", "no KL term": "#009e73", "fix": "#0072b2"}


def draw(arms: dict[str, Sequence[Run]], title: str) -> None:
    """For each arm the gradient norms of round 1, and below them the exam by round. A dash each seed."""
    from matplotlib import pyplot as plt

    shape = {"figsize": (9, 4.4), "layout": "constrained", "sharey": "row", "sharex": "row"}
    figure, axes = plt.subplots(2, len(arms), **shape)
    for (upper, lower), (arm, runs) in zip(axes.T, arms.items(), strict=True):
        for one, dash in zip(runs, ("-", "--", ":"), strict=True):
            line = {"ls": dash, "color": COLOURS[arm], "lw": 1.5}
            norms = [step.grad_norm for step in one.steps if step.round == 1]
            finite = [norm for norm in norms if math.isfinite(norm)]
            upper.semilogy(range(1, len(finite) + 1), finite, **line)
            if len(finite) < len(norms):
                upper.plot(len(finite), finite[-1], "X", color=COLOURS[arm], ms=7)
            lower.plot(one.exam(), **line)
            if not one.outcome:
                lower.plot(one.rounds, one.exam()[-1], "X", color=COLOURS[arm], ms=7)
        upper.set(title=arm, xlabel="update of round 1")
        lower.set(xlabel="round", xticks=range(4))
    axes[0, 0].set_ylabel("gradient norm\n(cross: the next is NaN or inf)", fontsize=8)
    axes[1, 0].set_ylabel("chance of a right answer\n(cross: it died)", fontsize=8)
    figure.suptitle(title, fontsize=10, fontweight="bold")
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
    plt.show()


def zero_by_zero(logp: torch.Tensor, part: Any) -> loss.PolicyLoss:
    """GRPO's loss, where a group of equal rewards has the advantage 0 / 0: nothing is added to the deviation."""
    rows = part.rewards.view(-1, part.out.num_samples)
    advantages = (rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True)
    return loss.grpo(logp, part.old_logp, advantages.flatten(), log_ratio_max=None)


# ---- look-alikes: what a sampler may be handed


def in_half(logits: torch.Tensor) -> torch.Tensor:
    return (logits.half() / 1e-4).float().softmax(-1)


def all_forbidden(logits: torch.Tensor) -> torch.Tensor:
    return torch.full_like(logits, -math.inf).softmax(-1)


def all_zero(logits: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(logits)


# cause -> settings of `sample_once`; token ids of the tiny policy end at 15
LOOK_ALIKES: dict[str, dict[str, Any]] = {
    "logits / 1e-4 in half precision": {"change": in_half},
    "every token forbidden by filters": {"change": all_forbidden},
    "probabilities all zero": {"change": all_zero},
    "token id outside the embedding": {"shift": 100},
}


def sample_once(
    policy: str,
    device: str,
    seed: int,
    change: Any = None,
    shift: int = 0,
    trained: dict[str, Any] | None = None,
) -> Iterator[dict[str, float]]:
    """Train for a round if asked to, say how many parameters are not finite, then draw one token for eight prompts.

    change  logits [B, V] -> probabilities [B, V], in place of softmax
    shift   added to every token id
    """
    sampled = load(policy, device)
    if trained is not None:
        yield from run(sampled, device, seed=seed, **trained)  # type: ignore[arg-type]  # a Policy, trained in place
    yield {"not finite": grads.health(sampled.model).nonfinite}
    ids, mask = sampled.encode(task.get("add").held_out()[:8])
    with torch.no_grad():
        logits = sampled.model(ids + shift, attention_mask=mask).logits[:, -1]
    drawn = torch.multinomial(change(logits) if change else logits.softmax(-1), 1)
    drawn.sum().item()  # on CUDA an assert surfaces when a result is read


def broken(one: Run) -> int:
    """Parameters that were not finite when the run sampled for the last time."""
    counts = [int(event["not finite"]) for event in one.events if isinstance(event, dict)]
    return counts[0] if counts else int(one.steps[-1].nonfinite_params)


def message(one: Run) -> str:
    return " ".join(one.outcome.message.splitlines()[:1])


def norms_of(one: Run) -> str:
    """The gradient norms up to the first that is not a number."""
    words: list[str] = []
    for norm in one["grad_norm"]:
        words.append(f"{norm:.3g}")
        if not math.isfinite(norm):
            break
    return ", ".join(words[:5])


# ---- a remedy that does not help


def sample_anyway(logits: torch.Tensor, *settings: Any) -> torch.Tensor:
    """What transformers' `remove_invalid_values=True` adds, and then the usual draw."""
    from transformers import InfNanRemoveLogitsProcessor

    return rollout.sample_tokens(InfNanRemoveLogitsProcessor()(None, logits), *settings)


def generate_anyway(*args: Any, **settings: Any) -> rollout.Completions:
    return rollout.generate(*args, **settings, sample_tokens=sample_anyway)


# ---- the second exercise


class Unguarded:
    """labkit's guard for so many updates, and then a step that nothing limits."""

    def __init__(self, guarded: int):
        self.left, self.guard = guarded, grads.guard()

    def __call__(self, model: Any, optimizer: Any) -> grads.Update:
        self.left -= 1
        return (self.guard if self.left >= 0 else grads.plain_step)(model, optimizer)


def case(cause: str, policy: str, device: str, seed: int) -> Iterator[Any]:
    """A run that dies of this cause while it samples; its steps are the log."""
    usual = {"optimizer": "sgd", "mu": 8, "beta": 0.04, "kl": kls.k3, "lr": 0.05}
    if cause == "step":
        unguarded = Unguarded(guarded_updates(seed))
        yield from run(policy, device, seed=seed, update=unguarded, rounds=5, **usual)
    elif cause == "loss":  # groups of five: nearly every second round has a tied one
        small = usual | {"num_samples": 5, "policy_loss": zero_by_zero, "lr": 0.003, "rounds": 12}
        yield from run(policy, device, seed=seed, update=grads.plain_step, **small)
    else:  # an evaluation after the round, almost greedy, in half precision
        trained = usual | {"update": grads.guard(), "rounds": 2}
        yield from sample_once(policy, device, seed, in_half, trained=trained)


def guarded_updates(seed: int) -> int:
    return 8 * (1 + seed % 2)


def harmful(cause: str, one: Run, seed: int) -> int:
    """The update that must be undone, counted from 1, from what the log does not show; 0 for none."""
    if cause == "step":
        return guarded_updates(seed) + 1
    if cause == "loss":
        return next(step.step for step in one.steps if step.frac_reward_zero_std > 0)
    return 0


def judge(diagnose: Callable[..., Any], policy: str, device: str, seed: int) -> Report:
    """Hand `diagnose(norms, kls, broken)` six logs, two of each cause, and compare what it says."""
    cases = [(cause, seed + 10 + at) for at in range(2) for cause in CAUSES]
    each = {(cause, s): {"cause": cause, "seed": s} for cause, s in cases}
    logs = sandbox.run_all(case, each, policy=policy, device=device)
    for named, ((cause, s), one) in enumerate(logs.items()):
        counts = [int(step.nonfinite_params) for step in one.steps]
        said = diagnose(one["grad_norm"], one["kl"], counts)
        if not (isinstance(said, tuple) and len(said) == 2 and said[0] in CAUSES):
            expected = f"Expected a cause, one of {', '.join(CAUSES)}, and an update."
            return Report("diagnosis", "", False, {"said": str(said)}, expected)
        right = (cause, harmful(cause, one, s))
        if said != right:
            wrong = "cause" if said[0] != cause else "update"
            text = f"The log of {len(counts)} updates with the norms {norms_near(one)} was called {said}. Its {wrong} is another."
            return Report("diagnosis", "", False, {"right": f"{named} of 6 so far"}, text)
    return Report("diagnosis", "", True, {"right": "6 of 6 logs"})


def norms_near(one: Run) -> str:
    """Up to six gradient norms, the last of them the first that is not a number, if there is one."""
    norms = one["grad_norm"]
    end = next((at for at, norm in enumerate(norms) if not math.isfinite(norm)), len(norms) - 1)
    return "... " + ", ".join(f"{norm:.3g}" for norm in norms[max(0, end - 5) : end + 1])
