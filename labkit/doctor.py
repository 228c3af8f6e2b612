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
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .findings import LOOK, OK, STOP, Finding, as_text
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


def examine() -> list[Finding]:
    """All checks, in the order they are printed. Never raises: what cannot be read is a finding."""
    facts = ask_torch()
    checks: dict[str, Callable[[dict[str, Any]], Finding]] = {
        "python": _python,
        "packages": _packages,
        "torch": _torch,
        "gpu": _gpu,
        "driver": _driver,
        "machine": _machine,
        "folder": _folder,
        "launch": _launch,
        "environment": _environment,
        "tiny policy": _policy,
    }
    findings = []
    for name, check in checks.items():
        try:
            findings.append(check(facts))
        except Exception as error:
            text = f"cannot be read: {type(error).__name__}: {error}"
            findings.append(Finding(name, STOP, text, "see docs/gpu.md"))
    return findings


def ask_torch() -> dict[str, Any]:
    """What torch says of itself and of the GPUs, from a process of its own.

    Returns {"torch", "cuda_build", "threads", "cuda", "gpus", ...}, or {"error": text} when it cannot say.
    """
    try:
        done = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, timeout=120)
        return json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": "no answer within 120 s"}
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


def report(findings: Sequence[Finding]) -> str:
    """The findings as text, with their count."""
    stops, looks = (sum(finding.level == level for finding in findings) for level in (STOP, LOOK))
    return f"{as_text(findings)}\n{len(findings)} checks, {stops} failed, {looks} to look at"


def as_json(findings: Sequence[Finding]) -> str:
    """Whether all is well, and the findings."""
    ok = not any(finding.level == STOP for finding in findings)
    return json.dumps({"ok": ok, "checks": [asdict(finding) for finding in findings]}, indent=1)


def _python(facts: dict[str, Any]) -> Finding:
    return Finding("python", OK, f"{sys.version.split()[0]} in {Path(sys.prefix).name}")


def _packages(facts: dict[str, Any]) -> Finding:
    """What labkit itself and its extra `course` need, by the package's metadata."""
    from packaging.requirements import Requirement

    installed: list[str] = []
    missing: dict[str, list[str]] = {"": [], "course": []}  # by the extra that names it
    for line in _asked_for():
        requirement = Requirement(line)
        for extra in missing:
            if not requirement.marker or requirement.marker.evaluate({"extra": extra}):
                if number := version(requirement.name):
                    installed.append(f"{requirement.name} {number}")
                else:
                    missing[extra].append(requirement.name)
                break
    if missing[""]:
        names = missing[""] + missing["course"]
        return Finding("packages", STOP, f"missing: {', '.join(names)}", f"pip install {' '.join(names)}")
    if missing["course"]:
        level = LOOK if missing["course"] == [TO_OPEN_LESSONS] else STOP
        text = f"the lessons need {', '.join(missing['course'])}"
        return Finding("packages", level, text, "in the checkout: pip install -e '.[course]'")
    return Finding("packages", OK, ", ".join(installed))


def _asked_for() -> list[str]:
    """The requirements of the package: its metadata has them, or, where it was only copied, its pyproject.toml."""
    try:
        return importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
        course = [f'{line}; extra == "course"' for line in project["optional-dependencies"]["course"]]
        return project["dependencies"] + course


def _torch(facts: dict[str, Any]) -> Finding:
    if "error" in facts:
        return Finding("torch", STOP, f"torch did not answer: {facts['error']}", "reinstall torch; see pytorch.org")
    built = f"CUDA {facts['cuda_build']} build" if facts["cuda_build"] else "CPU build"
    return Finding("torch", OK, f"{facts['torch']}, {built}, {facts['threads']} threads")


def _gpu(facts: dict[str, Any]) -> Finding:
    gpus = facts.get("gpus", [])
    if gpus:
        measured = "; ".join(f"{g['name']} {g['free'] / 2**30:.0f} of {g['total'] / 2**30:.0f} GiB free" for g in gpus)
        return Finding("gpu", OK, measured)
    if driver_version() and not facts.get("cuda"):
        measured = "a driver is there but torch sees no GPU"
        return Finding("gpu", LOOK, measured, "install a CUDA build of torch that this driver can run")
    return Finding("gpu", OK, "none; every lesson runs on the CPU")


def _driver(facts: dict[str, Any]) -> Finding:
    return Finding("driver", OK, f"NVIDIA {driver_version()}" if driver_version() else "none")


def _machine(facts: dict[str, Any]) -> Finding:
    import psutil

    cores, free = os.cpu_count() or 1, psutil.virtual_memory().available
    measured = f"{cores} cores, {free / 2**30:.1f} GiB memory free"
    if free < 2 * 2**30:
        return Finding("machine", LOOK, measured, "lesson 11 wants 2 GiB free; close something")
    return Finding("machine", OK, measured)


def _folder(facts: dict[str, Any]) -> Finding:
    here, free = Path.cwd(), shutil.disk_usage(Path.cwd()).free
    if not os.access(here, os.W_OK):
        return Finding("folder", STOP, f"{here} cannot be written", "work in a folder of your own")
    return Finding("folder", OK, f"{here.name}, {free / 2**30:.0f} GiB free")


def _launch(facts: dict[str, Any]) -> Finding:
    launch = launched(gpus=len(facts.get("gpus", [])))
    return Finding("launch", LOOK if launch.trouble else OK, str(launch), launch.way_out)


def _environment(facts: dict[str, Any]) -> Finding:
    settings = {k: os.environ[k] for k in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF") if os.environ.get(k)}
    if settings:
        return Finding("environment", LOOK, f"{settings}", "lesson 07: check that the allocator really uses it")
    return Finding("environment", OK, "no allocator setting is asked for")


def _policy(facts: dict[str, Any]) -> Finding:
    path = Path(__file__).parent / "checkpoints" / "tiny" / "model.safetensors"
    if not path.is_file():
        return Finding("tiny policy", STOP, f"{path} is missing", "python scripts/make_checkpoint.py")
    return Finding("tiny policy", OK, f"{path.stat().st_size / 1e6:.1f} MB")
