"""Lesson 17: the fix beside one process, the group with copies, and what it says of accelerate."""

import os
import random
import subprocess
import sys

import pytest
import torch
from cut import FOLDER
from props import lesson_17 as props

from labkit.grpo import policy, rollout, task
from labkit.grpo.advantage import group_advantage


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
        generator = torch.Generator().manual_seed(rank)
        parts.append(gradient(props.grpo_loss(it, prompts[4 * rank :][:4], generator)[0]))
        generator.manual_seed(rank)
        drawn.append(rollout.generate(it, prompts[4 * rank :][:4], num_samples=8, generator=generator))
    texts = [text for out in drawn for text in out.texts]
    rewards = torch.tensor(task.rewards([prompt for prompt in prompts for _ in range(8)], texts))
    length = max(out.tokens.shape[1] for out in drawn)

    def of_both(name):
        rows = [(getattr(out, name), length - out.tokens.shape[1]) for out in drawn]
        return torch.cat([torch.nn.functional.pad(part, (0, fill)) for part, fill in rows])

    logp, _ = policy.token_logprobs_of_groups(it.model, of_both("ids"), of_both("attention_mask"), length)
    one = gradient(-(group_advantage(rewards, 8)[:, None] * logp * of_both("mask")).sum(1).mean())
    torch.testing.assert_close((parts[0] + parts[1]) / 2, one, atol=1e-5, rtol=1e-4)


def test_a_group_with_every_draw_twice_has_the_direction_of_its_half():
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0])  # two groups of four
    twice = torch.cat([rewards[:4], rewards[:4], rewards[4:], rewards[4:]])
    four = group_advantage(rewards, 4).view(2, 4)
    eight = group_advantage(twice, 8).view(2, 2, 4)
    torch.testing.assert_close(eight[:, 0], eight[:, 1])
    ratio = eight.mean(1) / four  # the same for both groups, so the whole gradient points the same way
    torch.testing.assert_close(ratio, torch.full_like(ratio, float(ratio[0, 0])), atol=1e-3, rtol=0)


def test_accelerate_starts_a_process_for_each_gpu(monkeypatch):
    launch = pytest.importorskip("accelerate.commands.launch")
    settings = []
    monkeypatch.setattr(launch, "multi_gpu_launcher", settings.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    launch.launch_command(launch.launch_command_parser().parse_args(["train.py"]))
    assert settings[0].num_processes == 4


def test_without_a_gpu_each_process_of_torchrun_is_alone_to_accelerate(tmp_path):
    pytest.importorskip("accelerate")
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch\nfrom accelerate import Accelerator\n"
        "accelerator = Accelerator()\n"
        "model = accelerator.prepare(torch.nn.Linear(1, 1))\n"
        "ranks = accelerator.process_index, accelerator.num_processes, torch.distributed.get_world_size()\n"
        "print(*ranks, type(model).__name__, file=open('rank' + os.environ['RANK'], 'w'))\n"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(FOLDER.parent)}
    command = [sys.executable, "-m", "labkit.launch", "--nproc_per_node", "2", str(script)]
    # each process writes a file of its own: on a shared pipe their lines can run into each other
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    written = [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)]
    assert written == ["0 1 2 Linear\n"] * 2, done.stdout + done.stderr[-500:]


def test_accelerate_deals_whole_batches_and_fills_up():
    data_loader = pytest.importorskip("accelerate.data_loader")
    from torch.utils.data import BatchSampler, SequentialSampler

    def part(rank):
        batches = BatchSampler(SequentialSampler(range(13)), batch_size=4, drop_last=False)
        shard = data_loader.BatchSamplerShard(batches, num_processes=2, process_index=rank, even_batches=True)
        return [row for batch in shard for row in batch]

    assert part(0) == [0, 1, 2, 3, 8, 9, 10, 11] and part(1) == [4, 5, 6, 7, 12, 0, 1, 2]
