"""Flags for transformers' `generate` that do what they say, and processors for its `logits_processor`.

Read off transformers 5.23 (generation/configuration_utils.py, generation/utils.py) and tried on its `generate`. This
file imports transformers when it is asked, and samples nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

# What decides which tokens are drawn, and the value that leaves the model's own distribution alone. `generate` fills
# what is not given from the model's generation_config, then from defaults of its own, of which top_k = 50 is one.
DRAWING: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": None, "top_h": None}
DRAWING |= {"typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
SCORES: dict[str, Any] = {"num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "bad_words_ids": None}
SCORES |= {"encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0, "sequence_bias": None}
SCORES |= {"suppress_tokens": None, "begin_suppress_tokens": None, "forced_bos_token_id": None}
SCORES |= {"forced_eos_token_id": None, "exponential_decay_length_penalty": None, "guidance_scale": None}
SCORES |= {"watermarking_config": None, "min_length": 0, "min_new_tokens": None}

# What `generate` makes of a flag. Its warpers come after those in `logits_processor`, and do not replace them.
WARPERS = {"temperature": "Temperature", "top_k": "TopK", "top_p": "TopP", "min_p": "MinP", "top_h": "TopH"}
WARPERS |= {"typical_p": "Typical", "epsilon_cutoff": "Epsilon", "eta_cutoff": "Eta"}
PROCESSORS = {"repetition_penalty": "RepetitionPenalty", "no_repeat_ngram_size": "NoRepeatNGram"}

# Outside these `generate` ignores the flag in silence (top_p = 90), or stops in the middle.
RANGES = {"temperature": (1e-6, 1e30), "top_k": (0, math.inf), "top_p": (1e-9, 1.0), "typical_p": (1e-9, 1.0)}
RANGES |= {"min_p": (0.0, 1.0), "epsilon_cutoff": (0.0, 1 - 1e-9), "eta_cutoff": (0.0, 1 - 1e-9)}
NOT_THEIRS = {
    "presence_penalty": "put labkit.sampling.Presence into logits_processor",
    "frequency_penalty": "put labkit.sampling.Frequency into logits_processor",
    "generation_config": "pass its flags one by one: what it leaves at None is filled from the model's own",
    "n": "it is called num_return_sequences",
    "max_tokens": "it is called max_new_tokens",
    "seed": "call torch.manual_seed before",
}


def generation_kwargs(
    model: Any = None, *, do_sample: bool | None = None, logits_processor: Sequence[Any] = (), **flags: Any
) -> dict[str, Any]:
    """`model.generate(ids, **kwargs)` with everything said that decides what is drawn, or a ValueError.

    model             the model, or its generation_config: what it ships and you did not mention is refused, since
                      `generate` would apply it. None: what it ships is overridden by what leaves the distribution alone
    do_sample         True to draw; no flag switches it on by itself
    logits_processor  penalties, `Finite`, and your own; not a temperature or a filter, which have flags
    flags             as for `generate`: temperature, top_k, max_new_tokens, num_return_sequences, ...

    Raises: ValueError names each flag that transformers would ignore or override, and the way out.
    """
    from transformers import GenerationConfig

    theirs = set(GenerationConfig().to_dict()) | {
        "stopping_criteria",
        "streamer",
        "prefix_allowed_tokens_fn",
        "tokenizer",
    }
    wrong = [f"{name}: {NOT_THEIRS.get(name, 'not a flag of generate')}" for name in flags if name not in theirs]
    wrong += _out_of_range(flags) + _ignored(do_sample, flags) + _twice(logits_processor, flags)
    neutral = SCORES | (DRAWING if do_sample else dict.fromkeys(DRAWING))
    if model is not None:
        wrong += _shipped(model, {"do_sample": do_sample} | flags, SCORES | (DRAWING if do_sample else {}))
    if not wrong:
        config = GenerationConfig()
        given: dict[str, Any] = (
            {"do_sample": bool(do_sample)} | {name: v for name, v in neutral.items() if name in theirs} | flags
        )
        config.__dict__.update(given)
        try:  # whatever else the installed version would warn of
            config.validate(strict=True)
        except ValueError as error:
            wrong = [" ".join(str(error).split())]
    if wrong:
        raise ValueError("generation_kwargs: " + "; ".join(wrong))
    if given.get("temperature") is not None:
        given["temperature"] = float(given["temperature"])  # transformers refuses 2
    return given | ({"logits_processor": list(logits_processor)} if logits_processor else {})


def _out_of_range(flags: Mapping[str, Any]) -> list[str]:
    def outside(name: str) -> bool:
        low, high = RANGES[name]
        return flags[name] is not None and not low <= flags[name] <= high

    bad = [name for name in RANGES if name in flags and outside(name)]
    return [f"{n} = {flags[n]}: must be {_range(n)}" for n in bad]


def _range(name: str) -> str:
    low, high = RANGES[name]
    return "0 (off) or more" if high == math.inf else "above 0" if high > 1 else f"from {low:.0f} to {high:.0f}"


def _ignored(do_sample: bool | None, flags: Mapping[str, Any]) -> list[str]:
    """Flags that another flag makes ineffective."""
    wrong, beams = [], flags.get("num_beams") or 1
    if not do_sample:
        asked = [n for n in DRAWING if flags.get(n) is not None and (n == "temperature" or flags[n] != DRAWING[n])]
        wrong += [f"{n} = {flags[n]}: ignored without do_sample=True, decoding is greedy" for n in asked]
        if (flags.get("num_return_sequences") or 1) > beams:
            wrong.append("num_return_sequences: greedy completions are all the same; add do_sample=True")
    elif beams > 1:
        wrong.append("num_beams: beams are chosen, not drawn at the temperature; leave it out, or do_sample=False")
    for name in ("diversity_penalty", "num_beam_groups", "penalty_alpha", "low_memory"):
        if flags.get(name) not in (None, False, 0, 1):
            wrong.append(f"{name}: of a search that transformers 5 no longer has; leave it out")
    for longer, shorter in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
        if flags.get(longer) and flags.get(shorter) is not None:
            wrong.append(f"{longer}: {shorter} overrides it; leave one of them out")
    return wrong


def _twice(processors: Sequence[Any], flags: Mapping[str, Any]) -> list[str]:
    kinds = [parent.__name__ for p in processors for parent in type(p).__mro__]
    warped = [name for name, kind in WARPERS.items() if f"{kind}LogitsWarper" in kinds]
    wrong = [
        f"logits_processor: has a {WARPERS[n]}LogitsWarper, which comes on top of the flag; pass {n}= alone"
        for n in warped
    ]
    doubled = [n for n, kind in PROCESSORS.items() if f"{kind}LogitsProcessor" in kinds and flags.get(n) is not None]
    return wrong + [f"{name}: overridden by the one in logits_processor; leave one of them out" for name in doubled]


def _shipped(model: Any, given: Mapping[str, Any], watched: Mapping[str, Any]) -> list[str]:
    """What the model's own generation_config would add to the call."""
    own = getattr(model, "generation_config", model)
    if not isinstance(own, Mapping) and not hasattr(own, "to_dict"):
        raise ValueError(
            f"generation_kwargs: model is a {type(model).__name__}; expected a model or its generation_config"
        )
    own = own if isinstance(own, Mapping) else own.to_dict()
    wrong = []
    if own.get("do_sample") and given.get("do_sample") is None:
        wrong.append("do_sample: the model's generation_config sets it to True; say which you want")
    for name, neutral in watched.items():
        if own.get(name) not in (None, neutral) and name not in given:
            keep, off = f"{name}={own[name]!r}", f"{name}={neutral!r}"
            wrong.append(
                f"{name}: the model's generation_config sets it; pass {keep} to keep it, {off} to switch it off"
            )
    return wrong


