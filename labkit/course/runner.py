"""Run the lessons: each notebook through papermill in a kernel of its own, its verdicts collected.

A lesson passes when it ran to the end and made every claim that its committed outputs make. It runs in the
interpreter that this runs in, with this labkit, whatever kernels are installed. Several run side by side, each with a
process of its own beside its kernel. What a notebook says of itself is read by `lessons`; what a terminal shows is in
`console`; this file knows nothing of what one teaches.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit import doctor, lessons
from labkit.common import write_whole
from labkit.lessons import Lesson

GIB_EACH = 2.5  # memory that a lesson may need at once, with its runs


def main(
    numbers: Sequence[str],
    *,
    device: str,
    seed: int,
    out: Path,
    notebooks: str | None,
    json_file: Path | None,
    model: str | None,
    jobs: int | None = None,
    record: bool = False,
) -> int:
    """What `labkit course` does. Returns the exit code: 0 when every verdict of every lesson holds, 1 when one fails.

    Raises: ValueError for what cannot be run, before any lesson runs.
    """
    _check_installed()
    from . import console, recorded

    folder = lessons.folder(notebooks)
    chosen = lessons.choose(folder, numbers)
    for lesson in chosen:
        _copy(lesson, out)
    facts = functools.cache(doctor.environment)  # asked when needed: it imports torch in a process of its own, 2 s
    if device == "cuda" and not facts()["gpu"]:
        raise ValueError("device 'cuda': torch sees no GPU on this machine; use --device cpu or auto")
    if record:
        recorded.check(device, facts())
    parameters = {"DEVICE": device, "SEED": seed}
    if model:
        parameters["MODEL"] = model
    # lessons that share a card would measure each other
    shared = record or device == "cuda" or (device == "auto" and len(chosen) > 1 and bool(facts()["gpu"]))
    at_once = min(jobs or (1 if shared else side_by_side()), len(chosen))
    # from its second lesson on, a process that has imported what they need is worth it
    forked = (
        sys.platform == "linux" and not shared and len(chosen) > at_once and "LABKIT_COLD_KERNELS" not in os.environ
    )
    with console.progress(len(chosen)) as ended:
        done = _run_all(chosen, out, parameters, forked, at_once, ended)
    recordings = []
    for lesson in done:
        if record and lesson.ok:
            place = folder.parent / "docs" / "recorded" / lesson.path.relative_to(folder)
            recordings.append(recorded.write(_copy(lesson, out), facts(), place))
    if json_file:
        write_whole(json_file, as_json(done, facts()))
    console.report(done, recordings)
    return 0 if all(lesson.ok for lesson in done) else 1


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side() -> int:
    """How many lessons run at once unless somebody says: one per core that this process may use, as memory allows."""
    import psutil

    room = int(psutil.virtual_memory().available / (GIB_EACH * 2**30))
    return max(1, min(_cores(), room, 8))


def _run_all(
    chosen: Sequence[Lesson],
    out: Path,
    parameters: dict[str, Any],
    forked: bool,
    at_once: int,
    ended: Callable[[Lesson], None],
) -> list[Lesson]:
    """Each lesson in a worker process: papermill changes its process's working folder, so threads would not do."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(at_once, context, _share_cores, (at_once,)) as pool:
        futures = [pool.submit(run, lesson, out, parameters, forked=forked) for lesson in chosen]
        try:
            for future in as_completed(futures):
                ended(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            # A worker would run its lesson to the end, half a minute and more; its kernel ends with it.
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
    return [future.result() for future in futures]


def _share_cores(at_once: int) -> None:
    """In a worker: a thread that waits for a core which another lesson has spins, and costs that one its speed."""
    if at_once > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // at_once)))


def run(lesson: Lesson, out: Path, parameters: dict[str, Any], timeout: float = 600.0, forked: bool = False) -> Lesson:
    """Execute one lesson into a copy in `out`; fill in its verdicts, seconds and error, and return it.

    parameters   values for the notebook's `parameters` cell; what it does not name is left out
    timeout      seconds per cell
    forked       the kernel is a fork of a process that has torch imported: see `forked`

    What a lesson raises is a result, not an exception here. Raises: ValueError when `out` holds the lesson itself.
    """
    import papermill

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("LABKIT_SAVED_PAGES", "1")  # nobody turns a knob here: see `labkit.explore`
    kernels: dict[str, Any] = {}
    if forked:
        from .forked import ForkingKernelManager

        kernels = {"kernel_manager_class": ForkingKernelManager}
    copy = _copy(lesson, out)
    out.mkdir(parents=True, exist_ok=True)
    # What an earlier run left there is no evidence of this one.
    copy.unlink(missing_ok=True)
    began = time.perf_counter()
    try:
        known = papermill.inspect_notebook(str(lesson.path))
        with own_kernel() as kernel:
            papermill.execute_notebook(
                str(lesson.path),
                str(copy),
                parameters={name: value for name, value in parameters.items() if name in known},
                kernel_name=kernel,
                cwd=str(lesson.path.parent),
                engine_name=_engine(),
                progress_bar=False,
                execution_timeout=timeout,
                log_output=False,
                extra_arguments=["--IPKernelApp.log_level=ERROR"],  # ipykernel 7.3 warns about TCP
                **kernels,
            )
    except Exception as error:
        lesson.error = _one_line(error)
    lesson.seconds = time.perf_counter() - began
    lesson.verdicts = list(lessons.verdicts(copy)) if copy.is_file() else []
    return lesson


def _copy(lesson: Lesson, out: Path) -> Path:
    copy = out / lesson.path.name
    if copy.resolve() == lesson.path.resolve():
        raise ValueError(f"--out {out}: the lessons themselves are there; name another folder")
    return copy


@functools.cache
def _engine() -> str:
    """The name of papermill's own engine, but that it saves once, at the end, also when the kernel dies.

    Saving twice a cell is a second of a lesson's fifteen.
    """
    from papermill.engines import NBClientEngine, papermill_engines

    class SavesAtTheEnd(NBClientEngine):  # type: ignore[misc]  # papermill has no types
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **settings: Any) -> None:
            path, nb_man.output_path = nb_man.output_path, None
            try:
                super().execute_managed_notebook(nb_man, kernel_name, **settings)
            finally:
                nb_man.output_path = path  # papermill saves there when this returns or raises

    papermill_engines.register("labkit", SavesAtTheEnd)
    return "labkit"


