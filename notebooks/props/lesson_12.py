"""What page 12 uses and does not teach: its sums, their marks, its drawings, the logs of its last exercise."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

import torch
from props.arms import last_exam
from props.chart import ExamChart
from props.diagnosis import shuffled

import labkit
from labkit.display.panels import TONES
from labkit.events import Run, Step
from labkit.grpo import generate, load, task
from labkit.grpo.batch import Batch

ADD = task.get("add")
LONG, SHORT, FAR, GREY = TONES["three"][0], TONES["two"][0], TONES["far"][0], TONES["grey"][0]
OTHER = "#8A8A8A"
LATE = "#E4E0D8"  # what stands right of the timeout
LOGGED = ("changed, long", "changed, short", "no end", "long minus short")
SERIES = {  # a table's column -> what the log calls it
    "reward, as logged": "reward",
    "digits": "digits",
    "rewards that are 0": "zeros",
    "missing": "missing",
}
LAST_SECOND = 26  # the right edge of the histogram


def near_100(prompt: str) -> bool:
    """Whether the right answer has three digits and the one ten lower has two."""
    return 100 <= int(ADD.answer(prompt)) <= 109


def sums(number: int, seed: int) -> list[str]:
    """Sums of 100 to 109 to train on, none of them held out."""
    drawn = ADD.sample(100 * number, random.Random(seed))
    return [prompt for prompt in drawn if near_100(prompt)][:number]


SUMS = sums(8, seed=0)
HELD_OUT = [prompt for prompt in ADD.held_out() if near_100(prompt)]


def mark(prompt: str, answer: str) -> float:
    """1 for the right sum, minus 1/50 for each that it differs by, at least 0; 0 for what is no number."""
    if not answer.isdecimal():
        return 0.0
    return max(0.0, 1 - abs(int(answer) - int(ADD.answer(prompt))) / 50)


def probe(part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
    """How many characters the answers have, which are digits but for few; and the share of rewards that are 0."""
    digits = mean(map(len, part.out.texts))
    return {"digits": digits, "zeros": float((part.rewards == 0).float().mean())}


def advantages_of(advantage: Callable[..., Any], rewards: Sequence[float]) -> Iterator[Any]:
    """For the sandbox: the advantages and the mask of one group."""
    values, mask = advantage(torch.tensor(rewards), len(rewards))
    yield {"advantages": torch.as_tensor(values).tolist(), "mask": torch.as_tensor(mask).tolist()}


# --------------------------------------------------------------------------------------------------- drawings


def table_of_group(
    answers: Sequence[str],
    seconds: Sequence[float],
    marks: Sequence[float],
    rewards: Sequence[float],
    advantages: Sequence[float],
) -> None:
    """A row for each answer of a group: how long the judge took, and what the trainer made of it."""
    columns = {"answer": answers, "seconds": seconds, "mark": marks}
    columns |= {"reward": rewards, "advantage": advantages}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    labkit.table(rows)


def bars_of_group(
    answers: Sequence[str], late: Sequence[bool], values: Sequence[float] | None, whose: str
) -> None:
    """A bar for the advantage of each answer of a group, late ones in red; the title has what each answer has in all.

    values  the advantages; None where a function did not come back with them
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 2.4), layout="constrained")
    axes.axhline(0, color=GREY, lw=0.8)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    pairs = zip(answers, late, strict=True)
    names = [f"{answer}\nlate" if is_late else answer for answer, is_late in pairs]
    axes.set_xticks(range(len(answers)), names)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("advantage")
    if values is None:
        title = f"{whose}: it ended by an error"
    else:
        colours = [FAR if is_late else OTHER for is_late in late]
        heights = [value if value == value else 0.0 for value in values]
        bars = axes.bar(range(len(answers)), heights, color=colours, width=0.6)
        labels = [f"{value:.2f}".replace("-", "−") for value in values]
        axes.bar_label(bars, labels, fontsize=8, padding=1)
        axes.margins(y=0.15)
        title = f"{whose}: {sums_of(answers, values)}"
    axes.set_title(title, fontsize=10, loc="left", weight="bold")
    plt.show()


def sums_of(answers: Sequence[str], values: Sequence[float]) -> str:
    """ "102 has −1.42, 92 has +1.42, in all"."""
    parts = []
    for answer in sorted(set(answers), key=len, reverse=True):
        total = sum(v for a, v in zip(answers, values, strict=True) if a == answer)
        parts.append(f"{answer} has {total:+.2f}".replace("-", "−"))
    return ", ".join(parts) + ", in all"


