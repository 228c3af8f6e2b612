"""Prompts with a verifiable answer, and the reward that checks it.

Four families of one-line prompts over two-digit numbers. Of the 10,000 prompts of a family 150 are
held out: `sample` never draws them, so no run trains on them, and `labkit.exam` asks just these.
This file knows no tokens and no tensors: a prompt and a completion are text, a reward is a float,
so that it serves the tiny policy and a hub model alike.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ALPHABET = "0123456789+<:="
HELD_OUT_EVERY = (
    67  # a prime, so that the prompts held out are spread over all first and all last digits
)


@dataclass(frozen=True)
class Task:
    """A prompt family: `sample(n, rng)` draws prompts to train on, `answer(prompt)` is the right
    completion."""

    name: str
    symbol: str
    answer_of: Callable[[int, int], int | str]
    end: str = "="

    def sample(self, n: int, rng: random.Random) -> list[str]:
        """`n` prompts, for example `12+34=`; never one that is held out."""
        prompts: list[str] = []
        while len(prompts) < n:
            a, b = rng.randrange(100), rng.randrange(100)
            if not _is_held_out(a, b):
                prompts.append(self._prompt(a, b))
        return prompts

    def held_out(self) -> list[str]:
        """The 150 prompts of the exam."""
        pairs = itertools.product(range(100), repeat=2)
        return [self._prompt(a, b) for a, b in pairs if _is_held_out(a, b)]

    def _prompt(self, a: int, b: int) -> str:
        return f"{a:02d}{self.symbol}{b:02d}{self.end}"

    def answer(self, prompt: str) -> str:
        """The right completion. ValueError if `prompt` is not of this family."""
        match = re.fullmatch(rf"(\d+){re.escape(self.symbol)}(\d+){self.end}", prompt)
        if not match:
            raise ValueError(
                f"task {self.name!r}: prompt {prompt!r} does not look like "
                f"'12{self.symbol}34{self.end}'"
            )
        return str(self.answer_of(int(match[1]), int(match[2])))

    def reward(self, prompt: str, completion: str) -> float:
        """1.0 when the completion is the right answer and nothing else, else 0.0."""
        # blanks around it do not matter: "99" and "99 " are right, "99 or 89" is not
        return float(completion.strip() == self.answer(prompt))


def _is_held_out(a: int, b: int) -> bool:
    return (100 * a + b) % HELD_OUT_EVERY == 0


def _written_out(a: int, b: int) -> str:
    return f"{a:02d}+{b:02d}={a:02d}+{b:02d}={a + b}"


TASKS = {
    "add": Task("add", "+", lambda a, b: a + b),  # half of the tiny policy's sums are ten off
    "max": Task("max", "<", max),  # half of the time the tiny policy says the smaller
    "copy": Task("copy", ":", lambda a, b: a),  # the tiny policy has solved it
    # 33+65: -> 33+65=33+65=98, which has 15 or 16 tokens with the end; for the policy tiny-long
    "long": Task("long", "+", _written_out, end=":"),
}


def get(name: str) -> Task:
    """The task called `name`; ValueError lists the names there are."""
    if name not in TASKS:
        raise ValueError(f"task {name!r}: expected one of {', '.join(TASKS)}")
    return TASKS[name]


def of_prompt(prompt: str) -> Task:
    """The family a prompt belongs to, read off its symbol and its end."""
    for task in TASKS.values():
        if task.symbol in prompt and prompt.endswith(task.end):
            return task
    forms = ", ".join(f"12{task.symbol}34{task.end}" for task in TASKS.values())
    raise ValueError(f"prompt {prompt!r}: expected one of the forms {forms}")


def rewards(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
    """One reward per completion.

    There are as many prompts, each repeated for its group; ValueError otherwise.
    """
    if len(prompts) != len(completions):
        lengths = f"{len(prompts)} prompts for {len(completions)} completions"
        raise ValueError(f"rewards: {lengths}; repeat each per group")
    return [of_prompt(p).reward(p, c) for p, c in zip(prompts, completions, strict=True)]
