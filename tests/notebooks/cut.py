"""What tests take out of a notebook: its cells, what its code defines, and the files of installed packages."""

import ast
import asyncio
import json
import linecache
import re
import symtable

from claims import FOLDER, path_of

NOTEBOOKS = sorted([*FOLDER.glob("[0-9][0-9]_*.ipynb"), *FOLDER.glob("more/*.ipynb")])


def number_of(path):
    return path.name[:2] + ("" if path.parent == FOLDER else "-more")


def cells(path):
    return json.loads(path.read_text())["cells"]


def source(cell):
    return "".join(cell["source"])


def tags(cell):
    return set(cell["metadata"].get("tags", []))


def is_code(cell):
    return cell["cell_type"] == "code"


def folded(cell):
    return cell["metadata"].get("jupyter", {}).get("source_hidden", False)


def printed(cell):
    return "".join("".join(output["text"]) for output in cell.get("outputs", []) if output.get("name") == "stdout")


def prose(number):
    return "\n".join(source(cell) for cell in cells(path_of(number)) if not is_code(cell))


class Page:
    """A lesson, of which only those statements are executed that a name needs: `Page("05")["evaluate"]`.

    given: names that have these values, whatever the lesson would give them. A name that is assigned more than once
    has its last value, as at the end of the lesson; an exercise has its solution.
    """

    def __init__(self, number, **given):
        self.rows = list(statements(path_of(number)))
        self.assigned = [assigned(node) for _, _, node in self.rows]
        self.given, self.executed = set(given), set()
        self.space = {"__name__": "__main__"} | given

    def __getitem__(self, name):
        self.define({name}, len(self.rows))
        return self.space[name]

    def run(self, index):
        _, file, node = self.rows[index]
        code = compile(ast.Module([node], []), file, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        waiting = eval(code, self.space)
        if asyncio.iscoroutine(waiting):  # a live board, which a page awaits
            asyncio.run(waiting)

    def define(self, names, end):
        """Execute, in order, the statements above `end` that define these names, and what those need."""
        needed, waiting = set(), [(name, end) for name in names if name not in self.given]
        while waiting:
            name, before = waiting.pop()
            definition = next((i for i in range(before - 1, -1, -1) if name in self.assigned[i]), None)
            if definition is not None and definition not in needed:
                needed.add(definition)
                waiting += [(each, definition) for each in used(self.rows[definition][2]) - self.given]
        for index in sorted(needed - self.executed):
            self.run(index)
        self.executed |= needed


def statements(path):
    """(cell number, file, statement) of every code cell, in order; cells with IPython syntax are left out."""
    for number, cell in enumerate(cells(path)):
        text = source(cell)
        if not is_code(cell) or re.search(r"^[%!]", text, re.MULTILINE):
            continue
        file = f"{path.stem}_cell_{number}.py"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        for node in compile(text, file, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT).body:
            yield number, file, node


def assigned(node):
    """Global names that a statement binds or changes."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    aliases = [a for n in ast.walk(node) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names]
    changed = [t for t in getattr(node, "targets", []) if isinstance(t, ast.Subscript)]
    names |= {t.value.id for t in changed if isinstance(t.value, ast.Name)}
    return names | {(a.asname or a.name).split(".")[0] for a in aliases}


def used(node):
    """Global names that a statement reads, in functions too."""
    top_level = not isinstance(node, ast.AsyncFunctionDef)
    if top_level and any(isinstance(n, ast.Await) for n in ast.walk(node)):
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}

    def of(table):
        names = {s.get_name() for s in table.get_symbols() if s.is_referenced() or s.is_assigned()}
        if table.get_type() == "function":
            names = set(table.get_globals())
        return names.union(*map(of, table.get_children()))

    return of(symtable.symtable(ast.unparse(node), "statement", "exec"))
