"""Questions, exercises and shown sources: what a reader of the saved notebook sees, and what Run All survives."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from typing import Any

import pytest

import labkit
from labkit.checks import report
from labkit.display import notebook
from labkit.grpo import kl


@pytest.fixture
def displayed(monkeypatch):
    """What is displayed, as if in a notebook: the mime bundles, and of a widget its state."""
    import IPython.display

    shown = []
    monkeypatch.setattr(notebook, "kernel", lambda: object())
    monkeypatch.setattr(notebook, "live", lambda script, text, **state: state)
    monkeypatch.setattr(IPython.display, "display", lambda thing, **_: shown.append(thing))
    return shown


@dataclass
class Report:
    """A report as `labkit.checks` makes them."""

    passed: bool
    seen: Any = ""
    hint: str = ""

    def __bool__(self):
        return self.passed


def doubles(function):
    """A check: does the function double 21? It catches what the function raises, as the lab's checks do."""
    try:
        value = function(21)
    except Exception as error:
        return Report(False, {"raised": type(error).__name__}, "It must not raise.")
    return Report(value == 42, {"value": value}, "Try twice.")


# ------------------------------------------------------------------ predict first


def test_the_answer_is_readable_only_after_a_click(displayed):
    question, options, why = "What is `exp(90)` in float32?", ["large", "inf", "nan"], "The largest float32 is e^88.7."
    labkit.predict(question, options, 1, why)
    page, bundle = displayed
    assert page == {"question": question, "options": options, "answer": 1, "why": why}
    markdown, plain = bundle["text/markdown"], bundle["text/plain"]
    visible = re.sub(r"<details>.*</details>", "", markdown, flags=re.DOTALL)
    assert "88.7" in markdown and "88.7" not in visible + plain
    for option in options:
        assert f" {option}\n" in visible + "\n" and option in plain
    assert re.search(r"<details><summary>Answer</summary>\n\n\*\*B\.\*\* inf", markdown)


def test_in_a_script_the_question_is_printed_without_its_answer(capsys):
    labkit.predict("Which?", ["a", "b"], 1, "Because.")
    assert capsys.readouterr().out == "Predict first: Which?\n  A. a\n  B. b\n"


# ------------------------------------------------------------------ exercises


UNTRIED = "Not attempted yet. Fill in `mine`, then run its cell and this one again.\n"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("...", UNTRIED),
        ("pass", UNTRIED),
        ("'What it should do.'", UNTRIED),
        ("'What it should do.'; ...", UNTRIED),
        ("x + 1", "Not yet. value none. Try twice.\n"),  # the learner forgot to return
        ("return x + 1", "Not yet. value 22. Try twice.\n"),
        ("1 / 0", "Not yet. raised ZeroDivisionError. It must not raise.\n"),
        ("return 2 * x", "Right. value 42\n"),
        ("return 42", "Right. value 42\n"),  # its code is an empty function's, but for the constant
    ],
)
def test_an_attempt_is_graded_and_run_all_goes_on_where_there_is_none(body, text, capsys):
    space = {}
    exec(f"def mine(x): {body}", space)
    labkit.exercise(doubles, space["mine"])
    assert capsys.readouterr().out == text


def test_a_check_that_raises_is_not_the_end_of_run_all(displayed):
    def strict(function):
        return Report(function(1) + None > 0)

    labkit.exercise(strict, lambda x: x)
    assert displayed[0]["text/plain"].startswith("Not yet. `<lambda>` raised TypeError: unsupported operand")
    assert "Traceback (most recent call last)" in displayed[0]["text/markdown"]
    assert "Traceback" not in displayed[0]["text/plain"], "paths and lines differ between machines"


def test_hints_unfold_one_inside_the_other(displayed):
    labkit.exercise(doubles, lambda x: x, hints=["first", "second"])
    markdown = displayed[0]["text/markdown"]
    shape = re.findall(r"<details>|</details>|first|second", markdown)
    assert shape == ["<details>", "first", "<details>", "second", "</details>", "</details>"]
    assert "first" not in re.sub(r"<details>.*</details>", "", markdown, flags=re.DOTALL)


def test_a_solved_exercise_gives_nothing_more_away_but_a_caution(displayed):
    labkit.exercise(doubles, functools.partial(int.__mul__, 2), hints=["first"])
    assert displayed[0]["text/markdown"] == "**Right.** value 42"

    def judge(evidence):
        evidence["steps"] = 2
        return report.caution("It is *slow*.")

    labkit.exercise(lambda f: report.judged("own", "it passes", f, judge), lambda x: x)
    assert displayed[1]["text/markdown"] == "**Right.** steps 2. But: It is \\*slow\\*."


def test_what_a_check_saw_is_written_not_rendered_and_reads_the_same_on_every_machine(displayed):
    labkit.exercise(lambda f: Report(False, "a<b>_c_ `x*y`"), lambda x: x)
    assert displayed[0]["text/markdown"] == "**Not yet.** a&lt;b&gt;\\_c\\_ `x*y`."
    seen = {"error": 1.2345678e-9, "slope": 0.1234567, "ids": list(range(9)), "finite": True}
    labkit.exercise(lambda f: Report(True, seen), lambda x: x)
    wanted = "Right. error under 1e-4, slope 0.123, ids [0, 1, 2, 3, 4, 5, and 3 more], finite yes"
    assert displayed[1]["text/plain"] == wanted


# ------------------------------------------------------------------ shown sources


@pytest.mark.parametrize(("thing", "line"), [(Report, "@dataclass"), (kl.k3, "def k3(")])
def test_what_is_shown_is_the_source_itself(thing, line, capsys):
    labkit.show(thing)
    head, code = capsys.readouterr().out.split("\n", 1)
    assert code.startswith(line)
    ast.parse(code)
    assert head == "# labkit/grpo/kl.py · k3" if thing is kl.k3 else head.startswith("# test_quiz.py · ")


def test_a_source_with_backticks_cannot_end_its_own_block(displayed):
    def fenced():
        """```python is inside."""

    labkit.show(fenced)
    markdown, plain = displayed[0]["text/markdown"], displayed[0]["text/plain"]
    assert re.search(r"^````python\ndef fenced\(\):\n.*?\n````$", markdown, re.DOTALL | re.MULTILINE)
    assert plain.startswith("source of ") and plain.endswith("fenced") and "\n" not in plain
