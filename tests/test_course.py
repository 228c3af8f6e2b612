"""The course: what notebooks say of themselves, and the runner, on small notebooks with a real kernel."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from labkit import course, doctor, lessons
from labkit.__main__ import main
from labkit.course import console


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


@pytest.fixture
def folder(tmp_path):
    """Where the lessons of a course lie, as `labkit course` looks for them from `tmp_path`."""
    (tmp_path / "notebooks").mkdir()
    return tmp_path / "notebooks"


MEETS = """
import time, labkit
from pathlib import Path
Path(f"{OWN}.here").touch()
until = time.monotonic() + 120
while not (met := Path(f"{OTHER}.here").exists()) and time.monotonic() < until:
    time.sleep(0.05)
labkit.verdict("met", met, "==", True)
"""


def test_a_course_passes_only_when_every_committed_claim_is_made_again(tmp_path, folder):
    five = "labkit.verdict('the seed is five', SEED, '==', 5)"
    cold = "import sys; assert not {'torch', 'SEED'} & {*sys.modules, *dir()}"  # new interpreters, and no unknown names
    book(folder / "01_good.ipynb", "SEED = 0", "OWN, OTHER = 1, 2" + MEETS, five, claims=["met", "the seed is five"])
    book(folder / "02_dies.ipynb", "SEED = 0", "OWN, OTHER = 2, 1" + MEETS, "import os; os._exit(3)")
    book(folder / "03_silent.ipynb", "X = 0", cold, claims=["never made again"])
    book(folder / "04_wrong.ipynb", "SEED = 0", "import labkit", "labkit.verdict('one is two', 1, '==', 2)")
    options = ["--seed", "5", "--jobs", "2", "--json", "result.json"]
    done = labkit("course", *options, cwd=tmp_path, LABKIT_COLD_KERNELS="1")
    result = json.loads((tmp_path / "result.json").read_text())
    good, dead, silent, wrong = result["lessons"]
    assert done.returncode == 1 and result["ok"] is False
    passed = {"result": "pass", "claim": "the seed is five", "seen": "5 == 5"}
    passed |= {"measured": "5", "relation": "==", "limit": "5", "unit": ""}
    assert good["ok"] and good["verdicts"][1] == passed, done.stderr  # both ran at once, or they would not have met
    assert good["title"] == "A small lesson" and good["seconds"] > 0
    assert "DeadKernel" in dead["error"] and not dead["ok"]
    assert [verdict["claim"] for verdict in dead["verdicts"]] == ["met"]  # what it had shown until then is saved
    assert not silent["ok"] and silent["missing"] == ["never made again"] and not silent["error"]
    last = wrong["verdicts"][-1]
    assert not wrong["ok"] and (last["result"], last["claim"], last["seen"]) == ("fail", "one is two", "1 == 2")
    assert "2/2" in done.stdout and "one is two" in done.stdout
    assert done.stderr.count("A small lesson") == 4 and "━" not in done.stderr  # no bar in a file: a line for each
    assert (tmp_path / "out/course/01_good.ipynb").is_file()


KERNEL = """
import atexit, json, os, pathlib, sys, time
facts = {"torch": "torch" in sys.modules, "begins": time.monotonic()}
import labkit, random, numpy
import matplotlib.pyplot as plt
labkit.warm()
def four():
    yield 2 + 2
