"""Lesson 13: what it says of workers, notebooks, tools and options."""

import functools
import os
import re
import subprocess
import sys
import types

import nbformat
import pytest
from cut import Page, prose
from props import lesson_13 as props

from labkit import course


def printed(tmp_path, main, **modules):
    """What a script prints that stands in a folder beside these modules."""
    for name, text in ({"main": main} | modules).items():
        (tmp_path / f"{name}.py").write_text(text)
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    return done.stdout


def test_a_traceback_shows_what_stands_there_after_lines_were_inserted_above(tmp_path):
    main = """
import traceback, rows
text = open("rows.py").read()
open("rows.py", "w").write("# a note\\n# and another\\n" + text)
try:
    rows.one()
except NameError:
    print(traceback.format_exc())
"""
    text = printed(tmp_path, main, rows="# the first line\ndef one():\n    return delta\n")
    assert "in one\n    # the first line\n" in text and "'delta' is not defined" in text


def test_autoreload_gives_an_instance_the_new_method_and_does_not_run_init_again(tmp_path):
    file = tmp_path / "meter.py"
    text = "class Meter:\n    def __init__(self):\n        self.a = 1\n    def read(self):\n        return 1\n"
    file.write_text(text)
    with props.Python(tmp_path, shell=True) as kernel:
        kernel.run("%load_ext autoreload\n%autoreload 2\nimport meter; one = meter.Meter()")
        file.write_text(text.replace("return 1", "return 22").replace("self.a = 1", "self.a = self.b = 1"))
        assert kernel.run("answer = [one.read(), hasattr(one, 'b'), hasattr(meter.Meter(), 'b')]") == [22, False, True]


def test_mypy_looks_into_functions_without_annotations_only_with_the_option(tmp_path):
    (tmp_path / "rewards.py").write_text(Page("13")["V1"])
    undefined = "--enable-error-code=possibly-undefined"
    assert props._mypy(tmp_path, ["rewards.py"], undefined) == {"rewards.py": []}


def test_the_lines_to_paste_name_the_process_the_file_and_the_version(capsys):
    (lines,) = re.findall(r"```python\n# .*\n(print.*)\n```", prose("13"))
    exec(lines, {"os": os, "__file__": "rewards.py", "self": types.SimpleNamespace(rounds=1, version=3)})
    assert capsys.readouterr().out.split() == [str(os.getpid()), "rewards.py", "3"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_worker_has_the_code_of_its_parent_old_or_new(tmp_path):
    main = """
import importlib, multiprocessing, rows
fork = multiprocessing.get_context("fork")
def by_a_worker():
    with fork.Pool(1) as pool:
        return pool.apply(rows.one)
first = by_a_worker()
open("rows.py", "w").write("def one():\\n    return 22\\n")
second = by_a_worker()
importlib.reload(rows)
print([first, second, by_a_worker()])
"""
    assert printed(tmp_path, main, rows="def one():\n    return 1\n") == "[1, 1, 22]\n"


def test_jupyter_execute_and_ruff_find_the_name_of_a_deleted_cell(tmp_path):
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}}
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(2 * delta)")], metadata=kernel)
    nbformat.write(book, tmp_path / "a.ipynb")
    run = functools.partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    with course.own_kernel():
        executed = run([sys.executable, "-m", "jupyter", "execute", "a.ipynb"])
    assert executed.returncode != 0 and "name 'delta' is not defined" in executed.stderr
    checked = run([sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,PLC0415", "."])
    assert checked.returncode == 1 and "F821" in checked.stdout
