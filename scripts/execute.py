"""Execute notebooks in place and keep their outputs, or build one from a jupytext script first.

    python scripts/execute.py                      every notebook
    python scripts/execute.py 01 03                these
    python scripts/execute.py --from draft.py 01   take the cells from a jupytext percent script, then execute

Cells tagged `hidden`, `solution` or `checked`, questions and the check of an exercise are folded. Cell ids
stay as they are for cells that did not move; widget state and timing metadata are not kept.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
# as JupyterLab writes it: to open a page must not change its file
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
    "version": platform.python_version(),
}
FOLDED = {"hidden", "solution", "checked"}  # tags of cells that JupyterLab shows folded


def from_script(script: Path, notebook: Path) -> nbformat.NotebookNode:
    """The cells of a percent script; a cell keeps the id of the old cell in the same place and of the same kind."""
    import jupytext

    book = jupytext.read(script)
    old = nbformat.read(notebook, as_version=4).cells if notebook.is_file() else []
    for i, cell in enumerate(book.cells):
        same = i < len(old) and old[i].cell_type == cell.cell_type
        cell["id"] = old[i]["id"] if same else f"{notebook.name[:2]}-{i:02d}"
    seen: set[str] = set()
    for i, cell in enumerate(book.cells):
        if cell["id"] in seen:
            cell["id"] = f"{cell['id']}-{i}"
        seen.add(cell["id"])
    return book


def execute(book: nbformat.NotebookNode) -> None:
    """Run all cells in a fresh kernel; CellExecutionError at the first that raises.

    Knobs leave their named positions side by side, not every position: see `labkit.explore`.
    """
    os.environ["LABKIT_SAVED_PAGES"] = "1"
    options = {"timeout": 600, "kernel_name": "python3", "record_timing": False, "store_widget_state": False}
    quiet = ["--IPKernelApp.log_level=ERROR"]
    folder = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(book, resources=folder, extra_arguments=quiet, **options).execute()


def formatted(book: nbformat.NotebookNode, path: Path) -> nbformat.NotebookNode:
    """The same notebook as `ruff format` leaves it, by the rules of its folder."""
    command = ["ruff", "format", "--stdin-filename", str(path), "-"]
    done = subprocess.run([sys.executable, "-m", *command], input=nbformat.writes(book), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{path.name}: {done.stderr.strip()}")
    return nbformat.reads(done.stdout, as_version=4)


def clean(book: nbformat.NotebookNode) -> None:
    book.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": LANGUAGE})
    for cell in book.cells:
        tags = cell.metadata.get("tags")
        # folded in JupyterLab: set-up (`hidden`), a solution, and a call that holds an answer
        tells = cell.source.startswith("labkit.predict(") or "labkit.exercise(" in cell.source
        tells |= not FOLDED.isdisjoint(tags or [])
        folded = {"jupyter": {"source_hidden": True}} if cell.cell_type == "code" and tells else {}
        cell.metadata = nbformat.from_dict(folded | ({"tags": tags} if tags else {}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", nargs="*", metavar="NN")
    parser.add_argument("--from", dest="script", type=Path, help="a jupytext percent script; needs exactly one lesson")
    parser.add_argument("--name", help="file name of a new notebook, for example 04_every_answer_begins_the_same")
    args = parser.parse_args()
    if args.script:
        name = args.name or next(FOLDER.glob(f"{args.lessons[0]}_*.ipynb")).stem
        jobs = [FOLDER / f"{name}.ipynb"]
    else:
        every = sorted([*FOLDER.glob("[0-9][0-9]_*.ipynb"), *FOLDER.glob("more/*.ipynb")])
        jobs = [p for p in every if not args.lessons or p.name[:2] in args.lessons]
    for path in jobs:
        book = from_script(args.script, path) if args.script else nbformat.read(path, as_version=4)
        book = formatted(book, path)
        try:
            execute(book)
        except CellExecutionError as error:
            clean(book)
            broken = Path("out") / path.name
            broken.parent.mkdir(exist_ok=True)
            nbformat.write(book, broken)
            print(f"{path.name}: {error.ename}: {error.evalue}", file=sys.stderr)
            print(f"the notebook as far as it came: {broken}", file=sys.stderr)
            return 1
        clean(book)
        nbformat.write(book, path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
