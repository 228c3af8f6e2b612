"""Has every token id a row in every table that it will index, and every position one? Asked before the model runs.

An index beyond its table ends in the same words whichever table it was: on a CPU `IndexError: index out of range in
self`, on a GPU a device-side assert that names no id. This file reads the tables' sizes and compares; no model runs.
It judges text models: image tokens, and tables of segments or types, it does not know.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .report import Report

CLAIM = "every id and every position has its row"
INPUT, OUTPUT, POSITIONS = "input embedding", "output layer", "positions"
INDICES = ("input_ids", "labels", "position_ids")
IGNORED = -100  # the label that torch's and transformers' losses leave out
NO_TOKEN = "no token of this tokenizer"
RESIZE = "resize_token_embeddings(len(tokenizer)) once, save it, and load policy and reference from there"


@dataclass(frozen=True)
class Outside:
    """The first index of `source` that has no row in `table`: where it stands, and what it means."""

    table: str
    rows: int
    source: str  # input_ids, labels or position_ids
    index: int
    row: int
    column: int
    text: str


def token_ids(tokenizer: Any, model: Any, ids: Any = None) -> Report:
    """Which id or position has no row: in which table, at which row and column, and which text it is.

    tokenizer  transformers', or a processor; it gives the texts. Tokens of it that `ids` do not use may lie beyond the
               tables: that is a caution
    model      a transformers model, also wrapped by peft or DistributedDataParallel
    ids        whole numbers, [T], [B, T] or a list of rows; or what a tokenizer returns, with `labels`, `position_ids`
               and `attention_mask` where you have them. None: the tokenizer's whole vocabulary

    `labels` index the output layer, where -100 is left out, as a loss does. Ids index it too: in training the log-prob
    of each is gathered there. Positions matter where the model has learned a table of them; rotary has none.

    Returns a `Report`; inconclusive when there is no id, or no table to hold them against.
    Raises: TypeError names ids that are no whole numbers.
    """
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    model = model if hasattr(model, "get_input_embeddings") else getattr(model, "module", model)
    given = _given(tokenizer, ids)
    rows = {name: _rows(name, given[name]) for name in INDICES if given.get(name) is not None}
    tables, drawn = _tables(model), [*rows.get("input_ids", []), *rows.get("labels", [])]
    largest = max((int(row.max()) for row in drawn if row.numel()), default=None)
    evidence: dict[str, Any] = {"largest id": largest, **{f"{name} rows": size for name, size in tables.items()}}
    if largest is None:
        return Report("token_ids", CLAIM, None, evidence, "There is no id to look up.")
    if INPUT not in tables:
        return Report("token_ids", CLAIM, None, evidence, "The model shows no input embedding to hold the ids against.")
    first = _outside(tokenizer, model, tables, rows, given)
    if first is None:
        return Report("token_ids", CLAIM, True, evidence, caution=_caution(tokenizer, model, tables, rows))
    evidence |= {"table": first.table, "index": first.index, "text": first.text}
    if ids is not None:
        evidence |= {"in": first.source, "row": first.row, "column": first.column}
    return Report("token_ids", CLAIM, False, evidence, _hint(first))


def _given(tokenizer: Any, ids: Any) -> dict[str, Any]:
    if ids is None:
        return {"input_ids": sorted(tokenizer.get_vocab().values()), "position_ids": []}
    return dict(ids) if isinstance(ids, Mapping) else {"input_ids": ids}


def _rows(name: str, value: Any) -> list[Tensor]:
    """The rows as vectors on the CPU; rows of a list may differ in length."""
    several = [value]
    if isinstance(value, (list, tuple)) and any(isinstance(v, (list, tuple)) or getattr(v, "ndim", 0) for v in value):
        several = list(value)
    rows: list[Tensor] = []
    for one in several:
        try:
            tensor = torch.as_tensor(one).cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{name}: expected whole numbers, got {type(value).__name__} ({error})") from None
        if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool):
            raise TypeError(f"{name}: expected whole numbers, got {tensor.dtype}; ids are integers")
        if tensor.dim() < 2 or not tensor.numel():
            tensor = tensor.reshape(1, -1)
        rows += tensor.flatten(0, -2).long().unbind(0)
    return rows


def _tables(model: Any) -> dict[str, int]:
    """Rows of the tables that the model has, by name; positions only where they are learned."""
    try:
        layers = {INPUT: model.get_input_embeddings(), OUTPUT: model.get_output_embeddings()}
    except (AttributeError, NotImplementedError):
        return {}
    tables = {name: _size(layer) for name, layer in layers.items() if layer is not None}
    positions, fixed = _position_table(model), _fixed_positions(model)
    if positions is not None:
        tables[POSITIONS] = positions.num_embeddings - _offset(positions)
    elif fixed is not None:
        tables[POSITIONS] = len(fixed)
    return tables


def _size(layer: Any) -> int:
    names = ("num_embeddings", "out_features")  # a quantized weight has other shapes
    return int(next((getattr(layer, n) for n in names if hasattr(layer, n)), layer.weight.shape[0]))


def _position_table(model: Any) -> nn.Embedding | None:
    """The learned table of positions. It stands beside the token table: an image tower's stands elsewhere."""
    tokens = model.get_input_embeddings()
    for module in model.modules():
        beside = dict(module.named_children())
        if any(child is tokens for child in beside.values()):
            for name, child in beside.items():
                if isinstance(child, nn.Embedding) and (name == "wpe" or "pos" in name):
                    return child
    return None


