"""What page 02 uses and does not teach: what a run with several objectives logged, and the losses of one batch.

Beside it: `lesson_02_pictures.py` (the figure of one weight) and `lesson_02_look_alikes.py` (other causes of the log).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from props import arms
from props.chart import ExamChart

from labkit.events import Exam, Run
from labkit.grpo import Hooks, Sampling, grads, load, task, train

# (parameters, whose .grad is meant; wanted gradients) -> how far apart they are: the page's function
Distance = Callable[..., float]

# ---------------------------------------------------------------------------------------------- what a run logged


def first_of(run: Run) -> str:
    """The name of the run's first objective."""
    exams = [event for event in run.events if isinstance(event, Exam)]
    names = list(exams[0].chances)
    return names[0]


def gain(run: Run) -> float:
    """By how much the exam of the first objective rose."""
    return arms.gain(run, first_of(run))


def mean_kl(run: Run, objective: str = "") -> float:
    """The mean over the updates of the KL that is logged for an objective, the first one where none is named.

    NaN where the run died in its first update: 0 would be a finding.
    """
    if not run.steps:
        return math.nan
    column = f"kl/{objective or first_of(run)}"
    # a run with a single objective logs its KL without a name
    logged = [step.extra.get(column, step.kl) for step in run.steps]
    return sum(logged) / len(logged)


class Chart(ExamChart):
    """The chart of what the first objective gains; its table has its mean KL too, with three decimals."""

    def __init__(self, title: str):
        super().__init__(
            {"bug": "bug", "sum": "healthy"},
            start=0,
            title=title,
            right_edge=0.26,
            value=gain,
            label="gain of the first objective in the exam, a mark for each seed (grey line: none)",
        )

    def table(self, setting: str = "setting", decimals: int = 2) -> list[dict[str, str]]:
        table = super().table(setting, decimals)
        for row, (_, runs_of) in zip(table, self.rows, strict=True):
            for arm in ("bug", "sum"):
                kls = [mean_kl(run) for run in runs_of.get(arm, [])]
                row[f"mean KL, {arm}"] = " ".join(f"{kl:.3f}" for kl in kls)
        return table

    def share(self, name: str) -> float:
        """In one row: what all seeds gain with the bug, as a share of what they gain with the sum."""
        with_bug = sum(gain(run) for run in self.runs(name, "bug"))
        with_sum = sum(gain(run) for run in self.runs(name, "sum"))
        return with_bug / with_sum


# ------------------------------------------------------------------------------------------------------ one batch


class Batch:
    """The first batch of a run, eight answers to each prompt, before anything was trained.

    model     the policy
    losses    objective -> its loss, with its graph; of a single objective: number of a micro-batch -> its loss
    answers   objective -> prompt -> its eight answers
    rewards   objective -> the rewards of its answers
    followed  (token, entry): the weight that the page follows, of the embedding of the digit 6
    """

    def __init__(
        self,
        policy: str,
        device: str,
        seed: int,
        objectives: Sequence[str] = ("add", "max", "copy"),
        prompts: int = 4,
        micro_batches: int = 1,
    ):
        loaded = load(policy, device)
        self.model = loaded.model
        # add and max pull this entry in opposite directions, in the batch of seed 0
        self.followed = loaded.tokenizer.encode("6")[0], 38
        self.losses: dict[str | int, torch.Tensor] = {}
        self.answers: dict[str, dict[str, list[str]]] = {name: {} for name in objectives}
        self.rewards: dict[str, list[float]] = {name: [] for name in objectives}
        # several objectives are one micro-batch each, in this order
        self._names: Sequence[str | int] = objectives
        if len(objectives) == 1:
            self._names = range(micro_batches)
        # one update, which keeps the losses and does not step: the parameters stay as they came
        hooks = Hooks(
            reward=self._keep_answers, inner_update=self._keep_losses, micro_batches=micro_batches
        )
        sampling = Sampling(prompts=prompts)
        run = train(
            objectives, policy=loaded, seed=seed, rounds=1, mu=1, sampling=sampling, hooks=hooks
        )
        list(run)

    def _keep_answers(self, prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
        rewards = task.rewards(prompts, answers)
        for prompt, answer, reward in zip(prompts, answers, rewards, strict=True):
            objective = task.of_prompt(prompt).name
            self.answers[objective].setdefault(prompt, []).append(answer)
            self.rewards[objective].append(reward)
        return rewards

    def _keep_losses(
        self, model: Any, optimizer: Any, losses: Iterable[torch.Tensor], step: Any
    ) -> grads.Update:
        self.losses = dict(zip(self._names, losses, strict=True))
        return grads.Update(0.0)

    def gradients(self, loss: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Of all parameters; the graph stays."""
        return torch.autograd.grad(loss, list(self.model.parameters()), retain_graph=True)

    def of_weight(self, gradients: Sequence[torch.Tensor]) -> float:
        """The entry of the weight that is followed."""
        embedding = self.model.get_input_embeddings().weight
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            if parameter is embedding:
                return gradient[self.followed].item()
        raise LookupError("the embedding is no parameter of the model")
