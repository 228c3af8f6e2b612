"""Before a run: what the field reports' checklists ask, read off the model, the tokenizer and the trainer's arguments.

    print(labkit.preflight(model, tokenizer, args, reward=my_reward, prompts=my_prompts))

Each item is ok, look or stop, with what was measured and the way out. Nothing is trained, and nothing of yours is
changed; with `prompts` a few completions are sampled, with `reward` the reward function is called on answers that break
careless ones. It reads attributes by the names of TRL's `GRPOConfig`; what `args` does not have is not judged.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from labkit.grpo import grads
from labkit.grpo.exam import evaluating

from . import checks, launch, memory
from .common import format_size, number
from .findings import LOOK, OK, STOP, Finding, as_text

Settings = dict[str, Any]  # the trainer's arguments, by name


@dataclass(frozen=True, repr=False)
class Preflight:
    """The checklist. `bool(preflight)` is False when an item says stop."""

    items: tuple[Finding, ...]

    def __bool__(self) -> bool:
        return all(item.level != STOP for item in self.items)

    def __repr__(self) -> str:
        return as_text(self.items)


def preflight(
    model: Any,
    tokenizer: Any,
    args: Any,
    *,
    reward: Callable[..., Any] | None = None,
    prompts: Sequence[Any] | None = None,
    reference: Any = None,
    optimizer: Any = None,
) -> Preflight:
    """Check a run before it starts.

    model, tokenizer   transformers'
    args               a GRPOConfig, or anything with its attributes
    reward             called as TRL calls it: reward(prompts=[...], completions=[...], ...) -> a number for each, or
                       None where there is no reward; may be async
    prompts            a few: texts, conversations, or rows of the data set, whose other columns the reward gets; one
                       group of completions is sampled for each of the first two
    reference          the reference model, where it is a model of its own
    optimizer          the one that will step
    """
    settings = vars(args)
    items = [*_ids(model, tokenizer), *_padding(tokenizer), *_lengths(model, settings), *_group(settings)]
    items += [*_sampling(model, settings), *_step(settings), *_weights(model, settings)]
    started = launch.launched(cpu=bool(settings.get("use_cpu")))
    items.append(Finding("launch", STOP if started.trouble else OK, str(started), started.way_out))
    allocator = memory.allocator_settings()
    items.append(Finding("allocator", LOOK if allocator.agree is False else OK, str(allocator)[:160]))
    items += _memory(model)
    items += _dropout(model, settings)
    if reference is not None:
        items.append(_reference(model, reference))
    if optimizer is not None:
        items.append(_optimizer(model, optimizer))
    rows = [_row(prompt) for prompt in prompts or ()]
    if reward is not None:
        items += _reward(reward, rows or [{"prompt": "1+1="}])
    if rows:
        items += _first_tokens(tokenizer, rows)
        items += _completions(model, tokenizer, settings, rows[:2])
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


def _lengths(model: Any, settings: Settings) -> Iterator[Finding]:
    room = getattr(model.config, "max_position_embeddings", None)  # GPT-2's n_positions goes by this name too
    prompt, completion = settings.get("max_prompt_length"), settings.get("max_completion_length")
    if room is None or completion is None:
        return
    facts = f"{prompt or 'prompts of any length'} + {completion} of {room} positions"
    if (prompt or 0) + completion > room:
        yield Finding("lengths", STOP, facts, "shorten prompt or completion: an absolute position has no row beyond")
    else:
        yield Finding("lengths", OK, facts)


def _group(settings: Settings) -> Iterator[Finding]:
    size = settings.get("num_generations")
    if size is None:
        return
    if size < 2:
        way_out = "a group needs at least two: its advantage is a difference"
        yield Finding("group", STOP, f"{size} completion per prompt", way_out)
        return
    batch, processes = settings.get("per_device_train_batch_size"), int(os.environ.get("WORLD_SIZE", 1))
    steps = settings.get("steps_per_generation") or settings.get("gradient_accumulation_steps") or 1
    whole = settings.get("generation_batch_size") or (batch or size) * processes * steps
    facts = f"{whole} completions per generation in groups of {size}: {processes} processes x {batch} x {steps}"
    if whole % size:
        way_out = "make processes x per_device_train_batch_size x steps a multiple of num_generations"
        yield Finding("group", STOP, facts, way_out)
    elif whole // size == 1:
        yield Finding("group", LOOK, facts, "one group per update: one tied group is an update without a gradient")
    else:
        yield Finding("group", OK, facts)


def _sampling(model: Any, settings: Settings) -> Iterator[Finding]:
    temperature, top_p, top_k = (settings.get(name) for name in ("temperature", "top_p", "top_k"))
    facts = f"temperature {temperature}, top_p {top_p}, top_k {top_k}"
    if temperature is not None and not temperature > 0:
        yield Finding("sampling", STOP, facts, "a temperature above 0: the logits are divided by it")
    elif (top_p not in (None, 1.0)) or (top_k or 0) > 0:
        way_out = "scores are not truncated as samples are: the ratio is biased by what was cut"
        yield Finding("sampling", LOOK, facts, way_out)
    else:
        yield Finding("sampling", OK, facts)
    usual: dict[str, list[float]] = {"temperature": [1], "top_p": [1], "top_k": [0, 50], "repetition_penalty": [1]}
    set_by_model = []
    for name, values in usual.items():
        value = getattr(getattr(model, "generation_config", None), name, None)
        if value is not None and value not in values:
            set_by_model.append(f"{name} {value}")
    if set_by_model:
        way_out = "pass each of them to generate() yourself; lesson 08"
        yield Finding("the model's own settings", LOOK, ", ".join(set_by_model), way_out)


def _step(settings: Settings) -> Iterator[Finding]:
    rate, beta, clip = (settings.get(name) for name in ("learning_rate", "beta", "max_grad_norm"))
    optimizer = settings.get("optim")
    optimizer = str(getattr(optimizer, "value", optimizer)).lower()  # transformers' OptimizerNames, or a text
    if rate is not None and rate >= 1e-3 and "sgd" not in optimizer:
        way_out = "AdamW moves every parameter by about the rate in its first step"
        yield Finding("learning rate", LOOK, number(rate), way_out)
    elif rate is not None:
        yield Finding("learning rate", OK, number(rate))
    if beta is not None:
        meaning = "no reference is loaded and no KL is logged" if beta == 0 else "the KL is in the loss"
        yield Finding("beta", OK, f"{number(beta)}: {meaning}")
    if clip is not None and not 0 < clip <= 100:
        way_out = "callbacks=[labkit.GuardCallback()] skips what ruins"
        yield Finding("clipping", LOOK, f"max_grad_norm {number(clip)}", way_out)
    if settings.get("logging_nan_inf_filter"):
        way_out = "logging_nan_inf_filter=False: else a NaN loss is logged as the mean of those before, 0 at the start"
        yield Finding("NaN in the log", LOOK, "a NaN loss will not be seen", way_out)


def _weights(model: Any, settings: Settings) -> Iterator[Finding]:
    params = grads.trainable(model)
    count, dtypes = sum(p.numel() for p in params), sorted({str(p.dtype).removeprefix("torch.") for p in params})
    facts = f"{count:,} trainable parameters, {', '.join(dtypes) or 'none'}"
    rate = settings.get("learning_rate")
    if not params:
        yield Finding("weights", STOP, facts, "is_trainable=True when the adapter is loaded, or unfreeze something")
    elif "float16" in dtypes:
        yield Finding("weights", STOP, facts, "train in bfloat16 or float32: fp16 weights round most updates away")
    elif "bfloat16" in dtypes and rate is not None:
        middle = float(torch.cat([p.detach().flatten()[:4096].float().abs() for p in params[:50]]).median())
        lost = rate < middle * 2**-9  # half of a bfloat16's last digit
        way_out = "an update of the rate's size is rounded away at the median weight: keep float32 masters"
        facts = f"{facts}, median weight {number(middle)}"
        yield Finding("weights", LOOK if lost else OK, facts, way_out if lost else "")
    else:
        yield Finding("weights", OK, facts)
    if not settings.get("gradient_checkpointing") or model.get_input_embeddings().weight.requires_grad:
        return
    if (settings.get("gradient_checkpointing_kwargs") or {}).get("use_reentrant", True):
        way_out = 'model.enable_input_require_grads(), or gradient_checkpointing_kwargs={"use_reentrant": False}'
        yield Finding("checkpointing", LOOK, "re-entrant, over a frozen embedding", way_out)


def _memory(model: Any) -> Iterator[Finding]:
    weights = sum(p.nbytes for p in model.parameters())
    state = 3 * sum(p.nbytes for p in grads.trainable(model))
    facts = f"weights {format_size(weights)}, gradients and AdamW's two moments {format_size(state)}"
    facts += ", before any activation"
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else math.inf
    if state > free:
        facts += f"; {format_size(free)} are free"
        yield Finding("memory", STOP, facts, "LoRA, an 8-bit optimizer, or more cards")
    else:
        yield Finding("memory", OK, facts)


def _dropout(model: Any, settings: Settings) -> Iterator[Finding]:
    acting = grads.dropouts(model)
    if not acting or settings.get("disable_dropout"):
        return
    facts = f"acts in {len(acting)} places: {', '.join(acting[:2])}"
    way_out = "disable_dropout=True, or p = 0: else two scores of one token differ, and the ratio is not 1"
    yield Finding("dropout", LOOK, facts, way_out)


def _reference(model: Any, reference: Any) -> Finding:
    shared = grads.shared_with(model, reference)
    if shared:
        facts = f"shares {len(shared)} trainable parameters with the policy: {shared[0]}"
        return Finding("reference", STOP, facts, "copy.deepcopy(model): else the KL is 0 for ever")
    return Finding("reference", OK, "shares no trainable parameter with the policy")


def _optimizer(model: Any, optimizer: Any) -> Finding:
    missing, others = grads.apart_from(model, optimizer)
    if missing or others:
        facts = f"{len(missing)} trainable parameters are not in it, {others} of it are not the model's"
        way_out = "make it last, of the model as it is trained: after adapters, after copies"
        return Finding("optimizer", STOP, facts, way_out)
    return Finding("optimizer", OK, "holds the model's trainable parameters, and no others")


def _row(prompt: Any) -> dict[str, Any]:
    """A row of a data set: with the key "prompt", and columns for the reward."""
    if isinstance(prompt, dict) and "prompt" in prompt:
        return prompt
    return {"prompt": prompt}


ODD_ANSWERS = ("", "", "I cannot help with that.", "NaN", "9" * 50)  # the second becomes the prompt's own text
ALWAYS_GIVEN = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}


def _reward(reward: Callable[..., Any], rows: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    try:
        parameters = list(inspect.signature(reward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    lacking = [p.name for p in named if p.default is p.empty and p.name not in ALWAYS_GIVEN | set(rows[0])]
    if lacking:
        facts = f"needs the column {', '.join(map(repr, lacking))}, and the prompts here bring none"
        yield Finding("reward", LOOK, facts, "prompts=[...]: rows of the data set, with all their columns")
        return
    accepted = None if takes_all or not parameters else {p.name for p in named}
    answered = [(rows[at % len(rows)], answer) for at, answer in enumerate(ODD_ANSWERS)]
    answered[1] = (answered[1][0], _text_of(answered[1][0]["prompt"]))
    try:
        rewards = _ask(reward, answered, accepted)
        again = _ask(reward, answered, accepted)
        backwards = _ask(reward, answered[::-1], accepted)[::-1]
    except Exception as error:
        facts = f"raised on odd answers: {f'{type(error).__name__}: {error}'[:120]}"
        yield Finding("reward", STOP, facts, "catch it, and give a number for every completion, or None for none")
        return
    if len(rewards) != len(answered):
        facts = f"{len(rewards)} rewards for {len(answered)} completions"
        yield Finding("reward", STOP, facts, "one number per completion")
        return
    yield _values_of_rewards(rewards, [answer for _, answer in answered])
    yield from _order_of_rewards(rewards, again, backwards)
    if accepted is not None and "completion_ids" not in accepted:
        facts = f"takes {', '.join(sorted(accepted))} alone"
        yield Finding("reward's arguments", LOOK, facts, "add **kwargs: TRL gives completion_ids and more by name")


def _ask(
    reward: Callable[..., Any], answered: Sequence[tuple[dict[str, Any], str]], accepted: set[str] | None
) -> list[float | None]:
    """As TRL 1.16 does: every argument by name, the data set's columns among them."""
    rows = [row for row, _ in answered]
    given: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    given |= {"prompts": [row["prompt"] for row in rows], "completions": [_completion(*one) for one in answered]}
    given |= {"completion_ids": [[0] for _ in rows], "trainer_state": SimpleNamespace(global_step=0)}
    given |= {"log_extra": lambda *_: None, "log_metric": lambda *_: None}
    if accepted is not None:
        given = {name: value for name, value in given.items() if name in accepted}
    answer = reward(**given)
    if inspect.isawaitable(answer):  # in a thread: a notebook has a loop of its own

        async def awaited() -> Any:
            return await answer

        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(asyncio.run, awaited()).result()
    return [None if value is None else float(value) for value in answer]


