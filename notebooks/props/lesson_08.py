"""What page 08 uses and does not teach: the rows of a rollout, its tables, a judge, and rollouts that nobody has seen.

What is drawn, and by which settings, stands in the notebook. Here is drawn only what the last exercise measures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from props.diagnosis import shuffled
from torch import Tensor
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from labkit import checks, sandbox
from labkit.events import Run
from labkit.grpo import rollout, task
from labkit.grpo.advantage import group_advantage
from labkit.grpo.policy import Policy, token_logprobs

GROUP = 8  # completions for each prompt
NEW_TOKENS = 4  # at most, for each completion
SPECIAL = {"eos_token_id": 1, "pad_token_id": 0}  # of the tiny policy

# model, ids [B, T0], temperature -> [B, T0 + T]
Sampler = Callable[[Any, Tensor, float], Tensor]


# ------------------------------------------------------------------------------------------------ rows of a rollout


def seed_from(generator: torch.Generator) -> int:
    """A seed drawn from the trainer's generator, for torch's global one."""
    return int(torch.randint(2**31, (1,), generator=generator, device=generator.device))


def completions(
    policy: Policy, rows: Tensor, ids: Tensor, mask: Tensor, num_samples: int
) -> rollout.Completions:
    """Rows with the prompts in front, [B, T0 + T], as the trainer wants them: what stands behind an end is padding."""
    tokens = rows[:, ids.shape[1] :]
    is_end = (tokens == policy.tokenizer.eos_token_id).long()
    ends_before = is_end.cumsum(1) - is_end
    counts = (ends_before == 0).long()  # 1 up to the first end token and with it
    tokens = tokens.masked_fill(counts == 0, policy.tokenizer.pad_token_id)
    return rollout.Completions(tokens, counts, ids, mask, policy.decode(tokens), num_samples)


def ask(
    sample: Callable[..., Any],
    policy: Policy,
    prompts: Sequence[str],
    seed: int,
    temperature: float = 0.7,
) -> rollout.Completions:
    """Eight completions for each prompt, as the trainer would ask for them."""
    return sample(
        policy,
        list(prompts),
        num_samples=GROUP,
        max_new_tokens=NEW_TOKENS,
        temperature=temperature,
        generator=torch.Generator(policy.device).manual_seed(seed),
    )


def groups_of(answers: rollout.Completions) -> list[list[str]]:
    """The answers as text, a list for each prompt."""
    texts = answers.texts
    return [texts[row : row + GROUP] for row in range(0, len(texts), GROUP)]


@torch.no_grad()
def first_of_each_group(policy: Policy, answers: rollout.Completions) -> tuple[Tensor, Tensor]:
    """Of one answer of each group: the logits before any temperature, [N, V], and the tokens drawn from them, [N]."""
    rows = torch.arange(0, len(answers.texts), GROUP, device=answers.tokens.device)
    first = answers.take(rows)
    length = first.tokens.shape[1]
    _, logits = token_logprobs(policy.model, first.ids, first.attention_mask, length)
    counts = first.mask.bool()
    return logits[counts], first.tokens[counts]


@torch.no_grad()
def chances_after(policy: Policy, text: str, temperature: float) -> dict[str, float]:
    """Every token that can follow this text, likeliest first, with its chance at the temperature."""
    ids, mask = policy.encode([text])
    logits = policy.model(ids, attention_mask=mask).logits[0, -1]
    chances, tokens = (logits / temperature).softmax(-1).sort(descending=True)
    names = policy.tokenizer.convert_ids_to_tokens(tokens.tolist())
    return dict(zip(names, chances.tolist(), strict=True))


# ---------------------------------------------------------------------------------------------------------- samplers


def drawn_with(model: Any, ids: Tensor, temperature: float, **flags: Any) -> Tensor:
    """Four tokens a row by `generate`, without a filter unless a flag sets one."""
    settings = {"do_sample": True, "temperature": temperature}
    without_filter = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return model.generate(ids, max_new_tokens=NEW_TOKENS, **(settings | without_filter | flags))


def one_row_repeated(model: Any, ids: Tensor, temperature: float) -> Tensor:
    """Draws one answer for each prompt, and repeats it."""
    return drawn_with(model, ids[::GROUP], temperature).repeat_interleave(GROUP, 0)


def always_at(temperature: float, sampler: Sampler) -> Sampler:
    """The sampler at this temperature, whatever it is asked for."""
    return lambda model, ids, _: sampler(model, ids, temperature)


# ------------------------------------------------------------------------------------------------ what the page prints


def written(advantage: float) -> str:
    """An advantage with its sign; 0 is exactly 0, and no small number that is rounded."""
    return f"{advantage:+.2f}" if advantage else "0"


def print_group(prompt: str, texts: Sequence[str], rewards: Sequence[float] | None = None) -> None:
    """A group's answers, their rewards and their advantages; given rewards, those of the noisy judge, in two digits."""
    digits = 2
    if rewards is None:
        digits = 0
        rewards = task.rewards([prompt] * len(texts), texts)
    advantages = group_advantage(torch.tensor(rewards, dtype=torch.float64), len(texts))
    total = abs(advantages.sum().item())
    print(f"{prompt:<12}", *(f"{text:>6}" for text in texts))
    print(f"{'  rewards':<12}", *(f"{reward:>z6.{digits}f}" for reward in rewards))
    columns = (f"{written(advantage):>6}" for advantage in advantages.tolist())
    print(f"{'  advantages':<12}", *columns, f"  sum {total:.2f}")


