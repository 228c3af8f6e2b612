"""Cut the bug out of a notebook, or run the notebook with other parameters."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from claims import FOLDER, path_of


def bug_cells(number: str) -> dict[str, Any]:
    """Names defined by a lesson's import cells and its cells tagged `bug`, executed alone."""
    space: dict[str, Any] = {}
    for cell in json.loads(path_of(number).read_text())["cells"]:
        source, tags = "".join(cell["source"]), cell["metadata"].get("tags", [])
        imports = source.startswith(("import ", "from "))
        if cell["cell_type"] == "code" and (imports or "bug" in tags or "parameters" in tags):
            exec(compile(source, f"lesson {number}", "exec"), space)
    return space


def claims(number: str, out: Path, **parameters: Any) -> tuple[list[str], list[str], str]:
    """Run a lesson with these parameters: (claims committed, claims made, error)."""
    from labkit import course, lessons

    (lesson,) = lessons.choose(FOLDER, [number])
    course.run(lesson, out, parameters)
    return lesson.expected, [v["claim"] for v in lesson.verdicts if v["result"] == "pass"], lesson.error


def installed(package: str, file: str) -> str:
    """The source of a file of an installed package; the test is skipped where the package is not there."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    return (Path(found.origin).parent / file).read_text(encoding="utf-8")
