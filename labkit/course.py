"""Run the course headless: every notebook through papermill, every verdict collected.

A lesson passes when it ran to the end and made every claim that its committed outputs make. It runs in the
interpreter that this runs in, with this labkit, whatever kernels are installed. This file knows nothing of what a
lesson says.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .common import write_whole
from .verdicts import parse


@dataclass
class Lesson:
    """One notebook and, after a run, what it showed."""

    number: str  # "01"
    title: str
    path: Path
    expected: list[str] = field(default_factory=list)  # the claims in the committed outputs
    verdicts: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and not self.missing and all(v["result"] == "pass" for v in self.verdicts)

    @property
    def missing(self) -> list[str]:
        """Claims that the committed notebook makes and this run did not."""
        made = {v["claim"] for v in self.verdicts}
        return [claim for claim in self.expected if claim not in made]


def find_notebooks(folder: str | Path | None = None) -> Path:
    """The `notebooks` folder: the one named, the one here, or the one beside the package. ValueError if none."""
    beside = Path(__file__).resolve().parent.parent / "notebooks"
    tried = [Path(folder)] if folder else [Path("notebooks"), beside]
    for path in tried:
        if path.is_dir() and any(path.glob("[0-9][0-9]_*.ipynb")):
            return path.resolve()
    where = " or ".join(str(p) for p in tried)
    raise ValueError(f"notebooks: no lessons in {where}; name the folder with --notebooks")


def lessons(folder: Path, numbers: list[str] | None = None) -> list[Lesson]:
    """The lessons asked for (all when none are named), in order. ValueError names an unknown or unreadable one."""
    paths = {p.name[:2]: p for p in sorted(folder.glob("[0-9][0-9]_*.ipynb"))}
    wanted = [re.sub(r"^(\d)$", r"0\1", n) for n in numbers] if numbers else list(paths)
    unknown = [n for n in wanted if n not in paths]
    if unknown:
        raise ValueError(f"lesson {unknown[0]!r}: expected one of {', '.join(paths)}")
    return [_read(number, paths[number]) for number in dict.fromkeys(wanted)]


def run(
    lesson: Lesson, out: Path, parameters: dict[str, Any], progress: bool = True, timeout: float = 600.0
) -> Lesson:
    """Execute one lesson into `out`; fill in its verdicts, seconds and error. What a lesson raises is a result."""
    import papermill

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    out.mkdir(parents=True, exist_ok=True)
    copy = out / lesson.path.name
    bar = {"desc": f"{lesson.number} {lesson.title}"[:40].ljust(40), "leave": False}
    began = time.perf_counter()
    try:
        with own_kernel() as kernel:
            papermill.execute_notebook(
                str(lesson.path), str(copy), parameters=parameters, kernel_name=kernel, cwd=str(lesson.path.parent),
                engine_name=_engine(),
                progress_bar=bar if progress else False,
                execution_timeout=timeout, log_output=False,
                extra_arguments=["--IPKernelApp.log_level=ERROR"],  # ipykernel 7.3 warns about TCP through the bars
            )  # fmt: skip
    except Exception as error:  # what a lesson raises is a result of the course, not a fault of it
        lesson.error = _one_line(error)
    lesson.seconds = time.perf_counter() - began
    lesson.verdicts = list(_verdicts(_outputs(copy))) if copy.is_file() else []
    return lesson


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


def parameters_of(path: Path) -> dict[str, Any]:
    """The names in a notebook's `parameters` cell."""
    import papermill

    return papermill.inspect_notebook(str(path))


def as_json(done: list[Lesson], environment: dict[str, Any]) -> str:
    rows = [{**asdict(d), "path": d.path.name, "ok": d.ok, "missing": d.missing} for d in done]
    return (
        json.dumps({"ok": all(d.ok for d in done), "environment": environment, "lessons": rows}, indent=1)
        + "\n"
    )


def table(done: list[Lesson]) -> Any:
    """A rich table of lesson, verdicts, seconds."""
    from rich.table import Table

    grid = Table(title="The course", title_justify="left")
    for name, justify in (("lesson", "left"), ("verdicts", "right"), ("seconds", "right"), ("", "left")):
        grid.add_column(name, justify=justify)  # type: ignore[arg-type]
    for d in done:
        passed = sum(v["result"] == "pass" for v in d.verdicts)
        total = max(len(d.expected), len(d.verdicts))
        note = "[green]ok[/]" if d.ok else f"[red]failed[/] {_why(d)}"
        grid.add_row(f"{d.number} {d.title}", f"{passed}/{total}", f"{d.seconds:.1f}", note)
    return grid


