"""Memory of a CUDA device: read it, limit it, leave nothing in it, and say whose it was when there was none left.

    meter()                        what is allocated, reserved and free now
    limit(8 * 2**30)               a big card fails like a small one
    eval_scope(model)              evaluate in the middle of training, and leave nothing
    owned(model, optimizer)        what is meant to stay between two steps
    holders(model, optimizer)      what stays beside it, and the Python objects through which it does
    owner(error, held, owned)      whose memory an out-of-memory message speaks of: one table of rules
    allocator_settings()           asked for, in force, and whether they agree

It frees nothing that somebody holds, and it imports torch only in a call. The lessons' simulated card, for readers
without a GPU, stands in `notebooks/props/card`; while it is at work it answers for the device (`meter.stand_ins`).
"""

from .holders import holders
from .meter import limit, meter
from .owned import owned
from .refusal import CANNOT_TELL, owner
from .scope import eval_scope
from .settings import allocator_settings

__all__ = ["CANNOT_TELL", "allocator_settings", "eval_scope", "holders", "limit", "meter", "owned", "owner"]
