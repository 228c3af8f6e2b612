"""The trainer under its short name: see `labkit.grpo.train`."""

from labkit.grpo.train import *  # noqa: F403
