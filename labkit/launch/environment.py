"""Reading a launch off the environment. The rules are those of transformers 5.23 (training_args.py) and accelerate 1.15
(state.py) on CPUs and NVIDIA GPUs; the tests hold them against the installed ones.
"""

from __future__ import annotations

import os
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
        text = f"{self.launcher}, rank {self.rank} of {self.processes}"
        if self.variables:
            text += f" ({', '.join(f'{name}={value}' for name, value in self.variables.items())})"
        text += f"; a Trainer: {self.trainer}, {self.shares} x per-device batch"
        return f"{text}. {self.trouble}" if self.trouble else text


def launched(gpus: int | None = None, cpu: bool = False) -> Launch:
    """How this process was started, by its environment.

    gpus   visible to it; None: torch is asked
    cpu    whether the Trainer is told `use_cpu=True`, or the Accelerator `cpu=True`
    """
    if gpus is None:
        import torch

        gpus = torch.cuda.device_count()
    processes, rank = max(1, *(_first((name,), 1) for name in SIZES)), _first(RANKS, 0)
    launcher = _launcher()
    trainer, shares = _trainer(gpus, cpu or _yes("ACCELERATE_USE_CPU"), processes)
    variables = {name: os.environ[name] for name in NAMES if os.environ.get(name)}
    trouble, way_out = _trouble(launcher, processes, trainer, shares)
    return Launch(launcher, rank, processes, trainer, shares, variables, trouble, way_out)


def _launcher() -> str:
    # a Trainer sets ACCELERATE_DYNAMO_BACKEND in its own process; accelerate launch sets both
    if {"ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_MIXED_PRECISION"} <= set(os.environ):
        return "accelerate launch"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    if any(name in os.environ for name in SIZES[1:]):
        return "mpirun"
    if "WORLD_SIZE" in os.environ:
        return "another launcher"
    return "python" if kernel() is None else "notebook"


def _trainer(gpus: int, cpu: bool, processes: int) -> tuple[str, int]:
    """What the Trainer does, and over how many devices one step is spread."""
    local = _first(("LOCAL_RANK",), -1) != -1
    if local and gpus and not cpu or cpu and (local or processes > 1):
        if _yes("ACCELERATE_USE_DEEPSPEED"):
            return "DeepSpeed", processes
        return "FSDP" if _yes("ACCELERATE_USE_FSDP") else "DistributedDataParallel", processes
    if cpu or not gpus:
        return "the CPU", 1
    return ("DataParallel", gpus) if gpus > 1 else ("one GPU", 1)


def _trouble(launcher: str, processes: int, trainer: str, shares: int) -> tuple[str, str]:
    if processes > 1 and trainer in ("the CPU", "one GPU", "DataParallel"):
        way = (
            "on a CPU TrainingArguments(use_cpu=True) or Accelerator(cpu=True); on GPUs a launcher that sets LOCAL_RANK"
        )
        return f"{processes} processes were started and each trains alone", way
    if trainer == "DataParallel":
        way = f"torchrun --nproc_per_node {shares} or accelerate launch, or CUDA_VISIBLE_DEVICES=0 for one GPU"
        return f"one process for {shares} GPUs: the Trainer wraps the model in DataParallel", way
    if launcher == "accelerate launch" and processes == 1 and "MASTER_ADDR" in os.environ:
        return "accelerate launch was asked for several processes and started one", "torchrun --nproc_per_node N"
    return "", ""


def _first(names: tuple[str, ...], otherwise: int) -> int:
    """The first of these variables that is a whole number."""
    for name in names:
        if (text := os.environ.get(name, "")).lstrip("-").isdigit():
            return int(text)
    return otherwise


def _yes(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on", "y", "t")
