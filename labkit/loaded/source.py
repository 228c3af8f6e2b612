"""What a source file defines, read without running it, and whether a live function is what it says.

A default or a constant is compared only where it is a literal that nothing can change in place, such as `1e-4`.
"""

from __future__ import annotations

import ast
import dis
import functools
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

PLAIN = (int, float, complex, str, bytes, bool)
NOT_PLAIN = object()  # stands for a default or a value that is an expression
# Flags that say nothing of what runs: has a docstring (Python 3.13 and on); marked by `types.coroutine`
ASIDE = 0x4000000 | 0x100
# Python 3.13 and on: where a class was written, which its body stores
LINES = [("STORE_NAME", "__firstlineno__"), ("STORE_NAME", "__static_attributes__")]


@dataclass
class Source:
    """What a file defines.

    codes      qualified name -> code objects
    defaults   (name, first line) of a function -> the defaults of its arguments
    values     name -> plain value, of the names that the module binds in one place only
    """

    codes: dict[str, list[types.CodeType]]
    defaults: dict[tuple[str, int], dict[str, Any]]
    values: dict[str, Any]


@functools.lru_cache(maxsize=4096)
def read(data: bytes, file: str) -> Source:
    """The file as an import compiles it. Raises: SyntaxError or ValueError when it cannot be compiled."""
    tree = ast.parse(data)
    source = Source(defaultdict(list), {}, _values(tree))
    for code in _nested(compile(data, file, "exec", dont_inherit=True)):
        source.codes[code.co_qualname].append(code)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first_line = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            source.defaults[node.name, first_line] = _defaults(node.args)
    return source


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object, and all that it makes functions, classes and comprehensions of."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _nested(const)


def _values(module: ast.Module) -> dict[str, Any]:
    """Names that the module assigns a literal to, and that nothing inside it binds, changes or deletes again."""
    bound: Counter[str] = Counter()
    for inner in ast.walk(module):
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
            bound[inner.id] += 1
    values: dict[str, Any] = {}
    for statement in module.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                if isinstance(target, ast.Name) and bound[target.id] == 1:
                    values[target.id] = _plain(statement.value)
    return values


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


def same(one: types.CodeType, other: types.CodeType) -> bool:
    """Whether two code objects do the same: lines, columns, file and docstring do not count."""
    return _bytes(one) == _bytes(other) or _steps(one) == _steps(other)


def _bytes(code: types.CodeType) -> tuple[Any, ...]:
    constants = _constant(code.co_consts, _bytes)
    return (*_shape(code), code.co_code, code.co_exceptiontable, code.co_names, constants)


def _steps(code: types.CodeType) -> tuple[Any, ...]:
    """Instruction by instruction, with jumps counted in instructions.

    A docstring that came or went moves the numbers of the other constants. And a call of an imported module's function
    is compiled in another way where the import is out of sight, as it is for %autoreload, which compiles it alone.
    """
    instructions = list(dis.get_instructions(code))
    stored = [(i.opname, i.argval) for i in instructions[1:]] + [("", "")]
    kept = [i for i, then in zip(instructions, stored, strict=True) if i.opname != "PUSH_NULL" and then not in LINES]
    jumps = {*dis.hasjrel, *dis.hasjabs}
    steps = []
    for i in kept:
        name = "LOAD_ATTR" if i.opname == "LOAD_METHOD" else i.opname
        to = sum(other.offset < i.argval for other in kept) if i.opcode in jumps else i.argval
        steps.append((name, _constant(to, _steps)))
    return (*_shape(code), *steps)


def _shape(code: types.CodeType) -> tuple[Any, ...]:
    counts = (code.co_posonlyargcount, code.co_argcount, code.co_kwonlyargcount, code.co_flags & ~ASIDE)
    return (*counts, code.co_varnames, code.co_freevars, code.co_cellvars)


def _constant(value: Any, of_code: Callable[[types.CodeType], Any]) -> Any:
    """A constant together with its type, since 1 == 1.0 == True."""
    if isinstance(value, types.CodeType):
        return of_code(value)
    if isinstance(value, (tuple, frozenset)):
        return type(value)(_constant(v, of_code) for v in value)
    return type(value).__name__, repr(value)


def difference(function: types.FunctionType, source: Source) -> tuple[str, str]:
    """How a live function differs from the file ("" if not at all), and the line there."""
    code = function.__code__
    candidates = source.codes.get(code.co_qualname, [])
    if not candidates:
        return "no longer in the file", ""
    line = f":{candidates[0].co_firstlineno}" if len(candidates) == 1 else ""
    equal = [c for c in candidates if same(code, c)]
    if not equal:
        return "its code is not the file's", line
    others = [_other_default(function, source.defaults.get((c.co_name, c.co_firstlineno))) for c in equal]
    return (others[0] if all(others) else ""), line


def _other_default(function: types.FunctionType, in_file: dict[str, Any] | None) -> str:
    if in_file is None:
        return ""
    code, values = function.__code__, function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    here = dict(zip(positional[len(positional) - len(values) :], values, strict=False))
    here |= function.__kwdefaults__ or {}
    if here.keys() != in_file.keys():
        return f"defaults for ({', '.join(here)}), in the file for ({', '.join(in_file)})"
    differing = [name for name in here if other_value(here[name], in_file[name])]
    return ", ".join(f"default of {n} is {here[n]!r}, in the file {in_file[n]!r}" for n in differing)


def other_value(here: Any, in_file: Any) -> bool:
    """Whether two plain values differ; an expression on one side decides nothing."""
    same_text = (type(here), repr(here)) == (type(in_file), repr(in_file))
    return in_file is not NOT_PLAIN and type(here) in PLAIN and not same_text
