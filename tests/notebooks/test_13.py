"""Lesson 13: its checks, what it says of forked workers, notebooks and options, and that it leaves nothing behind."""

import functools
import importlib
import json
import os
import re
import subprocess
import sys
import types

import nbformat
import pytest
from cut import FOLDER, claims, installed, path_of

from labkit import course

sys.path.append(str(FOLDER))
from props import lesson_13 as props

CELLS = json.loads(path_of("13").read_text())["cells"]


def solution(name):
    """A function of the lesson's solutions."""
    (source,) = [
        "".join(cell["source"])
        for cell in CELLS
        if "solution" in cell["metadata"].get("tags", []) and f"def {name}(" in "".join(cell["source"])
    ]
    space = {"importlib": importlib, "types": types}
    exec(source, space)
    return space[name]


# ---- exercise A


def reload_only(trainer):
    importlib.reload(trainer.module)


def instance_before_the_reload(trainer):
    trainer.reward = trainer.module.Reward()
    importlib.reload(trainer.module)
    trainer.restart_worker()


def old_worker(trainer):
    importlib.reload(trainer.module)
    trainer.reward.__class__ = trainer.module.Reward


def count_lost(trainer):
    importlib.reload(trainer.module)
    trainer.reward = trainer.module.Reward()
    trainer.restart_worker()


def no_reload(trainer):
    rounds = trainer.reward.rounds
    trainer.reward = trainer.module.Reward()
    trainer.reward.rounds = rounds
    trainer.restart_worker()


@pytest.mark.parametrize(
    "attempt, hint",
    [
        (reload_only, "`trainer.reward` still"),
        (instance_before_the_reload, "`trainer.reward` still"),
        (no_reload, "`trainer.reward` still"),
        (old_worker, "`trainer.worker` still"),
        (count_lost, "5 rounds"),
    ],
)
def test_a_holder_that_was_forgotten_is_named(attempt, hint):
    report = props.refreshed(attempt)
    assert report.passed is False and hint in report.hint


def test_the_solution_passes_and_so_does_the_old_instance_with_the_new_class():
    def new_class(trainer):
        importlib.reload(trainer.module)
        trainer.reward.__class__ = trainer.module.Reward
        trainer.restart_worker()

    assert props.refreshed(solution("refreshed")) and props.refreshed(new_class)


# ---- exercise B


def found(kernel, module, *, lists=True, instances=True, functions=True, classes=True, of_module=True):
    def is_old(thing):
        if isinstance(thing, list):
            return lists and any(map(is_old, thing))
        if isinstance(thing, types.FunctionType):
            asked = functions
        elif isinstance(thing, type):
            asked = classes
        else:
            thing, asked = type(thing), instances
        mine = thing.__module__ == module.__name__ if of_module else hasattr(module, thing.__name__)
        return asked and mine and thing is not getattr(module, thing.__name__, None)

    return [name for name, thing in kernel.items() if is_old(thing)]


@pytest.mark.parametrize("blind", ["lists", "instances", "functions", "classes", "of_module"])
def test_a_search_that_is_blind_for_one_kind_of_holder_is_refused(blind):
    report = props.finds_the_holders(functools.partial(found, **{blind: False}))
    assert report.passed is False and report.hint.startswith("Kernel ")


def test_the_solution_finds_every_holder_and_nothing_and_everything_are_refused():
    assert props.finds_the_holders(solution("holders_found")) and props.finds_the_holders(found)
    assert not props.finds_the_holders(lambda kernel, module: [])
    assert not props.finds_the_holders(lambda kernel, module: list(kernel))
    assert "'score'" in props.finds_the_holders(lambda kernel, module: "score").hint


# ---- what the text says


def test_the_first_file_waits_for_its_fourth_round_and_the_second_does_not():
    text = first_text()
    assert props.death(text).startswith("round 4: name 'delta'")
    assert props.death(text.replace("delta", "rewards")) == "lives"


def first_text():
    (source,) = ["".join(c["source"]) for c in CELLS if "bug" in c["metadata"].get("tags", [])]
    space = {}
    exec(source, space)
    return space["V1"]


