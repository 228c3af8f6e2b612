"""Lesson 06: its small models, and the way of q, k and v into the cache.

The rotation, the rollout and the runs stand in the notebook. Models here have random weights: which dtype a tensor has
does not depend on what is in it. Beside this file: lesson_06_pictures.py, lesson_06_runs.py (GRPO, prices, a simulated
card) and lesson_06_judges.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import sandbox

HALF = torch.bfloat16
MIXED = "mixed"  # bfloat16 Linears; norms and embedding float32, as peft's preparation of k-bit models leaves them
ROWS, PROMPT, VOCAB = 8, 12, 64
HEADS, HEAD_SIZE = 4, 32
SHAPE: dict[str, Any] = {
    "hidden_size": HEADS * HEAD_SIZE,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "vocab_size": VOCAB,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,  # so that every row is sampled to the end
}
MODELS = {  # as people write them, and as transformers does
    "Llama": "Llama",
    "Qwen2": "Qwen2",
    "Qwen3": "Qwen3",
    "OLMo 2": "Olmo2",
    "Cohere": "Cohere",
}
Rotation = Callable[..., tuple[Tensor, Tensor]]
Way = dict[str, Any]  # see way_of


# ------------------------------------------------------------------------------------------------ small models


def small(
    name: str, seed: int, device: torch.device, weights: torch.dtype | str = torch.float32
) -> Any:
    """A causal model of transformers: two layers, random weights of this dtype (or MIXED), norms whose weights are not all 1.

    Only parameters are cast. `model.bfloat16()` would round the rotation's frequencies, too.
    """
    torch.manual_seed(seed)
    shape = dict(SHAPE)
    if name == "Qwen3":
        shape["head_dim"] = HEAD_SIZE
    config = getattr(transformers, f"{MODELS[name]}Config")(**shape)
    model = getattr(transformers, f"{MODELS[name]}ForCausalLM")(config)
    for key, parameter in model.named_parameters():
        if "norm" in key:
            nn.init.uniform_(parameter, 0.5, 1.5)
        dtype = weights
        if weights == MIXED:
            dtype = HALF if "_proj" in key else torch.float32
        parameter.data = parameter.data.to(dtype)
    return model.to(device).eval()


def random_prompts(
    seed: int, device: torch.device, rows: int = ROWS, tokens: int = PROMPT
) -> Tensor:
    """[rows, tokens] token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (rows, tokens), generator=generator).to(device)


def in_memory(cache: Any) -> int:
    """Bytes of all keys and values."""
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def by_plan(cache: Any) -> float:
    """The bytes of a cache by those of its plan, 2 for each number."""
    numbers = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    return in_memory(cache) / (2 * numbers)


def word(dtype: torch.dtype) -> str:
    """ "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def module_of(model: Any) -> Any:
    """The file of transformers with a model's attention: the model calls the `apply_rotary_pos_emb` that it finds there."""
    return sys.modules[type(model.model.layers[0].self_attn).__module__]


@contextlib.contextmanager
def rotating_with(rotation: Rotation | None, model: Any) -> Iterator[None]:
    """Let all models of this one's file use a rotation; None leaves them their own. Put back on exit."""
    module = module_of(model)
    own = module.apply_rotary_pos_emb
    module.apply_rotary_pos_emb = rotation or own
    try:
        yield
    finally:
        module.apply_rotary_pos_emb = own


# ------------------------------------------------------------------------------------------------ the way

MADE, BEFORE, AFTER, STORED, READ = STATIONS = (
    "made",
    "before the rotation",
    "after the rotation",
    "in the cache",
    "read by attention",
)
LANES = ("query", "key", "value")


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