def timeout_of_judge(
    axes: Any,
    timeout: float,
    seconds: Mapping[str, Sequence[float]],
    group: Sequence[tuple[str, str, float]],
    exams: Mapping[float, Sequence[float]],
    start: float,
) -> None:
    """The judge's times and the timeout; what comes of the marks; the exams of the runs at some timeouts.

    seconds  an answer -> times that the judge took for such answers; the longer answer is right
    group    (prompt, answer, seconds) of the group that the page follows
    exams    timeout -> the last exam of each seed
    """
    times, marks, ends = axes
    right, wrong = seconds
    colours = {right: LONG, wrong: SHORT}
    bins = [0.5 * at for at in range(2 * LAST_SECOND + 1)]
    times.axvspan(timeout, LAST_SECOND, color=LATE, zorder=0)
    for answer, drawn in seconds.items():
        times.hist(drawn, bins, color=colours[answer], alpha=0.55, label=f"{len(answer)} digits")
    top = times.get_ylim()[1] * 1.3
    times.set(ylim=(0, top), xlim=(0, LAST_SECOND), yticks=[])
    for _, answer, second in group:
        times.plot([second], [0.86 * top], "o", color=colours[answer], ms=5, mec="white", mew=0.5)
    times.axvline(timeout, color="#222222", lw=1.2)
    times.set_xlabel("seconds of the judge (dots: the group of above)", fontsize=8)
    times.legend(frameon=False, fontsize=7, loc="center right")

    for at, (answer, worth) in enumerate(((right, 1.0), (wrong, 0.8))):
        share = mean(float(second <= timeout) for second in seconds[answer])
        marks.bar([at], [worth * share], color=colours[answer], width=0.6)
        marks.text(at, worth * share, f"{worth * share:.2f}", ha="center", va="bottom", fontsize=8)
    marks.set(xticks=[0, 1], ylim=(0, 1.15), yticks=[])
    marks.set_xticklabels([right, wrong])
    marks.set_xlabel("mark × share in time", fontsize=8)

    ends.axhline(start, color=GREY, lw=1)
    ends.axvline(timeout, color="#222222", lw=1.2)
    for seconds_allowed, chances in exams.items():
        ends.plot(
            [seconds_allowed] * len(chances),
            chances,
            "o",
            color=TONES["bug"][0],
            ms=4.5,
            alpha=0.85,
        )
    ends.set(ylim=(0, 1), xlim=(7.5, 22.5), xticks=list(exams), yticks=[0, 0.5, 1])
    ends.set_xlabel("timeout of a run, s: its exam, three seeds", fontsize=8)
    for each in axes:
        each.spines[["top", "right", "left"]].set_visible(False)
        each.tick_params(labelsize=8)


class Chart(ExamChart):
    """The chart of the last exams of page 12's table."""

    def __init__(self, start: float, title: str):
        tones = {"zeros": "bug", "left out": "fix", "a remedy": "four"}
        super().__init__(tones, start=start, title=title, right_edge=1.02)


def exams(runs: Sequence[Run]) -> str:
    """The last exams of some runs, in words."""
    return " ".join(f"{last_exam(run):.2f}" for run in runs)


def first_to_last(runs: Sequence[Run], series: str) -> str:
    """ "0.34 to 0.58, 0.30 to 0.55": a series that is logged where it is not 0, in the first update and in the last."""
    parts = []
    for run in runs:
        values = [value_of(step, series) for step in run.steps]
        parts.append(f"{values[0]:.2f} to {values[-1]:.2f}" if values else "none")
    return ", ".join(parts)


def exam_before_and_after(run: Run) -> str:
    """ "0.512 to 0.563", of a run with a single round."""
    chances = run.exam()
    return f"{chances[0]:.3f} to {chances[-1]:.3f}" if run.outcome else "the run ended by an error"


def first_and_last(runs: Mapping[str, Sequence[Run]]) -> list[dict[str, str]]:
    """A row for each arm: means over its seeds, first round to last; and the exam of each seed.

    A run that died counts in no mean. A column without a number above 0 is left out.
    """
    rows = []
    for name, of_seeds in runs.items():
        row = {"means of three seeds": name}
        whole = [run for run in of_seeds if run.outcome]
        for title, series in SERIES.items():
            row[title] = "none"
            if whole:
                first = mean(value_of(run.steps[0], series) for run in whole)
                last = mean(value_of(run.steps[-1], series) for run in whole)
                row[title] = f"{first:.2f} to {last:.2f}".replace("-", "−")
        rows.append(row | {"exam at the end, each seed": exams(of_seeds)})
    for title in SERIES:
        if all(row[title] == "0.00 to 0.00" for row in rows):
            for row in rows:
                del row[title]
    return rows


def value_of(step: Step, series: str) -> float:
    """One number of a step; 0 where it is logged only when it is not 0."""
    return float(step.reward) if series == "reward" else float(step.extra.get(series, 0.0))


# --------------------------------------------------------------------------------- first answers and their rewards


def first_answers(
    seed: int, policy: str, device: str, **sampling: Any
) -> list[tuple[str, str, bool]]:
    """256 answers of the untrained policy to sums of 100 to 109: prompt, answer, and whether it ended."""
    tiny = load(policy, device)
    prompts = sums(32, seed + 1)
    generator = torch.Generator(tiny.device).manual_seed(seed)
    out = generate(tiny, prompts, num_samples=8, generator=generator, **sampling)
    ended = (out.tokens == tiny.tokenizer.eos_token_id).any(1).tolist()
    asked = [prompt for prompt in prompts for _ in range(8)]
    return list(zip(asked, out.texts, ended, strict=True))


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
    rows = first_answers(seed, policy, device, max_new_tokens=max_new_tokens)
    chance = random.Random(seed)
    changed: dict[bool, list[bool]] = {True: [], False: []}  # of the long, of the short
    again: dict[bool, list[float]] = {True: [], False: []}
    for prompt, answer, ended in rows:
        long = len(answer) > 2
        seconds = 1.25 * len(answer) ** 2 * chance.lognormvariate(0, 0.3)
        came = seconds <= timeout and chance.random() >= lost
        value = mark(prompt, answer) - per_digit * len(answer) if ended else 0.0
        again[long].append(value)
        changed[long].append(not came and value != 0)
    no_end = mean(not ended for *_, ended in rows)
    means = {long: mean(again[long] or [0.0]) for long in again}
    shares = {long: mean(changed[long] or [0.0]) for long in changed}
    logged = (shares[True], shares[False], no_end, means[True] - means[False])
    return dict(zip(LOGGED, logged, strict=True))


def unseen_logs(seed: int, policy: str, device: str) -> list[tuple[str, dict[str, float]]]:
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
