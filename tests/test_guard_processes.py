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
SCRIPT = '''
import hashlib, json, os, sys, warnings
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
torch.manual_seed(0)
rows = [{"x": torch.full((4,), 0.1 * (i % 5)), "labels": torch.tensor(1.0)} for i in range(32)]
rows[9]["labels"] = torch.tensor(3e38)  # the loss of one row, and so of one process, overflows

class Objects(labkit.GuardCallback):
    """Objects at the third update, in one process only: DDP gives both the same gradient."""
    def on_pre_optimizer_step(self, args, state, control, **given):
        self.skip_above = 1e-12 if mode == "one" and rank == 1 and state.global_step == 2 else 1e6
        super().on_pre_optimizer_step(args, state, control, **given)

mode = sys.argv[1]
guard = Objects()
if mode == "one":
    rows[9]["labels"] = torch.tensor(1.0)
args = TrainingArguments(sys.argv[2], max_steps=6, per_device_train_batch_size=2, learning_rate=0.01, use_cpu=True,
                         report_to=[], save_strategy="no", disable_tqdm=True, logging_steps=1, seed=0)
trainer = Trainer(model=Model(), args=args, train_dataset=rows, callbacks=[guard])
trainer.train()
bits = b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
state = trainer.optimizer.state_dict()["state"]
moments = b"".join(state[k][n].numpy().tobytes() for k in sorted(state) for n in ("exp_avg", "exp_avg_sq"))
with open(os.path.join(sys.argv[2], f"rank{rank}.json"), "w") as file:
    json.dump({"world": trainer.args.world_size, "skipped": guard.skipped, "bits": hashlib.sha256(bits).hexdigest(),
               "moments": hashlib.sha256(moments).hexdigest(),
               "finite": all(bool(p.isfinite().all()) for p in trainer.model.parameters())}, file)
torch.distributed.barrier()  # both files are whole
sys.stderr.flush()
os._exit(0)  # DDP keeps gloo's threads until Python's own end, where they may abort a process that has done its work
'''


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["both", "one"])
def test_two_gloo_processes_skip_alike_and_stay_equal_bit_for_bit(tmp_path, mode):
    """both: an overflow reaches both by the all-reduce of gradients. one: only one process objects, and both skip."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    done = subprocess.run(
        [*launch, str(script), mode, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first["world"] == 2 and first == second
    assert first["finite"]
    assert len(first["skipped"]) >= 1
    if mode == "one":
        assert first["skipped"] == [3]


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


def test_under_the_loss_scaler_the_norm_is_that_of_the_unscaled_gradient():
    guard, (model, optimizer, scaler) = GuardCallback(live=False), fresh()
    x = torch.ones(3, 4)
    (grad,) = torch.autograd.grad(model(x).square().mean(), [model.weight], retain_graph=False)
    scaled_step(guard, model, optimizer, scaler, x)
    assert scaler.unscaled == 1  # the scaler refuses a second time before update()
    assert guard.skipped == [] and guard._norms[0] == pytest.approx(
        float(torch.nn.utils.get_total_norm([grad, model_bias_grad(x)])), rel=1e-5
    )


def kept(optimizer):
    return [value for state in optimizer.state.values() for value in state.values()]


def model_bias_grad(x):
    model, _, _ = fresh()
    return torch.autograd.grad(model(x).square().mean(), [model.bias])[0]


def test_an_update_skipped_under_the_loss_scaler_moves_nothing_and_the_next_one_does():
    guard, (model, optimizer, scaler) = GuardCallback(skip_above=1e3, live=False), fresh()
    scaled_step(guard, model, optimizer, scaler, torch.ones(3, 4), 0)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    moments = [v.clone() for v in kept(optimizer)]
    scaled_step(guard, model, optimizer, scaler, torch.full((3, 4), 1e4), 1)  # above the threshold, and finite
    assert guard.skipped == [2]
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert all(torch.equal(a, b) for a, b in zip(moments, kept(optimizer), strict=True))
    scaled_step(guard, model, optimizer, scaler, torch.ones(3, 4), 2)
    assert any(not torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_a_gradient_that_overflows_under_the_scaler_is_skipped_and_halves_the_scale():
    guard, (model, optimizer, scaler) = GuardCallback(live=False), fresh()
    before = [p.detach().clone() for p in model.parameters()]
    scaled_step(guard, model, optimizer, scaler, torch.full((3, 4), 1e18), 0)
    assert guard.skipped == [1]
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert scaler.get_scale() == 512.0
