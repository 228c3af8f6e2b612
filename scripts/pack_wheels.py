"""Carry what the course needs to a machine without a network that has torch but no Jupyter: docs/gpu.md.

    python scripts/pack_wheels.py list                     what would be packed, and why
    python scripts/pack_wheels.py pack --python 3.12       download it as wheels into .whl (needs the network)
    python3 scripts/pack_wheels.py unpack                  on the other machine: into .whl/lib, what is missing there

`pack` runs in the environment of the course and takes the versions that are installed there. `unpack` needs no pip and
installs nothing: put .whl/lib on PYTHONPATH, and .whl/lib/bin on PATH. What the other machine has is left alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / ".whl"
THERE = "torch transformers accelerate peft safetensors matplotlib psutil nvidia-ml-py rich tqdm cloudpickle"
TESTS = ["pytest", "pytest-timeout"]
NOT_NEEDED = {
    "jupyterlab": "lessons run headless",
    "debugpy": "ipykernel does without a debugger",
    "aiohttp": "papermill asks for it on Python 3.12 and imports it nowhere (2.7)",
}
PLATFORMS = ["manylinux_2_28", "manylinux_2_17", "manylinux2014"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(there: set[str], python: str, machine: str) -> dict[str, str]:
    """Distribution -> who asks for it: all that the course and its tests need and the other machine has not."""
    from packaging.requirements import Requirement

    target = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "extra": "",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["course"]
    waiting = [(Requirement(line), "the course") for line in needed]
    waiting += [(Requirement(name), "its tests") for name in TESTS]
    found: dict[str, str] = {}
    while waiting:
        asked, by = waiting.pop(0)
        name = canonical(asked.name)
        if name in found or name in there or name in NOT_NEEDED:
            continue
        if asked.marker and not asked.marker.evaluate(target):
            continue
        found[name] = by
        extras = asked.extras
        for line in requires(name):
            inner = Requirement(line)
            wanted = not inner.marker or any(inner.marker.evaluate({**target, "extra": e}) for e in ("", *extras))
            if wanted:
                inner.marker = None
                waiting.append((inner, name))
    return dict(sorted(found.items()))


def requires(name: str) -> list[str]:
    """What an installed distribution asks for; nothing is known of one that is not installed here."""
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def pack(names: list[str], python: str, machine: str, into: Path) -> None:
    """Download a wheel of each, of the version installed here; pip's error when one does not exist."""
    into.mkdir(parents=True, exist_ok=True)
    pins = [f"{name}=={here.split('+')[0]}" if (here := version(name)) else name for name in names]
    tags = [part for p in PLATFORMS for part in ("--platform", f"{p}_{machine}")]
    short = python.replace(".", "")
    abis = [part for abi in (f"cp{short}", "abi3", "none") for part in ("--abi", abi)]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary=:all:",
            "--implementation",
            "cp",
            "--python-version",
            python,
            *tags,
            *abis,
            "--dest",
            str(into),
            *pins,
        ],
        check=True,
    )


def unpack(wheels: Path, into: Path) -> tuple[list[str], list[str]]:
    """Lay the wheels whose distribution this Python lacks into `into`; return what was and what was not."""
    files = sorted(wheels.glob("*.whl"))
    if not files:
        raise ValueError(f"no wheels in {wheels}; make them with `pack` on a machine with a network")
    if into.exists():
        shutil.rmtree(into)  # it holds nothing but what was unpacked before
    new, old = [], []
    for file in files:
        name, which = file.name.split("-")[:2]
        if here := version(canonical(name)):
            old.append(f"{canonical(name)} {here}" + (f" (packed: {which})" if here != which else ""))
            continue
        with zipfile.ZipFile(file) as archive:
            archive.extractall(into)
        new.append(f"{canonical(name)} {which}")
    programs(into)
    return new, old


def programs(into: Path) -> None:
    """Into `bin` what pip would put there: a wheel's own programs (ruff), and the commands that it names (jupyter)."""
    found = {file.name: file.read_bytes() for file in into.glob("*.data/scripts/*")}
    for dist in importlib.metadata.distributions(path=[str(into)]):
        for command in dist.entry_points.select(group="console_scripts"):
            name = command.attr.split(".")[0]
            lines = [f"#!{sys.executable}", "import sys", f"from {command.module} import {name}"]
            found[command.name] = "\n".join([*lines, f"sys.exit({command.attr}())", ""]).encode()
    for name, content in found.items():
        (into / "bin").mkdir(exist_ok=True)
        (into / "bin" / name).write_bytes(content)
        (into / "bin" / name).chmod(0o755)


def unmet(into: Path) -> list[str]:
    """What the unpacked distributions ask for and do not find, with `into` on the path. Empty without `packaging`."""
    sys.path.insert(0, str(into))
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return []
    lines = []
    for dist in importlib.metadata.distributions(path=[str(into)]):
        for asked in map(Requirement, dist.requires or []):
            name = canonical(asked.name)
            if name in NOT_NEEDED or (asked.marker and not asked.marker.evaluate({"extra": ""})):
                continue
            here = version(name)
            if here is None or not asked.specifier.contains(here, prereleases=True):
                lines.append(f"{dist.metadata['Name']} needs {name}{asked.specifier}, found {here or 'none'}")
    return sorted(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["list", "pack", "unpack"])
    parser.add_argument("--python", default="3.12", help="Python of the other machine (default: 3.12)")
    parser.add_argument("--machine", default="x86_64", help="x86_64 or aarch64 (default: x86_64)")
    parser.add_argument("--there", default=THERE, help=f"what the other machine has (default: {THERE})")
    parser.add_argument("--wheels", type=Path, default=WHEELS, metavar="DIR", help="default: .whl")
    args = parser.parse_args()
    if args.what == "unpack":
        try:
            new, old = unpack(args.wheels, args.wheels / "lib")
        except ValueError as error:
            print(f"pack_wheels: {error}", file=sys.stderr)
            return 2
        print(f"unpacked {len(new)}: {', '.join(new)}\nalready here {len(old)}: {', '.join(old)}")
        missing = unmet(args.wheels / "lib")
        print("\n".join(missing or ["everything they need is here"]))
        return 1 if missing else 0
    names = needed({canonical(n) for n in args.there.split()}, args.python, args.machine)
    if args.what == "list":
        for name, by in names.items():
            print(f"{name:26s} {version(name) or 'newest':12s} for {by}")
        return 0
    pack(list(names), args.python, args.machine, args.wheels)
    files = list(args.wheels.glob("*.whl"))
    print(f"{len(files)} wheels, {sum(f.stat().st_size for f in files) / 1e6:.1f} MB in {args.wheels}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
