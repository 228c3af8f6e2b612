"""`labkit.launch` reads a launch as accelerate and transformers do; its torchrun stays on this machine, and goes."""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from labkit.launch import environment, launched

ROOT = Path(__file__).resolve().parent.parent
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost"}
ACCELERATE = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}
ASKED_FOR_TWO = {**ACCELERATE, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "ACCELERATE_USE_CPU": "True"}
ENGINES = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}


@pytest.fixture
def only(monkeypatch):
    """Leaves of a launcher's variables only these in the environment."""

    def leave(environ):
        for name in (*environment.NAMES, *environment.SIZES, *environment.RANKS, *TORCHRUN, *ACCELERATE, *ENGINES):
            monkeypatch.delenv(name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)

    return leave


@pytest.mark.parametrize(
    ("environ", "gpus", "cpu", "expected"),
    [
        ({}, 0, False, ("python", 0, 1, "the CPU", 1)),
        ({}, 4, False, ("python", 0, 1, "DataParallel", 4)),
        (TORCHRUN, 2, False, ("torchrun", 1, 2, "DistributedDataParallel", 2)),
        (TORCHRUN, 0, False, ("torchrun", 1, 2, "the CPU", 1)),
        ({**TORCHRUN, **ACCELERATE}, 2, False, ("accelerate launch", 1, 2, "DistributedDataParallel", 2)),
        ({**TORCHRUN, **ACCELERATE, "ACCELERATE_USE_FSDP": "true"}, 2, False, ("accelerate launch", 1, 2, "FSDP", 2)),
        ({**TORCHRUN, "ACCELERATE_USE_DEEPSPEED": "true"}, 2, False, ("torchrun", 1, 2, "DeepSpeed", 2)),
        (ASKED_FOR_TWO, 0, False, ("accelerate launch", 0, 1, "the CPU", 1)),
        (ACCELERATE, 1, False, ("accelerate launch", 0, 1, "one GPU", 1)),
        (MPI, 0, True, ("mpirun", 3, 4, "DistributedDataParallel", 4)),
        (MPI, 0, False, ("mpirun", 3, 4, "the CPU", 1)),
        ({"WORLD_SIZE": "2", "RANK": "0"}, 2, False, ("another launcher", 0, 2, "DataParallel", 2)),
        ({"WORLD_SIZE": "", "RANK": "x"}, 0, False, ("another launcher", 0, 1, "the CPU", 1)),
    ],
)
def test_a_made_environment(only, monkeypatch, environ, gpus, cpu, expected):
    only(environ)
    launch = launched(gpus=gpus, cpu=cpu)
    assert (launch.launcher, launch.rank, launch.processes, launch.trainer, launch.shares) == expected
    in_trouble = launch.trainer == "DataParallel" or launch.shares < launch.processes or environ is ASKED_FOR_TWO
    assert bool(launch.trouble) == bool(launch.way_out) == in_trouble
    assert launch.trouble in str(launch) and f"rank {launch.rank} of {launch.processes}" in str(launch)
    monkeypatch.setattr(environment, "kernel", object)
    assert launched(gpus=gpus, cpu=cpu).launcher == {"python": "notebook"}.get(expected[0], expected[0])


def test_it_joins_the_processes_where_the_installed_accelerate_does(only, monkeypatch):
    import torch
    from accelerate.state import DistributedType, PartialState

    for local, world, mpi in itertools.product([None, "0"], [None, "1", "2"], [None, "3"]):
        environ = {"LOCAL_RANK": local, "WORLD_SIZE": world, "PMI_SIZE": mpi}
        only({name: value for name, value in environ.items() if value})
        for gpus, cpu in itertools.product([0, 1, 4], [False, True]):
            monkeypatch.setattr(torch.cuda, "is_available", lambda gpus=gpus: gpus > 0)
            monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
            _, kind = PartialState._prepare_backend(object(), cpu, False, None)
            joins = launched(cpu=cpu).trainer == "DistributedDataParallel"
            assert joins == (kind != DistributedType.NO), (environ, gpus, cpu)


@pytest.mark.parametrize("gpus", [0, 1, 4])
@pytest.mark.parametrize("cpu", [False, True])
def test_one_process_is_what_the_installed_trainer_makes_of_it(only, monkeypatch, tmp_path, gpus, cpu):
    import torch
    from transformers import TrainingArguments

    only({})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    args = TrainingArguments(output_dir=str(tmp_path), per_device_train_batch_size=8, use_cpu=cpu)
    launch = launched(cpu=cpu)
    assert args.train_batch_size == 8 * launch.shares
    assert (args.parallel_mode.name == "NOT_DISTRIBUTED") == (launch.trainer == "DataParallel")


def test_under_accelerate_launch_the_doctor_says_that_it_is_one_process():
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--cpu", "--num_processes", "2"]
    done = subprocess.run(
        [*command, "-m", "labkit", "doctor", "--json"], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    (check,) = [c for c in json.loads(done.stdout)["checks"] if c["name"] == "launch"]
    assert check["level"] == "look" and "asked for several processes and started one" in check["measured"]


# A process of a launch: it joins, says who it is, and stays.
STAYS = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
mine = torch.ones(1)
dist.all_reduce(mine)
print(f"joined {os.getpid()} {int(mine)}\\n", end="", flush=True)  # in one piece: two processes write
time.sleep(float(sys.argv[1]))
dist.destroy_process_group()
"""


@pytest.fixture
def launch(tmp_path):
    (tmp_path / "stays.py").write_text(STAYS)
    return [sys.executable, "-m", "labkit.launch", "--nproc_per_node", "2", str(tmp_path / "stays.py")]


@pytest.mark.skipif(sys.platform != "linux", reason="sockets are read from /proc")
def test_two_launches_at_once_do_not_meet_and_listen_on_this_machine_only(launch):
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "cwd": ROOT}
    both = [subprocess.Popen([*launch, "3"], **piped) for _ in range(2)]
    try:
        lines = [started.stdout.readline() for started in both for _ in range(2)]
        assert [line.split()[2] for line in lines if line.startswith("joined")] == ["2"] * 4
        family = [p for started in both for p in _family(started.pid)]
        listening = [c.laddr for p in family for c in p.net_connections("inet") if c.status == "LISTEN"]
        assert len(family) == 6 and len({address.port for address in listening}) == len(listening) >= 4
        assert {address.ip for address in listening} == {"127.0.0.1"}
        assert [started.wait(60) for started in both] == [0, 0]
    finally:
        for started in both:
            for process in _family(started.pid):
                process.kill()
            started.communicate()


def _family(pid):
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


# A caller that launches as lesson 17 does, and is killed.
CALLER = """
import subprocess, sys
from labkit import sandbox
def output(command):
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        yield from (line.rstrip() for line in started.stdout)
sandbox.run(output, sys.argv[1:], on_event=lambda line: print(line, flush=True))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox's server is for Linux")
def test_nothing_is_left_of_a_launch_when_its_caller_is_killed(launch):
    command = [sys.executable, "-c", CALLER, *launch, "600"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    caller = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ)
    family = []
    try:
        lines = [caller.stdout.readline() for _ in range(2)]
        family = _family(caller.pid)
        assert {int(line.split()[1]) for line in lines if line.startswith("joined")} < {p.pid for p in family}, lines
    finally:
        caller.kill()
        caller.communicate()
    end = time.monotonic() + 20
    while left := [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < end, left
        time.sleep(0.05)
