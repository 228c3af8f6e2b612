"""Lesson 08: the runs, the rollouts that are measured, what is printed of them, and the judges of the two exercises.

What is drawn, and by which flags, stands in the notebook. Here draw `one_seed_for_every_request`, and the rollouts
of the second exercise.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from labkit import checks
from labkit.grpo import advantage, grads, loss, rollout, task
from labkit.events import Exam, Step
from labkit.grpo.policy import Policy, load, token_logprobs
from labkit.train import train

TEMPERATURE = 0.7  # what the lesson's sampler is asked for, and what the loss divides the logits by
GROUP = 8
# TRL's defaults for these two: one update a round, no KL term. So the ratio is 1 whenever a gradient is taken.
SETTINGS: dict[str, Any] = {"rounds": 6, "mu": 1, "beta": 0.0, "lr": 1e-4}
# every filter of `generate`, switched off
NO_FILTERS: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
SPECIAL = {"eos_token_id": 1, "pad_token_id": 0}  # of the tiny policy
PANELS = {
    "gradient norm": "grad_norm",
    "std of rewards in a group": "reward_std",
    "mean reward": "reward",
    "exam": "exam",
}
Sample = Callable[..., rollout.Completions]


# Rollouts ------------------------------------------------------------------------------------------------------------


def seed_from(generator: torch.Generator) -> int:
    """A seed drawn from the trainer's generator, for torch's global one, which `model.generate` draws from."""
    return int(torch.randint(2**31, (1,), generator=generator, device=generator.device))


def packed_for_the_trainer(
    policy: Policy, rows: Tensor, ids: Tensor, mask: Tensor, num_samples: int
) -> rollout.Completions:
    """What `model.generate` returned, [B, T0 + T] with the prompts in front, as the trainer wants it."""
    tokens = rows[:, ids.shape[1] :]
    end = (tokens == policy.tokenizer.eos_token_id).long()
    counts = (end.cumsum(1) - end == 0).long()  # up to and including the end token
    return rollout.Completions(tokens, counts, ids, mask, policy.decode(tokens), num_samples)


def ask(
    policy: Policy, sample: Sample, seed: int, prompts: int, family: str = "add"
) -> rollout.Completions:
    """Eight completions for each of so many prompts of a family."""
    generator = torch.Generator(policy.device).manual_seed(seed)
    asked = task.get(family).sample(prompts, random.Random(seed))
    return sample(policy, asked, num_samples=GROUP, max_new_tokens=4, generator=generator)


@torch.no_grad()
def one_seed_for_every_request(
    policy: Policy,
    prompts: Sequence[str],
    flags: Mapping[str, Any],
    *,
    num_samples: int,
    max_new_tokens: int,
    generator: torch.Generator,
) -> rollout.Completions:
    """A sampler that sends eight requests for each prompt, one completion each, and starts each from the same seed."""
    ids, mask = policy.encode(list(prompts))
    seed, requests = seed_from(generator), []
    for _ in range(num_samples):
        torch.manual_seed(seed)
        requests.append(
            policy.model.generate(ids, attention_mask=mask, max_new_tokens=max_new_tokens, **flags)
        )
    rows = torch.stack(requests, 1).flatten(0, 1)  # [P * num_samples, T0 + T]
    ids, mask = (given.repeat_interleave(num_samples, 0) for given in (ids, mask))
    return packed_for_the_trainer(policy, rows, ids, mask, num_samples)


def prompts_of(policy: Policy, out: rollout.Completions) -> list[str]:
    """The prompt of every row."""
    return policy.decode(out.prompt_tokens)


def rewards_of(policy: Policy, out: rollout.Completions) -> Tensor:
    """The task's reward of every row: [B], 1 for a right answer, else 0."""
    return torch.tensor(task.rewards(prompts_of(policy, out), out.texts), device=policy.device)


