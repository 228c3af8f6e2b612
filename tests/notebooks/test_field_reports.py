"""docs/field-reports.md leads every item of the reports to a section that exists."""

import re

from cut import FOLDER, prose

PAGE = FOLDER.parent / "docs" / "field-reports.md"
ROWS = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if re.match(r"\| [1-5]: ", line)]


def test_every_report_has_rows_and_each_leads_to_a_section_that_is_there():
    assert {row[0][0] for row in ROWS} == set("12345") and len(ROWS) > 40
    for item, number, section, *_ in ROWS:
        assert number == "–" or f"## {section}" in prose(number).splitlines(), item
