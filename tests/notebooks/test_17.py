"""Lesson 17: bug and fix, the group with copies, the checks of its exercises, and what it says of libraries."""

import inspect
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cut import FOLDER, installed, path_of

import labkit
from labkit import checks, policy, rollout, task
from labkit.advantage import group_advantage

sys.path.append(str(FOLDER))
from props import lesson_17 as props

CELLS = json.loads(path_of("17").read_text())["cells"]


def defined(name):
    """A function of the lesson's cells, alone, with `ADD` as a data set of numbers that `seed` shuffles."""
    (source,) = [
        "".join(c["source"]) for c in CELLS if c["cell_type"] == "code" and f"def {name}(" in "".join(c["source"])
    ]
    numbers = SimpleNamespace(sample=lambda count, dice: dice.sample(range(count), count))
    cpu = SimpleNamespace(pick_device=torch.device)
    space = {"torch": torch, "random": random, "ADD": numbers, "policy": cpu, "DEVICE": "cpu"}
    exec(source.split("\n\n\n")[0], space)
    return space[name]


def test_the_bug_gives_both_processes_the_same_and_the_fix_neither_rows_nor_dice():
    (rows, dice), (others, other_dice) = (defined("deal")(rank, 2, 0) for rank in (0, 1))
    assert rows == others and dice.initial_seed() == other_dice.initial_seed()
    (rows, dice), (others, other_dice) = (defined("deal_by_rank")(rank, 2, 0) for rank in (0, 1))
    assert not set(rows) & set(others) and sorted(rows + others) == list(range(200))
    assert dice.initial_seed() != other_dice.initial_seed()


def test_the_mean_of_the_two_gradients_is_that_of_one_process_with_all_their_completions():
    """The fix: eight prompts and 64 completions, dealt to two processes or scored in one batch."""
    it = policy.load("tiny", "cpu")
    prompts = props.ADD.sample(8, random.Random(3))

    def gradient(loss):
        it.model.zero_grad()
        loss.backward()
        return torch.cat([weight.grad.flatten() for weight in it.model.parameters()])

    parts, drawn = [], []
    for rank in (0, 1):
        dice = torch.Generator().manual_seed(rank)
        parts.append(gradient(props.grpo_loss(it, prompts[4 * rank : 4 * rank + 4], dice)[0]))
        dice.manual_seed(rank)
        drawn.append(rollout.generate(it, prompts[4 * rank : 4 * rank + 4], num_samples=8, generator=dice))
    texts = [text for out in drawn for text in out.texts]
    rewards = torch.tensor(task.rewards([prompt for prompt in prompts for _ in range(8)], texts))
    length = max(out.tokens.shape[1] for out in drawn)
    fill = [length - out.tokens.shape[1] for out in drawn]
    pad = torch.nn.functional.pad
    ids = torch.cat([pad(out.ids, (0, more)) for out, more in zip(drawn, fill, strict=True)])
    seen = torch.cat([pad(out.attention_mask, (0, more)) for out, more in zip(drawn, fill, strict=True)])
    counts = torch.cat([pad(out.mask, (0, more)) for out, more in zip(drawn, fill, strict=True)])
    logp, _ = policy.token_logprobs_of_groups(it.model, ids, seen, length)
    one = gradient(-(group_advantage(rewards, 8)[:, None] * logp * counts).sum(1).mean())
    torch.testing.assert_close((parts[0] + parts[1]) / 2, one, atol=1e-5, rtol=1e-4)


