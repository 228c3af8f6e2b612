"""Lesson 17: what labkit's three tools say of a run and whether it is right, as words, a table and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from props import lesson_17 as lab
from props.arms import last_exam

from labkit.common import number
from labkit.display.panels import TONES
from labkit.display.sheet import INK
from labkit.events import Run
from labkit.grpo import task

ADD = task.get("add")

# ---- what labkit says, and whether it is right

# fault -> who -> words that name the setting or the function that is wrong
RIGHT: dict[str, dict[str, tuple[str, ...]]] = {
    "order": {"preflight": ("reward order",), "triage": ("reward-function-failure",)},
    "rate": {"preflight": ("learning rate",), "triage": ("learning-rate",)},
    "cut": {"preflight": ("end of text",), "triage": ("truncation",)},
    "top_k": {"preflight": ("sampling",), "triage": ("temperature-or-sampling",)},
    "format": {"preflight": ("reward",), "triage": ("reward-function-failure",)},
    "last digit": {
        "preflight": ("reward",),
        "triage": ("reward-function-failure", "reward-hacking"),
    },
    "optimizer": {"preflight": ("optimizer",), "guard": ("the optimizer is not",)},
    "KL": {"preflight": ("clipping",)},
}
# fault -> words that tell truly what comes of it, and not what is wrong
SYMPTOM: dict[str, tuple[str, ...]] = {
    "cut": ("every group is tied", "tied-rewards"),
    "top_k": ("every group is tied", "tied-rewards", "completions", "identical-completions"),
    "format": ("every group is tied", "tied-rewards"),
    "last digit": ("every group is tied", "tied-rewards"),
    "optimizer": ("overwritten-or-lost-gradient",),
    "KL": ("KL ", "update skipped", "kl-blowup"),
}


def beyond(who: str, run: Run, sound: Run) -> list[str]:
    """What one of the three says of a run and does not say of the healthy run of the same seed."""
    says, usual = lab.told(run)["says"], lab.told(sound)["says"]
    return [each for each in says.get(who, ()) if each not in usual.get(who, ())]


def answer_of(fault: str, who: str, run: Run, sound: Run) -> str:
    """Right, symptom, silent or wrong: what one of the three says of a run, by the two tables above."""
    words = beyond(who, run, sound)
    if not words:
        return "silent"
    if who == "triage":  # its first answer is what people act on
        words = words[:1]
    named = RIGHT.get(fault, {}).get(who, ())
    for answer, wanted in (("right", named), ("symptom", SYMPTOM.get(fault, ()))):
        if any(part in one for one in words for part in wanted):
            return answer
    return "wrong"


def answers(fault: str, who: str, runs: Sequence[Run], sound: Sequence[Run]) -> str:
    """The answers of one of the three on all seeds, in one word where they agree."""
    each = [answer_of(fault, who, run, usual) for run, usual in zip(runs, sound, strict=True)]
    if len(set(each)) == 1:
        return each[0]
    return ", ".join(each)


def words_of(fault: str, runs: Sequence[Run], sound: Sequence[Run]) -> dict[str, str]:
    """Preflight, guard and triage -> right, symptom, silent or wrong."""
    return {who: answers(fault, who, runs, sound) for who in ("preflight", "guard", "triage")}


# ---- the picture

COLUMNS = {
    "reward": "reward",
    "grad_norm": "grad_norm",
    "frac_reward_zero_std": "frac_reward_zero_std",
    "completions/clipped_ratio": "clipped_ratio",
    "kl": "kl",
}
SHARES = ("reward", "frac_reward_zero_std", "completions/clipped_ratio")
LAMPS = {"right": "healthy", "symptom": "without", "silent": "grey", "wrong": "bug"}


def draw_fault(
    axes: Sequence[Any], changed: Sequence[str], says: Mapping[str, str], runs: Mapping[str, Run]
) -> None:
    """What was changed and what labkit says, five columns of TRL's log, and the exam, which is not in the log.

    runs   "healthy", "bug" and whose mend it is -> the run of one seed
    """
    words, *panels, last = axes
    words.set_axis_off()
    lines = [(line, INK) for line in changed]
    lines += [(f"{who}: {word}", TONES[LAMPS.get(word, "bug")][0]) for who, word in says.items()]
    lines += [(f"— {name}", _tone(name)) for name in runs]
    for at, (line, tone) in enumerate(lines):
        words.text(-0.1, 1.05 - 0.125 * at, line, size=6.5, color=tone, transform=words.transAxes)
    for name, run in runs.items():
        style = {"color": _tone(name), "lw": 1.3, "marker": ".", "ms": 4}
        for column, panel in zip(COLUMNS, panels, strict=True):
            values = [row.get(column) for row in lab.told(run)["log"] if "loss" in row]
            # a NaN, and an update that did not log the column, leave a gap
            panel.plot(range(1, len(values) + 1), [_finite(value) for value in values], **style)
        last.plot([_finite(chance) for chance in lab.exams_of(run)], **style)
    for panel in [*panels, last]:
        panel.set_xlim(-0.4, 8.4)
        panel.set_xticks([0, 4, 8])
    for column, panel in zip(COLUMNS, panels, strict=True):
        panel.set_title(COLUMNS[column], size=6.3, loc="left")
        heights = [
            height for line in panel.lines for height in line.get_ydata() if height == height
        ]
        if not heights:
            panel.text(0.5, 0.5, "not logged", size=7, ha="center", transform=panel.transAxes)
            panel.set_yticks([])
        elif column in SHARES:
            panel.set_ylim(-0.05, 1.05)
        elif max(heights) > 50:
            panel.set_yscale("symlog", linthresh=1)
            top = math.ceil(math.log10(max(heights)))
            powers = [math.ceil(top / 2), top]
            panel.set_yticks([0, *(10.0**p for p in powers)], ["0", *(f"1e{p}" for p in powers)])
            panel.set_ylim(-0.3, 10.0**top)
            panel.minorticks_off()
            panel.set_title(f"{COLUMNS[column]}, log axis", size=6.3, loc="left")
    last.set_title("exam (in no log)", size=6.3, loc="left")
    last.set_ylim(-0.02, 0.8)


def _tone(name: str) -> str:
    """The colour of an arm: what is neither the bug nor healthy is the mend."""
    return TONES[name if name in ("healthy", "bug") else "fix"][0]


def _finite(value: Any) -> float:
    if value is None or not math.isfinite(value):
        return math.nan
    return float(value)


# ---- tables


def group_of(run: Run, prompt: str) -> list[dict[str, Any]]:
    """The eight rows of the first update that ask a prompt, with what the row's own text is worth."""
    rows: list[dict[str, Any]] = []
    for row in lab.told(run)["first"]:
        if row["prompt"] == prompt:
            worth = float(row["completion"] == ADD.answer(prompt))
            shown = {"completion": row["completion"], "right": worth, "reward": row["reward"]}
            rows.append({"row": len(rows) + 1, **shown, "advantage": round(row["advantage"], 2)})
    return rows or [{"row": "the run ended before its first update"}]


