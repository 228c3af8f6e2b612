"""Lesson 15: bytes of the three models, every way to seat them, one step on a simulated card, gradients, pictures.

The bug (`seats_of_the_script`), the rule (`taken`) and the fix (`planned_seats`) stand in the notebook.
"""

import functools
import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch

from labkit import checks
from labkit.grpo import loss, rollout, task
from labkit.grpo.advantage import group_advantage
from labkit.grpo.policy import Policy, load, token_logprobs

from .budget import Shape, predict
from .card import Tap

GIB = 2**30
GPT2 = {
    "GPT-2": Shape(12, 768, 12, 50257, 1024),
    "GPT-2 medium": Shape(24, 1024, 16, 50257, 1024),
    "GPT-2 large": Shape(36, 1280, 20, 50257, 1024),
    "GPT-2 XL": Shape(48, 1600, 25, 50257, 1024),
}
MODELS = ("policy", "reference", "reward")
TOKENS = 128  # of a prompt, and of an answer
Seats = Mapping[str, Sequence[int]]  # model -> the cards that it has a copy on


@dataclass(frozen=True)
class Need:
    """GiB that a resident holds all the time, and GiB that come and go at its fullest moment."""

    standing: float
    moment: float


@functools.cache
def need(model: str, prompts: int, group: int = 8, size: str = "GPT-2", passes: int = 1) -> Need:
    """What the policy, the reference or the reward model takes on a card, as `props.budget.predict` has it.

    prompts   of one copy of the policy; a frozen model scores the answers to so many at a time
    group     answers for each prompt
    size      one of GPT2, for all three models; the reward model has a head of one number
    passes    the rows are worked through in so many parts, and their gradients are added

    Float32, AdamW, TOKENS tokens for a prompt and for an answer.
    """
    shape = GPT2[size]
    weights = 4 * shape.parameters
    work = {"batch": prompts, "group": group, "micro_batches": passes}
    work |= {"prompt": TOKENS, "new_tokens": TOKENS}
    if model == "policy":
        standing = 3 * weights  # and AdamW's two moments
        return Need(standing / GIB, (predict(shape, **work).peak - standing) / GIB)
    scored = shape if model == "reference" else replace(shape, vocab=1)
    (score,) = [phase for phase in predict(scored, **work).phases if phase.name == "score"]
    kinds = score.by_category.items()
    held = sum(taken for kind, taken in kinds if kind not in ("parameter", "optimizer"))
    return Need(weights / GIB, held / GIB)


def every_seating(count: int, prompts: int) -> Iterator[Seats]:
    """The policy on some cards, at most one copy for each prompt; each frozen model beside all of it or on one card."""
    for copies in range(1, min(count, prompts) + 1):
        for policy in itertools.combinations(range(count), copies):
            places = dict.fromkeys([policy, *((card,) for card in range(count))])
            for reference, reward in itertools.product(places, repeat=2):
                yield {"policy": policy, "reference": reference, "reward": reward}


def residents(seats: Seats, card: int) -> tuple[str, ...]:
    """The models with a copy on this card."""
    return tuple(model for model in MODELS if card in seats[model])


def cards_of(seats: Seats) -> list[int]:
    """The cards that hold anything."""
    return sorted({card for held in seats.values() for card in held})


def in_words(seats: Seats) -> str:
    """ "GPU 0: policy, reference; GPU 1: policy, reward" """
    return "; ".join(f"GPU {card}: {', '.join(residents(seats, card))}" for card in cards_of(seats))


def answer_of(seats_for: Callable[[Sequence[float]], Seats], cards: Sequence[float]) -> str:
    """ "starts", or "refuses" where the function raises RuntimeError."""
    try:
        seats_for(cards)
    except RuntimeError:
        return "refuses"
    return "starts"


def emptiest(
    taken: Callable[..., float],
    cards: Sequence[float],
    prompts: int = 4,
    copies: int | None = None,
    **step: Any,
) -> Seats:
    """The seats with which the fullest card is least full, whether they fit or not; with so many copies, if given."""

    def full(seats: Seats) -> float:
        return max(taken(card, seats, prompts, **step) / gib for card, gib in enumerate(cards))

    seatings = every_seating(len(cards), prompts)
    return min((one for one in seatings if copies in (None, len(one["policy"]))), key=full)


