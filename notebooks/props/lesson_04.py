"""What page 04 uses and does not teach: two kinds of sums, groups of answers, the exercise's judge, evaluations.

Nothing here is the page's bug or its fix: `first_token` is an argument everywhere. Beside it: `lesson_04_pictures.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from props import arms
from props.diagnosis import shuffled

from labkit import checks
from labkit.events import Exam, Run, Step
from labkit.grpo import Policy, exam, generate, load, task, train
from labkit.grpo.rollout import each_row

# (logits [P, V], num_samples, sample) -> tokens [P * num_samples]
FirstToken = Callable[..., torch.Tensor]
FIRST, SECOND = "first-token sums", "second-token sums"
ADD = task.get("add")

# --------------------------------------------------------------------------------------------- two kinds of sums


def kind_of(prompt: str) -> str | None:
    """Where do the right answer and the one that is ten too low differ first? None where the sum is below 10."""
    right = int(ADD.answer(prompt))
    if right < 10:
        return None
    if str(right)[0] == str(right - 10)[0]:
        return SECOND
    return FIRST


def of_exam(kind: str) -> list[str]:
    """The prompts of the exam that are of one kind."""
    return [prompt for prompt in ADD.held_out() if kind_of(prompt) == kind]


SUMS = {FIRST: of_exam(FIRST), SECOND: of_exam(SECOND)}


def paper_of(policy: Policy, kind: str) -> exam.Paper:
    answers = [ADD.answer(prompt) for prompt in SUMS[kind]]
    return exam.paper_of(policy.tokenizer, SUMS[kind], answers)


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


@torch.no_grad()
def chances(policy: Policy, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Of every sum of a kind, from the logits: the chance of the right first token, and of the right rest after it."""
    ids, mask = policy.encode(SUMS[kind])
    begins = [ADD.answer(prompt)[0] for prompt in SUMS[kind]]
    right = torch.tensor(policy.tokenizer(begins)["input_ids"])  # [P, 1]
    logits = policy.model(input_ids=ids, attention_mask=mask).logits[:, -1]  # [P, V]
    first = logits.softmax(-1).cpu().gather(1, right).squeeze(1)
    whole = paper_of(policy, kind).chances(policy.model)  # of the right answer, [P]
    return first, whole / first


def gain(run: Run, kind: str = FIRST) -> float:
    """By how much the exam of this kind of sums rose."""
    return arms.gain(run, kind)


def mean(values: Sequence[float]) -> float:
    """NaN where there is none, as when a run died before its first number."""
    if not values:
        return float("nan")
    return sum(values) / len(values)


def row_of_gains(arm: str, runs: Sequence[Run]) -> dict[str, Any]:
    """A row of a table: the gain of each run on both kinds of sums, and the mean share of tied groups."""
    row: dict[str, Any] = {"arm": arm}
    for kind in SUMS:
        row[f"{kind}: gain"] = "  ".join(f"{gain(run, kind):+.2f}" for run in runs)
    tied: list[float] = []
    for run in runs:
        tied += run["frac_reward_zero_std"]
    row["tied groups"] = mean(tied)
    return row


# ---------------------------------------------------------------------------------------------- groups of answers


def sampler(
    *, policy: str, device: str, seed: int, equal_rows: bool = False, **settings: Any
) -> Callable[[Sequence[str], int], tuple[list[list[int]], list[str]]]:
    """(prompts, answers to each) -> their tokens, their texts; with `equal_rows` one answer is copied whole."""
    asked = load(policy, device)
    generator = torch.Generator(asked.device).manual_seed(seed)

    def draw(prompts: Sequence[str], number: int) -> tuple[list[list[int]], list[str]]:
        copies = 1
        if equal_rows:  # one answer is drawn, and stands in every row
            copies = number
        out = generate(
            asked, list(prompts), num_samples=number // copies, generator=generator, **settings
        )
        tokens = out.tokens.repeat_interleave(copies, 0).tolist()
        texts: list[str] = []
        for text in out.texts:
            texts += [text] * copies
        return tokens, texts

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


