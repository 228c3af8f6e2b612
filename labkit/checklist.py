"""Before a run: what the field reports' checklists ask, read off the model, the tokenizer and the trainer's arguments.

    print(labkit.preflight(model, tokenizer, args, reward=my_reward, prompts=my_prompts))

Each item is ok, look or stop, with what was measured and the way out. Nothing is trained, and nothing of yours is
changed; with `prompts` a few completions are sampled, with `reward` the reward function is called on answers that break
careless ones. It reads attributes by the names of TRL's `GRPOConfig`; what `args` does not have is not judged.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import checks, grads, launch, memory
from .common import format_size, number
from .findings import LOOK, OK, STOP, Finding, as_text


@dataclass(frozen=True, repr=False)
class Preflight:
    """The checklist. `bool(preflight)` is False when an item says stop."""

    items: tuple[Finding, ...]

    def __bool__(self) -> bool:
        return all(item.level != STOP for item in self.items)

    def __getitem__(self, name: str) -> Finding:
        for item in self.items:
            if item.name == name:
                return item
        raise KeyError(f"no item {name!r}; there are {', '.join(item.name for item in self.items)}")

    def __repr__(self) -> str:
        return as_text(self.items)


def preflight(
    model: Any,
    tokenizer: Any,
    args: Any,
    *,
    reward: Callable[..., Sequence[float]] | None = None,
    prompts: Sequence[str] | None = None,
) -> Preflight:
    """Check a run before it starts.

    model, tokenizer   transformers'
    args               a GRPOConfig, or anything with its attributes
    reward             called as TRL calls it: reward(prompts=[...], completions=[...]) -> one number per completion
    prompts            a few; one group of completions is sampled for each of the first two

    Raises: TypeError when `model` is no torch module.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"preflight: model must be a torch module, got {type(model).__name__}")
    items = [
        *_ids(model, tokenizer),
        *_padding(tokenizer),
        *_lengths(model, args),
        *_group(args),
        *_sampling(model, args),
    ]
    items += [*_step(model, args), *_weights(model, args), *_launch(args), *_allocator(), *_memory(model)]
    if reward is not None:
        items.append(_reward(reward, list(prompts or ["1+1="])[0]))
    if prompts:
        items += _completions(model, tokenizer, args, list(prompts)[:2])
    return Preflight(tuple(items))


def _ids(model: Any, tokenizer: Any) -> Iterator[Finding]:
    report = checks.token_ids(tokenizer, model)
    sizes = [report.seen.get(name) for name in ("largest id", "input embedding rows", "output layer rows")]
    facts = "largest id {}, {} input rows, {} output rows".format(*sizes)
    if report.passed is False:
        yield Finding("token ids", STOP, f"{facts}; {report.seen['text']} is outside", report.hint)
    else:
        yield Finding("token ids", OK if report and not report.caution else LOOK, facts, report.caution or report.hint)


def _padding(tokenizer: Any) -> Iterator[Finding]:
    pad, eos, side = tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.padding_side
    facts = f"pad {pad}, eos {eos}, side {side}"
    if pad is None:
        yield Finding("padding", STOP, facts, "tokenizer.pad_token = tokenizer.eos_token, or a token of its own")
    elif side != "left":
        yield Finding("padding", LOOK, facts, 'generation needs padding_side="left"; TRL pads by itself')
    elif pad == eos:
        yield Finding("padding", LOOK, facts, "pad is eos: a mask of `ids != pad` drops the end that was really drawn")
    else:
        yield Finding("padding", OK, facts)


def _lengths(model: Any, args: Any) -> Iterator[Finding]:
    room = getattr(model.config, "max_position_embeddings", None) or getattr(model.config, "n_positions", None)
    prompt, completion = getattr(args, "max_prompt_length", None), getattr(args, "max_completion_length", None)
    if room is None or completion is None:
        return
    asked = (prompt or 0) + completion
    facts = f"{prompt or 'prompts of any length'} + {completion} of {room} positions"
    if asked > room:
        yield Finding("lengths", STOP, facts, "shorten prompt or completion: an absolute position has no row beyond")
    else:
        yield Finding("lengths", OK, facts)