def way_of(
    rotation: Rotation | None,
    seed: int,
    device: torch.device,
    model: str = "Llama",
    weights: torch.dtype | str = torch.float32,
    autocast: torch.dtype | None = HALF,
    tables: torch.dtype | None = None,
    store: str = "dynamic",
    lora: bool = False,
) -> Way:
    """One forward pass of 8 prompts that fills a cache, and q, k and v of its first layer on the way.

    tables  dtype into which cos and sin are cast; None leaves them
    store   "dynamic", "static", or "float32": a cache that keeps all in float32, and hands out what it was given
    lora    with float32 adapters at q and k

    Returns lane -> station -> (dtype in words, the 32 numbers of row 0, head 0, last token); "hidden state" and
    "cos and sin", their dtypes; "cache / plan", NaN where the pass died, and "error". The value of `after the rotation` is what is handed to the cache.
    """
    policy, prompts = small(model, seed, device, weights), random_prompts(seed, device)
    if lora:
        import peft  # takes a second

        peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["q_proj", "k_proj"]), policy)
    cache: Any = transformers.DynamicCache(config=policy.config)
    if store == "static":
        cache = transformers.StaticCache(config=policy.config, max_cache_len=PROMPT)
    update, rotate = cache.update, rotation or module_of(policy).apply_rotary_pos_emb
    way: Way = {lane: {} for lane in LANES}

    def note(station: str, **tensors: Tensor) -> None:
        for lane, tensor in tensors.items():
            if tensor.dim() == 3:  # [B, T, H * D], as the Linear makes it
                tensor = tensor.unflatten(-1, (HEADS, HEAD_SIZE)).transpose(1, 2)
            # of all layers the first comes first
            way[lane].setdefault(station, (word(tensor.dtype), tensor[0, 0, -1].tolist()))

    def rotated(q: Tensor, k: Tensor, *args: Any, **settings: Any) -> tuple[Tensor, Tensor]:
        note(BEFORE, query=q, key=k)
        way["cos and sin"] = word(args[0].dtype)
        q, k = rotate(q, k, *args, **settings)
        note(AFTER, query=q, key=k)
        return q, k

    def stored(key: Tensor, value: Tensor, *args: Any, **settings: Any) -> tuple[Tensor, Tensor]:
        note(AFTER, value=value)
        if store != "float32":
            return update(key, value, *args, **settings)
        keys, values = update(key.float(), value.float(), *args, **settings)
        return keys.to(key.dtype), values.to(value.dtype)

    def entered(block: Any, args: Any, settings: Any) -> None:
        way["hidden state"] = word(args[0].dtype)

    cache.update = stored
    policy.model.layers[0].register_forward_pre_hook(entered, with_kwargs=True)
    attention = policy.model.layers[0].self_attn
    attention.q_proj.register_forward_hook(lambda linear, given, out: note(MADE, query=out))
    attention.k_proj.register_forward_hook(lambda linear, given, out: note(MADE, key=out))
    attention.v_proj.register_forward_hook(lambda linear, given, out: note(MADE, value=out))
    if tables is not None:
        policy.model.rotary_emb.register_forward_hook(
            lambda rope, given, out: (out[0].to(tables), out[1].to(tables))
        )
    casting = torch.autocast(device.type, autocast or HALF, enabled=autocast is not None)
    reading, error = ReadByAttention(), ""
    with rotating_with(rotated, policy), casting, torch.no_grad(), reading:
        try:
            policy(prompts, past_key_values=cache, use_cache=True)
        except Exception as raised:  # a refusal is a result; so is what a reader's function raises
            error = " ".join(f"{type(raised).__name__}: {raised}".split())
    for lane, tensor in zip(LANES, reading.tensors, strict=False):  # none where it died before
        note(READ, **{lane: tensor})
    if reading.tensors:
        note(STORED, key=cache.layers[0].keys, value=cache.layers[0].values)
    if store == "static" and not reading.tensors and cache.layers[0].is_initialized:
        # it takes the key, then the value: which did it write before it died?
        keys = cache.layers[0].keys
        if keys[0, 0, -1].tolist() == way["key"][AFTER][1]:
            note(STORED, key=keys)
    way["error"] = error
    way["cache / plan"] = float("nan") if error else by_plan(cache)
    return way


def each_way(cases: Mapping[str, Mapping[str, Any]], seed: int, device: str) -> Iterator[Way]:
    """The way of every case, for a process of its own."""
    for name, case in cases.items():
        yield way_of(seed=seed, device=torch.device(device), **case) | {"name": name}


def ways(
    cases: Mapping[str, Mapping[str, Any]], seed: int, device: torch.device, **common: Any
) -> dict[str, Way]:
    """Name -> its way, made in a process of its own, since a reader's function may run in it. If that ends the
    process, the rest is missing."""
    jobs = {name: {**common, **case} for name, case in cases.items()}
    run = sandbox.run(each_way, jobs, seed, str(device), timeout=60)
    done = {way["name"]: way for way in run.events}
    lost: Way = {
        "query": {},
        "key": {},
        "value": {},
        "cache / plan": float("nan"),
        "error": "it ended",
    }
    return {name: done.get(name, lost) for name in cases}
