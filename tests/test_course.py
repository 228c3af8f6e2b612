"""The course runner on small notebooks that the test writes, with a real kernel."""

import json
import subprocess
import sys

import nbformat
import pytest

from labkit import course


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


def labkit(*args, cwd):
    return subprocess.run(
        [sys.executable, "-m", "labkit", *args], capture_output=True, text=True, timeout=170, cwd=cwd
    )


def test_a_course_passes_only_when_every_committed_claim_is_made_again(tmp_path):
    (tmp_path / "notebooks").mkdir()
    body = "import labkit\nlabkit.verdict('two is two', 2 == 2, f'seed {SEED}')"
    book(tmp_path / "notebooks/01_good.ipynb", "SEED = 0", body, claims=["two is two"])
    book(tmp_path / "notebooks/02_silent.ipynb", "SEED = 0", "x = 1", claims=["never made again"])
    book(
        tmp_path / "notebooks/03_wrong.ipynb",
        "SEED = 0",
        "import labkit",
        "labkit.verdict('one is two', 1 == 2, 'no')",
    )
    done = labkit("course", "--seed", "5", "--json", "result.json", cwd=tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    one, two, three = result["lessons"]
    assert done.returncode == 1 and result["ok"] is False
    assert one["ok"] and one["verdicts"] == [{"result": "pass", "claim": "two is two", "seen": "seed 5"}]
    assert one["title"] == "A small lesson" and one["seconds"] > 0
    assert not two["ok"] and two["missing"] == ["never made again"] and not two["error"]
    assert not three["ok"] and three["verdicts"][-1] == {
        "result": "fail",
        "claim": "one is two",
        "seen": "no",
    }
    assert "1/1" in done.stdout and "one is two" in done.stdout
    assert (tmp_path / "out/course/01_good.ipynb").is_file()


def test_a_dead_kernel_is_a_failed_lesson_not_a_hang(tmp_path):
    (tmp_path / "notebooks").mkdir()
    claim = "from labkit.verdicts import verdict; verdict('one is one', True, 'before the end')"
    book(tmp_path / "notebooks/01_dies.ipynb", "SEED = 0", claim, "import os; os._exit(3)")
    (lesson,) = course.lessons(tmp_path / "notebooks")
    course.run(lesson, tmp_path / "out", {}, progress=False)
    assert not lesson.ok and "DeadKernel" in lesson.error
    assert [v["claim"] for v in lesson.verdicts] == ["one is one"]  # what it had shown until then is saved


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["course", "77"], "lesson '77': expected one of 01"),
        (["course", "--device", "tpu"], "device 'tpu'"),
        (["course", "--device", "cuda"], "sees no GPU"),
        (["course", "--notebooks", "nowhere"], "no lessons in nowhere"),
        (["course", "02"], "02_garbage.ipynb: cannot be read"),
        (["lab", "99"], "lesson '99'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(tmp_path, args, says):
    (tmp_path / "notebooks").mkdir()
    book(tmp_path / "notebooks/01_fine.ipynb", "SEED = 0")
    if args == ["course", "02"]:
        (tmp_path / "notebooks/02_garbage.ipynb").write_text("{ not a notebook")
    if args[-1] == "cuda":
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
    done = (
        labkit(*args, "--json", "r.json", cwd=tmp_path)
        if args[0] == "course"
        else labkit(*args, cwd=tmp_path)
    )
    assert done.returncode == 2 and says in done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists() and not (tmp_path / "r.json").exists()
