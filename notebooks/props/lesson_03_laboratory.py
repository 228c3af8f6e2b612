"""What the KL laboratory uses and does not teach: its runs, drawings and tables, and the judge of its exercise."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from labkit import checks, sandbox
from labkit.display.panels import TONES
from labkit.events import Run
from labkit.grpo import Hooks, generate, kl, load, task, train
from labkit.grpo.batch import Batch
from labkit.grpo.policy import token_logprobs

# (logp, ref_logp, old_logp) -> KL per token, all of one shape
Estimator = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
# d of a token -> its value, and its slope by d
OneToken = dict[float, tuple[float, float]]

FAR, GREY, CHOSEN = TONES["far"][0], TONES["grey"][0], TONES["two"][0]
KL_AT_END = "KL at the end"


# ------------------------------------------------------------------------------------------------ one token


def value_and_slope(estimator: Estimator, d: float) -> tuple[float, float]:
    """Value of one token, and its slope by d; the old policy is the reference; float32."""
    logp, zero = torch.tensor([-float(d)], requires_grad=True), torch.zeros(1)
    value = estimator(logp, zero, zero).sum()
    (by_logp,) = torch.autograd.grad(value, logp)
    return value.item(), -by_logp.item()


def at_each(estimators: Mapping[str, Estimator], distances: Sequence[float]) -> dict[str, OneToken]:
    """Name of an estimator -> d -> value and slope."""
    return {
        name: {d: value_and_slope(estimator, d) for d in distances}
        for name, estimator in estimators.items()
    }


def digits(number: float) -> str:
    """Three digits, and all of a number of more."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def draw_token(axes: Sequence[Any], measured: Mapping[str, OneToken], curve: str, d: float) -> None:
    """Left, all estimators at this d; right, the curve of one. Both axes hold every value there is."""
    dots, line = axes
    names = list(measured)
    for height, name in enumerate(reversed(names)):
        value, slope = measured[name][d]
        tone = CHOSEN if name == curve else GREY
        dots.plot([0, slope], [height, height], color=tone, lw=1.2, zorder=2)
        dots.plot(slope, height, "o", color=tone, ms=6, zorder=3)
        dots.plot(value, height, "D", color=tone, ms=6, fillstyle="none", zorder=3)
        row = {"transform": dots.get_yaxis_transform(), "va": "center", "fontsize": 7.5}
        dots.text(1.14, height, digits(slope), ha="right", **row)
        dots.text(1.3, height, digits(value), ha="right", **row)
    head = {"transform": dots.get_yaxis_transform(), "ha": "right", "fontsize": 7}
    dots.text(1.14, len(names) - 0.2, "● slope", **head)
    dots.text(1.3, len(names) - 0.2, "◇ value", **head)
    dots.set_yticks(range(len(names)), list(reversed(names)), fontsize=8)
    dots.set(ylim=(-0.6, len(names) - 0.3))
    dots.set_xscale("symlog", linthresh=1)
    dots.set_xlim(-1e3, 1e6)
    dots.set_xticks([-100, -1, 0, 1, 100, 1e4, 1e6], ["−100", "−1", "0", "1", "100", "10⁴", ""])
    dots.axvline(0, color=GREY, lw=0.8)
    dots.minorticks_off()

    distances = list(measured[curve])
    values, slopes = zip(*measured[curve].values(), strict=True)
    line.axhline(0, color=GREY, lw=0.6)
    line.axvline(d, color=FAR, lw=1)
    line.plot(distances, slopes, "o-", color=CHOSEN, ms=2.5, lw=1.6, label="● slope")
    line.plot(
        distances, values, "D-", color=CHOSEN, ms=3, lw=0.7, fillstyle="none", label="◇ value"
    )
    line.set_yscale("symlog", linthresh=1)
    line.set_ylim(-1e3, 1e6)
    line.set_yticks([-100, -1, 0, 1, 100, 1e4, 1e6], ["−100", "−1", "0", "1", "100", "10⁴", "10⁶"])
    line.minorticks_off()
    line.set_title(curve, fontsize=8, color=CHOSEN)
    line.set_xlabel("d, nats", fontsize=8)


# ---------------------------------------------------------------------------------------- draws that are counted


def of_each(
    measure: Callable[..., dict[str, float]],
    estimators: Mapping[Any, Estimator],
    drawn_by: torch.Tensor,
) -> dict[str, dict[str, float]]:
    """Measure each estimator in a process of its own, since one may be the reader's; nothing where it died."""
    jobs = {
        str(name): {"estimator": each, "drawn_by": drawn_by} for name, each in estimators.items()
    }
    runs = sandbox.run_all(measure, jobs, timeout=30)
    return {name: run.events[0] if run.outcome and run.events else {} for name, run in runs.items()}


def rows_of(measured: Mapping[str, Mapping[str, float]]) -> list[dict[str, str]]:
    """The same as rows, for `labkit.table`."""
    rows = []
    for name, of in measured.items():
        row = {
            "KL": name,
            "a draw reads: mean ± spread": "died",
            "gradient's length": "",
            "KL after a step": "",
        }
        if of:
            row["a draw reads: mean ± spread"] = f"{of['mean']:.2f} ± {of['spread']:.2f}"
            row["gradient's length"] = f"{of['length']:.2f}"
            row["KL after a step"] = f"{of['KL after']:.3f}"
        rows.append(row)
    return rows


# -------------------------------------------------------------------------------------------------- training


@torch.no_grad()
def exact_kl(model: Any, reference: Any, out: Any) -> float:
    """KL(policy‖ref) in nats: at each position of these completions over all symbols, and the mean of that."""
    counted = out.mask.bool()
    each = []
    for one in (model, reference):
        _, logits = token_logprobs(one, out.ids, out.attention_mask, counted.shape[1])
        each.append(logits.log_softmax(-1)[counted])
    policy, other = each
    return (policy.exp() * (policy - other)).sum(-1).mean().item()


