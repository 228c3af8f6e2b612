"""Does this process run the code that is on disk? And if not, who still holds the old code?

A time stamp says when a file was saved, not what runs. So the file is compiled again, and each function that lives in
this process, whoever holds it, is compared with the code object of its name there: bytecode, constants, names. Lines,
comments, blank lines and docstrings do not count. Defaults and a module's constants that are plain values are compared
too.

    loaded("losses")        asked of the process that runs the code: in the kernel, in the worker
    importable("losses")    what a new process started here would import

Not compared: a new function that nothing calls yet, a generator that waits in the middle of old code, a changed
decorator, base class or annotation, what a module computed when it was imported, the values that a class binds, code of
compiled extensions, a plain value copied by `from m import LR`. Code made at run time has no file. It imports no module
of yours, and reloads and mends nothing.

    report      what is stale, in words
    alive       the functions that live here against the files
    source      a file, read without running it, against a live function
    holders     the names that lead to an object
    places      Python's files, pip's and the checkout's
"""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Iterator, Mapping

from .alive import differences
from .places import copies, file_of, installed, project, short
from .report import Loaded, Stale, with_holders

__all__ = ["Loaded", "Stale", "importable", "loaded"]


def loaded(*modules: str | types.ModuleType) -> Loaded:
    """Compare what this process runs with the files on disk.

    modules   names, or modules; a package includes its submodules. None: every module that is neither installed nor
              Python's own (an editable install is not installed in this sense), and shadowing copies of all

    Returns a `Loaded`. Raises: ValueError names a module that is not loaded here.
    """
    names = [m.__name__ if isinstance(m, types.ModuleType) else m for m in modules]
    known = {n: m for n, m in list(sys.modules.items()) if isinstance(m, types.ModuleType) and isinstance(n, str)}
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"{', '.join(missing)}: not loaded in this process; ask the process that imported it")
    paths = {name: file_of(module) for name, module in known.items()}
    files, unread = {}, []
    for name, file in paths.items():
        if names and not any(name == n or name.startswith(f"{n}.") for n in names):
            continue
        if not names and (not file.endswith(".py") or installed(file)):
            continue
        loader = getattr(vars(known[name]).get("__spec__"), "loader", None) or vars(known[name]).get("__loader__")
        # another loader may rewrite what it loads, as pytest's does
        if type(loader) is importlib.machinery.SourceFileLoader and os.path.isfile(file):
            files[file] = name
        elif name in names or file.endswith(".py"):
            unread.append(f"{name}: not loaded from a source file as it stands ({type(loader).__name__})")
    if gc.get_freeze_count():  # what is frozen is hidden from the collector's calls, as in the sandbox's children
        gc.unfreeze()
    gc.collect()  # old code that only waits for the collector is held by nobody
    stale, functions = differences(files)
    return Loaded((*with_holders(stale), *_shadows(paths, names)), functions, len(files), tuple(unread), bool(names))


def importable(*modules: str) -> Loaded:
    """Which copy of these modules a new process would import: is it the one in this checkout?

    modules   top-level names; none: those in this folder and in the project around it

    Nothing is imported, and no process that runs already is asked. Returns a `Loaded`.
    Raises: ValueError names a module that would not be found.
    """
    here = {path.stem for folder in project() for path in folder.glob("*.py")}
    here |= {path.parent.name for folder in project() for path in folder.glob("*/__init__.py")}
    specs = {name.split(".")[0]: importlib.util.find_spec(name.split(".")[0]) for name in modules or sorted(here)}
    if missing := [name for name, spec in specs.items() if spec is None and modules]:
        raise ValueError(f"{', '.join(missing)}: a process started here would not find it")
    paths = {name: spec.origin for name, spec in specs.items() if spec and spec.has_location and spec.origin}
    return Loaded(tuple(_shadows(paths, [])), 0, len(paths), (), bool(modules))


def _shadows(paths: Mapping[str, str], names: list[str]) -> Iterator[Stale]:
    """Copies that do not run, beside those that do."""
    tops = {name.split(".")[0] for name in names}
    for name, other, ours in copies({n: p for n, p in paths.items() if not names or n in tops}):
        folder = other.parent.parent if other.name == "__init__.py" else other.parent
        cure = "pip uninstall it" if ours else f"pip uninstall it, or pip install -e {short(folder)}"
        what = f"this copy does not run, {short(paths[name])} does"
        yield Stale(name, "", short(other), what, (), f"{cure}; then restart the kernel")
