"""A batch and a model made to be read: every logit is a parameter of its own.

A real model mixes what each token did to its parameters, so that a gradient tells little about a
single token. Here row b at position t has a vector of logits of its own, and nothing else depends
on them: the gradient that arrives there is that of one token. The model answers like one of
transformers', and remembers how it was called. This file judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, PAD, EOS = 24, 0, 1
GROUP = 4  # completions of one prompt, in adjacent rows
# The last token of a prompt and the first of a completion tell which row it is, wherever it stands.
PROMPTS = ([4, 13, 5, 20], [3, 21])
COMPLETIONS = (
    [6, 2, EOS],
    [7, 3, 9, 2, EOS],
    [8, 4, 4, 9, 2, 3],  # cut off: no end token
    [9, EOS],
    [5, 3, 10, EOS],
    [10, 2, EOS],
    [11, 7, 6, 5, 8, EOS],
    [12, 8, 9, 3, EOS],
)
# Neither is a function of the other, so that it shows which of the two a loss goes by.
REWARDS = (1.0, 0.0, 0.4, 0.9, 0.1, 0.0, 1.0, 0.3)
ADVANTAGES = (1.1, -0.9, 0.4, -0.6, 0.7, -1.3, 0.5, -0.2)
ROOM = 4  # positions behind the longest row, for a batch that is padded wider
# Log-ratios of a token of two bad answers, (row, token): on both sides of a dual clip at 3.
FAR = {(5, 0): 1.3, (1, 0): 0.88}

Batch = dict[str, Tensor]


@dataclass
class Call:
    """One forward pass: which rows, whether with a graph, and what is odd about its arguments."""

    rows: tuple[int, ...]
    graph: bool
    has_mask: bool = True
    pads_seen: bool = False  # real tokens attend to pads that stand before them
    tokens_hidden: bool = False  # the mask hides real tokens
    without_prompt: bool = False
    positions: str = "right"  # or "none", "shifted" (relative ones are right), "wrong"


class Output(dict[str, Any]):
    """A model's answer as transformers gives it: by attribute, by name, by number, or unpacked."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return dict.__getitem__(self, key)
        return self.to_tuple()[key]

    def __iter__(self) -> Any:
        return iter(self.to_tuple())

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(value for value in self.values() if value is not None)