@dataclass(eq=False)
class Presence:
    """Takes `penalty` from the logit of every token that the completion already has. For `logits_processor`.

    prompt_length  columns of the batch that are prompt (with its padding): they do not count. One processor per batch
    """

    penalty: float
    prompt_length: int

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores - self.penalty * _counts(input_ids, self.prompt_length, scores).clamp(max=1)


@dataclass(eq=False)
class Frequency:
    """Takes `penalty` from the logit of a token for each time that the completion has it. As `Presence`."""

    penalty: float
    prompt_length: int

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores - self.penalty * _counts(input_ids, self.prompt_length, scores)


def _counts(input_ids: Tensor, prompt_length: int, scores: Tensor) -> Tensor:
    """How often each token occurs in the completions: [B, V]."""
    completion = input_ids[:, prompt_length:]
    if input_ids.shape[1] < prompt_length:
        raise ValueError(
            f"prompt_length = {prompt_length}, but the rows have {input_ids.shape[1]} tokens; make one per batch"
        )
    return torch.zeros_like(scores).scatter_add_(1, completion, torch.ones_like(completion, dtype=scores.dtype))


@dataclass(eq=False)
class Finite:
    """Sees that no row goes into the draw without a finite logit: a broken row gets the token `end`, and is counted.

    NaN counts as "cannot be drawn", +inf as the largest number there is. It keeps a rollout alive and mends nothing:
    where `rescued` grows, the parameters or a filter are broken.
    """

    end: int
    rescued: int = field(default=0)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        finite = scores.nan_to_num(nan=-math.inf, posinf=torch.finfo(scores.dtype).max, neginf=-math.inf)
        lost = (finite == -math.inf).all(1)
        self.rescued += int(lost.sum())
        finite[lost, self.end] = 0.0
        return finite
