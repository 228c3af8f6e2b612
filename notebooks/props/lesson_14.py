"""What page 14 uses and does not teach: one answer of round 1 and its tokens, and what the log of a run tells."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from props.arms import first_batch, last_exam

from labkit.events import Run
from labkit.grpo import exam, load, loss, train
from labkit.grpo import task as tasks
from labkit.grpo.batch import Batch

FALLEN = "fallen while pushed"  # in a log: see `by` on the page
LONG = tasks.get("long")

# after 0 to 8 updates: "moved" [B, T] nats, "held" [B, T], and the "norm" of the gradient there
Frames = Sequence[Mapping[str, Any]]


# ---------------------------------------------------------------------------------------------------------- one answer


@dataclass(frozen=True)
class Answer:
    """One answer of round 1."""

    row: int  # in the batch
    prompt: str
    text: str
    advantage: float
    tokens: list[str]  # with the end token, written ⏎
    wrong_at: int  # the place of the first wrong token; -1: it is right
    chances: list[float]  # of its tokens, when they were drawn


def answers_of_round_1(**settings: Any) -> list[Answer]:
    """The answers that round 1 draws: the same with every range, for none has acted yet."""
    part = first_batch("long", **settings)
    tokenizer = load(settings["policy"], "cpu").tokenizer
    prompts = tokenizer.batch_decode(part.out.prompt_tokens, skip_special_tokens=True)
    return [answer_in(part, row, prompt, tokenizer) for row, prompt in enumerate(prompts)]


def answer_in(part: Batch, row: int, prompt: str, tokenizer: Any) -> Answer:
    """The answer in one row of the batch."""
    counts = part.mask[row].bool()
    tokens = []
    for number in part.out.tokens[row][counts].tolist():
        tokens.append(tokenizer.decode([number]).replace("<eos>", "⏎"))
    return Answer(
        row=row,
        prompt=prompt,
        text=part.out.texts[row],
        advantage=float(part.advantages[row]),
        tokens=tokens,
        wrong_at=first_wrong(tokens, [*LONG.answer(prompt), "⏎"]),
        chances=part.old_logp[row][counts].exp().tolist(),
    )


def first_wrong(tokens: Sequence[str], right: Sequence[str]) -> int:
    """The place of the first token that is not the right one; -1 where all are right."""
    for place, (token, right_token) in enumerate(zip(tokens, right, strict=False)):
        if token != right_token:
            return place
    return -1


def drawn_most_often(answers: Sequence[Answer]) -> Answer:
    """The wrong answer that was drawn most often; of equally frequent ones the first."""
    wrong = [answer for answer in answers if answer.wrong_at >= 0 and answer.advantage < 0]
    texts = [answer.text for answer in wrong]
    return max(wrong, key=lambda answer: texts.count(answer.text))


def moved_tokens(frame: Mapping[str, Any], answer: Answer) -> list[float]:
    """How far each token of the answer has moved, nats."""
    return frame["moved"][answer.row][: len(answer.tokens)]


def print_moves(answer: Answer, frame: Mapping[str, Any]) -> None:
    """The answer's tokens, each with its chance when it was drawn and how far it has moved; the mean and the ratio."""
    moved = moved_tokens(frame, answer)
    mean = sum(moved) / len(moved)
    print("token ", *(f"{token:>5}" for token in answer.tokens))
    print("chance", *(f"{chance:5.2f}" for chance in answer.chances))
    print("nats  ", *(f"{nats + 0:5.2f}" for nats in moved))
    print(f"sum {sum(moved):.2f} nats, mean {mean:.3f}, ratio of the answer {math.exp(mean):.3f}")


def held_since(frames: Frames, answer: Answer) -> int | None:
    """After so many updates the clip has taken the gradient of the first wrong token; None: after none of them.

    In GSPO that is the gradient of the whole answer."""
    for updates, frame in enumerate(frames):
        if frame["held"][answer.row][answer.wrong_at]:
            return updates
    return None


def grpo(logp: torch.Tensor, part: Batch) -> loss.PolicyLoss:
    """What `train` takes where no policy loss is named: each token has a ratio and a range of 0.2 of its own."""
    return loss.grpo(logp, part.old_logp, part.advantages)


# ------------------------------------------------------------------------------------------------------ a run's end


def train_and_ask(task: str, policy: str, device: str, **settings: Any) -> Iterator[Any]:
    """`train`, and after the last round what the policy answers to the exam's prompts: see `chances`."""
    loaded = load(policy, device)
    yield from train(task, policy=loaded, **settings)
    yield chances(loaded)


