"""How dense is the code? Counts, for each wing, what makes a line hard to read, per 1,000 lines of
code.

    python scripts/code_shape.py             the table, a row for each wing
    python scripts/code_shape.py grpo        the same, and where the counted things stand

A line of code is one that holds a token other than a comment or a docstring.
tests/test_code_shape.py holds the limits.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
# Tokens that are no code: a line that has only these is blank, or a comment.
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}

# What is limited, per 1,000 lines of code or in all, with the words of the table.
PER_THOUSAND = ("comprehensions", "ternaries", "comments")
IN_ALL = ("nested comprehensions", "nested ternaries", "most parameters", "record splats", "bools as numbers")


@dataclass
class Shape:
    """The counts of one wing. `places` says where each counted thing stands."""

    lines: int = 0  # of code
    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    most_parameters: int = 0

    def add(self, name: str, place: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        self.places.setdefault(name, []).append(place)

    def __getitem__(self, name: str) -> int:
        """A figure of the table: rounded up where more is worse, down where more is better."""
        if name == "most parameters":
            return self.most_parameters
        count = self.counts.get(name, 0)
        if name not in PER_THOUSAND:
            return count
        per_thousand = 1000 * count / max(self.lines, 1)
        if name == "comments":
            return int(per_thousand)
        return -int(-per_thousand // 1)


def shape_of(paths: list[Path], apart: tuple[str, ...] = ()) -> Shape:
    """The counts over some files. `apart`: functions whose parameters are limited elsewhere."""
    shape = Shape()
    for path in paths:
        text = path.read_text()
        tree = ast.parse(text)
        documented = docstring_lines(tree)
        shape.lines += len(code_lines(text) - documented)
        for line in comment_lines(text):
            shape.add("comments", f"{path}:{line}")
        for node, inside in walk(tree):
            place = f"{path}:{getattr(node, 'lineno', 0)}"
            for name in kinds(node, inside):
                shape.add(name, place)
            if isinstance(node, FUNCTIONS) and getattr(node, "name", "lambda") not in apart:
                count = parameters(node)
                shape.places.setdefault("most parameters", []).append(f"{place} has {count}")
                shape.most_parameters = max(shape.most_parameters, count)
    return shape


def kinds(node: ast.AST, inside: list[ast.AST]) -> Iterator[str]:
    """What is counted of one node; `inside` are the nodes around it, the outermost first."""
    if isinstance(node, COMPREHENSIONS):
        yield "comprehensions"
        if any(isinstance(outer, COMPREHENSIONS) for outer in inside):
            yield "nested comprehensions"
    if isinstance(node, ast.IfExp):
        yield "ternaries"
        if any(isinstance(outer, ast.IfExp) for outer in inside):
            yield "nested ternaries"
    if isinstance(node, ast.Call) and is_constructor(node.func):
        splats = [argument for argument in node.args if isinstance(argument, ast.Starred)]
        if splats:
            yield "record splats"
    # [yes, no][a < b], and items[: a < b]
    if isinstance(node, ast.Subscript) and bool_as_index(node):
        yield "bools as numbers"
    # "text" * (a < b); a mask of a tensor looks the same as a factor, and counts
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and (is_bool(node.left) or is_bool(node.right)):
        yield "bools as numbers"


def bool_as_index(node: ast.Subscript) -> bool:
    """A bool between the brackets behind a literal, or as an end of a slice. `tensor[a < b]` is a
    mask, and is none."""
    if isinstance(node.slice, ast.Slice):
        ends = [end for end in (node.slice.lower, node.slice.upper) if end is not None]
        return any(is_bool(end) for end in ends)
    literal = isinstance(node.value, (ast.List, ast.Tuple, ast.Constant, ast.JoinedStr))
    return literal and is_bool(node.slice)


def is_constructor(function: ast.AST) -> bool:
    """A call of Name(...), module.Name(...) or cls(...)."""
    if isinstance(function, ast.Attribute):
        name = function.attr
    elif isinstance(function, ast.Name):
        name = function.id
    else:
        return False
    return name == "cls" or name.lstrip("_")[:1].isupper()


def is_bool(node: ast.AST) -> bool:
    """A comparison, `not`, `and`, `or`, or bool(...)."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "bool"
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, (ast.Compare, ast.BoolOp))


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> int:
    """How many arguments a function names, `self` and `cls` apart; *args and **kwargs count as one
    each."""
    named = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    if named and named[0].arg in ("self", "cls"):
        named = named[1:]
    return len(named) + bool(function.args.vararg) + bool(function.args.kwarg)


def walk(node: ast.AST, inside: list[ast.AST] | None = None) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
    """Every node of a tree, with the nodes around it up to the function it stands in."""
    inside = inside or []
    yield node, inside
    # what a lambda or an inner function holds is not nested in what is around it
    around = [] if isinstance(node, FUNCTIONS) else [*inside, node]
    for child in ast.iter_child_nodes(node):
        yield from walk(child, around)


def code_lines(text: str) -> set[int]:
    """The lines with a token that is neither layout nor comment."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def comment_lines(text: str) -> list[int]:
    """The lines with a comment, of their own or behind code. Orders to a linter are none."""
    lines = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# type:", "# fmt:")):
            lines.append(token.start[0])
    return lines


def docstring_lines(tree: ast.Module) -> set[int]:
    """The lines of docstrings, of modules, classes and functions."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if documented and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def wings(package: Path = ROOT / "labkit") -> dict[str, list[Path]]:
    """Wing -> its files. The files of the top floor are one wing, called "labkit"."""
    found: dict[str, list[Path]] = {}
    for path in sorted(package.rglob("*.py")):
        folder = path.relative_to(package).parts[0]
        name = folder if folder != path.name else "labkit"
        found.setdefault(name, []).append(path)
    return found


def table(shapes: dict[str, Shape]) -> str:
    """A row for each wing."""
    columns = (*PER_THOUSAND, *IN_ALL)
    heads = ["wing", "lines", *columns]
    rows = [heads]
    for wing, shape in shapes.items():
        rows.append([wing, str(shape.lines), *(str(shape[name]) for name in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]))
    return "\n".join(lines)


def main(names: list[str]) -> int:
    files = wings()
    unknown = [name for name in names if name not in files]
    if unknown:
        print(f"code_shape: no wing {unknown[0]!r}; there are {', '.join(files)}", file=sys.stderr)
        return 2
    shapes = {}
    for wing in names or files:
        shapes[wing] = shape_of(files[wing])
    print(table(shapes))
    for wing in names:
        for name, places in shapes[wing].places.items():
            if name not in ("comments", "most parameters"):
                print(f"\n{wing}: {name}", *places, sep="\n    ")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
