"""What a budget is asked about: the model's shape and the settings of a training run. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

_SCALES = {"tiny": (2, 128, 4, 16, 32), "124M": (12, 768, 12, 50257, 1024)}  # labkit.policy.build


@dataclass(frozen=True)
class Shape:
    """A GPT-2: layers, width, heads, inner width of the MLP, vocabulary, positions. The output head is tied."""

    layers: int
    width: int
    heads: int
    vocab: int
    positions: int
    inner: int = 0  # 0: four times the width
    dropout: float = 0.0  # of the residual stream and the attention weights

    def __post_init__(self) -> None:
        if not self.inner:
            object.__setattr__(self, "inner", 4 * self.width)

    @classmethod
    def of(cls, config: Any) -> Shape:
        """From "124M", "tiny", a transformers GPT2Config, or a Shape."""
        if isinstance(config, Shape):
            return config
        if isinstance(config, str):
            if config not in _SCALES:
                known = " or ".join(_SCALES)
                raise ValueError(f"config {config!r}: expected {known}, or a transformers GPT2Config")
            return cls(*_SCALES[config])
        if getattr(config, "model_type", None) != "gpt2":
            kind = getattr(config, "model_type", type(config).__name__)
            raise ValueError(
                f"config of type {kind!r}: the terms are derived for GPT-2 (c_attn, gelu_new, learned positions); "
                "measure other models with labkit.memory.Tap"
            )
        if config.activation_function != "gelu_new" or not config.tie_word_embeddings:
            raise ValueError("config: expected GPT-2's gelu_new and tied embeddings; measure others with a Tap")
        sizes = config.n_layer, config.n_embd, config.n_head, config.vocab_size, config.n_positions
        dropout = max(config.resid_pdrop, config.embd_pdrop, config.attn_pdrop)
        return cls(*sizes, config.n_inner or 0, dropout)

    def linears(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a block's four matrices."""
        d, f = self.width, self.inner
        return {"c_attn": (d, 3 * d), "attn.c_proj": (d, d), "c_fc": (d, f), "mlp.c_proj": (f, d)}

    @property
    def parameters(self) -> int:
        """Scalars, the tied head counted once."""
        matrices = sum(i * o + o for i, o in self.linears().values())
        norms = 2 * 2 * self.width
        embeddings = (self.vocab + self.positions) * self.width
        return embeddings + self.layers * (matrices + norms) + 2 * self.width


@dataclass(frozen=True)
class Workload:
    """A training run. Rows per step: `batch * group`; tokens per row: `prompt + new_tokens`."""

    batch: int = 4  # prompts per step (rows, where group is 1)
    prompt: int = 128  # tokens
    new_tokens: int = 128  # tokens
    group: int = 1  # completions per prompt
    objective: str = "grpo"  # generate, score, train on the completion; or "lm": cross-entropy on all tokens
    optimizer: str = "adamw"  # or "sgd", without momentum
    micro_batches: int = 1  # split a step's rows this often and accumulate
    attention: str = "sdpa"  # or "eager"
    checkpointing: bool = False  # keep a layer's input only, compute the rest again in the backward pass
    amp: bool = False  # torch.autocast to bfloat16; the parameters stay float32
    lora: int = 0  # rank; 0 trains everything
    lora_targets: tuple[str, ...] = ("c_attn",)  # of c_attn, c_proj, c_fc, as in peft's target_modules
    reference: bool = False  # a second, frozen copy (with LoRA the base model is the reference: no copy)

    def __post_init__(self) -> None:
        least = {"batch": 1, "prompt": 1, "group": 1, "micro_batches": 1, "new_tokens": 0, "lora": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
                raise ValueError(f"{name} = {value!r}: expected a whole number, at least {smallest}")
        known = {"objective": ("grpo", "lm"), "optimizer": ("adamw", "sgd"), "attention": ("sdpa", "eager")}
        for name, words in known.items():
            if getattr(self, name) not in words:
                raise ValueError(f"{name} = {getattr(self, name)!r}: expected one of {', '.join(words)}")
        if self.rows % self.micro_batches:
            raise ValueError(f"micro_batches = {self.micro_batches}: does not divide the {self.rows} rows of a step")
        if self.objective == "grpo" and not self.new_tokens:
            raise ValueError("new_tokens = 0: objective 'grpo' trains on completions; use objective='lm'")
        unknown = set(self.lora_targets) - {"c_attn", "c_proj", "c_fc"}
        if unknown or not self.lora_targets:
            raise ValueError(f"lora_targets = {self.lora_targets!r}: expected some of c_attn, c_proj, c_fc")

    @property
    def rows(self) -> int:
        return self.batch * self.group

    @property
    def tokens(self) -> int:
        """Of a row."""
        return self.prompt + self.new_tokens

    def adapted(self, linear: str) -> bool:
        """Whether LoRA sits on this one of `Shape.linears()`."""
        return bool(self.lora) and linear.rpartition(".")[2] in self.lora_targets

    def __str__(self) -> str:
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return ", ".join(f"{name}={value!r}" for name, value in changed.items()) or "defaults"