@contextlib.contextmanager
def own_kernel() -> Iterator[str]:
    """While this lasts, the kernel of the name that it gives is this interpreter, and finds what this one finds.

    An installed `python3` kernel may be another Python, or missing. Directories of PYTHONPATH, and the one that holds
    this package, go along as absolute paths, since a lesson runs in its own folder.
    """
    from ipykernel.kernelspec import get_kernel_dict

    paths = [str(Path(__file__).resolve().parents[2])]
    paths += [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    before = {name: os.environ.get(name) for name in ("JUPYTER_PATH", "PYTHONPATH")}
    with tempfile.TemporaryDirectory(prefix="labkit-kernel-") as folder:
        write_whole(Path(folder) / "kernels" / "python3" / "kernel.json", json.dumps(get_kernel_dict()))
        os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, (folder, before["JUPYTER_PATH"])))
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        try:
            yield "python3"
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def as_json(done: Sequence[Lesson], environment: dict[str, Any]) -> str:
    """The lessons with their verdicts, whether all is well, and the environment, as JSON."""
    rows = [{**asdict(d), "path": d.path.name, "ok": d.ok, "missing": d.missing} for d in done]
    result = {"ok": all(d.ok for d in done), "environment": environment, "lessons": rows}
    return json.dumps(result, indent=1) + "\n"


def _one_line(error: BaseException) -> str:
    name, value = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", str(error))
    return f"{name}: {' '.join(str(value).split())}"[:300]


def _check_installed() -> None:
    needed = ("papermill", "ipykernel", "rich", "nvidia-ml-py")
    if missing := " ".join(name for name in needed if doctor.version(name) is None):
        way_out = "in the checkout: pip install -e '.[course]' (without a network: docs/gpu.md)"
        raise ValueError(f"not installed here: {missing}; {way_out}")
