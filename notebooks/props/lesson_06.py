"""Lesson 06: its small models, the dtypes on the way into the cache, a rollout on a simulated card, the GRPO runs, and
the judges of the two exercises.

The rotation, its fix and the rollout whose cache is twice its size stand in the notebook. Models here have random
weights: which dtype a tensor has does not depend on what is in it.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StaticCache,
)

from labkit import rollout, task
from labkit.checks.report import Report
from labkit.events import Step
from labkit.policy import Policy, load, token_logprobs
from labkit.train import train

from .card import Tap

HALF = torch.bfloat16
MIB = 2**20
ROWS, PROMPT, VOCAB = 8, 12, 64
SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": VOCAB,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,  # so that every row is sampled to the end
}
MAKES: dict[str, tuple[Any, Any]] = {
    "Llama": (LlamaConfig, LlamaForCausalLM),
    "Qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "Qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "OLMo 2": (Olmo2Config, Olmo2ForCausalLM),
    "Cohere": (CohereConfig, CohereForCausalLM),
}
Rotation = Callable[..., tuple[Tensor, Tensor]]


def word(dtype: torch.dtype | None) -> str:
    """ "bfloat16"; a dash for None."""
    return "–" if dtype is None else str(dtype).removeprefix("torch.")


# Small models ---------------------------------------------------------------------------------------------------------


def small(name: str, seed: int, device: torch.device) -> Any:
    """A causal model of transformers with two layers and random float32 weights. Its norms' weights are not all 1."""
    torch.manual_seed(seed)
    config, make = MAKES[name]
    own = {"head_dim": 32} if name == "Qwen3" else {}
    model = make(config(**SHAPE, **own))
    for key, parameter in model.named_parameters():
        if "norm" in key:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return model.to(device).eval()


def random_prompts(seed: int, device: torch.device) -> Tensor:
    """[8, 12] token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (ROWS, PROMPT), generator=generator).to(device)


def in_memory(cache: Any) -> int:
    """Bytes of all keys and values."""
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def module_of(model: Any) -> Any:
    """The file of transformers that a model's attention comes from: its `apply_rotary_pos_emb` is what the model calls."""
    return sys.modules[type(model.model.layers[0].self_attn).__module__]


@contextlib.contextmanager
def rotating_with(rotation: Rotation, module: Any) -> Iterator[None]:
    """Let the models of a file of transformers use this rotation. Put back on exit."""
    before = module.apply_rotary_pos_emb
    module.apply_rotary_pos_emb = rotation
    try:
        yield
    finally:
        module.apply_rotary_pos_emb = before


# The way into the cache -----------------------------------------------------------------------------------------------

STATIONS = (
    "made",
    "before the rotation",
    "after the rotation",
    "handed to the cache",
    "in the cache",
)


def dtypes_on_the_way(
    model: Any, prompts: Tensor, autocast: bool = True, cache: Any = None
) -> dict[str, dict[str, torch.dtype]]:
    """Station -> the dtypes of query, key and value of the first layer, in one forward pass that fills a cache."""
    attention, module = model.model.layers[0].self_attn, module_of(model)
    way: dict[str, dict[str, torch.dtype]] = {station: {} for station in STATIONS}
    cache = DynamicCache(config=model.config) if cache is None else cache
    rotation, update = module.apply_rotary_pos_emb, cache.update

    def noted(q: Tensor, k: Tensor, *args: Any, **settings: Any) -> tuple[Tensor, Tensor]:
        turned = rotation(q, k, *args, **settings)
        for station, pair in ((STATIONS[1], (q, k)), (STATIONS[2], turned)):
            way[station] = {"query": pair[0].dtype, "key": pair[1].dtype}
        return turned

    def kept(key: Tensor, value: Tensor, *args: Any, **settings: Any) -> tuple[Tensor, Tensor]:
        way[STATIONS[3]] = {"key": key.dtype, "value": value.dtype}
        return update(key, value, *args, **settings)

    def made(name: str) -> Any:
        return lambda layer, given, out: way[STATIONS[0]].update({name: out.dtype})

    with contextlib.ExitStack() as stack:
        for name, linear in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
            stack.callback(getattr(attention, linear).register_forward_hook(made(name)).remove)
        stack.enter_context(rotating_with(noted, module))
        cache.update = kept
        stack.enter_context(torch.autocast(prompts.device.type, HALF, enabled=autocast))
        stack.enter_context(torch.no_grad())
        model(prompts, past_key_values=cache, use_cache=True)
    way[STATIONS[4]] = {"key": cache.layers[0].keys.dtype, "value": cache.layers[0].values.dtype}
    return way


