"""Lesson 06: its small models, the dtypes on the way into the cache, a rollout on a simulated card, the GRPO runs, and
the judges of the two exercises.

The rotation, its fix and the rollout whose cache is twice its size stand in the notebook. Models here have random
weights: which dtype a tensor has does not depend on what is in it.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
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

from labkit.grpo import rollout, task
from labkit.checks.report import Report
from labkit.events import Step
from labkit.grpo.policy import Policy, load, token_logprobs
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
    """The rollout's first forward pass. Each row changes one thing in the row that it names: what the cache holds, or
    the error's text."""
    prompts, rows = random_prompts(seed, device), []
    wide, half = small("Llama", seed, device), small("Llama", seed, device)
    half.model.layers.to(HALF)
    half.model.embed_tokens.to(HALF)
    half.model.norm.to(HALF)
    half.lm_head.to(HALF)  # the rotary module stays in float32
    module, plan = module_of(wide), 2 * 2 * 128 * 2 * prompts.numel()
    of_half: dict[str, Any] = {"model": half, "tables": torch.float32}
    cases: dict[str, dict[str, Any]] = {
        "the rollout above": {},
        "row 1, cos and sin cast to bfloat16": {"tables": HALF},
        "row 1, bfloat16 weights": {"model": half},
        "row 3, cos and sin cast to float32": of_half,
        "row 4, no autocast": of_half | {"autocast": False},
        "row 1, a StaticCache": {"static": True},
        "row 6, the fix": {"static": True, "rotation": fix},
    }
    for number, (name, case) in enumerate(cases.items(), 1):
        model = case.get("model", wide)
        static = (
            StaticCache(config=model.config, max_cache_len=PROMPT) if case.get("static") else None
        )
        ratio, words = "–", ""
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
                ratio = f"{in_memory(cache) / plan:.2f}"
            except RuntimeError as error:
                words = str(error)
        rows.append({"row": str(number), "what runs": name, "cache / plan": ratio, "error": words})
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
ANSWERS, ASKED, TOKENS = 64, 64, 1024  # rows, tokens of a prompt, tokens of a row
PIECES = (ASKED, 959, 1)  # tokens: the prompt, the answer but one token, then as a sampler does
SAMPLING, STEPS = "sampling, 64 rows", {"step, 8 rows": 8, "step, 1 row": 1}


def on_a_simulated_card(rotation: Rotation) -> Iterator[dict[str, Any]]:
    """A rollout of 64 rows of 1,024 tokens and two training steps on fake tensors; what a card would hold is counted, and
    nothing is computed.

    Yields one dict. "tokens", "cache": the tokens so far and the cache's MiB. "peak": MiB while the last token is written,
    and of a step on a micro-batch of 8 rows and of 1. AdamW's two moments are there all the time.
    """
    from transformers.models.llama import modeling_llama

    tap, peak = Tap(80 * 2**30, fake=True), {}
    model = tap.build(lambda: LlamaForCausalLM(LlamaConfig(**SIZE))).eval()
    with rotating_with(rotation, modeling_llama), tap:
        optimizer = torch.optim.AdamW(model.parameters())
        for parameter in model.parameters():
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": torch.tensor(0.0)} | moments
        lengths, sizes, peak[SAMPLING] = rollout_on(tap, model)
        for name, rows in STEPS.items():
            tap.reset_peak()
            step_on(model, optimizer, rows)
            peak[name] = tap.peak / MIB
    yield {"tokens": lengths, "cache": sizes, "peak": peak}


@torch.no_grad()
def rollout_on(tap: Tap, model: Any) -> tuple[list[int], list[float], float]:
    """Tokens so far, the cache's MiB, and the peak while the last token is written. The cache is gone afterwards."""
    lengths, sizes, cache = [0], [0.0], None
    for count in PIECES:
        if count == 1:
            tap.reset_peak()
        ids = torch.zeros(ANSWERS, count, dtype=torch.long)
        with torch.autocast("cpu", HALF):
            out = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        tap.label([(layer.keys, layer.values) for layer in cache.layers], "kv-cache")
        lengths.append(lengths[-1] + count)
        sizes.append(tap.by_category["kv-cache"] / MIB)
    return lengths, sizes, tap.peak / MIB


def step_on(model: Any, optimizer: torch.optim.Optimizer, rows: int) -> None:
    """One update on rows of 1,024 tokens: the log-probs of the answers, backward, AdamW. No checkpointing."""
    ids = torch.zeros(rows, TOKENS, dtype=torch.long)
    with torch.autocast("cpu", HALF):
        logits = model(ids, use_cache=False, logits_to_keep=TOKENS - ASKED + 1).logits
    logp = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, ASKED:, None])
    (-logp.mean()).backward()
    optimizer.step()
    optimizer.zero_grad()


