"""Run the course headless: every notebook through papermill, every verdict collected.

A lesson passes when it ran to the end and made every claim that its committed outputs make. It runs in the
interpreter that this runs in, with this labkit, whatever kernels are installed. What a notebook says of itself is read
by `lessons`; this file knows nothing of what one teaches.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import doctor, lessons
from .common import write_whole
from .lessons import Lesson


def main(
    numbers: Sequence[str],
    *,
    device: str,
    seed: int,
    out: Path,
    notebooks: str | None,
    json_file: Path | None,
    model: str | None,
    record: bool = False,
    quiet: bool = False,
) -> int:
    """What `labkit course` does. Returns the exit code: 0 when every verdict of every lesson holds, 1 when one fails.

    Raises: ValueError for what cannot be run, before any lesson runs.
    """
    _check_installed()
    from tqdm import tqdm

    from . import recordings

    chosen = lessons.choose(lessons.folder(notebooks), numbers)
    known = {lesson.number: lessons.parameters(lesson.path) for lesson in chosen}
    for lesson in chosen:
        _copy(lesson, out)
    facts = doctor.environment()
    _check_device(device, facts)
    if record:
        recordings.check(device, facts)
    asked: dict[str, Any] = {"DEVICE": device, "SEED": seed, **({"MODEL": model} if model else {})}
    written, unwritten = [], []
    for lesson in tqdm(chosen, desc="course", unit="lesson", disable=quiet, leave=False, file=sys.stderr):
        given = {name: value for name, value in asked.items() if name in known[lesson.number]}
        kept = out / f"{lesson.number}.kept.jsonl"
        with recordings.collecting(kept) if record else contextlib.nullcontext():
            run(lesson, out, given, progress=not quiet)
        if record:
            try:
                written.append(recordings.write(lesson, kept, device, facts, given))
            except ValueError as error:
                unwritten.append(str(error))
    if json_file:
        write_whole(json_file, as_json(chosen, facts))
    if not quiet:
        _print(chosen, written)
    for text in unwritten:
        print(f"labkit course: not recorded: {text}", file=sys.stderr)
    return 0 if all(lesson.ok for lesson in chosen) and not unwritten else 1


def run(lesson: Lesson, out: Path, parameters: dict[str, Any], progress: bool = True, timeout: float = 600.0) -> Lesson:
    """Execute one lesson into a copy in `out`; fill in its verdicts, seconds and error, and return it.

    parameters   what the notebook's `parameters` cell is overridden with
    progress     a bar over the cells
    timeout      seconds per cell

    What a lesson raises is a result, not an exception here. Raises: ValueError when `out` holds the lesson itself.
    """
    import papermill

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    copy = _copy(lesson, out)
    out.mkdir(parents=True, exist_ok=True)
    # What an earlier run left there is no evidence of this one.
    copy.unlink(missing_ok=True)
    bar = {"desc": f"{lesson.number} {lesson.title}"[:40].ljust(40), "leave": False}
    began = time.perf_counter()
    try:
        with own_kernel() as kernel:
            papermill.execute_notebook(
                str(lesson.path),
                str(copy),
                parameters=parameters,
                kernel_name=kernel,
                cwd=str(lesson.path.parent),
                engine_name=_engine(),
                progress_bar=bar if progress else False,
                execution_timeout=timeout,
                log_output=False,
                extra_arguments=["--IPKernelApp.log_level=ERROR"],  # ipykernel 7.3 warns about TCP through the bars
            )
    except Exception as error:
        lesson.error = _one_line(error)
    lesson.seconds = time.perf_counter() - began
    lesson.verdicts = list(lessons.verdicts(lessons.cells(copy))) if copy.is_file() else []
    return lesson


def _copy(lesson: Lesson, out: Path) -> Path:
    copy = out / lesson.path.name
    if copy.resolve() == lesson.path.resolve():
        raise ValueError(f"--out {out}: the lessons themselves are there; name another folder")
    return copy


@functools.cache
def _engine() -> str:
    """The name of papermill's own engine, but for one thing: it saves once at the end, in place of twice a cell.

    That is a second of a lesson's fifteen. What a lesson that dies has shown until then is saved all the same.
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

    paths = [str(Path(__file__).resolve().parent.parent)]
    paths += [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    spec = {**get_kernel_dict(), "env": {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}}
    before = os.environ.get("JUPYTER_PATH")
    with tempfile.TemporaryDirectory(prefix="labkit-kernel-") as folder:
        write_whole(Path(folder) / "kernels" / "python3" / "kernel.json", json.dumps(spec))
        os.environ["JUPYTER_PATH"] = folder + (os.pathsep + before if before else "")
        try:
            yield "python3"
        finally:
            os.environ.pop("JUPYTER_PATH")
            if before is not None:
                os.environ["JUPYTER_PATH"] = before


def as_json(done: Sequence[Lesson], environment: dict[str, Any]) -> str:
    """The lessons with their verdicts, whether all is well, and the environment, as JSON."""
    rows = [{**asdict(d), "path": d.path.name, "ok": d.ok, "missing": d.missing} for d in done]
    result = {"ok": all(d.ok for d in done), "environment": environment, "lessons": rows}
    return json.dumps(result, indent=1) + "\n"


def _print(done: Sequence[Lesson], written: Sequence[Path]) -> None:
    """The table, the verdicts of lessons that failed, and the recordings."""
    from rich.console import Console

    Console().print(_table(done))
    for lesson in done:
        for v in lesson.verdicts if not lesson.ok else []:
            print(f"  {lesson.number} {v['result'].upper()}  {v['claim']}  {v['seen']}")
    for path in written:
        print(f"recorded: {path} ({path.stat().st_size / 1000:.0f} kB)")


def _table(done: Sequence[Lesson]) -> Any:
    """A rich table of lesson, verdicts, seconds."""
    from rich.markup import escape
    from rich.table import Table

    grid = Table(title="The course", title_justify="left")
    for name, justify in (("lesson", "left"), ("verdicts", "right"), ("seconds", "right"), ("", "left")):
        grid.add_column(name, justify=justify)  # type: ignore[arg-type]
    for lesson in done:
        passed = sum(v["result"] == "pass" for v in lesson.verdicts)
        total = max(len(lesson.expected), len(lesson.verdicts))
        note = "[green]ok[/]" if lesson.ok else f"[red]failed[/] {escape(_why(lesson))}"
        title = escape(f"{lesson.number} {lesson.title}")
        grid.add_row(title, f"{passed}/{total}", f"{lesson.seconds:.1f}", note)
    return grid


def _why(lesson: Lesson) -> str:
    if lesson.error:
        return lesson.error[:100]
    return f"{len(lesson.missing)} claims not made, first: {lesson.missing[0]}" if lesson.missing else ""


def _one_line(error: BaseException) -> str:
    name, value = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", str(error))
    return f"{name}: {' '.join(str(value).split())}"[:300]


def _check_installed() -> None:
    needed = ("papermill", "ipykernel", "rich", "tqdm", "nvidia-ml-py")
    if missing := " ".join(name for name in needed if doctor.version(name) is None):
        raise ValueError(f"not installed here: {missing}; pip install {missing} (without a network: docs/gpu.md)")


def _check_device(device: str, facts: dict[str, Any]) -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device {device!r}: expected auto, cpu or cuda")
    if device == "cuda" and not facts["gpu"]:
        raise ValueError("device 'cuda': torch sees no GPU on this machine; use --device cpu or auto")
