"""What lesson 09 uses and does not teach: its run, wrong calls to compare, what is left of a traceback, and a picture.

The bug and the fix stand in the notebook and are handed over: `load_models` takes a checkpoint's folder and returns
(tokenizer, policy, reference).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from transformers.utils import logging

from labkit import sandbox, task
from labkit.events import Exam, Outcome, Step
from labkit.policy import CHECKPOINTS, Policy, pick_device
from labkit.train import train

logging.set_verbosity_error()  # transformers explains how it fills a new row, at each resize
logging.disable_progress_bar()

ORANGE, BLUE, GREY = "#d55e00", "#0072b2", "#999999"
LoadModels = Callable[[str], tuple[Any, Any, Any]]


def path_of(model: str) -> str:
    """The folder of a checkpoint that ships with labkit; anything else as it is."""
    shipped = CHECKPOINTS / model
    return str(shipped) if shipped.is_dir() else model


class Padded(Policy):
    """A policy whose prompts are padded to a multiple of eight."""

    def encode(self, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.tokenizer(prompts, return_tensors="pt", padding=True, pad_to_multiple_of=8)
        return rows["input_ids"].to(self.device), rows["attention_mask"].to(self.device)


def learn(
    load_models: LoadModels, seed: int, model: str = "tiny", device: str = "auto", rounds: int = 8
) -> Iterator[Step | Exam]:
    """A run of `labkit.train` with these models: its defaults, padded prompts, and the exam."""
    torch.manual_seed(seed)  # the new row is drawn
    tokenizer, policy, reference = load_models(path_of(model))
    where = pick_device(device)
    trained = Padded(policy.to(where).eval(), tokenizer, model)
    reference = reference.to(where).eval().requires_grad_(False)
    yield from train(trained, seed=seed, rounds=rounds, reference=reference, exam=True)


# What is left of a death ---------------------------------------------------------------------------------------

_FRAME = re.compile(r'File "([^"]+)", line \d+, in (\w+)\n\s+(.+)')


def three_lines(outcome: Outcome) -> str:
    """Of a traceback: where the reference is asked, where a table is, the last call; then the message."""
    frames = _FRAME.findall(outcome.traceback)
    chosen = [f for f in frames[:-1] if re.search(r"reference, \*|\.wte\(|\.wpe\(", f[2])]
    lines = [
        f"{file.rsplit('/', 1)[-1]}, {name}:  {code}"
        for file, name, code in [*chosen, *frames[-1:]]
    ]
    return "\n".join([*lines, f"{outcome.exception}: {outcome.message}"])


def message(outcome: Outcome) -> str:
    """How a call ended: "no error", or what was said; on a GPU the assertion's text out of the runtime's own line."""
    if outcome:
        return "no error"
    asserted = re.search(r"Assertion (`.+`) failed", outcome.stderr)
    return asserted[1] if asserted else outcome.message.split("\n")[0]


def messages(calls: Mapping[str, Callable[[str], Any]], device: str) -> dict[str, str]:
    """name -> how `calls[name](device)` ended, each in a process of its own."""
    runs = sandbox.run_all(
        _called, {name: {"call": call} for name, call in calls.items()}, device=device
    )
    return {name: message(run.outcome) for name, run in runs.items()}


def _called(call: Callable[[str], Any], device: str) -> Iterator[Any]:
    where = str(pick_device(device))
    call(where)
    if where.startswith("cuda"):
        torch.cuda.synchronize()  # an assertion shows up at a later call: let this be it
    yield from ()


# The picture ---------------------------------------------------------------------------------------------------


def tables(policy: Any, reference: Any, ids: torch.Tensor) -> list[dict[str, Any]]:
    """A row for each table that `ids` [B, T] are looked up in: its rows, and the largest index that asks for one."""
    rows = []
    for name, model in (("policy", policy), ("reference", reference)):
        tokens, places = model.get_input_embeddings(), model.config.max_position_embeddings
        rows.append(
            {
                "table": f"{name}: tokens",
                "rows": tokens.num_embeddings,
                "largest index": int(ids.max()),
            }
        )
        rows.append(
            {"table": f"{name}: positions", "rows": places, "largest index": ids.shape[1] - 1}
        )
    return rows


def tables_picture(rows: list[dict[str, Any]], title: str) -> Any:
    """A bar of its rows for each table, and a mark at the largest index; orange where it lies beyond."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.6, 2.2), layout="constrained", dpi=110)
    for at, row in enumerate(reversed(rows)):
        beyond = row["largest index"] >= row["rows"]
        axes.barh(at, row["rows"], left=-0.5, color=GREY, alpha=0.5, height=0.6)
        axes.plot(
            row["largest index"], at, "X" if beyond else "o", color=ORANGE if beyond else BLUE, ms=8
        )
        axes.text(
            max(row["rows"], row["largest index"]) + 0.8,
            at,
            f"rows 0 to {row['rows'] - 1}; asked for {row['largest index']}",
            va="center",
            size=8,
        )
    axes.set_yticks(range(len(rows)), [row["table"] for row in reversed(rows)])
    axes.set_xlim(-0.5, max(row["rows"] for row in rows) + 10)
    axes.set_xlabel("row of the table (bar: it is there; mark: the largest index asked for)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, weight="bold", size=10, loc="left")
    pyplot.close(figure)
    return figure


# Exercise B ----------------------------------------------------------------------------------------------------

DEATHS = {
    "P": "reference",
    "Q": "positions",
    "R": "label as id",
    "S": "gathered label",
    "T": "no index",
}


def five_deaths(load_models: LoadModels, model: str, device: str) -> list[dict[str, Any]]:
    """Five runs that die: what each said, and the sizes that were known before. The names are `DEATHS`."""
    _, policy, reference = load_models(path_of(model))
    sound = torch.tensor([[4, 5, 9, 6, 7, 15, 3, 2], [7, 5, 9, 7, 1, 15, 1, 4]])
    padded = sound.clone()
    padded[0, 7] = 16
    labels = sound.clone()
    labels[:, :6] = -100
    batches = {"P": padded, "Q": sound.repeat(1, 5), "R": labels, "S": sound, "T": sound}
    calls: dict[str, Callable[[str], Any]] = {
        "P": lambda where: reference.to(where)(padded.to(where)),
        "Q": lambda where: policy.to(where)(batches["Q"].to(where)),
        "R": lambda where: policy.to(where)(labels.to(where)),
        "S": lambda where: policy.to(where)(sound.to(where)).logits.gather(
            -1, labels[..., None].to(where)
        ),
        "T": lambda where: torch.multinomial(torch.full((16,), float("nan"), device=where), 1),
    }
    said = messages(calls, device)
    rows = []
    for name, ids in batches.items():
        row: dict[str, Any] = {"run": name, "what it said": said[name]}
        row |= {
            "smallest id": int(ids.min()),
            "largest id": int(ids.max()),
            "longest row": ids.shape[1],
        }
        row["token rows, policy"] = policy.get_input_embeddings().num_embeddings
        row["token rows, reference"] = reference.get_input_embeddings().num_embeddings
        row["positions"] = policy.transformer.wpe.num_embeddings
        rows.append(row)
    return rows


# Exercise A ----------------------------------------------------------------------------------------------------


def batches_to_judge(
    load_models: LoadModels, model: str, seed: int
) -> list[tuple[str, torch.Tensor, Any, Any]]:
    """(what is wrong, ids [B, T], model, right answer): the answer is (table, row, column), or None for a sound batch."""
    _, resized, small = load_models(path_of(model))
    dice = torch.Generator().manual_seed(seed)
    sound = torch.randint(0, 16, (4, 10), generator=dice)
    row, column = (int(torch.randint(1, n - 1, (), generator=dice)) for n in sound.shape)
    _, _, lying = load_models(path_of(model))
    lying.config.vocab_size = 99  # a number in the config adds no row

    def with_index(index: int) -> torch.Tensor:
        ids = sound.clone()
        ids[row, column] = index
        return ids

    two = with_index(16)
    two[row + 1, 0] = 16  # further left, in a later row
    long = torch.randint(0, 16, (2, 33), generator=dice)
    there = ("tokens", row, column)
    return [
        ("a sound batch", sound, small, None),
        ("the id 16 and 16 rows", with_index(16), small, there),
        ("the id 16 and 17 rows", with_index(16), resized, None),
        ("the id -1", with_index(-1), small, there),
        ("the label -100", with_index(-100), resized, there),
        ("two bad ids: the first one counts", two, small, there),
        ("a row of 33 tokens and 32 positions", long, resized, ("positions", 0, 32)),
        ("32 tokens and 32 positions", long[:, :32], resized, None),
        ("a config that says 99, and 16 rows", with_index(16), lying, there),
    ]


# What does not help --------------------------------------------------------------------------------------------


def marked_sums(tokenizer: Any) -> torch.Tensor:
    """Fifty sums of the exam with their answers, the new token in front of each: ids [50, T], padded on the left."""
    add = task.get("add")
    texts = ["[PAD]" + prompt + add.answer(prompt) for prompt in add.held_out()[:50]]
    return torch.tensor(tokenizer(texts, padding=True)["input_ids"])


@torch.no_grad()
def gap(policy: Any, reference: Any, ids: torch.Tensor, reference_ids: torch.Tensor) -> float:
    """Mean absolute difference of the two models' log-probs of `ids` [B, T] from the second token on, in nats; the
    reference is fed `reference_ids`."""
    logps = []
    for model, fed in ((policy, ids), (reference, reference_ids)):
        logp = model.eval()(fed).logits[:, :-1].log_softmax(-1)
        logps.append(logp.gather(-1, ids[:, 1:, None]))
    return float((logps[0] - logps[1]).abs().mean())
