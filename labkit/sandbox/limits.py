"""What a child may use, and in which environment it runs: `Limits`. It only holds and checks them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Limits:
    """The limits of a child. `run`, `start` and `run_all` take them by name, or a ready one as `limits=Limits(...)`.

    timeout       seconds, from when the child is ready to run; then it is killed (signature `timeout`), and
                  `Outcome.traceback` says where it was; None for no limit
    env           environment variables for the child, on top of the caller's; None removes one
    memory_limit  bytes of private writable memory (RLIMIT_DATA: heap, anonymous maps, thread stacks; not CUDA memory)
                  that the child may add to what it starts with; beyond it allocation fails and the signature is
                  `oom`; None for no limit; Linux only
    fresh         True for a fresh interpreter in place of a fork; None takes one when `env` changes a variable that
                  is read at import time (`IMPORT_TIME` in server.py); its imports count as run time

    Raises: TypeError or ValueError names the field.
    """

    timeout: float | None = None
    env: Mapping[str, str | None] | None = None
    memory_limit: int | None = None
    fresh: bool | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not (_is_number(self.timeout) and 0 < self.timeout < math.inf):
            raise ValueError(f"timeout: expected seconds above 0, or None for no limit, got {self.timeout!r}")
        if self.memory_limit is not None:
            _check_memory_limit(self.memory_limit)
        if self.fresh not in (None, True, False):
            raise TypeError(f"fresh: expected True, False or None, got {self.fresh!r}")
        if self.env is not None:
            _check_env(self.env)

    @classmethod
    def take(cls, settings: Mapping[str, Any]) -> tuple[Limits, dict[str, Any]]:
        """Part keyword arguments into the limits among them and the rest, which is the function's.

        Where `limits` is among them, the limits given by name go over it.
        """
        rest = dict(settings)
        ready = rest.pop("limits", None)
        if not isinstance(ready, Limits | None):
            raise TypeError(f"limits: expected Limits(...), got {ready!r}")
        named = {field.name: rest.pop(field.name) for field in fields(cls) if field.name in rest}
        return replace(ready or cls(), **named), rest


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_memory_limit(limit: Any) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit <= 0:
        raise ValueError(f"memory_limit: expected bytes above 0, or None for no limit, got {limit!r}")
    if sys.platform != "linux":
        raise ValueError("memory_limit: only Linux can hold a process to it; pass None here")


def _check_env(env: Any) -> None:
    if not isinstance(env, Mapping):
        raise TypeError(f"env: expected a dict of environment variables, got {type(env).__name__}")
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise ValueError(f"env: {name!r} is not a variable's name")
        if value is not None and (not isinstance(value, str) or "\0" in value):
            raise TypeError(f"env: {name} must be a string, or None to remove it, got {value!r}")