class Backbone(nn.Module):
    """Token ids to "hidden states", which are the logits: row by position, looked up in a table."""

    def __init__(self, sequences: Sequence[Sequence[int]], prompts: Sequence[int], length: int):
        super().__init__()
        self.sequences, self.prompts = sequences, prompts
        rng = torch.Generator().manual_seed(0)
        # one row more, for whatever is none of these rows
        shape = (len(sequences) + 1, length, VOCABULARY)
        self.table = nn.Parameter(torch.randn(shape, generator=rng, dtype=torch.float32))
        self.calls: list[Call] = []
        self.starts = {
            (row[prompt - 1], row[prompt]): number
            for number, (row, prompt) in enumerate(zip(sequences, prompts, strict=True))
        }
        self.first_tokens = {row[prompt] for row, prompt in zip(sequences, prompts, strict=True)}

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        **_: Any,
    ) -> Output:
        if input_ids is None:
            raise ValueError("this model looks rows up by their token ids: give it input_ids")
        ids = input_ids
        if ids.dim() == 1:
            ids = ids[None]
        rows, positions, first_columns = self._locate(ids)
        call = Call(
            tuple(sorted(set(rows.flatten().tolist()) - {self.unknown})), torch.is_grad_enabled()
        )
        self._look_at_arguments(call, ids, rows, positions, attention_mask, position_ids)
        call.without_prompt = self._without_prompt(ids, first_columns)
        self.calls.append(call)
        device = self.table.device
        return Output(last_hidden_state=self.table[rows.to(device), positions.to(device)])

    @property
    def unknown(self) -> int:
        return len(self.sequences)

    def _locate(self, ids: Tensor) -> tuple[Tensor, Tensor, list[list[int]]]:
        """The row and the position in it of every token [R, L]; several rows may be packed
        into one.

        Also the columns at which rows begin. What belongs to none has the row `unknown`.
        """
        rows = torch.full(ids.shape, self.unknown)
        positions = torch.zeros_like(rows)
        first_columns: list[list[int]] = []
        for at, tokens in enumerate(ids.tolist()):
            found: list[tuple[int, int]] = []
            for column, pair in enumerate(zip(tokens, tokens[1:], strict=False)):
                if pair in self.starts:
                    number = self.starts[pair]
                    found.append((column - self.prompts[number] + 1, number))
            first_columns.append([first for first, _ in found])
            for first, number in found:  # a later one overwrites the end of the one before
                begin, end = max(first, 0), min(len(tokens), first + self.table.shape[1])
                rows[at, begin:end] = number
                positions[at, begin:end] = torch.arange(begin - first, end - first)
        return rows, positions, first_columns

    def _without_prompt(self, ids: Tensor, first_columns: list[list[int]]) -> bool:
        for tokens, first in zip(ids.tolist(), first_columns, strict=True):
            real = [token for token in tokens if token != PAD]
            if not first and len(real) > 1 and real[0] in self.first_tokens:
                return True
        return False

    def _look_at_arguments(
        self,
        call: Call,
        ids: Tensor,
        rows: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        position_ids: Tensor | None,
    ) -> None:
        known = rows != self.unknown
        # a real token, and no pad behind the end
        counts = known & (ids.cpu() != PAD)
        before = counts.long().flip(1).cumsum(1).flip(1) > 0  # a real token follows, or it is one
        pads = before & ~counts & (ids.cpu() == PAD)
        call.has_mask = mask is not None
        if mask is None:
            call.pads_seen = bool(pads.any())
        elif mask.dim() == 2 and mask.shape[0] == ids.shape[0]:
            attended = torch.zeros_like(known)
            width = min(mask.shape[1], ids.shape[1])
            attended[:, :width] = mask[:, :width].cpu() > 0
            call.pads_seen = bool((pads & attended).any())
            call.tokens_hidden = bool((counts & ~attended).any())
        shift = (
            torch.arange(ids.shape[1])[None] - positions
        )  # without positions a model counts columns
        call.positions = "none"
        if position_ids is not None:
            call.positions = "shifted"
            shift = (position_ids.cpu() + torch.zeros_like(positions)) - positions
        shift = shift.masked_fill(~counts, 0)
        if not shift.any():
            call.positions = "right"
        elif position_ids is not None:
            for at in range(len(ids)):
                for number in set(rows[at].tolist()) - {self.unknown}:
                    mine = shift[at][counts[at] & (rows[at] == number)]
                    if len(mine) and not bool((mine == mine[0]).all()):
                        call.positions = "wrong"


class TableModel(nn.Module):
    """A causal language model whose logits are free parameters, one vector a token."""

    base_model_prefix = "model"

    def __init__(self, sequences: Sequence[Sequence[int]], prompts: Sequence[int], length: int):
        super().__init__()
        self.model = Backbone(sequences, prompts, length)
        self.lm_head = nn.Linear(VOCABULARY, VOCABULARY, bias=False)
        # The identity, and no parameter: who asks each parameter for a gradient gets the table's.
        del self.lm_head.weight
        self.lm_head.register_buffer("weight", torch.eye(VOCABULARY, dtype=torch.float32))
        self.config = SimpleNamespace(
            vocab_size=VOCABULARY,
            hidden_size=VOCABULARY,
            pad_token_id=PAD,
            eos_token_id=EOS,
            model_type="table",
            use_cache=False,
            max_position_embeddings=1024,
        )
        self.config.get_text_config = lambda **_: self.config
        self.generation_config = self.config

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **others: Any,
    ) -> Any:
        hidden = self.model(input_ids, attention_mask, position_ids).last_hidden_state
        kept = logits_to_keep or others.get("num_logits_to_keep") or 0
        if isinstance(kept, Tensor):
            hidden = hidden[:, kept]
        elif kept:
            hidden = hidden[:, -kept:]
        logits = self.lm_head(hidden)
        out = Output(logits=logits)
        if labels is not None:  # transformers' own: the mean over the labels that are not -100
            out = Output(
                loss=_cross_entropy(logits, labels, others.get("num_items_in_batch")), logits=logits
            )
        if others.get("output_hidden_states"):
            out["hidden_states"] = (hidden,)
        if return_dict is False:
            return out.to_tuple()
        return out

    @property
    def base_model(self) -> Backbone:
        return self.model

    @property
    def device(self) -> torch.device:
        return self.model.table.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.table.dtype

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def gradient_checkpointing_enable(self, **_: Any) -> None:
        """Nothing is kept that could be dropped."""

    def gradient_checkpointing_disable(self) -> None:
        """See above."""


