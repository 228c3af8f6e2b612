"""Lesson 10: its two processes, and what it says of TRL and accelerate."""

import threading

import psutil
import pytest
import torch
from props import lesson_10 as props

from labkit.grpo import policy


def in_a_pair(work, loss_of=None):
    return props.two_processes(work, 0, "tiny", {"here": {"deal": props.one_task_each, "loss_of": loss_of}})["here"]


def test_two_copies_of_the_lesson_at_once_never_meet_and_listen_on_the_loopback_only():
    def summed(model, batch, rows, loss_of, wrap):
        for _ in range(20):
            value = torch.tensor([loss_of])
            torch.distributed.all_reduce(value)
            yield value
        assert {c.laddr.ip for c in psutil.Process().net_connections() if c.laddr} == {"127.0.0.1"}

    sums = {}

    def copy(value):
        sums[value] = {float(total) for process in in_a_pair(summed, value) for total in process}

    copies = [threading.Thread(target=copy, args=(value,)) for value in (1.0, 100.0)]
    for thread in copies:
        thread.start()
    for thread in copies:
        thread.join(120)
    assert sums == {1.0: {2.0}, 100.0: {200.0}}


def test_a_process_that_fails_is_named_and_the_other_does_not_wait_for_ever():
    def one_fails(model, batch, rows, loss_of, wrap):
        if 0 in rows.tolist():
            raise ValueError("my rows are the first")
        yield torch.zeros(1)

    with pytest.raises(RuntimeError, match="process 0: .*my rows are the first"):
        in_a_pair(one_fails)


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")  # trl's own
@pytest.mark.parametrize("loss_type, the_same", [("dapo", True), ("bnpo", False), ("grpo", True), ("dr_grpo", True)])
def test_trls_loss_of_two_processes_against_one(tmp_path, monkeypatch, loss_type, the_same):
    """TRL's own `_compute_loss` on both halves of a batch, the gradients averaged as DDP does, and on the whole."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    loaded = policy.load("tiny", "cpu")
    settings = {"per_device_train_batch_size": 8, "num_generations": 8, "max_completion_length": 6, "bf16": False}
    config = trl.GRPOConfig(str(tmp_path), loss_type=loss_type, beta=0.0, report_to=[], use_cpu=True, **settings)
    rows = datasets.Dataset.from_dict({"prompt": ["12+34="]})
    reward = lambda completions, **_: [0.0 for _ in completions]
    trainer = trl.GRPOTrainer(loaded.model, reward, config, rows, processing_class=loaded.tokenizer)
    trainer.current_gradient_accumulation_steps = 1
    generator = torch.Generator().manual_seed(0)
    prompt_ids, prompt_mask = loaded.encode(["12+34="] * 8)
    completion_ids = torch.randint(0, 10, (8, 6), generator=generator)
    completion_mask = (torch.arange(6) < torch.tensor([1, 2, 1, 2, 6, 5, 6, 4])[:, None]).long()
    ids, mask = torch.cat([prompt_ids, completion_ids], 1), torch.cat([prompt_mask, completion_mask], 1)
    batch = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.randn(8, generator=generator),
        "old_per_token_logps": policy.token_logprobs(loaded.model, ids, mask, 6)[0].detach(),
    }

    def gradient(rows, processes):
        monkeypatch.setattr(type(trainer.accelerator), "num_processes", processes)
        loaded.model.zero_grad()
        inputs = {name: value[rows] for name, value in batch.items()}
        inputs["num_items_in_batch"] = completion_mask.sum()  # TRL gathers it from all processes
        trainer._compute_loss(loaded.model.eval(), inputs).backward()
        return torch.cat([p.grad.flatten() for p in loaded.model.parameters()])

    alone = gradient(slice(0, 8), 1)
    pair = (gradient(slice(0, 4), 2) + gradient(slice(4, 8), 2)) / 2
    off = float((pair - alone).norm() / alone.norm())
    assert (off < 1e-5) if the_same else (off > 0.1), off


def test_accelerate_divides_by_the_number_of_micro_batches_so_the_loss_is_multiplied_by_it():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    losses = torch.tensor([1.0, 1, 4, 4, 4, 4, 4, 4], requires_grad=True)
    for part in (losses[:2], losses[2:]):
        accelerator.backward(part.sum() / len(losses) * 2)
    assert losses.grad.tolist() == [1 / 8] * 8
