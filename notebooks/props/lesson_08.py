"""What page 08 uses and does not teach: rows of a rollout, drawings, and the judge of its first exercise.

What is drawn, and by which settings, stands in the notebook. Here is drawn only what the last exercise measures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from props.diagnosis import shuffled
from torch import Tensor
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from labkit import checks, sandbox
from labkit.display.panels import TONES
from labkit.events import Run
from labkit.grpo import rollout, task
from labkit.grpo.advantage import group_advantage
from labkit.grpo.policy import Policy, token_logprobs

GROUP = 8
RIGHT, WRONG, GREY = (TONES[name][0] for name in ("one", "far", "grey"))
TONE_OF = {"bug": "bug", "healthy": "healthy", "yours": "fix", "solution": "fix"}
COLOURS = {name: TONES[tone][0] for name, tone in TONE_OF.items()}
SPECIAL = {"eos_token_id": 1, "pad_token_id": 0}  # of the tiny policy

# of one temperature: "chances" token -> chance, "texts" the eight answers
Frame = Mapping[str, Any]
# model, ids [B, T0], temperature -> [B, T0 + T]
Sampler = Callable[[Any, Tensor, float], Tensor]
HIGHEST = 4.0  # of the card: a rollout above it stands at its edge, and its name has the number


def seed_from(generator: torch.Generator) -> int:
    """A seed drawn from the trainer's generator, for torch's global one."""
    return int(torch.randint(2**31, (1,), generator=generator, device=generator.device))


def completions(
    policy: Policy, rows: Tensor, ids: Tensor, mask: Tensor, num_samples: int
) -> rollout.Completions:
    """Rows with the prompts in front, [B, T0 + T], as the trainer wants them: what stands behind an end is padding."""
    tokens = rows[:, ids.shape[1] :]
    end = (tokens == policy.tokenizer.eos_token_id).long()
    counts = (end.cumsum(1) - end == 0).long()  # 1 up to the end token and with it
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
    generator = torch.Generator(policy.device).manual_seed(seed)
    asked: dict[str, Any] = {"num_samples": GROUP, "max_new_tokens": 4, "temperature": temperature}
    return sample(policy, list(prompts), **asked, generator=generator)


def groups_of(answers: rollout.Completions) -> list[list[str]]:
    """The answers as text, a list for each prompt."""
    texts = answers.texts
    return [texts[row : row + GROUP] for row in range(0, len(texts), GROUP)]


@torch.no_grad()
def first_of_each_group(policy: Policy, answers: rollout.Completions) -> tuple[Tensor, Tensor]:
    """Of one answer of each group: the logits before any temperature, [N, V], and the tokens drawn from them, [N]."""
    first = answers.take(torch.arange(0, len(answers.texts), GROUP, device=answers.tokens.device))
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


def print_group(prompt: str, texts: Sequence[str], rewards: Sequence[float] | None = None) -> None:
    """A group's answers, their rewards and their advantages; given rewards, those of the noisy judge, in two digits."""
    digits = 0 if rewards is None else 2
    rewards = rewards or task.rewards([prompt] * len(texts), texts)
    advantages = group_advantage(torch.tensor(rewards, dtype=torch.float64), len(texts))
    print(f"{prompt:<12}", *(f"{text:>6}" for text in texts))
    print(f"{'  rewards':<12}", *(f"{reward:>z6.{digits}f}" for reward in rewards))
    written = (f"{value:>+6.2f}" if value else f"{0:>6}" for value in advantages.tolist())
    print(f"{'  advantages':<12}", *written, f"  sum {abs(advantages.sum().item()):.2f}")


