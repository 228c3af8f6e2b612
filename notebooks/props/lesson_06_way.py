"""Lesson 06: one forward pass, and q, k and v of its first layer on their way into the cache.

This file draws nothing, and knows of no rotation: each is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from props.lesson_06 import (
    HALF,
    HEAD_SIZE,
    HEADS,
    MIXED,
    MODELS,
    PROMPT,
    Rotation,
    by_plan,
    module_of,
    random_prompts,
    rotating_with,
    small,
    word,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import sandbox

MADE, BEFORE, AFTER, STORED, READ = STATIONS = (
    "made",
    "before the rotation",
    "after the rotation",
    "in the cache",
    "read by attention",
)
LANES = ("query", "key", "value")
Way = dict[str, Any]  # see way_of


@dataclass(frozen=True)
class Case:
    """A model, its weights, and what happens on the way.

    weights   a dtype, or MIXED
    autocast  the dtype of autocast; None: there is none
    tables    the dtype into which cos and sin are cast; None leaves them
    store     "dynamic", "static", or "float32": a cache that keeps all in float32, and hands out what it was given
    lora      with float32 adapters at q and k
    """

    model: str = "Llama"
    weights: torch.dtype | str = torch.float32
    autocast: torch.dtype | None = HALF
    tables: torch.dtype | None = None
    store: str = "dynamic"
    lora: bool = False


class Float32Cache(transformers.DynamicCache):
    """Keeps all in float32, and hands out the dtypes that it was given."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **settings: Any) -> Any:
        keys, values = super().update(key_states.float(), value_states.float(), *args, **settings)
        return keys.to(key_states.dtype), values.to(value_states.dtype)


def _policy_of(case: Case, seed: int, device: torch.device) -> Any:
    policy = small(case.model, seed, device, case.weights)
    if case.lora:
        import peft  # takes a second

        peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["q_proj", "k_proj"]), policy)
    if case.tables is not None:
        policy.model.rotary_emb.register_forward_hook(
            lambda rope, given, out: (out[0].to(case.tables), out[1].to(case.tables))
        )
    return policy


def _cache_of(case: Case, policy: Any) -> Any:
    if case.store == "static":
        return transformers.StaticCache(config=policy.config, max_cache_len=PROMPT)
    if case.store == "float32":
        return Float32Cache(config=policy.config)
    return transformers.DynamicCache(config=policy.config)


class Recorder:
    """Writes down dtype and numbers of q, k and v of the first layer, wherever they come past."""

    def __init__(self) -> None:
        self.way: Way = {lane: {} for lane in LANES}

    def note(self, station: str, **tensors: Tensor) -> None:
        for lane, tensor in tensors.items():
            if tensor.dim() == 3:  # [B, T, H * D], as the Linear makes it
                tensor = tensor.unflatten(-1, (HEADS, HEAD_SIZE)).transpose(1, 2)
            # of all layers the first comes first
            self.way[lane].setdefault(station, (word(tensor.dtype), tensor[0, 0, -1].tolist()))

    def at_the_linears(self, layer: Any) -> None:
        def entered(block: Any, args: Any, settings: Any) -> None:
            self.way["hidden state"] = word(args[0].dtype)

        layer.register_forward_pre_hook(entered, with_kwargs=True)
        attention = layer.self_attn
        attention.q_proj.register_forward_hook(lambda _, __, out: self.note(MADE, query=out))
        attention.k_proj.register_forward_hook(lambda _, __, out: self.note(MADE, key=out))
        attention.v_proj.register_forward_hook(lambda _, __, out: self.note(MADE, value=out))

    def around(self, rotation: Rotation) -> Rotation:
        def rotated(q: Tensor, k: Tensor, *args: Any, **settings: Any) -> tuple[Tensor, Tensor]:
            self.note(BEFORE, query=q, key=k)
            self.way["cos and sin"] = word(args[0].dtype)
            q, k = rotation(q, k, *args, **settings)
            self.note(AFTER, query=q, key=k)
            return q, k

        return rotated

    def before_the_store(self, cache: Any) -> None:
        update = cache.update

        def stored(key: Tensor, value: Tensor, *args: Any, **settings: Any) -> Any:
            self.note(AFTER, value=value)
            return update(key, value, *args, **settings)

        cache.update = stored

    def in_the_store(self, cache: Any, read: list[Tensor]) -> None:
        """After the pass: what attention was given, and what lies in the cache. `read` is empty where the pass died before."""
        for lane, tensor in zip(LANES, read, strict=False):
            self.note(READ, **{lane: tensor})
        layer = cache.layers[0]
        if read:
            self.note(STORED, key=layer.keys, value=layer.values)
            return
        if not isinstance(cache, transformers.StaticCache) or not layer.is_initialized:
            return
        # it takes the key, then the value: did it write the key before it died?
        if layer.keys[0, 0, -1].tolist() == self.way["key"][AFTER][1]:
            self.note(STORED, key=layer.keys)


