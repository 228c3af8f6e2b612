"""Code as a hash, so that a recording knows when the lesson, or labkit, has changed under it.

What counts is the syntax tree: comments, docstrings, blank lines and formatting do not change the hash, one level of
indentation does. Of a lesson, cells tagged `exercise` or `injected-parameters` (papermill's) do not count, nor do
statements that only talk to the reader. Of labkit, every module counts that can have a part in a number. The hashes are
the same on every Python version. Nothing is executed.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from labkit import lessons

# labkit.<one of these>(...), as a statement of its own.
TALK = {"recording", "predict", "exercise", "show"}
# Tags of cells, and modules of labkit, that do not count.
NOT_OURS = {"exercise", "injected-parameters"}
NOT_COMPUTING = {"__main__", "checkpoints", "course", "display", "doctor", "lessons", "recordings"}
_PACKAGE = Path(__file__).resolve().parent.parent
# Fields that say nothing new, or are not there in every version.
_VARIES = {"ctx", "kind", "type_comment", "type_params"}


def lesson_hash(notebook: str | Path) -> str:
    """`sha256:` and 64 hexadecimal digits for the code cells of a notebook file. Raises: ValueError when it is none."""
    code = [cell for cell in lessons.cells(Path(notebook)) if cell.kind == "code"]
    meanings = [_meaning(cell.source) for cell in code if not cell.tags & NOT_OURS]
    return _hash(meaning for meaning in meanings if meaning)


def labkit_hash(package: Path = _PACKAGE) -> str:
    """The same for the computing modules of labkit, which a lesson's numbers come from."""
    names = [path.relative_to(package) for path in package.rglob("*.py")]
    ours = sorted(n.as_posix() for n in names if n.with_suffix("").parts[0] not in NOT_COMPUTING)
    trees = [ast.parse((package / name).read_text(encoding="utf-8")) for name in ours]
    return _hash(f"{name} {_dump(tree)}" for name, tree in zip(ours, trees, strict=True))


def _hash(parts: Iterable[str]) -> str:
    return "sha256:" + hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _meaning(source: str) -> str:
    """One cell's syntax tree as text; where it is not Python (a magic), its lines without trailing blanks."""
    try:
        tree = compile(source, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
    except (SyntaxError, ValueError):
        return "\n".join(line.rstrip() for line in source.splitlines() if line.strip())
    assert isinstance(tree, ast.Module)
    return "\n".join(_dump(statement) for statement in tree.body if not _talks(statement))


def _talks(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("labkit"), name))) if name in TALK:
            return True
    return False


def _dump(node: Any) -> str:
    """Like `ast.dump`, whose text differs between Python versions: empty and absent fields are left out here."""
    if isinstance(node, ast.JoinedStr):  # Python 3.12 puts empty texts between the parts of an f-string
        parts = [p for p in node.values if not (isinstance(p, ast.Constant) and p.value == "")]
        return f"JoinedStr({_dump(parts)})"
    if isinstance(node, ast.AST):
        fields = [(n, v) for n, v in _fields(node) if n not in _VARIES and v is not None and v != []]
        return f"{type(node).__name__}({','.join(f'{n}={_dump(v)}' for n, v in fields)})"
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    return repr(node)


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Name and value of each field; a body without its docstring."""
    for name, value in ast.iter_fields(node):
        match value:
            case [ast.Expr(ast.Constant(str())), *rest] if name == "body":
                yield name, rest
            case _:
                yield name, value
