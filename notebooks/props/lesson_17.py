"""What lesson 17 uses and does not teach: three launches, two processes that join over gloo, GRPO's loss, the tables,
and the logs of its diagnosis.

How rows and draws are dealt, and the loop that trains, stand in the notebook.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import labkit
from labkit import exam, rollout, sandbox, task
from labkit.advantage import group_advantage
from labkit.checks.report import Report
from labkit.events import Exam, Run
from labkit.policy import Policy, load, token_logprobs_of_groups

ADD = task.get("add")
GROUP = 8
NAMES = ("one process", "not joined", "same rows", "each shuffles for itself", "nothing found")

# ---- the launches

LAUNCHERS = {
    "python train.py": [sys.executable],
    "accelerate launch --cpu --num_processes 2 train.py": [
        *(sys.executable, "-m", "accelerate.commands.accelerate_cli"),
        *("launch", "--cpu", "--num_processes", "2"),
    ],
    # torchrun itself; its sockets listen on this machine alone
    "torchrun --nproc_per_node 2 train.py": [
        *(sys.executable, "-m", "labkit.launch"),
        *("--nproc_per_node", "2"),
    ],
}
SET = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "ACCELERATE_USE_CPU")
# put before the script: two processes write to one pipe, so a line has to leave in one piece
WHOLE_LINES = "import sys; sys.stdout.reconfigure(line_buffering=True, write_through=False)\n"
# appended to the script: what the launcher has set
TELL = f"""
import json, os
print("variables " + json.dumps({{name: os.environ[name] for name in {SET} if name in os.environ}}))
"""


def launches(script: str) -> dict[str, list[str]]:
    """Start the script in the three ways, side by side: command -> the lines that came, its processes' own sorted."""
    here: dict[str, str | None] = {name: None for name in SET}
    here |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="lesson-17-") as folder:
        path = Path(folder) / "train.py"
        path.write_text(WHOLE_LINES + script + TELL)
        started = {name: {"command": [*command, str(path)]} for name, command in LAUNCHERS.items()}
        runs = sandbox.run_all(_lines, started, folder=folder, here=here, timeout=120)
    for name, run in runs.items():
        if not run.outcome:
            raise RuntimeError(f"{name}: {run.outcome.signature} {run.outcome.message}")
    return {name: sorted(run.events, key=_said_by_a_process) for name, run in runs.items()}


def _lines(command: list[str], folder: str, here: Mapping[str, str | None]) -> Iterator[str]:
    # in a child of the sandbox, so that the launcher and its processes end with the kernel
    wanted = {**os.environ, **here, "TMPDIR": folder}
    wanted["PYTHONPATH"] = str(Path(labkit.__file__).parents[1])
    environment = {name: text for name, text in wanted.items() if text is not None}
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=environment, **piped) as started:
        yield from (line.rstrip() for line in started.stdout or ())
    yield f"exit code {started.returncode}"


def _said_by_a_process(line: str) -> str:
    return line if line.startswith(("process", "variables")) else ""


def printed(lines: Mapping[str, Sequence[str]]) -> None:
    """What each command printed, less the line on variables."""
    for name, said in lines.items():
        print(f"$ {name}")
        for line in said:
            if line and not line.startswith(("variables", "exit code")):
                print(f"    {line}")
        print()


def processes(said: Sequence[str]) -> list[list[int]]:
    """The rows that each process of a launch named, a list a process."""
    own = [line for line in said if line.startswith("process")]
    return [json.loads(line[line.index("[") :]) for line in own]