def asked_again(name: str, run: Run) -> dict[str, str]:
    """A row of the table of one prompt asked at several temperatures: each answer and how often it came."""
    row = {"sampler": name}
    for frame in run.events:
        counts = Counter(frame["texts"]).most_common()
        row[f"at {frame['temperature']}"] = ", ".join(f"{text} × {count}" for text, count in counts)
    if not run.events:
        row["at 0.7"] = f"ended: {run.outcome.signature}"
    return row


def row_of(name: str, run: Run) -> dict[str, str]:
    """A row of the table of rollouts; one whose run died says so."""
    if not run.events:
        return {"sampler": name, "groups of copies": f"ended: {run.outcome.signature}"}
    counted = run.events[-1]
    return {
        "sampler": name,
        "groups of copies": f"{counted['copies']} of {counted['groups']}",
        "not the likeliest": f"{counted['count']} of {counted['tokens']} tokens",
        "range to expect": f"{counted['low']:.1f} to {counted['high']:.1f}",
    }


# ------------------------------------------------------------------------------------------------------ the exercises


def model_of_exercise() -> Any:
    """A GPT-2 that nobody trained, with 200 tokens and a generation_config of its own."""
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 32, "vocab_size": 200}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(**shape, initializer_range=0.3, **SPECIAL)).eval()
    model.generation_config = GenerationConfig(top_p=0.7, min_p=0.02, **SPECIAL)
    return model


def judge_generate(generate: Sampler) -> checks.Report:
    """Does it draw four tokens a row from the model's own distribution, and leave the generation_config alone?"""
    # on a busy machine a second thread makes a model of this size seven times as slow: a sound
    # function then ran into the limit of the check
    torch.set_num_threads(1)
    model = model_of_exercise()
    config_before = model.generation_config.to_dict()
    given: list[tuple[Tensor, Any]] = []

    def recorded(ids: Tensor, temperature: float) -> Any:
        rows = generate(model, ids, temperature)
        given.append((ids, rows))
        return rows

    report = checks.temperature(recorded, model)
    if report.traceback or not given:
        return report
    for ids, rows in given:
        fault = fault_of(rows, ids)
        if fault:
            return replace(report, passed=False, hint=fault)
    if model.generation_config.to_dict() != config_before:
        hint = "The model's generation_config was changed. Others use it."
        return replace(report, passed=False, hint=hint)
    _, first = given[0]
    if all(torch.equal(rows, first) for _, rows in given[1:]):
        hint = "The same tokens at four temperatures: nothing was drawn."
        return replace(report, passed=False, hint=hint)
    return report


def fault_of(rows: Any, ids: Tensor) -> str:
    """Why the next cells cannot use what a sampler returned for these prompts; empty where they can."""
    if not isinstance(rows, Tensor):
        return f"It returned {type(rows).__name__}. A tensor is expected."
    width = ids.shape[1]
    wanted = (len(ids), width + NEW_TOKENS)
    if rows.shape != wanted or not torch.equal(rows[:, :width], ids):
        return f"It returned {list(rows.shape)}. Expected {list(wanted)}, the prompts in front."
    return ""


def unseen_rollouts(look: Callable[..., Any], seed: int) -> list[tuple[str, Any]]:
    """Ten rollouts, all asked for at 0.7, in an order that the seed decides: (cause, what `look` counts)."""
    greedy = partial(drawn_with, do_sample=False)
    cases: dict[str, dict[str, Any]] = {
        "nothing drawn, or hardly 1": {"sampler": greedy},
        "nothing drawn, or hardly 2": {"sampler": partial(drawn_with, top_p=0.3)},
        "one draw, copied 1": {"sampler": one_row_repeated},
        "one draw, copied 2": {"sampler": always_at(2.5, one_row_repeated)},
        "draws, not as asked 1": {"sampler": always_at(0.05, drawn_with)},
        "draws, not as asked 2": {"sampler": always_at(2.5, drawn_with)},
        "cannot tell 1": {"sampler": drawn_with, "family": "copy"},
        "cannot tell 2": {"sampler": greedy, "family": "copy"},
        "it draws 1": {"sampler": drawn_with},
        "it draws 2": {"sampler": partial(drawn_with, top_k=4)},
    }
    for place, case in enumerate(cases.values()):
        case["seed"] = seed + place  # each has prompts of its own
    runs = sandbox.run_all(look, cases, groups=120, timeout=60)
    logs = {name: run.events[-1] for name, run in runs.items()}
    return shuffled(logs, seed)
