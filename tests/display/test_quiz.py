"""Questions, exercises and shown sources: what a reader of the saved notebook sees, and what Run All survives."""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import labkit
from labkit import kl
from labkit.display import notebook, quiz, texts


@pytest.fixture
def displayed(monkeypatch):
    """The mime bundles that are displayed, as if in a notebook; widgets are left out."""
    import IPython.display

    shown = []

    def display(thing, **_):
        if isinstance(thing, dict):
            shown.append(thing)

    monkeypatch.setattr(notebook, "kernel", lambda: object())
    monkeypatch.setattr(notebook, "live", lambda *args, **kwargs: (args, kwargs))
    monkeypatch.setattr(IPython.display, "display", display)
    return shown


@dataclass
class Report:
    """A report as `labkit.checks` makes them."""

    passed: bool
    seen: Any = field(default_factory=dict)
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
    labkit.predict("What is `exp(90)` in float32?", ["large", "inf", "nan"], 1, "The largest float32 is e^88.7.")
    (bundle,) = displayed
    markdown, plain = bundle["text/markdown"], bundle["text/plain"]
    visible = re.sub(r"<details>.*</details>", "", markdown, flags=re.DOTALL)
    assert "88.7" in markdown and "88.7" not in visible + plain
    for option in ("large", "inf", "nan"):
        assert f" {option}\n" in visible + "\n" and option in plain
    assert re.search(r"<details><summary>Answer</summary>\n\n\*\*B\.\*\* inf", markdown)


def test_the_page_is_told_the_right_choice(monkeypatch, displayed):
    told = {}
    monkeypatch.setattr(notebook, "live", lambda script, text, **state: told.update(state))
    labkit.predict("Which?", ["a", "b"], 1, "Because.")
    assert told == {"question": "Which?", "options": ["a", "b"], "answer": 1, "why": "Because."}


def test_in_a_script_the_question_is_printed_without_its_answer(capsys):
    assert labkit.predict("Which?", ["a", "b"], 1, "Because.") is None
    assert capsys.readouterr().out == "Predict first: Which?\n  A. a\n  B. b\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("q", "ab", 0, "w"), "2 to 6 different options, got 'ab'"),
        (("q", ["a", "a"], 0, "w"), "2 to 6 different options"),
        (("q", ["a", "b"], "a", "w"), "a place from 0 to 1, got 'a'"),
        (("q", ["a", "b"], 2, "w"), "got 2"),
    ],
)
def test_a_question_that_does_not_fit_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        labkit.predict(*arguments)


# ------------------------------------------------------------------ exercises


def stub_dots(x): ...


def stub_doc(x):
    """What it should do."""


def stub_doc_dots(x):
    """What it should do."""


def stub_pass(x):
    pass


def stub_raises(x):
    raise NotImplementedError


def stub_raises_text(x):
    raise NotImplementedError("your turn")


def stub_returns(x):
    return NotImplemented


def stub_returns_dots(x):
    return ...


STUBS = [v for k, v in dict(globals()).items() if k.startswith("stub_")]


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.__name__)
def test_run_all_goes_on_over_an_exercise_that_nobody_tried(stub, capsys):
    assert labkit.exercise(doubles, stub, hints=["Add it to itself."]) is None
    out = capsys.readouterr().out
    assert out.startswith("Not attempted yet. Fill in") and out.count("\n") == 1


def returns_none(x):
    x + 1  # noqa: B018 - the learner forgot to return


def returns_a_wrong_number(x):
    return x + 1


def raises(x):
    raise ZeroDivisionError("by zero")


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (returns_none, "Not yet. value none. Try twice.\n"),
        (returns_a_wrong_number, "Not yet. value 22. Try twice.\n"),
        (raises, "Not yet. raised ZeroDivisionError. It must not raise.\n"),
        (lambda x: 2 * x, "Right. value 42\n"),
        (functools.partial(int.__mul__, 2), "Right. value 42\n"),
    ],
)
def test_an_attempt_is_graded(attempt, words, capsys):
    labkit.exercise(doubles, attempt)
    assert capsys.readouterr().out == words


