"""Page 11: what runs and judges what the reader writes, a budget, an update in parts, names of refused tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from labkit import checks, sandbox
from labkit.checks.report import PASS, Verdict, attempt, fail, judged
from labkit.grpo import load

from .lesson_11 import GIB, MIB, SECONDS, TERMS, Rows, Size, Update, Used, rows_of, tapped

# ------------------------------------------------------------------------------------------------ the reader's budget


def budgets(
    budget: Callable[[int, int, int], Any], sizes: Sequence[Size]
) -> dict[Size, dict[str, float]]:
    """The reader's budget for each size, if it gives three finite numbers there. In a process of its own."""
    run = sandbox.run(_budgets, budget, sizes, timeout=SECONDS)
    return {size: terms for size, terms in run.events if terms is not None}


def _budgets(budget: Callable[..., Any], sizes: Sequence[Size]) -> Iterator[tuple[Size, Any]]:
    for size in sizes:
        try:
            terms = {name: float(budget(*size)[name]) for name in TERMS[:3]}
        except Exception:  # a reader's function
            yield size, None
            continue
        finite = all(math.isfinite(gib) and gib >= 0 for gib in terms.values())
        yield size, terms if finite else None


def judge_budget(answer: Callable[..., Any], used: Mapping[Size, Used]) -> checks.Report:
    """Is each of the three terms within 3 % of the simulated card's, at every size?"""

    def judge(evidence: dict[str, Any]) -> Verdict:
        for size, run in used.items():
            budget = attempt(answer, *size)
            if not isinstance(budget, dict) or set(budget) != set(TERMS[:3]):
                return fail(f"Expected a dict with the keys {', '.join(TERMS[:3])}, all in GiB.")
            for name, value in budget.items():
                measured = run.terms[name]
                if isinstance(value, bool) or not isinstance(value, int | float):
                    return fail(f"Expected numbers of GiB, got {value!r} for the {name}.")
                if not abs(value / measured - 1) < 0.03:
                    rows, prompt, new = size
                    where = f"{rows} rows of {prompt} + {new} tokens"
                    return fail(
                        f"{where}: your {name} {value:.3g}, on the card {measured:.3g} GiB. {HINTS[name]}"
                    )
        evidence["sizes"] = f"all {len(used)} within 3 %"
        return PASS

    return judged("my_budget", "three terms as on the simulated card", answer, judge)


HINTS = {
    "weights": "How many numbers has the model, and of how many bytes?",
    "activations": "Every layer keeps them for every token of every row.",
    "logits": "Those of all tokens are there at once, and two more tensors for the tokens of the answers.",
}


# --------------------------------------------------------------------------------------------- the reader's update


class Kept(torch.optim.SGD):
    """Takes no step: keeps the gradient of each, flat."""

    def __init__(self, model: Any):
        super().__init__(model.parameters(), lr=1.0)
        self.steps: list[torch.Tensor] = []

    def step(self, closure: Any = None) -> None:
        (group,) = self.param_groups
        given = [p.grad if p.grad is not None else torch.zeros_like(p) for p in group["params"]]
        self.steps.append(torch.cat([gradient.detach().flatten() for gradient in given]))


def of_a_step(
    update: Callable[..., Any], model: Any, rows: Rows, **options: Any
) -> tuple[Kept, float]:
    """The optimizer with what it was given, and the loss that the update returned (NaN: none)."""
    optimizer = Kept(model)
    model.zero_grad(set_to_none=True)
    loss = attempt(update, model, optimizer, rows, **options)
    return optimizer, float(loss) if isinstance(loss, float | torch.Tensor) else math.nan


def compared(
    update: Update, at_once: Update, seed: int, policy: str, device: str
) -> Iterator[dict[str, float]]:
    """How far an update is from the one at once, for real, on one rollout of the small policy: its loss (nats) and its
    gradient (relative change); and the loss at once.
    """
    small = load(policy, device)
    rows = rows_of(small, seed)
    whole, loss = of_a_step(at_once, small.model, rows)
    mine, other = of_a_step(update, small.model, rows)
    gradient = distance(mine.steps[-1], whole.steps[-1]) if mine.steps else math.inf
    yield {"loss": abs(other - loss), "gradient": gradient, "loss at once": loss}


