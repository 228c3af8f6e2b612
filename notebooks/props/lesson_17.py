"""What lesson 17 uses and does not teach: three launches, two processes that join over gloo, GRPO's loss, how near a
gradient comes to that of many sums, the tables, and the checks of its exercises.

How rows and draws are dealt, and the loop that trains, stand in the notebook.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from labkit import sandbox
from labkit.grpo import exam, rollout, task
from labkit.grpo.advantage import group_advantage
from labkit.checks.report import PASS, CannotJudge, Report, Verdict, attempt, fail, judged
from labkit.events import Exam, Run
from labkit.grpo.policy import Policy, load, token_logprobs_of_groups

from .children import events_of, python_path

ADD = task.get("add")
GROUP = 8
EXAM_EVERY = 2  # rounds: an exam costs as much as a round of training
NAMES = ("world size", "copies", "LOCAL_RANK", "spread group", "nothing found")
OTHERS = 1000  # a shuffle by this seed more: sums that no arm of a measurement trains on

Deal = Callable[
    [int, int, int], tuple[list[str], torch.Generator]
]  # (rank, world, seed) -> rows, dice

# ---- the launches

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
    return {
        name: sorted(events_of(run, name), key=_said_by_a_process) for name, run in runs.items()
    }


def _lines(command: list[str], folder: str, here: Mapping[str, str | None]) -> Iterator[str]:
    # in a child of the sandbox, so that the launcher and its processes end with the kernel
    wanted = {**os.environ, **here, "TMPDIR": folder, "PYTHONPATH": python_path()}
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


def its_own(said: Sequence[str], word: str) -> list[str]:
    """The lines with a word in them that the launcher wrote, and not the script."""
    return [line for line in said if word in line and not line.startswith(("process", "variables"))]


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


def grpo_loss(
    it: Policy, prompts: list[str], dice: torch.Generator
) -> tuple[torch.Tensor, list[str]]:
    """Eight completions for each prompt, drawn with `dice`; their advantages; -advantage x log-prob. And the texts.

    Summed over a completion's tokens and averaged over completions: GRPO's loss in the first update of a round, where
    the ratio is 1, with beta = 0. All processes have as many completions, so the mean of their means is the whole mean.
    """
    out = rollout.generate(it, prompts, num_samples=GROUP, generator=dice)
    rewards = task.rewards([prompt for prompt in prompts for _ in range(GROUP)], out.texts)
    advantages = group_advantage(torch.tensor(rewards, device=it.device), GROUP)
    length = out.tokens.shape[1]
    logp, _ = token_logprobs_of_groups(it.model, out.ids, out.attention_mask, length)
    return -(advantages[:, None] * logp * out.mask).sum(1).mean(), out.texts


def run(
    train: Callable[..., Iterator[tuple[Any, dict[str, Any]]]],
    deal: Deal,
    seeds: Sequence[int],
    world: int = 2,
) -> dict[int, Run]:
    """Train with `train(deal, rank, world, seed)` in `world` real processes, a seed after the other.

    The processes are forked from this course's warm one, which saves the 3 s of an `import torch`, and are given rank
    and world by argument. They join over gloo.

    Returns seed -> the run of process 0, with the exam after every second round; `meta["logs"]` has each process's log, a dict a
    round, and `meta["weights"]` its weights at the end.
    """
    both = _processes(_trained, world, train=train, deal=deal, seeds=list(seeds))
    runs = {}
    for seed in seeds:
        events = [[event for of, event in one.events if of == seed] for one in both.values()]
        logs = [[event for event in mine if isinstance(event, dict)] for mine in events]
        exams = [event for event in events[0] if isinstance(event, Exam)]
        meta = {"logs": logs, "weights": [mine[-1] for mine in events]}
        runs[seed] = Run(events=exams, outcome=both[0].outcome, meta=meta)
    return runs


def _processes(work: Callable[..., Iterator[Any]], world: int, **settings: Any) -> dict[int, Run]:
    """`work(world, rank, **settings)` in each of `world` processes that meet over gloo: rank -> its events."""
    loopback = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    with tempfile.TemporaryDirectory(prefix="lesson-17-") as folder:
        ranks = {rank: {"rank": rank} for rank in range(world)}
        common = {
            "work": work,
            "world": world,
            "meeting": f"{folder}/meeting",
            "settings": settings,
        }
        both = sandbox.run_all(_joined, ranks, at_once=world, timeout=200, env=loopback, **common)
    for rank, one in both.items():
        events_of(one, f"process {rank}")
    return both


def _joined(
    work: Any, world: int, rank: int, meeting: str, settings: dict[str, Any]
) -> Iterator[Any]:
    torch.set_num_threads(1)
    if world > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world
        )
    yield from work(world=world, rank=rank, **settings)
    if world > 1:
        torch.distributed.destroy_process_group()  # without it a process may abort as it ends


def _trained(
    train: Any, deal: Deal, seeds: list[int], world: int, rank: int
) -> Iterator[tuple[int, Any]]:
    paper = exam.paper(load("tiny", "cpu").tokenizer, "add")
    for seed in seeds:
        model: Any = None
        for number, (model, log) in enumerate(train(deal, rank, world, seed)):
            if log:
                yield seed, log
            if rank == 0 and number % EXAM_EVERY == 0:
                yield seed, Exam(number, {"add": paper.mean(model)})
        yield seed, torch.cat([weight.detach().flatten().cpu() for weight in model.parameters()])


def gains(runs: Mapping[int, Run], over: Mapping[int, Run], at: int = -1) -> list[float]:
    """How much higher the exam is than that of the same seed in the other arm, for each seed, after a round."""
    pairs = zip(runs.values(), over.values(), strict=True)
    return [_exam(mine, at) - _exam(other, at) for mine, other in pairs]


def _exam(run: Run, after: int) -> float:
    """The exam after a round, or after the last one where `after` is -1."""
    return run.exam("add")[after // EXAM_EVERY]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def apart(runs: Mapping[int, Run]) -> float:
    """The largest difference between a weight of process 0 and the same of process 1, at the end, over all seeds."""
    pairs = (one.meta["weights"] for one in runs.values())
    return max(float((first - second).abs().max()) for first, second in pairs)


def exams_side_by_side(one: Run, two: Run, rounds: Sequence[int]) -> list[dict[str, Any]]:
    """The exams after some rounds, with all their digits, and the losses that the two processes logged."""
    rows = []
    for at in rounds:
        row: dict[str, Any] = {"round": at}
        row["one process: exam"] = f"{_exam(one, at):.10f}"
        row["two processes: exam"] = f"{_exam(two, at):.10f}"
        for rank, log in enumerate(two.meta["logs"]):
            row[f"loss that process {rank} logs"] = f"{log[at - 1]['loss']:.7f}"
        rows.append(row)
    return rows


def gains_by_round(
    runs: Mapping[int, Run], over: Mapping[int, Run], rounds: Sequence[int]
) -> list[dict[str, Any]]:
    """A row a round: the gain of each seed, and their mean."""
    rows = []
    for at in rounds:
        each = gains(runs, over, at)
        row: dict[str, Any] = {"fix less bug, after round": at}
        row |= {f"seed {seed}": f"{gain:+.3f}" for seed, gain in zip(runs, each, strict=True)}
        rows.append(row | {"mean": f"{mean(each):+.3f}"})
    return rows


# ---- how near a round's gradient comes to the gradient of many sums


def nearness(
    deals: Mapping[str, Deal], seed: int, rounds: int = 16, model: str = "tiny"
) -> dict[str, list[float]]:
    """Arm -> for each round, the cosine of two processes' mean gradient and the gradient of 200 sums of another shuffle.

    All gradients are those of the policy as it came. Simulated in one process: it takes both parts, one after the other.
    """
    settings = {"seed": seed, "rounds": rounds, "model": model}
    names = list(deals)
    halves = [{name: deals[name] for name in names[:2]}, {name: deals[name] for name in names[2:]}]
    jobs = {number: {"deals": half} for number, half in enumerate(halves)}  # a child for each
    cosines = {}
    for done in sandbox.run_all(_near, jobs, timeout=200, **settings).values():
        cosines |= dict(events_of(done, "nearness"))
    return cosines


def _near(
    deals: dict[str, Deal], seed: int, rounds: int, model: str
) -> Iterator[tuple[str, list[float]]]:
    torch.set_num_threads(1)
    it = load(model, "cpu")

    def gradient(prompts: list[str], dice: torch.Generator) -> torch.Tensor:
        it.model.zero_grad()
        grpo_loss(it, prompts, dice)[0].backward()
        return torch.cat([weight.grad.flatten() for weight in it.model.parameters()])

    deck, dice = next(iter(deals.values()))(0, 1, seed + OTHERS)
    whole = sum(gradient(deck[at : at + 40], dice) for at in range(0, 200, 40))
    streams: dict[
        Any, tuple[list[str], torch.Generator]
    ] = {}  # two arms share some: each is computed once
    parts: dict[str, list[Any]] = {}
    for arm, deal in deals.items():
        dealt = [deal(rank, 2, seed) for rank in (0, 1)]
        parts[arm] = [(tuple(deck), dice.initial_seed()) for deck, dice in dealt]
        streams |= dict(zip(parts[arm], dealt, strict=True))
    cosines: dict[str, list[float]] = {arm: [] for arm in deals}
    for at in range(0, 4 * rounds, 4):
        gradients = {
            name: gradient(deck[at : at + 4], dice) for name, (deck, dice) in streams.items()
        }
        for arm, (first, second) in parts.items():
            both = gradients[first] + gradients[second]
            cosines[arm].append(float(torch.cosine_similarity(both, whole, dim=0)))
    yield from cosines.items()


def nearness_table(
    deals: Mapping[str, Deal], near: Mapping[str, Sequence[float]], seed: int
) -> list[dict[str, Any]]:
    """A row an arm: prompts and fresh completions of a round, and the mean cosine with its standard error."""
    rows = []
    for arm, cosines in near.items():
        (deck, dice), (other_deck, other_dice) = (deals[arm](rank, 2, seed) for rank in (0, 1))
        same = deck == other_deck
        copies = same and dice.initial_seed() == other_dice.initial_seed()
        row: dict[str, Any] = {
            "arm": arm,
            "prompts a round": 4 if same else 8,
            "draws a round": 32 if copies else 64,
        }
        error = statistics.stdev(cosines) / len(cosines) ** 0.5
        rows.append(
            row
            | {
                "cosine, mean of 16 rounds": f"{mean(cosines):.2f}",
                "standard error": f"{error:.2f}",
            }
        )
    return rows


# ---- one group over two processes


def spread(seeds: Sequence[int], number: int = 64, model: str = "tiny") -> list[list[list[str]]]:
    """For each of so many prompts: the four completions that each process draws, with its seed. In one child."""
    done = sandbox.run(_drawn, list(seeds), number, model, timeout=100)
    draws = events_of(done, "spread")
    return [[texts[4 * at : 4 * at + 4] for texts in draws] for at in range(number)]


def _sums(number: int) -> list[str]:
    return ADD.sample(number, random.Random(17))


def _drawn(seeds: list[int], number: int, model: str) -> Iterator[list[str]]:
    it = load(model, "cpu")
    for seed in seeds:
        dice = torch.Generator().manual_seed(seed)
        yield rollout.generate(it, _sums(number), num_samples=4, generator=dice).texts


def alike(groups: Sequence[Sequence[Sequence[str]]]) -> float:
    """The share of completions that both processes have at the same place."""
    pairs = [pair for first, second in groups for pair in zip(first, second, strict=True)]
    return mean([a == b for a, b in pairs])


def alike_by_chance(groups: Sequence[Sequence[Sequence[str]]]) -> float:
    """The share of equal pairs among the four that one process drew for one prompt: these are independent draws."""
    pairs = [pair for parts in groups for part in parts for pair in itertools.combinations(part, 2)]
    return mean([a == b for a, b in pairs])


def spread_table(cases: Mapping[str, Sequence[Sequence[Sequence[str]]]]) -> list[dict[str, Any]]:
    """A row a case: the first prompt's completions in each process, and how many are the same over all prompts."""
    prompt = _sums(1)[0]
    rows = []
    for name, groups in cases.items():
        first, second = (", ".join(texts) for texts in groups[0])
        row = {"seeds": name, "sum": f"{prompt} (right: {ADD.answer(prompt)})"}
        row |= {"process 0 draws": first, "process 1 draws": second}
        rows.append(row | {"equal at the same place, 64 sums": f"{alike(groups):.0%}"})
    return rows


