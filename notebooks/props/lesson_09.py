"""What lesson 09 uses and does not teach: its run, wrong calls to compare, what is left of a traceback, and a picture.

The bug and the fix stand in the notebook and are handed over: `load_models` takes a checkpoint's folder and returns
(tokenizer, policy, reference).
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from transformers.utils import logging

from labkit import sandbox
from labkit.events import Exam, Outcome, Step
from labkit.grpo.policy import CHECKPOINTS, Policy, pick_device
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
    load_models: LoadModels, seed: int, model: str = "tiny", device: str = "auto", rounds: int = 5
) -> Iterator[Step | Exam]:
    """A run of `labkit.train` with these models: its defaults, padded prompts, and the exam."""
    torch.manual_seed(seed)  # for what a way of loading draws
    tokenizer, policy, reference = load_models(path_of(model))
    where = pick_device(device)
    trained = Padded(policy.to(where).eval(), tokenizer, model)
    reference = reference.to(where).eval().requires_grad_(False)
    yield from train(trained, seed=seed, rounds=rounds, reference=reference, exam=True)


# What is left of a death ---------------------------------------------------------------------------------------

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\w+)\n\s+(.+)')
_ABOVE = {
    r"= _score\(": 1,
    r"reference, \*": 3,
    r"\.w[tp]e\(": 0,
}  # a call, and how many lines above it to show


def calls_of(outcome: Outcome) -> str:
    """Of a traceback: the round, where the reference is asked, a table, the last call; then the message.

    A call that did not return is marked `>`; above it stand lines of the same function that had run before it.
    """
    frames = _FRAME.findall(outcome.traceback)
    chosen = [(f, n) for f in frames[:-1] for call, n in _ABOVE.items() if re.search(call, f[3])]
    chosen += [(f, 0) for f in frames[-1:]]
    lines = [f"{len(chosen)} of the {len(frames)} calls in the traceback, the outermost first:"]
    for (file, number, name, code), above in chosen:
        lines.append(f"{file.rsplit('/', 1)[-1]}, {name}")
        before = range(int(number) - above, int(number))
        lines += [f"    {linecache.getline(file, n).strip()}" for n in before]
        lines.append(f"  > {code}")
    return "\n".join([*lines, f"{outcome.exception}: {outcome.message}"])


def message(outcome: Outcome) -> str:
    """How a call ended: "no error", or the exception; on a GPU the assertion's text out of the runtime's own line."""
    if outcome:
        return "no error"
    asserted = re.search(r"Assertion (`.+`) failed", outcome.stderr)
    return asserted[1] if asserted else f"{outcome.exception}: {outcome.message}".split("\n")[0]


def no_numbers(said: str) -> str:
    """A message with its numbers left out."""
    return re.sub(r"-?\d+", "…", said)


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


def fetch(rows: int, index: int) -> Callable[[str], Any]:
    """An embedding of `rows` rows, asked for row 3 and for row `index`."""

    def call(device: str) -> None:
        torch.nn.Embedding(rows, 8, device=device)(torch.tensor([3, index], device=device))

    return call


def _index_select(device: str) -> None:
    torch.zeros(16, 8, device=device).index_select(0, torch.tensor([3, 16], device=device))


def _gather(device: str) -> None:
    torch.zeros(2, 16, device=device).gather(1, torch.tensor([[3], [-100]], device=device))


def _square_brackets(device: str) -> None:
    torch.zeros(64, device=device)[torch.tensor([8, 64], device=device)]


def _cross_entropy(device: str) -> None:
    logits = torch.zeros(2, 16, device=device)
    torch.nn.functional.cross_entropy(logits, torch.tensor([3, 16], device=device))


def _multinomial(device: str) -> None:
    torch.multinomial(torch.full((16,), float("nan"), device=device), 1)


# What was wrong, and the call -> the call itself. Those of the first three fetch whole rows of a table.
FETCHES = {
    "a token id: `Embedding(16, 8)([3, 16])`": fetch(16, 16),
    "a position: `Embedding(32, 8)([3, 32])`": fetch(32, 32),
    "a row number: `x.index_select(0, [3, 16])`, x of 16 rows": _index_select,
}
OTHERS = {
    "a label: `logp.gather(1, [[3], [-100]])`": _gather,
    "a row number: `x[[8, 64]]`, x of 64": _square_brackets,
    "a label: `cross_entropy(logits, [3, 16])`": _cross_entropy,
    "no index at all: `multinomial` of NaN": _multinomial,
}


def way(name: str, run: Any) -> dict[str, Any]:
    """A row of the table of ways: how a run ended, the KL at its first update, and what its exam gained."""
    kl, chances = run["kl"], run.exam("add")
    return {
        "way": name,
        "how the run ended": message(run.outcome),
        "KL at update 1, nats": f"{kl[0]:.3g}" if len(kl) else "–",
        "exam, gain": f"{chances[-1] - chances[0]:.3f}" if len(kl) else "–",
    }


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
            f"has rows 0 to {row['rows'] - 1}, is asked for row {row['largest index']}",
            va="center",
            size=8,
        )
    axes.set_yticks(range(len(rows)), [row["table"] for row in reversed(rows)])
    axes.set_xlim(-0.5, max(row["rows"] for row in rows) + 16)
    axes.set_xticks(range(0, max(row["rows"] for row in rows) + 1, 8))
    axes.set_xlabel(
        "row of the table (bar: the rows it has; mark: the largest one that the batch asks for)"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, weight="bold", size=10, loc="left")
    pyplot.close(figure)
    return figure


# Exercise A ----------------------------------------------------------------------------------------------------


def batches_to_judge(
    load_models: LoadModels, model: str, seed: int
) -> list[tuple[str, dict[str, Any], torch.Tensor, list[tuple[str, str]]]]:
    """(what is wrong, models by name, ids [B, T], right answer): the answer lists (name, table)."""
    _, resized, small = load_models(path_of(model))
    _, _, lying = load_models(path_of(model))
    lying.config.vocab_size = 99  # a number in the config adds no row
    both, two = {"policy": resized, "reference": small}, {"policy": resized, "old": resized}
    dice = torch.Generator().manual_seed(seed)
    sound = torch.randint(0, 16, (4, 10), generator=dice)
    row, column = (int(torch.randint(0, n, (), generator=dice)) for n in sound.shape)

    def with_index(index: int) -> torch.Tensor:
        ids = sound.clone()
        ids[row, column] = index
        return ids

    long = torch.randint(0, 16, (2, 33), generator=dice)
    tokens, positions = [(n, "tokens") for n in both], [(n, "positions") for n in both]
    return [
        ("a sound batch", both, sound, []),
        ("the id 16, for tables of 17 and 16 rows", both, with_index(16), tokens[1:]),
        ("the id 16, for two tables of 17 rows", two, with_index(16), []),
        ("the id 17", both, with_index(17), tokens),
        ("the id -1", both, with_index(-1), tokens),
        ("a row of 33 tokens and 32 positions", both, long, positions),
        ("32 tokens and 32 positions", both, long[:, :32], []),
        (
            "33 tokens, one of them 17",
            two,
            long.clamp(min=17),
            [(n, t) for n in two for t in ("tokens", "positions")],
        ),
        (
            "a config that says 99, and 16 rows",
            {"policy": lying},
            with_index(16),
            [("policy", "tokens")],
        ),
    ]


# Exercise B ----------------------------------------------------------------------------------------------------

DEATHS = {
    "P": "positions",
    "Q": "reward model",
    "R": "gathered label",
    "S": "none of these tables",
    "T": "label as id",
}


def five_deaths(load_models: LoadModels, model: str, device: str) -> list[dict[str, Any]]:
    """Five runs that die: what each said, and the sizes that were known before. The names are `DEATHS`."""
    _, policy, short = load_models(path_of(model))
    reward_model = load_models(path_of(model))[2]
    reward_model.resize_token_embeddings(12)
    sound = torch.tensor([[4, 5, 9, 6, 7, 15, 3, 2], [7, 5, 9, 7, 1, 15, 1, 4]])
    padded = sound.clone()
    padded[0, 0] = 16
    labels = sound.clone()
    labels[:, :6] = -100
    # run -> its ids, the rows of the policy, the reference and the reward model, and the call that fails
    runs: dict[str, tuple[torch.Tensor, tuple[int, int, int], Callable[[str], Any]]] = {
        "P": (
            sound.repeat(1, 5),
            (17, 16, 16),
            lambda at: policy.to(at)(sound.repeat(1, 5).to(at)),
        ),
        "Q": (sound, (17, 17, 12), lambda at: reward_model.to(at)(sound.to(at))),
        "R": (
            sound,
            (17, 16, 16),
            lambda at: policy.to(at)(sound.to(at)).logits.gather(-1, labels[..., None].to(at)),
        ),
        "S": (
            padded,
            (17, 17, 17),
            lambda at: policy.to(at)(padded.to(at)).logits.index_select(
                0, torch.tensor([0, 2], device=at)
            ),
        ),
        "T": (labels, (17, 16, 16), lambda at: short.to(at)(labels.to(at))),
    }
    said = messages({name: call for name, (_, _, call) in runs.items()}, device)
    rows = []
    for name, (ids, (of_policy, of_reference, of_reward_model), _) in runs.items():
        row: dict[str, Any] = {"run": name, "what it said": said[name]}
        row |= {
            "smallest id": int(ids.min()),
            "largest id": int(ids.max()),
            "longest row": ids.shape[1],
        }
        row |= {
            "rows: policy": of_policy,
            "reference": of_reference,
            "reward model": of_reward_model,
        }
        row["positions, each"] = policy.transformer.wpe.num_embeddings
        rows.append(row)
    return rows
