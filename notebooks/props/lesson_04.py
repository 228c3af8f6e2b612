"""Lesson 04: an exam for each kind of sum, what is measured inside groups, and five samplers that can look alike.

Nothing here is a bug or a fix: `first_token` is an argument everywhere, and stands in the notebook.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from labkit.grpo import exam, rollout, task
from labkit.grpo.advantage import group_advantage
from labkit.events import Exam, Run, Step
from labkit.grpo.policy import Policy, load, token_logprobs
from labkit.train import train

FIRST, SECOND = "first-token sums", "second-token sums"
ADD = task.get("add")


def kind_of(prompt: str) -> str | None:
    """Where do the right answer and the one that is ten too low part? None where the sum is below 10."""
    right = int(ADD.answer(prompt))
    if right < 10:
        return None
    return SECOND if str(right)[0] == str(right - 10)[0] else FIRST


# kind -> the exam's prompts of that kind: 88 and 58 of 150
SUMS = {
    kind: [prompt for prompt in ADD.held_out() if kind_of(prompt) == kind]
    for kind in (FIRST, SECOND)
}


def learn_sums(
    first_token: Callable[..., torch.Tensor],
    seed: int,
    model: str = "tiny",
    device: str = "auto",
    rounds: int = 8,
    mu: int = 4,
    exam_every: int = 1,
    **settings: Any,
) -> Iterator[Step | Exam]:
    """A run of `labkit.train` with this first token, and an exam for each kind of sum alone.

    exam_every   rounds from one exam to the next; 0: no exam
    settings     of `labkit.train`
    """
    policy = load(model, device)
    papers = {
        kind: exam.paper_of(policy.tokenizer, prompts, [ADD.answer(prompt) for prompt in prompts])
        for kind, prompts in SUMS.items()
    }

    def sit(round_: int) -> Exam:
        return Exam(round_, {kind: paper.mean(policy.model) for kind, paper in papers.items()})

    own = {"task": "add", "seed": seed, "rounds": rounds, "mu": mu}
    own["generate"] = partial(rollout.generate, first_token=first_token)
    if exam_every:
        yield sit(0)
    for step in train(policy, **(own | settings)):
        yield step
        if exam_every and step.inner == mu and step.round % exam_every == 0:
            yield sit(step.round)


def gain(run: Run, kind: str) -> float:
    """How much the exam of this kind rose from the first to the last."""
    chances = run.exam(kind)
    return chances[-1] - chances[0]


def gains(arm: str, runs: Iterable[Run]) -> dict[str, Any]:
    """A row of a table: the gain of each run on both kinds of sums, and the share of tied groups over all steps."""
    runs = list(runs)
    row: dict[str, Any] = {"arm": arm}
    for kind in SUMS:
        row[f"{kind}: gain"] = "  ".join(f"{gain(run, kind):+.2f}" for run in runs)
    row["tied groups"] = mean([tied for run in runs for tied in run["frac_reward_zero_std"]])
    return row


def inside_groups(
    policy: Policy,
    first_token: Callable[..., torch.Tensor],
    kind: str,
    seed: int,
    num_samples: int = 8,
) -> dict[str, float]:
    """Sample every sum of a kind twice, and measure what happens inside the groups and between the two calls."""
    generator = torch.Generator(policy.device).manual_seed(seed)
    ask = partial(
        rollout.generate, policy, SUMS[kind], first_token=first_token, num_samples=num_samples
    )
    out, again = ask(generator=generator), ask(generator=generator)
    groups = _rewards(policy, kind, out)  # [P, num_samples]
    moved = groups.mean(1) - _rewards(policy, kind, again).mean(1)
    norms = gradient_norms(policy, out, group_advantage(groups.flatten(), num_samples))
    return {
        "tied groups": (groups == groups[:, :1]).all(1).float().mean().item(),
        "mean reward": groups.mean().item(),
        "group mean, call to call": moved.square().mean().sqrt().item(),
        "gradient, first token": norms[0],
        "gradient, second token": norms[1],
    }


def _rewards(policy: Policy, kind: str, out: rollout.Completions) -> torch.Tensor:
    """[P, num_samples]"""
    asked = [prompt for prompt in SUMS[kind] for _ in range(out.num_samples)]
    return torch.tensor(task.rewards(asked, out.texts), device=policy.device).view(
        -1, out.num_samples
    )


def gradient_norms(
    policy: Policy, out: rollout.Completions, advantages: torch.Tensor
) -> list[float]:
    """Norm of the policy loss's gradient for the first token alone, and for the second alone; no KL, no clip.

    The loss is the mean of -ratio * advantage over the counted tokens, and the ratio is 1: a round's first update.
    """
    logp, _ = token_logprobs(policy.model, out.ids, out.attention_mask, out.tokens.shape[1])
    ratio = (logp - logp.detach()).exp()  # [B, T]
    per_token = -ratio * advantages[:, None] * out.mask / out.mask.sum()
    norms = []
    for position in (0, 1):
        policy.model.zero_grad()
        per_token[:, position].sum().backward(retain_graph=True)
        parts = [p.grad for p in policy.model.parameters() if p.grad is not None]
        norms.append(torch.nn.utils.get_total_norm(parts).item())
    return norms


# Samplers that can look alike --------------------------------------------------------------------------------


def look_alikes(
    policy: Policy,
    first_token: Callable[..., torch.Tensor],
    seed: int,
    prompt: str = "47+52=",
    sure: str = "75+71=",
) -> dict[str, Callable[[int], torch.Tensor]]:
    """Name -> a sampler, called with a number of rows n, which returns tokens [n, T].

    prompt   can begin in more than one way at temperature 2
    sure     begins in one way at top-p 0.85, and can end in two
    """

    def asked(prompt: str, **settings: Any) -> Callable[[int], torch.Tensor]:
        generator = torch.Generator(policy.device).manual_seed(seed)
        ask = partial(rollout.generate, policy, [prompt], generator=generator, **settings)
        return lambda n: ask(num_samples=n).tokens

    numbers = itertools.count(1000 * seed)

    def seeded_in_each_row(n: int) -> torch.Tensor:
        number = next(numbers)  # one for each call
        ask = partial(rollout.generate, policy, [prompt], num_samples=1, temperature=2.0)
        rows = [
            ask(generator=torch.Generator(policy.device).manual_seed(number)).tokens
            for _ in range(n)
        ]
        return torch.cat(rows)

    return {
        "healthy": asked(prompt, temperature=2.0),
        "first token copied": asked(prompt, temperature=2.0, first_token=first_token),
        "greedy": asked(prompt, temperature=1e-4),
        "seeded in each row": seeded_in_each_row,
        "sure of its first token": asked(sure, top_p=0.85),
    }


def table_of_counts(
    samplers: Mapping[str, Callable[[int], torch.Tensor]], rows: int, calls: int
) -> list[dict]:
    """One row for each sampler: the three counts over this many calls."""
    table = []
    for name, generate in samplers.items():
        drawn = [[tuple(row) for row in generate(rows).tolist()] for _ in range(calls)]
        table.append(
            {
                "sampler": name,
                "first tokens in a call, at most": max(
                    len({row[0] for row in call}) for call in drawn
                ),
                "whole rows in a call, at most": max(len(set(call)) for call in drawn),
                "first tokens over all calls": len({row[0] for call in drawn for row in call}),
            }
        )
    return table


# The log of exercise B ---------------------------------------------------------------------------------------

COLUMNS = {
    "mean reward": "reward",
    "spread inside groups": "reward_std",
    "tied groups": "frac_reward_zero_std",
    "first tokens in a group": "first_token_unique",
}


def log_of(runs: Mapping[str, Run]) -> list[dict]:
    """One row for each run: means over its steps."""
    return [
        {"run": name} | {column: mean(run[field]) for column, field in COLUMNS.items()}
        for name, run in runs.items()
    ]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# more/04_pass_at_k ---------------------------------------------------------------------------------------------

BUG, FIX = "#d55e00", "#0072b2"  # the course's colours


def rewards_of(
    policy: Policy,
    first_token: Callable[..., torch.Tensor],
    kind: str,
    seed: int,
    *,
    num_samples: int = 8,
    temperature: float = 1.0,
    calls: int = 1,
) -> torch.Tensor:
    """Rewards of every sum of a kind, asked in several calls: [calls, P, num_samples], 0 or 1."""
    generator = torch.Generator(policy.device).manual_seed(seed)
    ask = partial(
        rollout.generate, policy, SUMS[kind], first_token=first_token, num_samples=num_samples
    )
    outs = [ask(generator=generator, temperature=temperature) for _ in range(calls)]
    return torch.stack([_rewards(policy, kind, out) for out in outs])


@torch.no_grad()
def chances(
    policy: Policy, kind: str, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of every sum of a kind: the chance of the right first token, and that of the right rest after it; [P] each."""
    firsts, rests = [], []
    for prompt in SUMS[kind]:
        asked = policy.tokenizer(prompt)["input_ids"]
        answer = policy.tokenizer(ADD.answer(prompt), add_special_tokens=False)["input_ids"]
        answer = [*answer, policy.tokenizer.eos_token_id]
        logits = policy.model(
            input_ids=torch.tensor([asked + answer[:-1]], device=policy.device)
        ).logits[0]
        logp = (logits[len(asked) - 1 :] / temperature).log_softmax(-1)  # [len(answer), V]
        right = logp[range(len(answer)), answer].exp()
        firsts.append(right[0].item())
        rests.append(right[1:].prod().item())
    return torch.tensor(firsts), torch.tensor(rests)