def as_rows(way: dict[str, dict[str, torch.dtype]]) -> list[dict[str, str]]:
    """For `labkit.table`: a row for each station."""
    columns = ("query", "key", "value")
    return [
        {"": station} | {name: word(seen.get(name)) for name in columns}
        for station, seen in way.items()
    ]


def keys_alone(ways: dict[str, dict[str, dict[str, torch.dtype]]]) -> list[dict[str, str]]:
    """For `labkit.table`: a row for each model, the key's dtype at each station."""
    return [
        {"": name} | {station: word(way[station]["key"]) for station in STATIONS}
        for name, way in ways.items()
    ]


class Float32Cache(DynamicCache):
    """A cache that keeps what it is given in float32, as one does whose dtype is a default that nobody set."""

    def update(
        self, key: Tensor, value: Tensor, *args: Any, **settings: Any
    ) -> tuple[Tensor, Tensor]:
        key, value = super().update(key.float(), value.float(), *args, **settings)
        return key.to(HALF), value.to(HALF)


def look_alikes(
    bug: Rotation, fix: Rotation, seed: int, device: torch.device
) -> dict[str, dict[str, dict[str, torch.dtype]]]:
    """Four models whose cache is float32, each with its own cause, and their dtypes on the way. The first rotates with
    the bug, the others with the fix."""
    prompts = random_prompts(seed, device)
    llama, qwen = small("Llama", seed, device), small("Qwen3", seed, device)
    with rotating_with(bug, module_of(llama)):
        ways = {"the lesson's bug": dtypes_on_the_way(llama, prompts)}
    with rotating_with(fix, module_of(qwen)):
        ways["Qwen3: a norm on q and k"] = dtypes_on_the_way(qwen, prompts)
    with rotating_with(fix, module_of(llama)):
        ways["a cache opened in float32"] = dtypes_on_the_way(
            llama, prompts, cache=Float32Cache(config=llama.config)
        )
        ways["no autocast"] = dtypes_on_the_way(llama, prompts, autocast=False)
    return ways


# One thing changed ----------------------------------------------------------------------------------------------------


def narrow_tables(dtype: torch.dtype) -> Any:
    """A hook for a rotary module: hand out cos and sin in this dtype."""
    return lambda rope, given, tables: tuple(table.to(dtype) for table in tables)


def one_thing_changed(
    bug: Rotation, fix: Rotation, seed: int, device: torch.device
) -> list[dict[str, str]]:
    """The rollout's first forward pass, with one thing changed in each row: what the cache holds, or the error's text."""
    prompts, rows = random_prompts(seed, device), []
    wide, half = small("Llama", seed, device), small("Llama", seed, device)
    half.model.layers.to(HALF)
    half.model.embed_tokens.to(HALF)
    half.model.norm.to(HALF)
    half.lm_head.to(HALF)  # the rotary module stays in float32
    module, plan = module_of(wide), 2 * 2 * 128 * 2 * prompts.numel()
    cases: dict[str, dict[str, Any]] = {
        "float32 weights, autocast: as above": {},
        "cos and sin cast to bfloat16": {"tables": HALF},
        "a StaticCache in place of the DynamicCache": {"static": True},
        "a StaticCache, and the fix": {"static": True, "rotation": fix},
        "bfloat16 weights, no autocast": {"model": half, "autocast": False},
        "bfloat16 weights, no autocast, cos and sin in float32": {
            "model": half,
            "autocast": False,
            "tables": torch.float32,
        },
    }
    for name, case in cases.items():
        model = case.get("model", wide)
        static = (
            StaticCache(config=model.config, max_cache_len=PROMPT) if case.get("static") else None
        )
        with contextlib.ExitStack() as stack:
            stack.enter_context(rotating_with(case.get("rotation", bug), module))
            if "tables" in case:
                hook = model.model.rotary_emb.register_forward_hook(narrow_tables(case["tables"]))
                stack.callback(hook.remove)
            stack.enter_context(
                torch.autocast(device.type, HALF, enabled=case.get("autocast", True))
            )
            stack.enter_context(torch.no_grad())
            try:
                cache = model(prompts, past_key_values=static, use_cache=True).past_key_values
                rows.append(
                    {"": name, "cache / plan": f"{in_memory(cache) / plan:.2f}", "error": ""}
                )
            except RuntimeError as error:
                rows.append({"": name, "cache / plan": "–", "error": str(error)})
    return rows


