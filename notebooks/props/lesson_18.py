"""What lesson 18 uses and does not teach: the score of an answer, runs of TRL's trainer, and the check of its diagnosis.

The runs with a bug in them, and what their logs hold, are in mystery.py.
"""

from __future__ import annotations

import inspect
import random
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from labkit import exam, rollout, sandbox, task, triage
from labkit.checks.report import Report
from labkit.events import Exam, Run
from labkit.policy import load
from labkit.task import rewards as graded

from . import mystery

ADD = task.get("add")
STEPS, PROMPTS, GROUP = 8, 8, 8
ZERO = "00+00="
Job = tuple[
    str, Callable[..., list[float]], int, bool
]  # arm, reward function, seed, whether one prompt in 8 asks ZERO


# ---- the reader's mystery


def scored(answer: str, seed: int) -> None:
    """Say whether the answer is the bug of this seed's run."""
    if not answer:
        print(
            "No answer yet. Write one of the causes between the quotes, and run both cells again."
        )
    elif answer not in mystery.FAILURES:
        print(f"{answer!r} is none of the causes. Copy one of the names above.")
    elif answer == mystery.chosen(seed):
        print("Right. One point of one.")
    else:
        print(
            "No. Which numbers differ between the two columns, and which of these bugs changes them?"
        )


def reveal(seed: int) -> Any:
    """The answer, behind a fold of its own: the name, the code, and what it does."""
    from IPython.display import Markdown

    name = mystery.chosen(seed)
    failure = mystery.FAILURES[name]
    code = textwrap.dedent(inspect.getsource(failure.code))
    text = f"**{name}.** {failure.chain}\n\n```python\n{code}```"
    return Markdown(f"<details><summary>The answer</summary>\n\n{text}\n\n</details>")


def acted_on(runs: Mapping[str, Run]) -> int:
    """In how many of the logs labkit's triage has something to act on."""
    return sum(bool(triage.diagnose(Run(run.steps, run.outcome))) for run in runs.values())


def side_by_side(case: Run, twin: Run) -> list[dict[str, Any]]:
    """Both sheets, a row for each number."""
    ours, sound = mystery.sheet(case), mystery.sheet(twin)
    rows = []
    for name, what in mystery.SHEET.items():
        rows.append(
            {
                "number": name,
                "mystery": ours[name],
                "without the bug": sound[name],
                "what it is": what,
            }
        )
    return rows


# ---- TRL


def trained(jobs: Sequence[Job], policy: str, steps: int = STEPS) -> Iterator[dict[str, Any]]:
    """TRL's GRPOTrainer, once for each job: a dict of its numbers after every step, and before the first.

    Its log's reward and gradient norm come with it, and for the first step prompts, completions, rewards, advantages.
    """
    import torch
    import transformers
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)

    class Watch(transformers.TrainerCallback):
        def __init__(self) -> None:
            self.chances: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.chances.append(paper.mean(trainer.model))
            if len(self.chances) == 1:
                kept = trainer._logs
                (given,) = kept["rewards"].values()
                first[:] = zip(
                    kept["prompt"], kept["completion"], given, kept["advantages"], strict=True
                )

    for arm, reward, seed, asks_zero in jobs:
        tiny, first = load(policy, "cpu"), []
        paper = exam.paper(tiny.tokenizer, "add")
        prompts = ADD.sample(PROMPTS * steps, random.Random(seed))
        asked = [
            ZERO if asks_zero and at % PROMPTS == 0 else prompt for at, prompt in enumerate(prompts)
        ]
        before, watch = paper.mean(tiny.model), Watch()
        with tempfile.TemporaryDirectory() as folder:  # the trainer wants one, and writes nothing
            settings = GRPOConfig(
                folder, max_steps=steps, learning_rate=2e-4, lr_scheduler_type="constant", beta=0.0,
                per_device_train_batch_size=PROMPTS * GROUP, num_generations=GROUP, max_completion_length=4,
                scale_rewards="none", seed=seed, shuffle_dataset=False, bf16=False, use_cpu=True, logging_steps=1,
                report_to=[], save_strategy="no", disable_tqdm=True, gradient_checkpointing=False,
            )  # fmt: skip
            data = Dataset.from_dict({"prompt": asked})
            trainer = GRPOTrainer(
                tiny.model,
                reward,
                settings,
                train_dataset=data,
                processing_class=tiny.tokenizer,
                callbacks=[watch],
            )
            trainer.train()
        logged = [row for row in trainer.state.log_history if "reward" in row]
        yield {"arm": arm, "seed": seed, "exam": [before, *watch.chances], "first step": list(first),
               "reward": [row["reward"] for row in logged], "norm": [row["grad_norm"] for row in logged]}  # fmt: skip


