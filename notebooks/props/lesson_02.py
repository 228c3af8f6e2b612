"""What page 02 uses and does not teach: the losses of one batch, the drawing of the box, logs of runs with one cause."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from props import arms
from props.arms import side_by_side
from props.chart import ExamChart
from props.diagnosis import shuffled
from torch.nn.utils import get_total_norm

from labkit import sandbox
from labkit.display.panels import TONES
from labkit.events import Exam, Run
from labkit.grpo import Hooks, Sampling, grads, load, task, train
from labkit.grpo.advantage import zero_std_fraction

FAR, GREY, INK = TONES["far"][0], TONES["grey"][0], "#333333"

Distance = Callable[..., float]  # of parameters, whose .grad is meant, and wanted gradients


# ---------------------------------------------------------------------------------------------- what a run logged


def first_of(run: Run) -> str:
    """The name of the run's first objective."""
    (exam, *_) = [event for event in run.events if isinstance(event, Exam)]
    return next(iter(exam.chances))


def gain(run: Run) -> float:
    """By how much the exam of the first objective rose."""
    return arms.gain(run, first_of(run))


def mean_kl(run: Run, objective: str = "") -> float:
    """The mean over the updates of the KL that is logged for an objective, the first one where none is named.

    NaN where the run died in its first update: 0 would be a finding.
    """
    column = f"kl/{objective or first_of(run)}"
    logged = [step.extra.get(column, step.kl) for step in run.steps]
    return sum(logged) / len(logged) if logged else math.nan


class Chart(ExamChart):
    """The chart of what the first objective gains; its table has its mean KL too, with three decimals."""

    def __init__(self, title: str):
        tones = {"bug": "bug", "sum": "healthy"}
        label = "gain of the first objective in the exam, a mark for each seed (grey line: none)"
        super().__init__(tones, start=0, title=title, right_edge=0.26, value=gain, label=label)

    def table(self, setting: str = "setting") -> list[dict[str, str]]:
        table = super().table(setting)
        for row, (_, by_arm) in zip(table, self.rows, strict=True):
            for arm in ("bug", "sum"):
                kls = [mean_kl(run) for run in by_arm.get(arm, [])]
                row[f"mean KL, {arm}"] = " ".join(f"{kl:.3f}" for kl in kls)
        return table

    def share(self, name: str) -> float:
        """In one row: what all seeds gain with the bug, as a share of what they gain with the sum."""
        by_bug, by_sum = (sum(map(gain, self.runs(name, arm))) for arm in ("bug", "sum"))
        return by_bug / by_sum


# ----------------------------------------------------------------------------------------------- one batch, the box


