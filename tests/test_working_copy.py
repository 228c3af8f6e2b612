"""The learner's own copy: what he wrote stays, what he did not touch is renewed. On the real lessons."""

import json
import re
import shutil
from pathlib import Path

import pytest

from labkit import lessons
from labkit.__main__ import main
from labkit.course import bring_up_to_date

ROOT = Path(__file__).resolve().parent.parent
PAGE = "02_kl_stays_at_zero.ipynb"


@pytest.fixture
def folder(tmp_path):
    """The lessons of a checkout."""
    ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=ignored)
    return tmp_path / "notebooks"


def edit(path, source):
    """Write `source` into the first code cell, as JupyterLab saves it."""
    book = json.loads(path.read_text())
    cell = next(cell for cell in book["cells"] if cell["cell_type"] == "code")
    cell["source"] = source
    path.write_text(json.dumps(book))


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_copy_has_every_page_and_all_that_pages_import_and_a_second_look_changes_nothing(folder):
    changes = bring_up_to_date(folder)
    assert changes.is_new and changes.copy == folder.parent / "my-notebooks" and "your copy" in str(changes)
    theirs, mine = contents(folder), contents(changes.copy)
    wanted = {name for name in theirs if name.endswith(".ipynb") or name.startswith("props/")}
    assert {name: theirs[name] for name in wanted} == {name: mine[name] for name in wanted}
    assert mine.keys() - wanted == {lessons.RECORD}
    again = bring_up_to_date(folder)
    assert str(again) == "" and contents(again.copy) == mine
    # of a copy no copy is made: its own pages would be taken for the lessons
    assert bring_up_to_date(changes.copy).copy == changes.copy and contents(changes.copy) == mine


def test_links_out_of_the_copy_lead_somewhere(folder):
    copy = bring_up_to_date(folder).copy
    (folder.parent / "docs").symlink_to(ROOT / "docs")
    for page in lessons.pages(copy):
        cells = json.loads(page.read_text())["cells"]
        prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        for link in re.findall(r"\]\((?!http|#)([^)#]+)", prose):
            assert (page.parent / link).exists(), (page.name, link)


def test_a_newer_lesson_takes_the_place_of_a_page_that_was_only_run_and_not_of_one_that_was_written_in(folder):
    copy = bring_up_to_date(folder).copy
    run_only, written = copy / PAGE, copy / "03_kl_of_ten_thousand.ipynb"
    book = json.loads(run_only.read_text())
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": 99}
    run_only.write_text(json.dumps(book))
    edit(written, "MINE = 1")
    mine = written.read_bytes()
    before = run_only.read_bytes()
    assert str(bring_up_to_date(folder)) == "" and run_only.read_bytes() == before  # no newer lesson: nothing to do

    for name in (PAGE, written.name):
        edit(folder / name, "NEWER = 1")
    (folder / "props" / "arms.py").write_text("# newer\n")
    changes = bring_up_to_date(folder)
    assert changes.refreshed == [PAGE, "props/arms.py"] and changes.kept == [written.name]
    assert run_only.read_bytes() == (folder / PAGE).read_bytes() and written.read_bytes() == mine
    assert "up to date, you had not changed them: 02 and 1 file of props" in str(changes)
    assert "03_kl_of_ten_thousand.ipynb: yours is kept; there is a newer version: labkit reset 03" in str(changes)
    assert bring_up_to_date(folder).kept == [written.name], "it is said as long as it is so"

    # taken back by hand to what the lesson says now, it is no change any more
    shutil.copy(folder / written.name, written)
    assert str(bring_up_to_date(folder)) == ""


def test_a_lesson_that_is_gone_goes_unless_it_was_written_in(folder):
    copy = bring_up_to_date(folder).copy
    edit(copy / "03_kl_of_ten_thousand.ipynb", "MINE = 1")
    for name in (PAGE, "03_kl_of_ten_thousand.ipynb"):
        (folder / name).unlink()
    bring_up_to_date(folder)
    assert not (copy / PAGE).exists() and (copy / "03_kl_of_ten_thousand.ipynb").exists()


@pytest.mark.parametrize("damage", ["", "[1]", None])
def test_without_its_record_nothing_of_the_learners_is_replaced(folder, damage):
    copy = bring_up_to_date(folder).copy
    edit(copy / PAGE, "MINE = 1")
    (copy / "03_kl_of_ten_thousand.ipynb").write_text("no notebook")
    (copy / lessons.RECORD).unlink()
    if damage is not None:
        (copy / lessons.RECORD).write_text(damage)
    before = contents(copy)
    changes = bring_up_to_date(folder)
    assert changes.kept == [PAGE, "03_kl_of_ten_thousand.ipynb"] and not changes.refreshed
    after = contents(copy)
    assert before | {lessons.RECORD: after[lessons.RECORD]} == after


def test_reset_gives_the_fresh_page_keeps_the_old_one_under_a_name_with_the_date_and_says_so(folder, capsys):
    options = ["--notebooks", str(folder)]
    assert main(["reset", "02", *options]) == 2 and "labkit lab makes it" in capsys.readouterr().err
    copy = bring_up_to_date(folder).copy
    assert main(["reset", "2", *options]) == 0 and "nothing done" in capsys.readouterr().out
    edit(copy / PAGE, "MINE = 1")
    mine = (copy / PAGE).read_bytes()
    edit(folder / PAGE, "NEWER = 1")
    assert bring_up_to_date(folder).kept == [PAGE]
    assert main(["reset", "02", *options]) == 0
    said = capsys.readouterr().out
    (old,) = copy.glob("02_*.20??-??-??_??????.ipynb")
    assert f"my-notebooks/{PAGE} is fresh; yours is kept as {old.name}" in said
    assert old.read_bytes() == mine and (copy / PAGE).read_bytes() == (folder / PAGE).read_bytes()
    assert not bring_up_to_date(folder).kept
    # the old page is not taken for the lesson
    assert lessons.choose(copy, ["02"])[0].path.name == PAGE
    assert main(["reset", "02", "--notebooks", str(copy)]) == 2 and "itself a copy" in capsys.readouterr().err


def test_git_does_not_see_the_copy():
    assert "/my-notebooks/" in (ROOT / ".gitignore").read_text().splitlines()
