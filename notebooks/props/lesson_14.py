"""What page 14 uses and does not teach: one answer's tokens, drawings, what a log tells, unseen losses, the checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from props.arms import last_exam

from labkit import checks
from labkit.display.panels import TONES
from labkit.events import Run
from labkit.grpo import Hooks, exam, load, loss, train
from labkit.grpo import task as tasks
from labkit.grpo.batch import Batch
from labkit.grpo.grads import Update

FAR, GREY, MIDDLE = TONES["far"][0], TONES["grey"][0], "#8A8A8A"
FALLEN = "fallen while pushed"  # in a log: see `by` on the page
LOWEST = -6.5  # nats: the bottom of the pictures of one answer
LONG = tasks.get("long")

# after 0 to 8 updates: "moved" [B, T] nats, "held" [B, T], and the "norm" of the gradient there
Frames = Sequence[Mapping[str, Any]]


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
    batches: list[Batch] = []

    def keep(part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
        batches.append(part)
        return {}

    hooks = Hooks(probe=keep, update=lambda model, optimizer: Update(0.0))
    list(train("long", **settings | {"rounds": 1, "mu": 1}, hooks=hooks))
    (part,) = batches
    tokenizer = load(settings["policy"], "cpu").tokenizer
    prompts = tokenizer.batch_decode(part.out.prompt_tokens, skip_special_tokens=True)
    answers = []
    for row, (prompt, text) in enumerate(zip(prompts, part.out.texts, strict=True)):
        counts = part.mask[row].bool()
        written = map(tokenizer.decode, part.out.tokens[row][counts][:, None].tolist())
        tokens = [token.replace("<eos>", "⏎") for token in written]
        right = [*LONG.answer(prompt), "⏎"]
        pairs = enumerate(zip(tokens, right, strict=False))
        wrong_at = next((at for at, (one, two) in pairs if one != two), -1)
        chances, advantage = part.old_logp[row][counts].exp().tolist(), float(part.advantages[row])
        answers.append(Answer(row, prompt, text, advantage, tokens, wrong_at, chances))
    return answers


def drawn_most_often(answers: Sequence[Answer]) -> Answer:
    """The wrong answer that was drawn most often; of equally frequent ones the first."""
    wrong = [one for one in answers if one.wrong_at >= 0 and one.advantage < 0]
    texts = [one.text for one in wrong]
    return max(wrong, key=lambda one: texts.count(one.text))


def print_moves(answer: Answer, frame: Mapping[str, Any]) -> None:
    """The answer's tokens, each with its chance when it was drawn and how far it has moved; the mean and the ratio."""
    moved = frame["moved"][answer.row][: len(answer.tokens)]
    print("token ", *(f"{token:>5}" for token in answer.tokens))
    print("chance", *(f"{chance:5.2f}" for chance in answer.chances))
    print("nats  ", *(f"{nats + 0:5.2f}" for nats in moved))
    mean = sum(moved) / len(moved)
    print(f"sum {sum(moved):.2f} nats, mean {mean:.3f}, ratio of the answer {math.exp(mean):.3f}")


def bars(
    panels: Sequence[Any],
    frames: Frames,
    update: int,
    answer: Answer,
    label: str,
    below: float = 1.0,
    behind: Frames = (),
) -> None:
    """A bar for each token of the answer: how far it has moved. At the right their mean, and its limit, dashed."""
    axes, right = panels
    places = range(len(answer.tokens))
    axes.set(ylim=(LOWEST, 1.3), xlim=(-0.7, len(places) - 0.3))
    axes.set_ylabel("moved, nats", fontsize=8)
    axes.set_xticks(places, answer.tokens, fontsize=10)
    right.set(ylim=(-0.32, 0.064), xlim=(-1, 1))
    right.set_xticks([0], ["mean"], fontsize=9)
    for each in panels:
        each.spines[["top", "right", "bottom"]].set_visible(False)
        each.tick_params(axis="x", length=0)
        each.axhline(0, color=GREY, lw=0.8)
    if len(frames) <= update:
        axes.text(7, -3, f"{label}: the run ended before this update", ha="center", fontsize=10)
        return
    moved = _moved(frames[update], answer)
    mean, colour = sum(moved) / len(moved), FAR
    if behind:
        colour, wide = TONES["fix"][0], _moved(behind[update], answer)
        edge = {"fill": False, "edgecolor": TONES["bug"][0], "lw": 1.3, "width": 0.85}
        axes.bar(places, wide, **edge)
        right.bar([0], [sum(wide) / len(wide)], **edge)
    axes.bar(places, moved, width=0.65, color=colour)
    right.bar([0], [mean], width=0.65, color=colour if behind else MIDDLE)
    middle = {"ha": "center", "fontsize": 9}
    axes.text(answer.wrong_at, 0.2, f"{moved[answer.wrong_at]:+.2f}", color=colour, **middle)
    right.text(0, 0.01, f"{mean:+.3f}", **middle)
    if below < 1:
        right.axhline(math.log(1 - below), color=TONES["without"][0], lw=1.3, ls=(0, (4, 2)))
    held = held_since(frames, answer)
    state = f"held since update {held}" if held is not None and held <= update else "pushed"
    axes.text(-0.6, LOWEST + 0.3, f"{label}: {state}", fontsize=9, weight="bold")


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


