"""The course: what notebooks say of themselves, and the runner, on small notebooks with a real kernel."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest

from labkit import course, doctor, lessons
from labkit.__main__ import main
from labkit.course import console, recorded


def book(path, *cells, claims=()):
    nb = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    nb.cells = [nbformat.v4.new_markdown_cell("# 01 · A small lesson")]
    nb.cells += [nbformat.v4.new_code_cell(c) for c in cells]
    nb.cells[1].metadata["tags"] = ["parameters"]
    text = "".join(f"PASS  {claim}\n" for claim in claims)
    if claims:
        nb.cells[-1].outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
    nbformat.write(nb, path)


def labkit(*args, cwd, **environment):
    command, environment = [sys.executable, "-m", "labkit", *args], {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=170, cwd=cwd, env=environment)


def test_a_course_passes_only_when_every_committed_claim_is_made_again(tmp_path):
    (tmp_path / "notebooks").mkdir()
    body = "import labkit\nlabkit.verdict('the seed is five', SEED, '==', 5)"
    book(tmp_path / "notebooks/01_good.ipynb", "SEED = 0", body, claims=["the seed is five"])
    book(tmp_path / "notebooks/02_silent.ipynb", "SEED = 0", "x = 1", claims=["never made again"])
    book(tmp_path / "notebooks/03_wrong.ipynb", "SEED = 0", "import labkit", "labkit.verdict('one is two', 1, '==', 2)")
    done = labkit("course", "--seed", "5", "--json", "result.json", cwd=tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    one, two, three = result["lessons"]
    assert done.returncode == 1 and result["ok"] is False
    assert one["ok"] and one["verdicts"] == [
        {
            "result": "pass",
            "claim": "the seed is five",
            "seen": "5 == 5",
            "measured": "5",
            "relation": "==",
            "limit": "5",
            "unit": "",
        }
    ]
    assert one["title"] == "A small lesson" and one["seconds"] > 0
    assert not two["ok"] and two["missing"] == ["never made again"] and not two["error"]
    last = three["verdicts"][-1]
    assert not three["ok"] and (last["result"], last["claim"], last["seen"]) == ("fail", "one is two", "1 == 2")
    assert "1/1" in done.stdout and "one is two" in done.stdout
    assert (tmp_path / "out/course/01_good.ipynb").is_file()


KERNEL = """
import atexit, json, os, pathlib, sys
had = "torch" in sys.modules
import labkit, random, numpy
import matplotlib.pyplot as plt
labkit.warm()
def four():
    yield 2 + 2
