"""The shape of a lesson of the third edition, counted. It goes with the last of them: see test_form.py.

A lesson can have the right shape and be a bad lesson. This file counts and judges nothing else.
"""

from itertools import pairwise

import pytest
from cut import FOLDER, NOTEBOOKS, cells, folded, is_code, printed, source, tags

from labkit.verdicts import parse

CELLS = {"00": 25, "16": 26}  # the others: 32
TO_PLAY = {"00_playground"}  # its tasks are solved with sliders
NO_FAILURE = {"00"}  # has no bug, so no fix either, and one exercise; so has what is in `more`
EARLY = 14  # by this cell stand the first picture and the fix

THIRD = [path for path in NOTEBOOKS if "checked" not in tags(cells(path)[-1])]
lesson = pytest.mark.parametrize("path", THIRD, ids=lambda path: path.stem)


def lines_of(cell):
    return [line for line in source(cell).splitlines() if line.strip()]


def has_failure(path):
    return path.parent == FOLDER and path.name[:2] not in NO_FAILURE


def first(path, wanted):
    return next((at for at, cell in enumerate(cells(path)) if wanted(cell)), None)


def has_picture(cell):
    return any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))


@lesson
def test_it_has_at_most_32_cells(path):
    assert len(cells(path)) <= CELLS.get(path.name[:2], 32)


@lesson
def test_it_has_at_most_ten_verdicts_and_each_prints_number_relation_and_limit(path):
    rows = [row for cell in cells(path) for row in parse(printed(cell))]
    assert 4 <= len(rows) <= 10
    assert not [row["claim"] for row in rows if "relation" not in row]


@lesson
def test_what_stands_open_is_short(path):
    open_code = [cell for cell in cells(path) if is_code(cell) and not folded(cell)]
    assert sum(len(lines_of(cell)) for cell in open_code) <= 220
    # the loop of lesson 00 is one piece
    assert not [source(cell) for cell in open_code if len(lines_of(cell)) > 18 and "grpo" not in tags(cell)]
    assert sum(len(source(cell).split()) for cell in cells(path) if not is_code(cell)) <= 1400


@lesson
def test_no_more_than_three_open_code_cells_stand_in_a_row(path):
    run = longest = 0
    for cell in cells(path):
        run = 0 if not is_code(cell) else run if folded(cell) else run + 1
        longest = max(longest, run)
    assert longest <= 3


@lesson
def test_picture_and_fix_stand_in_the_first_half_and_the_bug_in_a_tagged_cell(path):
    assert first(path, has_picture) <= EARLY
    if has_failure(path):
        assert first(path, lambda cell: "bug" in tags(cell)) is not None
        assert first(path, lambda cell: "fix" in tags(cell)) <= EARLY


@lesson
def test_exercises_have_a_stub_before_and_a_folded_solution_behind_their_check(path):
    book = cells(path)
    if path.stem in TO_PLAY:
        return
    checks = [at for at, cell in enumerate(book) if "exercise" in tags(cell)]
    assert len(checks) >= (2 if has_failure(path) else 1)
    for at, cell in enumerate(book):
        if "solution" in tags(cell):
            assert folded(cell) and any("exercise" in tags(before) for before in book[:at])
    for here, after in pairwise([*checks, len(book)]):
        assert "your code here" in "".join(map(source, book[:here]))
        assert any("solution" in tags(cell) for cell in book[here:after]), f"no solution behind cell {here}"
        assert "solution=" not in source(book[here])
