"""Cut the bug out of a notebook, or run the notebook with other parameters."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent.parent / "notebooks"


def path_of(number: str) -> Path:
    """The notebook of lesson "01"."""
    return next(FOLDER.glob(f"{number}_*.ipynb"))


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
    course.run(lesson, out, parameters, progress=False)
    return lesson.expected, [v["claim"] for v in lesson.verdicts if v["result"] == "pass"], lesson.error
