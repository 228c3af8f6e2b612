"""`labkit.doctor.loaded`: finds what is stale and who holds it, and is silent where nothing is."""

import importlib
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from labkit import doctor
from labkit.loaded.source import same

ROOT = Path(doctor.__file__).resolve().parent.parent
FILE = '''
import functools

LR = 1e-3


def step(x):
    """Doc."""
    return x * 2


def limited(limit=20.0, *, scale=1):
    """Doc too."""
    return limit * scale


def gone():
    return 1


def traced(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)

    return inner


@traced
def decorated(x):
    return x + 1


@functools.lru_cache
def cached(x):
    return x + 10


class Meter:
    def read(self):
        return 4

    @property
    def value(self):
        return 5


def make():
    def inner():
        return 8

    return inner
'''
BEGIN = """
import functools, importlib, os, sys
from pathlib import Path
file = Path("mod.py").resolve()
def edit(*pairs):
    text = file.read_text()
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    file.write_text(text)
import mod
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Runs lines in a module of the name `kernel`, which has imported `mod` from a new file with this text."""
    names = types.ModuleType("kernel")
    monkeypatch.setitem(sys.modules, "kernel", names)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(code, text=FILE):
        (tmp_path / "mod.py").write_text(text)
        importlib.invalidate_caches()
        exec(BEGIN + code, vars(names))

    yield run
    sys.modules.pop("mod", None)
    vars(names).clear()


SILENT = {
    "edits that change nothing": """
edit(("def step", "# new\\n\\n\\ndef step"), ("return 4", "# y\\n        return 4"))
edit(("Doc.", "Another one."), ('    \"\"\"Doc too.\"\"\"\\n', ""))  # one docstring changed, one went
edit(("x * 2", "x * 3"))
edit(("x * 3", "x * 2"))
os.utime(file, (2e9, 2e9))
mod.limited.__kwdefaults__["scale"] = [1]
""",
    "reloaded, and the old class is garbage": """
edit(("x * 2", "x * 3"), ("return 4", "return 44"))
meter = mod.Meter()
importlib.reload(mod)
meter = 0
""",
    "code from elsewhere under a name of the module's": """
def step(x): return x * 5  # of a cell
mod.step = lambda x: 0
exec(compile("def cached(): return 3", "<string>", "exec"), vars(mod))
""",
}


@pytest.mark.parametrize("name", SILENT)
def test_it_is_silent_when_the_process_runs_what_the_file_says(name, kernel):
    kernel(SILENT[name])
    report = doctor.loaded("mod")
    assert report.word == "FRESH" and report.functions >= 8, report


# name -> what is edited, and how it differs
EDITS = {
    "step": (("x * 2", "x * 3"), "its code is not the file's"),
    "make.<locals>.inner": (("return 8", "return 9"), "its code is not the file's"),
    "limited": (("20.0, *, scale=1)", "20, *, scale=1)"), "default of limit is 20.0, in the file 20"),
    "LR": (("1e-3", "5e-4"), "it is 0.001, in the file 0.0005"),
    "Meter.read": (("return 4", "return 44"), "its code is not the file's"),
    "Meter.value": (("return 5", "return 55"), "its code is not the file's"),
    "decorated": (("x + 1\n", "x + 2\n"), "its code is not the file's"),
    "cached": (("x + 10", "x + 20"), "its code is not the file's"),
    "gone": (("def gone", "def went"), "no longer in the file"),
}


def test_each_thing_that_was_edited_is_named_with_how_it_differs_and_the_module_that_holds_it(kernel):
    kernel(f"inner = mod.make(); edit{tuple(pair for pair, _ in EDITS.values())}")
    findings = {stale.name: stale for stale in doctor.loaded("mod").stale}
    assert findings.pop("make").holders == ("mod.make",)  # the number stands in its code too
    assert {name: stale.what for name, stale in findings.items()} == {name: what for name, (_, what) in EDITS.items()}
    for name, stale in findings.items():
        holder = "kernel.inner" if name == "make.<locals>.inner" else f"mod.{name}"
        assert holder in stale.holders, stale


# lines before the edit -> what is stale then, and who holds it; the module itself has been reloaded
HELD = {
    "from mod import step": ("step", "kernel.step"),
    "from mod import decorated": ("decorated", "kernel.decorated"),
    "p = functools.partial(mod.step, 1)": ("step", "kernel.p (a partial)"),
    "hooks = [print, mod.step]": ("step", "kernel.hooks[1]"),
    "def keep(f): return lambda: f\nk = keep(mod.step)": ("step", "kernel.k (a closure)"),
    "inner = mod.make()": ("make.<locals>.inner", "kernel.inner"),
    "read = mod.Meter().read": ("Meter.read", "kernel.read (a bound method)"),
    "class Mine(mod.Meter): pass": ("Meter.read", "kernel.Mine (a class derived from it)"),
    "class Box: pass\nbox = Box(); box.all = {'m': [mod.Meter()]}": (
        "Meter.value",
        "kernel.box.all['m'][0] (an instance)",
    ),
}


