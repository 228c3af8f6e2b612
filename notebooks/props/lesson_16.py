"""Lesson 16: a GRPO loop that is handed its scorer, padding, and what is measured about a scorer.

Nothing here is a bug or a fix: `score` is an argument everywhere, and stands in the notebook. A scorer is called as
`score(model, ids, mask, length)`, with `ids` and `mask` [B, T0 + T] and T = `length`, and returns the log-probs of the
last T tokens, [B, T] nats.
"""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from labkit import checks
from labkit.grpo import exam, grads, kl, loss, rollout, task
from labkit.grpo.advantage import group_advantage
from labkit.events import Exam, Run, Step
from labkit.grpo.policy import Policy, load, token_logprobs

Score = Callable[[Any, torch.Tensor, torch.Tensor, int], torch.Tensor]
ADD = task.get("add")
PADS = 4  # on the left of each prompt: 6 tokens become 10
CLIP, BETA, LEARNING_RATE = 0.2, 0.04, 5e-5  # as `labkit.train`
GROUP = 8


def sound(model: Any, ids: torch.Tensor, mask: torch.Tensor, length: int) -> torch.Tensor:
    """labkit's own scorer."""
    return token_logprobs(model, ids, mask, length)[0]


def left(
    ids: torch.Tensor, mask: torch.Tensor, pads: int = PADS, token: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same rows with `pads` more columns on the left, which hold `token` and do not count."""
    more = ids.new_full((len(ids), pads), token)
    return torch.cat([more, ids], 1), torch.cat([torch.zeros_like(more), mask], 1)


def right(
    ids: torch.Tensor, mask: torch.Tensor, pads: int = PADS, token: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same rows with `pads` more columns on the right."""
    more = ids.new_full((len(ids), pads), token)
    return torch.cat([ids, more], 1), torch.cat([mask, torch.zeros_like(more)], 1)


def answers(policy: Policy, seed: int, prompts: int = 8, **settings: Any) -> rollout.Completions:
    """A round of sampled answers: `prompts` sums, eight answers each. Settings as for `labkit.rollout.generate`."""
    dice = torch.Generator(policy.device).manual_seed(seed)
    asked = ADD.sample(prompts, random.Random(seed))
    return rollout.generate(policy, asked, num_samples=GROUP, generator=dice, **settings)


# The loop of lesson 00, with a scorer of your own -----------------------------------------------------------


def learn(
    score: Score,
    seed: int,
    model: str = "tiny",
    device: str = "auto",
    rounds: int = 4,
    mu: int = 4,
    pads: int = PADS,
) -> Iterator[Step | Exam]:
    """GRPO with `labkit.train`'s defaults, but each row is padded by `pads` on the left before it is scored.

    The sampler sees no pads; so does the exam. New, old and reference log-probs all come from `score`. The norm is
    clipped to 0.3, and no update is skipped: a scorer with large gradients shall not lose by that.
    """
    torch.set_num_threads(1)
    policy = load(model, device)
    reference = copy.deepcopy(policy.model).requires_grad_(False)
    paper = exam.paper(policy.tokenizer, ADD.name)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    update = grads.guard(max_norm=0.3, skip_above=float("inf"))
    rng, dice = random.Random(seed), torch.Generator(policy.device).manual_seed(seed)
    number = 0
    yield Exam(0, {ADD.name: paper.mean(policy.model)})
    for round_ in range(1, rounds + 1):
        asked = ADD.sample(8, rng)
        out = rollout.generate(policy, asked, num_samples=GROUP, generator=dice)
        advantages, rewards = judged(policy, asked, out)
        rows = *left(out.ids, out.attention_mask, pads), out.tokens.shape[1]
        with torch.no_grad():
            old, ref = score(policy.model, *rows), score(reference, *rows)
        for inner in range(1, mu + 1):
            total, seen = parts(score(policy.model, *rows), old, ref, advantages, out.mask)
            done = grads.inner_update(policy.model, optimizer, [total], update)
            number += 1
            yield Step(
                step=number,
                round=round_,
                inner=inner,
                loss=float(total.detach()),
                reward=rewards.mean().item(),
                kl=seen["KL"],
                grad_norm=done.norm,
                ratio_max=seen["largest ratio"],
                clip_fraction=seen["tokens clipped"],
                skipped=done.skipped,
            )
        yield Exam(round_, {ADD.name: paper.mean(policy.model)})


def judged(
    policy: Policy, asked: list[str], out: rollout.Completions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and rewards of a round's answers: [B] each."""
    repeated = [prompt for prompt in asked for _ in range(GROUP)]
    rewards = torch.tensor(task.rewards(repeated, out.texts), device=policy.device)
    return group_advantage(rewards, GROUP), rewards


def parts(
    logp: torch.Tensor,
    old: torch.Tensor,
    ref: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss of an update, a scalar, and what a dashboard shows of it. `mask` [B, T]: the answers' tokens."""
    policy_loss = loss.grpo(logp, old, advantages, clip=CLIP)
    divergence = kl.k2(logp, ref)  # [B, T]
    total = loss.token_mean(policy_loss.loss + BETA * divergence, mask, float(mask.sum()))
    counted, ratio, clipped = mask.bool(), policy_loss.ratio, policy_loss.clipped
    return total, {
        "smallest ratio": float(ratio[counted].min()),
        "largest ratio": float(ratio[counted].max()),
        "tokens clipped": float(clipped[counted].float().mean()),
        "KL": float(divergence.detach()[counted].mean()),
    }


def gain(run: Run) -> float:
    """How much the exam rose from the first to the last."""
    chances = run.exam()
    return chances[-1] - chances[0]


# One round, seen from five sides ----------------------------------------------------------------------------


def one_round(
    policy: Policy,
    seed: int,
    new: Score,
    old: Score,
    ref: Score,
    judges: dict[str, Score],
    updates: int = 4,
) -> dict[str, float]:
    """One round on a copy of the policy: its first update as a dashboard sees it, and what all updates taught.

    Each of `judges` gets the growth of the lead by the log-probs that it sees, in nats. The lead is the mean log-prob
    of the round's right answers (sums over tokens) less that of its wrong ones.
    """
    torch.set_num_threads(1)
    model = copy.deepcopy(policy.model)
    asked = ADD.sample(8, random.Random(seed))
    out = answers(policy, seed)
    advantages, rewards = judged(policy, asked, out)
    right, counted = rewards > 0.5, out.mask.bool()
    rows = *left(out.ids, out.attention_mask), out.tokens.shape[1]

    @torch.no_grad()
    def lead(score: Score) -> float:
        logp = torch.where(counted, score(model, *rows), 0.0).sum(1)
        return float(logp[right].mean() - logp[~right].mean())

    before = {name: lead(judge) for name, judge in judges.items()}
    with torch.no_grad():
        others = old(model, *rows), ref(model, *rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    update = grads.guard(max_norm=0.3, skip_above=float("inf"))
    dashboards = []
    for _ in range(updates):
        total, seen = parts(new(model, *rows), *others, advantages, out.mask)
        grads.inner_update(model, optimizer, [total], update)
        dashboards.append(seen)
    return dashboards[0] | {name: lead(judge) - before[name] for name, judge in judges.items()}


# What moves a log-prob --------------------------------------------------------------------------------------


def rotary(seed: int, device: torch.device) -> Any:
    """A Qwen2 of random weights with the tiny policy's vocabulary; its positions are rotary."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"vocab_size": 16, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return (
            Qwen2ForCausalLM(Qwen2Config(initializer_range=0.3, **sizes, **heads)).eval().to(device)
        )


@torch.no_grad()
def furthest(
    score: Score,
    model: Any,
    out: rollout.Completions,
    padded: Callable[..., Any],
    alone: Score | None = None,
) -> float:
    """The largest difference, in nats, of an answer's token between its padded row and the same row alone.

    `padded` is `left` or `right`. Alone means without a pad: one row for each call, by the scorer `alone` (or `score`).
    """
    length, single = out.tokens.shape[1], score if alone is None else alone
    worst = 0.0
    ids, mask = padded(out.ids, out.attention_mask)
    if padded is right:  # the answers are no longer at the end
        found = score(model, ids, mask, length + PADS)[:, :length]
    else:
        found = score(model, ids, mask, length)
    for row, answer in enumerate(out.mask.sum(1).tolist()):
        end = out.prompt_tokens.shape[1] + answer
        own = out.ids[row : row + 1, :end]
        wanted = single(model, own, torch.ones_like(own), answer)[0]
        worst = max(worst, float((found[row, :answer] - wanted).abs().max()))
    return worst


def sampled(
    policy: Policy, seed: int, temperature: float
) -> tuple[rollout.Completions, torch.Tensor]:
    """Answers drawn at this temperature, and the log-probs [B, T] that the sampler had while it drew them."""
    recorded = []

    def sample(logits: torch.Tensor, *settings: Any) -> torch.Tensor:
        token = rollout.sample_tokens(logits, *settings)
        logp = (logits.float() / temperature).log_softmax(-1)
        recorded.append(logp.gather(-1, token[:, None])[:, 0])
        return token

    out = answers(policy, seed, prompts=2, temperature=temperature, sample_tokens=sample)
    return out, torch.stack(recorded, 1)


@torch.no_grad()
def two_tests(
    score: Score, policy: Policy, seed: int, temperature: float = 1.0, model: Any = None
) -> dict:
    """A row against itself alone, and the scorer against the sampler: the largest differences, nats."""
    model = policy.model if model is None else model
    out, recorded = sampled(policy, seed, temperature)
    rows = *left(out.ids, out.attention_mask), out.tokens.shape[1]
    apart = (score(model, *rows) - recorded).abs()[out.mask.bool()]
    return {
        "padded row against itself alone": furthest(score, model, out, left),
        "scorer against sampler": float(apart.max()),
    }


# Exercise A: batches to make masks for ----------------------------------------------------------------------


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor, int, torch.Tensor]]:
    """(ids [B, width + T], prompt_lengths [B], width, mask [B, width + T]); pads and end token are both 1.

    Prompts of unequal length are padded on the left to `width`; answers end with 1 or are cut off.
    """
    for rows in (
        [([7, 9, 12], [5, 1]), ([9, 12], [4, 4, 1]), ([3, 5, 8, 12], [1])],
        [([3, 5, 8, 12], [6, 6, 6]), ([2, 12], [6, 1])],
        [
            ([7, 1, 9, 12], [5, 1]),
            ([12], [5, 5, 1]),
        ],  # a prompt with an end token in it: two turns of a chat
    ):
        width = max(len(prompt) for prompt, _ in rows)
        long = max(len(answer) for _, answer in rows)
        ids, mask = [], []
        for prompt, answer in rows:
            before, after = width - len(prompt), long - len(answer)
            ids.append([1] * before + prompt + answer + [1] * after)
            mask.append([0] * before + [1] * (len(prompt) + len(answer)) + [0] * after)
        lengths = torch.tensor([len(prompt) for prompt, _ in rows])
        yield torch.tensor(ids), lengths, width, torch.tensor(mask)


def marks_what_counts(answer: Callable[..., Any]) -> checks.Report:
    """The grader: the mask of all batches."""
    seen: dict[str, Any] = {}

    def report(passed: bool, hint: str = "") -> checks.Report:
        return checks.Report("marks_what_counts", "the mask of every row", passed, seen, hint)

    for ids, lengths, width, mask in batches():
        said = answer(ids.clone(), lengths.clone(), width, 1)
        if not isinstance(said, torch.Tensor) or said.shape != ids.shape:
            return report(False, f"Return one tensor, as large as ids: {tuple(ids.shape)}.")
        given = said.long()
        if not torch.equal(given, mask):
            row = int((given != mask).any(1).nonzero()[0])
            named = {"ids": ids[row], "mask": given[row], "expected": mask[row]}
            seen |= {name: tensor.tolist() for name, tensor in named.items()}
            if torch.equal(given, (ids != 1).long()):
                return report(
                    False, "Pad and end token are both 1, so an id alone does not say which it is."
                )
            return report(
                False, "An answer counts up to its first end token, and that token counts."
            )
    seen["batches"] = 3
    return report(True)


# Exercise B: scorers that nobody has seen -------------------------------------------------------------------


def unseen(policy: Policy, seed: int) -> dict[str, tuple[Callable[..., torch.Tensor], str]]:
    """Name -> (a scorer with its model inside, called with ids, mask and length; what is wrong with it)."""
    qwen = rotary(seed, policy.device)

    def scorer(
        model: Any, **given: Callable[[torch.Tensor], torch.Tensor]
    ) -> Callable[..., torch.Tensor]:
        @torch.no_grad()
        def score(ids: torch.Tensor, mask: torch.Tensor, length: int) -> torch.Tensor:
            logits = model(
                input_ids=ids, use_cache=False, **{name: of(mask) for name, of in given.items()}
            ).logits
            logp = logits[:, -length - 1 : -1].log_softmax(-1)
            return logp.gather(-1, ids[:, -length:, None])[..., 0]

        return score

    def counted(mask: torch.Tensor) -> torch.Tensor:
        return (mask.cumsum(1) - 1).clamp(min=0)

    def same(mask: torch.Tensor) -> torch.Tensor:
        return mask

    def everything(
        mask: torch.Tensor,
    ) -> torch.Tensor:  # every token sees every token that counts, later ones too
        return mask[:, None, None, :].expand(-1, 1, mask.shape[1], -1).bool()

    return {
        "P": (scorer(policy.model, attention_mask=same), "positions"),
        "Q": (scorer(qwen, attention_mask=torch.ones_like, position_ids=counted), "mask"),
        "R": (scorer(qwen, attention_mask=same), "sound"),
        "S": (
            scorer(policy.model, attention_mask=everything, position_ids=counted),
            "later tokens",
        ),
        "T": (scorer(policy.model, attention_mask=torch.ones_like, position_ids=counted), "mask"),
        "U": (scorer(policy.model, attention_mask=same, position_ids=counted), "sound"),
    }


CAUSES = ("sound", "mask", "positions", "later tokens")


def names_each_cause(answer: Callable[..., Any], policy: Policy, seed: int) -> checks.Report:
    """The grader: every unseen scorer gets its name. The rows are sums with their right answers, without a pad."""
    prompts = [prompt for prompt in ADD.held_out() if len(ADD.answer(prompt)) == 2][:6]
    texts = [prompt + ADD.answer(prompt) for prompt in prompts]
    ids = torch.tensor(policy.tokenizer(texts)["input_ids"], device=policy.device)  # [6, 8]
    said = {
        name: answer(score, ids.clone(), torch.ones_like(ids), 2)
        for name, (score, _) in unseen(policy, seed).items()
    }
    truth = {name: cause for name, (_, cause) in unseen(policy, seed).items()}
    wrong = [name for name in truth if said[name] != truth[name]]
    hint = f"Not yet: {', '.join(f'{name} ({said[name]!r})' for name in wrong)}." if wrong else ""
    return checks.Report("names_each_cause", "six scorers have their cause", not wrong, {}, hint)