def chances(policy: Any) -> dict[str, float]:
    """The chance of the right answer, of the one that is ten off, and of any third, mean over the exam's prompts."""
    prompts = LONG.held_out()
    right = exam.paper(policy.tokenizer, "long").mean(policy.model)
    wrong_answers = [ten_off(prompt) for prompt in prompts]
    off = exam.paper_of(policy.tokenizer, prompts, wrong_answers).mean(policy.model)
    return {"right": right, "ten off": off, "any third answer": 1 - right - off}


def ten_off(prompt: str) -> str:
    """The answer that the policy was trained to give as often as the right one: its sum is ten too low.

    A sum below ten is ten too high there: the task has no sign.
    """
    right = LONG.answer(prompt)
    copied, total = right[:12], int(right[12:])
    wrong_total = total - 10
    if wrong_total < 0:
        wrong_total = total + 10
    return copied + str(wrong_total)


def mean_chances(runs: Sequence[Run]) -> dict[str, float]:
    """`chances`, mean over the runs that reached their end."""
    at_the_end = [run.events[-1] for run in runs if run.outcome]
    if not at_the_end:
        return {}
    means = {}
    for answer in at_the_end[0]:
        means[answer] = sum(chance[answer] for chance in at_the_end) / len(at_the_end)
    return means


def third(run: Run) -> float:
    """The chance of an answer that is neither right nor ten off, at the end; 1 where the run did not reach its end."""
    if not run.outcome:
        return 1.0
    return run.events[-1]["any third answer"]


# ----------------------------------------------------------------------------------------------------- a run's log


def clipped(run: Run) -> float:
    """The share of clipped tokens at a round's last update, of the answers that have an advantage; mean over rounds.

    The log counts the tied groups too, whose tokens have no gradient to lose: the division leaves them out.
    """
    last_update = {}
    for step in run.steps:
        if step.frac_reward_zero_std < 1:  # not every group is tied
            last_update[step.round] = step
    shares = []
    for step in last_update.values():
        share = step.clip_fraction / (1 - step.frac_reward_zero_std)
        shares.append(min(share, 1.0))  # above 1 where the tied groups' answers are shorter
    return sum(shares) / max(len(shares), 1)


def fall(run: Run) -> float:
    """Best exam minus last exam."""
    return max(run.exam(), default=0.0) - last_exam(run)


def exam_after(rounds: int, run: Run) -> float:
    """The exam after so many rounds; 0 where the run did not come so far or its policy gives NaN."""
    exams = run.exam()
    if len(exams) <= rounds or math.isnan(exams[rounds]):
        return 0.0
    return exams[rounds]


def fallen_in(run: Run) -> dict[int, float]:
    """Round -> nats that a token of a bad answer has fallen while it is pushed: the furthest of the round's updates.

    A round without a bad answer, one of a group that is not tied, is left out.
    """
    furthest: dict[int, float] = {}
    for step in run.steps:
        if FALLEN in step.extra:
            furthest[step.round] = max(furthest.get(step.round, 0.0), step.extra[FALLEN])
    return furthest


def fallen(run: Run) -> float:
    """`fallen_in`, mean over the rounds; inf where the run did not reach its end."""
    if not run.outcome:
        return math.inf
    of_rounds = fallen_in(run)
    return sum(of_rounds.values()) / max(len(of_rounds), 1)


def fallen_by_round(runs: Sequence[Run]) -> dict[str, str]:
    """`fallen_in`, the furthest of the runs, as a row of a table."""
    furthest: dict[int, float] = {}
    for run in runs:
        for number, nats in fallen_in(run).items():
            furthest[number] = max(furthest.get(number, 0.0), nats)
    return {f"round {number}": f"{furthest[number]:.2f}" for number in sorted(furthest)}


def rows_of_runs(arms: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """Name -> runs, one for each seed. What each arm's logs have, a number for each seed."""
    measures = {
        "last exam": last_exam,
        "best minus last": fall,
        "clipped tokens": clipped,
        "nats fallen while pushed": fallen,
    }
    rows = []
    for name, runs in arms.items():
        rounds = max(len(run.exam()) for run in runs) - 1  # the first exam is before training
        row = {"setting": name, "rounds": rounds}
        for column, measure in measures.items():
            row[column] = " ".join(f"{measure(run):.2f}" for run in runs)
        rows.append(row)
    return rows
