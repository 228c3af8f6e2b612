"""docs/field-reports.md leads every item of the reports to a section that exists."""

import json
import re

import pytest
from cut import FOLDER, path_of

PAGE = FOLDER.parent / "docs" / "field-reports.md"
ROWS = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if re.match(r"\| [1-5]: ", line)]


def test_every_report_has_rows():
    assert {row[0][0] for row in ROWS} == set("12345") and len(ROWS) > 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_the_section_is_there(row):
    _, number, section, *_ = row
    if number == "–":
        return
    cells = json.loads(path_of(number).read_text())["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert f"## {section}" in text.splitlines()
