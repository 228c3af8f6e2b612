"""The playground's run, its table and its tasks, and what judges a limit for gradient norms. It makes no claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from props.arms import gain, largest, last_exam
from props.chart import ExamChart

from labkit import checks
from labkit.display.panels import TONES
from labkit.events import Run
from labkit.grpo import Hooks, Sampling, grads, train

START = {"lr": 5e-5, "beta": 0.04, "mu": 4, "temperature": 1.0}  # the sliders as they come
SLIDERS: dict[str, tuple[Any, ...]] = {
    "lr": (1e-6, 1e-2, START["lr"], "log"),
    "beta": (0.0, 5.0, START["beta"]),
    "mu": (1, 16, START["mu"]),
    "temperature": (0.2, 2.0, START["temperature"]),
}
CLIP, DROP, NO_LIMIT = "clip", "clip and drop", "no limit"
# Norms of runs of this page, to judge a limit by. At a temperature of 0.2 the first update of each batch is long:
COLD = [11.1, 0.776, 0.95, 0.45, 19.3, 6.55, 1.15, 0.955, 19.5, 16.9, 4.69, 1.65, 13.7, 7.79, 1.17]
# At a rate of 1e-3 with a β of 5: after the first update, what each later batch begins with where none is made
HOT_MADE, HOT_NEXT = 3.62, [11_100.0, 138.0, 43.7, 30.9, 107.0, 35.8, 21.9]

Limit = Callable[
    [list[float]], float
]  # norms of the updates made so far -> norm above which the next is dropped


def short_run(
    *,
    lr: float = 5e-5,
    beta: float = 0.04,
    mu: int = 4,
    temperature: float = 1.0,
    update: grads.Updater | None = None,
    **where: Any,
) -> Iterator[Any]:
    """Eight rounds of lesson 00's loop, with an exam after each.

    update   gradients -> step; None: the norm is limited to 1, as in lesson 00
    where    policy, device, seed
    """
    yield from train(
        "add",
        rounds=8,
        lr=lr,
        beta=beta,
        mu=mu,
        sampling=Sampling(temperature=temperature),
        hooks=Hooks(update=update),
        exam=True,
        **where,
    )


# ---------------------------------------------------------------------------------------------------- the table


def measured(run: Run) -> dict[str, Any]:
    """What a trainer's log would show of a run, and its exam."""
    norms = [float(norm) for norm in run["grad_norm"]]
    tied = run["frac_reward_zero_std"]
    return {
        "exam at the end": f"{last_exam(run):.2f}",
        "largest KL": f"{largest(run, 'kl'):.2g}",
        "gradient norm": f"{min(norms):.1g} to {max(norms):.3g}" if norms else "",
        "tied groups": f"{sum(tied) / max(1, len(run.steps)):.2f}",
    }


def dropped(run: Run) -> int:
    """Updates that were not made."""
    return sum(step.skipped for step in run.steps)


def row_of(name: str, run: Run) -> dict[str, Any]:
    """A row of the page's tables."""
    return {"run": name, **measured(run), "dropped": f"{dropped(run)} of {len(run.steps)}"}


def moved(sliders: Mapping[str, float]) -> dict[str, float]:
    """The sliders that do not stand where they came."""
    return {name: value for name, value in sliders.items() if value != START[name]}


def row_of_press(run: Run, untouched: Run) -> dict[str, Any]:
    """A row of the reader's own table: the button, the sliders that were moved, and the task that this run solves."""
    settings = [run.meta["button"]]
    for name, value in moved(run.meta["sliders"]).items():
        settings.append(f"{name} {value:.3g}")
    return row_of(", ".join(settings), run) | {"task": task_of(run, untouched)}


def task_of(run: Run, untouched: Run) -> str:
    """The number of the task that a run solves, or an empty text."""
    sliders = moved(run.meta["sliders"])
    one_but_lr = len(sliders) == 1 and "lr" not in sliders
    if one_but_lr and largest(run, "kl") < 0.02 and gain(run) < 0.5 * gain(untouched):
        return "1"
    if one_but_lr and dropped(run) > len(run.steps) / 2:
        return "2"
    near = math.isclose(sliders.get("lr", 0.0), 5e-4, rel_tol=0.2)
    if near and len(sliders) == 2 and run.meta["button"] == CLIP:
        return "3, ruined" if gain(run) < 0 else "3, saved"
    return ""


# -------------------------------------------------------------------------------------------------- the pictures