def draw_answers(axes: Sequence[Any], prompt: str, frame: Frame | None, whose: str) -> None:
    """Left: how likely the next token is. Right: the eight answers, green where right, with their advantages."""
    bars, boxes = axes
    boxes.set(xlim=(-0.5, 3.5), ylim=(-0.9, 1.5))
    boxes.axis("off")
    if frame is None:
        bars.axis("off")
        boxes.text(1.5, 0.5, f"{whose}: the run ended before this", ha="center", fontsize=10)
        return
    chances = dict(list(frame["chances"].items())[:5])
    bars.bar(list(chances), list(chances.values()), color=GREY, width=0.7)
    for place, chance in enumerate(chances.values()):
        bars.text(place, chance + 0.03, f"{chance:.3f}", ha="center", fontsize=7.5)
    bars.set(xlim=(-0.6, 4.6), ylim=(0, 1.15), yticks=[])
    bars.set_xlabel(f"next token after {prompt}1, its chance", fontsize=8)
    bars.spines["left"].set_visible(False)

    texts = frame["texts"]
    rewards = task.rewards([prompt] * len(texts), texts)
    advantages = group_advantage(torch.tensor(rewards), len(texts)).tolist()
    for place, text in enumerate(texts):
        box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "linewidth": 1.8}
        box["edgecolor"] = RIGHT if rewards[place] else WRONG
        value = f"{advantages[place]:+.2f}" if advantages[place] else "0"
        words, where = f"{text}\nA = {value}", (place % 4, 1 - place // 4)
        boxes.text(*where, words, ha="center", va="center", ma="center", fontsize=9, bbox=box)
    count = f"{whose}: different answers {len(set(texts))}, right {sum(rewards):.0f} of 8"
    boxes.text(1.5, -0.85, count, ha="center", fontsize=9, weight="bold", color=COLOURS[whose])


def card(rows: Mapping[str, Mapping[str, float]]) -> None:
    """Where each rollout stands: across, its groups of copies; upwards, its count by the expected one."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.6, 3.4), layout="constrained")
    # of the names that stand already: from where to where, and how high
    taken: list[tuple[float, float, float]] = []
    for name, row in sorted(rows.items(), key=lambda pair: pair[1]["count"]):
        if row["low"] <= 0:  # the range holds 0: no place up or down
            continue
        expected = (row["low"] + row["high"]) / 2
        share, ratio = 100 * row["copies"] / row["groups"], row["count"] / expected
        band = (row["high"] - row["low"]) / 2 / expected
        axes.errorbar([share], [1], band, color="#9CCDB6", lw=9, alpha=0.6, zorder=1)
        height = level = min(ratio, HIGHEST)
        colour = COLOURS.get(name, GREY)
        # the reader's own is a ring, so that another dot in its place is visible
        own = {"ms": 12, "mfc": "none", "mew": 2} if TONE_OF.get(name) == "fix" else {"ms": 7}
        axes.plot([share], [height], "o", color=colour, zorder=3, **own)
        text = name if ratio < HIGHEST else f"{name} ({ratio:.1f})"
        # left of its dot where there is room for it; what drew nothing stands on the other side
        width = 1.1 * len(text)
        start = share - 3 - width if share > 60 and ratio > 0 else share + 3
        while any(
            start < right and left < start + width and abs(level - other) < 0.3
            for left, right, other in taken
        ):
            level += 0.1
        taken.append((start, start + width, level))
        side, place = ("left", start) if start > share else ("right", start + width)
        ink = colour if name in COLOURS else "black"
        words = {"ha": side, "va": "center", "fontsize": 9, "color": ink}
        line = {"arrowstyle": "-", "color": colour, "lw": 0.8, "shrinkA": 0, "shrinkB": 4}
        axes.annotate(text, (share, height), (place, level), arrowprops=line, **words)
    axes.set(xlim=(-4, 107), ylim=(-0.3, None), xlabel="groups of eight copies, %")
    axes.set_ylabel("count / expected")
    axes.spines[["top", "right"]].set_visible(False)
    title = "Only copied draws and hot ones stand alone; filters hide (green: chance)"
    axes.set_title(title, fontsize=10, loc="left", weight="bold")
    plt.show()


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
    seen = run.events[-1]
    return {
        "sampler": name,
        "groups of copies": f"{seen['copies']} of {seen['groups']}",
        "not the likeliest": f"{seen['count']} of {seen['tokens']} tokens",
        "range to expect": f"{seen['low']:.1f} to {seen['high']:.1f}",
    }


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
    before = model.generation_config.to_dict()
    given: list[tuple[Tensor, Any]] = []

    def recorded(ids: Tensor, temperature: float) -> Any:
        rows = generate(model, ids, temperature)
        given.append((ids, rows))
        return rows

    report = checks.temperature(recorded, model)
    if report.traceback or not given:
        return report
    refuse = partial(replace, report, passed=False)
    for ids, rows in given:
        width = ids.shape[1]
        if not isinstance(rows, Tensor):
            return refuse(hint=f"It returned {type(rows).__name__}. A tensor is expected.")
        if rows.shape != (len(ids), width + 4) or not torch.equal(rows[:, :width], ids):
            expected = f"[{len(ids)}, {width + 4}], the prompts in front"
            return refuse(hint=f"It returned {list(rows.shape)}. Expected {expected}.")
    if model.generation_config.to_dict() != before:
        return refuse(hint="The model's generation_config was changed. Others use it.")
    if all(torch.equal(rows, given[0][1]) for _, rows in given[1:]):
        return refuse(hint="The same tokens at four temperatures: nothing was drawn.")
    return report


def drawn_with(model: Any, ids: Tensor, temperature: float, **flags: Any) -> Tensor:
    """Four tokens a row by `generate`, without a filter unless a flag sets one."""
    settings = {"do_sample": True, "temperature": temperature}
    without_filter = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return model.generate(ids, max_new_tokens=4, **(settings | without_filter | flags))


def one_row_repeated(model: Any, ids: Tensor, temperature: float) -> Tensor:
    """Draws one answer for each prompt, and repeats it."""
    return drawn_with(model, ids[::GROUP], temperature).repeat_interleave(GROUP, 0)


def unseen_rollouts(look: Callable[..., Any], seed: int) -> list[tuple[str, Any]]:
    """Ten rollouts, all asked for at 0.7, in an order that the seed decides: (cause, what `look` counts)."""
    greedy = partial(drawn_with, do_sample=False)
    cases: dict[str, dict[str, Any]] = {
        "nothing drawn, or hardly 1": {"sampler": greedy},
        "nothing drawn, or hardly 2": {"sampler": partial(drawn_with, top_p=0.3)},
        "one draw, copied 1": {"sampler": one_row_repeated},
        "one draw, copied 2": {"sampler": lambda model, ids, _: one_row_repeated(model, ids, 2.5)},
        "draws, not as asked 1": {"sampler": lambda model, ids, _: drawn_with(model, ids, 0.05)},
        "draws, not as asked 2": {"sampler": lambda model, ids, _: drawn_with(model, ids, 2.5)},
        "cannot tell 1": {"sampler": drawn_with, "family": "copy"},
        "cannot tell 2": {"sampler": greedy, "family": "copy"},
        "it draws 1": {"sampler": drawn_with},
        "it draws 2": {"sampler": partial(drawn_with, top_k=4)},
    }
    for place, case in enumerate(cases.values()):
        case["seed"] = seed + place
    done = sandbox.run_all(look, cases, groups=120, timeout=60)
    return shuffled({name: run.events[-1] for name, run in done.items()}, seed)
