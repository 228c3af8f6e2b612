"""All functions and classes that live in this process, whoever holds them, against source files."""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from abc import ABCMeta
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .places import short
from .sameness import SUSPENDED, code_of, differ, difference
from .source import PLAIN, Body, Source, read

REPLACED = "an older class of this name is still in use"


class Found(NamedTuple):
    """Something that is not what the file says; `old` is the object, None for a value or a lack of the module's own."""

    module: str
    name: str
    where: str
    what: str
    old: Any


def compare(files: Mapping[str, tuple[str, Any]]) -> tuple[list[Found], int]:
    """What differs from these files, and the number of functions compared.

    files   path -> (name of the module, what compiles its source)
    """
    functions, classes = _alive(files)
    stale: list[Found] = []
    for file, (module, compiled_by) in files.items():
        where = short(file)
        try:
            source = read(Path(file).read_bytes(), file, compiled_by)
        except (SyntaxError, ValueError, OSError) as error:
            line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            text = f"the file cannot be compiled: {error.args[0] if error.args else error}"
            stale.append(Found(module, "", where + line, text, None))
            continue
        for thing in functions[file]:
            what, line = difference(thing, source)
            # torch.compile makes functions that go on in the middle of one of yours
            if what and not code_of(thing).co_name.startswith("torch_dynamo_resume_in_"):
                stale.append(Found(module, code_of(thing).co_qualname, where + line, what, thing))
        of_file = _bodies(module, file, classes[module], source)
        stale += [Found(module, name, where, what, old) for name, what, old in of_file]
    return stale, sum(len(functions[file]) for file in files)


def living(stale: list[Found]) -> list[Found]:
    """Without the old code that only waits for the garbage collector. Empties the list that it is given."""
    kept = [(found[:4], found.old if found.old is None else weakref.ref(found.old)) for found in stale]
    if stale:
        stale.clear()
        gc.collect()
    alive = [Found(*words, None if old is None else old()) for words, old in kept]
    return [found for found, (_, old) in zip(alive, kept, strict=True) if old is None or found.old is not None]


def differing(name: str, paths: Mapping[str, str], other: Path) -> str:
    """Which loaded functions of a top-level module differ from those of another copy of it, in words; "" for none."""
    base = Path(paths[name]).parent
    inside = [p for n, p in paths.items() if n.startswith(f"{name}.") and Path(p).is_relative_to(base)]
    pairs = {paths[name]: other} | {p: other.parent / Path(p).relative_to(base) for p in inside}
    functions, _ = _alive(pairs)
    found: set[str] = set()
    for file, there in pairs.items():
        try:
            source = read(there.read_bytes(), str(there))
        except (SyntaxError, ValueError, OSError):
            return f"{there.name} cannot be read there"
        found |= {code_of(f).co_qualname for f in functions[file] if difference(f, source)[0]}
    if not any(functions.values()):
        return ""
    return f"different in {', '.join(sorted(found)[:5])}" if found else "no function that is loaded differs"


def _alive(files: Collection[str]) -> tuple[dict[str, list[Any]], dict[str, list[type]]]:
    """The functions and suspended generators of these files, by file; and all classes, by module."""
    functions: dict[str, list[Any]] = defaultdict(list)
    classes: dict[str, list[type]] = defaultdict(list)
    for thing in gc.get_objects():
        kind = type(thing)
        if kind is types.FunctionType or kind in SUSPENDED:
            if (code := code_of(thing)).co_filename in files:
                functions[code.co_filename].append(thing)
        elif issubclass(kind, type) and isinstance(module := vars(thing).get("__module__"), str):
            classes[module].append(thing)
    return functions, classes


def _bodies(module: str, file: str, classes: Iterable[type], source: Source) -> Iterator[tuple[str, str, Any]]:
    """Of a module and its classes: what the file defines and they lack, other plain values, classes replaced since."""
    top = sys.modules[module]
    complete = module not in ("__main__", "__mp_main__") and not getattr(top.__spec__, "_initializing", False)
    if type(top) is types.ModuleType and complete and "__getattr__" not in vars(top):
        yield from _lacking("", vars(top), source.bodies[""], None)
        yield from _values("", vars(top), source.bodies[""], None)
    for one in classes:
        name, space = one.__qualname__, vars(one)
        if name not in source.bodies or type(one) not in (type, ABCMeta):
            continue
        now: Any = functools.reduce(lambda at, part: getattr(at, part, None), name.split("."), top)  # type: ignore
        same_name = isinstance(now, type) and (now.__module__, now.__qualname__) == (module, name)
        old = one if same_name and now is not one else None
        # a decorator may make the class anew: its first form is nobody's type
        if old and any(type(holder) is old for holder in gc.get_referrers(old)):
            yield name, REPLACED, old
        own = (f.__code__ for f in space.values() if isinstance(f, types.FunctionType))
        if any((code.co_filename, code.co_qualname) == (file, f"{name}.{code.co_name}") for code in own):
            yield from _lacking(f"{name}.", space, source.bodies[name], old)
        yield from _values(f"{name}.", space, source.bodies[name], old)


def _lacking(dot: str, space: Mapping[str, Any], body: Body, old: Any) -> Iterator[tuple[str, str, Any]]:
    for name in sorted(n for n in body.names - set(space) if not n.startswith("__")):
        yield dot + name, "in the file, and not loaded", old


def _values(dot: str, space: Mapping[str, Any], body: Body, old: Any) -> Iterator[tuple[str, str, Any]]:
    fields = space.get("__dataclass_fields__", {})
    for name, there in body.values.items():
        here = [space.get(name), getattr(fields.get(name), "default", None)]
        values = [value for value in here if type(value) in PLAIN]
        if values and all(differ(value, there) for value in values):
            yield dot + name, f"it is {values[0]!r}, in the file {there!r}", old