def _fixed_positions(model: Any) -> Tensor | None:
    """A table of positions that is not learned, [positions, D]: a buffer in GPT-J and CodeGen, a tensor in CTRL."""
    for module in model.modules():
        for name in ("embed_positions", "pos_encoding"):
            table = getattr(module, name, None)
            if isinstance(table, Tensor) and table.dim() == 2:
                return table
    return None


def _offset(table: nn.Embedding) -> int:
    """Rows before the first position: OPT and BART say so, RoBERTa begins after its padding's row."""
    after_padding = 0 if table.padding_idx is None else table.padding_idx + 1
    return int(getattr(table, "offset", after_padding))


def _positions(model: Any, ids: list[Tensor], given: Mapping[str, Any]) -> list[Tensor]:
    """The positions that a forward pass looks up where it is given none: 0, 1, 2, …, by most models whatever the mask
    says. OPT counts by the mask, RoBERTa past its padding."""
    table: Any = _position_table(model)
    counted = [torch.ones_like(row) for row in ids]
    if table is None:  # a fixed one, indexed by the place in the row
        return [torch.arange(len(row)) for row in ids]
    takes_mask = "attention_mask" in inspect.signature(table.forward).parameters
    if takes_mask and "attention_mask" in given:
        counted = _rows("attention_mask", given["attention_mask"])
    elif table.padding_idx is not None:
        counted = [(row != table.padding_idx).long() for row in ids]
    return [(row.cumsum(0) - 1).clamp_min(0) for row in counted]


def _outside(
    tokenizer: Any, model: Any, tables: dict[str, int], rows: dict[str, list[Tensor]], given: Mapping[str, Any]
) -> Outside | None:
    """The first index without a row, if there is one."""
    ids, positions = rows.get("input_ids", []), rows.get("position_ids")
    if positions is None and POSITIONS in tables:
        positions = _positions(model, ids, given)
    labels = [row.masked_fill(row == IGNORED, 0) for row in rows.get("labels", [])]
    lookups = [(INPUT, "input_ids", ids), (OUTPUT, "input_ids", ids), (OUTPUT, "labels", labels)]
    lookups.append((POSITIONS, "position_ids", positions or []))
    for table, source, indices in lookups:
        if table not in tables:
            continue
        for row, index in enumerate(indices):
            wrong = (index < 0) | (index >= tables[table])
            if wrong.any():
                column = int(wrong.nonzero()[0])
                value = int(index[column])
                text = f"position {value}" if table == POSITIONS else _described(tokenizer, value)
                return Outside(table, tables[table], source, value, row, column, text)
    return None


def _described(tokenizer: Any, index: int) -> str:
    """An id in words: its token, and whether it was added."""
    if index == IGNORED:
        return "the label that a loss ignores"
    if index < 0:
        return "a negative number"
    token = None
    if index < _end(tokenizer):
        token = tokenizer.convert_ids_to_tokens(index)
    if token is None:
        return NO_TOKEN
    added = getattr(tokenizer, "added_tokens_decoder", {}).get(index)
    if added is None:
        return repr(token)
    return f"{'special' if added.special else 'added'} token {token!r}"


def _end(tokenizer: Any) -> int:
    """One more than the tokenizer's largest id: `len(tokenizer)` where ids have no gaps."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def _hint(outside: Outside) -> str:
    if outside.table == POSITIONS:
        return f"A row is longer than the {outside.rows} positions: shorten it. Larger token tables do not help."
    if outside.index == IGNORED:
        return "Likely labels where ids belong: before an embedding or a gather put a real id in their place, and mask."
    if outside.index < 0:
        return "No id is below 0: likely a padding value, or a dtype that overflowed."
    if outside.text == NO_TOKEN:
        return "Likely another model's tokenizer, or an id sampled from an output row that no token has."
    return f"Likely a token added without a row: {RESIZE}."


def _caution(tokenizer: Any, model: Any, tables: dict[str, int], rows: dict[str, list[Tensor]]) -> str:
    """What to know although each id has its row."""
    end, cautions = _end(tokenizer), []
    if end > min(tables[INPUT], tables.get(OUTPUT, end)):
        last = _described(tokenizer, end - 1)
        cautions.append(f"The tokenizer goes up to {end - 1}, {last}, which has no row: {RESIZE}.")
    if tables.get(OUTPUT, 0) > end:
        cautions.append(f"{tables[OUTPUT] - end} rows of the output layer belong to no token, and can be sampled.")
    longest = max(map(len, rows.get("input_ids", [])), default=0)
    room = getattr(getattr(model, "config", None), "max_position_embeddings", None) or math.inf
    if POSITIONS not in tables and "position_ids" not in rows and longest > room:
        cautions.append(f"Rows of {longest} tokens for a model of {room}, and no table of positions that would assert.")
    return " ".join(cautions)