def _group(args: Any) -> Iterator[Finding]:
    size = getattr(args, "num_generations", None)
    if size is None:
        return
    if size < 2:
        yield Finding(
            "group", STOP, f"{size} completion per prompt", "a group needs at least two: its advantage is a difference"
        )
        return
    batch, processes = getattr(args, "per_device_train_batch_size", None), int(os.environ.get("WORLD_SIZE", 1))
    steps = getattr(args, "steps_per_generation", None) or getattr(args, "gradient_accumulation_steps", 1) or 1
    whole = getattr(args, "generation_batch_size", None) or (batch or size) * processes * steps
    facts = f"{whole} completions per generation in groups of {size}: {processes} processes x {batch} x {steps}"
    if whole % size:
        yield Finding(
            "group", STOP, facts, "make processes x per_device_train_batch_size x steps a multiple of num_generations"
        )
    elif whole // size == 1:
        yield Finding("group", LOOK, facts, "one group per update: one tied group is an update without a gradient")
    else:
        yield Finding("group", OK, facts)


def _sampling(model: Any, args: Any) -> Iterator[Finding]:
    temperature, top_p, top_k = (getattr(args, name, None) for name in ("temperature", "top_p", "top_k"))
    facts = f"temperature {temperature}, top_p {top_p}, top_k {top_k}"
    if temperature is not None and not temperature > 0:
        yield Finding("sampling", STOP, facts, "a temperature above 0: the logits are divided by it")
    elif (top_p not in (None, 1.0)) or (top_k or 0) > 0:
        yield Finding(
            "sampling", LOOK, facts, "scores are not truncated as samples are: the ratio is biased by what was cut"
        )
    else:
        yield Finding("sampling", OK, facts)
    own = getattr(model, "generation_config", None)
    names = {
        "temperature": (None, 1.0),
        "top_p": (None, 1.0),
        "top_k": (None, 0, 50),
        "repetition_penalty": (None, 1.0),
    }
    set_by_model = {n: getattr(own, n, None) for n, usual in names.items() if getattr(own, n, None) not in usual}
    if set_by_model:
        words = ", ".join(f"{name} {value}" for name, value in set_by_model.items())
        yield Finding("the model's own settings", LOOK, words, "pass each of them to generate() yourself; lesson 08")


def _step(model: Any, args: Any) -> Iterator[Finding]:
    rate, beta = getattr(args, "learning_rate", None), getattr(args, "beta", None)
    if rate is not None:
        large = rate >= 1e-3 and "sgd" not in str(getattr(args, "optim", ""))
        way = "AdamW moves every parameter by about the rate in its first step" if large else ""
        yield Finding("learning rate", LOOK if large else OK, number(rate), way)
    if beta is not None:
        meaning = "no reference is loaded and no KL is logged" if beta == 0 else "the KL is in the loss"
        yield Finding("beta", OK, f"{number(beta)}: {meaning}")
    clip = getattr(args, "max_grad_norm", None)
    if clip is not None and (clip <= 0 or clip > 100):
        yield Finding(
            "clipping", LOOK, f"max_grad_norm {number(clip)}", "callbacks=[labkit.GuardCallback()] skips what ruins"
        )
    if getattr(args, "logging_nan_inf_filter", False):
        way = "logging_nan_inf_filter=False: else a NaN loss is logged as the mean of those before, 0 at the start"
        yield Finding("NaN in the log", LOOK, "a NaN loss will not be facts", way)


def _weights(model: Any, args: Any) -> Iterator[Finding]:
    params = grads.trainable(model)
    count, dtypes = sum(p.numel() for p in params), sorted({str(p.dtype).removeprefix("torch.") for p in params})
    facts = f"{count:,} trainable parameters, {', '.join(dtypes) or 'none'}"
    rate = getattr(args, "learning_rate", None)
    if not params:
        yield Finding("weights", STOP, facts, "is_trainable=True when the adapter is loaded, or unfreeze something")
    elif "float16" in dtypes:
        yield Finding("weights", STOP, facts, "train in bfloat16 or float32: fp16 weights round most updates away")
    elif "bfloat16" in dtypes and rate is not None:
        middle = float(torch.cat([p.detach().flatten()[:4096].float().abs() for p in params[:50]]).median())
        lost = rate < middle * 2**-9
        way = "an update of the rate's size is rounded away at the median weight: keep float32 masters" if lost else ""
        yield Finding("weights", LOOK if lost else OK, f"{facts}, median weight {number(middle)}", way)
    else:
        yield Finding("weights", OK, facts)
    if not getattr(args, "gradient_checkpointing", False) or model.get_input_embeddings().weight.requires_grad:
        return
    if (getattr(args, "gradient_checkpointing_kwargs", None) or {}).get("use_reentrant", True):
        way = 'model.enable_input_require_grads(), or gradient_checkpointing_kwargs={"use_reentrant": False}'
        yield Finding("checkpointing", LOOK, "re-entrant, over a frozen embedding", way)


