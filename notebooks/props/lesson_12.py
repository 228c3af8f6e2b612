"""What page 12 uses and does not teach: its sums, their marks, its tables, the logs of its last exercise.

Beside it: `lesson_12_pictures.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

import torch
from props.arms import last_exam
from props.diagnosis import shuffled

import labkit
from labkit.events import Run, Step
from labkit.grpo import generate, load, task
from labkit.grpo.batch import Batch

ADD = task.get("add")
SERIES = {  # a table's column -> what the log calls it
    "reward, as logged": "reward",
    "digits": "digits",
    "rewards that are 0": "zeros",
    "missing": "missing",
}

# ------------------------------------------------------------------------------------------- the sums and their marks


def near_100(prompt: str) -> bool:
    """Whether the right answer has three digits and the one ten lower has two."""
    return 100 <= int(ADD.answer(prompt)) <= 109


def sums(number: int, seed: int) -> list[str]:
    """Sums of 100 to 109 to train on, none of them held out."""
    drawn = ADD.sample(100 * number, random.Random(seed))
    # about one sum in ten is one
    return [prompt for prompt in drawn if near_100(prompt)][:number]


SUMS = sums(8, seed=0)
HELD_OUT = [prompt for prompt in ADD.held_out() if near_100(prompt)]


def mark(prompt: str, answer: str) -> float:
    """1 for the right sum, minus 1/50 for each that it differs by, at least 0; 0 for what is no number."""
    if not answer.isdecimal():
        return 0.0
    error = abs(int(answer) - int(ADD.answer(prompt)))
    return max(0.0, 1 - error / 50)


def probe(part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
    """How many characters the answers have, which are digits but for few; and the share of rewards that are 0."""
    digits = mean(map(len, part.out.texts))
    return {"digits": digits, "zeros": float((part.rewards == 0).float().mean())}


def advantages_of(advantage: Callable[..., Any], rewards: Sequence[float]) -> Iterator[Any]:
    """For the sandbox: the advantages and the mask of one group."""
    values, mask = advantage(torch.tensor(rewards), len(rewards))
    yield {"advantages": torch.as_tensor(values).tolist(), "mask": torch.as_tensor(mask).tolist()}


# -------------------------------------------------------------------------------------------------- words and tables


def table_of_group(
    answers: Sequence[str],
    seconds: Sequence[float],
    marks: Sequence[float],
    rewards: Sequence[float],
    advantages: Sequence[float],
) -> None:
    """A row for each answer of a group: how long the judge took, and what the trainer made of it."""
    titles = ("answer", "seconds", "mark", "reward", "advantage")
    rows = []
    for numbers in zip(answers, seconds, marks, rewards, advantages, strict=True):
        rows.append(dict(zip(titles, numbers, strict=True)))
    labkit.table(rows)


def exams(runs: Sequence[Run]) -> str:
    """The last exams of some runs, in words."""
    return " ".join(f"{last_exam(run):.2f}" for run in runs)


def by_round(run: Run, series: str, mu: int) -> str:
    """ "0.34 0.58 0.51": a series that is logged where it is not 0, in the first of the mu updates of each round."""
    if not run.steps:
        return "none"
    return " ".join(f"{value_of(step, series):.2f}" for step in run.steps[::mu])


def exam_before_and_after(run: Run) -> str:
    """ "0.512 to 0.563", of a run with a single round."""
    if not run.outcome:
        return "the run ended by an error"
    chances = run.exam()
    return f"{chances[0]:.3f} to {chances[-1]:.3f}"


def first_and_last(runs: Mapping[str, Sequence[Run]]) -> list[dict[str, str]]:
    """A row for each arm: means over its seeds, first round to last; and the exam of each seed.

    A run that died counts in no mean. A column without a number above 0 is left out.
    """
    rows = []
    for name, of_seeds in runs.items():
        row = {"means of three seeds, first round to last": name}
        for title, series in SERIES.items():
            row[title] = means_of(of_seeds, series)
        row["exam at the end, each seed"] = exams(of_seeds)
        rows.append(row)
    for title in SERIES:
        if all(row[title] == "0.00 to 0.00" for row in rows):
            for row in rows:
                del row[title]
    return rows


def means_of(runs: Sequence[Run], series: str) -> str:
    """ "0.40 to 0.61": the mean over the runs that came to their end, in the first step and in the last."""
    whole = [run for run in runs if run.outcome]
    if not whole:
        return "none"
    first = mean(value_of(run.steps[0], series) for run in whole)
    last = mean(value_of(run.steps[-1], series) for run in whole)
    return f"{first:.2f} to {last:.2f}".replace("-", "−")


def value_of(step: Step, series: str) -> float:
    """One number of a step; 0 where it is logged only when it is not 0."""
    if series == "reward":
        return float(step.reward)
    return float(step.extra.get(series, 0.0))


# --------------------------------------------------------------------------------- first answers and their rewards


def first_answers(
    seed: int, policy: str, device: str, **sampling: Any
) -> list[tuple[str, str, bool]]:
    """256 answers of the untrained policy to sums of 100 to 109: prompt, answer, and whether it ended."""
    tiny = load(policy, device)
    prompts = sums(32, seed + 1)
    generator = torch.Generator(tiny.device).manual_seed(seed)
    out = generate(tiny, prompts, num_samples=8, generator=generator, **sampling)
    # an answer that is cut at the maximum length has no end
    ended = (out.tokens == tiny.tokenizer.eos_token_id).any(1).tolist()
    asked: list[str] = []
    for prompt in prompts:
        asked += [prompt] * 8
    return list(zip(asked, out.texts, ended, strict=True))


def seconds_of(answer: str, chance: random.Random) -> float:
    """How long the page's judge takes for an answer."""
    return 1.25 * len(answer) ** 2 * chance.lognormvariate(0, 0.3)