def test_a_traceback_shows_what_stands_there_after_lines_were_inserted_above(tmp_path):
    code = (
        "import traceback, rows\n"
        "text = open('rows.py').read()\n"
        "open('rows.py', 'w').write('\\n'.join(['# a note', '# and another'] + text.splitlines()))\n"
        "try:\n    rows.one()\nexcept NameError:\n    print(traceback.format_exc())\n"
    )
    (tmp_path / "rows.py").write_text("# the first line\ndef one():\n    return delta\n")
    (tmp_path / "main.py").write_text(code)
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "in one\n    # the first line\n" in done.stdout and "'delta' is not defined" in done.stdout


def test_autoreload_gives_an_instance_the_new_method_and_does_not_run_init_again(tmp_path):
    file = tmp_path / "meter.py"
    text = "class Meter:\n    def __init__(self):\n        self.a = 1\n    def read(self):\n        return 1\n"
    file.write_text(text)
    with props.Python(tmp_path, shell=True) as kernel:
        kernel.run("%load_ext autoreload\n%autoreload 2\nimport meter; one = meter.Meter()")
        file.write_text(text.replace("return 1", "return 22").replace("self.a = 1", "self.a = self.b = 1"))
        assert kernel.run("answer = [one.read(), hasattr(one, 'b'), hasattr(meter.Meter(), 'b')]") == [22, False, True]


def test_mypy_looks_into_functions_without_annotations_only_with_the_option(tmp_path):
    (tmp_path / "rewards.py").write_text(first_text())
    undefined = "--enable-error-code=possibly-undefined"
    assert props._mypy(tmp_path, ["rewards.py"], undefined) == {"rewards.py": []}
    assert props._mypy(tmp_path, ["rewards.py"], undefined, "--check-untyped-defs") == {"rewards.py": ["name-defined"]}


def test_the_lines_to_paste_name_the_process_the_file_and_the_version(capsys):
    (lines,) = re.findall(r"```python\n# .*\n(if .*\n .*)\n```", "".join("".join(cell["source"]) for cell in CELLS))
    exec(lines, {"os": os, "__file__": "rewards.py", "self": types.SimpleNamespace(rounds=1, version=3)})
    assert capsys.readouterr().out.split() == [str(os.getpid()), "rewards.py", "3"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_worker_has_the_code_of_its_parent_old_or_new(tmp_path):
    code = (
        "import importlib, multiprocessing, rows\n"
        "from pathlib import Path\n"
        "fork = multiprocessing.get_context('fork')\n"
        "def asked():\n"
        "    with fork.Pool(1) as pool:\n"
        "        return pool.apply(rows.one)\n"
        "first = asked()\n"
        "Path('rows.py').write_text('def one():\\n    return 22\\n')\n"
        "second = asked()\n"
        "importlib.reload(rows)\n"
        "print([first, second, asked()])\n"
    )
    (tmp_path / "rows.py").write_text("def one():\n    return 1\n")
    (tmp_path / "main.py").write_text(code)
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[1, 1, 22]", done


def test_a_loaders_persistent_worker_keeps_the_code_it_was_forked_with(tmp_path):
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


@pytest.mark.parametrize("cells, passes", [(["delta = 1", "print(2 * delta)"], True), (["print(2 * delta)"], False)])
def test_jupyter_execute_finds_the_name_of_a_deleted_cell(cells, passes, tmp_path):
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}}
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=kernel)
    nbformat.write(book, tmp_path / "a.ipynb")
    command = [sys.executable, "-m", "jupyter", "execute", "a.ipynb"]
    with course.own_kernel():
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert (done.returncode == 0) is passes, done.stderr


def test_ruff_reads_a_notebook_as_it_is_and_its_exit_code_says_so(tmp_path):
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(delta)")]), tmp_path / "a.ipynb")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,PLC0415", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "F821" in done.stdout


def test_trl_keeps_its_reward_functions_in_a_list():
    assert "self.reward_funcs = reward_funcs" in installed("trl", "trainer/grpo_trainer.py")


def test_the_lesson_leaves_no_folder_and_makes_its_claims(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    expected, made, error = claims("13", tmp_path / "out")
    assert not error and made == expected
    assert not list((tmp_path / "temporary").glob("lesson-13-*"))
