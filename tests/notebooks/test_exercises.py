"""The solution of an exercise can be pasted, and passes the exercise's own check; stub and near misses do not.

Of a notebook only the statements are executed that the exercise's cell needs. What is pasted is what the learner sees:
the folded cell behind the check, tagged `solution`.
"""

import ast
import re

import pytest
from cut import FOLDER, Page, cells, path_of, source, statements, tags, used
from near_misses import ALSO_RIGHT, NEAR_MISSES

import labkit
from labkit import lessons


def exercises():
    """ "05-cell-93" -> the index of the statement that calls `labkit.exercise`."""
    for lesson in lessons.choose(FOLDER):
        for index, (cell, _, node) in enumerate(statements(lesson.path)):
            if isinstance(node, ast.Expr | ast.Assign) and re.match(r"(\w+ = )?labkit\.exercise\(", ast.unparse(node)):
                yield f"{lesson.number}-cell-{cell}", index


EXERCISES = dict(exercises())


class Reader(Page):
    """A reader who has executed just what some code needs, of all that stands above an exercise."""

    def __init__(self, name, monkeypatch):
        self.number = name.split("-cell-")[0]
        super().__init__(self.number)
        self.last, calls = EXERCISES[name], []
        monkeypatch.setattr(labkit, "exercise", lambda *args, **settings: calls.append(args))
        self.define(used(self.rows[self.last][2]), self.last)
        self.run(self.last)
        ((self.check, self.function),) = calls

    def paste(self, code):
        """Execute the code, and return the function that the exercise grades: the one of its name, or the last."""
        tree = ast.parse(code)
        self.define(set().union(*map(used, tree.body)), self.last)
        exec(compile(tree, "pasted.py", "exec"), self.space)
        names = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        wanted = self.function.__name__
        return self.space[wanted if wanted in names else names[-1]]


def solution_of(name):
    """The lesson's number, and the source of the exercise's cell tagged `solution`: it stands right before the check;
    in the third edition behind it."""
    number, cell = name.split("-cell-")
    book, at = cells(path_of(number)), int(cell)
    if "checked" in tags(book[-1]):
        return number, source(book[at - 1])
    return number, next(source(cell) for cell in book[at + 1 :] if "solution" in tags(cell))


def near_misses_of(number, solution):
    return [key for key in NEAR_MISSES if key[0] == number and f"def {key[1]}(" in solution]


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_can_be_pasted_and_passes_its_own_check_and_stub_and_near_misses_do_not(name, monkeypatch):
    reader = Reader(name, monkeypatch)
    assert not reader.check(reader.function)
    number, solution = solution_of(name)
    report = reader.check(reader.paste(solution))
    assert report, report
    for key in near_misses_of(number, solution):
        for old, new, words in NEAR_MISSES[key]:
            assert old in solution, old
            report = reader.check(reader.paste(solution.replace(old, new)))
            assert not report and words in report.hint, (old, new, report)
        if key in ALSO_RIGHT:
            assert reader.check(reader.paste(solution.replace(*ALSO_RIGHT[key])))


def test_every_lesson_with_an_exercise_is_found_and_every_near_miss_has_its_solution():
    texts = {lesson.number: lesson.path.read_text() for lesson in lessons.choose(FOLDER)}
    with_exercise = {number for number, text in texts.items() if "labkit.exercise(" in text}
    assert {name.split("-cell-")[0] for name in EXERCISES} == with_exercise
    assert sorted(key for name in EXERCISES for key in near_misses_of(*solution_of(name))) == sorted(NEAR_MISSES)
