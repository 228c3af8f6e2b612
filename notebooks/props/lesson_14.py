"""What lesson 14 uses and does not teach: long completions around a short answer, a run, and what it measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from labkit.grpo import loss
from labkit.grpo import task as tasks
from labkit.checks.report import Report
from labkit.events import Exam, Run, Step
from labkit.grpo.loss import PolicyLoss
from labkit.grpo.policy import Policy, load
from labkit.grpo.rollout import Completions
from labkit.grpo.train import Batch
from labkit.train import train

from .children import events_of

LENGTH = 16  # tokens of every completion; the answer and its end token are the first two to four
ROUNDS: dict[str, Any] = {"rounds": 6, "prompts": 3, "num_samples": 8, "mu": 8, "beta": 0.0}


def run(
    policy_loss: Callable[[torch.Tensor, Batch], PolicyLoss],
    seed: int,
    *,
    model: str,
    device: str,
    lr: float = 2e-4,
) -> Iterator[Step | Exam]:
    """Six rounds of `add`: 3 prompts with 8 completions each, 8 updates a round, AdamW, no KL."""
    policy = load(model, device)

    place = torch.empty(0, device=policy.device)
    tokens = torch.empty(0, device=policy.device)  # of the round for which `place` is

    def probe(part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
        nonlocal place, tokens
        if not torch.equal(tokens, part.out.tokens):
            place, tokens = first_wrong_token(policy, part), part.out.tokens
        done = policy_loss(logp, part)
        fallen = {"fallen": furthest_fall(place, part, logp, done)}
        return fallen | clipped_of_the_pushed(part, done)

    return train(policy, "add", seed=seed, lr=lr, generate=go_on, policy_loss=policy_loss,
                 probe=probe, exam=True, **ROUNDS)  # fmt: skip


def first_round(
    policy_loss: Callable[[torch.Tensor, Batch], PolicyLoss], seed: int, *, model: str, device: str
) -> tuple[Batch, list[torch.Tensor]]:
    """The completions of a run's first round, and their log-probs [B, T] at each of its updates."""
    policy, batches, logps = load(model, device), [], []

    def probe(part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
        batches.append(part)
        logps.append(logp)
        return {}

    for _ in train(policy, "add", seed=seed, lr=2e-4, generate=go_on, policy_loss=policy_loss,
                   probe=probe, **ROUNDS | {"rounds": 1}):  # fmt: skip
        pass
    return batches[0], logps


def prompts_of(policy: Policy, batch: Batch) -> list[str]:
    """The prompt of each completion: B strings."""
    return policy.decode(batch.out.prompt_tokens * batch.out.prompt_mask)  # 0 is not decoded


def first_wrong_token(policy: Policy, batch: Batch) -> torch.Tensor:
    """The place of each completion's first token that is not the right answer's: [B]; -1 where the answer is right."""
    add, end = tasks.get("add"), policy.tokenizer.eos_token_id
    places = []
    for prompt, tokens in zip(prompts_of(policy, batch), batch.out.tokens.tolist(), strict=True):
        right = [*policy.tokenizer.encode(add.answer(prompt), add_special_tokens=False), end]
        wrong = [at for at, token in enumerate(right) if tokens[at] != token]
        places.append(wrong[0] if wrong else -1)
    return torch.tensor(places, device=batch.out.tokens.device)


def furthest_fall_while_pushed(
    policy_loss: Callable[[torch.Tensor, Batch], PolicyLoss],
    policy: Policy,
    batch: Batch,
    logps: Sequence[torch.Tensor],
) -> tuple[int, int]:
    """(update, row) at which a bad completion's first wrong token has fallen furthest and the loss still pushes it."""
    place = first_wrong_token(policy, batch).clamp(min=0)[:, None]  # [B, 1]
    logp = torch.stack(list(logps))  # [updates, B, T]
    moved = (logp - batch.old_logp).gather(2, place.expand(len(logp), -1, -1))[..., 0]
    held = torch.stack([policy_loss(at, batch).clipped[:, 0] for at in logps])
    falls = moved.where((batch.advantages < 0) & ~held, torch.inf)  # [updates, B]
    update, row = divmod(int(falls.argmin()), falls.shape[1])
    return update, row


@torch.no_grad()
def go_on(
    policy: Policy,
    prompts: Sequence[str],
    *,
    num_samples: int,
    generator: torch.Generator,
    **_: Any,
) -> Completions:
    """Completions of `LENGTH` tokens that all count. The text, which the reward reads, ends at the first end token.

    Called as `labkit.rollout.generate` is; temperature 1, no filters.
    """
    asked, mask = policy.encode(
        [prompt for prompt in prompts for _ in range(num_samples)]
    )  # [B, T0]
    ids, attention, fed, cached = asked, mask, asked, {}
    for _ in range(LENGTH):
        out = policy.model(input_ids=fed, attention_mask=attention, use_cache=True, **cached)
        cached = {"past_key_values": out.past_key_values}
        fed = torch.multinomial(out.logits[:, -1].softmax(-1), 1, generator=generator)  # [B, 1]
        ids = torch.cat([ids, fed], 1)
        attention = torch.cat([attention, torch.ones_like(fed)], 1)
    tokens = ids[:, asked.shape[1] :]  # [B, LENGTH]
    before_the_end = (tokens == policy.tokenizer.eos_token_id).cumsum(1) == 0
    texts = policy.decode(tokens * before_the_end)  # 0 is padding, and not decoded
    return Completions(tokens, torch.ones_like(tokens), asked, mask, texts, num_samples)


def furthest_fall(place: torch.Tensor, part: Batch, logp: torch.Tensor, done: PolicyLoss) -> float:
    """How far the first wrong token of a bad completion has fallen that the loss still pushes: the furthest, nats.

    place   [B], of the first wrong token: see `first_wrong_token`
    """
    bad = (part.advantages < 0) & (place >= 0)
    at = place[bad][:, None]
    pushed = ~done.clipped[bad].gather(1, at)
    return max([0.0, *(part.old_logp - logp)[bad].gather(1, at)[pushed].tolist()])


def clipped_of_the_pushed(part: Batch, done: PolicyLoss) -> dict[str, float]:
    """The share of clipped tokens, of the completions with an advantage: the others have no gradient to lose."""
    pushed = part.advantages != 0
    return {"clipped": done.clipped[pushed].float().mean().item()} if pushed.any() else {}


def fall_while_pushed(one: Run) -> float:
    """How far a wrong token has fallen while the loss pushes it: the furthest of a round, nats, mean over the rounds."""
    of_round: dict[int, float] = {}
    for step in one.steps:
        of_round[step.round] = max(of_round.get(step.round, 0.0), step.extra["fallen"])
    return sum(of_round.values()) / len(of_round)


def clipped_share(one: Run) -> float:
    """The share of clipped tokens at a round's last update, mean over the rounds: see `clipped_of_the_pushed`."""
    last = [step for step in one.steps if step.inner == ROUNDS["mu"] and "clipped" in step.extra]
    return sum(step.extra["clipped"] for step in last) / len(last)


def last_exam(one: Run) -> float:
    return one.exam()[-1]


def best_minus_last(one: Run) -> float:
    return max(one.exam()) - last_exam(one)


def mean_over(runs: Mapping[int, Run], measure: Callable[[Run], float]) -> float:
    """The mean of a measure over the runs of an arm. Raises: RuntimeError names a run that died."""
    for seed, one in runs.items():
        events_of(one, f"seed {seed}")
    return sum(map(measure, runs.values())) / len(runs)


# The exercises' checks -----------------------------------------------------------------------------------------

CLAIM_OF_LOSS = "GSPO whose range is a token's range divided by the completion's own length: losses and gradients"
CLAIM_OF_CLIP = "the level of the ratio, and how far below 1 it may fall, of seven losses"


def loss_is_right(loss_of: Callable[..., Any]) -> Report:
    """Whether `loss_of(logp, old_logp, advantages, mask, token_range)` is GSPO with a range for each row, [B].

    The reference is `labkit.loss.gspo`, a row at a time, without the padding.
    """
    generator = torch.Generator().manual_seed(0)
    seen: dict[str, Any] = {}
    for token_range in (0.2, 0.05):
        lengths = torch.randint(1, 13, (40,), generator=generator)
        mask = (torch.arange(12) < lengths[:, None]).float()
        old = -3 * torch.rand(40, 12, generator=generator)
        moved = 1.5 * token_range / lengths[:, None] * torch.randn(40, 1, generator=generator)
        logp = old + torch.where(
            mask.bool(), moved, 5.0
        )  # what stands in the padding does not count
        advantages = torch.randn(40, generator=generator)
        logp.requires_grad_()
        given = loss_of(logp, old, advantages, mask.clone(), token_range)
        if given is None:
            return Report(
                "loss", CLAIM_OF_LOSS, False, seen, "It returned nothing: return the losses, [B]."
            )
        if given.shape != (40,):
            hint = f"One loss a completion: expected the shape (40,), got {tuple(given.shape)}."
            return Report("loss", CLAIM_OF_LOSS, False, seen, hint)
        expected = torch.stack([
            loss.gspo(*(t[row : row + 1, :length] for t in (logp, old)), advantages[row : row + 1],
                      mask[row : row + 1, :length], clip=(token_range / length,) * 2).loss.mean()
            for row, length in enumerate(lengths.tolist())
        ])  # fmt: skip
        slopes = [torch.autograd.grad(value.sum(), logp)[0] for value in (given, expected)]
        off = max((given - expected).abs().max().item(), (slopes[0] - slopes[1]).abs().max().item())
        seen[f"token range {token_range:g}"] = f"losses and slopes differ by at most {off:.2g}"
        if off > 1e-4:
            hint = "A bad completion whose ratio has risen keeps its gradient: `minimum` of both terms decides, by row."
            wrong = ((given - expected).abs() > 1e-4) | (
                (slopes[0] - slopes[1]).abs().amax(1) > 1e-4
            )
            if wrong[lengths == 12].logical_not().all():
                hint = (
                    "Rows without padding are right. Length and mean are of the tokens that count."
                )
            return Report("loss", CLAIM_OF_LOSS, False, seen, hint)
    return Report("loss", CLAIM_OF_LOSS, True, seen)


def clip_is_named(clip_of: Callable[..., Any]) -> Report:
    """Whether `clip_of(loss_of)` gives (level, below) of losses it has not seen: within a tenth of the range."""
    cases = [("token", 0.2), ("sequence", 0.2), ("sequence", 3e-4), ("token", 0.28)]
    cases += [("sequence", 0.02), ("token", 1.0), ("sequence", 1.0)]
    seen: dict[str, Any] = {}
    for number, (level, below) in enumerate(cases, 1):
        given = clip_of(_loss_with(level, below))
        seen[f"loss {number}"] = f"{given}, expected {(level, below)}"
        if given is None or given[0] != level:
            hint = "Move one token a little. With a ratio for the whole completion the slopes of the other tokens change too."
            return Report("clip", CLAIM_OF_CLIP, False, seen, hint)
        if not abs(given[1] - below) < 0.1 * below:
            hint = "With an advantage of -1, move all tokens by log(1 - x): the smallest x at which every slope is 0."
            return Report("clip", CLAIM_OF_CLIP, False, seen, hint)
    return Report("clip", CLAIM_OF_CLIP, True, seen)


def _loss_with(level: str, below: float) -> Callable[..., torch.Tensor]:
    clip = (
        below,
        2 * below,
    )  # the upper end is another, so that it does not pass for the lower one

    def loss_of(
        logp: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        if level == "token":
            part = loss.grpo(logp, old, advantages, clip=clip)
            return loss.token_mean(part.loss, mask, float(mask.sum()))
        part = loss.gspo(logp, old, advantages, mask, clip=clip)
        return loss.sequence_mean(part.loss, mask, len(mask))

    return loss_of