def pass_at(k: int, rewards: torch.Tensor) -> float:
    """The unbiased estimate of pass@k from rewards [..., n], 0 or 1 (Chen et al. 2021, arXiv 2107.03374)."""
    n = rewards.shape[-1]
    right = rewards.sum(-1).flatten().int().tolist()
    return mean([1 - math.comb(n - c, k) / math.comb(n, k) for c in right])


def pass_curves(rows: Sequence[Mapping[str, Any]], title: str) -> Any:
    """A panel for each kind of sum: a line for the formula, a dot for the estimate, against k.

    rows   with "sums", "first token" ("copied" or "own"), "k", "formula" and "estimate"
    """
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, 2, figsize=(8.6, 2.8), sharey=True, layout="constrained", dpi=110
    )
    for axes, kind in zip(panels, SUMS, strict=True):
        for name, color in (("copied", BUG), ("own", FIX)):
            line = [row for row in rows if row["sums"] == kind and row["first token"] == name]
            ks = [row["k"] for row in line]
            axes.plot(ks, [row["formula"] for row in line], color=color, label=f"{name}: formula")
            axes.plot(
                ks, [row["estimate"] for row in line], "o", color=color, label=f"{name}: estimate"
            )
        axes.set_title(kind, size=9, loc="left", weight="bold")
        axes.set_xlabel("k")
        axes.set_xticks(ks)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("pass@k")
    panels[1].legend(frameon=False, fontsize=8, loc="lower right")
    figure.suptitle(title, weight="bold", size=10, x=0.01, ha="left")
    pyplot.close(figure)
    return figure


def four_evaluations(
    policy: Policy, first_token: Callable[..., torch.Tensor], seed: int
) -> list[dict]:
    """The table of exercise B, on first-token sums: a sharper policy, a weaker one, the copied token, a healthy one."""
    unnamed = {
        "P": (rollout.each_row, 0.1),
        "Q": (rollout.each_row, 3.0),
        "R": (first_token, 1.0),
        "S": (rollout.each_row, 1.0),
    }
    table = []
    for name, (sampler, temperature) in unnamed.items():
        rewards = rewards_of(
            policy, sampler, FIRST, seed, temperature=temperature, calls=8
        )  # [8, P, 8]
        row: dict[str, Any] = {"evaluation": name, "pass@1": pass_at(1, rewards)}
        row["pass@8, one call"] = pass_at(8, rewards)
        row["pass@8, one row from each of 8 calls"] = pass_at(8, rewards[:, :, 0].T)
        table.append(row)
    return table
