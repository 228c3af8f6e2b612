"""What lesson 18 uses and does not teach: the reader's own case, how a doctor visits runs, its judge.

The instruments and the doctor stand in the notebook; the engine is mystery.py, the faults are suspects.py; tables of
runs that were played once are lesson_18_runs.py's, the pictures lesson_18_pictures.py's.
"""

from __future__ import annotations

import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from labkit import checks, sandbox, triage
from labkit.common import number
from labkit.events import Run

from .asks import NOTHING, Asks, BudgetSpent, Case
from .lesson_18_runs import PAGE, Cases, kept, late_reward, pairs
from .suspects import FAULTS

Doctor = Callable[[dict[str, list[float]], Asks], str]
ENOUGH = 6  # faults of eight
LIMIT = 10.0  # seconds for all visits of a doctor

# --------------------------------------------------------------------------------------------------- the reader's case


def suspects() -> list[dict[str, str]]:
    """A row for each fault: its name, the line that is wrong, what should stand there."""
    rows = []
    for name, fault in FAULTS.items():
        row = {"suspect": name, "the faulty line": fault.line, "should be": fault.right}
        rows.append(row | {"what it does": fault.harm, "lesson": fault.lesson or "–"})
    return rows


def reply(name: str, ask: Asks, hidden: str) -> None:
    """What was asked so far, and whether the name is right."""
    for what, at, value in ask.asked:
        print(f"{what}, round {at}: {value:.3g}")
    if not ask.asked:
        print(f"Nothing asked yet: {ask.budget} measurements are left.")
    if not name:
        print("No name yet.")
    elif name not in [*FAULTS, NOTHING]:
        print(f"{name!r} is none of the suspects, nor {NOTHING!r}.")
    elif name == hidden:
        print("Right.")
    else:
        print("It is something else. Which measurement would tell your suspect from the others?")


def reveal(hidden: str, visit: Mapping[str, Any], gained: float, mended: float) -> Any:
    """What was in the reader's run, behind a fold: the doctor's way, the code, the exam with the fault and without."""
    from IPython.display import Markdown

    text = f"The doctor asked: {way_of(visit)}. It says: **{visit['answer']}**.\n\n"
    if hidden == NOTHING:
        text += f"This run has no fault. Its exam gained {gained:.2f}."
    else:
        code = textwrap.dedent(inspect.getsource(FAULTS[hidden].code))
        text += f"It was **{hidden}**. {FAULTS[hidden].harm}\n\n```python\n{code}```\n\n"
        text += f"Should be: {FAULTS[hidden].right}. The exam gained {gained:.2f} with the fault; "
        text += f"the same seed without it, {mended:.2f}."
    return Markdown(f"<details><summary>What was in your run</summary>\n\n{text}\n\n</details>")


# --------------------------------------------------------------------------------------------------- a doctor's visits


def visit(doctor: Doctor, case: Case, budget: int = 3) -> dict[str, Any]:
    """What a doctor asks of one run, in order, and its answer; an error is an answer, too."""
    ask = Asks(case, budget)
    try:
        answer = doctor({column: list(values) for column, values in case.log.items()}, ask)
    except BudgetSpent:
        answer = "asked a fourth time"
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    return {"asked": list(ask.asked), "answer": str(answer)[:60]}


def visits(doctor: Doctor, cases: Cases) -> Iterator[dict[str, Any]]:
    """For the sandbox: one visit after another."""
    for name, case in cases:
        yield visit(doctor, case) | {"fault": name}


def rounds_of(doctor: Doctor, cases: Cases) -> list[dict[str, Any]]:
    """All visits, in a process of their own. A doctor that does not come back has no answer from there on."""
    done = list(sandbox.run(visits, doctor, cases, timeout=LIMIT).events)
    for name, _ in cases[len(done) :]:
        done.append({"asked": [], "answer": "did not come back", "fault": name})
    return done


def named(rows: Sequence[Mapping[str, Any]]) -> int:
    """How many of the runs with a fault got its name."""
    return sum(row["fault"] != NOTHING and row["answer"] == row["fault"] for row in rows)


def false_names(rows: Sequence[Mapping[str, Any]]) -> int:
    """How many runs without a fault were given a suspect's name."""
    return sum(row["fault"] == NOTHING and row["answer"] in FAULTS for row in rows)


