"""Lesson 10: its two processes, the runs in one process, and what it says of TRL and accelerate."""

import os
import subprocess
import sys
import threading

import psutil
import pytest
import torch
from cut import FOLDER, Page
from props import lesson_10 as lab
from props import lesson_10_cases as cases
from props import lesson_10_launches as launches
from props import lesson_10_pictures as pictures
from props import lesson_10_simulated as simulated

from labkit.events import Exam, Outcome, Run, Step
from labkit.grpo import policy


def test_two_pairs_at_once_never_meet_and_listen_on_the_loopback_only():
    def summed(rank, world, value):
        for _ in range(20):
            yield lab.total(value)
        assert {c.laddr.ip for c in psutil.Process().net_connections() if c.laddr} == {"127.0.0.1"}

    sums = {}

    def pair(value):
        (runs,) = lab.processes(summed, {"": {"value": value}}).values()
        assert all(run.outcome for run in runs), runs
        sums[value] = {float(total) for run in runs for total in run.events}

    threads = [threading.Thread(target=pair, args=(value,)) for value in (1.0, 100.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sums == {1.0: {2.0}, 100.0: {200.0}}


def test_a_process_that_fails_ends_as_a_run_and_the_next_pair_goes_on(monkeypatch):
    """So a reader's function may raise in one process, or in both before they meet."""

    def work(rank, world, fails):
        if rank in fails:
            raise ValueError("rank " + str(rank))
        yield float(lab.total(1.0))

    monkeypatch.setattr(lab, "LIMIT", 30.0)
    done = lab.processes(work, {"one": {"fails": [1]}, "both": {"fails": [0, 1]}, "none": {"fails": []}})
    assert [run.outcome.exception for run in done["both"]] == ["ValueError", "ValueError"]
    assert done["one"][1].outcome.message == "rank 1" and not done["one"][0].outcome
    assert [run.events for run in done["none"]] == [[2.0], [2.0]] and all(run.outcome for run in done["none"])


def test_weights_of_tokens_make_the_gradient_that_ddp_makes_of_local_means():
    """What the simulated rows of the chart stand on."""
    it = policy.load("tiny", "cpu")
    answers = cases.first_answers(it, 0)
    assert len(set(answers.mask.sum(1).tolist())) > 1

    def gradient(loss):
        it.model.zero_grad()
        loss.backward()
        return cases.gradient(it.model)

    for dealt in ("as drawn", "sorted by length"):
        parts = []
        for rows in simulated.halves(answers.mask, dealt):
            part = answers.take(rows)
            parts.append(gradient((lab.per_token_loss(it.model, part) * part.mask).sum() / part.mask.sum()))
        weights = simulated.token_weights(answers.mask, dealt)
        whole = gradient((lab.per_token_loss(it.model, answers) * weights).sum())
        torch.testing.assert_close((parts[0] + parts[1]) / 2, whole, atol=1e-6, rtol=1e-4)
        assert weights.sum() == pytest.approx(1)


def test_the_ways_to_deal_leave_no_row_out_but_where_a_length_has_an_odd_count():
    mask = (torch.arange(4) < torch.tensor([1, 2, 3, 4, 4, 2, 2, 1])[:, None]).long()
    for deal in (cases.as_drawn, cases.sorted_by_length, cases.every_other):
        assert sorted(torch.cat(deal(mask)).tolist()) == list(range(8))
    first, second = cases.as_many_tokens(mask)
    lengths = mask.sum(1)
    assert lengths[first].tolist() == lengths[second].tolist() and len(first) == 3
    assert not set(first.tolist()) & set(second.tolist())
    shorter, longer = cases.sorted_by_length(mask)
    assert lengths[shorter].max() <= lengths[longer].min()


def test_an_averaged_loss_has_the_gradient_of_local_means_bit_for_bit_and_the_mean_of_both_as_its_value():
    averaged, local_mean = Page("10")["averaged"], Page("10")["local_mean"]

    def work(rank, world):
        per_token = torch.tensor([[1.0 + rank, 4.0]], requires_grad=True)
        mask = torch.tensor([[1, rank]])
        for loss in (averaged(per_token, mask), local_mean(per_token, mask, lab.total, world)):
            (gradient,) = torch.autograd.grad(loss, per_token)
            yield float(loss), gradient.tolist()

    (runs,) = lab.processes(work, {"": {}}).values()
    (value_0, gradient_0), (own_0, local_0) = runs[0].events
    (value_1, gradient_1), (own_1, local_1) = runs[1].events
    assert gradient_0 == local_0 and gradient_1 == local_1
    assert value_0 == value_1 == (own_0 + own_1) / 2 and own_0 != own_1


def test_a_launch_of_torchrun_gives_two_ranks_and_accelerates_says_not_a_word_of_it():
    pytest.importorskip("accelerate")
    python, accelerate, torchrun = launches.started()
    assert (python["processes"], accelerate["processes"], torchrun["processes"]) == (1, 1, 2)
    assert (torchrun["RANK"], torchrun["WORLD_SIZE"], accelerate["RANK"]) == ("0, 1", "2", "–")


def test_a_run_that_died_stands_at_the_edge_of_the_chart_and_in_the_box_as_ended():
    from matplotlib.figure import Figure

    right = [Run(events=[Exam(0, {"add": 0.4}), Exam(16, {"add": 0.7})])] * 2
    died = Run(events=[Exam(0, {"add": 0.4})], outcome=Outcome(signature="timeout"))
    counted = Step(1, extra={"tokens_0": 2.0, "tokens_1": 6.0})
    late = Run(events=[counted, Exam(0, {"add": 0.4}), Exam(16, {"add": 0.71})])
    chart = pictures.DifferenceChart("title")
    chart.add("row", [died, late], right)
    assert chart.differences("row") == pytest.approx([-0.7, 0.01])
    assert chart.table()[0]["weights"] == "0.67 to 2.00" and chart._picture()["image/png"]
    axes = Figure().subplots()
    pictures.draw_cards(axes, tokens_on_card_0=2, rows="own", cards={}, tone="fix")
    assert axes.texts[0].get_text() == "ended by an error" and not axes.patches
    pictures.draw_cards(axes, tokens_on_card_0=1, rows="own", cards={("own", 1): [[0.5], [1 / 14] * 7]}, tone="fix")
    shown = [text.get_text() for text in axes.texts]
    assert len(axes.patches) == 8 and "1/2" in shown and "1/14" in shown


def test_a_pair_that_died_has_no_gradient_and_one_that_is_nan_neither():
    nan = {"dealt": "as drawn", "tokens": 3, "difference": float("nan")}
    found = pictures.differences_of([Run(events=[nan])], ["as drawn", "sorted"])
    assert set(found.values()) == {float("inf")} and len(found) == 2


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