def test_after_a_reload_each_holder_of_old_code_is_named(kernel):
    pairs = tuple(pair for name, (pair, _) in EDITS.items() if name != "gone")
    kernel("\n".join(HELD) + f"\nedit{pairs}; importlib.reload(mod)")
    findings = {stale.name: stale for stale in doctor.loaded("mod").stale}
    for name, holder in HELD.values():
        assert holder in findings[name].holders, (name, findings[name])
        assert f"mod.{name}" not in findings[name].holders and "make each holder anew" in findings[name].way_out
    assert "cached" not in findings  # nobody holds the old one


def test_the_way_out_knows_what_a_reload_would_leave(kernel):
    kernel('edit(("x * 2", "x * 3"))')
    assert doctor.loaded("mod").stale[0].way_out == "restart the kernel and run all"
    exec("from mod import step", vars(sys.modules["kernel"]))
    assert "reload would mend mod.step and leave the others" in doctor.loaded("mod").stale[0].way_out
    exec("del sys.modules['mod']; import mod", vars(sys.modules["kernel"]))  # imported again: its old function is left
    (stale,) = doctor.loaded("mod").stale
    assert (stale.name, stale.holders) == ("step", ("kernel.step",))


def test_a_file_that_cannot_be_compiled_is_named_with_its_line(kernel):
    kernel('edit(("def step(x", "def step(x("))')
    (stale,) = doctor.loaded("mod").stale
    assert (stale.name, stale.where) == ("", "mod.py:7") and "cannot be compiled" in stale.what
    assert stale.way_out.startswith("mend the file")


MADE = """
from typing import NamedTuple
class C(NamedTuple):
    a: int = 1
COUNT = 0
def count():
    global COUNT
    COUNT += 1
count()
for LAST in range(3): pass
LAST = 0
for LAST in range(3): pass
if 1:
    def f(): return 1
else:
    def f(): return 2
def __getattr__(name): raise AttributeError(name)
"""


def test_generated_code_and_values_that_programs_change_are_no_false_alarm(kernel):
    kernel('edit(("= 1", "= 1  # one"), ("return 1", "return 1  # one"), ("name)", "name) "))', MADE)
    assert doctor.loaded("mod").word == "FRESH", doctor.loaded("mod")


HEAVY = """
import pickle
from labkit import doctor
import torch, numpy, transformers, matplotlib.pyplot, labkit, labkit.grpo, labkit.checks, labkit.display, labkit.course
from transformers import GPT2LMHeadModel
assert doctor.loaded(), doctor.loaded()
report = doctor.loaded("labkit", "json", "accelerate")
assert report and report.functions > 500 and repr(report).startswith("FRESH"), report
assert pickle.loads(pickle.dumps(report)) == report
"""


def test_the_labs_own_imports_are_no_false_alarm():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", HEAVY], env=environment, check=True, timeout=200)


def test_what_it_cannot_judge_is_inconclusive_and_what_is_not_loaded_is_named(kernel, tmp_path):
    (tmp_path / "bare").mkdir()
    kernel("import bare")
    for name in ("math", "bare", __name__):  # pytest rewrites this very file
        report = doctor.loaded(name)
        assert report.word == "INCONCLUSIVE" and not report, report
    assert "math: not loaded from a source file as it stands (" in repr(doctor.loaded("math"))
    del sys.modules["bare"]
    with pytest.raises(ValueError, match=r"no\.such.*not loaded in this process"):
        doctor.loaded("no.such")


def test_of_many_edited_functions_and_instances_each_has_its_holders(kernel):
    many = 150  # more than are searched one by one
    text = "".join(f"def f{i}():\n    return {i}\n" for i in range(many))
    text += "class C:\n    def g(self):\n        return 0\n"
    kernel(f"f = [getattr(mod, 'f' + str(i)) for i in range({many})]; cs = [mod.C() for _ in range(500)]", text)
    vars(sys.modules["kernel"])["edit"](("return ", "return 1"))
    findings = doctor.loaded("mod").stale
    assert len(findings) == many + 1
    for stale in findings:
        others = [h for h in stale.holders if h.startswith(("kernel.f[", "kernel.cs["))]
        assert f"mod.{stale.name}" in stale.holders and others, stale


