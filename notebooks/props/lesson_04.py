"""What page 04 uses and does not teach: two kinds of sums, groups of answers, drawings, evaluations to name.

Nothing here is the page's bug or its fix: `first_token` is an argument everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from props import arms
from props.diagnosis import shuffled

from labkit import checks
from labkit.display.panels import TONES
from labkit.events import Exam, Run, Step
from labkit.grpo import Policy, exam, generate, load, task, train
from labkit.grpo.rollout import each_row

# (logits [P, V], num_samples, sample) -> tokens [P * num_samples]
FirstToken = Callable[..., torch.Tensor]
FIRST, SECOND = "first-token sums", "second-token sums"
ADD = task.get("add")


def kind_of(prompt: str) -> str | None:
    """Where do the right answer and the one that is ten too low differ first? None where the sum is below 10."""
    right = int(ADD.answer(prompt))
    if right < 10:
        return None
    return SECOND if str(right)[0] == str(right - 10)[0] else FIRST


def of_exam(kind: str) -> list[str]:
    return [prompt for prompt in ADD.held_out() if kind_of(prompt) == kind]


SUMS = {FIRST: of_exam(FIRST), SECOND: of_exam(SECOND)}


def train_with_two_exams(
    family: str, *, policy: str, device: str, mu: int = 4, every: int = 1, **settings: Any
) -> Iterator[Step | Exam]:
    """`labkit.grpo.train`, with an exam for each kind of sum: before round 1, and after `every` rounds."""
    trained = load(policy, device)
    papers = {kind: paper_of(trained, kind) for kind in SUMS}

    def examined(round_: int) -> Exam:
        return Exam(round_, {kind: paper.mean(trained.model) for kind, paper in papers.items()})

    yield examined(0)
    for step in train(family, policy=trained, mu=mu, **settings):
        yield step
        if isinstance(step, Step) and step.inner == mu and step.round % every == 0:
            yield examined(step.round)


def paper_of(policy: Policy, kind: str) -> exam.Paper:
    answers = [ADD.answer(prompt) for prompt in SUMS[kind]]
    return exam.paper_of(policy.tokenizer, SUMS[kind], answers)


def gain(run: Run, kind: str = FIRST) -> float:
    """By how much the exam of this kind of sums rose."""
    return arms.gain(run, kind)


def row_of_gains(arm: str, runs: Sequence[Run]) -> dict[str, Any]:
    """A row of a table: the gain of each run on both kinds of sums, and the mean share of tied groups."""
    row: dict[str, Any] = {"arm": arm}
    for kind in SUMS:
        row[f"{kind}: gain"] = "  ".join(f"{gain(run, kind):+.2f}" for run in runs)
    row["tied groups"] = mean([tied for run in runs for tied in run["frac_reward_zero_std"]])
    return row


def mean(values: Sequence[float]) -> float:
    """NaN where there is none, as when a run died before its first number."""
    return sum(values) / len(values) if values else float("nan")


def sampler(
    *, policy: str, device: str, seed: int, equal_rows: bool = False, **settings: Any
) -> Callable[[Sequence[str], int], Any]:
    """(prompts, answers to each) -> their tokens, their texts; with `equal_rows` one answer is copied whole."""
    asked = load(policy, device)
    generator = torch.Generator(asked.device).manual_seed(seed)

    def draw(prompts: Sequence[str], number: int) -> tuple[list[list[int]], list[str]]:
        copies = number if equal_rows else 1
        own = number // copies  # answers that are drawn
        out = generate(asked, list(prompts), num_samples=own, generator=generator, **settings)
        texts = [text for text in out.texts for _ in range(copies)]
        return out.tokens.repeat_interleave(copies, 0).tolist(), texts

    return draw


def answer_in_groups(
    first_token: FirstToken,
    prompts: Sequence[str],
    calls: int = 1,
    num_samples: int = 8,
    **settings: Any,
) -> Iterator[dict[str, Any]]:
    """Ask every prompt in one call, or in several: a group is its prompt, its answers and their rewards."""
    torch.set_num_threads(1)  # faster for a policy this small
    draw = sampler(first_token=first_token, **settings)
    for call in range(calls):
        _, texts = draw(prompts, num_samples)
        for place, prompt in enumerate(prompts):
            answers = texts[place * num_samples : (place + 1) * num_samples]
            rewards = task.rewards([prompt] * num_samples, answers)
            yield {"call": call, "prompt": prompt, "answers": answers, "rewards": rewards}


@torch.no_grad()
def chances(policy: Policy, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Of every sum of a kind, from the logits: the chance of the right first token, and of the right rest after it."""
    ids, mask = policy.encode(SUMS[kind])
    begins = policy.tokenizer([ADD.answer(prompt)[0] for prompt in SUMS[kind]])["input_ids"]
    likely = policy.model(input_ids=ids, attention_mask=mask).logits[:, -1].softmax(-1)  # [P, V]
    first = likely.cpu().gather(1, torch.tensor(begins)).squeeze(1)
    return first, paper_of(policy, kind).chances(policy.model) / first


