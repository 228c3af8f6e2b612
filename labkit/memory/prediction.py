"""Predict the peak memory of a GPT-2 training run from its settings: bytes, term by term, before anything runs.

Every term is read off the layers' own arithmetic (transformers 5.17 to 5.23 `modeling_gpt2.py`, torch's autograd
formulas): which tensors an operation keeps for its backward pass, and which are alive together at the few moments that
can hold the peak. Nothing is fitted. `measure` runs the same workload, and `benchmarks/bench_memory.py` compares them.

Letters: n rows of a micro-batch, T tokens a row, t new tokens, d width, f inner width of the MLP, h heads,
V vocabulary, L layers. Sizes are in bytes. Standard library only.

Left out: the allocator's rounding and fragmentation (1 to 2 % of what `memory_allocated` says; the gap to
`memory_reserved` is not predicted), scratch memory of kernels, cuBLAS workspaces, and what the framework itself holds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from labkit.common import format_size

from .workload import LINEARS, Shape, Workload

F32, HALF, INT64 = 4, 2, 8


@dataclass(frozen=True)
class Term:
    """So many bytes of one category, and why."""

    category: str  # as labkit.memory.tap.CATEGORIES
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
        counts: Counter[str] = Counter()
        for term in self.terms:
            counts[term.category] += term.bytes
        return dict(counts)


@dataclass(frozen=True)
class Budget:
    """What a run needs. `peak` in bytes; `phases` in the order of a step; `str()` is a table."""

    shape: Shape
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
        rows = [
            f"peak {format_size(self.peak)} in {self.worst.name} ({self.worst.moment}); settings: {self.work}"
        ]
        for phase in self.phases:
            rows.append(f"{phase.name:<9}{format_size(phase.bytes):>12}  {phase.moment}")
            rows += [
                f"    {t.category:<11}{format_size(t.bytes):>12}  {t.why}" for t in phase.terms if t.bytes
            ]
        return "\n".join(rows)


def predict(config: Any = "124M", **options: Any) -> Budget:
    """The memory budget of a step.

    `config`: "124M", "tiny", a GPT2Config or a `Shape`; `options`: the fields of `Workload`.

    >>> predict("124M", batch=4, group=8, new_tokens=128, lora=16).peak

    ValueError names a setting that cannot be.
    """
    shape, work = Shape.of(config), Workload(**options)
    if work.tokens > shape.positions:
        raise ValueError(
            f"prompt + new_tokens = {work.tokens}: the model has {shape.positions} positions; ask for fewer tokens"
        )
    return Budget(shape, work, _Moments(shape, work).phases())


class _Moments:
    """The moments of a step that can hold its peak."""

    def __init__(self, shape: Shape, work: Workload):
        self.s, self.w = shape, work
        self.n = work.rows // work.micro_batches
        self.act = HALF if work.amp else F32  # what matrix products and attention give
        self.trained = self._trained()
        self.head = (
            F32 * shape.vocab * shape.width
        )  # bytes of the embedding table, which is also the output head

    def phases(self) -> tuple[Phase, ...]:
        found = []
        if self.w.objective == "grpo":
            found += [self._fullest("generate", self._generate()), self._fullest("score", self._score())]
        found += [self._fullest("train", self._train()), self._fullest("update", self._update())]
        return tuple(found)

    def _fullest(self, name: str, moments: dict[str, list[Term]]) -> Phase:
        standing = self._standing()
        moment = max(moments, key=lambda m: sum(t.bytes for t in moments[m]))
        return Phase(name, moment, tuple(standing + moments[moment]))

    # what stands there all the time

    def _trained(self) -> int:
        """Scalars that get a gradient."""
        if not self.w.lora:
            return self.s.parameters
        sizes = [self.w.lora * (i + o) for name, (i, o) in self.s.linears().items() if self.w.adapted(name)]
        return self.s.layers * sum(sizes)

    def _standing(self) -> list[Term]:
        s, w = self.s, self.w
        terms = [
            Term(
                "parameter",
                F32 * s.parameters,
                f"{s.parameters:,} scalars in float32, tied head counted once",
            )
        ]
        if w.lora:
            terms.append(
                Term("parameter", F32 * self.trained, f"{self.trained:,} scalars of LoRA, rank {w.lora}")
            )
        if w.reference and not w.lora:
            terms.append(Term("parameter", F32 * s.parameters, "the reference model"))
        if w.optimizer == "adamw":
            terms.append(
                Term("optimizer", 2 * F32 * self.trained, "AdamW: two moments for every trained scalar")
            )
        return terms

    # generate

    def _generate(self) -> dict[str, list[Term]]:
        s, w = self.s, self.w
        first, last = w.batch * w.prompt, w.rows * w.tokens  # tokens in the prefill; in the cache at the end
        prompt_cache, cache = (2 * s.layers * s.width * self.act * tokens for tokens in (first, last))
        repeated = 2 * s.layers * s.width * self.act * w.rows * w.prompt
        prefill_logits = Term(
            "logits", self.act * first * s.vocab, "prefill: logits at every position of the prompt"
        )
        row = F32 * w.rows * s.vocab
        weights = self._cast_weights(grad=False)
        return {
            "inside a layer of the prefill": [
                Term("kv-cache", prompt_cache, "keys and values of the prompts"),
                self._inside_a_layer(w.batch, w.prompt, w.prompt),
                *weights,
            ],
            "first token of every completion": [
                Term("kv-cache", repeated, "keys and values of the prompts, once a completion"),
                prefill_logits,
                Term("logits", 2 * row, "logits and probabilities of one token a row"),
                *weights,
            ],
            "last token": [
                Term("kv-cache", cache, "2 x L x rows x tokens x d: all keys and values"),
                Term(
                    "kv-cache",
                    self.act * w.rows * w.tokens * s.width,
                    "a layer's keys, old and new, while they are joined",
                ),
                Term("logits", 2 * row, "logits and probabilities of one token a row"),
                *weights,
            ],
        }

    # score: log-probabilities without a graph

    def _score(self) -> dict[str, list[Term]]:
        weights = self._cast_weights(grad=False)
        return {
            "inside a layer": [self._inside_a_layer(self.n, self.w.tokens, self.w.tokens), *weights],
            "output head": [
                Term("logits", self.act * self.n * self.w.tokens * self.s.vocab, "n x T x V logits"),
                *weights,
            ],
            "log-softmax": [self._logits_forward(), *(() if self.w.lora else weights)],
        }

    def _inside_a_layer(self, rows: int, queries: int, keys: int) -> Term:
        """Without a graph: the MLP's activation function, or the attention scores where they are written out."""
        s, tokens = self.s, rows * queries
        scores = rows * s.heads * queries * keys if self.w.attention == "eager" else 0
        mlp = (4 * F32 if not self.w.amp else 2 * F32 + 2 * HALF) * tokens * s.inner + self.act * scores
        attention = 2 * F32 * scores + 3 * self.act * tokens * s.width
        stream = 6 * F32 * tokens * s.width
        why = (
            "one layer: 6 tensors of the stream (token and position embeddings, input, attention, sum, norm)"
        )
        what = "4 of the MLP" if mlp >= attention else "the attention"
        return Term("activation", stream + max(mlp, attention), f"{why}, {what}")

    def _cast_weights(self, grad: bool) -> list[Term]:
        """Autocast's bfloat16 copies. Trained leaves are cached, also without a graph; others are cast for each use."""
        if not self.w.amp:
            return []
        s = self.s
        matrices = sum(i * o + o for i, o in s.linears().values()) * s.layers
        kept = not self.w.lora or (
            grad and not self.w.checkpointing
        )  # the graph keeps a frozen weight's copy too
        copies = HALF * (matrices if kept else 0) + self.head // 2
        return [Term("activation", copies, "autocast's bfloat16 copies of the weights")]

    # train

    def _train(self) -> dict[str, list[Term]]:
        s, w = self.s, self.w
        kept = self._kept()
        carried = (
            [Term("gradient", F32 * self.trained, "gradients of the earlier micro-batches")]
            if w.micro_batches > 1
            else []
        )
        tokens = self.n * w.tokens
        head = self.head if not w.lora else 0
        arrived = [Term("backward", head, "gradient of the output head, until the embedding's joins it")]
        layer = self._layer(w.tokens)
        deep = self._deep(tokens)
        moments = {
            "log-softmax": [*carried, *kept, self._logits_forward(), *self._cast_weights(grad=True)],
            "gradient of the log-softmax": [*carried, *kept, self._logits_backward(), *self._cast_graph()],
            "gradient of the output head": [
                *carried,
                *kept,
                Term("logits", self.act * tokens * s.vocab, "gradient of the logits, n x T x V"),
                *arrived,
                Term("backward", F32 * tokens * s.width, "gradient of the last hidden state"),
                *self._cast_graph(),
            ],
            "first layer of the backward pass": [
                *carried,
                *kept,
                *(
                    [Term("activation", layer, "one layer's activations, computed again")]
                    if w.checkpointing
                    else []
                ),
                *arrived,
                Term("backward", deep, "gradients inside the MLP (or of the attention scores)"),
                *self._cast_graph(),
            ],
        }
        block = (
            F32 * sum(i * o + o for i, o in s.linears().values())
            if not w.lora
            else F32 * self.trained // s.layers
        )
        moments["last layer of the backward pass"] = [
            Term(
                "gradient",
                F32 * self.trained if carried else (s.layers - 1) * block,
                "gradients of the layers above",
            ),
            Term("activation", layer, "the first layer's activations"),
            *arrived,
            Term("backward", deep, "gradients inside the MLP (or of the attention scores)"),
            *self._cast_graph(),
        ]
        own = self.trained * F32 - (head if w.micro_batches == 1 else 0)  # the tied table's .grad is set last
        joined = (
            2 if w.amp else 3
        ) * head  # autograd cannot add in place to a transposed view; a cast copy is none
        moments["end of the backward pass"] = [
            Term("gradient", own, "a gradient for every trained scalar"),
            Term("backward", joined, "the tied table's two gradients (head, embedding) and their sum"),
        ]
        return moments

    def _deep(self, tokens: int) -> int:
        """Gradients alive inside a layer, less what the layer has let go of by then.

        In gelu_new's last product: the gradient that came in and those of its two factors (under autocast, one of
        them in both types). By then a trained c_proj has freed its input. Written-out attention: the gradient of the
        weights and of the scores, when the MLP's tensors are gone.
        """
        s, w = self.s, self.w
        inner, wide = F32 * tokens * s.inner, F32 * tokens * s.width
        trained = not w.lora or w.adapted("mlp.c_proj")
        mlp = 3 * inner + (inner // 2 if w.amp else 0) - (self.act * tokens * s.inner if trained else 0)
        scores = 2 * F32 * self.n * s.heads * w.tokens**2 - 5 * inner if w.attention == "eager" else 0
        return max(mlp, scores) + (2 * wide if w.lora else 0)

    def _kept(self) -> list[Term]:
        """What the forward pass leaves for the backward pass."""
        s, w = self.s, self.w
        tokens = self.n * w.tokens
        stream = F32 * tokens * s.width
        if w.checkpointing:
            layers = Term(
                "activation", s.layers * stream, "n x T x d a layer: its input; the rest is computed again"
            )
        else:
            layers = Term(
                "activation",
                s.layers * self._layer(w.tokens),
                "the layers' saved activations, see layer_terms",
            )
        ends = (0 if w.lora else stream) + (self.act * tokens * s.width if not w.lora else 0)
        mask = self.n * w.tokens**2  # transformers builds one bool mask for all layers
        dropped = tokens * s.width if s.dropout else 0
        return [
            layers,
            Term("activation", ends + dropped, "embeddings, and the last layer norm's output for the head"),
            Term("other", mask + 3 * INT64 * tokens, "attention mask, ids and positions"),
        ]

    def _layer(self, length: int) -> int:
        """Bytes that one block keeps for its backward pass. See `layer_terms`."""
        return sum(layer_terms(self.s, self.w, self.n, length).values())

    def _cast_graph(self) -> list[Term]:
        """The copies of the weights that the graph still holds in the backward pass."""
        if not self.w.checkpointing:
            return self._cast_weights(grad=True)
        return (
            [Term("activation", self.head // 2, "autocast's copy of the output head")] if self.w.amp else []
        )

    def _logits_forward(self) -> Term:
        s, w = self.s, self.w
        every, new = self.n * w.tokens * s.vocab, self.n * w.new_tokens * s.vocab
        if w.objective == "lm":
            size = (F32 + F32 + HALF if w.amp else 2 * F32) * every
            return Term("logits", size, "logits and log-probabilities, n x T x V each")
        return Term(
            "logits",
            self.act * every + 2 * F32 * new,
            "n x T x V logits; n x t x V twice: scaled, and log-probabilities",
        )

    def _logits_backward(self) -> Term:
        s, w = self.s, self.w
        wide = self.n * (w.tokens if w.objective == "lm" else w.new_tokens) * s.vocab
        return Term("logits", 3 * F32 * wide, "log-probabilities, their gradient, and the logits' gradient")

    # update

    def _update(self) -> dict[str, list[Term]]:
        terms = [Term("gradient", F32 * self.trained, "a gradient for every trained scalar")]
        if self.w.optimizer == "adamw":
            terms.append(
                Term(
                    "optimizer",
                    F32 * self.trained,
                    "AdamW's foreach step: the square roots of all second moments at once",
                )
            )
        return {"optimizer step": terms}


def layer_terms(shape: Shape, work: Workload, rows: int, length: int) -> dict[str, int]:
    """What one GPT-2 block keeps for its backward pass, tensor by tensor, in bytes.

    A matrix product keeps its input only if its weight (or its LoRA) is trained. A layer norm keeps its input, which
    is the residual stream. Under autocast, products and attention work in bfloat16, and their inputs are bfloat16
    copies; layer norm, softmax and the power in gelu_new stay in float32.
    """
    s, w = shape, work
    tokens = rows * length
    act = HALF if w.amp else F32
    wide, inner = tokens * s.width, tokens * s.inner
    keeps = {name: not w.lora or w.adapted(name) for name in LINEARS}
    scores = rows * s.heads * length**2
    terms = {
        "layer norms: mean and deviation": 2 * 2 * F32 * tokens,
        "input of c_attn (first layer norm)": act * wide * keeps["c_attn"],
        "query, key, value": act * 3 * wide,
        "stream after attention (input of the second layer norm)": F32 * wide,
        "input of c_fc (second layer norm)": act * wide * keeps["c_fc"],
        "gelu_new: x, x/2, tanh, 1 + tanh": (3 * F32 + HALF if w.amp else 4 * F32) * inner,
        "input of the MLP's c_proj": act * inner * keeps["mlp.c_proj"],
        "stream after the MLP (input of the next layer)": F32 * wide,
        "dropout masks, one byte an element": 2 * wide if s.dropout else 0,
        "LoRA: outputs of A": act * tokens * w.lora * sum(w.adapted(name) for name in LINEARS),
    }
    if w.attention == "sdpa":
        terms["attention output"] = act * wide  # also the input of c_proj
        terms["attention: log-sum-exp a row"] = F32 * rows * s.heads * length
        terms["attention: mask in the query's type"] = act * rows * length**2
    else:
        terms["attention output (input of c_proj)"] = act * wide * keeps["attn.c_proj"]
        terms["attention weights, h x T x T"] = F32 * scores
        terms["attention weights in bfloat16"] = HALF * scores if w.amp and not s.dropout else 0
        terms["attention weights: dropout mask and result"] = (1 + act) * scores if s.dropout else 0
    return terms
