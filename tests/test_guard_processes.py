"""`labkit.GuardCallback` with two processes and with fp16's loss scaler, as far as a CPU can show either."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from labkit.callback import GuardCallback

# What each of two processes runs: transformers' Trainer under DistributedDataParallel; they see different rows.
SCRIPT = """
import json, os, sys, warnings
warnings.filterwarnings("ignore")
import torch
from transformers import Trainer, TrainingArguments
import labkit

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        return {"loss": ((self.layer(x)[:, 0] - labels) ** 2).mean()}

rank = int(os.environ["RANK"])

class Objects(labkit.GuardCallback):
    # at the third update, in one process only: DDP gives both the same gradient
    def on_pre_optimizer_step(self, args, state, control, **given):
        self.skip_above = 1e-12 if rank == 1 and state.global_step == 2 else 1e6
        super().on_pre_optimizer_step(args, state, control, **given)

def trained(guard, label):
    torch.manual_seed(0)
    rows = [{"x": torch.full((4,), 0.1 * (i % 5)), "labels": torch.tensor(1.0)} for i in range(32)]
    rows[9]["labels"] = torch.tensor(label)
    args = TrainingArguments(sys.argv[1], max_steps=6, per_device_train_batch_size=2, learning_rate=0.01, use_cpu=True,
                             report_to=[], save_strategy="no", disable_tqdm=True, logging_steps=1, seed=0)
    trainer = Trainer(model=Model(), args=args, train_dataset=rows, callbacks=[guard])
    trainer.train()
    moments = trainer.optimizer.state_dict()["state"]
    return {"world": trainer.args.world_size, "skipped": guard.skipped,
            "weights": [p.tolist() for p in trainer.model.parameters()],
            "moments": [moments[k][n].tolist() for k in sorted(moments) for n in ("exp_avg", "exp_avg_sq")]}

# the loss of one row, and so of one process, overflows; one process objects
done = [trained(labkit.GuardCallback(1e6), 3e38), trained(Objects(), 1.0)]
with open(os.path.join(sys.argv[1], f"rank{rank}.json"), "w") as file:
    json.dump(done, file)
torch.distributed.barrier()  # both files are whole
sys.stderr.flush()
os._exit(0)  # DDP keeps gloo's threads until Python's own end, where they may abort a process that has done its work
"""


@pytest.mark.timeout(900)
def test_two_gloo_processes_skip_alike_and_stay_equal_bit_for_bit(tmp_path):
    """An overflow reaches both by the all-reduce of gradients; and where one process alone objects, both skip."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    command += [str(script), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    overflow, objection = first
    assert first == second and overflow["world"] == 2
    assert overflow["skipped"] and objection["skipped"] == [3]
    assert torch.tensor(overflow["weights"][0]).isfinite().all()


class Scaler(torch.amp.GradScaler):
    """The loss scaler on a CPU, counting how often gradients are unscaled."""

    def __init__(self):
        super().__init__("cpu", init_scale=1024.0)
        self.unscaled = 0

    def unscale_(self, optimizer):
        self.unscaled += 1
        super().unscale_(optimizer)


def scaled_step(guard, model, optimizer, scaler, x, step=0):
    """What the Trainer does at fp16 with accelerate: a scaled loss, the guard, the scaler's step and update."""
    optimizer.zero_grad()
    scaler.scale(model(x).square().mean()).backward()
    wrapped = SimpleNamespace(scaler=scaler, optimizer=optimizer)
    guard.on_pre_optimizer_step(None, SimpleNamespace(global_step=step), None, model=model, optimizer=wrapped)
    scaler.step(optimizer)
    scaler.update()


def fresh():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1), Scaler()


def state_of(model, optimizer):
    """Parameters and moments, copied."""
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [tensor.detach().clone() for tensor in [*model.parameters(), *moments]]


def test_under_the_loss_scaler_the_norm_is_that_of_the_unscaled_gradient():
    guard, (model, optimizer, scaler) = GuardCallback(), fresh()
    x = torch.ones(3, 4)
    gradients = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    scaled_step(guard, model, optimizer, scaler, x)
    assert scaler.unscaled == 1  # the scaler refuses a second time before update()
    assert guard.skipped == []
    assert guard._norms[0] == pytest.approx(float(torch.nn.utils.get_total_norm(gradients)), rel=1e-5)


@pytest.mark.parametrize(("x", "scale"), [(1e4, 1024.0), (1e19, 512.0)], ids=["above the threshold", "overflows"])
def test_an_update_skipped_under_the_loss_scaler_moves_nothing_and_the_next_one_does(x, scale):
    guard, (model, optimizer, scaler) = GuardCallback(skip_above=1e3), fresh()
    scaled_step(guard, model, optimizer, scaler, torch.ones(3, 4), 0)
    before = state_of(model, optimizer)
    scaled_step(guard, model, optimizer, scaler, torch.full((3, 4), x), 1)
    assert guard.skipped == [2] and scaler.get_scale() == scale
    assert all(map(torch.equal, before, state_of(model, optimizer)))
    scaled_step(guard, model, optimizer, scaler, torch.ones(3, 4), 2)
    assert not torch.equal(before[0], state_of(model, optimizer)[0])