def log_of(
    seed: int,
    policy: str,
    device: str,
    *,
    timeout: float = float("inf"),
    lost: float = 0.0,
    per_digit: float = 0.0,
    max_new_tokens: int = 4,
) -> dict[str, float]:
    """What a log of first answers says: of their rewards, and of those when asked again, without a limit.

    timeout    seconds; the judge is that of the page
    lost       the share of its answers that get lost, whatever their length
    per_digit  what a digit costs
    """
    chance = random.Random(seed)
    again: dict[str, list[float]] = {"long": [], "short": []}  # rewards when asked again
    changed: dict[str, list[bool]] = {"long": [], "short": []}  # whether that is another
    cut = []
    for prompt, answer, ended in first_answers(seed, policy, device, max_new_tokens=max_new_tokens):
        length = "short"
        if len(answer) > 2:
            length = "long"
        reward = 0.0
        if ended:
            reward = mark(prompt, answer) - per_digit * len(answer)
        # no draw for what is late: the order of the draws is part of a log's numbers
        came = seconds_of(answer, chance) <= timeout and chance.random() >= lost
        again[length].append(reward)
        changed[length].append(not came and reward != 0)  # what did not come was a 0
        cut.append(not ended)
    return {
        "changed, long": mean_or_0(changed["long"]),
        "changed, short": mean_or_0(changed["short"]),
        "no end": mean(cut),
        "long minus short": mean_or_0(again["long"]) - mean_or_0(again["short"]),
    }


def mean_or_0(values: Sequence[float]) -> float:
    """0 where there is no answer of that length."""
    return mean(values or [0.0])


def unseen_logs(seed: int, policy: str, device: str) -> list[tuple[str, Mapping[str, float]]]:
    """Ten logs, two of each cause, with other settings than the page's, in an order that the seed decides."""
    cases: dict[str, dict[str, Any]] = {
        "late by length 1": {"timeout": 8.0, "lost": 0.05},
        "late by length 2": {"timeout": 12.0},
        "late by chance 1": {"lost": 0.15},
        "late by chance 2": {"lost": 0.45, "timeout": 25.0},
        "cut 1": {"max_new_tokens": 2},
        "cut 2": {"max_new_tokens": 3, "lost": 0.02},
        "a digit costs marks 1": {"per_digit": 0.3},
        "a digit costs marks 2": {"per_digit": 0.4, "lost": 0.02},
        "nothing 1": {"timeout": 25.0},
        "nothing 2": {"per_digit": 0.05, "lost": 0.02},
    }
    logs = {}
    for number, (name, settings) in enumerate(cases.items()):
        logs[name] = log_of(seed + 10 * number, policy, device, **settings)
    return shuffled(logs, seed)
