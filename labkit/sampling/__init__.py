"""What is really drawn: the temperature of tokens, groups whose completions are all the same, flags for `generate`.

    estimate_temperature(logits, tokens)       the temperature of what was drawn, with an interval; or "greedy"
    quantiles(logits, tokens, temperature)     where each token lay in its distribution: uniform if drawn from it
    ties(completions, rewards, num_samples)    identical completions, or different ones with tied rewards?
    generation_kwargs(model, do_sample=True, temperature=0.9)    flags that transformers neither ignores nor overrides
    Presence, Frequency, Finite                for `logits_processor`

It samples nothing and trains nothing: `labkit.rollout` draws.
"""

from .generation import Finite, Frequency, Presence, generation_kwargs
from .groups import Ties, ties
from .temperature import Temperature, estimate_temperature, quantiles

__all__ = ["Finite", "Frequency", "Presence", "Temperature", "Ties", "estimate_temperature", "generation_kwargs"]
__all__ += ["quantiles", "ties"]
