"""The recordings from a GPU: of every page, whole, with no trace of the machine, and links that lead somewhere."""

import json
import re
from pathlib import Path

import pytest

from labkit.verdicts import parse

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "docs" / "recorded"
RECORDINGS = sorted(path.relative_to(RECORDED) for path in RECORDED.rglob("*.ipynb"))
recording = pytest.mark.parametrize("name", RECORDINGS, ids=str)


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def outputs(path):
    return [output for cell in cells(path) for output in cell.get("outputs", [])]


def test_every_page_has_one():
    lessons = ROOT / "notebooks"
    pages = {path.relative_to(lessons) for path in lessons.rglob("[0-9][0-9]_*.ipynb")}
    assert pages == set(RECORDINGS)


@recording
def test_it_says_where_it_ran_and_every_verdict_of_it_holds(name):
    first = "".join(cells(RECORDED / name)[0]["source"])
    assert re.match(r"\*\*Recorded on [\w ]+\*\*, driver [\d.]+, torch [\d.]+, .*\d{4}-\d\d-\d\d\.$", first)
    made = outputs(RECORDED / name)
    assert not [output for output in made if output["output_type"] == "error"]
    rows = [row for output in made if output.get("name") == "stdout" for row in parse("".join(output["text"]))]
    assert len(rows) >= 4 and {row["result"] for row in rows} == {"pass"}


@recording
def test_it_has_no_folder_of_the_machine_and_its_links_lead_to_files(name):
    path = RECORDED / name
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/(?:home|root|opt|tmp|mnt)/\w", text)
    prose = "\n".join("".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "markdown")
    for target in re.findall(r"\]\(((?!https?:)[^)#\s]+)\)", prose):
        assert (path.parent / target).exists(), target
