"""All functions and classes that live in this process, whoever holds them, against source files."""

from __future__ import annotations

import gc
import sys
import types
from abc import ABCMeta
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .places import short
from .source import PLAIN, Source, differ, difference, read


class Difference(NamedTuple):
    """Something that is not what the file says; `old` is the object, None for a value of the module's own."""

    module: str
    name: str
    where: str
    what: str
    old: Any


def differences(files: Mapping[str, str]) -> tuple[list[Difference], int]:
    """What differs from these files, and the number of functions compared. `files`: path -> name of the module."""
    functions, classes = _alive(files)
    stale: list[Difference] = []
    for file, module in files.items():
        where = short(file)
        try:
            source = read(Path(file).read_bytes(), file)
        except (SyntaxError, ValueError, OSError) as error:
            line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            text = f"the file cannot be compiled: {error.args[0] if error.args else error}"
            stale.append(Difference(module, "", where + line, text, None))
            continue
        for function in functions[file]:
            what, line = difference(function, source)
            # torch.compile makes functions that go on in the middle of one of yours
            if what and not function.__code__.co_name.startswith("torch_dynamo_resume_in_"):
                stale.append(Difference(module, function.__code__.co_qualname, where + line, what, function))
        for name, what, old in _other_values(sys.modules[module], classes[module], source):
            stale.append(Difference(module, name, where, what, old))
    return stale, sum(len(functions[file]) for file in files)


def _alive(files: Collection[str]) -> tuple[dict[str, list[types.FunctionType]], dict[str, list[type]]]:
    """The functions of these files, by file; and all classes, by module."""
    functions: dict[str, list[types.FunctionType]] = defaultdict(list)
    classes: dict[str, list[type]] = defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is types.FunctionType:
            if thing.__code__.co_filename in files:
                functions[thing.__code__.co_filename].append(thing)
        elif issubclass(type(thing), type) and isinstance(module := vars(thing).get("__module__"), str):
            classes[module].append(thing)
    return functions, classes


def _other_values(module: types.ModuleType, classes: list[type], source: Source) -> Iterator[tuple[str, str, Any]]:
    """(name, how it differs, the class if it is not the module's any more) of plain values that the file has too."""
    yield from _values("", vars(module), source, None)
    for one in classes:
        if type(one) in (type, ABCMeta):  # another metaclass may make other values of those in the file
            now: Any = module
            for part in one.__qualname__.split("."):
                now = getattr(now, part, None)
            yield from _values(one.__qualname__, vars(one), source, None if now is one else one)


def _values(name: str, space: Mapping[str, Any], source: Source, old: Any) -> Iterator[tuple[str, str, Any]]:
    for value_name, there in source.values.get(name, {}).items():
        here = space.get(value_name)
        if type(here) in PLAIN and differ(here, there):
            yield f"{name}.{value_name}".lstrip("."), f"it is {here!r}, in the file {there!r}", old
