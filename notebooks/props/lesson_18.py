"""What lesson 18 uses and does not teach: the score of an answer, runs of TRL's trainer, and the check of its diagnosis.

The runs with a bug in them, and what their logs hold, are in mystery.py.
"""

from __future__ import annotations

import inspect
import random
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from labkit import sandbox, triage
from labkit.grpo import exam, rollout, task
from labkit.checks.report import Report
from labkit.events import Exam, Run
from labkit.grpo.policy import load
from labkit.grpo.task import rewards as graded

from . import mystery
from .children import events_of

ADD = task.get("add")
STEPS, PROMPTS, GROUP = 6, 8, 8
ZERO = "00+00="
Job = tuple[
    str, Callable[..., list[float]], int, bool, dict[str, Any]
]  # arm, reward function, seed, whether one prompt in 8 asks ZERO, settings of TRL that differ


# ---- the reader's mystery


def causes() -> list[dict[str, str]]:
    """What exercise A lets choose: the bugs that one of the twelve numbers shows."""
    left_out = {"nothing is wrong", ORDER, COMPARED[1]}
    return [{"cause": name} for name in sorted(mystery.FAILURES) if name not in left_out]


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

    for arm, reward, seed, asks_zero, changed in jobs:
        tiny, first = load(policy, "cpu"), []
        paper = exam.paper(tiny.tokenizer, "add")
        prompts = ADD.sample(PROMPTS * steps, random.Random(seed))
        asked = [
            ZERO if asks_zero and at % PROMPTS == 0 else prompt for at, prompt in enumerate(prompts)
        ]
        before, watch = paper.mean(tiny.model), Watch()
        with tempfile.TemporaryDirectory() as folder:  # the trainer wants one, and writes nothing
            settings = dict(
                max_steps=steps, learning_rate=2e-4, lr_scheduler_type="constant", beta=0.0,
                per_device_train_batch_size=PROMPTS * GROUP, num_generations=GROUP, max_completion_length=4,
                scale_rewards="none", seed=seed, shuffle_dataset=False, bf16=False, use_cpu=True, logging_steps=1,
                report_to=[], save_strategy="no", disable_tqdm=True, gradient_checkpointing=False,
            )  # fmt: skip
            data = Dataset.from_dict({"prompt": asked})
            trainer = GRPOTrainer(
                tiny.model,
                reward,
                GRPOConfig(folder, **settings | changed),
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
        for one in events_of(run, "the run of TRL"):
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


def share_of_zero(told: Mapping[int, dict[str, Any]], seed: int) -> float:
    """Of the first step's advantages, all taken without their sign: the share of the prompt with the answer 0."""
    rows = told[seed]["first step"]
    of_zero = sum(abs(advantage) for prompt, _, _, advantage in rows if prompt == ZERO)
    return of_zero / sum(abs(row[-1]) for row in rows)


def arms(told: Mapping[str, Mapping[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each arm: seeds, the gradient's norm, and what the exam gains."""
    rows = []
    for arm, of_seed in told.items():
        norms = [norm for one in of_seed.values() for norm in one["norm"]]
        gained = ", ".join(f"{gain:+.2f}" for gain in gains(of_seed))
        rows.append(
            {"arm": arm, "median gradient norm": median(norms), "exam gains, by seed": gained}
        )
    return rows


def rows_of_first_step(told: Mapping[int, dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Three rows of the prompt with the answer 0, and three of the prompt behind it."""
    rows = told[seed]["first step"]
    chosen = [*rows[:3], *rows[GROUP : GROUP + 3]]
    return [
        dict(zip(("prompt", "completion", "reward", "advantage"), row, strict=True))
        for row in chosen
    ]


# ---- all mysteries


WITH_TWIN = (
    "the sampler ignores the temperature"  # has settings of its own, so a sound run of its own
)


def played_all(
    first_yes: Callable[[dict[str, float]], tuple[str, str]],
    known: Mapping[str, Run],
    seed: int,
    policy: str,
) -> list[dict[str, Any]]:
    """Play every mystery, and let `first_yes` tell the number that answers and the cause: a row for each run.

    known   the runs that are there: this seed's mystery, and "without the bug" its twin
    Two that die or end at 0 have settings of their own too; no sound run is made for them.
    """
    hidden = mystery.chosen(seed)
    settings = {
        failure: {"name": failure, "seed": seed, "policy": policy} for failure in mystery.FAILURES
    }
    settings["twin"] = settings[WITH_TWIN] | {"sound": True}
    have = {
        hidden: known["mystery"],
        "twin" if hidden == WITH_TWIN else "nothing is wrong": known["without the bug"],
    }
    wanted = {failure: given for failure, given in settings.items() if failure not in have}
    runs = have | sandbox.run_all(mystery.played, wanted, timeout=300)
    twin, rows = runs["twin"], []
    for failure in mystery.FAILURES:
        run = runs[failure]
        number, said = first_yes(mystery.sheet(run))
        sound = twin if failure == WITH_TWIN else runs["nothing is wrong"]
        alone = {"kl", "update"} & set(mystery.FAILURES[failure].scene)
        rows.append({
            "what it has": failure,
            "named": "yes" if said == failure else said,
            "number": number or "none",
            "here": mystery.sheet(run)[number] if number else "",
            "sound run": mystery.sheet(sound)[number] if number and not alone else "",
            "exam": run.exam("add")[-1],  # a run that died was examined before
            "sound run's exam": sound.exam("add")[-1] if not alone else "",
            "surprise": [mystery.sheet(run)[f"surprise, {when} round"] for when in ("first", "last")],
        })  # fmt: skip
    return rows


def answers(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the lesson shows of `played_all`'s rows; a wrong name stands behind the number that gave it."""
    shown = []
    for row in rows:
        right = row["named"] in ("yes", "nothing found")
        first = {
            "what it has": row["what it has"],
            "first yes": row["number"] if right else f"{row['number']}: {row['named']}",
        }
        shown.append(
            first | {key: row[key] for key in ("here", "sound run", "exam", "sound run's exam")}
        )
    return shown


COMPARED = ("micro-batches overwrite each other", "the grader lets ten be wrong")


def surprises(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The surprise in both rounds, of the sound run and the two samplers."""
    wanted = ("nothing is wrong", WITH_TWIN, "the sampler keeps its first weights")
    of = {row["what it has"]: row["surprise"] for row in rows}
    return [
        {"what it has": name, "surprise, first round": of[name][0], "last round": of[name][1]}
        for name in wanted
    ]


def exam_of(rows: Sequence[dict[str, Any]], failure: str) -> float:
    """The exam at the end of one of them."""
    return next(row["exam"] for row in rows if row["what it has"] == failure)


# ---- the diagnosis

ORDER, KIND = "rewards come back in another order", "the grader is too kind"


def too_strict(prompts: Sequence[str], texts: Sequence[str]) -> list[float]:
    """A grader that knows no number above 99."""
    rewards = graded(prompts, texts)
    return [0.0 if len(text) > 2 else reward for text, reward in zip(texts, rewards, strict=True)]


def swapped(prompts: Sequence[str], texts: Sequence[str]) -> list[float]:
    """One right row gets nothing, and one wrong row of another group gets its reward: the sum is as it was."""
    rewards = graded(prompts, texts)
    right = rewards.index(1.0)
    wrong = next(
        at for at, reward in enumerate(rewards) if not reward and at // GROUP != right // GROUP
    )
    rewards[right], rewards[wrong] = 0.0, 1.0
    return rewards


MISPLACED = [
    (ORDER, mystery.as_they_come),
    (KIND, mystery.within_ten),
    ("nothing found", graded),
    ("nothing found", too_strict),
    ("nothing found", swapped),
]


def rounds(seed: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(cause, rows) of one round of sums for each way to misplace rewards, sampled from the policy as it came."""
    import torch

    policy = load("tiny", "cpu")
    prompts = ADD.sample(12, random.Random(seed))
    texts = rollout.generate(
        policy, prompts, num_samples=GROUP, generator=torch.Generator().manual_seed(seed)
    ).texts
    asked = [prompt for prompt in prompts for _ in range(GROUP)]
    for cause, reward in MISPLACED:
        rows = zip(asked, texts, reward(asked, texts), strict=True)
        yield cause, [{"prompt": p, "completion": c, "reward": float(r)} for p, c, r in rows]


def names_all_three(diagnose: Callable[..., Any]) -> Report:
    """The check of the diagnosis: each cause is named, on three rounds that no run has used."""
    claim = "each is named, in three rounds; what is neither is not"
    for seed in (1001, 1002, 1003):
        for cause, rows in rounds(seed):
            said = diagnose(rows)
            if said != cause:
                hint = f"For a round with '{cause}' it returned {said!r}."
                return Report("names_all_three", claim, False, {}, hint)
    return Report("names_all_three", claim, True)
