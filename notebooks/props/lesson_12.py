"""What lesson 12 uses and does not teach: its prompts, a judge that answers late by rule, its run, its tables, and the
logs of its diagnosis.

Which rewards are late follows from `slow_judge.fate`, the rule of the server beside this file. Nothing waits for it,
so a run is the same on a busy machine and on an idle one. The reward function and the mask stand in the notebook.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from statistics import mean
from typing import Any

import torch

from labkit import sandbox
from labkit.grpo import exam, loss, rollout, task
from labkit.checks.report import Report
from labkit.events import Exam, Run, Step
from labkit.grpo.policy import load
from labkit.train import train

from . import slow_judge
from .children import events_of

ADD = task.get("add")
ROUNDS, PROMPTS, GROUP, MU = 8, 4, 8, 2
NEAR = "sums of 100 to 109"
NAMES = (
    "missing, by length",
    "missing, at random",
    "the judge prefers short answers",
    "nothing found",
)

Score = Callable[[Callable[[str, str], float], Sequence[str], Sequence[str]], list[float | None]]


def near(prompt: str) -> bool:
    """Whether the right answer has three digits and the one ten lower has two."""
    return 100 <= int(ADD.answer(prompt)) <= 109


def mark(prompt: str, answer: str) -> float:
    """1 for the right sum, less by 1/50 for each that it is off, at least 0; 0 for what is no number."""
    if not answer.isdecimal():
        return 0.0
    return max(0.0, 1 - abs(int(answer) - int(ADD.answer(prompt))) / 50)


def comes(seed: int, number: int, length: int, timeout: float, retries: int) -> bool:
    """Whether the judge of this seed answers question `number` in time: by its rule, without asking it."""
    for attempt in range(1, retries + 2):
        kind, seconds = slow_judge.fate(seed, str(number), attempt, length)
        if kind == "answer" and seconds < timeout:
            return True
    return False


def learn(
    score: Score,
    seed: int,
    *,
    advantage: Callable[..., Any] | None = None,
    time_limit: float = 10,
    retries: int = 1,
    dealt: bool = False,
    policy: str = "tiny",
    device: str = "auto",
) -> Iterator[Step | Exam]:
    """Eight rounds on four sums of 100 to 109, with `score(ask, prompts, answers)` as the reward function.

    The exam asks the held-out sums of that kind.

    advantage   (rewards [B], group size) -> advantages [B] and a mask; None: those of labkit.train
    time_limit  judge seconds that a try may take; `retries` more tries
    dealt       as many rewards are missing, and chance decides which

    `Step.extra` holds what the trainer does not see: "digits", the mean length of the answers; "missing", the share
    without a reward; "groups without a gap" and "groups with two": of how many all rewards came, and at least two.
    """
    trained = load(policy, device)
    held_out = [prompt for prompt in ADD.held_out() if near(prompt)]
    paper = exam.paper_of(trained.tokenizer, held_out, [ADD.answer(prompt) for prompt in held_out])
    drawn = ADD.sample(400, random.Random(seed))
    prompts = [prompt for prompt in drawn if near(prompt)][:PROMPTS]
    dice, asked, notes = random.Random(seed), iter(range(10**9)), {}

    def reward(prompts: Sequence[str], answers: Sequence[str]) -> list[float | None]:
        came = [comes(seed, next(asked), len(answer), time_limit, retries) for answer in answers]
        if dealt:
            dice.shuffle(came)
        in_turn = iter(came)

        def ask(prompt: str, answer: str) -> float:
            if not next(in_turn):
                raise TimeoutError
            return mark(prompt, answer)

        notes.update(_notes(answers, came))
        return score(ask, prompts, answers)

    settings: dict[str, Any] = {"rounds": ROUNDS, "num_samples": GROUP, "mu": MU, "lr": 1e-4}
    if advantage is not None:
        settings["policy_loss"] = lambda logp, part: loss.grpo(
            logp, part.old_logp, advantage(part.rewards, GROUP)[0], log_ratio_max=5.0
        )
    yield Exam(0, {NEAR: paper.mean(trained.model)})
    for step in train(trained, seed=seed, prompts=prompts, reward=reward, **settings):
        yield dataclasses.replace(step, extra=step.extra | notes)
        if step.inner == MU:
            yield Exam(step.round, {NEAR: paper.mean(trained.model)})


def _notes(answers: Sequence[str], came: Sequence[bool]) -> dict[str, float]:
    numbers = [sum(came[at : at + GROUP]) for at in range(0, len(came), GROUP)]
    return {
        "digits": mean(map(len, answers)),
        "missing": 1 - mean(came),
        "groups without a gap": sum(number == GROUP for number in numbers),
        "groups with two": sum(number > 1 for number in numbers),
    }


def groups(runs: dict[int, Run]) -> tuple[int, int, int]:
    """Groups of all rounds and seeds: those without a gap, those with two rewards or more, all."""
    steps = [step for run in runs.values() for step in run.steps if step.inner == 1]
    whole, usable = (
        sum(step[name] for step in steps) for name in ("groups without a gap", "groups with two")
    )
    return int(whole), int(usable), PROMPTS * len(steps)


def ends(runs: dict[int, Run]) -> list[float]:
    """The exam after the last round, for each seed."""
    return [run.exam()[-1] for run in runs.values()]


def first_last(run: Run, name: str) -> tuple[float, float]:
    """A number's mean over the first two rounds, and over the last four."""
    values = [step[name] for step in run.steps if step.inner == 1]
    return mean(values[:2]), mean(values[-4:])


