"""Memory of a CUDA device: read it, limit it, leave nothing in it, and say whose it was when there was none left.

    meter()                   what is allocated, reserved and free now
    limit(8 * 2**30)          a big card fails like a small one
    eval_scope(model)         evaluate in the middle of training, and leave nothing
    owner(error)              whose memory an out-of-memory message speaks of
    allocator_settings()      asked for, in force, and whether they agree

It frees nothing that somebody holds, and it imports torch only in a call. The lessons' simulated card, for readers
without a GPU, stands in `notebooks/props/card`; while it is at work it answers for the device (`meter.stand_ins`).
"""

from collections.abc import Sequence
from typing import Any

from .meter import limit, meter
from .scope import eval_scope
from .settings import allocator_settings

__all__ = ["allocator_settings", "eval_scope", "limit", "meter", "owner"]


def owner(message: object, held: Sequence[int] | None = None) -> Any:
    """Whose memory was in the way of a request: `labkit.triage.owner`, which says what it takes and gives."""
    from labkit.triage import owner as read

    return read(message, held)
