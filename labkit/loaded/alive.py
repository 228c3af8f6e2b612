"""All functions that live in this process, whoever holds them, and the values of modules, against source files."""

from __future__ import annotations

import gc
import sys
import types
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .places import short
from .report import Stale
from .source import difference, other_value, read


def differences(files: Mapping[str, str]) -> tuple[list[tuple[Stale, Any]], int]:
    """What differs from these files, each with the old function, and the number of functions compared.

    files   path -> name of the module
    """
    functions: dict[str, list[types.FunctionType]] = defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is types.FunctionType and thing.__code__.co_filename in files:
            functions[thing.__code__.co_filename].append(thing)
    stale: list[tuple[Stale, Any]] = []
    for file, module in files.items():
        where = short(file)
        try:
            source = read(Path(file).read_bytes(), file)
        except (SyntaxError, ValueError, OSError) as error:
            line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            text = f"the file cannot be compiled: {error.msg if isinstance(error, SyntaxError) else error}"
            stale.append((Stale(module, "", where + line, text), None))
            continue
        for function in functions[file]:
            what, line = difference(function, source)
            # torch.compile makes functions that go on in the middle of one of yours
            if what and not function.__code__.co_name.startswith("torch_dynamo_resume_in_"):
                stale.append((Stale(module, function.__code__.co_qualname, where + line, what), function))
        for name, value in source.values.items():
            here = vars(sys.modules[module]).get(name)
            if other_value(here, value):
                stale.append((Stale(module, name, where, f"it is {here!r}, in the file {value!r}"), None))
    return stale, sum(map(len, functions.values()))
