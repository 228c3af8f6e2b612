"""What page 01 uses and does not teach: names of tokens, drawings, remedies, the judge of its first exercise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from props.arms import last_exam

from labkit import checks
from labkit.display.panels import TONES
from labkit.events import Run
from labkit.grpo import generate, grads, rollout
from labkit.grpo.batch import Batch

FAR, GREY, INK = TONES["far"][0], TONES["grey"][0], TONES["six"][0]
FAR_FROM = 3.0  # nats: a token whose d is above this is called far; e³ is 20
D_ENDS, NORM_ENDS = (-3, 20), (0.05, 1e7)  # the axes; what lies beyond stands at their ends


# ------------------------------------------------------------------------------------ one token, followed


def written(part: Batch, decode: Callable[[list[int]], str]) -> list[str]:
    """The name of each token that counts: the text before it, and the token in brackets."""
    names = []
    for row, at in part.mask.bool().nonzero().tolist():
        prompt = decode(part.out.prompt_tokens[row][part.out.prompt_mask[row].bool()].tolist())
        answer = [decode([token]) for token in part.out.tokens[row, : at + 1].tolist()]
        names.append(f"{prompt}{''.join(answer[:-1])}[{answer[-1]}]")
    return names


def rows_of_token(frames: Sequence[Mapping[str, Any]], at: int, lr: float) -> list[dict[str, str]]:
    """What each update finds of one token and of all, and how long its step is."""
    rows = []
    for frame in frames:
        d = torch.tensor(frame["d"])
        row = {"update": str(frame["update"]), "d of the token": _plain(d[at])}
        row["its pull, e^d − 1"] = _plain(d[at].expm1())
        row["far tokens"] = str(int((d > FAR_FROM).sum()))
        row |= {"largest d": _plain(d.max()), "norm": _plain(frame["norm"])}
        rows.append(row | {"step = rate · norm": _plain(lr * frame["norm"])})
    return rows


def _plain(value: Any) -> str:
    return f"{value:,.0f}" if 1000 <= value < math.inf else f"{value:.3g}"


def draw_round(
    axes: Sequence[Any], frames: Sequence[Any], at: int, tone: str, before: Sequence[Any] = ()
) -> None:
    """Left d of every token as each update finds it, one of them red; right the gradient norm.

    before  the frames of the bug, to be drawn under it in orange: d of the one token, and the norm
    """
    from matplotlib.collections import LineCollection

    left, right = axes
    left.set(ylim=D_ENDS, yticks=[0, 5, 10, 15, 20], ylabel="d, nats (20: 20 or more)")
    right.set(yscale="log", ylim=NORM_ENDS, ylabel="gradient norm (✗ NaN or inf)")
    right.set_yticks([0.1, 10, 1e3, 1e5, 1e7], ["0.1", "10", "10³", "10⁵", "10⁷"])
    right.minorticks_off()
    for each in axes:
        each.set(xlim=(0.7, 8.3), xticks=range(1, 9), xlabel="update of round 1")
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=7)
        each.xaxis.label.set_size(8)
        each.yaxis.label.set_size(8)
    if before:
        updates = [frame["update"] for frame in before]
        d_of_bug = [min(frame["d"][at], D_ENDS[1]) for frame in before]
        left.plot(updates, d_of_bug, "o-", color=TONES["bug"][0], ms=2.5, lw=1, clip_on=False)
        draw_to_its_end(right, [frame["norm"] for frame in before], TONES["bug"][0])
    if not frames:
        left.text(1, 2, "the run ended before its first update", fontsize=8)
        return
    updates = [frame["update"] for frame in frames]
    d = torch.tensor([frame["d"] for frame in frames]).clamp(*D_ENDS)  # [updates, tokens]
    lines = [list(zip(updates, column, strict=True)) for column in d.T.tolist()]
    left.add_collection(LineCollection(lines, colors=GREY, linewidths=0.5, alpha=0.3))
    left.plot(updates, d[:, at], "o-", color=FAR, ms=3.5, lw=1.6, zorder=4, clip_on=False)
    beyond = [frame for frame in frames if frame["d"][at] > D_ENDS[1]]
    if beyond:
        words = f"{beyond[0]['d'][at]:,.0f}"
        left.text(beyond[0]["update"] + 0.15, 18.5, words, color=FAR, fontsize=8)
    draw_to_its_end(right, [frame["norm"] for frame in frames], TONES[tone][0])


def draw_to_its_end(axes: Any, values: Sequence[float], colour: str, label: str = "") -> None:
    """A curve by update on a logarithmic axis; a cross at the top where it is NaN or inf for the first time."""
    low, high = axes.get_ylim()
    shown = []
    for value in values:
        if not math.isfinite(value):
            axes.plot(len(shown) + 1, high, "X", color=colour, ms=8, clip_on=False, zorder=5)
            break
        shown.append(min(max(value, low), high))
    axes.plot(range(1, len(shown) + 1), shown, "o-", color=colour, ms=3, lw=1.2, label=label)


# ----------------------------------------------------------------------------------------------- remedies


def judge_update(update: Callable[..., Any]) -> Any:
    """`labkit.checks.guard`, and that what it returns can be logged."""
    report = checks.guard(update)
    if not report:
        return report
    hint = wrong_return(update, 5.0) or wrong_return(update, math.nan)
    if not hint:
        return report
    return checks.Report("guard", hint, False, {}, hint)


def wrong_return(update: Callable[..., Any], norm: float) -> str:
    """What the loop cannot use of that which `update` returns for a gradient of this norm; "" if nothing."""
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.grad = torch.full((1, 1), norm)
    returned = update(model, torch.optim.SGD(model.parameters(), lr=0.1))
    if not isinstance(returned, grads.Update) or not isinstance(returned.norm, float):
        return "It steps as asked. The loop needs `grads.Update(norm, skipped=...)` from it, norm a float."
    left_out = not norm <= 10
    if bool(returned.skipped) != left_out:
        return f"It steps as asked. But a norm of {norm:g} must be logged with skipped={left_out}."
    if not left_out and not math.isclose(returned.norm, norm, rel_tol=1e-3):
        return f"It steps as asked. But it returns the norm {returned.norm:g}; before it was shortened it was {norm:g}."
    return ""


def replace_nan(logits: torch.Tensor, *settings: Any) -> torch.Tensor:
    """What transformers' `remove_invalid_values=True` adds, and then the usual draw."""
    from transformers import InfNanRemoveLogitsProcessor

    return rollout.sample_tokens(InfNanRemoveLogitsProcessor()(None, logits), *settings)