def train_all(
    jobs: Sequence[Job], policy: str, steps: int = STEPS
) -> dict[str, dict[int, dict[str, Any]]]:
    """arm -> seed -> what `trained` tells of it. Two processes share the jobs."""
    halves = {
        half: {"jobs": jobs[half::2], "policy": policy, "steps": steps}
        for half in (0, 1)
        if jobs[half::2]
    }
    told: dict[str, dict[int, dict[str, Any]]] = {job[0]: {} for job in jobs}
    for run in sandbox.run_all(trained, halves, timeout=300).values():
        if not run.outcome:
            raise RuntimeError(f"the run of TRL ended: {run.outcome.message}")
        for one in run.events:
            told[one["arm"]][one["seed"]] = one
    return told


def runs_of(told: Mapping[str, Mapping[int, dict[str, Any]]]) -> dict[str, list[Run]]:
    """The exams as runs, for `labkit.learning_curves`."""
    return {
        arm: [
            Run([Exam(at, {"add": chance}) for at, chance in enumerate(one["exam"])])
            for one in of_seed.values()
        ]
        for arm, of_seed in told.items()
    }


def gains(of_seed: Mapping[int, dict[str, Any]]) -> list[float]:
    """What each seed's exam gained."""
    return [one["exam"][-1] - one["exam"][0] for one in of_seed.values()]


def rows_of_first_step(told: Mapping[int, dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Three rows of the prompt with the answer 0, and three of the prompt behind it."""
    rows = told[seed]["first step"]
    chosen = [*rows[:3], *rows[GROUP : GROUP + 3]]
    return [
        dict(zip(("prompt", "completion", "reward", "advantage"), row, strict=True))
        for row in chosen
    ]


# ---- all mysteries


def played_all(
    name: Callable[[dict[str, float]], str], seed: int, policy: str
) -> list[dict[str, Any]]:
    """Play every mystery, and let `name` name it: a row for each."""
    settings = {
        failure: {"name": failure, "seed": seed, "policy": policy} for failure in mystery.FAILURES
    }
    runs = sandbox.run_all(mystery.played, settings, timeout=300)
    rows = []
    for failure, run in runs.items():
        said, chances = (
            name(mystery.sheet(run)),
            run.exam("add"),
        )  # a run that died was examined before
        does = mystery.FAILURES[failure].chain.split(". ")[0].rstrip(".")
        row = {
            "what it has": failure,
            "what it does": does,
            "named": "yes" if said == failure else said,
        }
        rows.append(row | {"exam at the end": chances[-1]})
    return rows


# ---- the diagnosis

ORDER, TOLERANCE = "rewards come back in another order", "the grader lets ten be wrong"
MISPLACED = {ORDER: mystery.as_they_come, TOLERANCE: mystery.within_ten, "nothing found": graded}


def grade(prompt: str, completion: str) -> float:
    """The reward of one completion: 1.0 for the right answer, else 0.0."""
    return graded([prompt], [completion])[0]


def rounds(seed: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(cause, rows) of one round of sums for each of the three causes, sampled from the policy as it came."""
    import torch

    policy = load("tiny", "cpu")
    prompts = ADD.sample(12, random.Random(seed))
    texts = rollout.generate(
        policy, prompts, num_samples=GROUP, generator=torch.Generator().manual_seed(seed)
    ).texts
    asked = [prompt for prompt in prompts for _ in range(GROUP)]
    for cause, reward in MISPLACED.items():
        rows = zip(asked, texts, reward(asked, texts), strict=True)
        yield cause, [{"prompt": p, "completion": c, "reward": float(r)} for p, c, r in rows]


def names_all_three(diagnose: Callable[..., Any]) -> Report:
    """The check of the diagnosis: each cause is named, on three rounds that no run has used."""
    claim = "each of the three is named, in three rounds"
    for seed in (1001, 1002, 1003):
        for cause, rows in rounds(seed):
            said = diagnose(rows, grade)
            if said != cause:
                return Report(
                    "names_all_three", claim, False, {}, f"For '{cause}' it returned {said!r}."
                )
    return Report("names_all_three", claim, True)
