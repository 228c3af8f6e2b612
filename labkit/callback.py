"""A guard for transformers' `Trainer` and for TRL: it skips updates that would ruin the run, and says what it saw.

    guard = labkit.GuardCallback()
    GRPOTrainer(..., callbacks=[guard]).train()
    print(guard.report())

The Trainer calls `on_pre_optimizer_step` after its own clipping, so a norm seen there is already clipped
(transformers 5.23). The guard therefore clips in the Trainer's place: for the time of the training it sets
`max_grad_norm` to 0, and does with the value it found what the Trainer would have done, by the same function.
A skipped update is one without gradients: with `p.grad = None` no optimizer moves, not even AdamW, which does on zeros.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from labkit.grpo import grads

from .common import kernel, number
from .events import Outcome, Run, Step
from .triage import diagnose

log = logging.getLogger("labkit.guard")

WINDOW = 128  # norms that the rolling threshold looks back on; OLMo-core's, as are the 6 deviations
SIGMAS = 6.0
ENOUGH = 64  # finite norms before the rolling threshold judges
EARLY = 100.0  # before that: so many times the largest so far,
CALM = 10.0  # and no norm below this, because the first batches may be nearly tied
FIRST = 1e4  # a first norm above this is skipped, though there is none to compare it with
IN_A_ROW = 5  # skipped updates, and logs in which every group is tied, before an alarm
KL_ABOVE = 10.0  # nats per token
CHECK_EVERY = 50  # steps between two counts of non-finite parameters; there is one more at the end


class GuardCallback(TrainerCallback):
    """Skips non-finite and outlying updates of a transformers or TRL trainer, raises alarms, and records the run.

    skip_above   skip an update whose gradient norm is above this; None: above mean + 6 deviations of the last 128
                 finite norms, from the 64th on, and before that above 10 and 100 times the largest so far (the
                 first: above 10,000). A norm that is not finite is always skipped
    record       a file: the run is saved there at the end, readable by `labkit triage`

    `skipped`    the steps whose update was skipped; `alarms` what it warned of, in order; `run` the recorded run.
    In a notebook the run is drawn while it trains.
    Raises: ValueError when training starts under DeepSpeed or FSDP, which keep their gradients in pieces.
    """

    def __init__(self, skip_above: float | None = None, *, record: str | Path | None = None):
        if skip_above is not None and not skip_above > 0:
            raise ValueError(f"GuardCallback: skip_above = {skip_above}: must be above 0")
        self.skip_above, self.record = skip_above, record
        self.run = Run(outcome=Outcome("running"))
        self.skipped: list[int] = []
        self.alarms: list[str] = []
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._norm = math.nan
        self._row, self._tied = 0, 0  # skipped updates, and logs with every group tied, in a row until now
        self._max_norm: float | None = None
        self._board: Any = None
        self._track: Any = None

    # ---- the trainer's events

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if args.deepspeed or args.fsdp:
            raise ValueError(
                "GuardCallback: under DeepSpeed or FSDP no process has whole gradients; use the engine's own clipping, "
                "and `labkit triage` on its log"
            )
        self._max_norm, args.max_grad_norm = args.max_grad_norm, 0.0
        self.run.meta |= {n: v for n, v in vars(args).items() if type(v) in (bool, int, float, str) and n[0] != "_"}
        self.run.meta |= {"label": "guarded", "max_grad_norm": self._max_norm}
        self._before_training(args, given.get("model"), given.get("optimizer"))
        if kernel() is not None:
            from .display import Board

            limit = {} if self.skip_above is None else {"grad_norm": self.skip_above}
            self._board = Board(thresholds=limit, title="Guarded training")
            self._track = self._board.add("guarded")
            self._board.show()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        model, optimizer = given["model"], given["optimizer"]
        params = grads.trainable(model)
        if (scaler := getattr(optimizer, "scaler", None)) is not None:  # fp16: gradients are still times the loss scale
            scaler.unscale_(optimizer.optimizer)
        total = nn.utils.get_total_norm([p.grad for p in params if p.grad is not None])
        self._norm = norm = float(total)
        limit = self._limit()
        if _agreed(not norm <= limit):
            for p in params:
                p.grad = None
            self._skip(state.global_step + 1, norm, limit)
            return
        self._row = 0
        self._norms.append(norm)
        if self._max_norm:
            nn.utils.clip_grads_with_norm_(params, self._max_norm, total)  # clip_grad_norm_ would take the norm again

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step % CHECK_EVERY == 0:
            self._check(state.global_step, given["model"])

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        row = {k: v for k, v in (logs or {}).items() if isinstance(v, int | float) and not isinstance(v, bool)}
        if not {"loss", "reward", "kl"} & set(row):
            return
        skipped = state.global_step in self.skipped
        norm = row.get("grad_norm", self._norm)
        step = Step.from_log({**row, "step": state.global_step, "grad_norm": norm, "skipped": skipped})
        if torch.cuda.is_available():
            allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            step = replace(step, memory_allocated=float(allocated), memory_reserved=float(reserved))
        self.run.events.append(step)
        self._judge(step)
        if self._board is not None:
            self._track.feed([step])
            self._board.refresh(f"step {state.global_step}: {len(self.skipped)} updates skipped")

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        args.max_grad_norm = self._max_norm
        self._check(state.global_step, given["model"])
        self.run.outcome = Outcome()
        if self._board is not None:
            self._track.outcome = self.run.outcome
            self._board.refresh(f"ended: {len(self.skipped)} updates skipped")
            self._board.draw()
        if self.record:
            self.run.save(Path(self.record))

    # ---- what it judges

    def _limit(self) -> float:
        """The norm above which this update is skipped."""
        if self.skip_above is not None:
            return min(self.skip_above, _LARGEST)
        alive = [norm for norm in self._norms if norm > 0]  # tied batches have none, and would drag the mean down
        if len(alive) >= ENOUGH:
            return fmean(alive) + SIGMAS * max(pstdev(alive), 0.05 * fmean(alive))
        return max(EARLY * max(alive), CALM) if alive else FIRST

    def _skip(self, step: int, norm: float, limit: float) -> None:
        self.skipped.append(step)
        self._row += 1
        if len(self.skipped) == 1:
            why = f"above {number(limit)}" if math.isfinite(norm) else "not finite"
            self._alarm(f"step {step}: first update skipped, gradient norm {number(norm)} is {why}")
        if self._row == IN_A_ROW:
            problem = "the run stands still and will not recover alone"
            self._alarm(f"step {step}: {IN_A_ROW} updates in a row skipped; {problem}")

    def _judge(self, step: Step) -> None:
        if step.kl > KL_ABOVE:
            self._alarm(f"step {step.step}: KL {number(step.kl)} nats per token, above {number(KL_ABOVE)}", once="KL")
        tied = step.frac_reward_zero_std >= 0.999 or step.reward_std == 0
        self._tied = self._tied + 1 if tied else 0
        if self._tied == IN_A_ROW:
            problem = "every group is tied, nothing is learned from the reward"
            self._alarm(f"step {step.step}: in {self._tied} logs in a row {problem}")

    def _before_training(self, args: Any, model: Any, optimizer: Any) -> None:
        """What can be wrong before the first step, and shows in no log."""
        if model is not None and optimizer is not None:
            missing, others = grads.apart_from(model, optimizer)
            if missing or others:
                problem = f"{len(missing)} trainable parameters are not in it, {others} of it are not the model's"
                self._alarm(f"the optimizer is not this model's: {problem}")
        if model is not None and hasattr(args, "num_generations") and not getattr(args, "disable_dropout", False):
            acting = grads.dropouts(model)
            if acting:
                problem = "two scores of one token differ, and the ratio is not 1"
                self._alarm(f"dropout acts in {len(acting)} places ({acting[0]}, ...): {problem}")

    def _check(self, step: int, model: nn.Module) -> None:
        health = grads.health(model)
        if not health:
            self._alarm(f"step {step}: {health}", once="parameters")

    def _alarm(self, text: str, once: str = "") -> None:
        if once and any(once in earlier for earlier in self.alarms):
            return
        self.alarms.append(text)
        log.warning("labkit guard: %s", text)

    # ---- afterwards

    def report(self) -> str:
        """What it did and warned of, and the diagnosis of the recorded run."""
        head = f"{len(self.run.steps)} rows recorded, {len(self.skipped)} updates skipped"
        if self.skipped:
            head += f": {', '.join(map(str, self.skipped[:10]))}"
        if len(self.skipped) > 10:
            head += ", ..."
        return "\n".join([head, *self.alarms, "", str(diagnose(self.run))])


_LARGEST = torch.finfo(torch.float32).max


def _agreed(skip: bool) -> bool:
    """One decision for all processes: skipped where any of them would."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return skip
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    vote = torch.tensor(float(skip), device=device)
    torch.distributed.all_reduce(vote, op=torch.distributed.ReduceOp.MAX)
    return bool(vote.item())
