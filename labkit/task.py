"""Prompts with a verifiable answer, and the reward that checks it.

Three families of one-line prompts over two-digit numbers. This file knows no tokens and no tensors: a prompt
and a completion are text, a reward is a float, so that it serves the tiny policy and a hub model alike.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ALPHABET = "0123456789+<:="


@dataclass(frozen=True)
class Task:
    """A prompt family: `sample(n, rng)` draws prompts, `answer(prompt)` is the right completion."""

    name: str
    symbol: str
    answer_of: Callable[[int, int], int]
    meaning: str

    def sample(self, n: int, rng: random.Random) -> list[str]:
        """`n` prompts, for example `12+34=`."""
        return [f"{rng.randrange(100):02d}{self.symbol}{rng.randrange(100):02d}=" for _ in range(n)]

    def answer(self, prompt: str) -> str:
        """The right completion. ValueError if `prompt` is not of this family."""
        match = re.fullmatch(rf"(\d+){re.escape(self.symbol)}(\d+)=", prompt)
        if not match:
            raise ValueError(f"task {self.name!r}: prompt {prompt!r} does not look like '12{self.symbol}34='")
        return str(self.answer_of(int(match[1]), int(match[2])))

    def reward(self, prompt: str, completion: str) -> float:
        """1.0 when the completion begins with the right number and nothing else follows it, else 0.0."""
        said = re.match(r"\s*(\d+)\s*(\S?)", completion)
        return float(bool(said) and not said[2] and said[1] == self.answer(prompt)) if said else 0.0


TASKS = {
    "add": Task("add", "+", lambda a, b: a + b, "the sum of two numbers; the tiny policy gets two in five greedily"),
    "max": Task("max", "<", max, "the larger of two numbers; the tiny policy gets four in five greedily"),
    "copy": Task("copy", ":", lambda a, b: a, "the first of two numbers; the tiny policy has solved it"),
}


def get(name: str) -> Task:
    """The task called `name`; ValueError lists the names there are."""
    if name not in TASKS:
        raise ValueError(f"task {name!r}: expected one of {', '.join(TASKS)}")
    return TASKS[name]


def of_prompt(prompt: str) -> Task:
    """The family a prompt belongs to, read off its symbol."""
    for task in TASKS.values():
        if task.symbol in prompt:
            return task
    raise ValueError(f"prompt {prompt!r}: expected one of the symbols {', '.join(t.symbol for t in TASKS.values())}")


def rewards(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
    """One reward per completion. There are as many prompts: each is repeated for its group; ValueError otherwise."""
    if len(prompts) != len(completions):
        raise ValueError(f"rewards: {len(prompts)} prompts for {len(completions)} completions; repeat each per group")
    return [of_prompt(p).reward(p, c) for p, c in zip(prompts, completions, strict=True)]