# A rollout on a simulated card ----------------------------------------------------------------------------------------

SIZE: dict[str, Any] = {  # GPT-2 124M's
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 50257,
    "pad_token_id": 0,
}
ANSWERS, TOKENS = 64, 1024
PIECES = (
    64,
    479,
    479,
    1,
    1,
)  # tokens: the prompt, the answer in two pieces, then as a sampler does


def on_a_simulated_card(rotation: Rotation) -> Iterator[dict[str, Any]]:
    """A rollout of 64 rows of 1,024 tokens on fake tensors; what a card would hold is counted, and nothing is computed.

    Yields one dict. "tokens", "cache": the tokens so far and the cache's MiB. "peak": MiB by what holds them, while the
    last two tokens are written one at a time.
    """
    from transformers.models.llama import modeling_llama

    tap = Tap(80 * 2**30, fake=True)
    model = tap.build(lambda: LlamaForCausalLM(LlamaConfig(**SIZE))).eval()
    lengths, sizes, cache = [0], [0.0], None
    with rotating_with(rotation, modeling_llama), tap, torch.no_grad():
        for count in PIECES:
            if count == 1 and lengths[-1] == sum(PIECES[:-2]):
                tap.reset_peak()
            ids = torch.zeros(ANSWERS, count, dtype=torch.long)
            with torch.autocast("cpu", HALF):
                cache = model(
                    ids, past_key_values=cache, use_cache=True, logits_to_keep=1
                ).past_key_values
            tap.label([(layer.keys, layer.values) for layer in cache.layers], "kv-cache")
            lengths.append(lengths[-1] + count)
            sizes.append(tap.by_category["kv-cache"] / MIB)
        weights = tap.peak_by_category["parameter"] / MIB
        peak = tap.peak / MIB
    parts = {"weights": weights, "KV cache": sizes[-1], "the rest": peak - weights - sizes[-1]}
    yield {"tokens": lengths, "cache": sizes, "peak": parts}