def way_of(row: Mapping[str, Any]) -> str:
    """What was asked of a run, in order, with the numbers."""
    asked = [f"{what} of round {at} ({number(value)})" for what, at, value in row["asked"]]
    return ", ".join(asked) or "nothing"


def judge(doctor: Doctor, cases: Cases) -> checks.Report:
    """At least six of the eight faults, and no name for the run without one; the hint has the first wrong answer."""
    rows, hint = list(visits(doctor, cases)), ""
    for place, row in enumerate(rows, 1):
        if row["answer"] != row["fault"] and not hint:
            hint = f"Run {place}: it asked {way_of(row)}, and says {row['answer']!r}. "
            hint += f"In it was {row['fault']!r}."
    passed = named(rows) >= ENOUGH and not false_names(rows)
    seen = {"faults named": f"{named(rows)} of 8", "names for the sound run": false_names(rows)}
    return checks.Report("my_doctor", "names most of the unseen faults", passed, seen, hint)


def scores(
    doctors: Mapping[str, Doctor], settings: Sequence[str] = (PAGE,)
) -> list[dict[str, str]]:
    """Rows of a table: what each doctor says of the runs played once, under each of the settings."""
    rows = []
    for setting in settings:
        cases = pairs(kept(setting))
        for name, doctor in doctors.items():
            done = rounds_of(doctor, cases)
            ill = [row for row in done if row["fault"] != NOTHING]
            sound = len(done) - len(ill)
            wrong = [
                row for row in ill if row["answer"] in FAULTS and row["answer"] != row["fault"]
            ]
            rows.append(
                {
                    "settings": setting,
                    "doctor": name,
                    "faults named": f"{named(done)} of {len(ill)}",
                    "another's name": str(len(wrong)),
                    "no name": str(len(ill) - named(done) - len(wrong)),
                    "names for sound runs": f"{false_names(done)} of {sound}",
                    "most asked": str(max(len(row["asked"]) for row in done)),
                    "missed": missed(ill),
                }
            )
    return rows


def missed(rows: Sequence[Mapping[str, Any]]) -> str:
    """What was in the runs that got another name or none, each with how many they are."""
    counts = Counter(row["fault"] for row in rows if row["answer"] != row["fault"])
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def show_missed(doctor: Doctor, settings: Sequence[str], most: int = 4) -> None:
    """The first runs that a doctor got wrong: what it asked, and what rounds 3 to 5 paid."""
    wrong = []
    for setting in settings:
        cases = pairs(kept(setting))
        for row, (_, case) in zip(rounds_of(doctor, cases), cases, strict=True):
            if row["answer"] != row["fault"]:
                paid = f"rounds 3 to 5 pay {late_reward(case):.3f}"
                text = f"{setting}, {row['fault']}: {paid}; asked {way_of(row)}"
                wrong.append(f"{text}; says {row['answer']}")
    for line in wrong[:most]:
        print(line)
    if len(wrong) > most:
        print(f"and {len(wrong) - most} more")


# how the causes of labkit triage stand to the faults of this page; any other is wrong
TRIAGE = {
    ("temperature", "temperature-or-sampling"): "the fault",
    ("stale sampler", "sync-or-logprob-mismatch"): "the fault",
    ("padding", "padding-or-mask"): "the fault",
    ("lost gradient", "overwritten-or-lost-gradient"): "the fault",
    ("kind grader", "reward-function-failure"): "the fault",
    ("order", "reward-function-failure"): "the fault",
    ("first token", "identical-completions"): "a symptom",
    ("first token", "tied-rewards"): "a symptom",
    ("kind grader", "tied-rewards"): "a symptom",
}


def read_by_triage(runs: Mapping[str, Run]) -> list[dict[str, str]]:
    """Of which of these logs labkit's own reader names a cause, and whether it is the fault, a symptom or wrong."""
    rows = []
    for name, run in runs.items():
        diagnosis = triage.diagnose(Run(run.steps, run.outcome))
        cause = diagnosis.findings[0].cause if diagnosis else ""
        worth = TRIAGE.get((name, cause), "wrong") if cause else ""
        rows.append({"fault": name, "labkit triage": cause or "nothing to act on", "": worth})
    return rows