def _cross_entropy(logits: Tensor, labels: Tensor, items: Any) -> Tensor:
    shifted = F.pad(labels, (0, 1), value=-100)[:, 1:]
    total = F.cross_entropy(
        logits.flatten(0, 1), shifted.flatten(), ignore_index=-100, reduction="sum"
    )
    if items is None:
        items = (shifted != -100).sum()
    return total / items


@dataclass
class Probe:
    """The model and the batch that a loss is read on. `rows` [B]: how the rows of a batch
    are numbered.
    """

    model: TableModel
    batch: Batch
    clip: tuple[float, float]
    temperature: float
    sequences: list[list[int]] = field(
        default_factory=list
    )  # prompt, completion and pads, unpadded left

    @property
    def table(self) -> nn.Parameter:
        return self.model.model.table

    @property
    def calls(self) -> list[Call]:
        return self.model.model.calls

    def part(self, rows: Sequence[int]) -> Batch:
        """Some rows as a micro-batch. `num_items_in_batch` stays that of the whole."""
        whole, index = (
            self.batch["num_items_in_batch"],
            torch.tensor(rows, device=self.table.device),
        )
        part = {name: value[index] for name, value in self.batch.items() if value.dim()}
        return {**part, "num_items_in_batch": whole.clone()}

    def shorter(self, row: int, length: int) -> Batch:
        """The same rows, one of them ended early: fewer tokens count, at the same width."""
        batch = {name: value.clone() for name, value in self.batch.items()}
        before = self.batch["completion_mask"].shape[1]
        for name, value in batch.items():
            if value.dim() != 2 or name.startswith("prompt"):
                continue
            # the completion's columns are the last ones
            first_out = value.shape[1] - before + length
            if name.endswith("ids"):
                value[row, first_out - 1] = EOS
            if name.endswith(("ids", "mask")):
                value[row, first_out:] = 0
        lost = len(COMPLETIONS[row]) - length
        batch["num_items_in_batch"] -= lost
        return batch

    def wider(self, by: int = 3) -> Batch:
        """The same rows with more padding behind them."""
        batch = {}
        for name, value in self.batch.items():
            # what has a column for each token of a completion
            if value.dim() == 2 and not name.startswith("prompt"):
                value = F.pad(value, (0, by))
            batch[name] = value.clone()
        return batch


