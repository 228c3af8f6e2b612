"""Where a module's file is: of Python, of an install, of a checkout; and which other copy of it lies about."""

from __future__ import annotations

import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path

PROJECT = (".git", "pyproject.toml", "setup.py", "setup.cfg")
STDLIB = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
PIP = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def file_of(module: types.ModuleType) -> str:
    """The file that functions of this module name as theirs; "" when there is none. Loads nothing lazily."""
    spec = vars(module).get("__spec__")
    origin = spec.origin if spec is not None and spec.has_location else vars(module).get("__file__")
    return origin if isinstance(origin, str) else ""


def installed(file: str) -> bool:
    """Whether a file is Python's own, or in a folder that pip installs into."""
    return any(name in file for name in PIP) or os.path.realpath(file).startswith(STDLIB)


def short(file: str | Path) -> str:
    """A path as a reader in this folder would write it."""
    path, home = Path(file), Path.home()
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return f"~{os.sep}{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def project() -> list[Path]:
    """Where a checkout may have its modules: this folder and those above, up to the project's, each with its `src`."""
    above = [Path.cwd(), *Path.cwd().parents]
    top = next((i for i, folder in enumerate(above) if any((folder / mark).exists() for mark in PROJECT)), 1)
    folders = [place for folder in above[: top + 1] for place in (folder, folder / "src")]
    return [f for f in folders if f.is_dir() and os.access(f, os.R_OK) and not (f / "__init__.py").exists()]


def copies(files: Mapping[str, str]) -> Iterator[tuple[str, Path, bool]]:
    """(module, another file of that name, does the checkout run) for the top-level modules of these files.

    The other file lies in the checkout and does not run; or, where the checkout runs, it is one that pip installed.
    """
    here = [str(folder) for folder in project()]
    pip = [folder for folder in sys.path if os.path.isdir(folder) and installed(os.path.join(folder, "any.py"))]
    for name, file in files.items():
        if "." in name or not file or name.startswith("__"):
            continue
        ours = not installed(file) and any(Path(file).is_relative_to(folder) for folder in here)
        for folder in pip if ours else here:
            spec = PathFinder.find_spec(name, [folder])
            origin = spec.origin if spec and spec.has_location else None
            if origin and os.path.realpath(origin) != os.path.realpath(file):
                yield name, Path(origin), ours
