"""Lesson 06: a policy that GRPO trains under autocast, and what each way to a narrow cache changes in its log-probs."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from props.lesson_06 import HALF, SHAPE, Rotation, by_plan, in_memory, rotating_with

from labkit.events import Run
from labkit.grpo import Policy, generate, load, task

# ------------------------------------------------------------------------------------------------ GRPO


class UnderAutocast(transformers.LlamaForCausalLM):
    """Its forward runs under autocast to bfloat16, as accelerate wraps a model that it prepares for mixed precision."""

    casting = True
    largest_cache = 0  # bytes, of any forward that returned a cache

    def forward(self, *args: Any, **settings: Any) -> Any:
        with torch.autocast(self.device.type, HALF, enabled=self.casting):
            out = super().forward(*args, **settings)
        if out.past_key_values is not None:
            self.largest_cache = max(self.largest_cache, in_memory(out.past_key_values))
        return out


def untrained(seed: int, device: str) -> Policy:
    """A Llama with random float32 weights and the tiny policy's 16 tokens, under autocast."""
    torch.manual_seed(seed)
    shape = SHAPE | {"vocab_size": 16, "eos_token_id": 1}
    model: Any = UnderAutocast(transformers.LlamaConfig(**shape))
    return Policy(model.to(device).eval(), load("tiny", "cpu").tokenizer, "llama")


def share_of_sevens(prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
    """The reward: how many of an answer's eight characters are a 7, as a share."""
    return [answer.count("7") / 8 for answer in answers]


def fingerprint(model: Any) -> int:
    """32 bits of a hash of all weights."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return int.from_bytes(digest.digest()[:4], "big")


def different(runs: Sequence[Run], others: Sequence[Run], updates: int = 10) -> int:
    """Updates after which loss, reward or weights are not equal; all that a dead run did not reach are among them."""
    count = 0
    for run, other in zip(runs, others, strict=True):
        equal = 0
        for one, two in zip(run.steps, other.steps, strict=False):
            pairs = (
                (one.loss, two.loss),
                (one.reward, two.reward),
                (one["weights"], two["weights"]),
            )
            equal += all(left == right for left, right in pairs)
        count += updates - equal
    return count


def ends(arms: Mapping[str, Sequence[Run]], seeds: Sequence[int]) -> list[dict[str, str]]:
    """For `labkit.table`: a row for each seed and arm."""
    rows = []
    for at, seed in enumerate(seeds):
        for arm, runs in arms.items():
            row = {"seed": str(seed), "": arm}
            steps = runs[at].steps
            if steps:
                last = steps[-1]
                row["largest cache, KiB"] = f"{last['cache'] / 1024:,.0f}"
                row["reward, first"] = f"{steps[0].reward:.4f}"
                row["reward, last"] = f"{last.reward:.4f}"
                row["last loss"] = f"{last.loss:.8f}"
                row["weights"] = f"{int(last['weights']):08x}"
            else:
                row["weights"] = "died"
            rows.append(row)
    return rows


# ------------------------------------------------------------------------------------------------ prices


@torch.no_grad()
def prices(
    policy: Policy, cases: Mapping[str, Mapping[str, Any]], rotary: Rotation, seed: int
) -> dict[str, tuple[float, float, float]]:
    """What each way changes in the log-probs of 64 fresh answers: name -> (cache / plan; largest and mean change in nats
    from the same policy with `rotary` under autocast).

    cases  name -> what differs: "rotation", "weights" (a dtype), "autocast" (False), "attention" (a name). A way that
           raises gets NaN
    """
    prompts = task.get("add").sample(8, random.Random(seed))
    tokens = torch.Generator(policy.device).manual_seed(seed)
    with rotating_with(rotary, policy.model):
        out = generate(policy, prompts, num_samples=8, max_new_tokens=8, generator=tokens)

    def scored(
        rotation: Rotation = rotary,
        weights: Any = None,
        autocast: bool = True,
        attention: str = "sdpa",
    ) -> tuple[torch.Tensor, float]:
        model = copy.deepcopy(policy.model)
        model.casting = autocast
        model.set_attn_implementation(attention)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(weights or parameter.dtype)
        with rotating_with(rotation, model):
            answer = model(input_ids=out.ids, attention_mask=out.attention_mask, use_cache=True)
        logp = answer.logits[:, :-1].float().log_softmax(-1)
        of_ids = logp.gather(-1, out.ids[:, 1:, None]).squeeze(-1)  # [64, T - 1]
        return of_ids[:, -out.tokens.shape[1] :][out.mask.bool()], by_plan(answer.past_key_values)

    (plain, _), changes = scored(), {}
    for name, case in cases.items():
        try:
            logp, ratio = scored(**case)
        except Exception:  # a reader's function
            changes[name] = (float("nan"),) * 3
            continue
        change = (logp - plain).abs()
        changes[name] = (ratio, float(change.max()), float(change.mean()))
    return changes