@pytest.fixture
def python(tmp_path):
    """Runs Python where there is a checkout with a fix, and an installed copy of it without."""
    for name in ("checkout/lossbox", "checkout/notebooks", "site-packages/lossbox"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "checkout/pyproject.toml").write_text("")
    (tmp_path / "checkout/lossbox/__init__.py").write_text("def f():\n    return 2\n")
    (tmp_path / "site-packages/lossbox/__init__.py").write_text("def f():\n    return 1\n")

    def run(*args, here, path):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / path), str(ROOT)])}
        options = {"capture_output": True, "text": True, "timeout": 100}
        return subprocess.run([sys.executable, *args], cwd=tmp_path / here, env=environment, **options)

    return run


ASK = "import lossbox; from labkit import doctor; print(doctor.loaded()); print(doctor.loaded('lossbox'))"


@pytest.mark.parametrize(
    "here, path, way_out",
    [
        ("checkout/notebooks", "site-packages", "pip uninstall it, or pip install -e"),
        ("checkout", "site-packages", "pip uninstall it; then"),
        ("checkout/notebooks", "checkout", None),
        ("site-packages", "site-packages", None),
    ],
)
def test_of_two_copies_it_says_which_one_runs(here, path, way_out, python):
    text = python("-c", ASK, here=here, path=path).stdout
    if way_out is None:
        assert text.count("FRESH") == 2, text
    else:
        assert text.count("this copy does not run") == text.count(f"way out  {way_out}") == 2, text


def test_the_command_answers_for_a_new_process_and_says_that_it_cannot_see_a_kernel(python, tmp_path):
    command = ("-m", "labkit", "doctor", "--loaded")
    stale = python(*command, here="checkout/notebooks", path="site-packages")
    assert stale.returncode == 1 and "lossbox" in stale.stdout and "print(labkit.doctor.loaded())" in stale.stdout
    fresh = python(*command, "lossbox", here="checkout/notebooks", path="checkout")
    assert fresh.returncode == 0 and 'loaded("lossbox")' in fresh.stdout and "another process" in fresh.stdout
    as_json = python(*command, "lossbox", "--json", here="checkout/notebooks", path="site-packages").stdout
    assert json.loads(as_json)["stale"][0]["module"] == "lossbox"
    (tmp_path / "checkout/loud.py").write_text("raise SystemExit('imported')")
    assert python(*command, "loud", here="checkout", path="checkout").returncode == 0  # it imports nothing
    lost = python(*command, "nowhere", here="checkout", path="checkout")
    assert lost.returncode == 2 and lost.stderr == "labkit doctor: nowhere: a process started here would not find it\n"


def test_code_objects_are_told_apart_by_what_runs():
    def code(text):
        return next(c for c in compile(text, "f.py", "exec").co_consts if hasattr(c, "co_code"))

    base = code("def f(x):\n    return g(x, 1)")
    assert same(base, code("\n\ndef f(x):\n\n    # why\n    return g(x, 1)"))
    assert same(base, code("def f(x):\n    'Doc.'\n    return g(x, 1)"))
    others = ("g(x, 1.0)", "g(x, True)", "h(x, 1)", "g(y, 1)", "g(1, x)", "g(x, -1)", "g(x, 1) or 0")
    for other in others:
        assert not same(base, code(f"def f(x):\n    return {other}")), other
    assert not same(base, code("def f(x, y=0):\n    return g(x, 1)"))
    # %autoreload compiles a function alone, where the import of `math` is out of sight
    text = "def f(x):\n    if x:\n        return math.exp(x)\n    return 0"
    assert same(code(text), code(f"import math\n{text}"))


def test_in_a_real_kernel_it_is_silent_first_and_after_autoreload_names_what_runs_old_code(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    from labkit import course

    (tmp_path / "mod.py").write_text(FILE)
    edits = [("x * 2", "x * 3"), ("return 8", "return 88"), ("x + 10", "x + 20"), ("return 4", "return 44")]
    cells = [
        "import labkit; print(labkit.doctor.loaded())",
        "%load_ext autoreload\n%autoreload 2",
        "import mod\nfrom mod import step, cached\nmeter, inner = mod.Meter(), mod.make()",
        "print(labkit.doctor.loaded())",
        f"text = open('mod.py').read()\nfor a, b in {edits}:\n    text = text.replace(a, b)\n"
        "n = open('mod.py', 'w').write(text)",
        "print(step(1), meter.read(), cached(1), inner())\nreport = labkit.doctor.loaded('mod')",
        "print(sorted({h for s in report.stale for h in s.holders}))",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    with course.own_kernel() as kernel:
        quiet = ["--IPKernelApp.log_level=ERROR"]
        resources = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(book, kernel_name=kernel, resources=resources, extra_arguments=quiet).execute()
    printed = ["".join(output.get("text", "") for output in cell.outputs) for cell in book.cells]
    assert printed[0].startswith("FRESH") and printed[3].startswith("FRESH"), printed
    assert printed[5] == "3 44 11 8\n"  # autoreload reached the first two
    assert printed[6] == "['__main__.cached', '__main__.inner']\n"
