"""A lesson's code as one hash, so that a recording knows when the lesson has changed under it.

What counts is the syntax tree of the code cells: comments, blank lines and formatting do not change the hash, one
level of indentation does. Left out are cells tagged `exercise` (they belong to the learner) or `injected-parameters`
(papermill's), and statements that only talk to the reader: `labkit.recording(...)`, `labkit.predict(...)`,
`labkit.exercise(...)`, `labkit.show(...)`. The hash is the same on every Python version. Nothing is executed.
"""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path
from typing import Any

TALK = {"recording", "predict", "exercise", "show"}  # labkit.<one of these>(...) as a statement of its own
NOT_OURS = {"exercise", "injected-parameters"}  # cell tags
_VARIES = {
    "ctx",
    "kind",
    "type_comment",
    "type_params",
}  # fields that say nothing new, or not in every version


def code_hash(notebook: str | Path) -> str:
    """`sha256:` and 64 hexadecimal digits for the code cells of a notebook file. ValueError when it is not one."""
    try:
        cells = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]
        code = [c for c in cells if c["cell_type"] == "code"]
        ours = [c for c in code if not NOT_OURS & set(c["metadata"].get("tags", []))]
        meaning = [_meaning("".join(c["source"])) for c in ours]
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ValueError(f"{notebook}: cannot be read as a notebook ({error})") from None
    text = "\n".join(cell for cell in meaning if cell)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _meaning(source: str) -> str:
    """One cell's syntax tree as text; where it is not Python (a magic), its lines without trailing blanks."""
    try:
        tree = compile(source, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
    except (SyntaxError, ValueError):
        return "\n".join(line.rstrip() for line in source.splitlines() if line.strip())
    assert isinstance(tree, ast.Module)
    return "\n".join(_dump(statement) for statement in tree.body if not _talks(statement))


def _talks(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    function = call.func if isinstance(call, ast.Call) else None
    return (
        isinstance(function, ast.Attribute)
        and function.attr in TALK
        and isinstance(function.value, ast.Name)
        and function.value.id == "labkit"
    )


def _dump(node: Any) -> str:
    """Like `ast.dump`, whose text differs between Python versions: empty and absent fields are left out here."""
    if isinstance(node, ast.JoinedStr):  # Python 3.12 puts empty texts between the parts of an f-string
        parts = [p for p in node.values if not (isinstance(p, ast.Constant) and p.value == "")]
        return f"JoinedStr({_dump(parts)})"
    if isinstance(node, ast.AST):
        fields = [(n, v) for n, v in ast.iter_fields(node) if n not in _VARIES and v is not None and v != []]
        return f"{type(node).__name__}({','.join(f'{n}={_dump(v)}' for n, v in fields)})"
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    return repr(node)