run = labkit.sandbox.run(four, env={"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]})
atexit.register(lambda: pathlib.Path(f"end{NUMBER}.txt").write_text("at exit"))
facts |= {"events": run.events, "process": run.meta["process"], "folder": os.getcwd()}
facts |= {"first": sys.path[0], "here": "" in sys.path}
facts |= {"threads": os.environ["OMP_NUM_THREADS"], "random": [random.random(), numpy.random.random()]}
facts |= {"ends": time.monotonic()}
pathlib.Path(f"facts{NUMBER}.json").write_text(json.dumps(facts))
plt.plot([1, 2])
plt.show()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_the_kernels_of_a_course_are_forked_and_else_like_any_kernel(tmp_path, folder):
    for number in (1, 2):
        book(folder / f"0{number}_a.ipynb", f"NUMBER = {number}", KERNEL)
    book(folder / "03_dies.ipynb", "SEED = 0", "import os; os._exit(3)")
    done = labkit("course", "--jobs", "1", cwd=tmp_path, MARK=str(tmp_path), OMP_NUM_THREADS="1")
    assert done.stderr.count("ok") == 2 and done.stderr.count("DeadKernelError") == 1, done.stdout + done.stderr
    facts = [json.loads((folder / f"facts{number}.json").read_text()) for number in (1, 2)]
    for number, one in zip((1, 2), facts, strict=True):
        assert one["torch"]
        assert (one["events"], one["process"], one["folder"]) == ([4], "fork", str(folder))
        assert one["first"] == str(Path(course.__file__).parents[2]) and one["here"]
        assert one["threads"] == "1" and (folder / f"end{number}.txt").read_text() == "at exit"
        outputs = nbformat.read(tmp_path / f"out/course/0{number}_a.ipynb", 4).cells[-1].outputs
        assert any("image/png" in o.get("data", {}) for o in outputs)
    assert facts[0]["random"] != facts[1]["random"] and facts[0]["ends"] < facts[1]["begins"]
    for process in psutil.process_iter(["environ"]):
        assert (process.info["environ"] or {}).get("MARK") != str(tmp_path)


def test_the_copy_of_an_earlier_run_is_no_evidence_of_this_one(tmp_path, folder):
    book(folder / "01_gone.ipynb", "SEED = 0", "x = 1", claims=["made long ago"])
    (lesson,) = lessons.choose(folder)
    (tmp_path / "out").mkdir()
    lesson.path.rename(tmp_path / "out/01_gone.ipynb")
    course.run(lesson, tmp_path / "out", {})
    assert not lesson.ok and "gone.ipynb" in lesson.error and not lesson.verdicts


def test_a_title_with_brackets_is_printed_as_it_is(capsys):
    lesson = lessons.Lesson("01", "The [red] mask [/]", Path("x"), error="KeyError: [bold]")
    console.report([lesson], [])
    text = capsys.readouterr().out
    assert "[red] mask [/]" in text and "[bold]" in text


def test_lessons_come_in_the_order_asked_for_and_once_and_a_page_in_more_has_a_number_of_its_own(tmp_path):
    (tmp_path / "more").mkdir()
    for name in ("03_x", "04_y", "10_w", "more/03_z"):
        book(tmp_path / f"{name}.ipynb", "x = 1", claims=["a | b", "c"])
    assert [lesson.number for lesson in lessons.choose(tmp_path)] == ["03", "04", "10", "03-more"]
    chosen = lessons.choose(tmp_path, ["10", "3", "03-more", "03"])
    assert [lesson.path.stem for lesson in chosen] == ["10_w", "03_x", "03_z"]
    assert chosen[0].title == "A small lesson" and chosen[0].expected == ["a", "c"]


CODE = '{"cells": [{"cell_type": "code", "source": "", "metadata": {}, "outputs": %s}]}'
GARBAGE = ["", "{ not a notebook", "[]", "3", "{}", '{"cells": [{}]}', CODE % "[3]", CODE % "null", "[" * 100_000]


@pytest.mark.parametrize("data", [*map(str.encode, GARBAGE), b"\xff\xfe"], ids=lambda data: repr(data[:12]))
def test_a_file_that_is_no_notebook_is_named(tmp_path, data):
    (tmp_path / "02_garbage.ipynb").write_bytes(data)
    with pytest.raises(ValueError, match=r"02_garbage.ipynb: cannot be read as a notebook \(\w+: "):
        lessons.choose(tmp_path)


ON_A_GPU = {"gpu": ["A GPU"], "driver": "595.1", "torch": "2.13.0", "transformers": "5.23.0", "python": "3.11.7"}


def test_a_recording_is_the_executed_copy_and_says_where_it_ran(tmp_path, folder, monkeypatch, capsys):
    body = "import os, labkit\nprint(os.__file__, labkit.__file__)\nlabkit.verdict('held', 1, '==', 1)"
    book(folder / "01_small.ipynb", "SEED = 5", body, claims=["held"])
    book(folder / "02_fails.ipynb", "SEED = 5", "1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "environment", lambda: ON_A_GPU)
    old = tmp_path / "docs/recorded/02_fails.ipynb"
    old.parent.mkdir(parents=True)
    old.write_text("an older recording")
    assert main(["course", "--record"]) == 1
    assert "recorded: " in capsys.readouterr().out and old.read_text() == "an older recording"
    recording = nbformat.read(tmp_path / "docs/recorded/01_small.ipynb", 4)
    nbformat.validate(recording)
    assert recording.cells[0].source.startswith("**Recorded on A GPU**, driver 595.1, torch 2.13")
    text = recording.cells[-1].outputs[0].text
    assert text.startswith("<python>") and "<lab>/labkit/__init__.py" in text and "PASS  held" in text


@pytest.mark.skipif(os.name != "posix", reason="a terminal's Ctrl-C goes to the whole group")
@pytest.mark.timeout(120)
def test_ctrl_c_ends_it_at_once_with_one_line_and_leaves_no_kernel(tmp_path):
    command = [sys.executable, "-m", "labkit", "course", "00", "01", "--jobs", "1", "--out", str(tmp_path)]
    pipe = subprocess.PIPE
    running = subprocess.Popen(
        command, cwd=lessons.BESIDE.parent, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    parent, kernels = psutil.Process(running.pid), []
    try:
        while not kernels:
            time.sleep(0.2)
            assert running.poll() is None
            for child in parent.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    # forked kernels have no command line of their own: a grandchild that is a Python is one
                    if child.ppid() != running.pid and "python" in child.name():
                        kernels.append(child)
        started = parent.children(recursive=True)
        os.killpg(running.pid, signal.SIGINT)
        output, error = running.communicate(timeout=20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    assert (running.returncode, output, error) == (130, "", "labkit course: interrupted\n")
    _, alive = psutil.wait_procs(started, timeout=15)
    assert not alive