def test_a_check_that_raises_is_not_the_end_of_run_all(displayed):
    def strict(function):
        return Report(function(1) + None > 0)

    labkit.exercise(strict, lambda x: x)
    assert displayed[0]["text/plain"].startswith("Not yet. `<lambda>` raised TypeError: unsupported operand")
    assert "Traceback (most recent call last)" in displayed[0]["text/markdown"]
    assert "Traceback" not in displayed[0]["text/plain"], "paths and lines differ between machines"


def test_hints_unfold_one_inside_the_other(displayed):
    labkit.exercise(doubles, stub_dots, hints=["first", "second"])
    markdown = displayed[0]["text/markdown"]
    shape = re.findall(r"<details>|</details>|first|second", markdown)
    assert shape == ["<details>", "first", "<details>", "second", "</details>", "</details>"]
    assert "first" not in re.sub(r"<details>.*</details>", "", markdown, flags=re.DOTALL)


def test_a_solved_exercise_gives_nothing_more_away(displayed):
    labkit.exercise(doubles, lambda x: x * 2, hints=["first"])
    assert displayed[0]["text/markdown"] == "**Right.** value 42"


def test_what_a_check_saw_is_written_not_rendered(displayed):
    labkit.exercise(lambda f: Report(False, "a<b>_c_ `x*y`", ""), raises)
    assert displayed[0]["text/markdown"] == "**Not yet.** a&lt;b&gt;\\_c\\_ `x*y`."


def test_evidence_reads_the_same_on_every_machine():
    seen = {"error": 1.2345678e-9, "slope": 0.1234567, "ids": list(range(9)), "finite": True}
    assert quiz._words(seen) == "error under 1e-4, slope 0.123, ids [0, 1, 2, 3, 4, 5, and 3 more], finite yes"


def test_a_caution_is_said_beside_right(capsys):
    from labkit import checks

    labkit.exercise(checks.missing_rewards, advantages_without_a_mask)
    said = capsys.readouterr().out
    assert said.startswith("Right.") and "But: It returns no mask" in said


def advantages_without_a_mask(rewards):
    rows = rewards.view(-1, 4)
    came = rows.isfinite()
    mean = rows.nanmean(1, keepdim=True)
    return torch.where(came & (came.sum(1, keepdim=True) > 1), rows - mean, 0.0).flatten()


def test_the_lab_own_checks_can_grade():
    from labkit import checks

    name = next(n for n in ("first_token", "accumulation") if hasattr(checks, n))
    assert quiz._grade(getattr(checks, name), stub_raises)[0] == quiz.NOT_ATTEMPTED


# ------------------------------------------------------------------ shown sources


class Outer:
    """A class to show."""

    @functools.lru_cache  # noqa: B019 - to be shown, not called
    def cached(self):
        return 2

    @staticmethod
    def fixed():
        return 3


@pytest.mark.parametrize(
    ("thing", "line"),
    [
        (Outer, "class Outer:"),
        (Outer().fixed, "@staticmethod"),
        (Outer.cached, "@functools.lru_cache"),
        (functools.partial(raises, 1), "def raises(x):"),
        (kl.k3, "def k3("),
    ],
)
def test_what_is_shown_is_the_source_itself(thing, line, capsys):
    assert labkit.show(thing) is None
    head, code = capsys.readouterr().out.split("\n", 1)
    assert code.startswith(line)
    ast.parse(textwrap.dedent(code))
    assert head == "# labkit/kl.py · k3" if thing is kl.k3 else head.startswith("# test_quiz.py · ")


def test_a_source_with_backticks_cannot_end_its_own_block(displayed):
    def fenced():
        """```python is inside."""

    labkit.show(fenced, raises)
    markdown = displayed[0]["text/markdown"]
    assert re.search(r"^````python\ndef fenced\(\):\n.*?\n````$", markdown, re.DOTALL | re.MULTILINE)
    assert re.search(r"^```python\ndef raises\(x\):\n[^`]*\n```$", markdown, re.MULTILINE)
    assert displayed[0]["text/plain"].startswith("source of ") and "raises" in displayed[0]["text/plain"]


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (len, "expected a function or class written in Python, got <built-in function len>"),
        (3, "written in Python, got 3"),
        (texts, "got <module 'labkit.display.texts'"),
        (dict, "no Python source for dict"),
        (eval("lambda: 1"), "no Python source for <lambda>"),
    ],
)
def test_what_has_no_source_is_said(thing, words):
    with pytest.raises(TypeError, match=words):
        labkit.show(thing)
