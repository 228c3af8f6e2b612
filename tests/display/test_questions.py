"""Questions, exercises and shown sources: what a reader of the saved notebook sees, and what Run All survives."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from typing import Any

import pytest

import labkit
from labkit import kl
from labkit.checks import report
from labkit.display import bench, notebook


@pytest.fixture
def displayed(monkeypatch):
    """What is displayed, as if in a notebook: the mime bundles."""
    import IPython.display

    shown = []
    monkeypatch.setattr(notebook, "kernel", lambda: object())
    monkeypatch.delenv("LABKIT_SAVED_PAGES", raising=False)
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
    labkit.predict(question, options, 1, why, wrong=["In float64, yes.", "It would be, of inf - inf."])
    (bundle,) = displayed
    markdown, plain, page = bundle["text/markdown"], bundle["text/plain"], bundle["text/html"]
    visible = re.sub(r"<details>.*</details>", "", markdown, flags=re.DOTALL)
    for told in ("88.7", "In float64, yes.", "inf - inf"):
        assert told in markdown and told in page and told not in visible + plain
    without_script = re.sub(r"<script>.*</script>|<details>.*</details>", "", page, flags=re.DOTALL)
    assert "88.7" not in without_script and "<code>exp(90)</code>" in without_script
    for option in options:
        assert f" {option}\n" in visible + "\n" and option in plain and f"<li>{option}</li>" in without_script
    assert re.search(r"<details><summary>Answer</summary>\n\n\*\*B\.\*\* inf", markdown)


def test_what_a_question_says_cannot_end_its_script_nor_become_html(displayed):
    labkit.predict("a </script><b>x", ["<i>1", "2"], 1, "w")
    page = displayed[0]["text/html"]
    assert page.count("</script>") == 1 and "<b>x" not in page.split("<script>")[0] and "<li><i>" not in page


@pytest.mark.parametrize(
    "answer, wrong, words", [(2, [], "answer 2 of 2 options"), (0, ["a", "b"], "2 sentences for 1 wrong options")]
)
def test_an_answer_or_sentences_that_fit_no_option_are_named(answer, wrong, words):
    with pytest.raises(ValueError, match=words):
        labkit.predict("Which?", ["a", "b"], answer, "Because.", wrong)


def test_a_committed_page_holds_no_script(displayed, monkeypatch):
    monkeypatch.setenv("LABKIT_SAVED_PAGES", "1")
    labkit.predict("Which?", ["a", "b"], 1, "Because.")
    assert set(displayed[0]) == {"text/markdown", "text/plain"}


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
        ("x + 1", "✗ Not yet. Try twice. value: none\n"),  # the learner forgot to return
        ("return x + 1", "✗ Not yet. Try twice. value: 22\n"),
        ("1 / 0", "✗ Not yet. It must not raise. raised: ZeroDivisionError\n"),
        ("return 2 * x", "✓ Right. value: 42\n"),
        ("return 42", "✓ Right. value: 42\n"),  # its code is an empty function's, but for the constant
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
    assert displayed[0]["text/plain"].startswith("✗ Not yet. `<lambda>` raised TypeError: unsupported operand")
    assert "Traceback (most recent call last)" in displayed[0]["text/markdown"]
    assert "Traceback" not in displayed[0]["text/plain"], "paths and lines differ between machines"


def test_hints_unfold_one_inside_the_other(displayed):
    labkit.exercise(doubles, lambda x: x, hints=["first", "second"])
    markdown = displayed[0]["text/markdown"]
    shape = re.findall(r"<details>|</details>|first|second", markdown.partition("value: 21\n\n</details>")[2])
    assert shape == ["<details>", "first", "<details>", "second", "</details>", "</details>"]
    assert "first" not in re.sub(r"<details>.*</details>", "", markdown, flags=re.DOTALL)


def test_a_solved_exercise_gives_nothing_more_away_but_a_caution(displayed):
    labkit.exercise(doubles, functools.partial(int.__mul__, 2), hints=["first"])
    measured = "<details><summary>What was measured</summary>\n\n{}\n\n</details>"
    assert displayed[0]["text/markdown"] == "**✓ Right.**\n\n" + measured.format("value: 42")

    def judge(evidence):
        evidence["steps"] = 2
        return report.caution("It is *slow*.")

    labkit.exercise(lambda f: report.judged("own", "it passes", f, judge), lambda x: x)
    assert displayed[1]["text/markdown"] == "**✓ Right.** But: It is \\*slow\\*.\n\n" + measured.format("steps: 2")


def test_what_a_check_saw_is_written_not_rendered_and_reads_the_same_on_every_machine(displayed):
    labkit.exercise(lambda f: Report(False, "a<b>_c_ `x*y`"), lambda x: x)
    assert displayed[0]["text/markdown"] == "**✗ Not yet.** a&lt;b&gt;\\_c\\_ `x*y`."
    seen = {"error": 1.2345678e-9, "slope": 0.1234567, "ids": list(range(9)), "finite": True}
    labkit.exercise(lambda f: Report(True, seen), lambda x: x)
    wanted = "✓ Right. error: under 1e-4; slope: 0.123; ids: [0, 1, 2, 3, 4, 5, and 3 more]; finite: yes"
    assert displayed[1]["text/plain"] == wanted


# ------------------------------------------------------------------ what the cells below run


def theirs(x):
    return 2 * x


def handed_on(body, capsys, **settings):
    """What an exercise returns for a function of this body, and what it says."""
    space = {}
    exec(f"import os, sys, time\nimport torch\ndef mine(x):\n    {body}", space)
    chosen = labkit.exercise(doubles, space["mine"], solution=theirs, seconds=3, **settings)
    return chosen, capsys.readouterr().out


def test_an_empty_function_gives_the_solution_a_right_one_and_a_wrong_one_give_themselves(capsys):
    chosen, said = handed_on("...", capsys)
    assert (str(chosen), chosen.attempt, chosen(4)) == ("solution", 0, 8) and "still empty" in said
    chosen, said = handed_on("return x + x", capsys)
    assert (str(chosen), chosen(4)) == ("yours", 8) and said.startswith("✓ Right.")
    chosen, said = handed_on("return x + 1", capsys)
    assert (str(chosen), chosen(4)) == ("yours", 5) and "run yours all the same" in said
    chosen, said = handed_on("return x / 0", capsys)
    assert str(chosen) == "yours" and "It must not raise." in said


def test_what_no_cell_below_runs_is_judged_in_the_sandbox_and_nothing_is_returned(capsys):
    chosen, said = handed_on("sys.exit(1)", capsys, hand_on=False)
    assert chosen is None and "`sys.exit`" in said and "cells below" not in said
    chosen, said = handed_on("...", capsys, hand_on=False)
    assert chosen is None and "cells below" not in said


HARMFUL = {
    "while True: pass": "still computing",
    "sys.exit(0)": "`sys.exit`",
    "os._exit(0)": "ended its process",
    "os.kill(os.getpid(), 9)": "ended its process",
    "while True: print('x' * 10**6)": "",  # it waits for its pipe more than it computes
    "while True: os.fork()": "processes",
    "time.sleep(10**6)": "did not come back within 9 s",
}


@pytest.mark.parametrize("body", HARMFUL)
def test_whatever_a_function_does_it_ends_with_a_sentence_and_the_solution_runs(body, capsys):
    chosen, said = handed_on(body, capsys)
    assert str(chosen) == "solution" and chosen(4) == 8
    assert said.startswith("✗ Not yet. `mine` ") and HARMFUL[body] in said and "run the solution" in said


def test_ten_gigabytes_are_not_waited_for(capsys, monkeypatch):
    monkeypatch.setattr(bench, "MEMORY", 2**29)
    chosen, said = handed_on("held = [torch.ones(2**26) for _ in range(40)]", capsys)
    assert str(chosen) == "solution" and "GiB of memory" in said


def test_what_is_handed_on_goes_to_the_sandbox_like_the_function_itself(capsys):
    chosen, _ = handed_on("return x + 1", capsys)
    run = labkit.sandbox.run(lambda function: [function(1)], chosen, timeout=60)
    assert run.events == [[2]]
    assert chosen.__name__ == "mine" and repr(chosen) == "<yours: mine>"


def test_a_second_attempt_is_drawn_beside_the_first_and_the_same_code_is_no_second_attempt(capsys):
    first, _ = handed_on("return x + 3", capsys)
    assert bench.earlier("picture", first, "line 1") == []
    again, _ = handed_on("return x + 3", capsys)
    assert again.attempt == first.attempt and bench.earlier("picture", again, "line 1") == []
    second, _ = handed_on("return x + 4", capsys)
    assert bench.earlier("picture", second, "line 2") == ["line 1"]
    solved, _ = handed_on("...", capsys)
    assert bench.earlier("picture", solved, "line 3") == []


# ------------------------------------------------------------------ shown sources


@pytest.mark.parametrize(("thing", "line"), [(Report, "@dataclass"), (kl.k3, "def k3(")])
def test_what_is_shown_is_the_source_itself(thing, line, capsys):
    labkit.show(thing)
    head, code = capsys.readouterr().out.split("\n", 1)
    assert code.startswith(line)
    ast.parse(code)
    assert head == "# labkit/grpo/kl.py · k3" if thing is kl.k3 else head.startswith("# test_questions.py · ")


def test_a_source_with_backticks_cannot_end_its_own_block(displayed):
    def fenced():
        """```python is inside."""

    labkit.show(fenced)
    markdown, plain = displayed[0]["text/markdown"], displayed[0]["text/plain"]
    assert re.search(r"^````python\ndef fenced\(\):\n.*?\n````$", markdown, re.DOTALL | re.MULTILINE)
    assert plain.startswith("source of ") and plain.endswith("fenced") and "\n" not in plain