# ---- look-alikes: the first round of two real processes


def first_rounds(
    train: Any, cases: Mapping[str, tuple[Deal, int | None]], seed: int
) -> list[dict[str, Any]]:
    """Each case's first round in two processes, which are told their rank of 2, or rank 0 of 1 where the case says 1.

    Returns a row a case: the world size they print, what both have, and what both take in 16 rounds.
    """
    both = _processes(_first, 2, train=train, cases=dict(cases), seed=seed)
    rows = []
    for (name, first), (_, second) in zip(both[0].events, both[1].events, strict=True):
        draws = zip(first["completions"], second["completions"], strict=True)
        same = first["prompts"] == second["prompts"]
        row: dict[str, Any] = {"two processes": name, "world size": first["world"]}
        row["prompts in both, of 4"] = len({*first["prompts"]} & {*second["prompts"]})
        row["completions equal, of 32"] = sum(a == b for a, b in draws) if same else "–"
        rows.append(
            row | {"sums in both, 16 rounds of 4": len({*first["pass"]} & {*second["pass"]})}
        )
    return rows


def _first(
    train: Any, cases: dict[str, tuple[Deal, int | None]], seed: int, world: int, rank: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, (deal, told) in cases.items():
        place = (0, 1) if told == 1 else (rank, world)
        rounds = train(deal, *place, seed)
        next(rounds)  # the policy as it came
        _, log = next(rounds)
        yield name, log | {"world": place[1], "pass": deal(*place, seed)[0][:64]}


# ---- the exercises

DECK = [f"row {number}" for number in range(24)]
UNITS = {2: 1, 4: 2, 6: 3, 8: 4}  # processes -> pairs


def pairs_share(deal_pairs: Callable[..., Any]) -> Report:
    """The check of exercise A: neighbours take the same rows, pairs take different ones, all dice differ."""

    def judge(seen: dict[str, Any]) -> Verdict:
        for world, pairs in UNITS.items():
            seen["processes"] = world
            dealt = [attempt(deal_pairs, list(DECK), rank, world, 5) for rank in range(world)]
            if not all(isinstance(one, tuple) and len(one) == 2 for one in dealt):
                raise CannotJudge("Return two things: a list of rows, and the seed of the dice.")
            rows, seeds = [list(one[0]) for one in dealt], [one[1] for one in dealt]
            seen |= {"rows of each": [len(part) for part in rows], "seeds": seeds}
            if any(rows[rank] != rows[rank + 1] for rank in range(0, world, 2)):
                return fail(
                    "Processes 0 and 1 hold one group: they need the same rows in the same order. So do 2 and 3."
                )
            if sorted(sum(rows[::2], [])) != sorted(DECK):
                return fail(
                    "Two pairs share rows, or rows are lost: over all pairs each row stands once."
                )
            if len({*map(len, rows)}) > 1 or len(rows[0]) != len(DECK) // pairs:
                return fail("Each pair needs as many rows.")
            if len(set(seeds)) < world:
                return fail(
                    "Two processes have the same dice: in one group they would draw copies."
                )
        return PASS

    return judged(
        "pairs_share", "a pair shares rows, and no two processes share dice", deal_pairs, judge
    )


def four_logs(seed: int) -> list[tuple[str, list[dict[str, Any]]]]:
    """(name, log) of runs of four processes; made here, no process is started. A log has a dict a process, by rank."""
    chance = random.Random(seed)
    sets = [ADD.sample(4, chance) for _ in range(4)]

    def drawn(prompts: list[str]) -> list[str]:
        wrong = [str(int(ADD.answer(prompt)) - 10) for prompt in prompts]
        return [
            chance.choice([ADD.answer(prompt), other])
            for prompt, other in zip(prompts, wrong, strict=True)
        ]

    def log(of: Sequence[int], copied: Sequence[int], world: int = 4) -> list[dict[str, Any]]:
        draws: list[list[str]] = []
        for rank in range(4):
            draw = drawn(sets[of[rank]])
            while draw in draws:
                draw = drawn(sets[of[rank]])
            draws.append(draws[copied[rank]] if copied[rank] < rank else draw)
        ranks = range(4) if world == 4 else [0] * 4
        parts = zip(ranks, of, draws, strict=True)
        return [
            {"rank": rank, "world": world, "prompts": sets[at], "completions": draw}
            for rank, at, draw in parts
        ]

    return [
        ("world size", log([0, 0, 0, 0], [0, 0, 0, 0], world=1)),
        ("world size", log([0, 1, 0, 1], [0, 1, 2, 3], world=2)),
        ("copies", log([0, 0, 0, 0], [0, 0, 0, 0])),
        ("LOCAL_RANK", log([0, 1, 0, 1], [0, 1, 0, 1])),
        ("spread group", log([0, 0, 1, 1], [0, 1, 2, 3])),
        ("nothing found", log([0, 1, 2, 3], [0, 1, 2, 3])),
    ]


def names_them_all(diagnose: Callable[..., Any]) -> Report:
    """The check of exercise B: each log is named, on three shuffles."""

    def judge(seen: dict[str, Any]) -> Verdict:
        for seed in (1001, 1003, 1005):
            for name, log in four_logs(seed):
                said = attempt(diagnose, log)
                seen |= {"log of": name, "said": str(said)}
                if said != name:
                    return fail(f"One log is that of {name!r}.")
        return PASS

    return judged("names_them_all", f"each log has one of {len(NAMES)} names", diagnose, judge)
