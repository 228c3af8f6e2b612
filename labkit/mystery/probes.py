"""What a learner can pay for: each probe measures one thing on the run itself, at its last round.

A probe takes the `Scene` of a run and returns numbers; `usual` says what they are where nothing is wrong with what it
looks at, in words and as a condition. No probe knows which failure was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from labkit import advantage, grads, loss, sampling
from labkit.policy import token_logprobs

from .scene import Scene, holding_graphs

Found = dict[str, Any]


@dataclass(frozen=True)
class Probe:
    """price in points; what it measures; what is usual, in words; whether numbers are usual."""

    price: int
    measures: str
    usual: str
    look: Callable[[Scene], Found]
    is_usual: Callable[[Found], bool]


def completions(scene: Scene) -> Found:
    batch = scene.last
    n, texts = batch.out.num_samples, batch.out.texts
    ties = sampling.ties(texts, batch.rewards.tolist(), n)
    shown = [f"{text!r} {reward:g}" for text, reward in zip(texts[:4], batch.rewards.tolist(), strict=False)]
    tied = advantage.zero_std_fraction(batch.rewards, n)
    return {"groups of one text": ties.identical / ties.groups, "tied groups": tied, "the first four": ", ".join(shown)}


def first_tokens(scene: Scene) -> Found:
    batch, n = scene.last, scene.last.out.num_samples
    groups = batch.out.tokens[:, 0].view(-1, n).tolist()
    chances = torch.cat([logits[:, 0].softmax(-1) for _, _, logits in scene.rounds[-1]])[::n]  # [P, V]
    expected = (1 - (1 - chances) ** n).sum(-1).mean().item()
    return {"distinct per group": sum(len(set(g)) for g in groups) / len(groups), "expected": expected}


def counted(scene: Scene) -> Found:
    ended = scene.after_the_end(scene.last)
    mask = scene.last.mask.bool()
    return {"counted tokens": int(mask.sum()), "of them after the end": int((mask & ended).sum())}


@torch.no_grad()
def parameters(scene: Scene) -> Found:
    now = list(scene.policy.model.parameters())
    changed = sum(int((a != b).sum()) for a, b in zip(now, scene.start, strict=True))
    far = math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(now, scene.start, strict=True)))
    length = math.sqrt(sum(float(b.square().sum()) for b in scene.start))
    return {"not finite": grads.health(scene.policy.model).nonfinite, "changed": changed, "way / length": far / length}


def ratios(scene: Scene) -> Found:
    """Of the last update: policy against the policy of the rollout, and against the reference."""
    old = torch.cat([(logp - part.old_logp)[part.mask.bool()] for part, logp, _ in scene.parts])
    ref = torch.cat([(logp - part.ref_logp)[part.mask.bool()] for part, logp, _ in scene.parts])
    outside = ((old.exp() - 1).abs() > 0.2).float().mean().item()
    return {
        "ratio, largest": old.max().exp().item(),
        "outside 0.8..1.2": outside,
        "log-ratio to the reference, largest": ref.abs().max().item(),
    }


def temperature(scene: Scene) -> Found:
    """Read off all tokens of the run, each against the logits of the policy of its round."""
    logits, tokens = [], []
    for part, _, at in (one for parts in scene.rounds for one in parts):
        counts = part.mask.bool() & ~scene.after_the_end(part) & at.isfinite().all(-1)
        logits.append(at[counts])
        tokens.append(part.out.tokens[counts])
    read = sampling.estimate_temperature(torch.cat(logits), torch.cat(tokens), confidence=0.9999)
    asked = scene.settings.get("temperature", 1.0)  # the logits were divided by it
    return {"asked": asked, "measured, from": read.low * asked, "to": read.high * asked, "verdict": read.verdict}


def on_policy(scene: Scene) -> Found:
    """Mean log-prob of what was drawn, less what the policy's own draws would have, in standard errors."""
    return {"first round": _surprise(scene, scene.rounds[0]), "last round": _surprise(scene, scene.rounds[-1])}