def prompt_lengths() -> list[int]:
    return [len(PROMPTS[row // GROUP]) for row in range(len(COMPLETIONS))]


def cells_of_completion(width: int) -> Tensor:
    """[B, width]: the position, in a row without pads on the left, at which token t is
    predicted.
    """
    first = torch.tensor(prompt_lengths())[:, None] - 1
    return first + torch.arange(width)


def token_log_probs(table: Tensor, ids: Tensor, temperature: float, shift: int = 0) -> Tensor:
    """Log-probs [B, C] of the tokens of a completion, in float64; `shift` cells too late."""
    at = cells_of_completion(ids.shape[1]) + shift
    rows = torch.arange(len(ids))[:, None]
    logits = table.detach().cpu().double()[rows, at] / temperature
    return logits.log_softmax(-1).gather(-1, ids.cpu()[..., None])[..., 0]


def make_probe(temperature: float, clip: tuple[float, float], device: str) -> Probe:
    """The batch that the docstring of `grpo_step` describes, and its model."""
    width, prompt_width = max(map(len, COMPLETIONS)), max(map(len, PROMPTS))
    prompts = [list(PROMPTS[row // GROUP]) for row in range(len(COMPLETIONS))]
    completion_ids = torch.tensor([row + [PAD] * (width - len(row)) for row in COMPLETIONS])
    prompt_ids = torch.tensor([[PAD] * (prompt_width - len(row)) + row for row in prompts])
    prompt_mask, completion_mask = (prompt_ids != PAD).long(), (completion_ids != PAD).long()
    length = prompt_width + width + ROOM
    sequences = []
    for prompt, completion in zip(prompts, COMPLETIONS, strict=True):
        sequence = prompt + completion
        sequences.append(sequence + [PAD] * (length + 2 - len(sequence)))
    model = TableModel(sequences, prompt_lengths(), length)
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float32)
    to_old = log_ratios(advantages, completion_mask, clip)
    rng = torch.Generator().manual_seed(5)
    # Likely enough that a probability moves by more than 0.2, and no old one would be above 1.
    wanted = 0.1 + 0.4 * torch.rand(to_old.shape, generator=rng, dtype=torch.float64)
    wanted = torch.minimum(wanted, 0.9 * to_old.exp())
    _give_probabilities(model.model.table, completion_ids, wanted, temperature)
    current = token_log_probs(model.model.table, completion_ids, temperature)
    old = current - to_old
    choices = torch.tensor([-0.7, -0.3, 0.2, 0.5], dtype=torch.float64)
    to_reference = choices[torch.randint(0, 4, old.shape, generator=rng)]
    to_reference += 0.05 * torch.rand(old.shape, generator=rng, dtype=torch.float64)
    batch = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "input_ids": torch.cat([prompt_ids, completion_ids], 1),
        "attention_mask": torch.cat([prompt_mask, completion_mask], 1),
        "loss_mask": torch.cat([torch.zeros_like(prompt_mask), completion_mask], 1),
        "old_logps": old.float(),
        "ref_logps": (current + to_reference).float(),
        "rewards": torch.tensor(REWARDS, dtype=torch.float32),
        "advantages": advantages,
        "num_items_in_batch": completion_mask.sum(),
    }
    model.to(device)
    batch = {name: value.to(device) for name, value in batch.items()}
    return Probe(model, batch, clip, temperature, sequences)


@torch.no_grad()
def _give_probabilities(table: Tensor, ids: Tensor, wanted: Tensor, temperature: float) -> None:
    """Change the logit of each token of a completion, so that its probability is as wanted
    [B, C].
    """
    at = cells_of_completion(ids.shape[1])
    rows = torch.arange(len(ids))[:, None]
    others = table[rows, at].double() / temperature
    others = others.scatter(-1, ids[..., None], -math.inf).logsumexp(-1)
    logit = temperature * (others + (wanted / (1 - wanted)).log())
    table[rows, at, ids] = logit.to(table.dtype)


def log_ratios(advantages: Tensor, mask: Tensor, clip: tuple[float, float]) -> Tensor:
    """log(policy / old policy) [B, C]: on both sides of both clips, for tokens and whole rows,
    for good and for bad answers, and nowhere so close to a border that rounding would decide.

    Drawn until it is so: then a clip on the wrong side, or one that is missing, shows at some
    token.
    """
    below, above = math.log(1 - clip[0]), math.log(1 + clip[1])
    regions = torch.tensor(
        [2.6 * below, 1.35 * below, 0.5 * below, 0.5 * above, 1.2 * above, 2.6 * above]
    )
    edges = torch.tensor([below, above], dtype=torch.float64)
    good, real = (advantages > 0)[:, None], mask > 0
    smallest = 0.1 * min(-below, above)
    rng = torch.Generator().manual_seed(11)
    for _ in range(10_000):
        drawn = regions[torch.randint(0, len(regions), mask.shape, generator=rng)]
        drawn += smallest * torch.rand(mask.shape, generator=rng, dtype=torch.float64)
        for place, far in FAR.items():
            drawn[place] = far
        means = (drawn * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        clear = (drawn[..., None] - edges).abs().min() > 0.4 * smallest
        clear &= (means[..., None] - edges).abs().min() > 0.4 * smallest
        if (
            bool(clear)
            and _on_all_sides(drawn, edges, good, real)
            and _on_all_sides(means, edges, good, None)
        ):
            return drawn
    raise ValueError(
        f"clip = {clip}: found no ratios on both sides of it; expected two numbers in (0, 1)"
    )


def _on_all_sides(ratios: Tensor, edges: Tensor, good: Tensor, real: Tensor | None) -> bool:
    """Whether, for good and for bad answers, there is a ratio below, between and above the
    edges.
    """
    for chosen in (good, ~good):
        mine = chosen.expand_as(ratios)
        if real is not None:
            mine = mine & real
        region = torch.bucketize(ratios[mine], edges)
        if len(region.unique()) < 3:
            return False
    return True
