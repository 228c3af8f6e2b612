"""What a child is sent: a call, pickled, and where the caller stands. `worker.read_job` is the other end."""

from __future__ import annotations

import inspect
import linecache
import os
import pickle
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from .limits import Limits


class Job:
    """`function(*args, **kwargs)`, ready to travel, and the environment it is to run in.

    Raises: TypeError names what is no function of events, or what cannot be pickled.
    """

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], limits: Limits):
        _check_function(function)
        self.fresh = limits.fresh
        wanted = {**os.environ, **(limits.env or {})}
        self.environment = {name: text for name, text in wanted.items() if text is not None}
        self.meta = _meta(function, kwargs, limits)
        self._task = {
            "call": _pickle_call(function, args, kwargs),
            "memory_limit": limits.memory_limit,
            "directory": _directory(),
            "path": list(sys.path),
            "sources": _cell_sources(),
        }

    def write(self, file: Any, environment: Mapping[str, str | None]) -> None:
        """Write the whole of `file`. `environment` is the change to what the child's process is born with."""
        file.seek(0)
        file.truncate()
        file.write(pickle.dumps({**self._task, "environment": dict(environment)}, 5))
        file.flush()
        file.seek(0)


def job_file() -> Any:
    """An open file without a name, which takes a job to the child and its traceback back."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("labkit-job"), "w+b")
    return tempfile.TemporaryFile()


def _check_function(function: Any) -> None:
    if inspect.isgenerator(function):
        raise TypeError(
            f"function: got the generator {function.__name__}(...), already started here; pass the function and "
            f"its arguments apart, as in run({function.__name__}, ...)"
        )
    if not callable(function):
        raise TypeError(
            f"function: expected a function of events, got {type(function).__name__} {function!r:.80}"
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"function: {function.__name__} is async; pass a plain function or a generator function"
        )


def _pickle_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps((function, args, kwargs), 5)
    except Exception as error:
        operands = {"the function": function}
        operands |= {f"argument {number}": value for number, value in enumerate(args, 1)}
        operands |= {f"argument {name!r}": value for name, value in kwargs.items()}
        stuck = (f"{name}, {value!r:.80}," for name, value in operands.items() if not _travels(value))
        raise TypeError(
            f"{next(stuck, 'the call')} cannot be sent to the sandbox: {error}. "
            "Build models, files and locks inside the function"
        ) from error


def _travels(value: Any) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(value, 5)
    except Exception:
        return False
    return True


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _cell_sources() -> dict[str, Any]:
    """linecache's entries that no file backs (notebook cells), so that the child's tracebacks show their lines."""
    return {
        name: entry
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and entry[1] is None and name.startswith(("<", tempfile.gettempdir()))
    }


def _meta(function: Any, kwargs: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """What a `Run` says about the call: the plain settings, and the limits that were asked for."""
    plain = (bool, int, float, str, type(None))
    asked = {**vars(limits), "env": dict(limits.env) if limits.env else None}
    return {
        "function": getattr(function, "__qualname__", type(function).__name__),
        "settings": {name: value for name, value in kwargs.items() if isinstance(value, plain)},
        **{name: value for name, value in asked.items() if value is not None},
    }
