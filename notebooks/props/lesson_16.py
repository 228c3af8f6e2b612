"""What lesson 16 uses and does not teach: the row that it follows and its picture, another model, judges.

The bug, the rulers and the arms stand in the notebook, scorers to compare with in `props/scorers.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from props.arms import gain
from props.chart import ExamChart
from props.scorers import SCORERS, Scorer, pad_left, rotary, unseen, with_pads

from labkit import checks
from labkit.display.panels import TONES
from labkit.common import number
from labkit.events import Run, Step
from labkit.grpo import Hooks, generate, load, rollout, task, train
from labkit.grpo.policy import Policy
from labkit.grpo.rollout import Completions

ADD = task.get("add")
PROMPT, ANSWER = "49+97=", "146"  # the row that the page follows
PADS = (0, 1, 2, 3, 4, 6, 8, 12, 16)  # before the row; the policy's table has 32 positions
FAR, GREY = TONES["far"][0], TONES["grey"][0]
LOWEST = -15.5  # nats: the bottom of the bars


def qwen_in_one_round(scorer: Scorer, seed: int, device: str) -> Iterator[dict[str, list[float]]]:
    """A Qwen2 learns for one round from the tiny policy's answers: their log-probs before and after, without pads."""
    tiny, parts = load("tiny", device), []

    def answers_of_tiny(policy: Policy, prompts: list[str], **settings: Any) -> Completions:
        return with_pads(generate(tiny, prompts, **settings), 4)

    qwen = Policy(rotary(seed, tiny.device), tiny.tokenizer, "qwen2")
    probe = lambda part, logp, logits: parts.append(part) or {}  # noqa: E731
    hooks = Hooks(generate=answers_of_tiny, scorer=scorer, probe=probe)
    list(train("add", policy=qwen, rounds=1, hooks=hooks, seed=seed))
    out, counts = parts[0].out, parts[0].mask.bool()
    for model in (rotary(seed, tiny.device), qwen.model):
        with torch.no_grad():
            logp, _ = SCORERS["mask + positions"](
                model, out.ids, out.attention_mask, counts.shape[1]
            )
        yield {"logp": logp[counts].tolist()}


# ------------------------------------------------------------------------------------------- the row that is followed