def several_draws(logits: Any, num_samples: int, sample: Any, draws: int) -> torch.Tensor:
    """Half a repair: so many first tokens are drawn for each prompt, and each is copied to its part of the rows."""
    tokens = torch.stack([sample(logits) for _ in range(draws)], 1)  # [P, draws]
    return tokens.flatten().repeat_interleave(num_samples // draws)


# ----------------------------------------------------------------------------------------- the judge of an exercise


def judge_first_token(first_token: FirstToken) -> checks.Report:
    """Rows of a prompt adjacent, drawn by `sample` alone, and each row with a draw of its own."""
    hint = fault_of_order(first_token) or fault_of_sample(first_token)
    if hint:
        claim = "each answer draws its own first token"
        return checks.Report("first_token", claim, False, {}, hint)
    flat = torch.zeros(1, 16)
    return checks.first_token(
        lambda number: first_token(flat, number, drawn)[:, None], num_samples=16, calls=8
    )


def fault_of_order(first_token: FirstToken) -> str:
    """A hint where it returns no tensor, not a token for each row, or a token of another prompt; else ""."""
    sure = torch.full((3, 16), -1e9)
    sure[range(3), range(3)] = 0.0  # prompt p begins with token p and with no other
    tokens = first_token(sure, 8, drawn)
    if not isinstance(tokens, torch.Tensor):
        return f"It returned {type(tokens).__name__}. A tensor of tokens is expected."
    if tokens.shape != (24,):
        return f"For 3 prompts of 8 answers it returned {list(tokens.shape)}; [24] is expected."
    for row, token in enumerate(tokens.tolist()):
        prompt = row // 8
        if token != prompt:
            text = f"Row {row + 1} belongs to prompt {prompt + 1}. It got a token of prompt {token + 1}"
            return f"{text}: the 8 rows of a prompt stand next to each other."
    return ""


def fault_of_sample(first_token: FirstToken) -> str:
    """A hint where another than `sample` draws; else ""."""
    rising = torch.arange(16.0).repeat(3, 1)  # the least likely token is 0
    tokens = first_token(rising, 8, lambda logits: logits.argmin(-1))
    if not tokens.any():
        return ""
    text = "A `sample` that takes the least likely token was passed, and other tokens came back"
    return f"{text}. `sample` must draw them all: it has temperature and filters."


def drawn(logits: torch.Tensor) -> torch.Tensor:
    """Logits [B, V] -> a token for each row, [B]."""
    return torch.multinomial(logits.softmax(-1), 1).squeeze(-1)


# ---------------------------------------------------------------------------------------------- evaluations to name


def evaluate(first_token: FirstToken = each_row, **settings: Any) -> dict[str, float]:
    """Every third prompt of the exam, in eight calls of eight answers: what an evaluation logs."""
    groups = answer_in_groups(first_token, ADD.held_out()[::3], calls=8, **settings)
    rewards = torch.tensor([group["rewards"] for group in groups])
    rewards = rewards.view(8, -1, 8)  # [call, prompt, row]
    # a group's reward is 0 or 1 for each row: its largest says whether one is right
    tied = (rewards == rewards[:, :, :1]).all(2)
    return {
        "pass@1": rewards.mean().item(),
        "pass@8, one call": rewards.amax(2).mean().item(),
        "pass@8, a row of eight calls": rewards.amax(0).mean().item(),
        "tied groups": tied.float().mean().item(),
    }


def logs_of(cases: Mapping[str, Mapping[str, Any]], **where: Any) -> dict[str, dict[str, float]]:
    """Case -> what its evaluation logs."""
    return {case: evaluate(**settings, **where) for case, settings in cases.items()}


def unseen_logs(
    first_token: FirstToken, seed: int, **where: str
) -> list[tuple[str, Mapping[str, float]]]:
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