def learn(policy: str, device: str, hooks: Hooks, **settings: Any) -> Iterator[Any]:
    """A run; then how far its policy is from the reference, on fresh answers to held-out prompts."""
    trained = load(policy, device)
    reference = copy.deepcopy(trained.model).requires_grad_(False)
    # beta = 0: the KL under study is part of the policy loss, since it reads the old log-probs too
    yield from train("add", policy=trained, hooks=hooks, beta=0.0, exam=True, **settings)
    generator = torch.Generator(trained.device).manual_seed(0)
    prompts = task.get("add").held_out()[:100]
    fresh = generate(trained, prompts, num_samples=4, generator=generator)
    yield {KL_AT_END: exact_kl(trained.model, reference, fresh)}


def kl_at_end(run: Run) -> float:
    """In nats; inf where the run died or its policy gives NaN."""
    last = run.events[-1] if run.outcome and run.events else None
    value = last.get(KL_AT_END, math.inf) if isinstance(last, dict) else math.inf
    return value if value == value else math.inf


def shown(value: float, decimals: int) -> str:
    """A number of a table; a run that died has none."""
    return f"{value:.{decimals}f}" if math.isfinite(value) else "died"


def three(runs: Sequence[Run], value: Callable[[Run], float], decimals: int = 2) -> str:
    """One number of each seed's run, for a table; empty where there is no run."""
    return " ".join(shown(value(run), decimals) for run in runs)


def norm_of_update_2(run: Run) -> float:
    """Of the gradient, before any limit; inf where the run died sooner."""
    norms = run["grad_norm"]
    return float(norms[1]) if len(norms) > 1 else math.inf


# ------------------------------------------------------------------------------------------ a log of many updates


def log_of(
    policy: str, device: str, estimators: Mapping[str, Estimator], **settings: Any
) -> Iterator[Any]:
    """A run whose steps carry the mean of each estimator, and the exact KL at the same positions."""
    trained = load(policy, device)
    reference = copy.deepcopy(trained.model).requires_grad_(False)

    def probe(part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
        counted = part.mask.bool()
        drawn = [x[counted] for x in (logp, part.ref_logp, part.old_logp)]
        means = {name: each(*drawn).mean().item() for name, each in estimators.items()}
        means["exact"] = exact_kl(trained.model, reference, part.out)
        return means

    hooks = Hooks(probe=probe, reference=reference)
    yield from train("add", policy=trained, hooks=hooks, **settings)


def picture_of_log(run: Run, names: Sequence[str], title: str) -> None:
    """A line for each number of the log, by update; a grey line where a round begins."""
    import matplotlib.pyplot as plt

    tones = dict(zip(names, ("bug", "four", "one", "two"), strict=False))
    figure, axes = plt.subplots(figsize=(8.4, 2.7), layout="constrained")
    for step in run.steps:
        if step.inner == 1:
            axes.axvline(step.step, color="#D5D5D5", lw=1, zorder=1)
            style = {"fontsize": 7, "transform": axes.get_xaxis_transform()}
            axes.text(step.step + 0.1, 1.0, f"round {step.round}", **style)
    for name in names:
        style = (
            {"ls": (0, (2, 1)), "lw": 2.4}
            if name == "exact"
            else {"lw": 1.6, "marker": "o", "ms": 3}
        )
        tone = GREY if name == "exact" else TONES[tones[name]][0]
        axes.plot([step.step for step in run.steps], run[name], color=tone, label=name, **style)
    axes.axhline(0, color=GREY, lw=0.6)
    axes.set_xlabel("update")
    axes.set_ylabel("mean of the tokens, nats")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left", weight="bold")
    plt.show()


# ------------------------------------------------------------------------------------------------- the exercise


def judge(estimator: Estimator) -> checks.Report:
    """On tokens of an *old* policy: does its mean read KL(policy‖reference), and is its gradient the KL's?

    Counted over all symbols, on ten problems.
    """
    claim = "my_kl", "on old draws its mean and its gradient are those of KL(policy‖ref)"
    wrong_mean = wrong_gradient = 0.0
    for number in range(10):
        generator = torch.Generator().manual_seed(number)
        logits, old, reference = torch.randn(3, 20, 8, generator=generator, dtype=torch.float64)
        logits.requires_grad_()
        logp, old_logp = logits.log_softmax(-1), old.log_softmax(-1)
        per_token = estimator(logp, reference.log_softmax(-1), old_logp)
        if not isinstance(per_token, torch.Tensor) or per_token.shape != logp.shape:
            measured = {"returned": str(per_token)[:80]}
            return checks.Report(*claim, False, measured, "One number per token.")
        mean, true = (old_logp.exp() * per_token).sum(), kl.exact(logits, reference).sum()
        (right,) = torch.autograd.grad(true, logits)
        gradient = torch.zeros_like(right)
        if mean.requires_grad:
            (gradient,) = torch.autograd.grad(mean, logits)
        wrong_mean = max(wrong_mean, abs((mean / true - 1).item()))
        wrong_gradient = max(wrong_gradient, ((gradient - right).norm() / right.norm()).item())
    hint = ""
    if not wrong_mean < 1e-6:
        hint = "The mean is wrong. How much more often does the policy draw a token than the old policy did?"
    elif not wrong_gradient < 1e-6:
        hint = (
            "The mean is right, and its gradient is not: does a gradient flow through the weight?"
        )
    measured = {
        "mean: relative error": f"{wrong_mean:.2g}",
        "gradient: relative error": f"{wrong_gradient:.2g}",
    }
    return checks.Report(*claim, not hint, measured, hint)