def rows_of_comparison(
    runs: Mapping[str, Sequence[Any]], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """A row for each seed: the loss at once, and how far each arm's gradient and loss are; a run that died says of what."""
    table = []
    for at, seed in enumerate(seeds):
        row: dict[str, Any] = {"seed": seed, "the loss at once": ""}
        table.append(row)
        of_arms = {name: of_seeds[at] for name, of_seeds in runs.items()}
        for run in of_arms.values():
            if run.events:
                row["the loss at once"] = run.events[0]["loss at once"]
        for what, column in (("gradient", "gradient, relative"), ("loss", "loss, absolute")):
            for name, run in of_arms.items():
                row[f"{column}: {name}"] = _figure(run, what)
    return table


def _figure(run: Any, what: str) -> Any:
    return run.events[0][what] if run.events else run.outcome.signature


def gradients(runs: Sequence[Any]) -> list[float]:
    """How far the gradient is, for each seed; inf for a run that died."""
    return [run.events[0]["gradient"] if run.events else math.inf for run in runs]


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative change of a gradient: 0 for equal ones."""
    return float((one - other).norm() / other.norm())


def judge_update(answer: Callable[..., Any], at_once: Update, most: float = 4.0) -> checks.Report:
    """One step with the gradient of all rows, nothing left behind, and at most so many GiB on the simulated card."""

    def judge(evidence: dict[str, Any]) -> Verdict:
        small = load("tiny", "cpu")
        rows = rows_of(small, 0)
        whole, loss = of_a_step(at_once, small.model, rows)
        mine, returned = of_a_step(answer, small.model, rows, parts=4)
        if len(mine.steps) != 1:
            return fail(
                f"optimizer.step() was called {len(mine.steps)} times. Once is enough, at the end."
            )
        off = evidence["gradient, relative change"] = distance(mine.steps[0], whole.steps[0])
        if not off < 1e-4:
            size = float(mine.steps[0].norm() / whole.steps[0].norm())
            return fail(
                f"The gradient is not that of all rows: {size:.3g} times as long, changed by {off:.2g}. By which number of "
                "tokens is each part divided? Does every part go backward before the one step?"
            )
        if any(p.grad is not None and bool(p.grad.any()) for p in small.model.parameters()):
            return fail("The gradients are still there: the next update would add to them.")
        if not abs(returned - loss) < 1e-4:
            return fail(f"It returned {returned:.4g}; the loss of all rows is {loss:.4g}.")
        peak = tapped(lambda *operands: attempt(answer, *operands, parts=4)).peak / GIB
        evidence["GiB at its fullest"] = round(peak, 2)
        if not peak < most:
            return fail(
                f"{peak:.2f} GiB at its fullest. Tensors of all parts wait for one backward pass."
            )
        return PASS

    return judged("my_update_in_parts", "the same gradient in a third of the memory", answer, judge)


# ------------------------------------------------------------------------------------------- which tensor was it?


def tensor_of(row: Mapping[str, Any]) -> str:
    """The tensor whose size by hand is nearest to what a row of the table of refusals was refused."""
    amount, unit = row["tried to allocate"].split()
    tried = float(amount) * {"MiB": MIB, "GiB": GIB}[unit]
    tokens = row["rows"] * (row["prompt"] + row["answer"])
    sizes = {
        "all logits": tokens * 50_257 * 4,
        "answer logits": row["rows"] * row["answer"] * 50_257 * 4,
        "inside the MLP": tokens * 4 * 768 * 4,
        "query, key, value": tokens * 3 * 768 * 4,
    }
    return min(sizes, key=lambda name: abs(sizes[name] / tried - 1))


CASES = {  # letter -> rows, prompt, answer, GiB of the card; P and Q are refused the same number of bytes
    "P": (16, 256, 256, 9),
    "Q": (8, 256, 256, 4.25),
    "R": (32, 128, 512, 8),
    "S": (8, 512, 256, 5.5),
}


def table_of_refusals(used: Mapping[Size, Used]) -> list[dict[str, Any]]:
    """What each case's card refused. ValueError where the update fits."""
    table = []
    for letter, (rows, prompt, answer, card) in CASES.items():
        message = used[rows, prompt, answer].refused[card]
        if not message:
            raise ValueError(f"{letter}: the update fits on {card} GiB, expected a refusal")
        sizes = {"rows": rows, "prompt": prompt, "answer": answer, "card, GiB": card}
        tried = message.split(". ")[1].removeprefix("Tried to allocate ")
        table.append({"run": letter} | sizes | {"tried to allocate": tried})
    return table


def judge_names(answer: Callable[[], Any], refusals: Sequence[Mapping[str, Any]]) -> checks.Report:
    """Does `answer()` name the tensor that each run was refused?"""

    def judge(evidence: dict[str, Any]) -> Verdict:
        names = attempt(answer)
        if not isinstance(names, dict):
            return fail("Expected a dict: the run's letter -> a name.")
        wrong = [row["run"] for row in refusals if names.get(row["run"]) != tensor_of(row)]
        return fail(f"Not yet: {', '.join(wrong)}. Multiply for that run.") if wrong else PASS

    return judged("my_names", "each refused tensor has its name", answer, judge)
