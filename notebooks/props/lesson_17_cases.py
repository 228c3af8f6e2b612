"""Lesson 17: the judges of its exercises, its picture, and the logs that nobody has seen."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from props import lesson_17 as lab

from labkit import checks, sandbox
from labkit.events import Run
from labkit.grpo import task

ADD = task.get("add")
Settings = Mapping[str, Any]


# ---- my_reward


def answers_to(count: int, seed: int) -> tuple[list[str], list[str], list[float]]:
    """Prompts, each in eight rows, completions of which about half are right, and what each is worth."""
    dice = random.Random(seed)
    prompts, completions, worth = [], [], []
    for prompt in ADD.sample(count, dice):
        right = ADD.answer(prompt)
        # wrong ones: with the right last digit, and with another
        wrong = [str(int(right) + 10), str(int(right) + dice.randrange(1, 10))]
        for _ in range(8):
            completion = dice.choice([right, right, *wrong])
            prompts.append(prompt)
            completions.append(completion)
            worth.append(float(completion == right))
    return prompts, completions, worth


def judge_reward(reward: Callable[..., Any]) -> checks.Report:
    """One number a row, in the row's place, and the judge is asked once a row at most."""
    hint, most = "", 0.0
    for seed, rows in enumerate((64, 64, 8, 13, 1)):
        prompts, completions, worth = answers_to(8, seed)
        clock = lab.set_clock(seed)
        found = reward(prompts=prompts[:rows], completions=completions[:rows], completion_ids=[])
        if inspect.isawaitable(found):
            found = asyncio.run(_awaited(found))
        most = max(most, clock.calls / rows)
        hint = hint or fault_of(found, prompts, completions, worth[:rows])
    if not hint and most > 1:
        hint = f"It asks the judge {most:g} times a row."
    return checks.Report("my_reward", "gives each row its own reward", not hint, {}, hint)


async def _awaited(thing: Any) -> Any:
    return await thing


def fault_of(
    found: Any, prompts: Sequence[str], completions: Sequence[str], worth: Sequence[float]
) -> str:
    """A sentence about the first row whose reward is another's; an empty one if none is."""
    if not isinstance(found, (list, tuple)) or len(found) != len(worth):
        what = f"{len(found)} values" if isinstance(found, (list, tuple)) else type(found).__name__
        return f"For {len(worth)} rows it returned {what}. TRL wants a list with one number a row."
    for at, value in enumerate(worth):
        if not isinstance(found[at], (int, float)) or found[at] != value:
            asked = f"Row {at + 1} of {len(worth)}, `{prompts[at]}` answered by `{completions[at]}`"
            return f"{asked}: it returned {found[at]!r}, and the judge says {value:g}."
    return ""


# ---- my_mends


def _grades(settings: Settings) -> bool:
    prompts, completions, worth = answers_to(8, 5)
    reward = settings["reward"]
    found = reward(prompts=prompts, completions=completions, completion_ids=[])
    if inspect.isawaitable(found):
        found = asyncio.run(_awaited(found))
    return list(found) == worth


def _is_of_the_model(settings: Settings) -> bool:
    if settings["optimizer"] is None:
        return True
    model = torch.nn.Linear(2, 2)
    held = {id(p) for group in settings["optimizer"](model).param_groups for p in group["params"]}
    return held == {id(p) for p in model.parameters()}


def _stays_near(settings: Settings) -> bool:
    """What kept the KL below 1 on three seeds; fewer iterations alone did not keep the exam from falling."""
    limited = 0 < settings["max_grad_norm"] <= 1
    adam = "adam" in str(settings["optim"]) and settings["learning_rate"] <= 4e-4
    return settings["use_bias_correction_kl"] or not settings["beta"] or adam or limited