@torch.no_grad()
def logits_and_tokens(policy: Policy, out: rollout.Completions) -> tuple[Tensor, Tensor]:
    """The tokens that count, [N], and the logits that each was drawn from, [N, V], before any temperature."""
    _, logits = token_logprobs(policy.model, out.ids, out.attention_mask, out.tokens.shape[1])
    counts = out.mask.bool()
    return logits[counts], out.tokens[counts]


def noisy_rewards(policy: Policy, out: rollout.Completions, seed: int) -> Tensor:
    """As `rewards_of`, of the judge with noise; float64."""
    noisy = NoisyJudge(seed)(prompts_of(policy, out), out.texts)
    return torch.tensor(noisy, device=policy.device, dtype=torch.float64)


def first_of_groups(out: rollout.Completions) -> rollout.Completions:
    """One row of each group. A copy is no new draw."""
    return out.take(torch.arange(0, len(out.texts), GROUP, device=out.tokens.device))


def groups_of(out: rollout.Completions) -> list[list[str]]:
    """The completions, a list for each prompt."""
    return [out.texts[row : row + GROUP] for row in range(0, len(out.texts), GROUP)]


def gradient_norm(
    policy: Policy, out: rollout.Completions, rewards: Tensor, dtype: torch.dtype
) -> float:
    """Norm of the gradient of GRPO's loss on this rollout, at a ratio of 1 and without a KL term, computed in this
    dtype from the rewards on."""
    model, length = copy.deepcopy(policy.model).to(dtype), out.tokens.shape[1]
    position = (out.attention_mask.cumsum(-1) - 1).clamp_min(0)
    answer = model(out.ids, attention_mask=out.attention_mask, position_ids=position)
    logp = (answer.logits[:, -length - 1 : -1] / TEMPERATURE).log_softmax(-1)  # [B, T, V]
    logp = logp.gather(-1, out.tokens[..., None]).squeeze(-1)  # [B, T]
    advantages = advantage.group_advantage(rewards.to(dtype), GROUP)
    per_token = loss.grpo(logp, logp.detach(), advantages).loss
    total = (per_token * out.mask).sum() / out.mask.sum()
    gradients = torch.autograd.grad(total, grads.trainable(model))
    return float(torch.nn.utils.get_total_norm(gradients))


# Runs ----------------------------------------------------------------------------------------------------------------


