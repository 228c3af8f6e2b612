"""What page 03 uses and does not teach: the tokens of a round, drawings, the logs of its last exercise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from props.arms import largest, last_exam, side_by_side
from props.chart import ExamChart
from props.diagnosis import shuffled

from labkit import checks
from labkit.display.panels import TONES
from labkit.events import Run
from labkit.grpo import Hooks, generate, load, task, train
from labkit.grpo.batch import Batch
from labkit.grpo.grads import Update
from labkit.grpo.policy import token_logprobs

FAR, NEAR, GREY = TONES["far"][0], "#8A8A8A", TONES["grey"][0]
FAR_FROM = 2.0  # nats: a token whose d is above this is called far
DOTS_END = 13.0  # nats: the right edge of the picture of dots; what lies beyond stands there
LOGGED = ("KL of update 1", "highest KL", "highest KL, β = 1e-8")

Distances = Callable[[Any], list[float]]  # a model -> d of each token


def tokens_of_round_1(policy: str, device: str, seed: int) -> tuple[Distances, list[str]]:
    """The answers of round 1: a function, model -> d of each of their tokens; and how each token is written."""
    batches: list[Batch] = []

    def keep(part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
        batches.append(part)
        return {}

    hooks = Hooks(probe=keep, update=lambda model, optimizer: Update(0.0))
    for _ in train("add", policy=policy, device=device, seed=seed, rounds=1, mu=1, hooks=hooks):
        pass
    part = batches[0]
    counted = part.mask.bool()

    @torch.no_grad()
    def distances(model: Any) -> list[float]:
        logp, _ = token_logprobs(model, part.out.ids, part.out.attention_mask, counted.shape[1])
        return (part.ref_logp - logp)[counted].tolist()

    decode = load(policy, "cpu").tokenizer.decode
    written = []
    for row, at in counted.nonzero().tolist():
        prompt = decode(part.out.prompt_tokens[row][part.out.prompt_mask[row].bool()].tolist())
        answer = [decode([token]) for token in part.out.tokens[row, : at + 1].tolist()]
        written.append(f"{prompt}{''.join(answer[:-1])}[{answer[-1]}]")
    return distances, written


def moved(part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
    """A probe: how far the tokens are from the reference."""
    d = (part.ref_logp - logp)[part.mask.bool()]
    return {"largest d": float(d.max()), "mean |d|": float(d.abs().mean())}


def most_common_answer(policy: Any) -> str:
    """How many of the held-out prompts get the answer that is given most often."""
    generator = torch.Generator(policy.device).manual_seed(0)
    prompts = task.get("add").held_out()
    answers = generate(policy, prompts, num_samples=1, generator=generator).texts
    common = max(
        sorted(set(answers)), key=answers.count
    )  # of equally frequent ones the same in every run
    return f"{answers.count(common)} of {len(prompts)} other prompts get {common!r}"


def rows_of_updates(
    steps: Mapping[Any, Any], near_only: Mapping[Any, Any], bug: Run
) -> list[dict[str, float]]:
    """What each update finds: of the tokens, of the log, and of the gradient with all pulls and with the near ones'."""
    rows = []
    for update in (2, 3, 4, 5):
        d = torch.tensor(steps[update, 0.0]["d"])
        row = {
            "before update": update,
            "far": int((d > FAR_FROM).sum()),
            "beyond 10": int((d > 10).sum()),
        }
        row |= {"largest d": d.max().item(), "logged KL": float(bug["kl"][update - 1])}
        row["norm"] = steps[update, 0.0]["norm"]
        row["norm, near tokens' KL alone"] = near_only[update, 0.0]["norm"]
        rows.append(row)
    return rows


