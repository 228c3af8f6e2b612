import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest
from cut import bug_cells, claims, installed, path_of

from labkit import checks, course, doctor

CELLS = [c for c in json.loads(path_of("13").read_text())["cells"] if c["cell_type"] == "code"]
SOURCES = ["".join(c["source"]) for c in CELLS]


def space_of(*beginnings):
    """The names that the lesson's cells with these beginnings define."""
    space = {"tempfile": tempfile, "Path": Path, "os": os, "checks": checks}
    for beginning in beginnings:
        (source,) = [s for s in SOURCES if s.startswith(beginning)]
        exec(compile(source, "lesson 13", "exec"), space)
    return space


def ruff(folder, text, select="F"):
    (folder / "probe.py").write_text(text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--output-format=json", f"--select={select}"]
    done = subprocess.run([*command, "probe.py"], cwd=folder, capture_output=True, text=True, timeout=60)
    return [row["code"] for row in json.loads(done.stdout)]


def test_the_bugs_cut_out_of_the_lesson_are_what_it_says_to_ruff_and_the_fixes_are_clean(tmp_path):
    bugs = bug_cells("13")
    assert ruff(tmp_path, bugs["HOURLY"]) == ["F821"] and ruff(tmp_path, bugs["BELOW"]) == ["F823"]
    assert ruff(tmp_path, bugs["ABOVE"]) == [] and ruff(tmp_path, bugs["ABOVE"], "PLC0415") == ["PLC0415"]
    assert ruff(tmp_path, bugs["HOURLY"].replace("delta.mean", "gap.mean"), "F,PLC0415") == []
    unused = bugs["ABOVE"].replace("    @torch.no_grad()\n", "")
    assert ruff(tmp_path, unused) == ["F401"]  # the hint that the lesson mentions in brackets


def test_mypy_sees_the_import_above_its_use(tmp_path):
    pytest.importorskip("mypy")
    text = "import math\n\n\ndef f(x):\n    if x:\n        import math\n    return math.pi\n"
    (tmp_path / "f.py").write_text(text)
    options = ["--enable-error-code", "possibly-undefined", "--check-untyped-defs", "--no-incremental"]
    command = [sys.executable, "-m", "mypy", *options, "f.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert 'f.py:7: error: Name "math" may be undefined' in done.stdout, done


def test_this_python_words_the_two_errors_as_the_lesson_says():
    space = {}
    exec("def f(x):\n    if x:\n        import os\n    return os\n\n\ndef g():\n    return delta\n", space)
    with pytest.raises(UnboundLocalError, match="cannot access local variable 'os' where it is not associated with a"):
        space["f"](0)
    with pytest.raises(NameError, match="name 'delta' is not defined"):
        space["g"]()
    text = path_of("13").read_text()
    assert "cannot access local variable 'torch' where it is not associated with a value" in text


WRONG = {
    "time stamps": lambda f: os.stat(f.__code__.co_filename).st_mtime > 1.5e9,
    "the whole code object": lambda f: on_disk(f) != f.__code__,
    "bytecode alone": lambda f: of(f, lambda code: code.co_code),
    "bytecode and names": lambda f: of(f, lambda code: (code.co_code, code.co_names)),
    "constants alone": lambda f: of(f, lambda code: [c for c in code.co_consts if not hasattr(c, "co_code")]),
    "always old": lambda f: True,
    "never old": lambda f: False,
    "nothing": lambda f: None,
}


def on_disk(f):
    found = space_of("def compiled(")["compiled"](f.__code__.co_filename)
    return found.get(f.__code__.co_qualname)


def of(f, get):
    there = on_disk(f)
    return there is None or get(there) != get(f.__code__)


@pytest.mark.parametrize("name", WRONG)
def test_the_exercise_refuses_wrong_comparisons_and_says_at_which_edit(name):
    judge = space_of("BASE = ")["judge"]
    report = judge(WRONG[name])
    assert not report and report.seen["edit"] and report.seen["expected"] is not report.seen["answer"]


def test_the_exercise_accepts_what_the_library_does():
    from labkit.loaded import same

    judge = space_of("BASE = ")["judge"]
    assert judge(lambda f: on_disk(f) is None or not same(on_disk(f), f.__code__))


@pytest.mark.parametrize("option, passes", [("--nbval-lax", True), ("--nbval", False)])
def test_only_a_comparison_of_outputs_finds_the_value_of_a_deleted_cell(option, passes, tmp_path):
    pytest.importorskip("nbval")
    shown = nbformat.v4.new_output("stream", name="stdout", text="4.0\n")  # from when BETA was 0.4
    cells = [nbformat.v4.new_code_cell("BETA = 0.04", execution_count=1)]
    cells.append(nbformat.v4.new_code_cell("print(10 * BETA)", outputs=[shown], execution_count=2))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "a.ipynb")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", option, "a.ipynb"]
    with course.own_kernel():
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert (done.returncode == 0) is passes, done.stdout


def test_ruff_reads_a_notebook_as_it_is_and_its_exit_code_says_so(tmp_path):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(delta)")])
    nbformat.write(book, tmp_path / "a.ipynb")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,PLC0415", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "F821" in done.stdout
    notebooks = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--show-files", "."],
        cwd=path_of("13").parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert path_of("13").name in notebooks.stdout  # `make lint` reads the lessons


def test_the_options_that_the_lesson_names_are_there_with_the_defaults_it_says():
    text = installed("transformers", "training_args.py")
    assert re.search(r"dataloader_persistent_workers: bool = field\(\s*default=False", text)
    assert "vllm_mode" in installed("trl", "trainer/grpo_config.py")
    assert '"server"' in installed("trl", "trainer/grpo_config.py")


def test_a_loaders_persistent_worker_keeps_the_code_it_was_forked_with(tmp_path):
    """The lesson says so of DataLoader's workers."""
    code = (
        "import importlib, torch, rows\n"
        "from pathlib import Path\n"
        "if __name__ == '__main__':\n"
        "    loader = torch.utils.data.DataLoader(rows.Rows(), num_workers=1, persistent_workers=True)\n"
        "    first = [int(x) for x in loader]\n"
        "    Path('rows.py').write_text(Path('rows.py').read_text().replace('return 1', 'return 22'))\n"
        "    importlib.reload(rows)\n"
        "    print(first, [int(x) for x in loader], rows.Rows()[0])\n"
    )
    rows = "class Rows:\n    def __len__(self):\n        return 2\n\n    def __getitem__(self, at):\n        return 1\n"
    (tmp_path / "rows.py").write_text(rows)
    (tmp_path / "main.py").write_text(code)
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[1, 1] [1, 1] 22", done


def test_pip_installs_the_lessons_wheel_and_unpacking_it_gives_the_same_module(tmp_path, monkeypatch):
    pytest.importorskip("pip")
    monkeypatch.chdir(tmp_path)
    (source,) = [s for s in SOURCES if 'shutil.make_archive("lossbox"' in s]
    space = {
        "shutil": shutil,
        "subprocess": subprocess,
        "sys": sys,
        "Path": Path,
        "LOSSES": "A = 1\n",
        "NEW": "A = 2\n",
    }
    space["save"] = lambda name, text: Path(name).write_text(text)
    exec(compile(source, "lesson 13", "exec"), space)
    (metadata,) = Path("site").glob("*.dist-info/INSTALLER")
    assert metadata.read_text().strip() == "pip"  # pip did it, not the way out
    shutil.unpack_archive(space["wheel"], "unpacked", "zip")
    assert Path("unpacked/lossbox/__init__.py").read_text() == Path("site/lossbox/__init__.py").read_text() == "A = 1\n"


def test_the_lesson_leaves_no_folder_and_makes_its_claims(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    expected, made, error = claims("13", tmp_path / "out")
    assert not error and made == expected
    assert not list((tmp_path / "temporary").glob("lesson-13-*"))


def test_the_lesson_says_nothing_that_only_a_gpu_could_show():
    prose = [c for c in json.loads(path_of("13").read_text())["cells"] if c["cell_type"] == "markdown"]
    assert "Nothing here needs a GPU" in "".join(prose[0]["source"])
    assert doctor.NEEDED["ruff"] == "lesson 13"