def row(pads: int, policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask [1, pads + 10] of the row: its prompt, its answer and the end token."""
    ids = torch.tensor(
        [policy.tokenizer(PROMPT + ANSWER)["input_ids"] + [policy.tokenizer.eos_token_id]]
    )
    return pad_left(ids, torch.ones_like(ids), pads)


def row_in_a_batch(scorer: Scorer, name: str = "GPT-2") -> Iterator[dict[str, Any]]:
    """The row behind each number of pads: the log-probs of its answer, and the positions that reached the model."""
    policy = load("tiny", "cpu")
    model = policy.model if name == "GPT-2" else rotary(0, "cpu")
    table = model.transformer.wpe if name == "GPT-2" else model.model.rotary_emb
    reached = []

    def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        reached.append(kwargs["position_ids"] if "position_ids" in kwargs else args[-1])

    table.register_forward_pre_hook(keep, with_kwargs=True)
    for pads in PADS:
        ids, mask = row(pads, policy)
        with torch.no_grad():
            logp, _ = scorer(model, ids, mask, len(ANSWER) + 1)
        positions = reached[-1].expand(ids.shape)  # a reader's may be of one row for all, [T]
        yield {"pads": pads, "logp": logp[0].tolist(), "positions": positions[0].tolist()}


def draw_row(
    axes: Sequence[Any],
    frame: Mapping[str, Any] | None,
    alone: Sequence[float],
    tone: str = "bug",
    with_the_bug: Sequence[float] = (),
) -> None:
    """The row as boxes, its positions below; and the log-probs of its answer, alone and in the batch.

    `with_the_bug`, where given, are drawn as empty bars around those in the batch.
    """
    from matplotlib.patches import Rectangle

    boxes, bars = axes
    boxes.set(xlim=(-max(PADS) - 0.3, 10.4), ylim=(-1.4, 1.5), xticks=[], yticks=[])
    boxes.spines[:].set_visible(False)
    if frame is None:
        boxes.text(-max(PADS), 0.5, "ended by an error", fontsize=9)
        bars.set_axis_off()
        return
    pads = frame["pads"]
    tokens = [""] * pads + [*PROMPT, *ANSWER, "end"]
    for place, (token, position) in enumerate(zip(tokens, frame["positions"], strict=True), -pads):
        face = "#FFFFFF" if token else "#D9D9D9"
        boxes.add_patch(Rectangle((place + 0.04, 0.04), 0.92, 0.92, fc=face, ec="#444444", lw=0.8))
        size = 6 if len(token) > 1 else 9
        boxes.text(place + 0.5, 0.48, token, ha="center", va="center", fontsize=size)
        look = {"color": "#222222" if token else GREY}
        if token and position != place:
            look = {"color": FAR, "weight": "bold"}
        boxes.text(place + 0.5, -0.5, position, ha="center", va="center", fontsize=7.5, **look)
    names = tokens[-len(alone) :]
    bars.set(ylim=(LOWEST, 1.2), xlim=(-0.6, len(names) - 0.4))
    bars.set(xticks=range(len(names)), xticklabels=names)
    bars.set_ylabel("log-prob, nats", fontsize=8)
    bars.tick_params(labelsize=8)
    bars.spines[["top", "right"]].set_visible(False)
    bars.axhline(0, color="#444444", lw=0.8)
    arms = {"alone": (alone, TONES["healthy"][0], -0.2)}
    arms["in the batch"] = (frame["logp"], TONES[tone][0], 0.2)
    for name, (values, colour, shift) in arms.items():
        for place, value in enumerate(values):
            shown = max(LOWEST, value) if value == value else LOWEST
            bar = bars.bar(place + shift, shown, 0.38, color=colour)
            at = (place + shift, max(shown, -14) - 0.2)
            text = "0" if value > -0.05 else f"{value:.1f}"  # a bar too low to be seen has its 0
            bars.text(*at, text, ha="center", va="top", fontsize=7)
        bar.set_label(name)
    empty: dict[str, Any] = {
        "fc": "none",
        "ec": TONES["bug"][0],
        "lw": 1.2,
        "label": "with the bug",
    }
    if with_the_bug:
        places = [place + 0.2 for place in range(len(names))]
        bars.bar(places, [max(LOWEST, value) for value in with_the_bug], 0.38, **empty)
    bars.legend(
        frameon=False,
        fontsize=7.5,
        ncols=3,
        columnspacing=1,
        loc="lower right",
        bbox_to_anchor=(1, 0.93),
    )


def how_far(whose: Any, run: Run, alone: torch.Tensor) -> str:
    """A title: what these positions leave of the difference from the row alone, over all numbers of pads."""
    positions = "your positions" if str(whose) == "yours" else "the solution's positions"
    if not run.outcome:
        error = run.outcome.exception or run.outcome.signature
        return f"With {positions} the run ended by an error ({error})"
    differences = [torch.tensor(frame["logp"]) - alone for frame in run.events]
    largest = number(float(torch.stack(differences).abs().max()))
    return (
        f"With {positions} the row behind 0 to 16 pads is at most {largest} nats from the row alone"
    )


def rows_of_logs(first: Mapping[str, Step]) -> list[dict[str, Any]]:
    """Rows of a table: which log-probs are wrong -> what a log shows of that run's first update."""
    rows = []
    for wrong, step in first.items():
        row: dict[str, Any] = {"wrong": wrong, "largest ratio": step.ratio_max}
        row |= {"tokens clipped": step.clip_fraction, "KL": step.kl, "norm": step.grad_norm}
        rows.append(row)
    return rows


def worst(frames: Mapping[Any, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a table: model and inputs -> the largest difference of an answer's token from the row alone, nats."""
    rows: dict[Any, dict[str, Any]] = {}
    for (model, inputs, pads), frame in frames.items():
        alone = torch.tensor(frames[model, "mask + positions", 0]["logp"])
        line = rows.setdefault((model, inputs), {"model": model, "model gets": inputs})
        if pads in (1, 4, 16):
            line[f"pads: {pads}"] = float((torch.tensor(frame["logp"]) - alone).abs().max())
    return list(rows.values())


def rows_of_growth(grown: Mapping[str, Sequence[Run]]) -> list[dict[str, str]]:
    """Rows of a table: the growth of the lead on each seed, in rows that begin at 0 and at 4."""
    rows = []
    for wrong, runs in grown.items():
        row = {"wrong": wrong}
        for begins in ("at 0", "at 4"):
            row[f"rows that begin {begins}"] = " ".join(
                f"{growth(run, begins):+.2f}" for run in runs
            )
        rows.append(row)
    return rows


def growth(run: Run, begins: str) -> float:
    """The growth of the lead in rows that begin there, nats."""
    return next(event["growth"] for event in run.events if event["begins"] == begins)


def rows_of_models(
    from_alone: Mapping[tuple[str, str, str], Sequence[float]],
    sums: Sequence[str],
    pads: Sequence[int],
) -> list[dict[str, Any]]:
    """Rows of a table: (model, inputs, side of the pads) -> the difference of each row, under its number of pads."""
    columns = [f"{text}, pads: {count}" for text, count in zip(sums, pads, strict=True)]
    rows = []
    for (model, inputs, side), differences in from_alone.items():
        row: dict[str, Any] = {"model": model, "model gets": inputs, "pads": side}
        rows.append(row | dict(zip(columns, differences, strict=True)))
    return rows


def chart(start: float, whose: str) -> ExamChart:
    """The chart of the last exams; `whose` positions are the mended ones."""
    tones = {"bug": "bug", whose: "fix", "without pads": "without", "no mask": "two"}
    title = (
        "With the bug in all groups the exam hardly rises; with it in every second group it does"
    )
    return ExamChart(tones, start=start, title=title)


def mean_gain(runs: Sequence[Run]) -> float:
    """By how much the exam rose, mean of the seeds."""
    return sum(map(gain, runs)) / len(runs)


# ---------------------------------------------------------------------------------------------------- the exercises


MASKS = (
    [[1, 1, 1, 1]],
    [[0, 0, 1, 1, 1], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1]],
    [[0, 0, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1]],
    [[0, 0, 0, 0, 0, 0, 0, 1]],
)


def judge_positions(positions: Callable[[torch.Tensor], Any]) -> checks.Report:
    """Do the tokens that count get 0, 1, 2 and so on in each row, and the pads positions that exist?"""
    hints = []
    for rows in MASKS:
        for mask in (torch.tensor(rows), torch.tensor(rows).bool()):
            given = mask.clone()
            hints.append(fault_of(positions(given), mask))
            if not torch.equal(given, mask):
                hints.append("It changed the mask that it was given.")
    hint = next(filter(None, hints), "")
    return checks.Report("my_positions", "numbers the tokens that count", not hint, {}, hint)


def fault_of(found: Any, mask: torch.Tensor) -> str:
    """A sentence about the first row of positions that is wrong; an empty one if none is."""
    if not isinstance(found, torch.Tensor) or found.shape != mask.shape:
        return f"It returned {tuple(getattr(found, 'shape', ())) or type(found).__name__}. Return a tensor as large as the mask."
    if found.dtype != torch.long:
        return f"A table is looked up by torch.long, and it returned {found.dtype}."
    for line, counts in zip(found, mask.bool(), strict=True):
        asked = f"For the mask {counts.long().tolist()} it returned {line.tolist()}."
        if not torch.equal(line[counts], torch.arange(int(counts.sum()))):
            return f"{asked} The tokens that count should get 0, 1, 2 and so on."
        if line.min() < 0 or line.max() >= len(line):
            return f"{asked} A pad's position should be from 0 to T − 1."
    return ""


def answers(
    policy: Policy, seed: int, temperature: float = 1.0
) -> tuple[Completions, torch.Tensor]:
    """16 answers drawn at this temperature, and the log-probs [B, T] that the sampler had while it drew them."""
    recorded = []

    def sample(logits: torch.Tensor, *settings: Any) -> torch.Tensor:
        token = rollout.sample_tokens(logits, *settings)
        logp = (logits.float() / temperature).log_softmax(-1)
        recorded.append(logp.gather(-1, token[:, None])[:, 0])
        return token

    generator = torch.Generator(policy.device).manual_seed(seed)
    prompts = ADD.sample(2, random.Random(seed))
    out = generate(
        policy,
        prompts,
        num_samples=8,
        temperature=temperature,
        generator=generator,
        sample_tokens=sample,
    )
    return out, torch.stack(recorded, 1)


def judge_cause(cause_of: Callable[..., str], policy: Policy, seed: int) -> checks.Report:
    """How many of the unseen scorers the reader's function names. Its rows are sums with their right answers."""
    prompts = [prompt for prompt in ADD.held_out() if len(ADD.answer(prompt)) == 2][:6]
    texts = [prompt + ADD.answer(prompt) for prompt in prompts]
    ids = torch.tensor(policy.tokenizer(texts)["input_ids"], device=policy.device)  # [6, 8]
    right, hint = 0, ""
    scorers = unseen(policy, seed)
    for at, (cause, score) in enumerate(scorers, 1):
        answer = cause_of(score, ids.clone(), torch.ones_like(ids), 2)
        right += answer == cause
        if answer != cause and not hint:
            hint = f"Scorer {at}: it says {answer!r}, and it was {cause!r}."
    seen = {"right": f"{right} of {len(scorers)}"}
    return checks.Report("my_cause", "names the unseen scorers", right == len(scorers), seen, hint)