def draw(axes: Sequence[Any], run: Run, untouched: Run, name: str) -> None:
    """Exam by round, KL and gradient norm by update, of one run over the untouched one."""
    from matplotlib.ticker import NullLocator  # here, so that the runs' processes do not import it

    exam, kl, norm = axes
    for one, colour, label in (
        (untouched, TONES["healthy"][0], "untouched"),
        (run, TONES["bug"][0], name),
    ):
        exams = [0.0 if chance != chance else chance for chance in one.exam()]
        exam.plot(exams, color=colour, lw=1.8, label=label)
        # updates as rounds, so that four and sixteen a round end at the same place
        updates = [8 * (at + 1) / len(one.steps) for at in range(len(one.steps))]
        kl.plot(updates, [max(float(value), 1e-6) for value in one["kl"]], color=colour, lw=1.5)
        norm.plot(updates, one["grad_norm"], color=colour, lw=1.5)
    exam.set(ylim=(0, 1.1), yticks=[0, 0.25, 0.5, 0.75], xlabel="round", title="exam")
    exam.legend(frameon=False, fontsize=7.5, loc="upper left", ncols=2, handlelength=1)
    kl.set(yscale="log", ylim=(1e-6, 1e6), title="KL, nats (the foot is 1e-6 or less)")
    norm.set(yscale="log", ylim=(1e-3, 1e6), title="gradient norm (line: 10)")
    for axis, ticks in ((kl, [1e-6, 1e-3, 1, 1e3, 1e6]), (norm, [1e-3, 1, 1e3, 1e6])):
        axis.set(yticks=ticks, yticklabels=[f"{tick:g}" for tick in ticks], xlabel="round")
        axis.yaxis.set_minor_locator(NullLocator())
    norm.axhline(10, color=TONES["grey"][0], lw=1, ls="--")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)


# ----------------------------------------------------------------------------------------- the reader's own limit


def judge_limit(limit: Limit) -> checks.Report:
    """Does it let through what is usual in a run, and nothing that is many times longer?"""
    said = "my_limit", "it lets through what is usual in this run, and drops what is not"
    asked = []  # norms of the updates made so far, the next one's, and whether that is to be made
    for at, norm in enumerate(COLD):
        asked.append((COLD[:at], norm, True))
    for norm in HOT_NEXT:
        asked.append(([HOT_MADE], norm, False))
    wrong, hint = 0, ""
    for made, norm, usual in asked:
        answer = limit(list(made))
        if isinstance(answer, bool) or not isinstance(answer, (int, float)) or answer != answer:
            return checks.Report(
                *said, False, {f"after {made}": str(answer)[:60]}, "A number is wanted."
            )
        if (norm <= answer) == usual:
            continue
        wrong += 1
        if not hint:
            fate = "dropped, and is usual in this run" if usual else "made, and is far from usual"
            hint = f"After {made[-5:] or 'no update'} your limit is {answer:.3g}: the next norm, {norm:g}, is {fate}."
    return checks.Report(*said, not hint, {"right": f"{len(asked) - wrong} of {len(asked)}"}, hint)


# -------------------------------------------------------------------------------------------- limits side by side

Compared = Mapping[str, Mapping[str, Sequence[Run]]]  # setting -> limit -> runs, one for each seed


def rows_of_limits(compared: Compared) -> list[dict[str, str]]:
    """A row for each setting and limit: exams at the end and dropped updates, by seed."""
    rows = []
    for setting, arms in compared.items():
        for limit, runs in arms.items():
            exams = " ".join(f"{last_exam(run):.2f}" for run in runs)
            drops = " ".join(str(dropped(run)) for run in runs)
            rows.append(
                {
                    "run": setting,
                    "updates are held by": limit,
                    "exam at the end, three seeds": exams,
                    "dropped, of 32": drops,
                }
            )
    return rows


def chart_of_limits(compared: Compared, start: float) -> None:
    """The exams at the end, a row for each setting, a mark for each seed."""
    (*_, own) = next(iter(compared.values()))
    chart = ExamChart(
        {"clip": "grey", "limit of 10": "bug", own: "fix"},
        start=start,
        title="A limit of 10: too low for one run, a stop for the next, too late for the third",
    )
    for setting, arms in compared.items():
        chart.add(setting, arms)


def smallest_difference(arms: Mapping[str, Sequence[Run]], better: str, worse: str) -> float:
    """Over the seeds: the exam at the end of one limit's run minus that of the other's."""
    pairs = zip(arms[better], arms[worse], strict=True)
    return min(last_exam(ours) - last_exam(theirs) for ours, theirs in pairs)
