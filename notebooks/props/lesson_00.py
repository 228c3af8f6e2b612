"""What lesson 00 draws and does not teach: eight rows as tokens, the knob's two panels, the gains of its arms.

The loop, the loss and the eight rows' updates stand in the notebook. This file makes no claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from props.arms import gain

import labkit
from labkit.display.panels import TONES
from labkit.display.sheet import GREY, GRID, INK
from labkit.events import Run
from labkit.grpo import task
from labkit.grpo.policy import Policy

State = dict[
    str, Any
]  # what the notebook's `eight_updates` yields: the eight rows before one update

RIGHT, WRONG = TONES["one"][0], TONES["far"][0]  # the answers 99 and 89; the page follows the 8
YOURS = TONES["fix"][0]  # the reader's function, or the solution
FLOOR = 0.05  # ratios below this are drawn here
PUSH = (1.2074, -0.7244)  # the advantages of 3 right and 5 wrong rewards, for the two kinked lines


def tokens_of(policy: Policy, prompt: str, answers: Sequence[str]) -> torch.Tensor:
    """Prompt, answer and end token of each row: [B, T0 + T]. The answers must have equally many tokens."""
    ids, _ = policy.encode([prompt + answer for answer in answers])
    end = torch.full_like(ids[:, :1], policy.tokenizer.eos_token_id)
    return torch.cat([ids, end], 1)


def state_of(
    model: torch.nn.Module,
    advantages: torch.Tensor,
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    loss: torch.Tensor,
    push: torch.Tensor,
) -> State:
    """The numbers of the eight rows before an update. `push` is the loss without its KL term."""
    first = logp[:, 0].exp()
    return {
        "loss": loss.item(),
        "advantages": advantages.view(8).tolist(),
        "ratios": (logp - old_logp).exp().tolist(),  # [8, 3]
        "P": {"9": first[0].item(), "8": first[3].item()},
        "surrogate norm": gradient_norm(push, model),
        "KL norm": gradient_norm(loss - push, model),
    }


def gradient_norm(loss: torch.Tensor, model: torch.nn.Module) -> float:
    """L2 norm of the loss's gradient over all parameters. It leaves `.grad` and the graph as they are."""
    gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return float(torch.nn.utils.get_total_norm(gradients))


# ---------------------------------------------------------------------------------------------- the knob's pictures


def knob(
    title: str,
    runs: Mapping[str, Run],
    *,
    saved: Sequence[tuple[int, str]],
    behind: Mapping[str, Run] | None = None,
) -> None:
    """The eight rows after 0 to 8 updates, with a button for each β.

    runs     β as a word -> the run of the notebook's `eight_updates`
    saved    the positions that a committed page holds: updates, β
    behind   the same of other runs, drawn in grey under these
    """

    def draw(axes: Sequence[Any], update: int, beta: str) -> None:
        draw_eight(axes, runs[beta].events, update, behind[beta].events if behind else ())

    positions = [{"update": update, "beta": beta} for update, beta in saved]
    labkit.explore(
        draw, saved=positions, title=title, panels=(1.15, 1), update=(0, 8, 1), beta=list(runs)
    )


def draw_eight(
    axes: Sequence[Any], states: Sequence[State], update: int, behind: Sequence[State] = ()
) -> None:
    """The first tokens of the eight rows after some updates, and the way of their probabilities until there.

    axes     two panels: what a token adds to the surrogate, by its ratio; the probability of each first token
    states   one for each update that was made, the state before the first one included
    behind   the same of another run, drawn in grey under this one; then this one is drawn in the colour of the fix
    """
    colours = (YOURS, YOURS) if behind else (RIGHT, WRONG)
    _surrogate(axes[0], states, update, colours)
    _probabilities(axes[1], states, update, colours, behind)


def _surrogate(axes: Any, states: Sequence[State], update: int, colours: tuple[str, str]) -> None:
    ratios = [FLOOR + step * (1.4 - FLOOR) / 200 for step in range(201)]
    for push, kind in zip(PUSH, (RIGHT, WRONG), strict=True):
        axes.plot(
            ratios,
            [_smaller(ratio, push) for ratio in ratios],
            color=kind,
            lw=1.1,
            alpha=0.6,
            zorder=2,
        )
    for edge in (0.8, 1.2):
        axes.axvline(edge, color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=1)
    axes.set_xscale("log")
    axes.set_xlim(FLOOR, 1.4)
    axes.set_ylim(-1.3, 1.8)
    axes.set_xticks([0.05, 0.1, 0.2, 0.4, 0.8, 1.2], ["0.05", "0.1", "0.2", "0.4", "0.8", "1.2"])
    axes.minorticks_off()
    axes.set_xlabel("ratio of the first token (dashed: the clip)", size=7)
    axes.set_title("what it adds: min(ratio · A, clipped ratio · A)", size=8, loc="left")
    if update >= len(states):
        axes.text(
            0.02, 0.92, "this run ended by an error", transform=axes.transAxes, size=8, color=INK
        )
        return
    state = states[update]
    names = ("9 (three rows)", "8 (five rows)")
    for row, name, colour, above in zip((0, 3), names, colours, (4, -13), strict=True):
        ratio, push = state["ratios"][row][0], state["advantages"][row]
        # a number that is no number has no place
        if ratio != ratio or push != push:
            axes.text(0.02, 0.92, "not a number", transform=axes.transAxes, size=8, color=INK)
            continue
        ratio = min(max(ratio, FLOOR), 1.4)
        place = (ratio, min(max(_smaller(ratio, push), -1.25), 1.75))
        axes.plot(*place, "o", ms=8, color=colour, clip_on=False, zorder=4)
        side = "right" if row == 0 else "center"  # the first lies near the right edge
        axes.annotate(
            name, place, (-6, above), textcoords="offset points", size=7.5, color=colour, ha=side
        )
    norms = f"norm of the gradient: surrogate {state['surrogate norm']:.2f}, KL term {state['KL norm']:.2f}"
    axes.text(0.02, 0.03, norms, transform=axes.transAxes, size=7.5, color=INK)