def rows_of_walks(
    walks: Mapping[str, Frames], answer: Answer, order: Iterable[str]
) -> list[dict[str, Any]]:
    """What each range does to the answer's first wrong token, and to the gradient of all answers."""
    rows = []
    for name in order:
        frames = walks[name]
        held, digit = held_since(frames, answer), frames[8]["moved"][answer.row][answer.wrong_at]
        row = {"range": name, "held since update": str(held or "never")}
        row["wrong digit after 8 updates"] = f"{digit:.2f}"
        norms = " ".join(f"{frame['norm']:.2f}" for frame in frames[:8])
        rows.append(row | {"norm of the gradient, updates 1 to 8": norms})
    return rows


def _moved(frame: Mapping[str, Any], answer: Answer) -> list[float]:
    """What the picture has room for, of each token."""
    moved = torch.tensor(frame["moved"][answer.row][: len(answer.tokens)])
    return moved.nan_to_num(LOWEST).clamp(LOWEST, 1.3).tolist()


def train_and_ask(task: str, policy: str, device: str, **settings: Any) -> Iterator[Any]:
    """`train`, and after the last round what the policy answers to the exam's prompts: see `chances`."""
    loaded = load(policy, device)
    yield from train(task, policy=loaded, **settings)
    yield chances(loaded)


def chances(policy: Any) -> dict[str, float]:
    """The chance of the right answer, of the one that is ten off, and of any third, mean over the exam's prompts."""
    prompts = LONG.held_out()
    off = exam.paper_of(policy.tokenizer, prompts, list(map(ten_off, prompts))).mean(policy.model)
    right = exam.paper(policy.tokenizer, "long").mean(policy.model)
    return {"right": right, "ten off": off, "any third answer": 1 - right - off}


def ten_off(prompt: str) -> str:
    """The answer that the policy was trained to give as often as the right one: its sum is ten too low."""
    right = LONG.answer(prompt)
    copied, total = right[:12], int(right[12:])
    return copied + str(total - 10 if total >= 10 else total + 10)


def mean_chances(runs: Sequence[Run]) -> dict[str, float]:
    """`chances`, mean over the runs that reached their end."""
    ended = [run.events[-1] for run in runs if run.outcome]
    names = ended[0] if ended else {}
    return {name: sum(chance[name] for chance in ended) / len(ended) for name in names}


def third(run: Run) -> float:
    """The chance of an answer that is neither right nor ten off, at the end; 1 where the run did not reach its end."""
    return run.events[-1]["any third answer"] if run.outcome else 1.0


def clipped(run: Run) -> float:
    """The share of clipped tokens at a round's last update, of the answers that have an advantage; mean over rounds.

    The log counts the tied groups too, whose tokens have no gradient to lose: the division leaves them out.
    """
    last = {step.round: step for step in run.steps if step.frac_reward_zero_std < 1}
    shares = [step.clip_fraction / (1 - step.frac_reward_zero_std) for step in last.values()]
    return sum(min(share, 1.0) for share in shares) / max(len(shares), 1)


def fall(run: Run) -> float:
    """Best exam minus last exam."""
    return max(run.exam(), default=0.0) - last_exam(run)


def exam_after(rounds: int, run: Run) -> float:
    """The exam after so many rounds; 0 where the run did not come so far or its policy gives NaN."""
    chances = run.exam()
    chance = chances[rounds] if len(chances) > rounds else 0.0
    return 0.0 if chance != chance else chance


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
    of_rounds = fallen_in(run)
    return sum(of_rounds.values()) / max(len(of_rounds), 1) if run.outcome else math.inf