def draw_simulated(bug: dict[str, Any], fix: dict[str, Any], plan: float) -> None:
    """The cache by tokens, and the peak by what holds it. `plan`: MiB of the whole cache."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(8.6, 3.1), layout="constrained", width_ratios=(3, 2)
    )
    left.plot(bug["tokens"], bug["cache"], "o-", color="#D55E00", label="bug", ms=4)
    left.plot(fix["tokens"], fix["cache"], "o-", color="#0072B2", label="fix", ms=4)
    left.plot([0, TOKENS], [0, plan], ":", color="#333333", lw=2.5, label="plan")
    left.set(
        xlabel="tokens of a row", ylabel="KV cache, MiB (simulated)", xlim=(0, None), ylim=(0, None)
    )
    left.set_title("The cache grows twice as fast as planned", fontsize=10)
    left.legend(frameon=False)
    tones = {"weights": "#BBBBBB", "KV cache": None, "the rest": "#767676"}
    for at, (run, colour) in ((0, (bug, "#D55E00")), (2, (fix, "#0072B2"))):
        below = 0.0
        for name, size in run["peak"].items():
            right.bar(at, size, bottom=below, color=tones[name] or colour, width=0.6)
            place = (at + 0.33, below + size / 2)
            right.annotate(f"{name} {size:,.0f}", place, ha="left", va="center", fontsize=8)
            below += size
        right.annotate(
            f"{below:,.0f} MiB",
            (at, below),
            (0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    right.set_xticks([0, 2], ["bug", "fix"])
    right.set_xlim(-0.5, 3.5)
    right.set(ylabel="peak, MiB (simulated)", ylim=(0, 1.12 * sum(bug["peak"].values())))
    right.set_title("and the peak is one planned cache higher", fontsize=10)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    plt.show()


# GRPO -----------------------------------------------------------------------------------------------------------------


class UnderAutocast(LlamaForCausalLM):
    """Its forward runs under autocast to bfloat16, as accelerate wraps a model that it prepares for mixed precision."""

    largest_cache = 0  # bytes, of any forward that returned a cache

    def forward(self, *args: Any, **settings: Any) -> Any:
        with torch.autocast(self.device.type, HALF):
            out = super().forward(*args, **settings)
        if out.past_key_values is not None:
            self.largest_cache = max(self.largest_cache, in_memory(out.past_key_values))
        return out


def new_policy(seed: int, device: str) -> Policy:
    """A Llama with random weights and the tiny policy's 16 tokens."""
    tokenizer = load("tiny", "cpu").tokenizer
    torch.manual_seed(seed)
    shape = SHAPE | {"vocab_size": 16, "eos_token_id": 1}
    model = UnderAutocast(LlamaConfig(**shape)).to(torch.device(device))
    return Policy(model.eval(), tokenizer, "llama")


def share_of_sevens(prompts: list[str], answers: list[str]) -> list[float]:
    """The reward: how many of an answer's eight characters are a 7, as a share."""
    return [answer.count("7") / 8 for answer in answers]


def learn(rotation: Rotation, seed: int, device: str, rounds: int = 5) -> Iterator[Step]:
    """GRPO from random weights, with this rotation. `extra["cache"]`: the largest cache so far, in bytes."""
    policy = new_policy(seed, device)
    with rotating_with(rotation, module_of(policy.model)):
        steps = train(
            policy,
            "add",
            seed=seed,
            rounds=rounds,
            mu=2,
            lr=1e-3,
            max_new_tokens=8,
            reward=share_of_sevens,
        )
        for step in steps:
            yield replace(step, extra=step.extra | {"cache": float(policy.model.largest_cache)})


