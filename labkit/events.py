"""A run is a stream of events: the records that every other part of the lab reads or writes.

`Step` is one optimizer step. `Outcome` is how the process that produced the steps ended. `Run` is both,
plus what was asked for. This file does **not** train, draw, or touch torch.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .common import write_whole

NAN = float("nan")

# Names on the left are fields of `Step`; names on the right are what TRL writes in `trainer_state.json`.
TRL_NAMES = {"mean_length": "completions/mean_length"}


@dataclass(frozen=True)
class Step:
    """One optimizer step. Absent measurements are NaN (floats) or -1 (counts), never a made-up value.

    Names follow TRL's log where TRL has one (trl 1.16, `GRPOTrainer`).
    """

    step: int  # optimizer steps so far, from 1
    round: int = 1  # rollout rounds, from 1
    inner: int = 1  # inner update within the round (mu), from 1
    loss: float = NAN
    reward: float = NAN  # mean over completions
    reward_std: float = NAN  # mean over groups of the within-group standard deviation
    frac_reward_zero_std: float = NAN  # share of groups whose rewards are all equal, 0..1
    kl: float = NAN  # mean per-token KL estimate, nats
    entropy: float = NAN  # mean per-token entropy of the policy, nats
    grad_norm: float = NAN  # L2, before clipping
    learning_rate: float = NAN
    mean_length: float = NAN  # completion length, tokens
    ratio_max: float = NAN  # largest policy / old-policy probability ratio over counted tokens
    clip_fraction: float = NAN  # share of counted tokens whose ratio was clipped, 0..1
    first_token_unique: float = NAN  # mean over groups of distinct first tokens
    nonfinite_params: int = -1  # NaN or Inf scalars in the parameters after the step
    skipped: bool = False  # the guard dropped this update
    memory_allocated: float = NAN  # bytes on the GPU in use by tensors
    memory_reserved: float = NAN  # bytes on the GPU held by the allocator
    process_memory: float = NAN  # bytes, resident set of the process
    seconds: float = NAN  # wall time of this step
    extra: dict[str, float] = field(default_factory=dict)  # a lesson's own numbers, e.g. {"kl_F": 0.03}

    def __getitem__(self, name: str) -> float:
        """A field by its own name, by TRL's name, or from `extra`."""
        name = next((ours for ours, trl in TRL_NAMES.items() if trl == name), name)
        if name in self.extra:
            return self.extra[name]
        if name not in _STEP_FIELDS:
            raise KeyError(f"a Step has no {name!r}; it has {sorted(_STEP_FIELDS | set(self.extra))}")
        return getattr(self, name)

    def log(self) -> dict[str, float]:
        """The step as TRL would log it: TRL's names, absent measurements left out."""
        row = {k: v for k, v in self.__dict__.items() if k != "extra" and not _absent(v)}
        row.update(self.extra)
        return {TRL_NAMES.get(k, k): v for k, v in row.items()}

    @classmethod
    def from_log(cls, row: dict[str, Any]) -> Step:
        """A step from a log row with TRL's names; unknown numeric keys go to `extra`."""
        ours = {trl: k for k, trl in TRL_NAMES.items()}
        known: dict[str, Any] = {}
        extra: dict[str, float] = {}
        for key, value in row.items():
            name = ours.get(key, key)
            if name in _STEP_FIELDS and name != "extra":
                known[name] = value
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                extra[key] = float(value)
        return cls(**{"step": 0, **known}, extra=extra)


_STEP_FIELDS = {f.name for f in dataclasses.fields(Step)}


def _absent(value: Any) -> bool:
    return value == -1 if isinstance(value, int) and not isinstance(value, bool) else value != value


@dataclass(frozen=True)
class Lost:
    """Stands in a run's events for one that arrived and could not be read."""

    error: str
    size: int  # bytes


@dataclass(frozen=True)
class Outcome:
    """How a run ended. Evidence is kept whole: the text is the process's own.

    `signature` is one of `ok`, `device-assert:<kind>`, `oom`, `exception:<type>`, `signal:<n>`,
    `exit:<code>`, `timeout`, `stopped`.
    """

    signature: str = "ok"
    exit_code: int | None = 0  # None when a signal ended it; see `signal`
    signal: int | None = None
    exception: str = ""  # type name, e.g. "RuntimeError" or "AcceleratorError"
    message: str = ""  # str(exception)
    traceback: str = ""
    error_code: int | None = None  # CUDA error code, where the exception carries one (710 = device assert)
    stdout: str = ""
    stderr: str = ""
    seconds: float = NAN

    def __bool__(self) -> bool:
        return self.signature == "ok"


@dataclass
class Run:
    """The events of one run, in order, and its outcome."""

    events: list[Any] = field(default_factory=list)
    outcome: Outcome = field(default_factory=Outcome)
    meta: dict[str, Any] = field(default_factory=dict)  # settings, environment, label

    @property
    def steps(self) -> list[Step]:
        return [e for e in self.events if isinstance(e, Step)]

    def __getitem__(self, name: str) -> list[float]:
        """One column over the steps: `run["grad_norm"]`."""
        return [s[name] for s in self.steps]

    @property
    def rounds(self) -> int:
        """Rounds that produced at least one step."""
        return len({s.round for s in self.steps})

    def __repr__(self) -> str:
        return f"Run({len(self.steps)} steps, {self.rounds} rounds, {self.outcome.signature})"

    def save(self, path: str | Path) -> Path:
        """Write JSON lines: a header, a line a step, the outcome. The file appears whole or not at all."""
        lines = [{"format": "labkit-run/1", "meta": self.meta}]
        lines += [{"step": s.log()} for s in self.steps]
        lines += [{"event": e} for e in self.events if isinstance(e, dict)]
        lines.append({"outcome": dataclasses.asdict(self.outcome)})
        return write_whole(path, "".join(json.dumps(encode(line)) + "\n" for line in lines))

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read what `save` wrote. ValueError names the file and the line that does not fit."""
        path, run, ended = Path(path), cls(), False
        for number, line in enumerate(_lines(path), 1):
            try:
                row = decode(json.loads(line))
                if number == 1 and row.get("format") != "labkit-run/1":
                    raise ValueError(f"expected format 'labkit-run/1', got {row.get('format')!r}")
                if "step" in row:
                    run.events.append(Step.from_log(row["step"]))
                elif "event" in row:
                    run.events.append(row["event"])
                elif "outcome" in row:
                    run.outcome, ended = Outcome(**row["outcome"]), True
                elif number == 1:
                    run.meta = row["meta"]
                else:
                    raise ValueError(f"unknown record with keys {sorted(row)}")
            except (ValueError, TypeError, AttributeError, KeyError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
        if not ended:
            raise ValueError(f"{path}: no outcome line; the file is cut short")
        return run


def _lines(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    text = path.read_text(encoding="utf-8")
    if not text.strip():
        raise ValueError(f"{path}: the file is empty")
    yield from text.splitlines()


def encode(value: Any) -> Any:
    """JSON has no NaN or Infinity; they travel as {"float": "nan"}."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, dict):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    return value


def decode(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"float"}:
            return float(value["float"])
        return {k: decode(v) for k, v in value.items()}
    if isinstance(value, list):
        return [decode(v) for v in value]
    return value
