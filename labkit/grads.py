"""Guard, health and accumulation under their short name, `labkit.grads.guard`: see `labkit.grpo.grads`."""

from labkit.grpo.grads import *  # noqa: F403