def changes(runs: dict[int, Run], name: str) -> list[float]:
    """For each seed: the last four rounds less the first two."""
    return [last - first for first, last in (first_last(run, name) for run in runs.values())]


def summary(arms: dict[str, dict[int, Run]]) -> list[dict[str, Any]]:
    """A row for each arm: means over its seeds, first two rounds to last four; and its exams, lowest to highest."""
    rows = []
    for arm, runs in arms.items():
        row: dict[str, Any] = {"arm": arm}
        for name, field in {
            "reward as seen": "reward",
            "digits": "digits",
            "missing": "missing",
        }.items():
            pairs = [first_last(run, field) for run in runs.values()]
            row[name] = " → ".join(f"{mean(column):.2f}" for column in zip(*pairs, strict=True))
        low, high = min(ends(runs)), max(ends(runs))
        rows.append(row | {"exam at the end": f"{low:.2f} to {high:.2f}"})
    return rows


def rewards_by_rule(
    seed: int, questions: Sequence[dict[str, Any]], timeout: float, retries: int
) -> list[float | None]:
    """The marks, None where the judge's rule says that none comes in time."""
    rewards: list[float | None] = []
    for question in questions:
        prompt, answer = question["prompt"], question["completion"]
        came = comes(seed, question["id"], len(answer), timeout, retries)
        rewards.append(mark(prompt, answer) if came else None)
    return rewards


def missing_by_digits(
    rewards: Sequence[float | None], questions: Sequence[dict[str, Any]]
) -> dict[str, int]:
    """How many answers of two digits, and of three, have no reward."""
    lost = {"missing of 16 with 2 digits": 0, "missing of 16 with 3 digits": 0}
    for reward, question in zip(rewards, questions, strict=True):
        if reward is None:
            lost[f"missing of 16 with {len(question['completion'])} digits"] += 1
    return lost


def missing_by_settings(
    settings: dict[str, Sequence[float | None]], questions: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """`missing_by_digits`, a row for each of the settings."""
    return [
        {"settings": name} | missing_by_digits(got, questions) for name, got in settings.items()
    ]


# ---- the diagnosis


def logs(
    seed: int,
) -> Iterator[tuple[str, list[dict[str, Any]], Callable[[dict[str, Any]], float]]]:
    """(name, log, ask_again) of each of the four causes, on 384 answers of the policy as it came."""
    policy = load("tiny", "cpu")
    prompts = [prompt for prompt in ADD.sample(2000, random.Random(seed)) if near(prompt)][:48]
    dice, chance = torch.Generator(policy.device).manual_seed(seed), random.Random(seed)
    answers = rollout.generate(policy, prompts, num_samples=GROUP, generator=dice).texts
    rows = list(zip([prompt for prompt in prompts for _ in range(GROUP)], answers, strict=True))
    in_time = [comes(seed, number, len(answer), 10, 1) for number, (_, answer) in enumerate(rows)]
    came = {name: [True] * len(rows) for name in NAMES}
    came["missing, by length"] = in_time
    came["missing, at random"] = chance.sample(in_time, len(in_time))
    for name in NAMES:

        def ask_again(row: dict[str, Any], name: str = name) -> float:
            short_only = name == "the judge prefers short answers"
            return (
                0.0 if short_only and len(row["answer"]) > 2 else mark(row["prompt"], row["answer"])
            )

        log = []
        for (prompt, answer), here in zip(rows, came[name], strict=True):
            row = {"prompt": prompt, "answer": answer}
            log.append(row | {"reward": ask_again(row) if here else 0.0})
        yield name, log, ask_again


def zeros(seed: int) -> list[dict[str, Any]]:
    """A row for each cause: how many rewards of 0 the long and the short answers have, and what asking again says.

    Made in a child, which has what a policy needs imported.
    """
    return events_of(sandbox.run(_zeros, seed), "the logs of the diagnosis")


def _zeros(seed: int) -> Iterator[dict[str, Any]]:
    for name, log, ask_again in logs(seed):
        zero = [row for row in log if row["reward"] == 0]
        row: dict[str, Any] = {"log": name}
        for kind, long in {"long": True, "short": False}.items():
            all_of_kind = [each for each in log if (len(each["answer"]) > 2) == long]
            of_kind = [each for each in zero if (len(each["answer"]) > 2) == long]
            row[f"zeros among the {kind}"] = f"{len(of_kind)} of {len(all_of_kind)}"
        turned = sum(ask_again(each) > 0 for each in zero)
        yield row | {"zeros that are marks when asked again": f"{turned} of {len(zero)}"}


def names_all_four(diagnose: Callable[..., Any]) -> Report:
    """The check of the diagnosis: each cause is named, on two seeds that no run has used."""
    for seed in (1001, 1002):
        for name, log, ask_again in logs(seed):
            said = diagnose(log, ask_again)
            if said != name:
                return Report(
                    "names_all_four",
                    "each cause is named",
                    False,
                    {},
                    f"For '{name}' it returned {said!r}.",
                )
    return Report("names_all_four", "each cause is named", True)