def draw_simulated(bug: dict[str, Any], fix: dict[str, Any], plan: float) -> None:
    """The cache by tokens, and the peaks of sampling and of a step. `plan`: MiB of the whole cache."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.1), layout="constrained")
    left.plot(bug["tokens"], bug["cache"], "o-", color="#D55E00", label="bug", ms=4)
    left.plot(fix["tokens"], fix["cache"], "o-", color="#0072B2", label="fix", ms=4)
    left.plot([0, TOKENS], [0, plan], ":", color="#333333", lw=2.5, label="plan")
    left.set(
        xlabel="tokens of a row", ylabel="KV cache, MiB (simulated)", xlim=(0, None), ylim=(0, None)
    )
    left.set_title("The cache grows twice as fast as planned", fontsize=10)
    left.legend(frameon=False)
    for run, colour, shift in ((bug, "#D55E00", -0.2), (fix, "#0072B2", 0.2)):
        places = [at + shift for at in range(len(run["peak"]))]
        sizes = list(run["peak"].values())
        right.barh(places, sizes, height=0.38, color=colour)
        for place, size in zip(places, sizes, strict=True):
            right.annotate(f" {size:,.0f}", (size, place), va="center", fontsize=9)
    right.set_yticks(range(len(bug["peak"])), list(bug["peak"]))
    right.invert_yaxis()
    right.set_xticks(range(0, 13_000, 4_000))
    right.set(xlabel="peak, MiB (simulated)", xlim=(0, 1.2 * max(bug["peak"].values())))
    right.set_title("The fix lowers the peak of sampling alone", fontsize=10)
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
    """GRPO from random weights, with this rotation. `extra["cache"]`: the largest cache so far, in bytes;
    `extra["weights"]`: a fingerprint of the weights after the update."""
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
            own = {
                "cache": float(policy.model.largest_cache),
                "weights": float(fingerprint(policy.model)),
            }
            yield replace(step, extra=step.extra | own)


def fingerprint(model: Any) -> int:
    """32 bits of a hash of all weights."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return int.from_bytes(digest.digest()[:4], "big")


def numbers(step: Step) -> tuple[float, float, float]:
    """What bug and fix are compared by, after each update."""
    return step.loss, step.reward, step.extra["weights"]


def ends(runs: dict[str, dict[int, Any]]) -> list[dict[str, str]]:
    """For `labkit.table`: a row for each seed and rotation."""
    rows = []
    for seed in runs["bug"]:
        for arm, run in ((arm, of_seed[seed]) for arm, of_seed in runs.items()):
            first, last = run.steps[0], run.steps[-1]
            rows.append(
                {
                    "seed": str(seed),
                    "": arm,
                    "reward, first": f"{first.reward:.4f}",
                    "reward, last": f"{last.reward:.4f}",
                    "last loss": f"{last.loss:.8f}",
                    "weights": f"{int(last.extra['weights']):08x}",
                }
            )
    return rows


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


Drawn = tuple[
    rollout.Completions, Tensor
]  # completions, and the sampler's log-probs of their tokens [B, T]


@torch.no_grad()
def drawn(sampler: Policy, seed: int) -> Drawn:
    """What a policy samples, and the log-prob that it had for each token when it drew it."""
    said = []

    def noted(logits: Tensor, *settings: Any) -> Tensor:
        token = rollout.sample_tokens(logits, *settings)
        said.append(logits.float().log_softmax(-1).gather(-1, token[:, None])[:, 0])
        return token

    prompts = task.get("add").sample(16, random.Random(seed))
    dice = torch.Generator(sampler.device).manual_seed(seed)
    out = rollout.generate(sampler, prompts, max_new_tokens=8, generator=dice, sample_tokens=noted)
    return out, torch.stack(said, 1)


@torch.no_grad()
def recomputed(trainer: Policy, out: rollout.Completions) -> Tensor:
    """[B, T]: the trainer's log-probs of sampled tokens."""
    return token_logprobs(trainer.model, out.ids, out.attention_mask, out.tokens.shape[1])[0]