class NoisyJudge:
    """The task's reward plus a little noise (standard deviation 0.05), as of a reward model that is sampled."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def __call__(self, prompts: Sequence[str], texts: Sequence[str]) -> list[float]:
        return [reward + self.random.gauss(0.0, 0.05) for reward in task.rewards(prompts, texts)]


def learn_sums(
    sample: Sample, seed: int, model: str, device: str, noisy: bool = False, **settings: Any
) -> Iterator[Step | Exam]:
    """Six rounds of `labkit.train` with this sampler, with an exam before and after each. Every step has one number
    more: "distance", how far the parameters are from where they started (L2)."""
    policy = load(model, device)
    start = [parameter.detach().clone() for parameter in policy.model.parameters()]
    reward = NoisyJudge(seed) if noisy else task.rewards
    given = {"seed": seed, "device": device, "generate": sample, "reward": reward}
    settings = SETTINGS | given | settings
    for event in train(policy, "add", exam=True, temperature=TEMPERATURE, **settings):
        if isinstance(event, Step):
            event = replace(event, extra=event.extra | {"distance": distance(start, policy)})
        yield event


@torch.no_grad()
def distance(start: Sequence[Tensor], policy: Policy) -> float:
    """L2 distance of the parameters from those."""
    now = policy.model.parameters()
    apart = [
        (before - after).double().square().sum() for before, after in zip(start, now, strict=True)
    ]
    return float(torch.stack(apart).sum().sqrt())


# What is printed -----------------------------------------------------------------------------------------------------


def print_group(
    policy: Policy, out: rollout.Completions, group: int, rewards: Tensor | None = None
) -> None:
    """A group's completions with their rewards and advantages. Given rewards, [B], are those of the noisy judge: they
    come with two digits, and with the sum of the advantages."""
    digits = 0 if rewards is None else 2
    rewards = rewards_of(policy, out) if rewards is None else rewards
    rows = slice(group * GROUP, (group + 1) * GROUP)
    advantages = advantage.group_advantage(rewards, GROUP)[rows]
    print(f"{prompts_of(policy, out)[rows.start]:<12}", *(f"{text:>6}" for text in out.texts[rows]))
    print(f"{'  rewards':<12}", *(f"{reward:>z6.{digits}f}" for reward in rewards[rows].tolist()))
    signed = (f"{value:>+6.2f}" if value else f"{0:>6}" for value in advantages.tolist())
    total = "" if not digits else f"   sum {abs(advantages.sum().item()):.2f}"
    print(f"{'  advantages':<12}", *signed, total)


@torch.no_grad()
def next_token_chances(policy: Policy, text: str, temperature: float) -> str:
    """The three likeliest tokens after this text, as in "4 (0.597), 3 (0.398), 5 (0.005)"."""
    ids, mask = policy.encode([text])
    probabilities = (policy.model(ids, attention_mask=mask).logits[0, -1] / temperature).softmax(-1)
    chances, tokens = probabilities.topk(3)
    names = policy.tokenizer.convert_ids_to_tokens(tokens.tolist())
    pairs = zip(names, chances.tolist(), strict=True)
    return ", ".join(f"{name} ({chance:.3f})" for name, chance in pairs)


def summary(name: str, runs: Mapping[int, Any]) -> dict[str, Any]:
    """A row of the table of runs."""
    distances = [run.steps[-1]["distance"] for run in runs.values()]
    changes = [run.exam()[-1] - run.exam()[0] for run in runs.values()]
    return {
        "run": name,
        "largest gradient norm": max(max(run["grad_norm"]) for run in runs.values()),
        "distance, three seeds": ", ".join(f"{value:.2g}" for value in distances),
        "change of the exam, three seeds": ", ".join(f"{value:+.2f}" for value in changes),
    }


def row_of_counts(
    name: str, out: rollout.Completions, tokens: int, count: int, low: float, high: float
) -> dict[str, Any]:
    """A row of the table of rollouts; tokens: so many were counted."""
    groups = groups_of(out)
    copies = sum(len(set(group)) == 1 for group in groups)
    return {
        "rollout": name,
        "groups of eight copies": f"{copies} of {len(groups)}",
        "tokens that are not the likeliest": f"{count} of {tokens}",
        "range to expect": f"{max(low, 0):.0f} to {high:.0f}",
    }


# What transformers writes, and the first exercise --------------------------------------------------------------------


@contextlib.contextmanager
def lines_about_flags() -> Iterator[list[str]]:
    """The lines about generation flags that transformers logs inside this block, as in a fresh process."""
    lines: list[str] = []
    handler = logging.Handler()

    def keep(record: logging.LogRecord) -> None:
        if "generation flags" in record.getMessage():
            lines.append(record.getMessage())

    handler.emit = keep  # type: ignore[method-assign]
    logger, level = logging.getLogger("transformers"), transformers.logging.get_verbosity()
    transformers.utils.logging.warning_once.cache_clear()  # it remembers what it wrote
    transformers.logging.disable_default_handler()
    transformers.logging.set_verbosity_warning()
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        transformers.logging.set_verbosity(level)
        transformers.logging.enable_default_handler()


def model_of_exercise_a() -> Any:
    """A GPT-2 that nobody trained, with 200 tokens and a generation_config of its own: for every row other logits."""
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 32, "vocab_size": 200}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(
            GPT2Config(**shape, initializer_range=0.3, eos_token_id=1, pad_token_id=0)
        ).eval()
    model.generation_config = GenerationConfig(top_p=0.7, min_p=0.02, **SPECIAL)
    return model


def judge_generate(generate: Callable[..., Any]) -> checks.Report:
    """Does `generate(model, ids, temperature)` draw four tokens from the model's own distribution, and leave its
    generation_config alone?"""
    model = model_of_exercise_a()
    before = model.generation_config.to_dict()
    given: list[tuple[int, Tensor]] = []

    def recorded(ids: Tensor, temperature: float) -> Any:
        rows = generate(model, ids, temperature)
        given.append((ids.shape[1], rows))
        return rows

    report = checks.temperature(recorded, model)
    if report.traceback or not given or not all(isinstance(rows, Tensor) for _, rows in given):
        return report
    if model.generation_config.to_dict() != before:
        return _refused(report, "The model's generation_config was changed. Others use it.")
    if any(rows.shape[1] not in (4, width + 4) for width, rows in given):
        return _refused(report, "Four new tokens a row are asked for.")
    if all(torch.equal(rows, given[0][1]) for _, rows in given[1:]):
        return _refused(report, "The same tokens at four temperatures: nothing was drawn.")
    return report


def _refused(report: checks.Report, why: str) -> checks.Report:
    return replace(report, passed=False, hint=why)


# The second exercise -------------------------------------------------------------------------------------------------


def judge_diagnosis(diagnose: Callable[..., Any]) -> checks.Report:
    """Seven rollouts that the reader has not met, all asked for at 0.7; `diagnose(groups, rewards, logits, tokens)`
    names what is to be seen in each."""
    policy = load("tiny", "cpu")
    greedy, one_seed, solved, sound = _four_rollouts(policy)
    cases = [
        ("greedy decoding", greedy, rewards_of(policy, greedy)),
        ("greedy decoding", greedy, noisy_rewards(policy, greedy, 7)),
        ("one draw copied", one_seed, noisy_rewards(policy, one_seed, 7)),
        ("cannot tell", solved, rewards_of(policy, solved)),
        ("cannot tell", solved, noisy_rewards(policy, solved, 7)),
        ("nothing wrong", sound, rewards_of(policy, sound)),
        ("nothing wrong", sound, noisy_rewards(policy, sound, 7)),
    ]
    claim = "the cause of seven rollouts is named"
    for number, (cause, out, rewards) in enumerate(cases, 1):
        measured = logits_and_tokens(policy, first_of_groups(out))
        answer = diagnose(groups_of(out), rewards.view(-1, GROUP).clone(), *measured)
        if answer != cause:
            answered = {"rollout": number, "answer": str(answer)[:60], "expected": cause}
            hint = "Are the completions of a group copies? If so, what does the count of the first ones say?"
            return checks.Report("my_diagnosis", claim, False, answered, hint)
    return checks.Report("my_diagnosis", claim, True, {"rollouts named": len(cases)})


def _four_rollouts(policy: Policy) -> list[rollout.Completions]:
    """Greedy, one seed for every request, a solved task, and a sound one: 120 prompts each."""
    drawn = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0}
    wanted: list[tuple[Sample, dict[str, Any], str]] = [
        (_of_flags, {"do_sample": False}, "add"),
        (one_seed_for_every_request, drawn, "add"),
        (_of_flags, drawn, "copy"),
        (_of_flags, drawn, "add"),
    ]
    with torch.random.fork_rng():
        return [
            ask(policy, partial(sample, flags=flags), seed, prompts=120, family=family)
            for seed, (sample, flags, family) in enumerate(wanted, 100)
        ]


def _of_flags(
    policy: Policy,
    prompts: Sequence[str],
    flags: Mapping[str, Any],
    *,
    num_samples: int,
    max_new_tokens: int,
    generator: torch.Generator,
) -> rollout.Completions:
    """As the notebook's `sample`."""
    ids, mask = policy.encode([prompt for prompt in prompts for _ in range(num_samples)])
    torch.manual_seed(seed_from(generator))
    rows = policy.model.generate(ids, attention_mask=mask, max_new_tokens=max_new_tokens, **flags)
    return packed_for_the_trainer(policy, rows, ids, mask, num_samples)