def variables(lines: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """A row a launch: its processes, and each variable's values in them."""
    rows = []
    for name, said in lines.items():
        found = [json.loads(line[10:]) for line in said if line.startswith("variables ")]
        row: dict[str, Any] = {"started with": name.split(" --")[0].removesuffix(" train.py")}
        row["processes"] = len(found)
        for variable in SET:
            values = [one.get(variable, "–") for one in found]
            row[variable] = values[0] if len(set(values)) == 1 else ", ".join(values)
        rows.append(row)
    return rows


# ---- training in two processes


def grpo_loss(it: Policy, prompts: list[str], dice: torch.Generator) -> torch.Tensor:
    """Eight completions for each prompt, drawn with `dice`; their advantages; -advantage x log-prob.

    Summed over a completion's tokens and averaged over completions: GRPO's loss in the first update of a round, where
    the ratio is 1, with beta = 0. All processes have as many completions, so the mean of their means is the whole mean.
    """
    out = rollout.generate(it, prompts, num_samples=GROUP, generator=dice)
    rewards = task.rewards([prompt for prompt in prompts for _ in range(GROUP)], out.texts)
    advantages = group_advantage(torch.tensor(rewards, device=it.device), GROUP)
    length = out.tokens.shape[1]
    logp, _ = token_logprobs_of_groups(it.model, out.ids, out.attention_mask, length)
    return -(advantages[:, None] * logp * out.mask).sum(1).mean()


def run(
    train: Callable[..., Iterator[tuple[list[str], Any]]],
    deal: Callable[..., Any],
    seeds: Sequence[int],
    world: int = 2,
    every_round: bool = True,
) -> dict[int, Run]:
    """Train with `train(deal, rank, world, seed)` in `world` real processes, a seed after the other.

    The processes are forked from this course's warm one, which saves the 3 s of an `import torch`, and are given rank
    and world by argument. They join over gloo.

    every_round  whether the exam is sat after each round, or at the end alone

    Returns seed -> the run of process 0; for each process `meta["rows"]` has the prompts of the first round, and
    `meta["weights"]` the weights at the end.
    """
    loopback = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    with tempfile.TemporaryDirectory(prefix="lesson-17-") as folder:
        ranks = {rank: {"rank": rank} for rank in range(world)}
        common = {"train": train, "deal": deal, "seeds": list(seeds), "world": world}
        common |= {"meeting": f"{folder}/meeting", "every_round": every_round}
        both = sandbox.run_all(_process, ranks, at_once=world, timeout=200, env=loopback, **common)
    for rank, one in both.items():
        if not one.outcome:
            raise RuntimeError(f"process {rank}: {one.outcome.traceback or one.outcome.signature}")
    runs = {}
    for seed in seeds:
        events = [[event for of, event in one.events if of == seed] for one in both.values()]
        rows = [next(event for event in mine if isinstance(event, list)) for mine in events]
        weights = [mine[-1] for mine in events]
        exams = [event for event in events[0] if isinstance(event, Exam)]
        meta = {"rows": rows, "weights": weights}
        runs[seed] = Run(events=exams, outcome=both[0].outcome, meta=meta)
    return runs


def _process(
    train: Any, deal: Any, seeds: list[int], world: int, rank: int, meeting: str, every_round: bool
) -> Iterator[tuple[int, Any]]:
    torch.set_num_threads(1)
    if world > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world
        )
    paper = exam.paper(load("tiny", "cpu").tokenizer, "add")
    for seed in seeds:
        model: Any = None
        number = 0
        for number, (prompts, model) in enumerate(train(deal, rank, world, seed)):
            if number == 1:
                yield seed, prompts
            if rank == 0 and every_round:
                yield seed, Exam(number, {"add": paper.mean(model)})
        if rank == 0 and not every_round:
            yield seed, Exam(number, {"add": paper.mean(model)})
        yield seed, torch.cat([weight.detach().flatten().cpu() for weight in model.parameters()])
    if world > 1:
        torch.distributed.destroy_process_group()  # without it a process may abort as it ends


def ends(runs: Mapping[int, Run]) -> list[float]:
    """The exam after the last round, for each seed."""
    return [one.exam("add")[-1] for one in runs.values()]


def mean_gain(runs: Mapping[int, Run], over: Mapping[int, Run]) -> float:
    """How much higher the exam ends than that of the same seed in the other arm, mean over seeds."""
    pairs = list(zip(ends(runs), ends(over), strict=True))
    return sum(mine - other for mine, other in pairs) / len(pairs)


def apart(runs: Mapping[int, Run]) -> float:
    """The largest difference between a weight of process 0 and the same of process 1, at the end, over all seeds."""
    pairs = (one.meta["weights"] for one in runs.values())
    return max(float((first - second).abs().max()) for first, second in pairs)


def exams_side_by_side(one: Run, two: Run, rounds: Sequence[int]) -> list[dict[str, Any]]:
    """The exams after some rounds, with all their digits."""
    return [
        {
            "after round": at,
            "one process": f"{one.exam('add')[at]:.10f}",
            "two processes": f"{two.exam('add')[at]:.10f}",
        }
        for at in rounds
    ]


