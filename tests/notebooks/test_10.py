"""Lesson 10: its two processes, its diagnosis, and what it says of TRL, transformers and accelerate."""

import inspect
import sys
import threading

import psutil
import pytest
import torch
from cut import FOLDER, bug_cells

from labkit import checks, policy

sys.path.append(str(FOLDER))
from props import lesson_10 as props


def test_the_check_refuses_the_bug_as_it_stands():
    bug = bug_cells("10")["local_mean"]
    report = checks.shared_loss(lambda per_token, mask, total, world: bug(per_token, mask))
    assert not report and "its own tokens" in report.hint


def test_the_deals_share_out_every_row_once_but_for_twins_and_the_same_rows():
    _, batch = props.start(0, "tiny")
    for deal in (props.shuffled, props.sorted_by_length, props.one_task_each):
        assert torch.cat(deal(batch)).sort().values.tolist() == list(range(64)), deal
    first, second = props.twins(batch)
    lengths = batch.mask.sum(1)
    assert lengths[first].tolist() == lengths[second].tolist() and not set(first.tolist()) & set(second.tolist())


def test_both_processes_listen_on_the_loopback_only():
    def addresses(model, batch, rows, loss_of, wrap):
        wrap(model)
        assert {c.laddr.ip for c in psutil.Process().net_connections() if c.laddr} == {"127.0.0.1"}
        yield torch.zeros(1)

    case = {"deal": props.one_task_each, "loss_of": None}
    assert len(props.two_processes(addresses, 0, "tiny", {"here": case})["here"]) == 2


def test_two_copies_of_the_lesson_at_once_never_meet():
    def summed(model, batch, rows, loss_of, wrap):
        for _ in range(20):
            value = torch.tensor([loss_of])
            torch.distributed.all_reduce(value)
            yield value

    sums = {}

    def copy(value):
        case = {"deal": props.one_task_each, "loss_of": value}
        pair = props.two_processes(summed, 0, "tiny", {"sum": case})["sum"]
        sums[value] = {float(total) for process in pair for total in process}

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

    case = {"deal": props.one_task_each, "loss_of": None}
    with pytest.raises(RuntimeError, match="process 0: .*my rows are the first"):
        props.two_processes(one_fails, 0, "tiny", {"here": case})


# What the lesson says of others


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")  # trl's own
@pytest.mark.parametrize("loss_type, the_same", [("dapo", True), ("bnpo", False), ("grpo", True), ("dr_grpo", True)])
def test_trls_loss_of_two_processes_against_one(tmp_path, monkeypatch, loss_type, the_same):
    """TRL's own `_compute_loss` on both halves of a batch, the gradients averaged as DDP does, and on the whole."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    loaded = policy.load("tiny", "cpu")
    sizes = {"per_device_train_batch_size": 8, "num_generations": 8, "beta": 0.0, "max_completion_length": 6}
    quiet = {"bf16": False, "report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    trainer = trl.GRPOTrainer(
        model=loaded.model,
        processing_class=loaded.tokenizer,
        args=trl.GRPOConfig(str(tmp_path), loss_type=loss_type, **sizes, **quiet),
        reward_funcs=lambda completions, **_: [0.0 for _ in completions],
        train_dataset=datasets.Dataset.from_dict({"prompt": ["12+34="]}),
    )
    trainer.current_gradient_accumulation_steps = 1
    generator = torch.Generator().manual_seed(0)
    prompt_ids, prompt_mask = loaded.encode(["12+34="] * 8)
    lengths = torch.tensor([1, 2, 1, 2, 6, 5, 6, 4])
    batch = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": torch.randint(0, 10, (8, 6), generator=generator),
        "completion_mask": (torch.arange(6) < lengths[:, None]).long(),
        "advantages": torch.randn(8, generator=generator),
    }
    ids = torch.cat([prompt_ids, batch["completion_ids"]], 1)
    attention_mask = torch.cat([prompt_mask, batch["completion_mask"]], 1)
    with torch.no_grad():
        batch["old_per_token_logps"], _ = policy.token_logprobs(loaded.model, ids, attention_mask, 6)

    def gradient(rows, processes):
        monkeypatch.setattr(type(trainer.accelerator), "num_processes", processes)
        loaded.model.zero_grad()
        inputs = {name: value[rows] for name, value in batch.items()}
        inputs["num_items_in_batch"] = batch["completion_mask"].sum()  # TRL gathers it from all processes
        trainer._compute_loss(loaded.model.eval(), inputs).backward()
        return torch.cat([p.grad.flatten() for p in loaded.model.parameters()])

    alone = gradient(slice(0, 8), 1)
    pair = (gradient(slice(0, 4), 2) + gradient(slice(4, 8), 2)) / 2
    off = float((pair - alone).norm() / alone.norm())
    assert (off < 1e-5) if the_same else (off > 0.1), off


def test_trls_default_is_dapo_and_transformers_counts_the_tokens_of_all_devices():
    trl = pytest.importorskip("trl")
    from transformers import Trainer, TrainingArguments

    assert trl.GRPOConfig.__dataclass_fields__["loss_type"].default == "dapo"
    assert TrainingArguments.__dataclass_fields__["average_tokens_across_devices"].default is True
    assert "average_tokens_across_devices" in inspect.getsource(Trainer)


def test_accelerates_backward_divides_by_the_number_of_micro_batches():
    from accelerate import Accelerator

    assert "loss / self.gradient_accumulation_steps" in inspect.getsource(Accelerator.backward)


def test_with_accumulation_the_loss_is_multiplied_by_the_number_of_micro_batches():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    losses = torch.tensor([1.0, 1, 4, 4, 4, 4, 4, 4], requires_grad=True)
    for part in (losses[:2], losses[2:]):
        accelerator.backward(part.sum() / len(losses) * 2)
    assert losses.grad.tolist() == [1 / 8] * 8


def test_advantages_from_its_own_answers_compare_the_rows_of_one_process_only():
    _, batch = props.start(0, "tiny")
    for rows in props.every_other(batch):
        own = props.own_groups(batch, rows)
        for prompt in set(batch.prompts):
            mine = [row for row in rows.tolist() if batch.prompts[row] == prompt]
            assert len(mine) == 4 and abs(float(own.advantages[mine].sum())) < 1e-5


def test_answers_are_of_unlike_length_on_every_seed():
    for seed in range(4):
        _, batch = props.start(seed, "tiny")
        short, long = (int(batch.mask[rows].sum()) for rows in props.sorted_by_length(batch))
        assert long - short >= 8
