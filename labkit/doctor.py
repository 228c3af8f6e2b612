"""Is this machine ready for the course? A list of checks, each with what was seen and the way out.

Does the running process have the code that is on disk? That is `loaded`, from the wing of that name. How was it
started, and what would a Trainer do with that? That is `launched`.

torch is asked in a second process, so a broken CUDA installation cannot take the doctor down with it. This file
repairs nothing and writes nothing.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .launch import launched as launched
from .loaded import importable as importable
from .loaded import loaded as loaded

# Lessons run headless without it: docs/gpu.md.
TO_OPEN_LESSONS = "jupyterlab"
DISTRIBUTION = "grpo-failure-lab"

_ASK_TORCH = r"""
import json, os, sys
import torch
facts = {"torch": torch.__version__, "cuda_build": torch.version.cuda, "threads": torch.get_num_threads(), "gpus": []}
facts["cuda"] = torch.cuda.is_available()
if facts["cuda"]:
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        free, total = torch.cuda.mem_get_info(i)
        facts["gpus"].append({"name": p.name, "total": total, "free": free})
    torch.ones(8, device="cuda").sum().item()
print(json.dumps(facts))
"""


@dataclass(frozen=True)
class Check:
    """One finding. `status` is ok, warn or fail; `way_out` says what to do when it is not ok."""

    name: str
    status: str
    seen: str
    way_out: str = ""


def examine() -> list[Check]:
    """All checks, in the order they are printed. Never raises: what cannot be read is a finding."""
    facts = ask_torch()
    checks: dict[str, Callable[[], Check]] = {
        "python": _python,
        "packages": _packages,
        "torch": lambda: _torch(facts),
        "gpu": lambda: _gpu(facts),
        "driver": _driver,
        "machine": _machine,
        "folder": _writable,
        "launch": lambda: _launch(facts),
        "environment": _environment,
        "tiny policy": _policy,
    }
    return [_guarded(name, check) for name, check in checks.items()]


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        return Check(name, "fail", f"cannot be read: {type(error).__name__}: {error}", "see docs/gpu.md")


def ask_torch(timeout: float = 120.0) -> dict[str, Any]:
    """What torch says of itself and of the GPUs, from a process of its own.

    Returns {"torch", "cuda_build", "threads", "cuda", "gpus", ...}, or {"error": text} when it cannot say.
    """
    try:
        done = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout:.0f} s"}
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}


def environment() -> dict[str, Any]:
    """What a recording or a bug report needs to name.

    Returns {"python", "platform", "torch", "transformers", "trl", "accelerate", "ipykernel": versions, or None where
    one is missing; "gpu": names; "driver": its version or None}.
    """
    facts = ask_torch()
    versions = {name: version(name) for name in ("torch", "transformers", "trl", "accelerate", "ipykernel")}
    gpus = [g["name"] for g in facts.get("gpus", [])]
    python = {"python": sys.version.split()[0], "platform": sys.platform}
    return {**python, **versions, "gpu": gpus, "driver": driver_version()}


def version(distribution: str) -> str | None:
    """The installed version of a distribution; None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def driver_version() -> str | None:
    """The NVIDIA driver's version, through NVML; None where there is no driver, or no NVML to ask."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None


def report(checks: Sequence[Check]) -> str:
    """The checks as aligned text, worst news last."""
    width = max(len(c.name) for c in checks)
    lines = [f"{c.status:4s}  {c.name:{width}s}  {c.seen}" for c in checks]
    lines += [f"      {c.name}: {c.way_out}" for c in checks if c.status != "ok" and c.way_out]
    failed, warned = (sum(c.status == s for c in checks) for s in ("fail", "warn"))
    return "\n".join([*lines, f"{len(checks)} checks, {failed} failed, {warned} to look at"])


def as_json(checks: Sequence[Check]) -> str:
    """Whether all is well, and the checks."""
    ok = not any(c.status == "fail" for c in checks)
    return json.dumps({"ok": ok, "checks": [asdict(c) for c in checks]}, indent=1)


def _python() -> Check:
    return Check("python", "ok", f"{sys.version.split()[0]} in {Path(sys.prefix).name}")


def _packages() -> Check:
    installed, missing = [], []
    for name, extra in needed().items():
        if found := version(name):
            installed.append(f"{name} {found}")
        else:
            missing.append((name, extra))
    if not missing:
        return Check("packages", "ok", ", ".join(installed))
    names = ", ".join(name for name, _ in missing)
    if all(extra == "course" for _, extra in missing):
        status = "warn" if missing == [(TO_OPEN_LESSONS, "course")] else "fail"
        return Check("packages", status, f"the lessons need {names}", "in the checkout: pip install -e '.[course]'")
    return Check("packages", "fail", f"missing: {names}", f"pip install {' '.join(name for name, _ in missing)}")


def needed() -> dict[str, str]:
    """Distribution -> the extra that names it: "course", or "" for labkit itself. From the package's metadata."""
    from packaging.requirements import Requirement

    names: dict[str, str] = {}
    for line in importlib.metadata.requires(DISTRIBUTION) or []:
        asked = Requirement(line)
        for extra in ("", "course"):
            if not asked.marker or asked.marker.evaluate({"extra": extra}):
                names.setdefault(asked.name, extra)
    return names


