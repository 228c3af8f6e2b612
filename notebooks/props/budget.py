"""Predict the peak memory of a GPT-2 training run from its settings: bytes, term by term, before anything runs.

Every term is read off the layers' own arithmetic (transformers 5.17 to 5.23 `modeling_gpt2.py`, torch's autograd
formulas): which tensors an operation keeps for its backward pass, and which are alive together at the few moments that
can hold the peak. Nothing is fitted; tests/memory/measurement.py runs the same workload.

Letters: n rows of a micro-batch, T tokens per row, t new tokens, d width, f inner width of the MLP, h heads,
V vocabulary, L layers. Sizes are in bytes.

Left out: the allocator's rounding (1 to 2 % of what `memory_allocated` says) and fragmentation, scratch memory of
kernels, cuBLAS workspaces, and what the framework itself holds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from labkit.common import format_size

F32, HALF, INT64 = 4, 2, 8
_SCALES = {"tiny": (2, 128, 4, 16, 32), "124M": (12, 768, 12, 50257, 1024)}


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
        derived = (
            getattr(config, "model_type", "") == "gpt2" and config.activation_function == "gelu_new"
        )
        if (
            not derived
            or not config.tie_word_embeddings
            or config.n_inner not in (None, 4 * config.n_embd)
        ):
            raise ValueError(
                f"config {str(config)[:60]!r}: expected {' or '.join(_SCALES)}, or a transformers GPT2Config "
                "(gelu_new, tied head, MLP of four times the width); measure others with props.card.Tap"
            )
        return cls(
            config.n_layer, config.n_embd, config.n_head, config.vocab_size, config.n_positions
        )

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
        """Scalars, the tied head counted once: embeddings, blocks with two layer norms each, the last layer norm."""
        block = self.matrices + 2 * 2 * self.width
        return (self.vocab + self.positions) * self.width + self.layers * block + 2 * self.width


@dataclass(frozen=True)
class Workload:
    """A training run. Rows per step: `batch * group`; tokens per row: `prompt + new_tokens`."""

    batch: int = 4  # prompts per step (rows, where group is 1)
    prompt: int = 128  # tokens
    new_tokens: int = 128  # tokens
    group: int = 1  # completions per prompt
    objective: str = (
        "grpo"  # generate, score, train on the completion; or "lm": cross-entropy on all tokens
    )
    optimizer: str = "adamw"  # or "sgd", without momentum
    micro_batches: int = 1  # split a step's rows this often and accumulate
    attention: str = "sdpa"  # or "eager"
    checkpointing: bool = (
        False  # keep a layer's input only, compute the rest again in the backward pass
    )
    amp: bool = False  # torch.autocast to bfloat16; the parameters stay float32
    lora: int = 0  # rank, on c_attn; 0 trains everything
    reference: bool = (
        False  # a second, frozen copy (with LoRA the base model is the reference: no copy)
    )

    def __post_init__(self) -> None:
        least = {
            "batch": 1,
            "prompt": 1,
            "group": 1,
            "micro_batches": 1,
            "new_tokens": 0,
            "lora": 0,
        }
        for name, smallest in least.items():
            value = getattr(self, name)
            if type(value) is not int or value < smallest:
                raise ValueError(
                    f"{name} = {value!r}: expected a whole number, at least {smallest}"
                )
        known = {
            "objective": ("grpo", "lm"),
            "optimizer": ("adamw", "sgd"),
            "attention": ("sdpa", "eager"),
        }
        for name, words in known.items():
            if getattr(self, name) not in words:
                raise ValueError(
                    f"{name} = {getattr(self, name)!r}: expected one of {', '.join(words)}"
                )
        if self.rows % self.micro_batches:
            raise ValueError(
                f"micro_batches = {self.micro_batches}: does not divide the {self.rows} rows of a step"
            )
        if self.objective == "grpo" and not self.new_tokens:
            raise ValueError(
                "new_tokens = 0: objective 'grpo' trains on completions; use objective='lm'"
            )

    @property
    def rows(self) -> int:
        return self.batch * self.group

    @property
    def tokens(self) -> int:
        """Of a row."""
        return self.prompt + self.new_tokens

    def __str__(self) -> str:
        changed = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != f.default
        }
        return ", ".join(f"{name}={value!r}" for name, value in changed.items()) or "defaults"


@dataclass(frozen=True)
class Term:
    """So many bytes of one category, and why."""

    category: str  # as props.card.ledger.CATEGORIES
    bytes: int
    why: str


@dataclass(frozen=True)
class Phase:
    """The fullest moment of one phase of a step."""

    name: str  # "generate", "score", "train" or "update"
    moment: str
    terms: tuple[Term, ...]

    @property
    def bytes(self) -> int:
        return sum(t.bytes for t in self.terms)

    @property
    def by_category(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for term in self.terms:
            counts[term.category] = counts.get(term.category, 0) + term.bytes
        return counts


@dataclass(frozen=True)
class Budget:
    """What a run needs. `peak` in bytes; `phases` in the order of a step; `str()` is a table."""

    work: Workload
    phases: tuple[Phase, ...]

    @property
    def worst(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.bytes)

    @property
    def peak(self) -> int:
        return self.worst.bytes

    @property
    def by_category(self) -> dict[str, int]:
        """At the peak."""
        return self.worst.by_category

    def fits(self, total_memory: int, spare: float = 0.1) -> bool:
        """Whether the peak leaves `spare` of the card free for what is not predicted."""
        return self.peak <= total_memory * (1 - spare)

    def __str__(self) -> str:
        worst = self.worst
        rows = [
            f"peak {format_size(self.peak)} in {worst.name} ({worst.moment}); settings: {self.work}"
        ]
        for phase in self.phases:
            rows.append(f"{phase.name:<9}{format_size(phase.bytes):>12}  {phase.moment}")
            rows += [
                f"    {t.category:<11}{format_size(t.bytes):>12}  {t.why}" for t in phase.terms
            ]
        return "\n".join(rows)


def predict(config: Any = "124M", **options: Any) -> Budget:
    """The memory budget of a step.

        config    "124M", "tiny", a transformers GPT2Config or a `Shape`
        options   the fields of `Workload`

    Raises: ValueError names a setting that cannot be.
    """
    shape, work = Shape.of(config), Workload(**options)
    if work.tokens > shape.positions:
        raise ValueError(
            f"prompt + new_tokens = {work.tokens}: the model has {shape.positions} positions; ask for fewer tokens"
        )
    return Budget(work, _Moments(shape, work).phases())


class _Moments:
    """The moments of a step that can hold its peak. A term of no bytes is one that these settings do not have."""

    def __init__(self, shape: Shape, work: Workload):
        self.s, self.w = shape, work
        # Rows and tokens of a micro-batch; bytes of a scalar that matrix products and attention give.
        self.rows = work.rows // work.micro_batches
        self.tokens = self.rows * work.tokens
        self.act = HALF if work.amp else F32
        # Scalars that get a gradient: of a block's matrices (d to 3d, with LoRA: d to r and r to 3d), and in all.
        self.in_block = work.lora * 4 * shape.width if work.lora else shape.matrices
        self.trained = shape.layers * self.in_block if work.lora else shape.parameters
        # Bytes of the embedding table, which is also the output head; of the layers' stream; of what a block keeps.
        self.head = F32 * shape.vocab * shape.width
        self.stream = F32 * self.tokens * shape.width
        self.layer = sum(layer_terms(shape, work, self.rows, work.tokens).values())

    def phases(self) -> tuple[Phase, ...]:
        moments = {"train": self._train(), "update": self._update()}
        if self.w.objective == "grpo":
            moments = {"generate": self._generate(), "score": self._score(), **moments}
        phases = []
        for name, found in moments.items():
            moment, terms = max(found.items(), key=lambda item: sum(t.bytes for t in item[1]))
            phases.append(
                Phase(name, moment, tuple(t for t in [*self._standing(), *terms] if t.bytes))
            )
        return tuple(phases)

    def _standing(self) -> list[Term]:
        """What stands there all the time."""
        s, w, trained = self.s, self.w, self.trained
        whole = F32 * s.parameters
        lora = F32 * trained if w.lora else 0
        reference = whole if w.reference and not w.lora else 0
        adamw = 2 * F32 * trained if w.optimizer == "adamw" else 0
        return [
            Term(
                "parameter", whole, f"{s.parameters:,} scalars in float32, tied head counted once"
            ),
            Term("parameter", lora, f"{trained:,} scalars of LoRA, rank {w.lora}"),
            Term("parameter", reference, "the reference model"),
            Term("optimizer", adamw, "AdamW: two moments for every trained scalar"),
        ]

    def _generate(self) -> dict[str, list[Term]]:
        s, w = self.s, self.w
        # Keys and values of a token in all layers; a scalar of the vocabulary for every row.
        cached, row = 2 * s.layers * s.width * self.act, F32 * w.rows * s.vocab
        prefill = self.act * w.batch * w.prompt * s.vocab
        joined = self.act * w.rows * w.tokens * s.width
        one_token = Term("logits", 2 * row, "logits and probabilities of one token per row")
        weights = self._cast_weights(grad=False)
        return {
            "inside a layer of the prefill": [
                Term("kv-cache", cached * w.batch * w.prompt, "keys and values of the prompts"),
                self._inside_a_layer(w.batch, w.prompt),
                weights,
            ],
            "first token of every completion": [
                Term(
                    "kv-cache",
                    cached * w.rows * w.prompt,
                    "keys and values of the prompts, once per completion",
                ),
                Term("logits", prefill, "prefill: logits at every position of the prompt"),
                one_token,
                weights,
            ],
            "last token": [
                Term(
                    "kv-cache",
                    cached * w.rows * w.tokens,
                    "2 x L x rows x tokens x d: all keys and values",
                ),
                Term("kv-cache", joined, "a layer's keys, old and new, while they are joined"),
                one_token,
                weights,
            ],
        }

    def _score(self) -> dict[str, list[Term]]:
        """Log-probabilities without a graph."""
        weights = self._cast_weights(grad=False)
        logits = Term("logits", self.act * self.tokens * self.s.vocab, "n x T x V logits")
        return {
            "inside a layer": [self._inside_a_layer(self.rows, self.w.tokens), weights],
            "output head": [logits, weights],
            "log-softmax": [self._logits_forward(), *([] if self.w.lora else [weights])],
        }

    def _inside_a_layer(self, rows: int, length: int) -> Term:
        """Without a graph: the MLP's activation function, or the attention scores where they are written out."""
        s, tokens = self.s, rows * length
        scores = rows * s.heads * length**2 if self.w.attention == "eager" else 0
        mlp = (
            4 * F32 if not self.w.amp else 2 * F32 + 2 * HALF
        ) * tokens * s.inner + self.act * scores
        attention = 2 * F32 * scores + 3 * self.act * tokens * s.width
        what = "4 of the MLP" if mlp >= attention else "the attention"
        why = "one layer: 6 tensors of the stream (token and position embeddings, input, attention, sum, norm)"
        return Term(
            "activation", 6 * F32 * tokens * s.width + max(mlp, attention), f"{why}, {what}"
        )

    def _cast_weights(self, grad: bool) -> Term:
        """Autocast's bfloat16 copies. Trained leaves are cached, also without a graph; others are cast for each use."""
        # The graph keeps a frozen weight's copy too.
        kept = not self.w.lora or (grad and not self.w.checkpointing)
        copies = (HALF * self.s.matrices * self.s.layers if kept else 0) + self.head // 2
        return Term(
            "activation", copies if self.w.amp else 0, "autocast's bfloat16 copies of the weights"
        )

    def _train(self) -> dict[str, list[Term]]:
        s, w = self.s, self.w
        carried = F32 * self.trained if w.micro_batches > 1 else 0
        before = [
            Term("gradient", carried, "gradients of the earlier micro-batches"),
            *self._kept(),
        ]
        again = Term(
            "activation",
            self.layer if w.checkpointing else 0,
            "one layer's activations, computed again",
        )
        above = Term(
            "gradient",
            carried or (s.layers - 1) * F32 * self.in_block,
            "gradients of the layers above",
        )
        first = Term("activation", self.layer, "the first layer's activations")
        head = 0 if w.lora else self.head
        arrived = Term(
            "backward", head, "gradient of the output head, until the embedding's joins it"
        )
        deep = Term(
            "backward", self._deep(), "gradients inside the MLP (or of the attention scores)"
        )
        logits = Term(
            "logits", self.act * self.tokens * s.vocab, "gradient of the logits, n x T x V"
        )
        hidden = Term("backward", self.stream, "gradient of the last hidden state")
        # With checkpointing the graph holds none of the layers' copies.
        copies = self._cast_weights(grad=True)
        if w.checkpointing:
            copies = Term(
                "activation", self.head // 2 if w.amp else 0, "autocast's copy of the output head"
            )
        # The tied table's .grad is set last. Autograd cannot add in place to a transposed view; a cast copy is none.
        own = F32 * self.trained - (0 if carried else head)
        joined = (2 if w.amp else 3) * head
        return {
            "log-softmax": [*before, self._logits_forward(), self._cast_weights(grad=True)],
            "gradient of the log-softmax": [*before, self._logits_backward(), copies],
            "gradient of the output head": [*before, logits, arrived, hidden, copies],
            "first layer of the backward pass": [*before, again, arrived, deep, copies],
            "last layer of the backward pass": [above, first, arrived, deep, copies],
            "end of the backward pass": [
                Term("gradient", own, "a gradient for every trained scalar"),
                Term(
                    "backward",
                    joined,
                    "the tied table's two gradients (head, embedding) and their sum",
                ),
            ],
        }

    def _deep(self) -> int:
        """Gradients alive inside a layer, less what it has let go of by then: in gelu_new's last product, the gradient
        that came in and those of its two factors (under autocast one in both types; a trained c_proj has freed its
        input); in written-out attention, those of weights and scores, when the MLP's tensors are gone.
        """
        s, w = self.s, self.w
        inner = F32 * self.tokens * s.inner
        freed = 0 if w.lora else self.act * self.tokens * s.inner
        mlp = 3 * inner + (inner // 2 if w.amp else 0) - freed
        scores = (
            2 * F32 * self.rows * s.heads * w.tokens**2 - 5 * inner if w.attention == "eager" else 0
        )
        return max(mlp, scores) + (2 * self.stream if w.lora else 0)

    def _kept(self) -> list[Term]:
        """What the forward pass leaves for the backward pass."""
        kept, why = self.layer, "the layers' saved activations, see layer_terms"
        if self.w.checkpointing:
            kept, why = self.stream, "n x T x d per layer: its input; the rest is computed again"
        ends = 0 if self.w.lora else self.stream + self.act * self.tokens * self.s.width
        # transformers builds one bool mask for all layers.
        mask = self.rows * self.w.tokens**2
        return [
            Term("activation", self.s.layers * kept, why),
            Term("activation", ends, "embeddings, and the last layer norm's output for the head"),
            Term("other", mask + 3 * INT64 * self.tokens, "attention mask, ids and positions"),
        ]

    def _logits_forward(self) -> Term:
        every, new = self.tokens * self.s.vocab, self.rows * self.w.new_tokens * self.s.vocab
        if self.w.objective == "lm":
            size = (F32 + F32 + HALF if self.w.amp else 2 * F32) * every
            return Term("logits", size, "logits and log-probabilities, n x T x V each")
        why = "n x T x V logits; n x t x V twice: scaled, and log-probabilities"
        return Term("logits", self.act * every + 2 * F32 * new, why)

    def _logits_backward(self) -> Term:
        counted = self.w.tokens if self.w.objective == "lm" else self.w.new_tokens
        size = 3 * F32 * self.rows * counted * self.s.vocab
        return Term("logits", size, "log-probabilities, their gradient, and the logits' gradient")

    def _update(self) -> dict[str, list[Term]]:
        every = F32 * self.trained
        roots = every if self.w.optimizer == "adamw" else 0
        why = "AdamW's foreach step: the square roots of all second moments at once"
        gradients = Term("gradient", every, "a gradient for every trained scalar")
        return {"optimizer step": [gradients, Term("optimizer", roots, why)]}


def layer_terms(shape: Shape, work: Workload, rows: int, length: int) -> dict[str, int]:
    """What one GPT-2 block keeps for its backward pass, tensor by tensor, in bytes.

    A matrix product keeps its input only if its weight (or its LoRA) is trained; a layer norm keeps its input, the
    residual stream. Under autocast, products and attention have bfloat16 inputs, all else stays in float32.
    """
    tokens = rows * length
    act = HALF if work.amp else F32
    wide, inner = tokens * shape.width, tokens * shape.inner
    full = not work.lora  # LoRA trains c_attn alone
    scores = rows * shape.heads * length**2
    terms = {
        "layer norms: mean and deviation": 2 * 2 * F32 * tokens,
        "input of c_attn (first layer norm)": act * wide,
        "query, key, value": act * 3 * wide,
        "stream after attention (input of the second layer norm)": F32 * wide,
        "input of c_fc (second layer norm)": act * wide * full,
        "gelu_new: x, x/2, tanh, 1 + tanh": (3 * F32 + HALF if work.amp else 4 * F32) * inner,
        "input of the MLP's c_proj": act * inner * full,
        "stream after the MLP (input of the next layer)": F32 * wide,
        "LoRA: output of A": act * tokens * work.lora,
    }
    if work.attention == "sdpa":
        terms["attention output"] = act * wide  # also the input of c_proj
        terms["attention: log-sum-exp per row"] = F32 * rows * shape.heads * length
        terms["attention: mask in the query's type"] = act * rows * length**2
    else:
        terms["attention output (input of c_proj)"] = act * wide * full
        terms["attention weights, h x T x T"] = F32 * scores
        terms["attention weights in bfloat16"] = HALF * scores if work.amp else 0
    return terms
