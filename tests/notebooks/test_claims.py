"""The harness that holds the verdicts: it notices a verdict that cannot fail, and a mutant that breaks nothing."""

import importlib.util
import sys
import types
from pathlib import Path

import claims
import pytest

import labkit
import labkit.verdicts

LESSONS = sorted(path.stem[1:] for path in (claims.HERE / "mutants").glob("m[0-9]*.py"))


@pytest.fixture
def tables():
    path = Path(__file__).resolve().parents[2] / "scripts" / "claims.py"
    spec = importlib.util.spec_from_file_location("claims_tables", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def play(monkeypatch):
    """Run cells, given as texts, in a lesson of their own."""

    def play(*sources, parameters=None):
        monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
        monkeypatch.setattr(labkit, "verdict", labkit.verdict)
        monkeypatch.setattr(labkit.verdicts, "verdict", labkit.verdicts.verdict)
        cells = [(at, ["parameters"] if at == 0 else [], source) for at, source in enumerate(sources)]
        return claims.Runner("99").run(cells, parameters or {})

    return play


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_mutant_can_be_applied_and_changes_the_lesson(lesson):
    cells = claims.code_of(lesson)
    for name, edits in claims.mutants_of(lesson).items():
        assert claims.mutated(cells, edits) != cells, name


def test_a_false_verdict_is_noted_and_the_lesson_goes_on(play):
    cells = ["labkit.verdict('false', SEED, '>', 3)", "1 / 0", "labkit.verdict('true', 1, '==', 1)"]
    made = play("import labkit\nSEED = 0", *cells)
    assert [(c.claim, c.passed) for c in made.claims] == [("false", False), ("true", True)]
    assert len(made.errors) == 1 and "ZeroDivisionError" in made.errors[0] and "cell 2" in made.errors[0]


def test_parameters_go_over_the_tagged_cell(play):
    source = "labkit.verdict('seed', SEED, '==', 7)"
    made = play("import labkit\nSEED = 0", source, parameters={"SEED": 7, "OTHER": 1})
    assert made.claims[0].passed and not made.errors


@pytest.mark.parametrize(
    ("args", "margins"),
    [
        ("2.0, '<', 8.0", [4.0]),
        ("5.0, 'in', (1, 20)", [4.0, 5.0]),
        ("3.0, '<', 2.0", [1.5]),
        ("'ok', '==', 'ok'", []),
        ("7, '==', 7", []),
    ],
)
def test_a_margin_is_the_verdicts_number_over_its_limit(play, args, margins):
    (claim,) = play("import labkit", f"labkit.verdict('one', {args})").claims
    assert sorted(round(c.margin, 3) for c in claim.compared) == margins
    assert claim.passed == all(c.holds for c in claim.compared)


def made(**held):
    return {
        "claims": [{"claim": k, "passed": v, "compared": []} for k, v in held.items()],
        "errors": [],
        "seconds": 0.0,
    }


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ([made(a=False, b=True), made(a=True, b=False)], None),
        ([made(a=False, b=True), made(a=False, b=True)], "Survives every mutant:** b"),
        ([made(a=False, b=False), made(a=True, b=True)], "Breaks nothing:** two"),
        ([made(a=False, b=False), made()], "Breaks nothing:** two"),
    ],
)
def test_survivors_and_idle_mutants_are_found(tables, monkeypatch, broken, words):
    monkeypatch.setattr(tables.claims, "mutants_of", lambda lesson: {"one": [], "two": []})
    monkeypatch.setattr(tables, "run_all", lambda jobs, *_: [made(a=True, b=True), *broken])
    text, good = tables.mutants(["99"], 1)
    assert good == (words is None)
    assert words is None or words in text


def test_a_thin_margin_is_marked_and_a_failing_seed_named(tables, monkeypatch):
    def run(passed, left):
        compared = [{"text": "x < 10", "left": left, "right": 10.0, "holds": passed}]
        return {"claims": [{"claim": "a", "passed": passed, "compared": compared}], "errors": [], "seconds": 0.0}

    monkeypatch.setattr(tables, "run_all", lambda jobs, *_: [run(True, 2.0), run(True, 9.0)])
    text, good = tables.seeds(["99"], 1, [0, 1], [1])
    assert good and "1.11 thin" in text and "(seed 1, 1)" in text
    monkeypatch.setattr(tables, "run_all", lambda jobs, *_: [run(True, 2.0), run(False, 11.0)])
    text, good = tables.seeds(["99"], 1, [0, 1], [1])
    assert not good and "| 1/1 |" in text


def test_a_table_of_some_lessons_replaces_their_sections_of_the_file_alone(tables):
    old = "# Head\n\n## Lesson 01\n\none\n\n## Lesson 03\n\nthree\n"
    new = "# Other head\n\n## Lesson 02\n\ntwo\n\n## Lesson 03\n\nnew three\n"
    whole = "# Head\n\n## Lesson 01\n\none\n\n## Lesson 02\n\ntwo\n\n## Lesson 03\n\nnew three\n"
    assert tables.with_sections(old, new) == whole
    assert tables.with_sections("", new) == new


def test_a_sweep_goes_on_where_it_was_stopped(tables, monkeypatch, tmp_path):
    ran = []

    def run(jobs):
        ran.extend(jobs)
        return [
            {"claims": [{"claim": "a", "passed": True, "compared": []}], "errors": [], "seconds": 0.0} for _ in jobs
        ]

    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "run", run)
    jobs = [("02", "", seed, 1) for seed in range(3)]
    tables.run_all(jobs[:2], 1, lambda *_: None)
    assert len(tables.run_all(jobs, 1, lambda *_: None)) == 3
    assert ran == jobs  # each once
    monkeypatch.setattr(tables, "code_of", lambda lesson: "another lesson")
    tables.run_all(jobs, 1, lambda *_: None)
    assert ran == jobs * 2