def _torch(facts: dict[str, Any]) -> Check:
    if "error" in facts:
        return Check("torch", "fail", f"torch did not answer: {facts['error']}", "reinstall torch; see pytorch.org")
    built = f"CUDA {facts['cuda_build']} build" if facts["cuda_build"] else "CPU build"
    return Check("torch", "ok", f"{facts['torch']}, {built}, {facts['threads']} threads")


def _gpu(facts: dict[str, Any]) -> Check:
    gpus = facts.get("gpus", [])
    if gpus:
        seen = "; ".join(f"{g['name']} {g['free'] / 2**30:.0f} of {g['total'] / 2**30:.0f} GiB free" for g in gpus)
        return Check("gpu", "ok", seen)
    if driver_version() and not facts.get("cuda"):
        seen = "a driver is there but torch sees no GPU"
        return Check("gpu", "warn", seen, "install a CUDA build of torch that this driver can run")
    return Check("gpu", "ok", "none; every lesson runs on the CPU")


def _driver() -> Check:
    return Check("driver", "ok", f"NVIDIA {driver_version()}" if driver_version() else "none")


def _machine() -> Check:
    import psutil

    cores, free = os.cpu_count() or 1, psutil.virtual_memory().available
    seen = f"{cores} cores, {free / 2**30:.1f} GiB memory free"
    if free < 2 * 2**30:
        return Check("machine", "warn", seen, "lesson 11 wants 2 GiB free; close something")
    return Check("machine", "ok", seen)


def _writable() -> Check:
    here, free = Path.cwd(), shutil.disk_usage(Path.cwd()).free
    if not os.access(here, os.W_OK):
        return Check("folder", "fail", f"{here} cannot be written", "work in a folder of your own")
    return Check("folder", "ok", f"{here.name}, {free / 2**30:.0f} GiB free")


def _launch(facts: dict[str, Any]) -> Check:
    found = launched(gpus=len(facts.get("gpus", [])))
    return Check("launch", "warn" if found.trouble else "ok", str(found), found.way_out)


def _environment() -> Check:
    asked = {k: os.environ[k] for k in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF") if os.environ.get(k)}
    if asked:
        return Check("environment", "warn", f"{asked}", "lesson 07: check that the allocator really uses it")
    return Check("environment", "ok", "no allocator setting is asked for")


def _policy() -> Check:
    path = Path(__file__).parent / "checkpoints" / "tiny" / "model.safetensors"
    if not path.is_file():
        return Check("tiny policy", "fail", f"{path} is missing", "python scripts/make_checkpoint.py")
    return Check("tiny policy", "ok", f"{path.stat().st_size / 1e6:.1f} MB")