def _launch(args: Any) -> Iterator[Finding]:
    started = launch.launched(cpu=bool(getattr(args, "use_cpu", False)))
    yield Finding("launch", STOP if started.trouble else OK, str(started), started.way_out)


def _allocator() -> Iterator[Finding]:
    settings = memory.allocator_settings()
    text = " ".join(str(settings).split())[:160]
    yield Finding("allocator", LOOK if settings.agree is False else OK, text)


def _memory(model: Any) -> Iterator[Finding]:
    params, whole = grads.trainable(model), sum(p.numel() * p.element_size() for p in model.parameters())
    state = sum(p.numel() * (p.element_size() + 2 * p.element_size()) for p in params)
    facts = (
        f"weights {format_size(whole)}, gradients and AdamW's two moments {format_size(state)}, before any activation"
    )
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None
    if free is not None and state > free:
        yield Finding(
            "memory", STOP, f"{facts}; {format_size(free)} are free", "LoRA, an 8-bit optimizer, or more cards"
        )
    else:
        yield Finding("memory", OK, facts)


def _reward(reward: Callable[..., Sequence[float]], prompt: str) -> Finding:
    answers = ["", prompt, "I cannot help with that.", "NaN", "9" * 50]
    try:
        rewards = [float(value) for value in reward(prompts=[prompt] * len(answers), completions=answers)]
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"[:120]
        return Finding(
            "reward", STOP, f"raised on odd answers: {problem}", "catch it, and give a number for every completion"
        )
    odd = [repr(a[:12]) for a, value in zip(answers, rewards, strict=False) if not math.isfinite(value)]
    if len(rewards) != len(answers):
        return Finding(
            "reward", STOP, f"{len(rewards)} rewards for {len(answers)} completions", "one number per completion"
        )
    if odd:
        return Finding("reward", STOP, f"not finite for {', '.join(odd)}", "math.isfinite before you return it")
    return Finding("reward", OK, f"{', '.join(map(number, rewards))} for empty, echoed, refusing, NaN, and fifty nines")


@torch.no_grad()
def _completions(model: Any, tokenizer: Any, args: Any, prompts: list[str]) -> Iterator[Finding]:
    size, limit = (
        max(getattr(args, "num_generations", 8) or 8, 2),
        min(getattr(args, "max_completion_length", 32) or 32, 64),
    )
    training, distinct, cut = model.training, [], 0
    model.eval()
    try:
        for prompt in prompts:
            ids = tokenizer(prompt, return_tensors="pt").input_ids.to(next(model.parameters()).device)
            temperature = getattr(args, "temperature", 1.0) or 1.0
            given = {"do_sample": True, "temperature": temperature, "top_k": 0, "num_return_sequences": size}
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=limit,
                pad_token_id=tokenizer.pad_token_id,
                **given,
            )
            answers = out[:, ids.shape[1] :]
            distinct.append(len({tuple(row.tolist()) for row in answers}))
            ends = (answers == tokenizer.eos_token_id).any(1) if tokenizer.eos_token_id is not None else None
            cut += int((~ends).sum()) if ends is not None else len(answers)
    finally:
        model.train(training)
    share = cut / (size * len(prompts))
    words = f"{', '.join(map(str, distinct))} distinct of {size}"
    yield Finding(
        "completions",
        LOOK if min(distinct) == 1 else OK,
        words,
        "print them: lessons 04 and 08" if min(distinct) == 1 else "",
    )
    way = "the template may never emit EOS, or max_completion_length is too short" if share > 0.5 else ""
    yield Finding("end of text", LOOK if share > 0.5 else OK, f"{share:.0%} of {limit} tokens end without it", way)