def fullest(taken: Callable[..., float], count: int, prompts: int = 4, **step: Any) -> float:
    """GiB on the fullest of so many equal cards, with the seats that keep it emptiest."""
    seats = emptiest(taken, [1.0] * count, prompts, **step)
    step.pop("copies", None)
    return max(taken(card, seats, prompts, **step) for card in cards_of(seats))


# A step on a simulated card --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CardRun:
    """A card's part of one step: its peak in GiB, and the message that it died with on its card, if it did."""

    peak: float
    died: str


def on_simulated_cards(
    seats: Seats, cards: Sequence[float], prompts: int = 4
) -> dict[int, CardRun]:
    """card -> CardRun, for the cards that hold anything; `cards` lists the GiB of each."""
    share = -(-prompts // len(seats["policy"]))
    runs = {}
    for card in cards_of(seats):
        tap = step_on_a_card(residents(seats, card), share)
        oom = tap.replay(int(cards[card] * GIB)).oom
        runs[card] = CardRun(tap.peak / GIB, str(oom or ""))
    return runs


@functools.cache
def step_on_a_card(here: tuple[str, ...], prompts: int, size: str = "GPT-2", group: int = 8) -> Tap:
    """Run the part of a GRPO step that one card has, with fake tensors, and count its allocations.

    here      the models of the card
    prompts   of one copy of the policy

    Score, train, update. Left out: generation, whose caches are smaller than what training holds, and all that is not
    a tensor (CUDA's context, NCCL). AdamW's state exists before the step, as after any first step.
    """
    shape, rows = GPT2[size], prompts * group
    tap = Tap(fake=True)
    models = {model: tap.build(lambda: _gpt2(shape)) for model in here}
    head = tap.build(lambda: torch.nn.Linear(shape.width, 1))  # of the reward model
    for model, module in models.items():
        module.requires_grad_(model == "policy").train(model == "policy")
    with tap:
        tap.adopt(*models.values())
        ids = torch.zeros(rows, 2 * TOKENS, dtype=torch.long)
        mask = torch.ones_like(ids)
        optimizer = _adamw(models["policy"]) if "policy" in models else None
        tap.reset_peak()
        with torch.no_grad():
            scoring = [models[model] for model in ("policy", "reference") if model in models]
            scores = [token_logprobs(one, ids, mask, TOKENS)[0] for one in scoring]
            if "reward" in models:
                layers = models["reward"].transformer
                out = layers(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
                head(out[:, -1])
                del out
        if optimizer is not None:
            logp = token_logprobs(models["policy"], ids, mask, TOKENS)[0]
            ratio = (logp - scores[0]).exp()
            objective = torch.min(ratio, ratio.clamp(0.8, 1.2)).mean()
            (0.04 * (logp - scores[-1]).square().mean() - objective).backward()
            optimizer.step()
    return tap


def _adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    """With its state, as after a first step."""
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(1.0)} | moments
    return optimizer


def _gpt2(shape: Shape) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": shape.layers, "n_embd": shape.width, "n_head": shape.heads}
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **quiet))


def copied_by_data_parallel() -> dict[str, int]:
    """`torch.nn.parallel.replicate`, as `nn.DataParallel` calls it, on two simulated cards: bytes by their use.

    Only the copy over the bus is stood in for: what is made for the second card is booked as "GPU 1, weights".
    """
    tap = Tap(fake=True)
    model = tap.build(lambda: _gpt2(replace(GPT2["GPT-2"], layers=2)))

    def send(tensors: list, devices: list, detach: bool = False) -> list:
        with tap.category("GPU 1, weights"):
            return [tensors, [tensor.clone() for tensor in tensors]]

    module = sys.modules["torch.nn.parallel.replicate"]
    with tap, patch.object(module, "_broadcast_coalesced_reshape", send):
        tap.adopt(model)
        copies = module.replicate(model, [0, 1])  # held until the bytes are read
        held = dict(tap.by_category)
        del copies
    return held


# The gradient of one update, on a small policy ----------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Answers that a policy sampled, with their rewards; rows of one prompt are adjacent, `group` of them."""

    policy: Policy
    out: rollout.Completions
    rewards: torch.Tensor  # [B]
    group: int

    def part(self, prompts: Iterable[int], answers: int | None = None) -> "Batch":
        """Some of the prompts, and of each the first `answers`; None: all."""
        answers = answers or self.group
        rows = [prompt * self.group + at for prompt in prompts for at in range(answers)]
        picked = torch.tensor(rows, device=self.rewards.device)
        return Batch(self.policy, self.out.take(picked), self.rewards[picked], answers)