def dots_of_pulls(d: Sequence[float], written: Sequence[str], followed: str) -> None:
    """Every token on the curve e^d − 1, far ones in red, the followed one by name."""
    import matplotlib.pyplot as plt

    values = torch.tensor(d)
    far = values > FAR_FROM
    pulls = values.expm1()
    figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
    line = torch.linspace(-2.3, 4, 200)
    axes.plot(line, line.expm1(), color="#BBBBBB")
    axes.scatter(values[~far], pulls[~far], s=22, color=NEAR, alpha=0.6, lw=0, zorder=3)
    for value in sorted({round(one, 3) for one in values[far].tolist()}):
        count = sum(abs(one - value) < 2e-3 for one in d)
        height = torch.tensor(value).expm1()
        axes.scatter([value], [height], s=34, color=FAR, zorder=3)
        if count > 1:
            # the furthest has its name on the left, so its count stands on the right
            side, shift = ("right", -8) if value < max(d) - 0.01 else ("left", 8)
            text, place = f"×{count}", (shift, -3)
            axes.annotate(
                text, (value, height), place, textcoords="offset points", ha=side, fontsize=9
            )
    at = list(written).index(followed)
    place = (values[at], pulls[at])
    axes.annotate(followed, place, (-10, -3), textcoords="offset points", ha="right", fontsize=9)
    share = pulls[far].abs().sum() / pulls.abs().sum()
    title = f"{int(far.sum())} of {len(d)} tokens have {share:.0%} of the pull"
    axes.set_title(title, fontsize=10, loc="left", weight="bold")
    axes.set_xlabel("d of the token, nats (positive: less likely than in the reference)")
    axes.set_ylabel("pull, e^d − 1")
    axes.spines[["top", "right"]].set_visible(False)
    plt.show()


def dots_of_step(
    axes: Any, frame: Mapping[str, Any] | None, far_before: Sequence[bool], label: str
) -> None:
    """A dot for each token; red: far before update 2. In the darker band the clamped k3 has no slope."""
    axes.axvspan(FAR_FROM, 10, color="#F4F0E8", zorder=0)
    axes.axvspan(10, DOTS_END + 0.3, color="#DDD8CC", zorder=0)
    axes.axvline(0, color=GREY, lw=0.8, zorder=1)
    axes.set(ylim=(-0.75, 1.15), xlim=(-2.6, DOTS_END + 0.3), yticks=[])
    axes.set_xlabel("d of each token, nats (13: 13 or more)", fontsize=8)
    axes.spines["left"].set_visible(False)
    if frame is None:
        axes.text(5, 0.2, f"{label}: the run ended before this step", ha="center", fontsize=10)
        return
    d = torch.tensor(frame["d"]).nan_to_num(DOTS_END)
    old = torch.tensor(far_before)
    jitter = torch.rand(len(d), generator=torch.Generator().manual_seed(1)) - 0.5
    shown = d.clamp(-2.5, DOTS_END)
    axes.scatter(shown[~old], jitter[~old], s=15, color=NEAR, alpha=0.75, lw=0, zorder=3)
    axes.scatter(shown[old], jitter[old], s=26, color=FAR, alpha=0.85, lw=0, zorder=3)
    far = d > FAR_FROM
    count = f"far: {int(far.sum())}, of which {int((far & old).sum())} were far before update 2"
    axes.text(DOTS_END + 0.2, 0.66, count, ha="right", va="bottom", fontsize=8)
    norm = f"norm of this step's gradient {frame['norm']:,.3g}"
    axes.text(-2.5, 0.66, f"{label}:  {norm}", va="bottom", fontsize=8, weight="bold")


class Chart(ExamChart):
    """The chart of the last exams; its table has k3 minus k2 on each seed, the largest d and the largest norm too."""

    def __init__(self, start: float, title: str):
        tones = {"k3": "bug", "k2": "fix", "another form": "two", "no KL term": "without"}
        super().__init__(tones, start=start, title=title)

    def table(self, setting: str = "how the step is made") -> list[dict[str, str]]:
        table = super().table(setting)
        for row, (_, arms) in zip(table, self.rows, strict=True):
            row["k3 − k2"] = ""
            if "k2" in arms:
                pairs = zip(arms["k3"], arms["k2"], strict=True)
                row["k3 − k2"] = " ".join(
                    f"{last_exam(one) - last_exam(two):+.2f}" for one, two in pairs
                )
            runs = arms.get("k3") or arms["another form"]
            row["largest d, k3 or other"] = f"{max(largest(run, 'largest d') for run in runs):.3g}"
            row["largest norm, k3 or other"] = (
                f"{max(largest(run, 'grad_norm') for run in runs):,.3g}"
            )
        return table


