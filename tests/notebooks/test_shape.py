"""The shape of a lesson, counted.

A lesson can have the right shape and be a bad lesson. This file counts and judges nothing else.
"""

from itertools import pairwise

import pytest
from cut import FOLDER, NOTEBOOKS, cells, folded, is_code, printed, source, tags

from labkit.verdicts import parse

CELLS = {"15": 26, "16": 26, "17": 26}  # the others: 32
TO_PLAY = {"00_playground"}  # its tasks are solved with sliders
NO_FAILURE = {"00"}  # has no bug, so no fix either, and one exercise; so has what is in `more`
# pages in the fourth edition's form: verdicts in the last cell alone, and the reader's function handed on
MOVED = {"00"}
LINES = 165  # open lines of code of such a page
EARLY = 14  # by this cell stand the first picture and the fix

lesson = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def lines_of(cell):
    return [line for line in source(cell).splitlines() if line.strip()]


def has_failure(path):
    return path.parent == FOLDER and path.name[:2] not in NO_FAILURE


def moved(path):
    return path.parent == FOLDER and path.name[:2] in MOVED


def first(path, wanted):
    return next((at for at, cell in enumerate(cells(path)) if wanted(cell)), None)


def has_picture(cell):
    return any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))


@lesson
def test_it_has_at_most_32_cells(path):
    assert len(cells(path)) <= (36 if moved(path) else CELLS.get(path.name[:2], 32))


@lesson
def test_a_page_that_has_moved_has_its_verdicts_in_the_last_cell_alone(path):
    *above, last = cells(path)
    if moved(path):
        assert "checked" in tags(last) and folded(last)
        assert not [row for cell in above for row in parse(printed(cell))]


@lesson
def test_it_has_at_most_ten_verdicts_and_each_prints_number_relation_and_limit(path):
    rows = [row for cell in cells(path) for row in parse(printed(cell))]
    assert 4 <= len(rows) <= 10
    assert not [row["claim"] for row in rows if "relation" not in row]


@lesson
def test_what_stands_open_is_short(path):
    open_code = [cell for cell in cells(path) if is_code(cell) and not folded(cell)]
    assert sum(len(lines_of(cell)) for cell in open_code) <= (LINES if moved(path) else 220)
    # the loop of lesson 00 is one piece, and a page that has moved shows what it computes
    long = [source(cell) for cell in open_code if len(lines_of(cell)) > 18 and "grpo" not in tags(cell)]
    assert moved(path) or not long
    words = sum(len(source(cell).split()) for cell in cells(path) if not is_code(cell))
    assert words <= (1200 if moved(path) else 1400)


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
    if moved(path):
        for here in checks:
            assert "your code here" in "".join(map(source, book[:here]))
            assert any("solution" in tags(cell) and folded(cell) for cell in book[:here])
        return
    for at, cell in enumerate(book):
        if "solution" in tags(cell):
            assert folded(cell) and any("exercise" in tags(before) for before in book[:at])
    for here, after in pairwise([*checks, len(book)]):
        assert "your code here" in "".join(map(source, book[:here]))
        assert any("solution" in tags(cell) for cell in book[here:after]), f"no solution behind cell {here}"
        assert "solution=" not in source(book[here])


def test_the_loop_of_lesson_00_is_grpo_in_60_lines():
    """The reader's `advantage` counts too: without it the loop is not whole."""
    (path,) = FOLDER.glob("00_*.ipynb")
    loop = [cell for cell in cells(path) if "grpo" in tags(cell)]
    (solution,) = [cell for cell in cells(path) if "solution" in tags(cell)]
    code = [line for cell in [*loop, solution] for line in lines_of(cell) if not line.strip().startswith("#")]
    assert len(loop) <= 3 and len(code) <= 66, len(code)