def sample(model: str, device: str, seed: int, prompts: int = 8, group: int = 8) -> Batch:
    policy = load(model, device)
    asked = task.get("add").sample(prompts, random.Random(seed))
    generator = torch.Generator(policy.device).manual_seed(seed)
    out = rollout.generate(policy, asked, num_samples=group, generator=generator)
    every = [prompt for prompt in asked for _ in range(group)]
    rewards = torch.tensor(task.rewards(every, out.texts), device=policy.device)
    return Batch(policy, out, rewards, group)


def gradient(*parts: Batch, own: bool = False) -> torch.Tensor:
    """The gradient of GRPO's token mean over all rows, a backward pass for each part; flat.

    Every part divides by the tokens of all; with `own` by its own, and the parts are averaged. A round's first update:
    the ratio is 1 and the clip does not act.
    """
    every = float(sum(part.out.mask.sum() for part in parts))
    model = parts[0].policy.model
    model.zero_grad()
    for part in parts:
        out = part.out
        logp, _ = token_logprobs(model, out.ids, out.attention_mask, out.tokens.shape[1])
        advantages = group_advantage(part.rewards, part.group)
        per_token = loss.grpo(logp, logp.detach(), advantages).loss
        tokens = float(out.mask.sum()) * len(parts) if own else every
        loss.token_mean(per_token, out.mask, tokens).backward()
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return torch.cat([one.flatten() for one in found])