def several_draws(logits: Any, num_samples: int, sample: Any, draws: int) -> torch.Tensor:
    """Half a repair: so many first tokens are drawn for each prompt, and each is copied to its part of the rows."""
    tokens = torch.stack([sample(logits) for _ in range(draws)], 1)  # [P, draws]
    return tokens.flatten().repeat_interleave(num_samples // draws)


def judge_first_token(first_token: FirstToken) -> Any:
    """Rows of a prompt adjacent, drawn by `sample` alone, and each row with a draw of its own."""
    sure = torch.full((3, 16), -1e9)
    sure[range(3), range(3)] = 0.0  # prompt p begins with token p and with no other
    tokens = first_token(sure, 8, drawn)
    if not isinstance(tokens, torch.Tensor):
        return wrong(f"It returned {type(tokens).__name__}. A tensor of tokens is expected.")
    if tokens.shape != (24,):
        shape = list(tokens.shape)
        return wrong(f"For 3 prompts of 8 answers it returned {shape}; [24] is expected.")
    for row, token in enumerate(tokens.tolist()):
        if token != row // 8:
            text = f"Row {row + 1} belongs to prompt {row // 8 + 1}. It got a token of prompt {token + 1}"
            return wrong(f"{text}: the 8 rows of a prompt stand next to each other.")
    rising = torch.arange(16.0).repeat(3, 1)  # the least likely token is 0
    tokens = first_token(rising, 8, lambda logits: logits.argmin(-1))
    if tokens.any():
        text = "A `sample` that takes the least likely token was passed, and other tokens came back"
        return wrong(f"{text}. `sample` must draw them all: it has temperature and filters.")
    flat = torch.zeros(1, 16)
    return checks.first_token(
        lambda n: first_token(flat, n, drawn)[:, None], num_samples=16, calls=8
    )


def wrong(hint: str) -> checks.Report:
    claim = "each answer draws its own first token"
    return checks.Report("first_token", claim, False, {}, hint)


def drawn(logits: torch.Tensor) -> torch.Tensor:
    """Logits [B, V] -> a token for each row, [B]."""
    return torch.multinomial(logits.softmax(-1), 1).squeeze(-1)


def draw_groups(axes: Any, groups: Sequence[Mapping[str, Any]], left: str = "") -> None:
    """A line for each group: its answers, coloured by their first token, and that token's pushes behind them."""
    begins_right, begins_wrong = TONES["three"][0], TONES["two"][0]
    axes.set(xlim=(-1.9, 14.4), ylim=(len(groups) - 0.4, -0.9), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    write = partial(axes.text, va="center", in_layout=False)
    write(-1.8, -0.7, left, weight="bold", fontsize=8.5)
    if not groups:
        write(0, -0.2, "the run ended before an answer", fontsize=8)
        return
    write(0.35, -0.7, "olive: begins right", color=begins_right, fontsize=8)
    write(4.6, -0.7, "purple: wrong", color=begins_wrong, fontsize=8)
    write(8.2, -0.7, "push on the first token", color=TONES["grey"][0], fontsize=8)
    for line, group in enumerate(groups):
        write(-1.8, line, group["prompt"], family="monospace", fontsize=8)
        right = ADD.answer(group["prompt"])[0]
        for place, answer in enumerate(group["answers"]):
            colour = begins_right if answer[:1] == right else begins_wrong
            box = {"boxstyle": "square,pad=0.25", "facecolor": colour, "edgecolor": "none"}
            style = {"ha": "center", "color": "white", "family": "monospace", "fontsize": 7.5}
            write(place + 0.5, line, answer or "–", bbox=box, **style)
        pushes = sorted(group["pushes"].items(), key=lambda pair: -pair[1])
        texts = [f"{token or '–'}: {signed(push)}" for token, push in pushes]
        if len(texts) > 3:  # there is room for no more: the two largest and the smallest
            texts = [*texts[:2], "…", texts[-1]]
        write(8.2, line, "  ".join(texts), fontsize=7.5)


def signed(push: float) -> str:
    """Two digits and a sign; a sum that is only rounding is 0."""
    return f"{push:+.2f}".replace("-", "−") if abs(push) > 0.005 else "0"


def draw_shares(axes: Any, arm: Mapping[str, Mapping[str, float]], own: Any, tone: str) -> None:
    """A bar for each measure and kind of sum; a black tick: the same with own draws."""
    axes.set(xlim=(0, 1.3), xticks=[0, 0.5, 1])
    axes.tick_params(labelsize=7.5, left=False)
    axes.spines[["top", "right"]].set_visible(False)
    heights: list[float] = []
    names: list[str] = []
    for name in arm[FIRST]:
        for kind in SUMS:
            height = len(names) + 0.3 * (len(names) // 2)
            value, tick = arm[kind][name], own[kind][name]
            alpha = 1.0 if kind == FIRST else 0.4
            axes.barh(height, value, 0.8, color=TONES[tone][0], alpha=alpha)
            axes.plot([tick, tick], [height - 0.45, height + 0.45], color="#333333", lw=1.6)
            axes.text(1.3, height, f"{value:.2f}", va="center", ha="right", fontsize=7.5)
            heights.append(height)
            names.append(f"{name}, {kind.removesuffix(' sums')}")
    axes.set(yticks=heights, yticklabels=names, ylim=(heights[-1] + 0.6, -0.6))


def draw_position(axes: Any, groups: Any, arm: Any, own: Any, tone: str) -> None:
    """One position of the page's figure: groups on the left, shares on the right."""
    draw_groups(axes[0], groups)
    draw_shares(axes[1], arm, own, tone)


def evaluate(first_token: FirstToken = each_row, **settings: Any) -> dict[str, float]:
    """Every third prompt of the exam, in eight calls of eight answers: what an evaluation logs."""
    groups = answer_in_groups(first_token, ADD.held_out()[::3], calls=8, **settings)
    rewards = torch.tensor([group["rewards"] for group in groups])
    rewards = rewards.view(8, -1, 8)  # [call, prompt, row]
    tied = (rewards == rewards[:, :, :1]).all(2)
    return {
        "pass@1": rewards.mean().item(),
        "pass@8, one call": rewards.amax(2).mean().item(),
        "pass@8, a row of eight calls": rewards.amax(0).mean().item(),
        "tied groups": tied.float().mean().item(),
    }


def logs_of(cases: Mapping[str, Mapping[str, Any]], **where: Any) -> dict[str, Any]:
    """Case -> what its evaluation logs."""
    return {case: evaluate(**settings, **where) for case, settings in cases.items()}


def unseen_logs(first_token: FirstToken, seed: int, **where: str) -> list[tuple[str, Any]]:
    """Eight evaluations, two of each cause, in an order that the seed decides: (cause, what is logged)."""
    cases: dict[str, dict[str, Any]] = {
        "token copied 1": {"first_token": first_token, "temperature": 1.3},
        "token copied 2": {"first_token": partial(several_draws, draws=2)},
        "rows copied 1": {"equal_rows": True, "temperature": 1.3},
        "rows copied 2": {"equal_rows": True, "temperature": 0.7},
        "sharp 1": {"temperature": 0.13},
        "sharp 2": {"temperature": 1e-4},
        "healthy 1": {"temperature": 1.3},
        "healthy 2": {"temperature": 0.7},
    }
    return shuffled(logs_of(cases, seed=seed, **where), seed)