def fallen_by_round(runs: Sequence[Run]) -> dict[str, str]:
    """`fallen_in`, the furthest of the runs, as a row of a table."""
    of_runs = list(map(fallen_in, runs))
    row = {}
    for number in sorted(set().union(*of_runs)):
        row[f"round {number}"] = f"{max(one.get(number, 0.0) for one in of_runs):.2f}"
    return row


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
        row = {"setting": name, "rounds": max(len(run.exam()) for run in runs) - 1}
        for column, measure in measures.items():
            row[column] = " ".join(f"{measure(run):.2f}" for run in runs)
        rows.append(row)
    return rows


def loss_with(level: str, below: float) -> Callable[..., torch.Tensor]:
    """A policy loss that can be called with tensors of one's own: the ratio of each "token" or of the "sequence".

    below   how far below 1 the ratio may go; 1: to 0, there is no lower end
    """
    clip = (
        below,
        2 * below,
    )  # the upper end is another, so that it does not pass for the lower one

    def loss_of(
        logp: torch.Tensor, old_logp: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        if level == "token":
            each = loss.grpo(logp, old_logp, advantages, clip=clip)
            return loss.token_mean(each.loss, mask, float(mask.sum()))
        each = loss.gspo(logp, old_logp, advantages, mask, clip=clip)
        return loss.sequence_mean(each.loss, mask, len(mask))

    return loss_of


def unseen_losses(seed: int) -> list[tuple[str, float]]:
    """Level and lower end of eight losses: each level with three ranges and with none, as the seed decides."""
    draws = torch.Generator().manual_seed(seed)
    cases = []
    for level in ("token", "sequence"):
        for low, high in ((2e-4, 2e-3), (5e-3, 5e-2), (0.1, 0.4)):
            share = float(torch.rand((), generator=draws))
            cases.append((level, low * (high / low) ** share))
        cases.append((level, 1.0))
    return [cases[at] for at in torch.randperm(len(cases), generator=draws).tolist()]


def judge_reading(reading: Callable[[Callable[..., torch.Tensor]], Any], seed: int) -> Any:
    """Of how many unseen losses does it say whose ratio they hold, and, within a tenth, how far below 1?"""
    right, hint = 0, ""
    cases = unseen_losses(seed)
    for number, (level, below) in enumerate(cases, 1):
        fault = _fault(reading(loss_with(level, below)), level, below)
        right += not fault
        hint = hint or (f"Loss {number}: {fault}" if fault else "")
    counted = {"right": f"{right} of {len(cases)}"}
    return checks.Report("my_reading", "reads unseen losses", not hint, counted, hint)


def _fault(answer: Any, level: str, below: float) -> str:
    """What is wrong with an answer; empty where nothing is."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        return f"it returned {answer!r}. A pair is expected: whose ratio, how far below 1."
    whose, end = answer
    if whose != level:
        return f"it says {whose!r}, and the ratio is that of the {level}."
    if not isinstance(end, int | float):
        return f"how far below 1 is a {type(end).__name__}. A number is expected."
    if not abs(end - below) <= 0.1 * below:
        none = " (there is no lower end)" if below == 1 else ""
        return f"it says {end:.3g}, and this {level}'s ratio may fall {below:.3g} below 1{none}."
    return ""


def judge_range(range_of: Callable[[torch.Tensor], Any]) -> Any:
    """Is the range 0.2 divided by each answer's own counted tokens, at both ends, for lengths of 1 to 16?"""

    def report(hint: str) -> Any:
        claim = "0.2 divided by the number of the answer's own tokens that count"
        return checks.Report("my_range", claim, not hint, {}, hint)

    lengths = torch.tensor([16, 1, 15, 2, 7])
    for width in (16, 20):  # at 20 every row is padded
        returned = range_of((torch.arange(width) < lengths[:, None]).long())
        if not isinstance(returned, tuple) or len(returned) != 2:
            return report(
                f"It returned {type(returned).__name__}. A pair (below, above) is expected."
            )
        for name, end in zip(("below", "above"), returned, strict=True):
            if not isinstance(end, torch.Tensor) or end.shape != (5, 1):
                shape = list(end.shape) if isinstance(end, torch.Tensor) else type(end).__name__
                return report(
                    f"{name}: expected a tensor [5, 1], a number for each answer. It is {shape}."
                )
            for length, given in zip(lengths.tolist(), end[:, 0].tolist(), strict=True):
                if not abs(given - 0.2 / length) <= 1e-6:
                    where = f"For an answer of {length} tokens in a mask [5, {width}]"
                    return report(
                        f"{where} {name} is {given:.4g}. It should be {0.2 / length:.4g}."
                    )
    return report("")