def main(numbers: list[str], *, device: str, seed: int, out: Path, notebooks: str | None, json_file: Path | None,
         model: str | None, record: bool = False, quiet: bool = False) -> int:  # fmt: skip
    """What `labkit course` does. Returns the exit code: 0 when every verdict of every lesson holds."""
    _check_installed()
    from rich.console import Console
    from tqdm import tqdm

    from . import doctor, recordings

    chosen = lessons(find_notebooks(notebooks), numbers)
    facts = doctor.environment()
    _check_device(device, facts)
    recorded_on = recordings.check(device, facts) if record else ""
    parameters: dict[str, Any] = {"DEVICE": device, "SEED": seed, **({"MODEL": model} if model else {})}
    bar = tqdm(chosen, desc="course", unit="lesson", disable=quiet, leave=False, file=sys.stderr)
    done, written, unwritten = [], [], []
    for lesson in bar:
        known = parameters_of(lesson.path)
        given = {k: v for k, v in parameters.items() if k in known}
        kept = (
            recordings.collecting(recordings.kept_file(lesson, out)) if record else contextlib.nullcontext()
        )
        with kept:
            done.append(run(lesson, out, given, progress=not quiet))
        if record:
            try:
                written.append(recordings.write(lesson, out, facts, device=recorded_on, parameters=given))
            except ValueError as error:
                unwritten.append(str(error))
    if record:
        written.append(recordings.summarise(done, facts, recorded_on))
    if json_file:
        write_whole(json_file, as_json(done, facts))
    if not quiet:
        Console().print(table(done))
        for d in done:
            for v in d.verdicts if not d.ok else []:
                print(f"  {d.number} {v['result'].upper()}  {v['claim']}  {v['seen']}")
        for path in written:
            print(f"recorded: {path} ({path.stat().st_size / 1000:.0f} kB)")
    for text in unwritten:
        print(f"labkit course: not recorded: {text}", file=sys.stderr)
    return 0 if all(d.ok for d in done) and not unwritten else 1


def _read(number: str, path: Path) -> Lesson:
    try:
        book = json.loads(path.read_text(encoding="utf-8"))
        cells = book["cells"]
    except (ValueError, KeyError, OSError) as error:
        raise ValueError(f"notebook {path}: cannot be read as a notebook ({_one_line(error)})") from None
    prose = [
        line for c in cells if c["cell_type"] == "markdown" for line in "".join(c["source"]).splitlines()
    ]
    heading = next((line for line in prose if line.startswith("# ")), path.stem)
    title = re.sub(r"^#\s*(\d\d\s*[·.:-]\s*)?", "", heading)
    return Lesson(number, title, path, [v["claim"] for v in _verdicts(cells)])


def _outputs(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def _verdicts(cells: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    for cell in cells:
        for output in cell.get("outputs", []):
            if output["output_type"] == "stream" and output["name"] == "stdout":
                yield from parse("".join(output["text"]))
            elif output["output_type"] == "error" and output["ename"] == "VerdictError":
                yield from parse("".join(output["evalue"]))


def _why(lesson: Lesson) -> str:
    if lesson.error:
        return lesson.error[:100]
    return f"{len(lesson.missing)} claims not made, first: {lesson.missing[0]}" if lesson.missing else ""


def _one_line(error: BaseException) -> str:
    name, value = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", str(error))
    return f"{name}: {' '.join(str(value).split())}"[:300]


def _check_installed() -> None:
    needs = {"papermill": "papermill", "ipykernel": "ipykernel", "rich": "rich", "tqdm": "tqdm",
             "pynvml": "nvidia-ml-py"}  # fmt: skip
    missing = " ".join(of for name, of in needs.items() if importlib.util.find_spec(name) is None)
    if missing:
        raise ValueError(
            f"not installed here: {missing}; pip install {missing} (without a network: docs/gpu.md)"
        )


def _check_device(device: str, facts: dict[str, Any]) -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device {device!r}: expected auto, cpu or cuda")
    if device == "cuda" and not facts["gpu"]:
        raise ValueError("device 'cuda': torch sees no GPU on this machine; use --device cpu or auto")
