"""The KL estimators under their short name, `from labkit.kl import k2`: see `labkit.grpo.kl`."""

from labkit.grpo.kl import *  # noqa: F403
