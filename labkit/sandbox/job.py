"""What a child is sent: a call, pickled, and where the caller stands. And how what only code can say is pickled.

`worker.main` is the other end.
"""

from __future__ import annotations

import importlib
import inspect
import io
import linecache
import math
import os
import pickle
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import cloudpickle


class Job:
    """`function(*args, **kwargs)`, ready to travel, and the environment it is to run in.

    settings  the keyword arguments of the function, and with them `timeout`, `env` and `fresh` as `run` has them
    threads   CPU threads of torch in the child; None: as many as torch takes

    Raises: TypeError or ValueError names what is no function of events, what is no limit, or what cannot be pickled.
    """

    def __init__(self, function: Any, args: tuple[Any, ...], settings: Mapping[str, Any], threads: int | None = None):
        _check_function(function)
        kwargs = dict(settings)
        self.timeout = kwargs.pop("timeout", None)
        env = kwargs.pop("env", None)
        self.fresh = kwargs.pop("fresh", None)
        _check_limits(self.timeout, env, self.fresh)
        variables = {**os.environ, **(env or {})}
        self.environment = {name: text for name, text in variables.items() if text is not None}
        # what a `Run` says about the call
        self.meta: dict[str, Any] = {
            "function": getattr(function, "__qualname__", type(function).__name__),
            "settings": {k: v for k, v in kwargs.items() if isinstance(v, bool | int | float | str | None)},
        }
        # linecache's entries that no file backs are notebook cells; with them the child's tracebacks show their lines
        cells = {name: entry for name, entry in list(linecache.cache.items()) if len(entry) == 4 and entry[1] is None}
        task = {
            "call": _pickle_call(function, args, kwargs),
            "directory": os.getcwd(),
            "path": list(sys.path),
            "environment": self.environment,
            "threads": threads,
            "sources": cells,
        }
        self.pickled = pickle.dumps(task, 5)


def _check_limits(timeout: Any, env: Any, fresh: Any) -> None:
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
        raise ValueError(f"timeout: expected seconds above 0, or None for no limit, got {timeout!r}")
    if fresh not in (None, True, False):
        raise TypeError(f"fresh: expected True, False or None, got {fresh!r}")
    if not isinstance(env, Mapping | None):
        raise TypeError(f"env: expected a dict of environment variables, got {env!r:.80}")
    for name, text in (env or {}).items():
        if not isinstance(name, str) or not name or "=" in name:
            raise ValueError(f"env: {name!r} is not a variable's name")
        if not isinstance(text, str | None):
            raise TypeError(f"env: {name} must be a string, or None to remove it, got {text!r}")


def _check_function(function: Any) -> None:
    if inspect.isgenerator(function):
        raise TypeError(
            f"function: got the generator {function.__name__}(...), already started here; pass the function and "
            f"its arguments apart, as in run({function.__name__}, ...)"
        )
    if not callable(function):
        raise TypeError(f"function: expected a function of events, got {type(function).__name__} {function!r:.80}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"function: {function.__name__} is async; pass a plain function or a generator function")


def _pickle_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    try:
        return by_value((function, args, kwargs))
    except Exception:
        operands = {"the function": function}
        operands |= {f"argument {number}": value for number, value in enumerate(args, 1)}
        operands |= {f"argument {name!r}": value for name, value in kwargs.items()}
        for name, value in operands.items():
            try:
                by_value(value)
            except Exception as error:
                raise TypeError(
                    f"{name}, {value!r:.80}, cannot be sent to the sandbox: {error}. "
                    "Build models, files and locks inside the function"
                ) from error
        raise


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Cloudpickle, with one more kind of object: a module whose class is its own.

    `torch.backends` and `torch.backends.cudnn` are such modules (2.13), and transformers' lazy ones. Cloudpickle takes
    a plain module by its name and refuses these ("cannot pickle 'GenericModule' object"), so that a notebook function
    which says `torch.backends.cuda.matmul` could not travel. Here every module that can be imported goes by its name.
    """

    def reducer_override(self, value: Any) -> Any:
        name = value.__name__ if issubclass(type(value), ModuleType) else ""
        if name and sys.modules.get(name) is value:
            return importlib.import_module, (name,)
        return super().reducer_override(value)


def by_value(value: Any) -> bytes:
    """The pickle of a value. Functions and classes of `__main__` go as their code, modules by their names.

    Raises: what pickle and cloudpickle raise for what cannot travel.
    """
    with io.BytesIO() as file:
        _Pickler(file, 5).dump(value)
        return file.getvalue()
