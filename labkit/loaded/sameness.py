"""Is a live function what the file says? Code objects are compared, and defaults that are plain values."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from typing import Any

from .source import NOT_PLAIN, PLAIN, Source

SUSPENDED = {types.GeneratorType: "gi_code", types.CoroutineType: "cr_code", types.AsyncGeneratorType: "ag_code"}
# Flags that say nothing of what runs: has a docstring (Python 3.13 and on); marked by `types.coroutine`
ASIDE = 0x4000000 | 0x100
# Python 3.13 and on: where a class was written, which its body stores
LINES = [("STORE_NAME", "__firstlineno__"), ("STORE_NAME", "__static_attributes__")]


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
    found = list(dis.get_instructions(code))
    stored = [(i.opname, i.argval) for i in found[1:]] + [("", "")]
    kept = [i for i, then in zip(found, stored, strict=True) if i.opname != "PUSH_NULL" and then not in LINES]
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


def difference(thing: Any, source: Source) -> tuple[str, str]:
    """How a live function, or a suspended generator, differs from the file ("" if not at all), and the line there."""
    code = code_of(thing)
    candidates = source.codes.get(code.co_qualname, [])
    if not candidates:
        return "no longer in the file", ""
    line = f":{candidates[0].co_firstlineno}" if len(candidates) == 1 else ""
    equal = [c for c in candidates if same(code, c)]
    if not equal:
        return "its code is not the file's", line
    others = [_other_default(thing, source.defaults.get((c.co_qualname, c.co_firstlineno))) for c in equal]
    return (others[0] if all(others) else ""), line


def _other_default(thing: Any, there: dict[str, Any] | None) -> str:
    if there is None or not isinstance(thing, types.FunctionType):
        return ""
    positional, values = thing.__code__.co_varnames[: thing.__code__.co_argcount], thing.__defaults__ or ()
    here = dict(zip(positional[len(positional) - len(values) :], values, strict=False)) | (thing.__kwdefaults__ or {})
    if here.keys() != there.keys():
        return f"defaults for ({', '.join(here)}), in the file for ({', '.join(there)})"
    differing = [name for name in here if differ(here[name], there[name])]
    return ", ".join(f"default of {n} is {here[n]!r}, in the file {there[n]!r}" for n in differing)


def differ(here: Any, there: Any) -> bool:
    """Whether two plain values differ; an expression on one side decides nothing."""
    return there is not NOT_PLAIN and type(here) in PLAIN and (type(here), repr(here)) != (type(there), repr(there))


def code_of(thing: Any) -> types.CodeType:
    return thing.__code__ if type(thing) is types.FunctionType else getattr(thing, SUSPENDED[type(thing)])
