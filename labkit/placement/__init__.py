"""Who sits on which GPU, what that takes, and what would make it fit.

    plan([16, 16, 16], "124M", batch=4, group=8)    a `Plan`: print it; `labkit.display.cards` draws it

A GRPO or GSPO round has up to three residents: the policy with its gradients and its optimizer, which also generates;
the frozen reference; and the reward model, where the reward is one. The policy may sit on several cards, a whole copy
on each (data parallelism). All bytes come from `labkit.memory.predict`.

It starts nothing and measures nothing, and it splits no model over cards: what needs that (FSDP, DeepSpeed, pipelines)
it calls too large. Left out, and what the tenth of each card that stays free is for: the CUDA context, NCCL's buffers,
fragments; and DDP's second copy of the gradients, which `gradient_as_bucket_view=True` does without.
"""

from .layouts import Card, Layout
from .plans import Change, Plan, plan

__all__ = ["Card", "Change", "Layout", "Plan", "plan"]
