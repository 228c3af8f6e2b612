"""Cloudpickle, with one more kind of object: a module whose class is its own.

`torch.backends` and `torch.backends.cudnn` are such modules (2.13), and transformers' lazy ones. Cloudpickle takes a
plain module by its name and refuses these ("cannot pickle 'GenericModule' object"), so that a notebook function which
says `torch.backends.cuda.matmul` could not travel. Here every module that can be imported goes by its name.
"""

from __future__ import annotations

import importlib
import io
import sys
from types import ModuleType
from typing import Any

import cloudpickle


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
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
