"""The solution of an exercise can be pasted, and passes the exercise's own check.

Of a notebook only the statements are executed that the exercise's cell needs. What is pasted is what the learner sees:
the folded cell behind the check, tagged `solution`.
"""

import ast
import json
import linecache
import re
import symtable
import sys

import pytest
from cut import FOLDER, path_of

import labkit
from labkit import lessons

sys.path.append(str(FOLDER))  # as `labkit.warm()` does


def statements(path):
    """(cell number, statement) of every code cell, in order; cells with IPython syntax are left out."""
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or re.search(r"^[%!]", source, re.MULTILINE):
            continue
        file = f"{path.stem}_cell_{number}.py"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        for node in compile(source, file, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT).body:
            yield number, file, node


def assigned(node):
    """Global names that a statement binds or changes."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    aliases = [a for n in ast.walk(node) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names]
    changed = [t for t in getattr(node, "targets", []) if isinstance(t, ast.Subscript)]
    names |= {t.value.id for t in changed if isinstance(t.value, ast.Name)}
    return names | {(a.asname or a.name).split(".")[0] for a in aliases}


def used(node):
    """Global names that a statement reads, in functions too."""
    if any(isinstance(n, ast.Await) for n in ast.walk(node)):
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}

    def of(table):
        names = {s.get_name() for s in table.get_symbols() if s.is_referenced() or s.is_assigned()}
        if table.get_type() == "function":
            names = set(table.get_globals())
        return names.union(*map(of, table.get_children()))

    return of(symtable.symtable(ast.unparse(node), "statement", "exec"))


class Reader:
    """A reader who has executed just what some code needs, of all that stands above an exercise."""

    def __init__(self, rows, last, monkeypatch):
        self.rows, self.last, self.done, found = rows, last, set(), []
        self.space = {"__name__": "__main__"}
        monkeypatch.setattr(labkit, "exercise", lambda *args, **settings: found.append((args, settings)))
        self.make(used(rows[last][2]))
        self.run(last)
        (((self.check, self.function), _),) = found

    def run(self, index):
        _, file, node = self.rows[index]
        exec(compile(ast.Module([node], []), file, "exec"), self.space)

    def make(self, names):
        """Execute, in order, the statements that define these names, and what those need."""
        found, waiting = set(), [(name, self.last) for name in names]
        while waiting:
            name, before = waiting.pop()
            definition = next((i for i in range(before - 1, -1, -1) if name in assigned(self.rows[i][2])), None)
            if definition is not None and definition not in found:
                found.add(definition)
                waiting += [(each, definition) for each in used(self.rows[definition][2])]
        for index in sorted(found - self.done):
            self.run(index)
        self.done |= found

    def paste(self, code):
        """Execute the code, and return the function that the exercise grades: the one of its name, or the last."""
        tree = ast.parse(code)
        self.make(set().union(*map(used, tree.body)))
        exec(compile(tree, "pasted.py", "exec"), self.space)
        defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        wanted = self.function.__name__
        return self.space[wanted if wanted in defined else defined[-1]]


def exercises():
    """ "05-cell-93" -> (the lesson's statements, the index of the one that calls `labkit.exercise`)."""
    for lesson in lessons.choose(FOLDER):
        path = lesson.path
        rows = list(statements(path))
        for i, (number, _, node) in enumerate(rows):
            if isinstance(node, ast.Expr) and re.match(r"(labkit\.)?exercise\(", ast.unparse(node)):
                yield f"{lesson.number}-cell-{number}", (rows, i)


EXERCISES = dict(exercises())


def cell_behind(name):
    """The source of the first cell tagged `solution` behind an exercise's check."""
    number, at = name.split("-cell-")
    path = path_of(number)
    behind = json.loads(path.read_text())["cells"][int(at) + 1 :]
    return next("".join(cell["source"]) for cell in behind if "solution" in cell["metadata"].get("tags", []))


@pytest.mark.parametrize("name", EXERCISES)
def test_the_folded_solution_can_be_pasted_and_passes_its_own_check(name, monkeypatch):
    reader = Reader(*EXERCISES[name], monkeypatch)
    report = reader.check(reader.paste(cell_behind(name)))
    assert report, report


@pytest.mark.parametrize("name", EXERCISES)
def test_an_exercise_that_nobody_tried_does_not_pass(name, monkeypatch):
    reader = Reader(*EXERCISES[name], monkeypatch)
    assert not reader.check(reader.function)


def test_every_lesson_with_an_exercise_is_found():
    texts = {lesson.number: lesson.path.read_text() for lesson in lessons.choose(FOLDER)}
    assert {name.split("-cell-")[0] for name in EXERCISES} == {
        n for n, text in texts.items() if "labkit.exercise(" in text
    }