run = labkit.sandbox.run(four, env={"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]})
atexit.register(lambda: pathlib.Path(f"end{NUMBER}.txt").write_text("at exit"))
facts = {"torch": had, "events": run.events, "process": run.meta["process"], "folder": os.getcwd()}
facts |= {"first": sys.path[0], "here": "" in sys.path}
facts |= {"threads": os.environ["OMP_NUM_THREADS"], "random": [random.random(), numpy.random.random()]}
pathlib.Path(f"facts{NUMBER}.json").write_text(json.dumps(facts))
plt.plot([1, 2])
plt.show()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.parametrize("cold", [False, True])
def test_the_kernels_of_a_course_are_forked_and_else_like_any_kernel(tmp_path, cold):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for number in (1, 2):
        book(folder / f"0{number}_a.ipynb", f"NUMBER = {number}", KERNEL)
    settings = {"LABKIT_COLD_KERNELS": "1"} if cold else {}
    done = labkit("course", "--jobs", "1", cwd=tmp_path, MARK=str(tmp_path), OMP_NUM_THREADS="1", **settings)
    facts = [json.loads((folder / f"facts{n}.json").read_text()) for n in (1, 2)]
    assert "ok" in done.stderr and [f["torch"] for f in facts] == [not cold] * 2, done.stdout + done.stderr
    for number, one in zip((1, 2), facts, strict=True):
        assert (one["events"], one["process"], one["folder"]) == ([4], "fork", str(folder))
        assert one["first"] == str(Path(course.__file__).parents[2]) and one["here"]
        assert one["threads"] == "1" and (folder / f"end{number}.txt").read_text() == "at exit"
        outputs = nbformat.read(tmp_path / f"out/course/0{number}_a.ipynb", 4).cells[-1].outputs
        assert any("image/png" in o.get("data", {}) for o in outputs)
    assert facts[0]["random"] != facts[1]["random"]
    assert not [p for p in psutil.process_iter() if marked(p, str(tmp_path))]


def marked(process, text):
    try:
        return process.environ().get("MARK") == text
    except psutil.Error:
        return False


def test_the_copy_of_an_earlier_run_is_no_evidence_of_this_one(tmp_path):
    (tmp_path / "notebooks").mkdir()
    book(tmp_path / "notebooks/01_gone.ipynb", "SEED = 0", "x = 1", claims=["made long ago"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out/01_gone.ipynb").write_bytes((tmp_path / "notebooks/01_gone.ipynb").read_bytes())
    (lesson,) = lessons.choose(tmp_path / "notebooks")
    lesson.path.unlink()
    course.run(lesson, tmp_path / "out", {})
    assert not lesson.ok and "gone.ipynb" in lesson.error and not lesson.verdicts


def test_a_title_with_brackets_is_printed_as_it_is(capsys):
    lesson = lessons.Lesson("01", "The [red] mask [/]", Path("x"), error="KeyError: [bold]")
    console.report([lesson], [])
    text = capsys.readouterr().out
    assert "[red] mask [/]" in text and "[bold]" in text


def test_a_notebook_says_its_number_title_parameters_and_claims(tmp_path):
    path = tmp_path / "07_x.ipynb"
    book(path, "SEED: int = 0\nA, (B, *C) = 1, (2, 3)\nD = E = SEED", "F = 1", claims=["a | b", "c"])
    lesson = lessons.read(path)
    assert (lesson.number, lesson.title, lesson.expected) == ("07", "A small lesson", ["a", "c"])
    assert lessons.parameters(path) == {"SEED", "A", "B", "C", "D", "E"}
    assert [cell.tags for cell in lessons.cells(path)] == [set(), {"parameters"}, set()]


def test_the_parameters_are_those_that_papermill_finds():
    import papermill

    folder = lessons.folder(lessons.BESIDE)
    for lesson in lessons.choose(folder):
        assert lessons.parameters(lesson.path) == set(papermill.inspect_notebook(str(lesson.path)))


def test_lessons_come_in_the_order_asked_for_and_once(tmp_path):
    for number in ("01", "02", "10"):
        book(tmp_path / f"{number}_x.ipynb", "x = 1")
    assert [lesson.number for lesson in lessons.choose(tmp_path)] == ["01", "02", "10"]
    assert [lesson.number for lesson in lessons.choose(tmp_path, ["10", "1", "01"])] == ["10", "01"]


def test_a_page_in_more_runs_with_the_course_and_is_not_the_lesson_of_its_number(tmp_path):
    (tmp_path / "more").mkdir()
    for name in ("03_x", "04_y", "more/03_z"):
        (tmp_path / f"{name}.ipynb").write_text('{"cells": []}')
    assert [lesson.number for lesson in lessons.choose(tmp_path)] == ["03", "04", "03-more"]
    assert [lesson.path.stem for lesson in lessons.choose(tmp_path, ["3", "03-more"])] == ["03_x", "03_z"]


CODE = '{"cells": [{"cell_type": "code", "source": %s, "metadata": {"tags": ["parameters"]}, "outputs": %s}]}'
GARBAGE = ["", "{ not a notebook", "[]", "null", "3", "{}", '{"cells": 3}', '{"cells": [{}]}', CODE % ("3", "[]")]
GARBAGE += [CODE % ('"x = ("', "[]"), CODE % ('""', "[3]"), CODE % ('""', "null"), "[" * 100_000]


@pytest.mark.parametrize("text", GARBAGE, ids=lambda text: text[:12])
def test_a_file_that_is_no_notebook_is_named(tmp_path, text):
    (tmp_path / "02_garbage.ipynb").write_text(text)
    with pytest.raises(ValueError, match=r"02_garbage.ipynb: cannot be read as a notebook \(\w+: "):
        lessons.parameters(lessons.choose(tmp_path)[0].path)
    (tmp_path / "02_garbage.ipynb").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"02_garbage.ipynb: cannot be read as a notebook"):
        lessons.choose(tmp_path)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["course", "77"], "lesson '77': expected one of 01"),
        (["course", "--device", "tpu"], "device 'tpu'"),
        (["course", "--device", "cuda"], "sees no GPU"),
        (["course", "--record"], "sees no GPU"),
        (["course", "--notebooks", "nowhere"], "no lessons in nowhere"),
        (["course", "--notebooks", "empty"], "no lessons in empty"),
        (["course", "02"], "02_garbage.ipynb: cannot be read"),
        (["course", "--seed", "abc"], "argument --seed: expected a whole number below 2**63, got 'abc'"),
        (["course", "--seed", "1" + 30 * "0"], "argument --seed: expected a whole number"),
        (["course", "--out", "file"], "--out: cannot write"),
        (["course", "--out", "file/sub"], "--out: cannot write"),
        (["course", "--out", "notebooks"], "--out notebooks: the lessons themselves are there"),
        (["course", "--json", "empty"], "--json: cannot write empty in .; name another place"),
        (["course", "--json", "file/r.json"], "--json: cannot write r.json in file"),
        (["course", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["course", ""], "lesson '': expected one of 01"),
        (["lab", "99"], "lesson '99'"),
        (["lab", "--notebooks", "empty"], "no lessons in empty"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(tmp_path, monkeypatch, capsys, args, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebooks").mkdir()
    book(tmp_path / "notebooks/01_fine.ipynb", "SEED = 0")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    if args == ["course", "02"]:
        (tmp_path / "notebooks/02_garbage.ipynb").write_text("{ not a notebook")
    if args[-1] in ("cuda", "--record"):
        monkeypatch.setattr(doctor, "ask_torch", dict)
    if args[0] == "course" and "--json" not in args:
        args = [*args, "--json", "r.json"]
    assert code_of(args) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists() and not (tmp_path / "r.json").exists()
    assert (tmp_path / "notebooks/01_fine.ipynb").stat().st_size > 0


def code_of(arguments):
    """The exit code of the command, run in this process."""
    try:
        return main(arguments)
    except SystemExit as error:  # from argparse
        return error.code


MEETS = """
import time, labkit
from pathlib import Path
Path(f"{OWN}.here").touch()
until = time.monotonic() + PATIENCE
while not (met := Path(f"{OTHER}.here").exists()) and time.monotonic() < until:
    time.sleep(0.05)
labkit.verdict("met", met, "==", True)
"""


@pytest.mark.parametrize("jobs, patience, met", [("2", 120, {"01", "02"}), ("1", 0, {"02"})])
def test_lessons_run_side_by_side_or_in_turn(tmp_path, jobs, patience, met):
    (tmp_path / "notebooks").mkdir()
    for own, other in (("01", "02"), ("02", "01")):
        given = f"OWN, OTHER, PATIENCE = {own!r}, {other!r}, {patience}\n"
        book(tmp_path / f"notebooks/{own}_meets.ipynb", "SEED = 0", given + MEETS, claims=["met"])
    done = labkit("course", "--jobs", jobs, "--json", "result.json", cwd=tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert [lesson["number"] for lesson in result["lessons"]] == ["01", "02"], done.stderr
    assert {lesson["number"] for lesson in result["lessons"] if lesson["ok"]} == met
    assert done.stderr.count("A small lesson") == 2 and "━" not in done.stderr  # no bars in a file: a line for each


def test_a_lesson_that_kills_its_kernel_leaves_the_others_alone(tmp_path):
    (tmp_path / "notebooks").mkdir()
    held = "import labkit; labkit.verdict('held', 1, '==', 1)"
    book(tmp_path / "notebooks/01_dies.ipynb", "SEED = 0", held, "import os; os._exit(3)")
    book(tmp_path / "notebooks/02_good.ipynb", "SEED = 0", held, claims=["held"])
    done = labkit("course", "--jobs", "2", "--json", "result.json", cwd=tmp_path)
    one, two = json.loads((tmp_path / "result.json").read_text())["lessons"]
    assert done.returncode == 1 and "DeadKernel" in one["error"] and two["ok"]
    assert [verdict["claim"] for verdict in one["verdicts"]] == ["held"]  # what it had shown until then is saved


ON_A_GPU = {"gpu": ["A GPU"], "driver": "595.1", "torch": "2.13.0", "transformers": "5.23.0", "python": "3.11.7"}


def test_a_recording_is_the_executed_copy_and_says_where_it_ran(tmp_path):
    body = "import os, labkit\nprint(os.__file__, labkit.__file__)\nlabkit.verdict('the seed is five', SEED, '==', 5)"
    book(tmp_path / "01_small.ipynb", "SEED = 5", body, claims=["the seed is five"])
    (lesson,) = lessons.choose(tmp_path)
    lesson = course.run(lesson, tmp_path / "out", {})
    copy = tmp_path / "out/01_small.ipynb"
    path = recorded.write(lesson, copy, ON_A_GPU, tmp_path / "recorded")
    cells = nbformat.read(path, 4).cells
    assert path.name == "01_small.ipynb" and cells[0].source.startswith(
        "**Recorded on A GPU**, driver 595.1, torch 2.13"
    )
    text = cells[-1].outputs[0].text
    assert text.startswith("<python>") and "<lab>/labkit/__init__.py" in text and "PASS  the seed is five" in text
    nbformat.validate(nbformat.read(path, 4))
    before = path.read_text()
    lesson.error = "NameError: x"
    with pytest.raises(ValueError, match="did not pass"):
        recorded.write(lesson, copy, ON_A_GPU, tmp_path / "recorded")
    assert path.read_text() == before


def test_only_a_gpu_with_a_named_driver_records():
    recorded.check("auto", ON_A_GPU)
    for device, facts, says in [
        ("cpu", ON_A_GPU, "use --device cuda"),
        ("auto", ON_A_GPU | {"gpu": []}, "sees no GPU"),
        ("cuda", ON_A_GPU | {"driver": None}, "names its driver"),
    ]:
        with pytest.raises(ValueError, match=says):
            recorded.check(device, facts)