def _completion(row: dict[str, Any], answer: str) -> Any:
    """A text; to a conversation, a message."""
    if isinstance(row["prompt"], list):
        return [{"role": "assistant", "content": answer}]
    return answer


def _text_of(prompt: Any) -> str:
    if isinstance(prompt, list):
        return str(prompt[-1].get("content", ""))
    return str(prompt)


def _values_of_rewards(rewards: Sequence[float | None], answers: Sequence[str]) -> Finding:
    pairs = list(zip(answers, rewards, strict=True))
    infinite = [repr(answer[:12]) for answer, value in pairs if value is not None and math.isinf(value)]
    if infinite:
        return Finding("reward", STOP, f"infinite for {', '.join(infinite)}", "math.isfinite before you return it")
    nans = [repr(answer[:12]) for answer, value in pairs if value is not None and math.isnan(value)]
    if nans:
        way_out = "None is how to say that there is no reward; TRL takes NaN for it too"
        return Finding("reward", LOOK, f"NaN for {', '.join(nans)}", way_out)
    shown = ", ".join("none" if value is None else number(value) for value in rewards)
    return Finding("reward", OK, f"{shown} for empty, echoed, refusing, NaN, and fifty nines")


def _order_of_rewards(
    rewards: Sequence[float | None], again: Sequence[float | None], backwards: Sequence[float | None]
) -> Iterator[Finding]:
    """The same rows in another order have the same rewards, each its own."""
    first, second, third = (list(map(repr, values)) for values in (rewards, again, backwards))
    if first == third:
        return
    if first != second and sorted(first) != sorted(third):
        way_out = "a reward that is drawn, or a judge that is: the same answer may be good and bad"
        yield Finding("reward order", LOOK, "differs from call to call", way_out)
        return
    facts = "the same rows in another order get other rewards"
    way_out = "one for each completion, in their order: asyncio.gather keeps it, as_completed does not"
    yield Finding("reward order", STOP, facts, way_out)


