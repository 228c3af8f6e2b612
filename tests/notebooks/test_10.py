import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest
import torch
from cut import FOLDER, bug_cells, installed, path_of

from labkit import checks, loss, sandbox


def source_of(text):
    """The lesson's one code cell with this text."""
    cells = json.loads(path_of("10").read_text())["cells"]
    (found,) = ["".join(c["source"]) for c in cells if c["cell_type"] == "code" and text in "".join(c["source"])]
    return found


IMPORTS = "import os, sys, tempfile, time\nimport psutil, torch\nfrom labkit import sandbox\nSEED = 0\n"


@pytest.fixture
def cut():
    """The lesson's names for its pairs of processes."""
    space = {}
    exec(IMPORTS + source_of("def pairs("), space)
    yield space
    sandbox.shutdown()


# The bug and the fix ------------------------------------------------------------------------------------------


def test_the_check_refuses_the_bug_as_it_stands_and_accepts_the_fix_as_it_stands():
    space = {"loss": loss}
    exec(source_of("def all_tokens(").split("\n\n\n")[0], space)
    assert checks.shared_loss(space["all_tokens"])
    report = checks.shared_loss(bug_cells("10")["own_tokens"])
    assert not report and "its own tokens" in report.hint


# Processes ----------------------------------------------------------------------------------------------------


def test_both_processes_listen_on_the_loopback_only(cut):
    def addresses(rank, meeting, seed):
        cut["join"](rank, meeting)
        cut["total"](torch.ones(1))
        yield sorted({c.laddr.ip for c in psutil.Process().net_connections() if c.laddr})
        torch.distributed.barrier()

    found = cut["pairs"](addresses, {"here": {}})["here"]
    assert len(found) == 2 and all(ips == ["127.0.0.1"] for (ips,) in found), found


def test_two_copies_of_the_lesson_at_once_never_meet(cut):
    def summed(rank, meeting, seed, value):
        cut["join"](rank, meeting)
        for _ in range(20):
            yield float(cut["total"](torch.tensor(float(value))))
        torch.distributed.barrier()

    found = {}
    copy = lambda value: found.update({value: cut["pairs"](summed, {"sum": {"value": value}})["sum"]})
    copies = [threading.Thread(target=copy, args=(value,)) for value in (1, 100)]
    for thread in copies:
        thread.start()
    for thread in copies:
        thread.join(120)
    assert found == {value: [[2.0 * value] * 20] * 2 for value in (1, 100)}


HANGING = """
def waits(rank, meeting, seed):
    join(rank, meeting)
    print("joined", flush=True)
    open(f"{meeting}.{rank}.joined", "w").close()
    if rank == 1:
        time.sleep(1000)
    total(torch.ones(1))

def started(folder):
    while len([f for _, _, files in os.walk(folder) for f in files if f.endswith(".joined")]) < 2:
        time.sleep(0.05)
    print("go", flush=True)

import threading
tempfile.tempdir = sys.argv[1]
threading.Thread(target=started, args=(sys.argv[1],), daemon=True).start()
try:
    pairs(waits, {"hang": {}})
except KeyboardInterrupt:
    print("stopped", flush=True)
    time.sleep(1000 if "stay" in sys.argv else 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the server that keeps the children is Linux's")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_remains_of_a_pair_that_hangs_when_the_kernel_is_interrupted_or_killed(tmp_path, how):
    script = tmp_path / "lesson.py"
    script.write_text(IMPORTS + source_of("def pairs(") + HANGING)
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent)}
    command = [sys.executable, str(script), str(tmp_path)]
    lesson = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert lesson.stdout.readline() == "go\n"
        children = psutil.Process(lesson.pid).children(recursive=True)
        assert len(children) >= 3  # the server and its two children
        lesson.send_signal(how)
        said, _ = lesson.communicate(timeout=60)
        _, alive = psutil.wait_procs(children, timeout=60)
        assert not alive
    finally:
        lesson.kill()
        lesson.communicate()
    assert "stopped" in said or how == signal.SIGKILL
    assert not list(tmp_path.glob("tmp*")) or how == signal.SIGKILL


# What the lesson says of others ---------------------------------------------------------------------------------


def test_trl_divides_dapo_by_the_tokens_of_all_over_the_processes_and_bnpo_by_its_own():
    source = " ".join(installed("trl", "trainer/grpo_trainer.py").split())
    assert 'normalizer = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes' in source
    bnpo = source.index('elif self.loss_type == "bnpo": loss = (per_token_loss * mask).sum() / mask.sum()')
    assert bnpo > 0
    assert 'self.importance_sampling_level == "sequence" and args.loss_type in' in source.replace(
        "args.imp", "self.imp"
    )


def test_trls_defaults_are_token_level_dapo_and_a_range_of_a_fifth():
    trl = pytest.importorskip("trl")
    defaults = {f.name: f.default for f in dataclasses.fields(trl.GRPOConfig)}
    assert defaults["importance_sampling_level"] == "token" and defaults["loss_type"] == "dapo"
    assert defaults["epsilon"] == 0.2 and defaults["epsilon_high"] is None


def test_trls_rloo_takes_the_kl_off_the_reward():
    source = installed("trl", "trainer/rloo_trainer.py")
    assert "rewards = rewards - self.beta * kl" in source and "old_per_token_logps - ref_per_token_logps" in source


def test_transformers_averages_tokens_across_devices_and_wraps_in_data_parallel_by_itself():
    from transformers import TrainingArguments

    defaults = {f.name: f.default for f in dataclasses.fields(TrainingArguments)}
    assert defaults["average_tokens_across_devices"] is True and {"fsdp", "deepspeed"} <= set(defaults)
    source = installed("transformers", "trainer.py")
    assert "self.args.n_gpu > 1" in source and "model = nn.DataParallel(model)" in source


def test_accelerate_unwraps_unscales_and_tells_of_a_skipped_step():
    accelerate = pytest.importorskip("accelerate")
    for name in ("unwrap_model", "clip_grad_norm_", "optimizer_step_was_skipped"):
        assert hasattr(accelerate.Accelerator, name)
    source = installed("accelerate", "accelerator.py")
    clip = source[source.index("def clip_grad_norm_") :][:3500]
    assert "self.unscale_gradients()" in clip


def test_data_parallel_replicates_in_every_forward_pass_and_torch_has_fully_shard():
    from torch.distributed.fsdp import fully_shard

    source = installed("torch", "nn/parallel/data_parallel.py")
    forward = source[source.index("def forward(") :]
    assert "self.replicate(self.module, self.device_ids" in forward and callable(fully_shard)


def test_grad_scaler_begins_at_65536_and_doubles_after_2000_steps():
    scaler = torch.amp.GradScaler("cpu")
    assert scaler.get_scale() == 65536.0 and scaler.get_growth_interval() == 2000
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor()) == (2.0, 0.5)