class Batch:
    """The first batch of a run, eight answers to each prompt, before anything was trained.

    model, losses   the policy; objective -> its loss, with its graph. Of one objective: micro-batch -> its loss
    answers         objective -> prompt -> its eight answers
    rewards         objective -> the rewards of its answers
    followed        (token, entry): the weight that the page follows, of the embedding of the digit 6
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
        self.answers: dict[str, dict[str, list[str]]] = {}
        self.rewards: dict[str, list[float]] = {}
        self.losses: dict[str | int, torch.Tensor] = {}
        loaded = load(policy, device)
        self.model = loaded.model
        self.followed = loaded.tokenizer.encode("6")[0], 38

        def reward(prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
            rewards = task.rewards(prompts, answers)
            for prompt, answer, one in zip(prompts, answers, rewards, strict=True):
                objective = task.of_prompt(prompt).name
                of_objective = self.answers.setdefault(objective, {})
                of_objective.setdefault(prompt, []).append(answer)
                self.rewards.setdefault(objective, []).append(one)
            return rewards

        def keep(
            model: Any, optimizer: Any, losses: Iterable[torch.Tensor], step: Any
        ) -> grads.Update:
            names = objectives if len(objectives) > 1 else range(micro_batches)
            self.losses = dict(zip(names, losses, strict=True))
            return grads.Update(0.0)

        hooks = Hooks(inner_update=keep, reward=reward, micro_batches=micro_batches)
        one = {"seed": seed, "rounds": 1, "mu": 1, "sampling": Sampling(prompts=prompts)}
        for _ in train(objectives, policy=loaded, hooks=hooks, **one):
            pass

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


class Look:
    """What stands in `.grad` after each line of a loop: `look(line)` is a frame for `draw_box`.

    All numbers that a loop could change by accident are taken before it begins.
    """

    def __init__(
        self,
        batch: Batch,
        order: str,
        gradients: Mapping[str, Sequence[torch.Tensor]],
        wanted: Sequence[torch.Tensor],
        distance: Distance,
    ):
        self.batch, self.order, self.wanted, self.distance = batch, order, wanted, distance
        self.weight = batch.model.get_input_embeddings().weight
        self.start = self.weight[batch.followed].item()
        self.of_each = {name: batch.of_weight(one) for name, one in gradients.items()}
        self.norms = [get_total_norm(one).item() for one in gradients.values()]
        self.history: list[float | None] = []

    def __call__(self, line: str) -> dict[str, Any]:
        parameters = list(self.batch.model.parameters())
        grad = self.weight.grad
        self.history.append(None if grad is None else grad[self.batch.followed].item())
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None]).item()
        frame = {
            "order": self.order,
            "line": line,
            "of each": self.of_each,
            "history": list(self.history),  # of `.grad` of the weight, after each line so far
            "norms": [*self.norms, norm, get_total_norm(self.wanted).item()],
            "distance": None,
            "moved": None,
        }
        if len(self.history) >= 3:  # both are written
            frame["distance"] = self.distance(parameters, self.wanted)
        if line == "step":
            frame["moved"] = self.weight[self.batch.followed].item() - self.start
        return frame


def frames_of(fill: Callable[..., Any], write: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """(order, line) -> what `fill(write)` found there, in a process of its own; what it did not reach is not there."""
    run = sandbox.run(fill, write, timeout=60)
    return {(frame["order"], frame["line"]): frame for frame in run.events}


def draw_box(axes: Sequence[Any], frame: Mapping[str, Any] | None, label: str) -> None:
    """Left: `.grad` of the weight that is followed, and what was written before. Right: four norms, of all weights."""
    box, bars = axes
    box.set(xlim=(0, 10), ylim=(0, 4), xticks=[], yticks=[])
    box.spines[:].set_visible(False)
    bars.spines[["top", "right"]].set_visible(False)
    if frame is None:
        box.text(0.2, 2, f"{label}: the loop ended before this line", fontsize=9)
        bars.set(xticks=[], yticks=[])
        return
    import matplotlib.pyplot as plt

    colour, name = TONES["fix"][0], label
    if label == "=":
        colour, name = TONES["bug"][0], "with ="
    box.text(0.1, 3.5, name, fontsize=9, weight="bold", color=colour)
    # the gradients, with an arrow from each that was written; history[0] is after zero_grad
    for place, (objective, value) in enumerate(frame["of each"].items()):
        height = 2.6 - 0.95 * place
        box.text(0.1, height, f"{objective}'s: {value:+.4f}", fontsize=9, va="center")
        if len(frame["history"]) >= place + 2:
            end = {"xy": (5.2, 1.95), "xytext": (3.6, height)}
            box.annotate("", **end, arrowprops={"arrowstyle": "->", "color": GREY})
    total = sum(frame["of each"].values())
    box.text(0.1, 0.5, f"the sum: {total:+.4f}", fontsize=9, va="center")
    # the box, with what stood in it after the first line that wrote
    box.add_patch(plt.Rectangle((5.3, 1.1), 4.4, 1.7, fill=False, ec=INK, lw=1.6))
    box.text(7.5, 2.95, ".grad of the weight", fontsize=8, ha="center")
    value = frame["history"][-1]
    text = "None" if value is None else f"{value:+.4f}"
    box.text(7.5, 1.6, text, fontsize=12, color=FAR, ha="center", va="center", weight="bold")
    before = frame["history"][1] if len(frame["history"]) >= 3 else None
    if before is not None and before != value:
        box.text(7.5, 2.35, f"was {before:+.4f}", fontsize=8, color=GREY, ha="center", va="center")
    if frame["moved"] is not None:
        text = f"AdamW moves the weight by {frame['moved']:+.5f}"
        box.text(9.7, 0.5, text, fontsize=8, ha="right", va="center")
    # the norms
    names = [f"{objective}'s" for objective in frame["of each"]]
    names += [".grad", "the sum"]
    bars.barh(names, frame["norms"], color=["#B8B8B8", "#B8B8B8", colour, "#5A5A5A"], height=0.66)
    bars.invert_yaxis()
    bars.set(xlim=(0, 2), xticks=[])
    for at, size in enumerate(frame["norms"]):
        bars.text(min(size, 1.7) + 0.03, at, f"{size:.2f}", va="center", fontsize=8)
    title = "norm over all weights"
    if frame["distance"] is not None:
        title += f"; distance of .grad from the sum {frame['distance']:.2f}"
    bars.set_title(title, fontsize=8, loc="left")
    bars.tick_params(labelsize=8)


# --------------------------------------------------------------------------------------------- logs of other runs


def looks_for_a_word(prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
    """A reward whose pattern never matches: these answers are digits."""
    return [float("answer" in answer) for answer in answers]


def short_enough(prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
    """A reward that is 1 up to eight characters: no answer here is longer."""
    return [float(len(answer) <= 8) for answer in answers]


def step_of_a_copy(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> grads.Update:
    """The step of an optimizer that was made with the parameters of a copy: none of them has a gradient."""
    torch.optim.AdamW(copy.deepcopy(model).parameters(), lr=5e-5).step()
    return grads.Update(grads.global_norm(grads.trainable(model)))


def log_of(
    policy: str,
    device: str,
    seed: int,
    distance: Distance,
    objectives: Sequence[str] = ("add", "copy"),
    inner_update: Any = grads.inner_update,
    reward: Any = task.rewards,
    lr: float = 5e-5,
    dtype: torch.dtype = torch.float32,
    **hooks: Any,
) -> Any:
    """A round of two updates; yields one dictionary, what its log says."""
    loaded = load(policy, device)
    loaded.model.to(dtype)
    parameters = grads.trainable(loaded.model)
    before = [parameter.detach().clone() for parameter in parameters]
    distances: list[float] = []
    rewards: dict[str, list[float]] = {name: [] for name in objectives}

    def kept_reward(prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
        judged = reward(prompts, answers)
        for prompt, one in zip(prompts, judged, strict=True):
            rewards[task.of_prompt(prompt).name].append(one)
        return judged

    def watched(model: Any, optimizer: Any, losses: Any, limit_and_step: Any) -> grads.Update:
        losses = list(losses)
        wanted = torch.autograd.grad(sum(losses), parameters, retain_graph=True)

        def look_and_step(model: Any, optimizer: Any) -> grads.Update:
            distances.append(distance(parameters, wanted))
            return limit_and_step(model, optimizer)

        return inner_update(model, optimizer, losses, look_and_step)

    sampling = Sampling(prompts=4)
    settings = {"seed": seed, "rounds": 1, "mu": 2, "lr": lr, "sampling": sampling}
    watching = Hooks(inner_update=watched, reward=kept_reward, **hooks)
    first, second = train(objectives, policy=loaded, hooks=watching, **settings)
    changed = sum(int((old != new).sum()) for old, new in zip(before, parameters, strict=True))
    tied = {
        name: zero_std_fraction(torch.tensor(of_objective), sampling.num_samples)
        for name, of_objective in rewards.items()
    }
    yield {
        "KL of the first": second[f"kl/{objectives[0]}"],
        "norm": first.grad_norm,
        "tied, first": tied[objectives[0]],
        "tied, last": tied[objectives[1]],
        "changed": changed / sum(old.numel() for old in before),
        "distance": distances[0],
    }


def logs_of(
    cases: Mapping[str, Mapping[str, Any]], seed: int, **common: Any
) -> dict[str, dict[str, float]]:
    """Case -> what its log says."""
    done = side_by_side(cases, [seed], log_of, **common)
    return {name: runs[0].events[0] for name, runs in done.items()}


def unseen_logs(
    seed: int, write_over: Any, zero_grad_inside: Any, **common: Any
) -> list[tuple[str, dict[str, float]]]:
    """Twelve runs in an order that the seed decides: (cause, what its log says).

    Two of each cause; and a sound and an overwritten one whose first objective is solved: nobody can tell them apart.
    """
    cases = {
        "overwritten 1": {"objectives": ("max", "add"), "inner_update": write_over},
        "overwritten 2": {"objectives": ("add", "max"), "inner_update": zero_grad_inside},
        "reward 1": {"objectives": ("max", "add"), "reward": short_enough},
        "reward 2": {"objectives": ("add", "max"), "reward": short_enough},
        "optimizer 1": {"objectives": ("max", "add"), "update": step_of_a_copy},
        "optimizer 2": {"objectives": ("max", "copy"), "update": step_of_a_copy},
        "rate 1": {"objectives": ("add", "max"), "lr": 1e-6},
        "rate 2": {"lr": 3e-7},
        "healthy 1": {"objectives": ("max", "add")},
        "healthy 2": {"lr": 2e-5},
        "cannot tell 1": {"objectives": ("copy", "add")},
        "cannot tell 2": {"objectives": ("copy", "add"), "inner_update": write_over},
    }
    return shuffled(logs_of(cases, seed, **common), seed)
