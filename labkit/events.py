"""A run is a stream of events: the records that every other part of the lab reads or writes, and the file of a run.

`Step` is one optimizer step, `Exam` how likely a right answer is after a round. `Outcome` is how the process that
produced them ended. `Run` is all of these, plus what was asked for. This file does not train, draw, or touch torch.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .common import write_whole

NAN = float("nan")
FORMAT = "labkit-run/3"

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
        named = {ours.get(key, key): value for key, value in row.items()}
        known = {name: value for name, value in named.items() if name in _STEP_FIELDS - {"extra"}}
        rest = {name: value for name, value in named.items() if name not in known}
        extra = {name: float(value) for name, value in rest.items() if type(value) in (int, float)}
        return cls(**{"step": 0, **known}, extra=extra)


_STEP_FIELDS = {f.name for f in dataclasses.fields(Step)}


def _absent(value: Any) -> bool:
    return value == -1 if isinstance(value, int) and not isinstance(value, bool) else value != value


@dataclass(frozen=True)
class Exam:
    """The chance of a right answer on prompts that no run trains on: see `labkit.grpo.exam`."""

    round: int  # rounds so far: 0 is the policy as it came
    chances: dict[str, float]  # task family -> mean probability of the right answer, 0..1

    @property
    def mean(self) -> float:
        """Over the families."""
        return sum(self.chances.values()) / len(self.chances)


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

    def exam(self, family: str | None = None) -> list[float]:
        """The chance of a right answer before the first round and after each one: of a family, or the mean over all.

        ValueError when the run sat no exam; KeyError when none in this family.
        """
        exams = [event for event in self.events if isinstance(event, Exam)]
        if not exams:
            raise ValueError("this run has no exam; ask for one: train(..., exam=True)")
        return [one.mean if family is None else one.chances[family] for one in exams]

    @property
    def rounds(self) -> int:
        """Rounds that produced at least one step."""
        return len({s.round for s in self.steps})

    def __repr__(self) -> str:
        return f"Run({len(self.steps)} steps, {self.rounds} rounds, {self.outcome.signature})"

    def save(self, path: str | Path) -> Path:
        """Write JSON lines: a header, one line per event, the outcome. The file appears whole or not at all.

        An event is a Step, an Exam, or whatever Python's json writes: NaN is written as NaN, and a tuple comes back as
        a list. Raises: TypeError names what json cannot write.
        """
        rows: list[dict[str, Any]] = [{"format": FORMAT, "meta": self.meta}]
        rows += [{"event": event} for event in self.events]
        rows.append({"outcome": self.outcome})
        return write_whole(path, "".join(json.dumps(row, default=_tagged) + "\n" for row in rows))

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read what `save` wrote: the same events, in the same order.

        Raises: ValueError names the file and the line that does not fit; FileNotFoundError the file that is not there.
        """
        run, number, ended = cls(), 0, False
        try:
            for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
                row = json.loads(line, object_hook=_untagged)
                if number == 1:
                    if row["format"] != FORMAT:
                        raise ValueError(f"expected format {FORMAT!r}, got {row['format']!r}")
                    run.meta = row["meta"]
                elif ended:
                    raise ValueError("more follows after the outcome")
                elif "outcome" in row:
                    run.outcome, ended = row["outcome"], True
                else:
                    run.events.append(row["event"])
            if not ended:
                raise ValueError("no outcome follows; the file is empty or cut short")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: no line of a saved run: {error!r}") from error
        return run


_TAGS: dict[str, Any] = {"$step": Step, "$exam": Exam, "$outcome": Outcome, "$lost": Lost}
_TAG_OF = {kind: tag for tag, kind in _TAGS.items()}


def _tagged(thing: Any) -> dict[str, Any]:
    """What json cannot write by itself: {"$step": {"step": 1, "kl": 0.5}}, without the fields at their default."""
    if type(thing) not in _TAG_OF:
        raise TypeError(
            f"cannot save a {type(thing).__name__}: call .tolist() of a tensor or an array; got {thing!r:.80}"
        )
    fields = {}
    for one in dataclasses.fields(thing):
        default = one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
        value = getattr(thing, one.name)
        # compared as text: NaN is not equal to NaN, and True is equal to 1
        if repr(value) != repr(default):
            fields[one.name] = value
    return {_TAG_OF[type(thing)]: fields}


def _untagged(plain: dict[str, Any]) -> Any:
    for tag, kind in _TAGS.items():
        if tag in plain:
            return kind(**plain[tag])
    return plain
