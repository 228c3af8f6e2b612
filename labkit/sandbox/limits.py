"""What a child may use, and in which environment it runs: `Limits`. It only holds and checks them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Limits:
    """The limits of a child. `run`, `start` and `run_all` take them by name, or a ready one as `limits=Limits(...)`.

    timeout  seconds, from when the child is ready to run; then it is killed (signature `timeout`), and
             `Outcome.traceback` says where it was; None for no limit
    env      environment variables for the child, on top of the caller's; None removes one
    fresh    True for a fresh interpreter in place of a fork; None takes one when `env` changes a variable that is
             read at import time (`IMPORT_TIME` in server.py); its imports count as run time

    Raises: TypeError or ValueError names the field.
    """

    timeout: float | None = None
    env: Mapping[str, str | None] | None = None
    fresh: bool | None = None

    def __post_init__(self) -> None:
        timeout, env = self.timeout, self.env
        if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
            raise ValueError(f"timeout: expected seconds above 0, or None for no limit, got {timeout!r}")
        if self.fresh not in (None, True, False):
            raise TypeError(f"fresh: expected True, False or None, got {self.fresh!r}")
        if not isinstance(env, Mapping | None):
            raise TypeError(f"env: expected a dict of environment variables, got {env!r:.80}")
        for name, value in (env or {}).items():
            if not isinstance(name, str) or not name or "=" in name:
                raise ValueError(f"env: {name!r} is not a variable's name")
            if not isinstance(value, str | None):
                raise TypeError(f"env: {name} must be a string, or None to remove it, got {value!r}")

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