def draw_runs(runs: dict[str, dict[int, Any]]) -> None:
    """Reward and largest cache by round, bug and fix, a dash for each seed."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8.6, 2.9), layout="constrained")
    styles = {"bug": ("#D55E00", 5, 0.35), "fix": ("#0072B2", 1.4, 1.0)}
    for arm, (colour, width, alpha) in styles.items():
        for (_, run), dash in zip(runs[arm].items(), ("-", "--", ":"), strict=True):
            last = [step for step in run.steps if step.inner == 2]  # of each round
            rounds = [step.round for step in last]
            style = {"color": colour, "linewidth": width, "alpha": alpha, "linestyle": dash}
            axes[0].plot(rounds, [step.reward for step in last], **style)
            axes[1].plot(rounds, [step.extra["cache"] / 1024 for step in last], **style)
        axes[0].plot([], color=colour, linewidth=width, alpha=alpha, label=arm)
    axes[0].set(
        xlabel="round (a dash for each seed)", ylabel="mean reward of 64 answers", ylim=(0, None)
    )
    axes[0].set_title("The same rewards, bug and fix,", fontsize=10)
    most = max(step.extra["cache"] for run in runs["bug"].values() for step in run.steps) / 1024
    axes[1].set(xlabel="round", ylabel="largest KV cache, KiB", ylim=(0, 1.2 * most))
    axes[1].set_title("with half the cache", fontsize=10)
    axes[0].legend(frameon=False, loc="upper left")
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    plt.show()


# The sampler and the trainer ------------------------------------------------------------------------------------------


@torch.no_grad()
def apart(trainer: Policy, sampler: Policy, seed: int) -> Tensor:
    """|log-prob of a sampled token by the trainer − by the sampler that drew it|, in nats, for each token."""
    said = []

    def noted(logits: Tensor, *settings: Any) -> Tensor:
        token = rollout.sample_tokens(logits, *settings)
        said.append(logits.float().log_softmax(-1).gather(-1, token[:, None])[:, 0])
        return token

    prompts = task.get("add").sample(16, random.Random(seed))
    dice = torch.Generator(sampler.device).manual_seed(seed)
    out = rollout.generate(sampler, prompts, max_new_tokens=8, generator=dice, sample_tokens=noted)
    logp, _ = token_logprobs(trainer.model, out.ids, out.attention_mask, out.tokens.shape[1])
    return (logp - torch.stack(said, 1))[out.mask.bool()].abs()


def samplers(rotations: dict[str, Rotation], seed: int, device: str) -> list[dict[str, Any]]:
    """Train a policy with the fix, then sample from it in three ways and ask the trainer for the same log-probs."""
    policy, rows = new_policy(seed, device), []
    module = module_of(policy.model)
    settings: dict[str, Any] = {"rounds": 4, "mu": 2, "lr": 1e-3, "max_new_tokens": 8}
    with rotating_with(rotations["fix"], module):
        list(train(policy, "add", seed=seed, reward=share_of_sevens, **settings))
    copied = Policy(copy.deepcopy(policy.model).bfloat16(), policy.tokenizer, "copy")
    for name, sampler, rotation in (
        ("bug", policy, rotations["bug"]),
        ("fix", policy, rotations["fix"]),
        ("model.bfloat16()", copied, rotations["bug"]),
    ):
        sampler.model.largest_cache = 0
        with rotating_with(rotation, module):
            off = apart(policy, sampler, seed)
        kib = sampler.model.largest_cache / 1024
        gaps = {"gap, mean": float(off.mean()), "gap, largest": float(off.max())}
        rows.append({"sampler": name, "cache, KiB": kib} | gaps)
    return rows


# Two ways to round ----------------------------------------------------------------------------------------------------


def score_errors(head_dim: int, seed: int, query_at: int, key_at: int) -> dict[str, float]:
    """How far rotated scores q · k are off, as a share of a score's usual size, for 200 random pairs of q and k.

    All in float64, except for what is rounded to bfloat16: the angles, or the frequencies that they are made of.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 200, head_dim, generator=generator).double()
    frequencies = 10_000.0 ** (-torch.arange(0, head_dim, 2).double() / head_dim)

    def rounded(x: Tensor) -> Tensor:
        return x.to(HALF).double()

    angles: dict[str, Callable[[int], Tensor]] = {
        "exact": lambda position: position * frequencies,
        "angles": lambda position: rounded(position * frequencies),
        "frequencies": lambda position: position * rounded(frequencies),
    }

    def turned(x: Tensor, angle: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    scores = {
        name: (turned(q, of(query_at)) * turned(k, of(key_at))).sum(-1)
        for name, of in angles.items()
    }
    usual = scores["exact"].square().mean().sqrt()
    return {
        name: float((scores[name] - scores["exact"]).square().mean().sqrt() / usual)
        for name in angles
    }


PLACES = {
    "tokens 16 and 20": (20, 16),
    "tokens 8,016 and 8,020": (8020, 8016),
    "tokens 4,020 and 8,020": (8020, 4020),
}


def rounding_errors(seed: int) -> dict[str, dict[str, float]]:
    """Where the two tokens stand -> the error of their scores with rounded angles, and with rounded frequencies."""
    errors = {place: score_errors(64, seed, *positions) for place, positions in PLACES.items()}
    return {
        place: {f"{name} rounded": error[name] for name in ("angles", "frequencies")}
        for place, error in errors.items()
    }


def as_table(rows: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """For `labkit.table`: the name of a row in its first column."""
    return [{"": name} | row for name, row in rows.items()]


# Exercises ------------------------------------------------------------------------------------------------------------


def halves_qwen3(fix: Rotation, seed: int, device: torch.device) -> Callable[[Any], Report]:
    """The check of exercise A: an answer changes a Qwen3, and the cache is as planned, and nothing else is changed."""

    def check(answer: Callable[[Any], None]) -> Report:
        model, prompts = small("Qwen3", seed + 1, device), random_prompts(seed + 1, device)
        module, plan = module_of(model), 2 * 2 * 128 * 2 * prompts.numel()
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        frequencies = model.model.rotary_emb.inv_freq.clone()

        def forward() -> tuple[Tensor, int]:
            with torch.autocast(device.type, HALF), torch.no_grad():
                out = model(prompts, use_cache=True)
            return out.logits.float().log_softmax(-1), in_memory(out.past_key_values)

        with rotating_with(fix, module):
            before, _ = forward()
            answer(model)
            after, size = forward()
        same = all(
            tensor.dtype == torch.float32 and torch.equal(tensor, weights[name])
            for name, tensor in model.state_dict().items()
        )
        rope = model.model.rotary_emb.inv_freq
        same = same and rope.dtype == torch.float32 and torch.equal(rope, frequencies)
        off = float((after - before).abs().max())
        seen = {"cache / plan": size / plan, "largest change of a log-prob, nats": off}
        hint = ""
        if size != plan:
            hint = f"The cache has {size / plan:.2f} times the bytes of the plan. Where is the key float32 first?"
        elif not same:
            hint = "The cache fits, but weights or frequencies have changed: the trainer's model is another one now."
        elif off > 0.05:
            hint = f"The cache fits, but a log-prob moved by {off:.2g} nats: the model computes something else now."
        return Report(
            "halves_qwen3", "the cache of a Qwen3 has the planned size", not hint, seen, hint
        )

    return check


NAMES = ("rotation", "norm", "cache", "no autocast", "nothing")


def unseen(
    bug: Rotation, fix: Rotation, seed: int, device: torch.device
) -> dict[str, tuple[str, dict[str, str]]]:
    """Model -> (the right name, what became of a key and a value on the way)."""
    prompts = random_prompts(seed, device)

    def log(name: str, rotation: Rotation | None = None, **settings: Any) -> dict[str, str]:
        model = small(name, seed, device)
        if settings.pop("own_cache", False):
            settings["cache"] = Float32Cache(config=model.config)
        with rotating_with(rotation or module_of(model).apply_rotary_pos_emb, module_of(model)):
            way = dtypes_on_the_way(model, prompts, **settings)
        seen = {f"key, {station}": word(way[station]["key"]) for station in STATIONS}
        return seen | {
            f"value, {station}": word(way[station]["value"])
            for station in (STATIONS[0], STATIONS[4])
        }

    return {
        "Qwen2": ("rotation", log("Qwen2", bug)),
        "another Qwen3": ("norm", log("Qwen3", bug)),
        "Qwen3 with the lesson's fix": ("norm", log("Qwen3", fix)),
        "OLMo 2, which has a norm on q and k too": ("nothing", log("OLMo 2")),
        "Cohere": ("nothing", log("Cohere")),
        "Cohere with a cache of its own": ("cache", log("Cohere", own_cache=True)),
        "Qwen2 without autocast": ("no autocast", log("Qwen2", fix, autocast=False)),
    }


def names_each(
    bug: Rotation, fix: Rotation, seed: int, device: torch.device
) -> Callable[[Any], Report]:
    """The check of exercise B: models that the lesson did not show, each with one cause or none."""

    def check(answer: Callable[[dict[str, str]], str]) -> Report:
        for model, (right, log) in unseen(bug, fix, seed + 1, device).items():
            said = answer(dict(log))
            if said != right:
                hint = f"For {model} it returned {said!r}. Its log: {log}"
                return Report("names_each", "each cause has its name", False, {}, hint)
        return Report("names_each", "each cause has its name", True)

    return check