def test_an_uneven_deck_needs_filling_up():
    assert checks.rows_split(lambda rows, rank, world: rows).passed is False
    assert checks.rows_split(lambda rows, rank, world: rows[rank::world]).passed is False
    assert checks.rows_split(lambda rows, rank, world: (rows * world)[: -(-len(rows) // world) * world][rank::world])


def test_the_check_of_the_pairs_refuses_what_is_nearly_right():
    assert props.pairs_share(defined("dealt_to_pairs"))
    assert props.pairs_share(lambda rows, rank, world, seed: (rows[rank // 2 :: world // 2], 7 * seed + rank))
    wrong = (
        lambda rows, rank, world, seed: (rows[rank::world], seed + rank),  # a row of its own for each process
        lambda rows, rank, world, seed: (rows[rank // 2 :: world // 2], seed + rank // 2),  # copies in a pair
        lambda rows, rank, world, seed: (rows[rank // 2 :: world // 2], seed + rank % 2),  # pairs with equal dice
        lambda rows, rank, world, seed: (rows[rank % 2 :: 2], seed + rank),
        lambda rows, rank, world, seed: (rows, seed + rank),
        lambda rows, rank, world, seed: None,
    )
    for deal_pairs in wrong:
        assert not props.pairs_share(deal_pairs)


def test_the_solution_names_every_log_and_nearby_answers_do_not():
    diagnosed = defined("diagnosed")
    assert props.names_them_all(diagnosed)

    def rows_alone(log):
        drawn = [one | {"completions": []} for one in log]
        return diagnosed(drawn)

    def completions_alone(log):
        return diagnosed([one | {"prompts": []} for one in log])

    for wrong in (rows_alone, completions_alone, lambda log: "copies"):
        assert not props.names_them_all(wrong)


def test_a_group_with_every_draw_twice_has_the_direction_of_its_half():
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0])  # two groups of four
    twice = torch.cat([rewards[:4], rewards[:4], rewards[4:], rewards[4:]])
    four = group_advantage(rewards, 4).view(2, 4)
    eight = group_advantage(twice, 8).view(2, 2, 4)
    torch.testing.assert_close(eight[:, 0], eight[:, 1])
    ratio = eight.mean(1) / four  # the same for both groups, so the whole gradient points the same way
    torch.testing.assert_close(ratio, torch.full_like(ratio, float(ratio[0, 0])), atol=1e-3, rtol=0)


# ---- what it says of the libraries


def test_accelerate_leaves_several_processes_on_cpus_to_mpirun_and_starts_one():
    launch = pytest.importorskip("accelerate.commands.launch")
    args = launch.launch_command_parser().parse_args(["--cpu", "--num_processes", "2", "train.py"])
    args, *_ = launch._validate_launch_command(args)
    from accelerate.utils.launch import prepare_simple_launcher_cmd_env

    command, environment = prepare_simple_launcher_cmd_env(args)
    assert command[-1] == "train.py" and not any("mpi" in word for word in command)
    assert environment["MASTER_ADDR"] == "127.0.0.1" and environment["ACCELERATE_USE_CPU"] == "True"
    assert "mpirun_hostfile is not None" in installed("accelerate", "utils/launch.py")


def test_accelerate_starts_a_process_for_each_gpu(monkeypatch):
    launch = pytest.importorskip("accelerate.commands.launch")
    started = []
    monkeypatch.setattr(launch, "multi_gpu_launcher", started.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    launch.launch_command(launch.launch_command_parser().parse_args(["train.py"]))
    assert started[0].num_processes == 4


@pytest.mark.parametrize(("cpu", "joins"), [(False, False), (True, True)])
def test_without_a_gpu_accelerate_joins_only_when_it_is_told_cpu(monkeypatch, cpu, joins):
    state = pytest.importorskip("accelerate.state")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    _, kind = state.PartialState._prepare_backend(object(), cpu, False, None)
    assert (kind != state.DistributedType.NO) == joins


def test_without_a_gpu_each_process_of_torchrun_is_alone_to_accelerate(tmp_path):
    pytest.importorskip("accelerate")
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom accelerate import Accelerator\n"
        "accelerator = Accelerator()\n"
        "model = accelerator.prepare(torch.nn.Linear(1, 1))\n"
        "said = accelerator.process_index, accelerator.num_processes, torch.distributed.get_world_size()\n"
        "print(*said, type(model).__name__, flush=True)\n"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(Path(labkit.__file__).parents[1])}
    command = [sys.executable, "-m", "labkit.launch", "--nproc_per_node", "2", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:2] == ["0 1 2 Linear"] * 2, done.stdout + done.stderr[-500:]


def test_accelerate_deals_whole_batches_and_fills_up():
    data_loader = pytest.importorskip("accelerate.data_loader")
    from torch.utils.data import BatchSampler, SequentialSampler

    def part(rank):
        batches = BatchSampler(SequentialSampler(range(13)), batch_size=4, drop_last=False)
        shard = data_loader.BatchSamplerShard(batches, num_processes=2, process_index=rank, even_batches=True)
        return [row for batch in shard for row in batch]

    assert part(0) == [0, 1, 2, 3, 8, 9, 10, 11] and part(1) == [4, 5, 6, 7, 12, 0, 1, 2]


def test_trl_has_one_seed_for_its_rows_and_one_a_process_for_its_dice():
    trainer = installed("trl", "trainer/grpo_trainer.py")
    assert "set_seed(args.seed, device_specific=True)" in trainer
    assert re.search(r"return RepeatSampler\((?:.|\n)*?seed=self\.args\.seed,\n", trainer)
    random_ = pytest.importorskip("accelerate.utils.random")
    assert "seed += AcceleratorState().process_index" in inspect.getsource(random_.set_seed)
