"""What a source file defines, read without running it: code objects, defaults, and plain values.

A default or a constant is compared only where it is a literal that nothing can change in place, such as `1e-4`.
"""

from __future__ import annotations

import ast
import functools
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

PLAIN = (int, float, complex, str, bytes, bool)
NOT_PLAIN = object()  # stands for a default or a value that is an expression
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass
class Body:
    """What the body of a module or a class certainly defines: names of functions and classes, and plain values."""

    names: set[str] = field(default_factory=set)
    values: dict[str, Any] = field(default_factory=dict)


@dataclass
class Source:
    """A source file: the code objects of each qualified name, their defaults by name and line, and bodies by name."""

    codes: dict[str, list[types.CodeType]] = field(default_factory=lambda: defaultdict(list))
    defaults: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    bodies: dict[str, Body] = field(default_factory=dict)  # "" is the module's


def compiled(data: bytes, file: str) -> types.CodeType:
    """What an ordinary import compiles."""
    return compile(data, file, "exec", dont_inherit=True)


@functools.lru_cache(maxsize=4096)
def read(data: bytes, file: str, compiled_by: Callable[..., types.CodeType] = compiled) -> Source:
    """The file as `compiled_by` compiles it. Raises: SyntaxError or ValueError when it cannot."""
    source, tree, whole = Source(), ast.parse(data), compiled_by(data, file)
    for code in nested(whole):
        source.codes[code.co_qualname].append(code)
    changed: set[str] = set()  # names that are taken away, or set from inside a function
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            changed.update(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            changed.add(node.id)
    _read_body(tree.body, "", source.bodies.setdefault("", Body()), source, changed)
    return source


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object, and all that it makes functions, classes and comprehensions of."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from nested(const)


def _read_body(statements: list[ast.stmt], prefix: str, body: Body | None, source: Source, changed: set[str]) -> None:
    """Read statements into `body`; None where they may not run, or make names that are local to a function."""
    for node in statements:
        if isinstance(node, ast.ClassDef):
            inner = None if body is None else source.bodies.setdefault(prefix + node.name, Body())
            _read_body(node.body, f"{prefix}{node.name}.", inner, source, changed)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first_line = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            source.defaults[prefix + node.name, first_line] = _defaults(node.args)
            _read_body(node.body, f"{prefix}{node.name}.<locals>.", None, source, changed)
        else:
            blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            blocks += [case.body for case in (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))]
            for block in blocks:
                _read_body(block, prefix, None, source, changed)
    if body is not None:
        body.names = {node.name for node in statements if isinstance(node, DEFINITIONS)} - changed
        body.values = {name: _plain(value) for name, value in _assigned(statements) if name not in changed}


def _assigned(statements: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a body binds in one place only, by an assignment, and what to."""
    bound = (n.id for s in statements for n in _outside(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    times = Counter(bound)
    for node in statements:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and times[target.id] == 1:
                    yield target.id, node.value


def _outside(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement that are not inside a function or class."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*DEFINITIONS, ast.Lambda)):
            yield from _outside(child)


def _defaults(args: ast.arguments) -> dict[str, Any]:
    positional = [a.arg for a in (*args.posonlyargs, *args.args)]
    given = dict(zip(positional[len(positional) - len(args.defaults) :], args.defaults, strict=True))
    given |= {a.arg: d for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is not None}
    return {name: _plain(value) for name, value in given.items()}


def _plain(node: ast.AST | None) -> Any:
    """The value of a literal that cannot be changed in place, else NOT_PLAIN."""
    try:
        value = ast.literal_eval(node) if isinstance(node, ast.expr) else NOT_PLAIN
    except (ValueError, TypeError):
        return NOT_PLAIN
    return value if type(value) in PLAIN else NOT_PLAIN
