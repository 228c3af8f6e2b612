"""Page 09: a round that says how far it came, and what each table was asked for.

Always on the CPU: there an exception comes at the call that raises it.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from props.lesson_09 import Padded

from labkit.grpo import Hooks, generate, grads, train
from labkit.grpo.policy import token_logprobs_of_groups

PROMPT_TOKENS = 6  # of every prompt of `add`
STATIONS = ("sample", "policy's log-probs", "reference's log-probs", "loss", "step")


def rounds_of(
    load: Callable[..., tuple[Any, Any, Any]], positions: Sequence[dict]
) -> Iterator[dict]:
    """A frame for each position: `load(**position)` without its `gaps` gives the models of one round."""
    for position in positions:
        settings = dict(position)
        gaps = settings.pop("gaps")
        torch.manual_seed(0)
        yield {"position": position} | round_of(*load(**settings), gaps)


def positions(knobs: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every position of some knobs."""
    every = itertools.product(*knobs.values())
    return [dict(zip(knobs, values, strict=True)) for values in every]


def key(**position: Any) -> tuple[Any, ...]:
    """A position as a key of a dict, in an order of its own."""
    return tuple(sorted(position.items()))


def rows_of_rounds(frames: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Rows of a table: id and reference -> how the round ended, a column for each number of gaps."""
    rows: dict[tuple[Any, ...], dict[str, str]] = {}
    for frame in frames:
        id_in_gaps, reference, gaps = frame["position"].values()
        row = rows.setdefault(
            (id_in_gaps, reference), {"id in gaps": str(id_in_gaps), "reference": reference}
        )
        ended = frame["reached"][-1]
        row[f"gaps: {gaps}"] = f"{ended}: {frame['operation']}" if frame["said"] else ended
    return list(rows.values())


def round_of(tokenizer: Any, policy: Any, reference: Any, gaps: int) -> dict[str, Any]:
    """One round with one update, on the CPU: how far it came, and what each table was asked for.

    Always of seed 0. The frame: `reached`, the stations that began; `said`, the exception, "" where none came; `operation`, what
    raised it; `rows`, table -> its size; `asked`, table -> the largest index that was looked up in it.
    """
    frame: dict[str, Any] = {"reached": [], "said": "", "operation": "", "rows": {}, "asked": {}}
    for whose, model in (("policy", policy), ("reference", reference)):
        model.eval()
        watch_table(model.get_input_embeddings(), f"{whose}: tokens", frame)
        watch_table(model.transformer.wpe, f"{whose}: positions", frame)
        logits = model.get_output_embeddings().weight
        frame["rows"][f"{whose}: columns of logits"] = len(logits)

    def sample(*args: Any, **settings: Any) -> Any:
        frame["reached"].append(STATIONS[0])
        return generate(*args, **settings)

    def scorer(
        model: Any, ids: torch.Tensor, mask: torch.Tensor, length: int, **scaling: Any
    ) -> Any:
        # it is called for the policy, for the reference, and in the loss
        frame["reached"].append(STATIONS[len(frame["reached"])])
        whose = "reference" if model is reference else "policy"
        note(frame, f"{whose}: columns of logits", ids[:, -length:])
        try:
            return token_logprobs_of_groups(model, ids, mask, length, **scaling)
        except IndexError:  # in a table: no logits were asked
            del frame["asked"][f"{whose}: columns of logits"]
            raise

    def step(model: Any, optimizer: Any) -> grads.Update:
        frame["reached"].append(STATIONS[-1])
        return grads.limited_step(1.0)(model, optimizer)

    hooks = Hooks(generate=sample, scorer=scorer, update=step, reference=reference)
    padded = Padded(policy, tokenizer, "", PROMPT_TOKENS + gaps)
    try:
        for _ in train("add", policy=padded, hooks=hooks, rounds=1, mu=1, seed=0):
            pass
    except (IndexError, RuntimeError, ValueError) as error:
        frame["said"] = f"{type(error).__name__}: {error}"
        frame["operation"] = operation_of(error)
    return frame


def watch_table(table: torch.nn.Embedding, name: str, frame: dict[str, Any]) -> None:
    """From now on the largest index that the table is asked for stands in the frame."""
    frame["rows"][name] = table.num_embeddings

    def before(module: Any, args: tuple[torch.Tensor, ...]) -> None:
        note(frame, name, args[0])

    table.register_forward_pre_hook(before)


def note(frame: dict[str, Any], name: str, indices: torch.Tensor) -> None:
    largest = max(int(indices.max()), frame["asked"].get(name, 0))
    frame["asked"][name] = largest


def operation_of(error: BaseException) -> str:
    """The operation that raised it, by the last line of Python: "embedding", "gather", or the function's name."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None:
        return ""
    code = at.tb_frame.f_code
    line = linecache.getline(code.co_filename, at.tb_lineno)
    return "gather" if ".gather(" in line else code.co_name
