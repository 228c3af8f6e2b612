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
from labkit.events import Run

from .asks import NOTHING, Asks, BudgetSpent, Case
from .lesson_18_runs import PAGE, Cases, kept, pairs
from .suspects import FAULTS

Doctor = Callable[[dict[str, list[float]], Asks], str]
ENOUGH = 6  # cases of nine
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

    way = ", ".join(f"{what} of round {at} ({value:.3g})" for what, at, value in visit["asked"])
    text = f"The doctor asked: {way or 'nothing'}. It says: **{visit['answer']}**.\n\n"
    if hidden == NOTHING:
        text += f"Nothing was put into this run. Its exam gained {gained:.2f}."
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
        yield visit(doctor, case) | {"in it": name}


def rounds_of(doctor: Doctor, cases: Cases) -> list[dict[str, Any]]:
    """All visits, in a process of their own. A doctor that does not come back has no answer from there on."""
    done = list(sandbox.run(visits, doctor, cases, timeout=LIMIT).events)
    for name, _ in cases[len(done) :]:
        done.append({"asked": [], "answer": "did not come back", "in it": name})
    return done


def right(rows: Sequence[Mapping[str, Any]]) -> int:
    """How many runs got the name of what is in them."""
    return sum(row["answer"] == row["in it"] for row in rows)


def false_names(rows: Sequence[Mapping[str, Any]]) -> int:
    """How many runs without a fault were given a suspect's name."""
    return sum(row["in it"] == NOTHING and row["answer"] in FAULTS for row in rows)


def judge(doctor: Doctor, cases: Cases) -> checks.Report:
    """At least six of nine, and no name for the run without a fault; the hint has the first wrong one."""
    rows, hint = list(visits(doctor, cases)), ""
    for number, row in enumerate(rows, 1):
        if row["answer"] != row["in it"] and not hint:
            way = ", ".join(f"{what} of round {at}" for what, at, _ in row["asked"])
            hint = f"Run {number}: it asked {way or 'nothing'}, and says {row['answer']!r}. "
            hint += f"In it was {row['in it']!r}."
    passed = right(rows) >= ENOUGH and not false_names(rows)
    seen = {"right": f"{right(rows)} of {len(rows)}"}
    return checks.Report("my_doctor", "names most of the unseen runs", passed, seen, hint)


def scores(
    doctors: Mapping[str, Doctor], settings: Sequence[str] = (PAGE,)
) -> list[dict[str, str]]:
    """Rows of a table: how many of the runs played once each doctor names, under each of the settings."""
    rows = []
    for setting in settings:
        cases = pairs(kept(setting))
        for name, doctor in doctors.items():
            done = rounds_of(doctor, cases)
            sound = sum(row["in it"] == NOTHING for row in done)
            rows.append(
                {
                    "settings": setting,
                    "doctor": name,
                    "right": f"{right(done)} of {len(done)}",
                    "not named": not_named(done),
                    "a name for a sound run": f"{false_names(done)} of {sound}",
                }
            )
    return rows


def not_named(rows: Sequence[Mapping[str, Any]]) -> str:
    """What was in the runs that got another name or none, each with how many they are."""
    counts = Counter(row["in it"] for row in rows if row["answer"] != row["in it"])
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def read_by_triage(runs: Mapping[str, Run]) -> str:
    """In which of these logs labkit's own reader finds something to act on, and the first cause that it names."""
    found = []
    for name, run in runs.items():
        diagnosis = triage.diagnose(Run(run.steps, run.outcome))
        if diagnosis:
            found.append(f"{name} ({diagnosis.findings[0].cause})")
    return ", ".join(found) or "none"
