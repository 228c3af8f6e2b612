"""The harness that holds the verdicts: it notices a verdict that cannot fail, and a mutant that breaks nothing."""

import sys
import types

import claims
import pytest

import labkit
import labkit.verdicts

LESSONS = sorted(path.stem[1:] for path in (claims.HERE / "mutants").glob("m[0-9]*.py"))


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


def test_a_false_verdict_is_noted_the_lesson_goes_on_and_parameters_go_over_the_tagged_cell(play):
    cells = ["labkit.verdict('false', SEED, '>', 3)", "1 / 0", "labkit.verdict('true', SEED, '==', 2)"]
    run = play("import labkit\nSEED = 0", *cells, parameters={"SEED": 2, "OTHER": 1})
    assert [(claim.claim, claim.passed) for claim in run.claims] == [("false", False), ("true", True)]
    assert len(run.errors) == 1 and "ZeroDivisionError" in run.errors[0] and "cell 2" in run.errors[0]


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
    assert sorted(round(compared.margin, 3) for compared in claim.compared) == margins
    assert claim.passed == all(compared.holds for compared in claim.compared)


# ---- the tables of scripts/claims.py


@pytest.fixture
def tables(script):
    return script("claims")


def result(compared=(), **passed):
    """What a run of a lesson left: a claim for each name, and whether it held."""
    rows = [{"claim": name, "passed": value, "compared": list(compared)} for name, value in passed.items()]
    return {"claims": rows, "errors": [], "seconds": 0.0}


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ([result(a=False, b=True), result(a=True, b=False)], None),
        ([result(a=False, b=True), result(a=False, b=True)], "Survives every mutant:** b"),
        ([result(a=False, b=False), result(a=True, b=True)], "Breaks nothing:** two"),
        ([result(a=False, b=False), result()], "Breaks nothing:** two"),
    ],
)
def test_survivors_and_idle_mutants_are_found(tables, monkeypatch, broken, words):
    monkeypatch.setattr(tables.claims, "mutants_of", lambda lesson: {"one": [], "two": []})
    monkeypatch.setattr(tables, "run_all", lambda jobs, *_: [result(a=True, b=True), *broken])
    text, good = tables.mutants(["99"], 1)
    assert good == (words is None)
    assert words is None or words in text


@pytest.mark.parametrize(
    ("last", "holds", "words"), [(9.0, True, ("1.11 thin", "(seed 1, 1)")), (11.0, False, ("| 1/1 |",))]
)
def test_a_thin_margin_is_marked_and_a_failing_seed_named(tables, monkeypatch, last, holds, words):
    runs = [
        result([{"text": "x < 10", "left": left, "right": 10.0, "holds": left < 10}], a=left < 10)
        for left in (2.0, last)
    ]
    monkeypatch.setattr(tables, "run_all", lambda jobs, *_: runs)
    text, good = tables.seeds(["99"], 1, [0, 1], [1])
    assert good is holds and all(word in text for word in words)


def test_a_table_of_some_lessons_replaces_their_sections_of_the_file_alone(tables):
    old = "# Head\n\n## Lesson 01\n\none\n\n## Lesson 03\n\nthree\n"
    new = "# Other head\n\n## Lesson 02\n\ntwo\n\n## Lesson 03\n\nnew three\n"
    whole = "# Head\n\n## Lesson 01\n\none\n\n## Lesson 02\n\ntwo\n\n## Lesson 03\n\nnew three\n"
    assert tables.with_sections(old, new) == whole
    assert tables.with_sections("", new) == new


def test_a_sweep_goes_on_where_it_was_stopped(tables, monkeypatch, tmp_path):
    finished = []

    def run(jobs):
        finished.extend(jobs)
        return [result(a=True) for _ in jobs]

    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "run", run)
    jobs = [("02", "", seed, 1) for seed in range(3)]
    tables.run_all(jobs[:2], 1, lambda *_: None)
    assert len(tables.run_all(jobs, 1, lambda *_: None)) == 3
    assert finished == jobs  # each once
    monkeypatch.setattr(tables, "code_of", lambda lesson: "another lesson")
    tables.run_all(jobs, 1, lambda *_: None)
    assert finished == jobs * 2
