"""What is noted of a learner's answers: by a real kernel on a real page, by a real server; and by nobody else."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from labkit import lessons, progress
from labkit.__main__ import main
from labkit.course import bring_up_to_date, progress_of_one, run
from labkit.display import notebook

PAGE = "02_kl_stays_at_zero.ipynb"
WRONG = "def my_write(parameters, gradients):\n    for p, g in zip(parameters, gradients):\n        p.grad = g\n"
RIGHT = (
    "def my_write(parameters, gradients):\n"
    "    for p, g in zip(parameters, gradients):\n"
    "        p.grad = g.clone() if p.grad is None else p.grad + g\n"
)


@pytest.fixture
def folder(checkout):
    bring_up_to_date(checkout)
    return checkout


@pytest.fixture
def copy(folder):
    return lessons.copy_of(folder)


@pytest.fixture
def reader(monkeypatch, copy):
    """The environment of a kernel that a server has started for page 02 of the copy."""
    monkeypatch.delenv("LABKIT_SAVED_PAGES")
    monkeypatch.setenv("JPY_SESSION_NAME", str(copy / PAGE))
    monkeypatch.setenv("PYTHONPATH", str(Path(progress.__file__).parents[1]))


def attempts(page, *functions):
    """The page up to its set-up, then its first exercise with each of these functions in turn, in a real kernel."""
    book = nbformat.read(page, as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    setup, solution, exercise = (
        next(cell for cell in code if re.search(pattern, cell.source, re.MULTILINE))
        for pattern in (r"^labkit\.warm\(", r"^def add_up\(", r"labkit\.exercise\(\n    partial\(checks\.accum")
    )
    book.cells = [code[0], setup, solution]
    for function in functions:
        book.cells += [nbformat.v4.new_code_cell(function), nbformat.v4.new_code_cell(exercise.source)]
    folder = {"metadata": {"path": str(page.parent)}}
    NotebookClient(book, timeout=120, kernel_name="python3", resources=folder).execute()
    return book


def lines(copy):
    return progress.read(copy / progress.FILE)


@pytest.mark.timeout(300)
def test_a_wrong_and_a_right_answer_in_a_real_kernel_are_two_lines_and_the_same_answer_again_is_none(reader, copy):
    empty = "def my_write(parameters, gradients):\n    ..."
    attempts(copy / PAGE, empty, WRONG, WRONG, RIGHT)
    wrong, right = lines(copy)
    assert [wrong["right"], right["right"]] == [False, True] and [wrong["attempt"], right["attempt"]] == [1, 2]
    keys = ["time", "page", "kind", "name", "attempt", "right", "hints", "seconds"]
    assert [*wrong] == [*right] == keys  # and so no code
    assert (wrong["page"], wrong["kind"], wrong["name"]) == ("02", "exercise", "my_write")
    assert 0 <= wrong["seconds"] <= right["seconds"] < 300
    attempts(copy / PAGE, WRONG)  # the next day: the number goes on
    assert lines(copy)[-1]["attempt"] == 3


@pytest.mark.timeout(300)
def test_a_folder_that_cannot_be_written_stops_no_page(reader, copy):
    (copy / progress.FILE).mkdir()
    book = attempts(copy / PAGE, RIGHT)
    assert "✓ Right." in book.cells[-1].outputs[0]["data"]["text/plain"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("setting", ["LABKIT_PROGRESS=off", "LABKIT_SAVED_PAGES=1", "LABKIT_PAGE_KERNEL=1", "original"])
def test_nothing_is_noted_where_it_is_off_where_nobody_reads_and_outside_a_copy(
    reader, folder, copy, monkeypatch, setting
):
    page = copy / PAGE
    if setting == "original":
        page = folder / PAGE
        monkeypatch.setenv("JPY_SESSION_NAME", str(page))
    else:
        name, value = setting.split("=")
        monkeypatch.setenv(name, value)
    attempts(page, WRONG)
    assert not list(folder.parent.rglob(progress.FILE))


@pytest.mark.timeout(300)
def test_the_course_notes_nothing_not_even_from_a_cell_of_a_page(reader, copy, tmp_path):
    book = nbformat.read(copy / PAGE, as_version=4)
    (source,) = [cell.source for cell in book.cells if cell.source.startswith('labkit.predict(\n    "The loop of')]
    call = "labkit.exercise(lambda f: f(1), lambda x: x)"
    book.cells = [nbformat.v4.new_code_cell("import labkit"), *map(nbformat.v4.new_code_cell, (source, call))]
    page = copy / "97_own.ipynb"
    nbformat.write(book, page)
    lesson = run(lessons.read(page), tmp_path / "out", {})
    assert not lesson.error and not lines(copy)


def test_a_disk_that_is_full_is_no_error_and_half_a_line_spoils_no_other(copy, monkeypatch):
    file = copy / progress.FILE
    file.write_text('{"time": "2026')
    progress.note(file, "02", "exercise", "my_write", 0.0, right=True)
    assert len(progress.read(file)) == 1

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(progress, "_append", full)
    progress.note(file, "02", "exercise", "my_write", 0.0, right=True)
    progress.note(file, "02", "question", "q", float("nan"), right=True)
    assert len(progress.read(file)) == 1


def test_whatever_stands_in_a_file_is_read_as_lines_or_left_out(copy):
    file = copy / progress.FILE
    fine = {"time": "t", "page": "02", "kind": "exercise", "name": "my_write", "right": True}
    junk = ["", "[1]", "{}", "[" * 10**5, "\x00", json.dumps(fine | {"right": "yes"}), json.dumps(fine | {"page": 2})]
    junk.append(json.dumps(fine | {"kind": "hint"}))
    file.write_bytes("\n".join([*junk, json.dumps(fine)]).encode() + b"\n\xff\xfe\n")
    assert progress.read(file) == [fine]


def told(copy, kind, name, **seen):
    progress.note(copy / progress.FILE, "02", kind, name, 0.0, **seen)


def test_the_table_counts_attempts_up_to_the_first_right_one_different_hints_and_names_the_next_page(
    folder, copy, capsys
):
    told(copy, "exercise", "my_write", right=False)
    for number in (1, 2, 1):
        told(copy, "hint", "my_write", hint=number)
    for right in (True, True, False):
        told(copy, "exercise", "my_write", right=right)
    told(copy, "exercise", "of another page", right=True)
    for right in (False, True, True):
        told(copy, "question", "Which?", right=right)
    progress.note(copy / progress.FILE, "00", "exercise", "my_advantage", 0.0, right=True)
    assert [line["hints"] for line in lines(copy) if line["kind"] == "exercise"] == [0, 2, 2, 2, 0, 0]

    assert main(["progress", "--notebooks", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (page,) = [page for page in shown["pages"] if page["number"] == "02"]
    counts = ("exercises", "right", "attempts", "hints", "questions", "answered", "done")
    assert [page[name] for name in counts] == [2, 1, 2, 2, 2, 1, False]
    assert shown["next"] == "01" and len(shown["pages"]) == len(lessons.pages(folder))

    text = progress_of_one(folder, width=70)
    assert max(map(len, text.split("\n\n")[0].splitlines())) <= 70
    assert re.search(r"✓ 00 GRPO in 60 lines +1 of 1 +1 +0 of 1\n", text)
    assert re.search(r"  02 KL = 0.000.*… +1 of 2 +2 +2 +1 of 2\n", text) and "next: 01 The sampler asserts" in text


def test_every_exercise_and_question_of_every_page_is_found_in_its_code(folder):
    for lesson in lessons.choose(folder):
        asked = progress.tasks(lesson)
        source = "\n".join(lessons.sources(lesson.path))
        assert asked.questions == source.count("labkit.predict(") > 0
        assert len(asked.exercises) == source.count("labkit.exercise(") > 0
        assert all(f"def {name}(" in source for name in asked.exercises), asked


def test_a_page_tells_of_its_answers_only_where_they_are_noted(reader, copy, monkeypatch):
    monkeypatch.setattr(progress, "kernel", lambda: object())
    monkeypatch.delenv("LABKIT_PAGE_KERNEL", raising=False)
    assert notebook.told("Which  one?")["name"] == "Which one?"
    spec = {"question": "q", "options": [], "told": notebook.told("q")}
    assert "labkit/answers" in notebook.page("question", "", spec)
    assert "labkit/answers" not in notebook.page("question", "", {"question": "q"})
    monkeypatch.delenv("LABKIT_PAGE_KERNEL")
    monkeypatch.setenv("JPY_SESSION_NAME", str(copy / "Untitled.ipynb"))
    assert notebook.told("q") is None


@pytest.mark.timeout(180)
def test_the_server_notes_what_a_page_tells_and_refuses_what_no_page_tells(folder, copy, tmp_path):
    (folder.parent / "docs").mkdir()
    environment = {**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path), "JUPYTER_TOKEN": "t"}
    command = [sys.executable, "-m", "labkit", "lab", "--notebooks", str(folder), "--no-browser"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        address = next(found[1] for line in server.stdout if (found := re.search(r"(http://[^/]+)/lab/tree", line)))

        def post(body, token="t"):
            request = urllib.request.Request(f"{address}/labkit/answers", json.dumps(body).encode())
            request.add_header("Authorization", f"token {token}")
            try:
                return urllib.request.urlopen(request, timeout=20).status
            except urllib.error.HTTPError as error:
                return error.code

        said = {"page": "02", "name": "Which?", "began": 0.0, "kind": "question", "right": True}
        assert post(said) == 204 and post(said | {"kind": "hint", "name": "my_write", "hint": 2}) == 204
        assert post(said, token="another") == 403
        for wrong in ([1], {}, said | {"kind": "exercise"}, said | {"right": 1}, said | {"began": "x"}):
            assert post(wrong) == 400
        question, hint = lines(copy)
        assert question["right"] is True and question["attempt"] == 1 and hint["hint"] == 2
        # the pop-up that asks about news is off
        page = urllib.request.Request(f"{address}/lab", headers={"Authorization": "token t"})
        assert "apputils-extension:announcements" in urllib.request.urlopen(page, timeout=20).read().decode()
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        server.stdout.close()


def test_a_class_is_summed_up_from_the_learners_files_alone_and_what_they_wrote_into_them_is_not_shown(
    checkout, tmp_path, capsys
):
    homes = tmp_path / "homes"
    for name, place in {"ada": "my-notebooks", "bo": "lab/my-notebooks", "cy\x1b[2J $x$": ".", "no lines": "x"}.items():
        folder = homes / name / place
        folder.mkdir(parents=True)
        (folder / "sitecustomize.py").write_text("raise SystemExit('the code of a learner was run')")
        if name != "no lines":
            progress.note(folder / progress.FILE, "02", "exercise", "my_write", 0.0, right=name == "ada")
    progress.note(homes / "ada/my-notebooks" / progress.FILE, "02", "exercise", "my_diagnosis", 0.0, right=True)
    evil = {"time": "EVIL", "page": "02", "kind": "exercise", "name": "my_write", "right": False, "more": "EVIL"}
    with (homes / "bo/lab/my-notebooks" / progress.FILE).open("a") as file:
        file.write(json.dumps(evil) + "\n" + json.dumps(evil | {"page": "EVIL", "name": "EVIL"}) + "\nEVIL\n")
    picture = tmp_path / "class.png"
    command = ["progress", "--class", str(homes), "--notebooks", str(checkout)]
    assert main([*command, "--picture", str(picture)]) == 0
    text = capsys.readouterr().out
    by_learner, by_page = text.split("\n\n")
    pages, exercises = len(lessons.pages(checkout)), by_learner.splitlines()[1].split()[6]
    assert re.search(rf"^ada +1 of {pages} +2 of {exercises} +2 +0 ", by_learner, re.MULTILINE)
    assert re.search(rf"^bo +0 of {pages} +0 of {exercises} +2 +0 ", by_learner, re.MULTILINE)
    assert "cy?[2J $x$" in by_learner and len(by_learner.splitlines()) == 4
    assert re.search(r"^02 KL = 0.000, and nothing crashes +3 +1 +5 +0$", by_page, re.MULTILINE)
    assert "EVIL" not in text and "\x1b" not in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*command, "--json"]) == 0
    (page,) = [page for page in json.loads(capsys.readouterr().out)["ada"] if page["number"] == "02"]
    assert page["done"] and page["attempts"] == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--class", "nowhere"], "expected a folder that has a folder for each learner"),
        (["--class", "."], "no progress.jsonl"),
        (["--picture", "x.png"], "--class DIR beside it"),
        (["--class", ".", "--picture", "x.pdf"], "a name that ends in .png"),
    ],
)
def test_a_class_that_is_not_there_is_one_line(checkout, tmp_path, monkeypatch, capsys, options, says):
    monkeypatch.chdir(tmp_path)
    assert main(["progress", *options]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
