"""What page 09 uses and does not teach: its run, its table of ways to load, and what is left of a traceback.

The bug and the ways out stand on the page and are handed over: `load_models` takes a checkpoint's folder and returns
(tokenizer, policy, reference). Beside it: `lesson_09_rounds.py` (rounds that say how far they came),
`lesson_09_pictures.py` (their figure), `lesson_09_judges.py` (what the reader's function is asked) and
`lesson_09_deaths.py` (the unseen ones).
"""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from props.arms import last_exam
from transformers.utils import logging

from labkit.events import Exam, Outcome, Run, Step
from labkit.grpo import Hooks, train
from labkit.grpo.policy import CHECKPOINTS, Policy, pick_device

logging.set_verbosity_error()  # transformers explains how it fills a new row, at each resize
logging.disable_progress_bar()

# path -> (tokenizer, policy, reference)
LoadModels = Callable[[str], tuple[Any, Any, Any]]


def path_of(model: str) -> str:
    """The folder of a checkpoint that ships with labkit; anything else stays as it is."""
    shipped = CHECKPOINTS / model
    return str(shipped) if shipped.is_dir() else model


# ------------------------------------------------------------------------------------------------------------ the run


@dataclass
class Padded(Policy):
    """A policy whose batches of prompts are filled up to a multiple of some number of columns."""

    multiple: int = 8
    begin: str = ""  # a text in front of each prompt

    def encode(self, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        texts = [self.begin + prompt for prompt in prompts]
        options = {"padding": True, "pad_to_multiple_of": self.multiple, "return_tensors": "pt"}
        rows = self.tokenizer(texts, **options)
        return rows["input_ids"].to(self.device), rows["attention_mask"].to(self.device)


def learn(
    load_models: LoadModels,
    *,
    model: str = "tiny",
    seed: int = 0,
    device: str = "auto",
    rounds: int,
    pad_to_multiple_of: int,
    begin: str = "",
    exam: bool = True,
) -> Iterator[Step | Exam]:
    """A run of `labkit.grpo.train`, with its defaults, of the models that `load_models` gives.

    The reference is not frozen: where it is the policy itself, the run goes on, with a KL that reaches back to the
    beginning of the round alone. A run that dies before its first exam gets one that is no number, since a curve needs a
    beginning.
    """
    torch.manual_seed(seed)  # for what a way of loading draws
    where = pick_device(device)
    began = False
    try:
        tokenizer, policy, reference = load_models(path_of(model))
        padded = Padded(policy.to(where).eval(), tokenizer, model, pad_to_multiple_of, begin)
        hooks = Hooks(reference=reference.to(where).eval())
        run = train("add", policy=padded, hooks=hooks, rounds=rounds, seed=seed, exam=exam)
        for event in run:
            began = True
            yield event
    except Exception:
        if not began:
            yield Exam(0, {"add": math.nan})
        raise


def first_kl(run: Run) -> float:
    """The KL of the first update, nats; inf where there was none, so that no limit takes it for a small one."""
    return run.steps[0].kl if run.steps else math.inf


def last_kl(run: Run) -> float:
    """The KL of the last update, nats; inf where there was none."""
    return run.steps[-1].kl if run.steps else math.inf


def rows_of_ways(ways: Mapping[str, Sequence[Run]]) -> list[dict[str, str]]:
    """Rows of a table: way of loading -> the first KL and the last exam of its runs, one for each seed."""
    rows = []
    for way, runs in ways.items():
        row = {"way": way}
        row["updates"] = " ".join(str(len(run.steps)) for run in runs)
        row["KL at update 1, nats"] = " ".join(shown(first_kl(run)) for run in runs)
        row["exam at the end"] = " ".join(ending(run) for run in runs)
        rows.append(row)
    return rows


def ending(run: Run) -> str:
    """The last exam of a run; what it died of; a dash where it sat none."""
    if not run.outcome:
        return run.outcome.exception or run.outcome.signature
    if not any(isinstance(event, Exam) for event in run.events):
        return "–"
    return f"{last_exam(run):.2f}"


def shown(kl: float) -> str:
    """A KL with two digits; a dash where there is none."""
    return f"{kl:.2g}" if math.isfinite(kl) else "–"


# ------------------------------------------------------------------------------------------------- what a death left

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\w+)\n\s+(.+)')
# a call of the traceback that is shown -> how many lines of the same function are shown above it
_SHOWN = {r"= score\(": 0, r"scorer\(reference": 1, r"\.wte\(": 0}


def calls_of(outcome: Outcome) -> str:
    """Of a traceback: the round, where the reference is asked, its table, the last call; then the message.

    A call that did not return is marked `>`; a line above it had run.
    """
    frames = _FRAME.findall(outcome.traceback)
    chosen = []
    for frame in frames[:-1]:
        for call, above in _SHOWN.items():
            if re.search(call, frame[3]):
                chosen.append((frame, above))
    chosen += [(frame, 0) for frame in frames[-1:]]
    lines = [f"{len(chosen)} of the {len(frames)} calls in the traceback, the outermost first:"]
    for (file, number, name, code), above in chosen:
        lines.append(f"{file.rsplit('/', 1)[-1]}, {name}")
        for at in range(int(number) - above, int(number)):
            lines.append(f"    {linecache.getline(file, at).strip()}")
        lines.append(f"  > {code}")
    lines.append(f"{outcome.exception}: {outcome.message}")
    return "\n".join(lines)


def line_of(outcome: Outcome) -> str:
    """The line that says what died: on a GPU the assertion in stderr, else the exception with its message."""
    asserted = re.search(r"^.*Assertion .+ failed.*$", outcome.stderr, re.MULTILINE)
    if asserted:
        return asserted[0]
    return f"{outcome.exception}: {outcome.message}".split("\n")[0]