def regraded(run: Run) -> int:
    """In how many rows of the first update the reward is not what the row's own text is worth."""
    count = 0
    for row in lab.told(run)["first"]:
        count += row["reward"] != float(row["completion"] == ADD.answer(row["prompt"]))
    return count


def by_update(runs: Mapping[str, Sequence[Run]], column: str) -> list[str]:
    """A line for each run: a column of TRL's log, update by update."""
    lines = []
    for name, of_arm in runs.items():
        for run in of_arm:
            values = " ".join(f"{value:.3g}" for value in lab.values_of([run], column))
            lines.append(f"{name}, {column}: {values or 'not logged'}")
    return lines


def false_alarms(name: str, runs: Sequence[Run], sound: Sequence[Run]) -> str:
    """What the three say of runs that are no fault of the page, and by how much each seed's exam differs."""
    said = []
    for who in ("preflight", "guard", "triage"):
        words = set()
        for run, usual in zip(runs, sound, strict=True):
            words |= {word.split(",")[0] for word in beyond(who, run, usual)}
        said.append(f"{who}: {', '.join(sorted(words)) or 'nothing'}")
    pairs = zip(runs, sound, strict=True)
    differences = " ".join(f"{last_exam(run) - last_exam(usual):+.2f}" for run, usual in pairs)
    return f"{name}: exam minus the healthy run's {differences}; {'; '.join(said)}"


def exams(runs: Sequence[Run]) -> str:
    """The last exam of each seed."""
    return " ".join(f"{last_exam(run):.2f}" for run in runs)


def span(runs: Sequence[Run], column: str) -> str:
    """The smallest and the largest value of a column of TRL's log."""
    values = [
        row[column] for run in runs for row in lab.told(run)["log"] if row.get(column) is not None
    ]
    if not values:
        return "not logged"
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def sayings(fault: str, runs: Sequence[Run], sound: Sequence[Run]) -> list[str]:
    """What the three said of each seed: triage's first cause, the preflight's items, the guard's first alarm."""
    lines = []
    for who in ("preflight", "guard", "triage"):
        each = []
        for run, usual in zip(runs, sound, strict=True):
            words = beyond(who, run, usual)
            each.append(words[0].split(",")[0] if words else "nothing")
        same = len(set(each)) == 1
        lines.append(f"{who}: {each[0] if same else ', '.join(each)}")
    return [f"{fault:10} {lines[0]}", *(f"{'':10} {line}" for line in lines[1:])]


def table_of(runs: Mapping[str, Sequence[Run]], sound: Sequence[Run]) -> list[dict[str, Any]]:
    """A row for each fault: the exams, TRL's columns, the rows that a second grading finds, and the three answers."""
    table = []
    for fault, of_fault in {"healthy": sound, **runs}.items():
        row: dict[str, Any] = {"": fault, "exam at the end": exams(of_fault)}
        row["reward"] = span(of_fault, "reward")
        row["grad_norm"] = span(of_fault, "grad_norm")
        row["tied groups"] = span(of_fault, "frac_reward_zero_std")
        row["kl"] = span(of_fault, "kl")
        row["clipped_ratio"] = span(of_fault, "completions/clipped_ratio")
        row["graded again"] = " ".join(str(regraded(run)) for run in of_fault)
        row |= words_of(fault, of_fault, sound)
        table.append(row)
    return table