def tied(*parts: Batch) -> float:
    """Share of the groups whose rewards are all equal: their advantages are 0."""
    groups = [part.rewards.view(-1, part.group) for part in parts]
    equal = torch.cat([(rows == rows[:, :1]).all(1) for rows in groups])
    return equal.float().mean().item()


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative: 0 for equal gradients."""
    return float((one - other).norm() / other.norm())


def tried(
    change: str, gib: float, whole: torch.Tensor, *parts: Batch, own: bool = False
) -> dict[str, Any]:
    """A row: how far the gradient of these parts is from `whole`, and the share of tied groups."""
    far = distance(gradient(*parts, own=own), whole)
    return {"change": change, "GiB": gib, "gradient": far, "tied groups": tied(*parts)}


# Exercises and pictures -----------------------------------------------------------------------------------------------

COLOURS = {"policy": "#0072b2", "reference": "#8c8c8c", "reward": "#a65628", "moment": "#f0c27b"}
CALLED = {
    "policy": "policy: weights, AdamW",
    "reference": "reference: weights",
    "reward": "reward model: weights",
    "moment": "largest moment",
}


def draw(ways: Mapping[str, Seats], card_gib: float, title: str, prompts: int = 4) -> Any:
    """A bar for each card: standing GiB by model, then the largest moment; the line is where the spare tenth begins."""
    from matplotlib import pyplot

    bars = [(way, seats, card) for way, seats in ways.items() for card in cards_of(seats)]
    figure, axes = pyplot.subplots(
        figsize=(8.6, 0.5 * len(bars) + 1.2), layout="constrained", dpi=110
    )
    labels = []
    for row, (way, seats, card) in enumerate(bars):
        share = -(-prompts // len(seats["policy"]))
        needs = {model: need(model, share) for model in residents(seats, card)}
        parts = {model: one.standing for model, one in needs.items()}
        parts["moment"] = max(one.moment for one in needs.values())
        left = 0.0
        for part, gib in parts.items():
            axes.barh(row, gib, left=left, height=0.62, color=COLOURS[part], edgecolor="white")
            left += gib
        axes.text(left - 0.1, row, f"{left:.2f}", va="center", ha="right", size=9)
        labels.append(f"{way}: GPU {card}")
    axes.set_yticks(range(len(bars)), labels, size=9)
    axes.invert_yaxis()
    axes.axvline(card_gib, color="black")
    axes.axvline(0.9 * card_gib, color="black", linestyle="--", linewidth=0.9)
    axes.set_xlim(0, card_gib * 1.02)
    axes.set_xlabel("GiB, predicted; full line: the card; dashed: a tenth of it stays free")
    axes.spines[["top", "right"]].set_visible(False)
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLOURS[part]) for part in CALLED]
    figure.legend(
        handles, CALLED.values(), loc="outside lower center", ncols=4, frameon=False, fontsize=8
    )
    axes.set_title(title, size=10, weight="bold", loc="left")
    pyplot.close(figure)
    return figure


def beside_the_report(
    taken: Callable[..., float], script: Seats, alone: Seats
) -> list[dict[str, Any]]:
    """The report's row, and for each size of GPT-2 what its step of 4 x 8 takes: GB.

    script   the report's seats; GPU 2 scores the answers to two prompts at a time, or those to all four
    alone    all three models on one card
    """

    def gb(gib: float) -> float:
        return round(gib * GIB / 1e9, 1)

    at_once = "GPU 2, all answers at once"
    told = {"model": "the report, not named", "GPU 0": 9.0, "GPU 1": 9.0, "GPU 2": 7.0, at_once: ""}
    table = [told | {"one card": 15.5}]
    for size in GPT2:
        row: dict[str, Any] = {"model": size}
        for card in (0, 1, 2):
            row[f"GPU {card}"] = gb(taken(card, script, 4, size=size))
        frozen = [need(model, 4, size=size) for model in residents(script, 2)]
        row[at_once] = gb(sum(one.standing for one in frozen) + max(one.moment for one in frozen))
        table.append(row | {"one card": gb(taken(0, alone, 4, size=size))})
    return table


CHECK, CLAIM = "part_for_vllm", "the part is the largest that fits"


def part_for_vllm(answer: Callable[[float, list[float], list[float]], float]) -> checks.Report:
    """Does `answer(card, standing, moments)` give the largest part of the card that a fourth owner can keep?"""
    dice = random.Random(15)
    cases = [
        (16.0, [1.39, 0.46, 0.46], [5.55, 1.53, 0.26]),
        (16.0, [12.0, 3.0], [4.0, 1.0]),
        (80.0, [3.0], [9.0]),
    ]
    for _ in range(20):
        standing = [dice.uniform(0.1, 6) for _ in range(dice.randint(1, 3))]
        cases.append(
            (dice.choice([16.0, 24.0, 80.0]), standing, [dice.uniform(0.1, 9) for _ in standing])
        )
    for card, standing, moments in cases:
        said = answer(card, list(standing), list(moments))
        if not isinstance(said, int | float):
            return checks.Report(CHECK, CLAIM, False, {}, f"Expected a number, got {said!r}.")
        used = sum(standing) + max(moments)
        if abs(said - max(0.0, 0.9 - used / card)) < 1e-6:
            continue
        hint = f"A card of {card:.0f} GiB with {used:.2f} taken at its fullest: got {said:.3f}."
        if abs(said - max(0.0, 0.9 - (sum(standing) + sum(moments)) / card)) < 1e-6:
            hint = "The moments do not meet: the models work one after the other."
        elif abs(said - max(0.0, 1 - used / card)) < 1e-6:
            hint = "A tenth of the card has to stay free."
        elif said < 0:
            hint = "A card that is too full already has no part left: 0, not less."
        return checks.Report(CHECK, CLAIM, False, {}, hint)
    return checks.Report(CHECK, CLAIM, True)


def fullest_at_once(answer: Callable[[dict, dict, list], float]) -> checks.Report:
    """Does `answer(standing, moments, phases)` give the GiB of a card whose models work at the same time?"""
    name, claim = "fullest_at_once", "the fullest phase, on what stands"
    dice = random.Random(15)
    for _ in range(25):
        standing = {model: dice.uniform(0.1, 6) for model in MODELS}
        moments = {model: dice.uniform(0.1, 9) for model in MODELS}
        phases = dice.choice(
            [
                [["policy", "reference"], ["reward"]],
                [["policy"], ["reference", "reward"]],
                [["reward", "policy"], ["policy", "reference"]],
            ]
        )
        stands, sums = sum(standing.values()), [sum(map(moments.get, phase)) for phase in phases]
        said = answer(dict(standing), dict(moments), [list(phase) for phase in phases])
        if not isinstance(said, int | float):
            return checks.Report(name, claim, False, {}, f"Expected a number, got {said!r}.")
        if abs(said - stands - max(sums)) < 1e-6:
            continue
        hint = f"{phases}: got {said:.3f}."
        if abs(said - stands - max(moments.values())) < 1e-6:
            hint = "The lesson's rule. But here moments meet: those of the same phase."
        elif abs(said - stands - sum(sums)) < 1e-6:
            hint = "The phases themselves come one after the other."
        elif abs(said - max(sums)) < 1e-6:
            hint = "What stands is there as well, in every phase."
        return checks.Report(name, claim, False, {}, hint)
    return checks.Report(name, claim, True)
