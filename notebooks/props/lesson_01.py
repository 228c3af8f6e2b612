"""What page 01 uses and does not teach: names of tokens, drawings, look-alikes, the logs of its last exercise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from props.arms import LIMIT, last_exam

from labkit import checks, sandbox
from labkit.display.panels import TONES
from labkit.events import Run
from labkit.grpo import Hooks, Sampling, generate, grads, kl, load, rollout, task, train
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


def draw_round(axes: Sequence[Any], frames: Sequence[Any], at: int, tone: str) -> None:
    """Left d of every token as each update finds it, one of them red; right the gradient norm."""
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
    _to_its_end(right, [frame["norm"] for frame in frames], TONES[tone][0])


def _to_its_end(axes: Any, values: Sequence[float], colour: str, label: str = "") -> None:
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
    """`labkit.checks.guard`, and that it returns what the loop needs."""
    report = checks.guard(update)
    if not report:
        return report
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    returned = update(model, torch.optim.SGD(model.parameters(), lr=0.1))
    if isinstance(returned, grads.Update) and isinstance(returned.norm, float):
        return report
    hint = (
        "It steps as asked. The loop needs `grads.Update(norm, skipped=...)` from it, norm a float."
    )
    return checks.Report("guard", hint, False, {"returned": repr(returned)[:60]}, hint)


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

    colours = {"taken": TONES["fix"][0], "skipped": TONES["bug"][0], "skipped again": "#F3C9A5"}
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


# ---------------------------------------------------------------------------------- what looks the same


def in_half(logits: torch.Tensor) -> torch.Tensor:
    return (logits.half() / 1e-4).float().softmax(-1)


def all_forbidden(logits: torch.Tensor) -> torch.Tensor:
    return torch.full_like(logits, -math.inf).softmax(-1)


# cause -> settings of `sample_once`; token ids of the tiny policy end at 15
LOOK_ALIKES: dict[str, dict[str, Any]] = {
    "logits / 1e-4 in half precision": {"change": in_half},
    "every token forbidden by filters": {"change": all_forbidden},
    "probabilities all zero": {"change": torch.zeros_like},
    "token id outside the embedding": {"shift": 100},
}


def sample_once(policy: Any, device: str, change: Any = None, shift: int = 0) -> Iterator[Any]:
    """Draw one token for eight prompts.

    change  logits [B, V] -> probabilities [B, V], in place of softmax
    shift   added to every token id
    """
    sampled = load(policy, device) if isinstance(policy, str) else policy
    yield {"not finite": grads.health(sampled.model).nonfinite}
    ids, mask = sampled.encode(task.get("add").held_out()[:8])
    with torch.no_grad():
        logits = sampled.model(ids + shift, attention_mask=mask).logits[:, -1]
    drawn = torch.multinomial(change(logits) if change else logits.softmax(-1), 1)
    drawn.sum().item()  # on CUDA an assert surfaces when a result is read


def row_of_cause(cause: str, run: Run) -> dict[str, Any]:
    """What is known of a run that died: its norms up to the first NaN, its parameters, the message."""
    norms = run["grad_norm"]
    lost = [at for at, norm in enumerate(norms, 1) if math.isnan(norm)] + [0]
    last = [f"{norm:,.3g}" for norm in norms[max(0, lost[0] - 4) : lost[0]]]
    counts = [int(step.nonfinite_params) for step in run.steps]
    counts += [int(event["not finite"]) for event in run.events if isinstance(event, dict)]
    row = {"cause": cause, "norms before the crash": " → ".join(last) or "–"}
    row |= {"parameters not finite": counts[-1]}
    return row | {"message": " ".join(run.outcome.message.splitlines()[:1])}


# ------------------------------------------------------------------------------------ logs of other runs

SGD = {"optimizer": "sgd", "mu": 8, "beta": 0.04, "kl": kl.k3}
# rounds with a guard; answers in a group
CASES = {"step": (1, 2), "loss": (4, 5), "logits": (1, 2)}
Log = dict[str, Any]


class Unguarded:
    """labkit's guard for so many updates, and then a step that nothing limits."""

    def __init__(self, guarded: int):
        self.left, self.guard = guarded, grads.guard()

    def __call__(self, model: Any, optimizer: Any) -> grads.Update:
        self.left -= 1
        return (self.guard if self.left >= 0 else grads.plain_step)(model, optimizer)


def dying(
    cause: str, number: int, policy: str, device: str, seed: int, zero_by_zero: Any
) -> Iterator[Any]:
    """A run that dies of this cause while it samples; its steps are the log."""
    trained = load(policy, device)
    settings = {"policy": trained, "seed": seed, "lr": 0.05, "rounds": 5, **SGD}
    if cause == "step":
        settings["hooks"] = Hooks(update=Unguarded(8 * number))
    elif cause == "loss":
        settings |= {"lr": 0.003, "rounds": 12, "sampling": Sampling(num_samples=number)}
        settings["hooks"] = Hooks(update=grads.plain_step, policy_loss=zero_by_zero)
    else:
        settings |= {"rounds": number, "hooks": Hooks(update=grads.guard())}
    yield from train("add", **settings)
    if cause == "logits":  # an evaluation after the training, almost greedy, in half precision
        yield from sample_once(trained, device, in_half)


def unseen_logs(seed: int, zero_by_zero: Any, **where: str) -> list[tuple[tuple[str, int], Log]]:
    """Six runs that died while they sampled, in an order of the seed's: ((cause, update to undo), log).

    The update is known from how the run was made: the first without the guard, the first with a tied group, 0 for none.
    """
    jobs = {}
    for cause, numbers in CASES.items():
        for number in numbers:
            jobs[cause, number] = {"cause": cause, "number": number, "seed": seed + number}
    runs = sandbox.run_all(dying, jobs, zero_by_zero=zero_by_zero, **where, timeout=LIMIT)
    logs = []
    for (cause, number), run in runs.items():
        tied = [step.step for step in run.steps if step.frac_reward_zero_std > 0]
        undo = {"step": 8 * number + 1, "loss": tied[0] if tied else 0, "logits": 0}[cause]
        log: Log = {"norms": list(run["grad_norm"]), "kls": list(run["kl"])}
        log["broken"] = [int(step.nonfinite_params) for step in run.steps]
        logs.append(((cause, undo), log))
    order = torch.randperm(len(logs), generator=torch.Generator().manual_seed(seed)).tolist()
    return [logs[place] for place in order]


def draw_logs(logs: Sequence[tuple[Any, Log]], title: str) -> None:
    """Norm and KL of each log, by update; a cross where they are no numbers any more."""
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(2, 3, figsize=(8.6, 3.6), layout="constrained", sharey=True)
    for number, (axes, (_, log)) in enumerate(zip(grid.flat, logs, strict=True), 1):
        axes.set(yscale="log", ylim=(1e-3, 1e7), xlim=(0, 25))
        _to_its_end(axes, log["norms"], INK, "gradient norm")
        _to_its_end(axes, log["kls"], TONES["two"][0], "KL")
        broken = "not finite" if log["broken"][-1] else "finite"
        axes.set_title(f"run {number}: parameters {broken}", fontsize=8, loc="left", pad=9)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].legend(frameon=False, fontsize=7)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left", weight="bold")
    plt.show()
