"""What may be asked of a mystery run, and how often.

    case = Case.of(run)             a run of `mystery.play`
    case.log["reward"]              what everybody logs, a number for each round
    ask = Asks(case, budget=3)
    ask("surprise", round=1)        one of three measurements

This file runs nothing and knows no fault.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from labkit.events import Run, Step

# what TRL logs, and our name of it
COLUMNS = {
    "reward": "reward",
    "tied groups": "frac_reward_zero_std",
    "norm": "grad_norm",
    "KL": "kl",
    "entropy": "entropy",
    "length": "mean_length",
}
NOTHING = "nothing found"


class BudgetSpent(Exception):
    """Somebody asked once more than the budget allows."""


@dataclass(frozen=True)
class Case:
    """A run that was played: what everybody logs of it, and what each instrument said.

    log    column -> a number for each round, of the round's last update
    said   instrument -> round -> a number, for the first round and the last
    """

    log: dict[str, list[float]]
    said: dict[str, dict[int, float]]

    @classmethod
    def of(cls, run: Run) -> Case:
        """RuntimeError says what the run died of."""
        if not run.outcome:
            ended = f"{run.outcome.signature}: {run.outcome.message}"
            raise RuntimeError(f"the mystery run ended early, {ended}")
        said: dict[str, dict[int, float]] = {}
        at = 0
        for event in run.events:
            if isinstance(event, Step):
                at = event.round
                continue
            for name, value in event.items():
                said.setdefault(name, {})[at] = value
        return cls(log_of(run), said)


def log_of(run: Run) -> dict[str, list[float]]:
    """Column -> a number for each round, of the round's last update."""
    last_of_round: dict[int, Step] = {}
    for step in run.steps:
        last_of_round[step.round] = step
    log = {}
    for ours, theirs in COLUMNS.items():
        log[ours] = [step[theirs] for step in last_of_round.values()]
    return log


class Asks:
    """`ask("surprise", round=1)`: a number, as often as the budget allows. `asked` has what was asked, in order."""

    def __init__(self, case: Case, budget: int = 3):
        self._case, self.budget = case, budget
        self.asked: list[tuple[str, int, float]] = []

    def __call__(self, what: str, round: int | None = None) -> float:
        """The last round, where none is named.

        Raises: KeyError and ValueError for what nobody measured; BudgetSpent.
        """
        if what not in self._case.said:
            raise KeyError(f"there is no {what!r}; ask one of {', '.join(self._case.said)}")
        answers = self._case.said[what]
        if round is None:
            round = max(answers)
        if round not in answers:
            raise ValueError(f"round {round!r}: expected one of {', '.join(map(str, answers))}")
        if len(self.asked) == self.budget:
            raise BudgetSpent(f"all {self.budget} measurements are made")
        self.asked.append((what, round, answers[round]))
        return answers[round]


def hidden(names: Iterable[str], seed: int) -> str:
    """The name that this seed hides: one run in five has no fault."""
    dice = random.Random(f"hidden fault {seed}")
    if dice.random() < 0.2:
        return NOTHING
    return dice.choice(sorted(set(names) - {NOTHING}))