class ReadByAttention(TorchDispatchMode):
    """Keeps what the attention kernel of the first layer is given. It stands below autocast, which casts on the way there."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "scaled_dot_product" in str(operation) and not self.tensors:
            self.tensors = list(args[:3])
        return operation(*args, **(kwargs or {}))


def way_of(rotation: Rotation | None, seed: int, device: torch.device, **settings: Any) -> Way:
    """One forward pass of 8 prompts that fills a cache, and q, k and v of its first layer on the way.

    rotation  None: transformers' own
    settings  those of a `Case`

    Returns lane -> station -> (dtype in words, the 32 numbers of row 0, head 0, last token); "hidden state" and
    "cos and sin", their dtypes; "cache / plan", NaN where the pass died, and "error". The value of `after the rotation`
    is what is handed to the cache.
    """
    case = Case(**settings)
    policy = _policy_of(case, seed, device)
    cache = _cache_of(case, policy)
    recorder, reading = Recorder(), ReadByAttention()
    recorder.at_the_linears(policy.model.layers[0])
    recorder.before_the_store(cache)
    rotated = recorder.around(rotation or module_of(policy).apply_rotary_pos_emb)
    casting = torch.autocast(device.type, case.autocast or HALF, enabled=case.autocast is not None)
    error = ""
    with rotating_with(rotated, policy), casting, torch.no_grad(), reading:
        try:
            policy(random_prompts(seed, device), past_key_values=cache, use_cache=True)
        except Exception as raised:  # a refusal is a result; so is what a reader's function raises
            error = " ".join(f"{type(raised).__name__}: {raised}".split())
    recorder.in_the_store(cache, reading.tensors)
    ratio = float("nan") if error else by_plan(cache)
    return recorder.way | {"error": error, "cache / plan": ratio}


def each_way(cases: Mapping[str, Mapping[str, Any]], seed: int, device: str) -> Iterator[Way]:
    """The way of every case, for a process of its own."""
    for name, case in cases.items():
        yield way_of(seed=seed, device=torch.device(device), **case) | {"name": name}


def ways(
    cases: Mapping[str, Mapping[str, Any]], seed: int, device: torch.device, **common: Any
) -> dict[str, Way]:
    """Name -> its way, made in a process of its own, since a reader's function may run in it. What that process did not
    come to is a way that nothing has gone.
    """
    jobs = {name: {**common, **case} for name, case in cases.items()}
    run = sandbox.run(each_way, jobs, seed, str(device), timeout=180)
    done = {way["name"]: way for way in run.events}
    lost: Way = {lane: {} for lane in LANES}
    lost |= {"hidden state": "", "cos and sin": "", "cache / plan": float("nan")}
    lost["error"] = f"not run: {run.outcome.signature}"
    return {name: done.get(name, lost) for name in cases}


def ratio(way: Way) -> str:
    """The cache by its plan, or that there is none."""
    return "raises" if way["error"] else f"{way['cache / plan']:.2f}"


def concerns(mine: Rotation, whose: str, seed: int, device: torch.device) -> list[dict[str, str]]:
    """For `labkit.table`: cache / plan of five models under what people use, each with transformers' own rotation, and
    with the reader's where it fits."""
    settings: dict[str, dict[str, Any]] = {
        "float32 weights, autocast to bfloat16": {},
        "float32 weights, autocast to float16": {"autocast": torch.float16},
        "float32 weights, autocast, static store": {"store": "static"},
        "float32 weights, no autocast": {"autocast": None},
        "bfloat16 weights, autocast to bfloat16": {"weights": HALF},
        "bfloat16 weights, no autocast": {"autocast": None, "weights": HALF},
        "bfloat16 Linears, norms and embedding float32, autocast": {"weights": MIXED},
        "LoRA on float32 weights, autocast": {"lora": True},
        "LoRA on bfloat16 weights, autocast": {"lora": True, "weights": HALF},
        f"the first row, {whose}": {"rotation": mine},
        f"the static store, {whose}": {"rotation": mine, "store": "static"},
    }
    cases: dict[str, dict[str, Any]] = {}
    for setting, case in settings.items():
        for model in MODELS:
            cases[f"{setting}, {model}"] = {"rotation": None, "model": model, **case}
    done, rows = ways(cases, seed, device), []
    for setting, case in settings.items():
        row = {"setting": setting}
        for model in MODELS:
            row[model] = ratio(done[f"{setting}, {model}"])
            if "rotation" in case and model in ("OLMo 2", "Cohere"):
                row[model] = "–"  # they turn other pairs, or cast already
        rows.append(row)
    return rows
