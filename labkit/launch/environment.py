"""Reading a launch off the environment. The rules are those of transformers 5.23 (training_args.py) and accelerate 1.15
(state.py) on CPUs and NVIDIA GPUs; the tests hold them against the installed ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from labkit.common import kernel

# What mpirun sets, of which accelerate reads the sizes.
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Launch:
    """What started this process, and what a Trainer in it would do.

    launcher   "python", "notebook", "torchrun", "accelerate launch", "mpirun" or "another launcher"
    rank       this process's number among those started together
    processes  how many those are
    trainer    "DistributedDataParallel", "FSDP", "DeepSpeed", "DataParallel", "one GPU" or "the CPU"
    shares     batches of `per_device_train_batch_size` in one step, before gradient accumulation
    variables  what it was read from
    trouble    what is wrong; "" when nothing is
    way_out    what to do about it
    """

    launcher: str
    rank: int
    processes: int
    trainer: str
    shares: int
    variables: dict[str, str]
    trouble: str = ""
    way_out: str = ""

    def __str__(self) -> str:
        who = f"{self.launcher}, rank {self.rank} of {self.processes}"
        read = ", ".join(f"{name}={value}" for name, value in self.variables.items())
        text = f"{who}{f' ({read})' if read else ''}; a Trainer: {self.trainer}, {self.shares} x per-device batch"
        return f"{text}. {self.trouble}" if self.trouble else text


def launched(environ: Mapping[str, str] | None = None, gpus: int | None = None, cpu: bool = False) -> Launch:
    """How this process was started.

    environ  the process's environment; None: this one's
    gpus     visible to it; None: torch is asked
    cpu      whether the Trainer is told `use_cpu=True`, or the Accelerator `cpu=True`
    """
    env = os.environ if environ is None else environ
    gpus = _visible() if gpus is None else gpus
    processes, rank = max(1, *(_first(env, (name,), 1) for name in SIZES)), _first(env, RANKS, 0)
    launcher = _launcher(env, notebook=environ is None and kernel() is not None)
    trainer, shares = _trainer(env, gpus, cpu or _yes(env, "ACCELERATE_USE_CPU"), processes)
    variables = {name: env[name] for name in NAMES if env.get(name)}
    trouble, way_out = _trouble(env, launcher, processes, trainer, shares)
    return Launch(launcher, rank, processes, trainer, shares, variables, trouble, way_out)


def _launcher(env: Mapping[str, str], notebook: bool) -> str:
    # a Trainer sets ACCELERATE_DYNAMO_BACKEND in its own process; accelerate launch sets both
    if {"ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_MIXED_PRECISION"} <= set(env):
        return "accelerate launch"
    if "TORCHELASTIC_RUN_ID" in env:
        return "torchrun"
    if any(name in env for name in SIZES[1:]):
        return "mpirun"
    if "WORLD_SIZE" in env:
        return "another launcher"
    return "notebook" if notebook else "python"


def _trainer(env: Mapping[str, str], gpus: int, cpu: bool, processes: int) -> tuple[str, int]:
    """What the Trainer does, and over how many devices one step is spread."""
    local = _first(env, ("LOCAL_RANK",), -1) != -1
    if local and gpus and not cpu or cpu and (local or processes > 1):
        engines = {"ACCELERATE_USE_DEEPSPEED": "DeepSpeed", "ACCELERATE_USE_FSDP": "FSDP"}
        engine = next((engine for name, engine in engines.items() if _yes(env, name)), "DistributedDataParallel")
        return engine, processes
    if cpu or not gpus:
        return "the CPU", 1
    return ("DataParallel", gpus) if gpus > 1 else ("one GPU", 1)


def _trouble(env: Mapping[str, str], launcher: str, processes: int, trainer: str, shares: int) -> tuple[str, str]:
    if processes > 1 and trainer in ("the CPU", "one GPU", "DataParallel"):
        way = (
            "on a CPU TrainingArguments(use_cpu=True) or Accelerator(cpu=True); on GPUs a launcher that sets LOCAL_RANK"
        )
        return f"{processes} processes were started and each trains alone", way
    if trainer == "DataParallel":
        way = f"torchrun --nproc_per_node {shares} or accelerate launch, or CUDA_VISIBLE_DEVICES=0 for one GPU"
        return f"one process for {shares} GPUs: the Trainer wraps the model in DataParallel", way
    if launcher == "accelerate launch" and processes == 1 and "MASTER_ADDR" in env:
        return "accelerate launch was asked for several processes and started one", "torchrun --nproc_per_node N"
    return "", ""


def _first(env: Mapping[str, str], names: tuple[str, ...], otherwise: int) -> int:
    """The first of these variables that is a whole number."""
    return next((int(env[name]) for name in names if env.get(name, "").lstrip("-").isdigit()), otherwise)


def _yes(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").lower() in ("1", "true", "yes", "on", "y", "t")


def _visible() -> int:
    import torch

    return torch.cuda.device_count()
