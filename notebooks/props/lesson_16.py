"""What page 16 uses and does not teach: the row that it follows, another model, 16 answers, and its tables.

The bug, the rulers and the arms stand in the notebook, scorers to compare with in `props/scorers.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from props.scorers import SCORERS, Scorer, pad_left, rotary, with_pads

from labkit.events import Run, Step
from labkit.grpo import Hooks, generate, load, rollout, task, train
from labkit.grpo.batch import Batch
from labkit.grpo.policy import Policy
from labkit.grpo.rollout import Completions

ADD = task.get("add")
PROMPT, ANSWER = "49+97=", "146"  # the row that the page follows
PADS = (0, 1, 2, 3, 4, 6, 8, 12, 16)  # before the row; the policy's table has 32 positions


# ------------------------------------------------------------------------------------------- the row that is followed


def row(pads: int, policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask [1, pads + 10] of the row: its prompt, its answer and the end token."""
    tokenizer = policy.tokenizer
    tokens = [*tokenizer(PROMPT + ANSWER)["input_ids"], tokenizer.eos_token_id]
    ids = torch.tensor([tokens])
    return pad_left(ids, torch.ones_like(ids), pads)


def row_in_a_batch(scorer: Scorer, name: str = "GPT-2") -> Iterator[dict[str, Any]]:
    """The row behind each number of pads: the log-probs of its answer, and the positions that reached the model.

    name   "GPT-2" or "Qwen2", the model that is scored
    """
    policy = load("tiny", "cpu")
    if name == "GPT-2":
        model = policy.model
        position_module = model.transformer.wpe
    else:
        model = rotary(0, "cpu")
        position_module = model.model.rotary_emb
    reached = []

    def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if "position_ids" in kwargs:  # Qwen2's rotary module
            reached.append(kwargs["position_ids"])
        else:  # GPT-2's table
            reached.append(args[-1])

    position_module.register_forward_pre_hook(keep, with_kwargs=True)
    for pads in PADS:
        ids, mask = row(pads, policy)
        with torch.no_grad():
            logp, _ = scorer(model, ids, mask, len(ANSWER) + 1)
        positions = reached[-1].expand(ids.shape)  # a reader's may be of one row for all, [T]
        yield {"pads": pads, "logp": logp[0].tolist(), "positions": positions[0].tolist()}


def worst(frames: Mapping[Any, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a table: model and inputs -> the largest difference of an answer's token from the row alone, nats."""
    rows: dict[Any, dict[str, Any]] = {}
    for (model, inputs, pads), frame in frames.items():
        alone = torch.tensor(frames[model, "mask + positions", 0]["logp"])
        line = rows.setdefault((model, inputs), {"model": model, "model gets": inputs})
        if pads in (1, 4, 16):
            difference = torch.tensor(frame["logp"]) - alone
            line[f"pads: {pads}"] = float(difference.abs().max())
    return list(rows.values())


# ------------------------------------------------------------------------------------------------------ updates


def rows_of_logs(first: Mapping[str, Step]) -> list[dict[str, Any]]:
    """Rows of a table: which log-probs are wrong -> what a log shows of that run's first update."""
    rows = []
    for wrong, step in first.items():
        row: dict[str, Any] = {"wrong": wrong}
        row["largest ratio"] = step.ratio_max
        row["tokens clipped"] = step.clip_fraction
        row["KL"] = step.kl
        row["norm"] = step.grad_norm
        rows.append(row)
    return rows


def growth(run: Run, begins: str) -> float:
    """The growth of the lead in rows that begin there, "at 0" or "at 4", nats."""
    return next(event["growth"] for event in run.events if event["begins"] == begins)


def rows_of_growth(grown: Mapping[str, Sequence[Run]]) -> list[dict[str, str]]:
    """Rows of a table: the growth of the lead on each seed, in rows that begin at 0 and at 4."""
    rows = []
    for wrong, runs in grown.items():
        row = {"wrong": wrong}
        for begins in ("at 0", "at 4"):
            of_seeds = (f"{growth(run, begins):+.2f}" for run in runs)
            row[f"rows that begin {begins}"] = " ".join(of_seeds)
        rows.append(row)
    return rows


# ------------------------------------------------------------------------------------------------------ another model


def rows_of_models(
    from_alone: Mapping[tuple[str, str, str], Sequence[float]],
    sums: Sequence[str],
    pads: Sequence[int],
) -> list[dict[str, Any]]:
    """Rows of a table: (model, inputs, side of the pads) -> the difference of each row, under its number of pads."""
    rows = []
    for (model, inputs, side), differences in from_alone.items():
        row: dict[str, Any] = {"model": model, "model gets": inputs, "pads": side}
        for text, count, difference in zip(sums, pads, differences, strict=True):
            row[f"{text}, pads: {count}"] = difference
        rows.append(row)
    return rows


def qwen_in_one_round(scorer: Scorer, seed: int, device: str) -> Iterator[dict[str, list[float]]]:
    """A Qwen2 learns for one round from the tiny policy's answers: their log-probs before and after, without pads."""
    tiny = load("tiny", device)
    qwen = Policy(rotary(seed, tiny.device), tiny.tokenizer, "qwen2")
    parts: list[Batch] = []

    def answers_of_tiny(policy: Policy, prompts: list[str], **settings: Any) -> Completions:
        return with_pads(generate(tiny, prompts, **settings), 4)

    def keep(part: Batch, logp: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
        parts.append(part)
        return {}

    hooks = Hooks(generate=answers_of_tiny, scorer=scorer, probe=keep)
    for _ in train("add", policy=qwen, rounds=1, hooks=hooks, seed=seed):
        pass
    out, counts = parts[0].out, parts[0].mask.bool()
    right = SCORERS["mask + positions"]
    for model in (rotary(seed, tiny.device), qwen.model):
        with torch.no_grad():
            logp, _ = right(model, out.ids, out.attention_mask, counts.shape[1])
        yield {"logp": logp[counts].tolist()}


# ----------------------------------------------------------------------------------------------- two other faults


def answers(
    policy: Policy, seed: int, temperature: float = 1.0
) -> tuple[Completions, torch.Tensor]:
    """16 answers drawn at this temperature, and the log-probs [B, T] that the sampler had while it drew them."""
    recorded = []

    def sample(logits: torch.Tensor, *settings: Any) -> torch.Tensor:
        token = rollout.sample_tokens(logits, *settings)
        logp = (logits.float() / temperature).log_softmax(-1)
        recorded.append(logp.gather(-1, token[:, None])[:, 0])
        return token

    out = generate(
        policy,
        ADD.sample(2, random.Random(seed)),
        num_samples=8,
        temperature=temperature,
        generator=torch.Generator(policy.device).manual_seed(seed),
        sample_tokens=sample,
    )
    return out, torch.stack(recorded, 1)
