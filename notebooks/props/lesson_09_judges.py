"""Page 09: the judge of the reader's `load_models`."""

from __future__ import annotations

from typing import Any

from props.lesson_09 import LoadModels, learn, path_of

from labkit import checks
from labkit.grpo import exam

PROMPTS = ["47+52=", "75+71=", "02+03="]
CHECKPOINT = 0.455  # its exam
NEAR = 0.01  # so far may the exam at the start be from it
SAME = 1e-6  # nats: rounding


def judge_models(load_models: LoadModels, model: str = "tiny") -> checks.Report:
    """Can both models look up every id of a padded batch, and does training begin at a KL of 0?"""
    seen: dict[str, Any] = {}
    hint = fault_of(load_models, model, seen)
    return checks.Report("my_load_models", "two models that begin alike", not hint, seen, hint)


def fault_of(load_models: LoadModels, model: str, seen: dict[str, Any]) -> str:
    """A sentence about the first limit that is missed; an empty one if none is. What was measured goes to `seen`."""
    made = load_models(path_of(model))
    if not isinstance(made, tuple) or len(made) != 3:
        return f"It returned {type(made).__name__}. Return tokenizer, policy and reference."
    tokenizer, policy, reference = made
    hint = fault_of_batch(tokenizer) or fault_of_pair(policy, reference)
    if hint:
        return hint
    for name, each in (("policy", policy), ("reference", reference)):
        ids = tokenizer(PROMPTS, padding=True, pad_to_multiple_of=8)["input_ids"]
        largest = max(map(max, ids))
        rows = each.get_input_embeddings().num_embeddings
        seen |= {"largest id": largest, f"rows of the {name}": rows}
        if largest >= rows:
            return f"The {name} has no row for the id {largest}: its rows are 0 to {rows - 1}."
    begin = exam.chance(policy.eval(), tokenizer, "add")
    seen["exam at the start"] = begin
    if not abs(begin - CHECKPOINT) < NEAR:
        return f"The exam begins at {begin:.3f}. The checkpoint's is {CHECKPOINT}."
    run = learn(
        lambda path: made, model=model, device="cpu", rounds=1, pad_to_multiple_of=8, exam=False
    )
    kl = next(run).kl
    seen["KL of the first update"] = kl
    if not abs(kl) < SAME:
        return f"The KL of the first update is {kl:.3g} nats. Nothing has been learned yet, so it should be 0."
    return ""


def fault_of_batch(tokenizer: Any) -> str:
    """What is wrong with a padded batch; empty if nothing is."""
    if tokenizer.pad_token_id is None:
        return "The tokenizer has no token to fill the gaps with."
    mask = tokenizer(PROMPTS, padding=True, pad_to_multiple_of=8)["attention_mask"]
    if not all(row[-1] for row in mask):
        return "The gaps are on the right of the prompts, where the answers begin. Fill up on the left."
    return ""


def fault_of_pair(policy: Any, reference: Any) -> str:
    """What is wrong with the two models; empty if nothing is."""
    of_policy = {parameter.data_ptr() for parameter in policy.parameters()}
    of_reference = {parameter.data_ptr() for parameter in reference.parameters()}
    if of_policy & of_reference:
        return "Policy and reference share parameters: an update of the policy would move the reference."
    return ""