# fault -> whether the settings mend it, and what to say if not; the runs below the exercise have the last word
MENDED: dict[str, tuple[Callable[[Settings], bool], str]] = {
    "rate": (lambda s: 2e-5 <= s["learning_rate"] <= 4e-4, "the sound run's rate is 0.0002"),
    "cut": (
        lambda s: s["max_completion_length"] >= 4,
        "an answer has up to three digits and an end",
    ),
    "top_k": (lambda s: (s["top_k"] or 16) >= 16, "the policy has 16 tokens, and 0 means all"),
    "format": (_grades, "the reward still differs from the right answers"),
    "last digit": (_grades, "the reward still differs from the right answers"),
    "optimizer": (_is_of_the_model, "None has TRL make one, of the model that it trains"),
    "KL": (_stays_near, "its gradient still grows with e to the power of the log-ratio"),
}


def judge_mends(mends: Callable[[str], Any], faults: Mapping[str, Settings]) -> checks.Report:
    """For each of the seven faults, settings that take it away."""
    from trl import GRPOConfig

    known = {*GRPOConfig.__dataclass_fields__, "reward", "optimizer"}
    right, hint = 0, ""
    for fault, (mended, sentence) in MENDED.items():
        settings = mends(fault)
        problem = ""
        if not isinstance(settings, dict):
            problem = f"it returned {settings!r}, which is no dict"
        elif set(settings) - known:
            problem = f"neither GRPOConfig nor `build` has {sorted(set(settings) - known)[0]!r}"
        elif not mended({**faults[fault], **settings}):
            problem = sentence
        right += not problem
        if problem and not hint:
            hint = f"For {fault!r}: {problem}."
    seen = {"mended": f"{right} of {len(MENDED)}"}
    return checks.Report("my_mends", "mends the seven", not hint, seen, hint)


def trained_after(
    mends: Callable[[str], Any],
    fault: str,
    faults: Mapping[str, Settings],
    build: Callable[..., Any],
    seed: int = 0,
) -> Iterator[Any]:
    """`trained` with what `mends(fault)` returns over the fault's own settings; first {"mend": these settings}."""
    settings = mends(fault)
    yield {"mend": lines_of(settings)}
    yield from lab.trained(build, seed=seed, **{**faults[fault], **settings})


def mended(
    mends: Callable[[str], Any],
    faults: Mapping[str, Settings],
    build: Callable[..., Any],
    seed: int,
) -> dict[str, Run]:
    """Fault -> its run with the reader's settings, which a child asks the reader's function for."""
    jobs = {fault: {"fault": fault} for fault in faults}
    common = {"mends": mends, "faults": faults, "build": build, "seed": seed}
    return sandbox.run_all(trained_after, jobs, **common, timeout=lab.LIMIT)


def lines_of(settings: Settings) -> list[str]:
    """The settings as a reader writes them."""
    lines = []
    for name, value in settings.items():
        shown = getattr(value, "__name__", None) or repr(value)
        lines.append(f"{name}={shown}")
    return lines


# ---- logs that nobody has seen


def columns_of(run: Run) -> dict[str, list[Any]]:
    """TRL's log, column by column, without the updates that did not log it."""
    rows = [row for row in lab.told(run)["log"] if "loss" in row]
    names = sorted({name for row in rows for name in row})
    return {name: lab.values_of([run], name) for name in names}


def for_any_number(completions: Sequence[str], **_: Any) -> list[float]:
    """A reward function that pays for a number, whichever it is."""
    return [float(text.strip().isdecimal()) for text in completions]


def after_words(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """A reward function that reads what stands behind "Answer:"."""
    pairs = zip(prompts, completions, strict=True)
    return [float(text.partition("Answer:")[2] == ADD.answer(prompt)) for prompt, text in pairs]


def unseen_arms(faults: Mapping[str, Settings]) -> dict[str, Settings]:
    """Cause, with a number where it comes twice -> settings, of which most differ from the page's faults."""
    return {
        "nothing found": {"beta": 0.04},
        "nothing found 2": faults["order"],
        "cut": {"max_completion_length": 2},
        "one answer": {"top_p": 0.01},
        "not read": {"reward": after_words},
        "paid anyway": {"reward": for_any_number},
        "weights stand still": {**faults["optimizer"], "beta": 0.04},
        "KL": {**faults["KL"], "learning_rate": 0.1},
    }