# ------------------------------------------------------------------------------------------- logs of other runs


def neighbour_before(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """k3 with the reference's log-probs shifted to the other side than on the page."""
    d = (ref_logp.roll(-1, dims=1) - logp).clamp(max=10)
    return d.exp() - d - 1


def train_with_another_reference(seed: int, policy: str, device: str, **settings: Any) -> Any:
    """A run whose reference is not the policy it began with: one that was trained for a round already."""
    older = load(policy, device)
    for _ in train("add", policy=older, seed=seed + 100, rounds=1):
        pass
    hooks = Hooks(reference=older.model.requires_grad_(False))
    yield from train("add", policy=policy, device=device, seed=seed, hooks=hooks, **settings)


def logs_of(
    cases: Mapping[str, Mapping[str, Any]],
    seed: int,
    function: Callable[..., Any] = train,
    **common: Any,
) -> dict[str, dict[str, float]]:
    """Case -> what the log of its round says, and that of the same round with β = 1e-8."""
    arms: dict[str, Mapping[str, Any]] = dict(cases)
    for name, case in cases.items():
        arms[f"{name}, without"] = {**case, "beta": 1e-8}
    done = side_by_side(arms, [seed], function, **common)
    logs = {}
    for name in cases:
        (run,), (without,) = done[name], done[f"{name}, without"]
        measured = (float(run["kl"][0]), largest(run, "kl"), largest(without, "kl"))
        logs[name] = dict(zip(LOGGED, measured, strict=True))
    return logs


def unseen_logs(
    seed: int, *, k2: Callable[..., Any], **common: Any
) -> list[tuple[str, dict[str, float]]]:
    """Eight runs, two of each cause, in an order that the seed decides: (cause, what its log says)."""
    cases = {
        "slope 1": {"beta": 0.3},
        "slope 2": {"mu": 4},
        "reference 1": {"kl": neighbour_before},
        "rate 1": {"lr": 4 * common["lr"]},
        "rate 2": {"optimizer": "adamw", "lr": 2e-3},
        "healthy 1": {"kl": k2},
        "healthy 2": {"optimizer": "adamw", "lr": 3e-4},
    }
    logs = logs_of(cases, seed, **common)
    limited = {"reference 2": {"max_norm": 1.0}}
    logs |= logs_of(limited, seed, train_with_another_reference, **common)
    return shuffled(logs, seed)


def slope_at(kl: Callable[..., torch.Tensor], d: float) -> float:
    """How hard one token at this d is pulled to the reference, whose log-prob is 0."""
    logp = torch.tensor([[-d]], requires_grad=True)
    value = kl(logp, torch.zeros(1, 1))
    (by_logp,) = torch.autograd.grad(value.sum(), logp)
    return -float(by_logp)


def judge_slope(kl: Callable[..., torch.Tensor], most: Callable[[float], float]) -> Any:
    """Is the slope d near 0, and from there on a pull to the reference of at most `most(|d|)`?"""
    claim = "its slope is d near 0, and bounded from there on"

    def report(d: float, slope: float, expected: str) -> Any:
        hint = f"At d = {d:g} the slope is {slope:.3g}. It should {expected}."
        return checks.Report("slope", claim, False, {"d": d, "slope": slope}, hint)

    returned = kl(torch.zeros(1, 1), torch.zeros(1, 1))
    if not isinstance(returned, torch.Tensor):
        hint = f"It returned {type(returned).__name__}. A tensor [B, T] is expected."
        return checks.Report("slope", claim, False, {}, hint)
    for d in (0.05, 0.5, -0.5):
        slope = slope_at(kl, d)
        if not abs(slope - d) <= 0.1 * abs(d):
            return report(d, slope, f"be {d:g} there, within a tenth")
    for size in (1.5, 3.0, 10.0, 80.0):
        for d in (size, -size):
            slope = slope_at(kl, d)
            if not 0 < slope * d / size <= 1.01 * most(size):
                return report(d, slope, f"pull to the reference, by {most(size):g} at most")
    return checks.Report("slope", claim, True, {"slope at 80": slope_at(kl, 80.0)})
