"""What a budget is asked about: the model's shape and the settings of a training run. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

_SCALES = {"tiny": (2, 128, 4, 16, 32), "124M": (12, 768, 12, 50257, 1024)}  # labkit.policy.build


@dataclass(frozen=True)
class Shape:
    """A GPT-2: its output head is tied, its MLP four times as wide, and dropout is off."""

    layers: int
    width: int
    heads: int
    vocab: int
    positions: int

    @classmethod
    def of(cls, config: Any) -> Shape:
        """From "124M", "tiny", a transformers GPT2Config, or a Shape."""
        if isinstance(config, Shape):
            return config
        if isinstance(config, str) and config in _SCALES:
            return cls(*_SCALES[config])
        derived = getattr(config, "model_type", "") == "gpt2" and config.activation_function == "gelu_new"
        if not derived or not config.tie_word_embeddings or config.n_inner not in (None, 4 * config.n_embd):
            raise ValueError(
                f"config {str(config)[:60]!r}: expected {' or '.join(_SCALES)}, or a transformers GPT2Config "
                "(gelu_new, tied head, MLP of four times the width); measure others with labkit.memory.Tap"
            )
        return cls(config.n_layer, config.n_embd, config.n_head, config.vocab_size, config.n_positions)

    @property
    def inner(self) -> int:
        """Width inside the MLP."""
        return 4 * self.width

    @property
    def matrices(self) -> int:
        """Scalars of a block's four matrices and their biases."""
        d, f = self.width, self.inner
        return sum(i * o + o for i, o in ((d, 3 * d), (d, d), (d, f), (f, d)))

    @property
    def parameters(self) -> int:
        """Scalars, the tied head counted once."""
        norms = 2 * 2 * self.width
        embeddings = (self.vocab + self.positions) * self.width
        return embeddings + self.layers * (self.matrices + norms) + 2 * self.width


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
    lora: int = 0  # rank, on c_attn; 0 trains everything
    reference: bool = False  # a second, frozen copy (with LoRA the base model is the reference: no copy)

    def __post_init__(self) -> None:
        least = {"batch": 1, "prompt": 1, "group": 1, "micro_batches": 1, "new_tokens": 0, "lora": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if type(value) is not int or value < smallest:
                raise ValueError(f"{name} = {value!r}: expected a whole number, at least {smallest}")
        known = {"objective": ("grpo", "lm"), "optimizer": ("adamw", "sgd"), "attention": ("sdpa", "eager")}
        for name, words in known.items():
            if getattr(self, name) not in words:
                raise ValueError(f"{name} = {getattr(self, name)!r}: expected one of {', '.join(words)}")
        if self.rows % self.micro_batches:
            raise ValueError(f"micro_batches = {self.micro_batches}: does not divide the {self.rows} rows of a step")
        if self.objective == "grpo" and not self.new_tokens:
            raise ValueError("new_tokens = 0: objective 'grpo' trains on completions; use objective='lm'")

    @property
    def rows(self) -> int:
        return self.batch * self.group

    @property
    def tokens(self) -> int:
        """Of a row."""
        return self.prompt + self.new_tokens

    def __str__(self) -> str:
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return ", ".join(f"{name}={value!r}" for name, value in changed.items()) or "defaults"
