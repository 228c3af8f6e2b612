"""The solution of an exercise can be pasted, and passes the exercise's own check.

Of a notebook only the statements are executed that the exercise's cell needs. What is pasted is what the learner sees:
the folded cell behind the check, tagged `solution`.
"""

import ast
import re

import pytest
from cut import FOLDER, Page, cells, path_of, source, statements, tags, used

import labkit
from labkit import lessons


def exercises():
    """ "05-cell-93" -> the index of the statement that calls `labkit.exercise`."""
    for lesson in lessons.choose(FOLDER):
        for index, (cell, _, node) in enumerate(statements(lesson.path)):
            if isinstance(node, ast.Expr) and re.match(r"(labkit\.)?exercise\(", ast.unparse(node)):
                yield f"{lesson.number}-cell-{cell}", index


EXERCISES = dict(exercises())


class Reader(Page):
    """A reader who has executed just what some code needs, of all that stands above an exercise."""

    def __init__(self, name, monkeypatch):
        super().__init__(name.split("-cell-")[0])
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
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        wanted = self.function.__name__
        return self.space[wanted if wanted in names else names[-1]]


@pytest.mark.parametrize("name", EXERCISES)
def test_the_folded_solution_can_be_pasted_and_passes_its_own_check_and_the_stub_does_not(name, monkeypatch):
    reader = Reader(name, monkeypatch)
    assert not reader.check(reader.function)
    number, cell = name.split("-cell-")
    behind = cells(path_of(number))[int(cell) + 1 :]
    report = reader.check(reader.paste(next(source(cell) for cell in behind if "solution" in tags(cell))))
    assert report, report


def test_every_lesson_with_an_exercise_is_found():
    texts = {lesson.number: lesson.path.read_text() for lesson in lessons.choose(FOLDER)}
    assert {name.split("-cell-")[0] for name in EXERCISES} == {
        number for number, text in texts.items() if "labkit.exercise(" in text
    }