def _surprise(scene: Scene, parts: list[Any]) -> float:
    gap, variance = 0.0, 0.0
    for part, logp, logits in parts:
        counts = part.mask.bool() & ~scene.after_the_end(part)
        logps = logits.log_softmax(-1)
        mean = (logps.exp() * logps).sum(-1)
        spread = (logps.exp() * logps.square()).sum(-1) - mean.square()
        gap += float((logp - mean)[counts].sum())
        variance += float(spread[counts].sum())
    return gap / math.sqrt(variance) if variance > 0 else math.nan


def micro_batches(scene: Scene) -> Found:
    """The gradient of each micro-batch alone, of all together, and what the run's own loop makes of them."""
    model = scene.policy.model
    params, tokens = grads.trainable(model), float(scene.last.mask.sum())

    def losses() -> Any:
        for part, _, _ in scene.parts:
            length = part.mask.shape[1]
            logp, _ = token_logprobs(model, part.out.ids, part.out.attention_mask, length, **scene.scaling)
            yield loss.token_mean(loss.grpo(logp, logp.detach(), part.advantages).loss, part.mask, tokens)

    each = [torch.autograd.grad(one, params) for one in losses()]
    handed = scene.inner_update(model, torch.optim.SGD(params, lr=1e-30), losses(), grads.plain_step).norm
    alone = [float(torch.nn.utils.get_total_norm(list(g))) for g in each]
    total = float(torch.nn.utils.get_total_norm([torch.stack(g).sum(0) for g in zip(*each, strict=True)]))
    return {"norm of each": ", ".join(f"{norm:.3g}" for norm in alone), "of their sum": total, "handed over": handed}


def memory(scene: Scene) -> Found:
    alive = holding_graphs() - scene.held_before
    grown = (scene.memory[-1] - scene.memory[min(2, len(scene.memory) - 1)]) / 2**20
    return {"results that hold a graph": alive, "process, MiB since round 2": grown}


def pull(scene: Scene) -> Found:
    return {"KL term, hardest at a token": scene.kl_pull, "reward, hardest": scene.reward_pull}


PROBES: dict[str, Probe] = {
    "completions": Probe(
        1, "the texts of one group; groups that are one text, and groups with one reward",
        "most groups have several texts and several rewards", completions,
        lambda f: f["groups of one text"] < 0.9 and f["tied groups"] < 0.95,
    ),
    "first tokens": Probe(
        1, "distinct first tokens per group, and how many the policy's own probabilities would give",
        "both alike", first_tokens, lambda f: f["distinct per group"] > 1 or f["expected"] < 1.1,
    ),
    "counted tokens": Probe(
        1, "tokens that the mask counts, and those of them behind the end of the text",
        "none behind the end", counted, lambda f: f["of them after the end"] == 0,
    ),
    "parameters": Probe(
        1, "parameters that are not finite; that changed; how far, as a share of their length",
        "all finite, most changed, a way of 0.001 to 0.1", parameters,
        lambda f: f["not finite"] == 0 < f["changed"] and f["way / length"] < 0.5,
    ),
    "ratios": Probe(
        1, "ratio to the policy of the rollout and to the reference, in the last update",
        "a few times 1 at most, and a log-ratio below 12", ratios,
        lambda f: f["log-ratio to the reference, largest"] < 12,
    ),
    "temperature": Probe(
        2, "the temperature of what was drawn, read off the tokens", "the one that was asked for", temperature,
        lambda f: f["measured, from"] <= f["asked"] <= f["to"],
    ),
    "on policy": Probe(
        2, "log-probs of what was drawn, less those of the policy's own draws, in standard errors",
        "between -4 and 4 in every round", on_policy, lambda f: all(not abs(z) > 4 for z in f.values()),
    ),
    "micro-batches": Probe(
        3, "the gradient of each micro-batch, of their sum, and what the loop hands to the optimizer",
        "what is handed over is the sum", micro_batches,
        lambda f: not abs(f["handed over"] - f["of their sum"]) > 0.01 * f["of their sum"],
    ),
    "memory": Probe(
        2, "results that still hold a graph, and what the process has grown by", "one or two results, some MiB",
        memory, lambda f: f["results that hold a graph"] < 4,
    ),
    "pull": Probe(
        2, "the hardest pull at any token, of the KL term and of the reward", "the reward's is the harder", pull,
        lambda f: f["KL term, hardest at a token"] <= 10 * f["reward, hardest"],
    ),
}  # fmt: skip