def _smaller(ratio: float, push: float) -> float:
    """A token's part of the surrogate."""
    return min(ratio * push, min(max(ratio, 0.8), 1.2) * push)


def _probabilities(
    axes: Any,
    states: Sequence[State],
    update: int,
    colours: tuple[str, str],
    behind: Sequence[State],
) -> None:
    for name, colour, dash in zip(("9", "8"), colours, ("-", "--"), strict=True):
        if behind:
            axes.plot(
                _column(behind, name), color=GREY, lw=4, alpha=0.35, solid_capstyle="butt", zorder=1
            )
        whole = _column(states, name)
        axes.plot(whole, color=colour, lw=1, ls=dash, alpha=0.3, zorder=2)
        axes.plot(whole[: update + 1], color=colour, lw=1.6, ls=dash, zorder=3)
        if update < len(whole):
            axes.plot(update, whole[update], "o", ms=6, color=colour, clip_on=False, zorder=4)
            label = f"P({name}) {whole[update]:.3f}"
            side = (
                {"ha": "left", "xytext": (7, 4)}
                if update < 6
                else {"ha": "right", "xytext": (-4, 7)}
            )
            axes.annotate(
                label,
                (update, whole[update]),
                textcoords="offset points",
                size=7.5,
                color=colour,
                **side,
            )
    axes.set_xlim(0, 8)
    axes.set_ylim(0, 1)
    axes.set_xlabel("update", size=7)
    axes.set_title("probability as the first token", size=8, loc="left")
    axes.grid(axis="y", color=GRID, lw=0.8, zorder=0)


def _column(states: Sequence[State], name: str) -> list[float]:
    return [state["P"][name] for state in states]


# ------------------------------------------------------------------------------------------------- rows of tables


def rows_of_group(prompt: str, answers: Sequence[str], state: State) -> list[dict[str, Any]]:
    rewards = task.rewards([prompt] * len(answers), answers)
    columns = zip(answers, rewards, state["advantages"], strict=True)
    return [{"answer": answer, "reward": reward, "advantage": A} for answer, reward, A in columns]


def row_of_updates(name: str, run: Run) -> dict[str, Any]:
    row: dict[str, Any] = {"P(8) after updates": name}
    for update in (0, 2, 4, 6, 8):
        row[str(update)] = run.events[update]["P"]["8"]
    return row


def gains(runs: Iterable[Run]) -> str:
    """The gains of several runs in one cell of a table; a cross where a run ended by an error."""
    texts = [f"{gain(run):+.3f}" if run.outcome else "✗" for run in runs]
    return "  ".join(texts)


def two_groups(advantage: Callable[[torch.Tensor, int], torch.Tensor]) -> Iterator[State]:
    """The advantages of two groups of 8 rewards whose means are 2 apart: the batch's mean is neither's."""
    rewards = torch.tensor([1.0] * 3 + [0.0] * 5 + [3.0] * 3 + [2.0] * 5)
    yield {"advantages": advantage(rewards, 8).view(16).tolist()}


def difference(run: Run, other: Run) -> float:
    """Largest difference of an advantage between two runs on the same rows; NaN where one has none."""
    if not run.events or not other.events:
        return math.nan
    pairs = zip(run.events[0]["advantages"], other.events[0]["advantages"], strict=True)
    gaps = [abs(mine - its) for mine, its in pairs]
    return math.nan if any(gap != gap for gap in gaps) else max(gaps)


def ended(run: Run) -> str:
    """How a run that ended by an error did so, on one line."""
    words = f"{run.outcome.exception or run.outcome.signature}: {run.outcome.message}"
    return " ".join(words.split())[:160]


def row_of(name: str, runs: Iterable[Run]) -> dict[str, Any]:
    """An arm's row in the table of changes."""
    runs = list(runs)
    ratios = [ratio for run in runs for ratio in run["ratio_max"] if ratio == ratio]
    largest = f"{max(ratios):.2f}" if ratios else "✗"
    updates = max(len(run.steps) for run in runs)
    row: dict[str, Any] = {"what is changed": name, "updates": updates}
    return row | {"gain in the exam, a seed each": gains(runs), "largest ratio": largest}