def _token_ids(tokenizer: Any, prompt: Any) -> Any:
    """[1, T], as TRL has them: a conversation through the chat template, a text as it is."""
    if isinstance(prompt, list):
        options = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
        return tokenizer.apply_chat_template(prompt, **options)["input_ids"]
    return tokenizer(prompt, return_tensors="pt").input_ids


def _first_tokens(tokenizer: Any, rows: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    begin = getattr(tokenizer, "bos_token_id", None)
    if begin is None:
        return
    for row in rows[:8]:
        ids = _token_ids(tokenizer, row["prompt"])[0].tolist()
        if ids[:2] == [begin, begin]:
            facts = f"{_text_of(row['prompt'])[:40]!r} begins with two of {tokenizer.bos_token!r}"
            way_out = "the chat template writes one and the tokenizer adds one: take it out of the text"
            yield Finding("beginning", STOP, facts, way_out)
            return


def _completions(model: Any, tokenizer: Any, settings: Settings, asked: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    size = max(settings.get("num_generations") or 8, 2)
    limit = min(settings.get("max_completion_length") or 32, 64)
    options = {"do_sample": True, "temperature": settings.get("temperature") or 1.0, "top_k": 0}
    options |= {"num_return_sequences": size, "max_new_tokens": limit, "pad_token_id": tokenizer.pad_token_id}
    distinct, ended = [], 0
    for row in asked:
        ids = _token_ids(tokenizer, row["prompt"]).to(next(model.parameters()).device)
        with torch.no_grad(), evaluating(model):
            rows = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[:, ids.shape[1] :]
        distinct.append(len(rows.unique(dim=0)))
        if tokenizer.eos_token_id is not None:
            ended += int((rows == tokenizer.eos_token_id).any(1).sum())
    facts = f"{', '.join(map(str, distinct))} distinct of {size}"
    if min(distinct) == 1:
        yield Finding("completions", LOOK, facts, "print them: lessons 04 and 08")
    else:
        yield Finding("completions", OK, facts)
    share = 1 - ended / (size * len(asked))
    facts = f"{share:.0%} of {limit} tokens end without it"
    if share > 0.5:
        way_out = "the template may never emit EOS, or max_completion_length is too short"
        yield Finding("end of text", LOOK, facts, way_out)
    else:
        yield Finding("end of text", OK, facts)
