"""What a launcher tells the processes that it starts, and logs of four processes: for lesson 10's look-alikes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from props.lesson_10 import Deal, drawn

from labkit import sandbox
from labkit.grpo import load
from labkit.grpo.policy import Policy

from .children import events_of, python_path
from .diagnosis import shuffled

# --------------------------------------------------------------------------------------------------- what a launcher starts

LAUNCHERS = {
    "python train.py": [sys.executable],
    # `accelerate launch` itself; the command `accelerate` imports all its others first, which takes a second
    "accelerate launch --cpu --num_processes 2 train.py": [
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--cpu", "--num_processes", "2"),
    ],
    # torchrun itself; its sockets listen on this machine alone
    "torchrun --nproc_per_node 2 train.py": [
        *(sys.executable, "-m", "labkit.launch"),
        *("--nproc_per_node", "2"),
    ],
}
SET = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
# one write a process: two of them share a pipe, so a line has to leave in one piece
SCRIPT = f"""
import json, os, sys
told = {{name: os.environ[name] for name in {SET} if name in os.environ}}
sys.stdout.write("told " + json.dumps(told) + "\\n")
"""


def started() -> list[dict[str, Any]]:
    """Start a file in the three ways, side by side. A row a launch: its processes, and what they were told."""
    # as on a machine without a GPU, and without what a launcher above this one has set
    here: dict[str, str | None] = {name: None for name in SET}
    here |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="lesson-10-") as folder:
        path = Path(folder) / "train.py"
        path.write_text(SCRIPT)
        commands = {name: {"command": [*start, str(path)]} for name, start in LAUNCHERS.items()}
        runs = sandbox.run_all(_lines, commands, folder=folder, here=here, timeout=120)
    return [_row(name, events_of(run, name)) for name, run in runs.items()]


def _row(name: str, lines: Sequence[str]) -> dict[str, Any]:
    told = sorted(line for line in lines if line.startswith("told "))
    found = [json.loads(line.removeprefix("told ")) for line in told]
    row: dict[str, Any] = {"started with": name, "processes": len(found)}
    for variable in SET:
        values = sorted({one.get(variable, "–") for one in found})
        row[variable] = ", ".join(values)
    return row


def _lines(command: list[str], folder: str, here: Mapping[str, str | None]) -> Iterator[str]:
    # in a child of the sandbox, so that the launcher and its processes end with the kernel
    wanted = {**os.environ, **here, "TMPDIR": folder, "PYTHONPATH": python_path()}
    environment = {name: text for name, text in wanted.items() if text is not None}
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=environment, **piped) as started:
        yield from (line.rstrip() for line in started.stdout or ())


# ---------------------------------------------------------------------------------------------- logs of four processes


def log_of(
    policy: Policy, deal: Deal, seed: int, told: Sequence[tuple[int, int]]
) -> list[dict[str, Any]]:
    """The first round of four processes, drawn here one after the other: a dict for each, machine by machine.

    told  (rank, world size) as each process takes them to be
    """
    log = []
    for rank, world in told:
        prompts, generator = deal(rank, world, seed)
        answers = drawn(policy, prompts[:4], generator)
        log.append(
            {"rank": rank, "world": world, "prompts": prompts[:4], "completions": answers.texts}
        )
    return log


def unseen_logs(deals: Mapping[str, Deal], seed: int) -> list[tuple[str, list[dict[str, Any]]]]:
    """(cause, log) of eight runs of four processes, in an order of the seed's.

    deals  "copies", "same rows" and "nothing found" -> a deal by rank, world and seed
    """
    policy = load("tiny", "cpu")
    right = [(rank, 4) for rank in range(4)]

    def pairs_share(rank: int, world: int, at: int) -> Any:
        rows, _ = deals["nothing found"](rank // 2, world // 2, at)
        return rows, deals["nothing found"](rank, world, at)[1]

    def by_local_rank(rank: int, world: int, at: int) -> Any:
        return deals["nothing found"](rank % 2, 2, at)

    cases = {
        "world size": (deals["nothing found"], [(0, 1)] * 4),
        "world size 2": (deals["nothing found"], [(0, 2), (1, 2)] * 2),
        "copies": (deals["copies"], right),
        "LOCAL_RANK": (by_local_rank, right),
        "LOCAL_RANK 2": (by_local_rank, right),
        "same rows": (deals["same rows"], right),
        "same rows 2": (pairs_share, right),
        "nothing found": (deals["nothing found"], right),
    }
    logs: dict[str, Any] = {}
    for number, (name, (deal, told)) in enumerate(cases.items()):
        logs[name] = log_of(policy, deal, seed + number, told)
    return shuffled(logs, seed)


def rows_of(log: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A log as a table: a row a process, with its first prompt's first four answers."""
    table = []
    for line in log:
        row = {"rank": line["rank"], "world": line["world"]}
        row["prompts"] = " ".join(line["prompts"])
        table.append(row | {"completions[:4]": " ".join(line["completions"][:4])})
    return table