def prices(rotations: dict[str, Rotation], seed: int, device: str) -> list[dict[str, Any]]:
    """Train a policy with the first rotation, then sample with each, and from a bfloat16 copy. `rotations`: the bug
    first. Gaps are the largest over all sampled tokens, in nats."""
    policy, rows = new_policy(seed, device), []
    module, bug = module_of(policy.model), next(iter(rotations.values()))
    settings: dict[str, Any] = {"rounds": 2, "mu": 2, "lr": 1e-3, "max_new_tokens": 8}
    with rotating_with(bug, module):
        list(train(policy, "add", seed=seed, reward=share_of_sevens, **settings))
    copied = Policy(copy.deepcopy(policy.model).bfloat16(), policy.tokenizer, "copy")
    cases = {name: (policy, rotation) for name, rotation in rotations.items()}
    for name, (sampler, rotation) in (cases | {"model.bfloat16() samples": (copied, bug)}).items():
        sampler.model.largest_cache = 0
        with rotating_with(rotation, module):
            out, said = drawn(sampler, seed)
            kib = sampler.model.largest_cache / 1024
            trained = recomputed(policy, out)
        with rotating_with(bug, module):
            as_before = recomputed(policy, out)
        counted = out.mask.bool()
        gaps = {
            "sampler to its trainer": float((said - trained)[counted].abs().max()),
            "trainer to the bug's": float((trained - as_before)[counted].abs().max()),
        }
        rows.append({"": name, "cache, KiB": kib} | gaps)
    return rows


# Where one rounds -----------------------------------------------------------------------------------------------------


def rounded(x: Tensor) -> Tensor:
    """To the nearest bfloat16 number."""
    return x.to(HALF).double()


PLACES = {
    "tokens 16 and 20": (16, 20),
    "tokens 8,016 and 8,020": (8016, 8020),
    "tokens 4,020 and 8,020": (4020, 8020),
}


def one_turn(frequency: float) -> list[dict[str, str]]:
    """For `labkit.table`: the difference of two tokens' angles, in radians, for one frequency."""
    exact, rows = torch.tensor(frequency, dtype=torch.float64), []
    for name, (key_at, query_at) in PLACES.items():
        differences = {
            "exact": query_at * exact - key_at * exact,
            "angles rounded": rounded(query_at * exact) - rounded(key_at * exact),
            "frequency rounded": query_at * rounded(exact) - key_at * rounded(exact),
        }
        rows.append({"": name} | {way: f"{float(d):,.2f}" for way, d in differences.items()})
    return rows


def score_errors(head_dim: int, seed: int, key_at: int, query_at: int) -> dict[str, float]:
    """How far rotated scores q · k are off, as a share of a score's usual size, for 200 random pairs of q and k.

    q and k are bfloat16 numbers. All is computed in float64, except for what is rounded to bfloat16: the rotation's
    result; cos and sin, and so each product and sum; the frequencies; or the angles.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k = rounded(torch.randn(2, 200, head_dim, generator=generator))
    frequencies = 10_000.0 ** (-torch.arange(0, head_dim, 2).double() / head_dim)

    def turned(x: Tensor, angle: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        first, second = x.to(dtype).chunk(2, -1)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).double()

    ways: dict[str, Callable[[Tensor, int], Tensor]] = {
        "the fix": lambda x, position: rounded(turned(x, position * frequencies)),
        "cos and sin cast": lambda x, position: turned(x, position * frequencies, HALF),
        "frequencies rounded": lambda x, position: turned(x, position * rounded(frequencies)),
        "angles rounded": lambda x, position: turned(x, rounded(position * frequencies)),
    }
    exact = (turned(q, query_at * frequencies) * turned(k, key_at * frequencies)).sum(-1)
    usual = exact.square().mean().sqrt()
    return {
        name: float(
            ((way(q, query_at) * way(k, key_at)).sum(-1) - exact).square().mean().sqrt() / usual
        )
        for name, way in ways.items()
    }


def rounding_errors(seed: int) -> dict[str, dict[str, float]]:
    """Where the two tokens stand -> the error of their scores, by what is rounded."""
    return {place: score_errors(64, seed, *positions) for place, positions in PLACES.items()}


def as_table(rows: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """For `labkit.table`: the name of a row in its first column."""
    return [{"": name} | row for name, row in rows.items()]


# Exercises ------------------------------------------------------------------------------------------------------------


def halves_qwen3(fix: Rotation, seed: int, device: torch.device) -> Callable[[Any], Report]:
    """The check of exercise B: an answer changes a Qwen3, and the cache is as planned, and nothing else is changed."""

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
    """The check of exercise A: models that the lesson did not show, each with one cause or none."""

    def check(answer: Callable[[dict[str, str]], str]) -> Report:
        for model, (right, log) in unseen(bug, fix, seed + 1, device).items():
            said = answer(dict(log))
            if said != right:
                hint = f"For {model} it returned {said!r}. Its log: {log}"
                return Report("names_each", "each cause has its name", False, {}, hint)
        return Report("names_each", "each cause has its name", True)

    return check
