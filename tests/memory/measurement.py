"""Run the workload that `predict` talks about, under a tap with fake tensors, and say where its peaks were.

A training step comes first, for the optimizer's state to exist; the second step is the one that counts. Rows are taken
to be padded: under fake tensors transformers cannot look into the mask, so it keeps one.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from props.budget import Shape, Workload
from props.card import Tap

from labkit.grpo.kl import k3
from labkit.grpo.policy import token_logprobs


def measure(config: Any = "124M", *, total_memory: int | None = None, **options: Any) -> Run:
    """Two steps of the workload on a simulated card.

        config         "124M", "tiny", a transformers GPT2Config or a `Shape`
        total_memory   bytes of the card; None: no limit
        options        the fields of `Workload`

    Raises: torch.OutOfMemoryError if it does not fit.
    """
    work = Workload(**options)
    run = Run(Shape.of(config), work, Tap(total_memory, fake=True))
    with run.tap:
        run.tap.adopt(run.model, run.reference)
        run.step()
        run.phases.clear()
        run.step(rollout=work.objective == "grpo")
    return run


class Run:
    """The model, its optimizer and a tap; `phases` has the bytes by category at the peak of each."""

    def __init__(self, shape: Shape, work: Workload, tap: Tap):
        self.work, self.tap = work, tap
        self.model: Any = tap.build(lambda: model_of(shape, work))
        self.reference: Any = self.model
        if work.reference and not work.lora:
            self.reference = tap.build(lambda: model_of(shape, work)).requires_grad_(False).eval()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        adamw = work.optimizer == "adamw"
        self.optimizer = torch.optim.AdamW(trained) if adamw else torch.optim.SGD(trained, lr=1e-3)
        self.phases: dict[str, dict[str, int]] = {}

    @property
    def peak(self) -> int:
        return sum(self.by_category.values())

    @property
    def by_category(self) -> dict[str, int]:
        """At the peak."""
        return max(self.phases.values(), key=lambda held: sum(held.values()))

    def step(self, rollout: bool = False) -> None:
        """Generate and score (with `rollout`), train, update."""
        work = self.work
        ids = torch.zeros(work.rows, work.tokens, dtype=torch.long)
        mask = torch.ones_like(ids)
        old = ref = torch.zeros(work.rows, max(work.new_tokens, 1))
        if rollout:
            del ids
            with self.phase("generate"):
                ids = self.generate()
            with self.phase("score"):
                old, ref = self.score(ids, mask)
        self.model.train()
        # Fake ids have no values: any equal part will do.
        part = slice(0, work.rows // work.micro_batches)
        with self.phase("train"):
            for _ in range(work.micro_batches):
                self.loss(ids[part], mask[part], old[part], ref[part]).backward()
        with self.phase("update"):
            self.optimizer.step()
        self.optimizer.zero_grad()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.tap.reset_peak()
        yield
        self.phases[name] = self.tap.peak_by_category

    @torch.no_grad()
    def generate(self) -> torch.Tensor:
        """As `labkit.rollout.generate`; of the steps that add a token to the cache, the first and the last are run."""
        work, tap, model = self.work, self.tap, self.model.eval()
        prompt = torch.zeros(work.batch, work.prompt, dtype=torch.long)
        mask = torch.ones_like(prompt)
        with autocast(work):
            out = model(input_ids=prompt, attention_mask=mask, use_cache=True)
        cache = out.past_key_values
        with tap.category("kv-cache"):
            cache.batch_repeat_interleave(work.group)
        logits = out.logits[:, -1].repeat_interleave(work.group, 0)
        mask = mask.repeat_interleave(work.group, 0)
        token = torch.multinomial(logits.float().softmax(-1), 1)
        for step in sorted({1, work.new_tokens - 1} - {0}):
            with tap.category("kv-cache"):
                _grow(cache, work.prompt + step - 1)
            mask = mask[:, :1].expand(-1, work.prompt + step).contiguous()
            with autocast(work):
                out = model(input_ids=token, attention_mask=mask, past_key_values=cache, use_cache=True)
            logits = out.logits[:, -1]
            token = torch.multinomial(logits.float().softmax(-1), 1)
        return torch.cat([prompt.repeat_interleave(work.group, 0), token.expand(-1, work.new_tokens)], 1)

    @torch.no_grad()
    def score(self, ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        """Old and reference log-probabilities, a micro-batch at a time."""
        work, scores = self.work, []
        part = slice(0, work.rows // work.micro_batches)
        for model in (self.model.eval(), self.reference):
            with autocast(work):
                parts = [self.logprobs(model, ids[part], mask[part]) for _ in range(work.micro_batches)]
            scores.append(torch.cat(parts))
        return scores

    def logprobs(self, model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return token_logprobs(model, ids, mask, self.work.new_tokens)[0]

    def loss(self, ids: torch.Tensor, mask: torch.Tensor, old: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
        with autocast(self.work):
            if self.work.objective == "lm":
                return self.model(input_ids=ids, attention_mask=mask, labels=ids, use_cache=False).loss
            logp = self.logprobs(self.model, ids, mask)
        ratio = (logp - old).exp()
        return -torch.min(ratio, ratio.clamp(0.8, 1.2)).mean() + 0.04 * k3(logp, ref).mean()


def model_of(shape: Shape, work: Workload) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_layer": shape.layers, "n_embd": shape.width, "n_head": shape.heads}
    sizes |= {"vocab_size": shape.vocab, "n_positions": shape.positions, "bos_token_id": 0, "eos_token_id": 0}
    config: Any = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    config._attn_implementation = work.attention
    model: Any = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # else transformers says on stderr that it takes this one
    if work.checkpointing:
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    if work.lora:
        from peft import LoraConfig, get_peft_model

        adapter = LoraConfig(r=work.lora, target_modules=["c_attn"], fan_in_fan_out=True)
        # peft 0.21 reads an attribute that transformers 5.23 calls deprecated.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            model = get_peft_model(model, adapter)
    return model.train()


def autocast(work: Workload) -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=work.amp)


def _grow(cache: Any, length: int) -> None:
    for layer in cache.layers:
        rows, heads, now, width = layer.keys.shape
        if now < length:
            layer.keys = layer.keys.new_empty(rows, heads, length, width)
            layer.values = layer.values.new_empty(rows, heads, length, width)