def generate_anyway(*args: Any, **settings: Any) -> rollout.Completions:
    return generate(*args, **settings, sample_tokens=replace_nan)


def rows_of_remedies(long_steps: Any, tied: Any) -> list[dict[str, str]]:
    """How the run of each remedy ended: its last exam, 0 for answers by NaN; ✗ where it died."""
    rows = []
    for name, (run,) in long_steps.items():
        row = {"remedy": name}
        for fault, ended in (("long steps", run), ("0 / 0", tied[name][0])):
            row[fault] = f"{last_exam(ended):.2f}" if ended.outcome else "✗"
            row[f"{fault}: skipped"] = f"{sum(ended['skipped']):.0f} of {len(ended.steps)}"
        rows.append(row)
    return rows


def kinds_of_updates(run: Run) -> list[str]:
    """Each update: "taken", "skipped", or "skipped again": in the same round, with the same norm as the one before."""
    kinds, before = [], math.nan
    for step in run.steps:
        same = math.isclose(step.grad_norm, before, rel_tol=1e-3)
        again = step.skipped and step.inner > 1 and same
        kinds.append("skipped again" if again else "skipped" if step.skipped else "taken")
        before = step.grad_norm
    return kinds


def draw_skips(runs: Mapping[str, Run], title: str) -> None:
    """A square for each update, a row for each run."""
    import matplotlib.pyplot as plt

    colours = {"taken": "#D0D0D0", "skipped": INK, "skipped again": GREY}
    figure, axes = plt.subplots(figsize=(8.6, 0.4 * len(runs) + 1.2), layout="constrained")
    for kind, colour in colours.items():
        axes.scatter([], [], marker="s", s=60, color=colour, label=kind)
    for height, run in enumerate(runs.values()):
        for step, kind in zip(run.steps, kinds_of_updates(run), strict=True):
            axes.scatter(step.step, -height, marker="s", s=150, color=colours[kind])
    for begins in (8.5, 16.5):
        axes.axvline(begins, color=GREY, lw=1)
    axes.set(xlabel="update (lines: a new round)", ylim=(0.6 - len(runs), 0.5), xlim=(0.3, 24.7))
    axes.set_yticks([-height for height in range(len(runs))], list(runs))
    axes.legend(ncols=3, frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left", weight="bold")
    plt.show()
