"""The form of a page, counted. A page can have it and be a bad page; nothing else is judged here."""

import ast
import re

import nbformat
import pytest
from cut import FOLDER, NOTEBOOKS, cells, folded, is_code, printed, source, tags

from labkit.verdicts import parse

# 1,200 words were wanted: 00 and 03 need a little more, to say under which conditions a sentence holds
CELLS, WORDS, OPEN_LINES = 38, 1340, 160
pages = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def open_code(path):
    return [cell for cell in cells(path) if is_code(cell) and not folded(cell)]


def lines_of(cell):
    """Lines of code: a line that is only a comment explains, and is not counted."""
    return [line for line in source(cell).splitlines() if line.strip() and not line.strip().startswith("#")]


def prose(path):
    return "\n".join(source(cell) for cell in cells(path) if not is_code(cell))


@pages
def test_all_verdicts_stand_in_the_last_cell_which_is_folded_and_there_are_ten_at_most(path):
    *story, last = cells(path)
    assert not [cell for cell in story if "verdict(" in source(cell) and is_code(cell)]
    rows = parse(printed(last))
    assert 3 <= len(rows) <= 10 and folded(last)
    assert not [row["claim"] for row in rows if "relation" not in row]
    assert not [cell for cell in story if parse(printed(cell))]


@pages
def test_it_is_short(path):
    assert len(cells(path)) <= CELLS
    read = re.sub(r"^\|.*$", "", prose(path), flags=re.MULTILINE)  # a table is looked up
    assert len([word for word in read.split() if re.search(r"\w", word)]) <= WORDS
    assert sum(len(lines_of(cell)) for cell in open_code(path)) <= OPEN_LINES


@pages
def test_it_begins_with_the_symptom_and_three_checks_at_most_for_whose_run_does_this_right_now(path):
    first = source(cells(path)[0])
    fold = re.search(r"<details><summary>(.*?)</summary>(.*?)</details>", first, re.DOTALL)
    assert fold and "right now" in fold[1]
    assert 1 <= len(re.findall(r"^\d\. ", fold[2], re.MULTILINE)) <= 3
    assert re.search(r"\b\d+ minutes\b", first)


@pages
def test_a_picture_stands_before_anything_is_explained_at_length(path):
    at = next(
        at
        for at, cell in enumerate(cells(path))
        if any("image/png" in o.get("data", {}) for o in cell.get("outputs", []))
    )
    words = sum(len(source(cell).split()) for cell in cells(path)[1:at] if not is_code(cell))
    assert at <= 9 and words <= 200


@pages
def test_what_the_reader_writes_is_what_runs(path):
    """An exercise whose value is used: its name is read in a later cell, and the empty function's is not."""
    book = cells(path)
    handed_on = 0
    for at, cell in enumerate(book):
        for node in (
            ast.walk(ast.parse(source(cell), mode="exec")) if is_code(cell) and "exercise" in tags(cell) else ()
        ):
            if isinstance(node, ast.Assign) and "labkit.exercise(" in ast.unparse(node):
                (name,) = (target.id for target in node.targets)
                later = "\n".join(source(after) for after in book[at + 1 :] if is_code(after))
                handed_on += bool(re.search(rf"\b{name}\b", later))
                stub = ast.unparse(node.value.args[1])
                assert not re.search(rf"\b{stub}\b", later), f"{stub} may be wrong or empty; run {name}"
    assert handed_on >= 1
    props = FOLDER / "props" / f"lesson_{path.name[:2]}.py"
    beside = props.read_text() if props.is_file() else ""  # a page of `more` may have none of its number
    page = "\n".join(source(cell) for cell in book if is_code(cell)) + beside
    assert "labkit.explore(" in page, "one figure with a knob carries the page"


@pages
def test_solutions_are_folded_before_their_exercise_and_nothing_gives_them_away(path):
    book = cells(path)
    for at, cell in enumerate(book):
        if "exercise" in tags(cell):
            before = book[max(0, at - 2) : at]
            assert any("your code here" in source(each) for each in before), at
            assert any("solution" in tags(each) and folded(each) for each in before), at
            assert "solution=" in source(cell) and folded(cell)


@pages
def test_each_wrong_option_of_a_question_has_a_sentence_of_its_own(path):
    for cell in cells(path):
        if source(cell).startswith("labkit.predict("):
            call = ast.parse(source(cell)).body[0].value
            options = call.args[1].elts
            (wrong,) = (word.value for word in call.keywords if word.arg == "wrong")
            assert len(wrong.elts) == len(options) - 1 and folded(cell) and "question" in tags(cell)


@pages
def test_it_ends_with_the_next_page_and_the_list_of_all_and_every_link_leads_somewhere(path):
    last = [source(cell) for cell in cells(path) if not is_code(cell)][-1]
    assert re.search(r"Next: \[\d\d · [^\]]+\]\([^)]+\.ipynb\)", last) or path.name.startswith("18")
    assert "00_start_here.ipynb" in last or path.name.startswith("00")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose(path)):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


@pages
def test_every_number_of_the_prose_is_printed_by_a_cell(path, script):
    rows = list(script("prose_numbers").missing(nbformat.read(path, as_version=4)))
    assert not rows


def test_a_number_that_no_cell_prints_is_found_and_one_that_is_rounded_or_a_share_is_not(script):
    book = nbformat.v4.new_notebook()
    told = "It falls from 0.714 to 71 %, to 5,900. It was 0.333 of [their run](https://example.org) with 0.99. And 44."
    book.cells.append(nbformat.v4.new_markdown_cell(told))
    cell = nbformat.v4.new_code_cell("x = 1")
    cell.outputs = [nbformat.v4.new_output("stream", text="0.71402 5903.4")]
    book.cells.append(cell)
    (row,) = script("prose_numbers").missing(book)
    assert row.numbers == ("44",)


@pages
def test_to_open_a_page_changes_nothing_jupyterlabs_metadata_stands_there_already(path):
    metadata = nbformat.read(path, as_version=4).metadata
    assert metadata.kernelspec == {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    assert metadata.language_info.codemirror_mode == {"name": "ipython", "version": 3}
    assert set(metadata) == {"kernelspec", "language_info"}
    assert not re.search(r"widget-view", path.read_text()), "a saved page holds no widget"