def arms(runs: Mapping[str, Mapping[int, Run]]) -> list[dict[str, Any]]:
    """A row an arm: how many different prompts a round has, and where the exam ends on each seed."""
    rows = []
    for arm, of_arm in runs.items():
        first = next(iter(of_arm.values())).meta["rows"]
        row: dict[str, Any] = {"arm": arm, "different prompts a round": len(set(sum(first, [])))}
        row["exam at the end"] = ", ".join(f"{end:.3f}" for end in ends(of_arm))
        row["mean"] = round(sum(ends(of_arm)) / len(of_arm), 3)
        rows.append(row)
    return rows


# ---- one group over two processes


def spread(seeds: Sequence[int], number: int = 32, model: str = "tiny") -> list[list[list[str]]]:
    """For each of so many prompts: the four completions that each process draws, with its seed. In one child."""
    done = sandbox.run(_drawn, list(seeds), number, model, timeout=100)
    if not done.outcome:
        raise RuntimeError(f"spread: {done.outcome.traceback or done.outcome.signature}")
    return [[texts[4 * at : 4 * at + 4] for texts in done.events] for at in range(number)]


def _drawn(seeds: list[int], number: int, model: str) -> Iterator[list[str]]:
    it = load(model, "cpu")
    prompts = ADD.sample(number, random.Random(17))
    for seed in seeds:
        dice = torch.Generator().manual_seed(seed)
        yield rollout.generate(it, prompts, num_samples=4, generator=dice).texts


def alike(groups: Sequence[Sequence[Sequence[str]]]) -> float:
    """The share of completions that both processes have at the same place."""
    pairs = [pair for first, second in groups for pair in zip(first, second, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def spread_table(cases: Mapping[str, Sequence[Sequence[Sequence[str]]]]) -> list[dict[str, Any]]:
    """A row a case: the first prompt's completions in each process, and how many are the same over all prompts."""
    rows = []
    for name, groups in cases.items():
        first, second = (" ".join(texts) for texts in groups[0])
        row = {"seeds": name, "process 0 draws": first, "process 1 draws": second}
        rows.append(row | {"the same at the same place, all prompts": f"{alike(groups):.0%}"})
    return rows


# ---- look-alikes and the diagnosis


def logs(seed: int) -> list[tuple[str, list[dict[str, Any]]]]:
    """(name, log) of launches on a data set of 64 rows, or of 63. A log has a dict a process: rank, world, rows."""
    rows = random.Random(seed).sample(range(64), 64)
    other = random.Random(seed + 1).sample(range(64), 64)
    odd = [row for row in rows if row != 63]
    filled = [*odd, odd[0]]

    def log(parts: Sequence[list[int]], world: int) -> list[dict[str, Any]]:
        return [{"rank": rank, "world": world, "rows": part} for rank, part in enumerate(parts)]

    return [
        ("one process", log([rows[:32]], 1)),
        ("not joined", log([rows[0::2], rows[1::2]], 1)),
        ("not joined", log([rows[:32], rows[:32]], 1)),
        ("same rows", log([rows[:32], rows[:32]], 2)),
        ("same rows", log([rows[:32], random.Random(seed).sample(rows[:32], 32)], 2)),
        ("each shuffles for itself", log([rows[:32], other[:32]], 2)),
        ("nothing found", log([rows[0::2], rows[1::2]], 2)),
        ("nothing found", log([rows[:32], rows[32:]], 2)),
        ("nothing found", log([filled[0::2], filled[1::2]], 2)),
    ]


def look_alikes(seed: int) -> list[dict[str, Any]]:
    """A row a launch: what its processes say, and who took which of the 64 rows."""
    chosen = {"one process": 0, "not joined": 1, "same rows": 3}
    chosen |= {"each shuffles for itself": 5, "nothing found": 6}
    table = []
    for name, at in chosen.items():
        log = logs(seed)[at][1]
        taken = [set(process["rows"]) for process in log]
        table.append(
            {
                "launch": name if name != "nothing found" else "the fix",
                "logs": len(log),
                "world size, as each says": log[0]["world"],
                "rows in both": len(taken[0] & taken[1]) if len(taken) > 1 else "–",
                "rows of 64 that nobody takes": 64 - len(set().union(*taken)),
            }
        )
    return table


def names_them_all(diagnose: Callable[..., Any]) -> Report:
    """The check of the diagnosis: each log is named, on three shuffles."""
    for seed in (1001, 1003, 1005):
        for name, log in logs(seed):
            said = diagnose(log)
            if said != name:
                short = [f"world {process['world']}" for process in log]
                hint = f"For '{name}' ({', '.join(short)}) it returned {said!r}."
                return Report("names_them_all", "each launch is named", False, {}, hint)
    return Report("names_them_all", "each launch is named", True)
