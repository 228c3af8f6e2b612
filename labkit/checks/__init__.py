"""Checks that judge a function of yours: graders for the exercises, invariants for your own trainer.

Each takes a plain function, never raises on a wrong answer, and returns a `Report`: `bool(report)`, `.seen` (evidence),
`.hint` (likely cause). It passes (perhaps with a `.caution`), fails, or is inconclusive (false, and no accusation). A
check is deterministic, leaves the global random generators as they were, and takes about a second on the CPU or less.
Start with `grpo_step`, which reads a whole loss; the others judge one function, or what a loss does not show.

    grpo_step(loss) or (update=update)           loss(model, batch): which loss is it, and is a part of it wrong?
    accumulation(accumulate)                     accumulate(params, grads) leaves the sum in p.grad
    accumulated_step(step)                       step(model, optimizer, micro_batches) equals the full batch's
    kl_estimator(fn, role="value" or "loss")     fn(logp, ref_logp) estimates the KL, or descends it, not too steeply
    shared_loss(loss)                            loss(per_token, mask, total, world), averaged, is the whole batch's
    first_token(generate)                        generate(num_samples) draws each row's first token
    temperature(sample) or (generate, model)     sample(logits, temperature) draws at it, and cuts nothing off
    group_advantage(advantage, std=False)        advantage(rewards) centres each group on its own mean
    missing_rewards(advantage)                   advantage(rewards) leaves out what did not come, and no more
    guard(update)                                update(model, optimizer) clips, and skips what exploded
    leaves_nothing(evaluate, model)              evaluate(model) keeps no tensor, no graph, no mode
    rotary(apply)                                apply(x, positions) rotates by the position, in every dtype
    rows_split(split)                            split(rows, rank, world) shares the rows out among processes
    token_ids(tokenizer, model, ids)             every id and position has its row

They judge at the border of what they ask, and cannot prove a function right: what they do not try, they do not see.
"""

from .accumulated_step import accumulated_step
from .accumulation import accumulation
from .first_token import first_token
from .group_advantage import group_advantage
from .grpo_step import StepReport, grpo_step
from .guard import guard
from .kl import kl_estimator
from .leaves_nothing import leaves_nothing
from .missing_rewards import missing_rewards
from .report import Report
from .rotary import rotary
from .rows_split import rows_split
from .shared_loss import shared_loss
from .temperature import temperature
from .token_ids import token_ids

__all__ = [
    "Report",
    "StepReport",
    "accumulated_step",
    "accumulation",
    "first_token",
    "group_advantage",
    "grpo_step",
    "guard",
    "kl_estimator",
    "leaves_nothing",
    "missing_rewards",
    "rotary",
    "rows_split",
    "shared_loss",
    "temperature",
    "token_ids",
]
