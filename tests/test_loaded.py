"""`labkit.doctor.loaded`: finds what is stale and who holds it, and is silent where nothing is.

Each case runs in a process of its own, in a folder of its own: what is loaded cannot be unloaded.
"""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import doctor
from labkit.loaded import same

ROOT = Path(doctor.__file__).resolve().parent.parent
FILE = '''
import functools

LR = 1e-3


def step(x, limit=20.0, *, scale=1):
    """Doc."""
    return x * 2


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
    SCALE = 3

    def read(self):
        return 4

    @property
    def value(self):
        return 5

    @classmethod
    def made(cls):
        return 6

    @staticmethod
    def unit():
        return 7


def make():
    def inner():
        return 8

    return inner


def stream():
    yield 9
    yield 10
'''
BEGIN = """
import functools, importlib, json, os, sys
from pathlib import Path
sys.path.insert(0, "")
file = Path("mod.py")
def edit(*pairs):
    text = file.read_text()
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    file.write_text(text)
import mod
from labkit import doctor
"""
END = """
found = doctor.loaded()
print(json.dumps({"word": found.word, "stale": [[s.name, s.what, list(s.holders), s.way_out] for s in found.stale]}))
"""


def run(code, folder, text=FILE, end=END, **environment):
    """What `loaded()` says at the end of these lines, in a new process that works in this folder."""
    (folder / "mod.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code + end], cwd=folder, env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


SILENT = {
    "nothing happened": "",
    "comments and blank lines": 'edit(("def step", "# new\\n\\n\\ndef step"), ("return 4", "# y\\n        return 4"))',
    "a docstring changed": 'edit(("Doc.", "Another one."))',
    "a docstring went": 'edit((\'    """Doc."""\\n\', ""))',
    "saved again": "file.write_text(file.read_text())",
    "a newer time stamp": "os.utime(file, (2e9, 2e9))",
    "edited and reloaded": 'edit(("x * 2", "x * 3")); importlib.reload(mod)',
    "edited and edited back": 'edit(("x * 2", "x * 3")); edit(("x * 3", "x * 2"))',
    "a default that was changed in place": "mod.step.__kwdefaults__['scale'] = [1]",
    "the old class is garbage": 'edit(("return 4", "return 44")); m = mod.Meter(); importlib.reload(mod); m = 0',
    "a cell defines the same name": "def step(x): return x * 5",
    "a monkeypatch from elsewhere": "mod.step = lambda x: 0",
    "code made at run time": "exec(compile('def step(): return 3', '<string>', 'exec'), vars(mod))",
}


@pytest.mark.parametrize("name", SILENT)
def test_it_is_silent_when_the_process_runs_what_the_file_says(name, tmp_path):
    assert run(SILENT[name], tmp_path) == {"word": "FRESH", "stale": []}


# What is done -> the stale names, a holder that must be named, words that must be there.
EDITED = {
    "the body of a function": ('edit(("x * 2", "x * 3"))', ["step"], "mod.step", "its code"),
    "a number": ('edit(("return 8", "return 9"))', ["make"], "mod.make", "its code"),
    "its time stamp put back": (
        'was = os.stat(file).st_mtime; edit(("x * 2", "x * 3")); os.utime(file, (was, was))',
        ["step"],
        "mod.step",
        "its code",
    ),
    "a default": ('edit(("limit=20.0", "limit=10.0"))', ["step"], "mod.step", "20.0, in the file 10.0"),
    "a keyword default": ('edit(("scale=1)", "scale=True)"))', ["step"], "mod.step", "1, in the file True"),
    "one default less": ('edit((", *, scale=1", ""))', ["step"], "mod.step", "code"),
    "a constant": ('edit(("1e-3", "5e-4"))', ["LR"], "mod.LR", "0.001, in the file 0.0005"),
    "a class's constant": ('edit(("SCALE = 3", "SCALE = 2"))', ["Meter.SCALE"], "mod.Meter.SCALE", "3, in the file 2"),
    "a method": ('edit(("return 4", "return 44"))', ["Meter.read"], "mod.Meter.read", "its code"),
    "a property": ('edit(("return 5", "return 55"))', ["Meter.value"], "mod.Meter.value", "its code"),
    "a class method": ('edit(("return 6", "return 66"))', ["Meter.made"], "mod.Meter.made", "its code"),
    "a static method": ('edit(("return 7", "return 77"))', ["Meter.unit"], "mod.Meter.unit", "its code"),
    "a decorated function": ('edit(("x + 1\\n", "x + 2\\n"))', ["decorated"], "mod.decorated", "its code"),
    "a cached function": ('edit(("x + 10", "x + 20"))', ["cached"], "mod.cached", "its code"),
    "a generator that waits": (
        'g = mod.stream(); next(g); edit(("yield 10", "yield 11")); importlib.reload(mod)',
        ["stream"],
        "__main__.g (a suspended call)",
        "its code",
    ),
    "a name that is gone": ('edit(("def step", "def stride"))', ["step", "stride"], "mod.step", "no longer"),
    "a new method": (
        'edit(("    SCALE", "    def extra(self):\\n        return 1\\n\\n    SCALE"))',
        ["Meter.extra"],
        "mod.Meter.extra",
        "not loaded",
    ),
    "a file that cannot be compiled": ('edit(("def step(x", "def step(x("))', [""], "mod", "cannot be compiled"),
    "from … import, after a reload": (
        'from mod import step; edit(("x * 2", "x * 3")); importlib.reload(mod)',
        ["step"],
        "__main__.step",
        "its code",
    ),
    "a decorated one, after a reload": (
        'from mod import decorated; edit(("x + 1\\n", "x + 2\\n")); importlib.reload(mod)',
        ["decorated"],
        "__main__.decorated",
        "its code",
    ),
    "an instance of the old class": (
        'm = mod.Meter(); edit(("return 4", "return 44")); importlib.reload(mod)',
        ["Meter.read"],
        "__main__.m (an instance)",
        "its code",
    ),
    "an instance of an old class that is the same": (
        'm = mod.Meter(); edit(("x * 2", "x * 3")); importlib.reload(mod)',
        ["Meter"],
        "__main__.m (an instance)",
        "older class",
    ),
    "an instance deep inside": (
        "box = type('Box', (), {})(); box.all = {'m': [mod.Meter()]};"
        'edit(("return 5", "return 55")); importlib.reload(mod)',
        ["Meter.value"],
        "__main__.box.all['m'][0] (an instance)",
        "its code",
    ),
    "a bound method": (
        'read = mod.Meter().read; edit(("return 4", "return 44")); importlib.reload(mod)',
        ["Meter.read"],
        "__main__.read (a bound method)",
        "its code",
    ),
    "a class derived from the old one": (
        'exec("class Mine(mod.Meter): pass"); edit(("return 4", "return 44")); importlib.reload(mod)',
        ["Meter.read"],
        "__main__.Mine (a class derived from it)",
        "its code",
    ),
    "a partial": (
        'p = functools.partial(mod.step, 1); edit(("x * 2", "x * 3")); importlib.reload(mod)',
        ["step"],
        "__main__.p (a partial)",
        "its code",
    ),
    "a list of callbacks": (
        'hooks = [print, mod.step]; edit(("x * 2", "x * 3")); importlib.reload(mod)',
        ["step"],
        "__main__.hooks[1]",
        "its code",
    ),
    "a closure's own function": (
        'inner = mod.make(); edit(("return 8", "return 88")); importlib.reload(mod)',
        ["make.<locals>.inner"],
        "__main__.inner",
        "its code",
    ),
    "a closure over the old function": (
        'def keep(f): return lambda: f\nk = keep(mod.step); edit(("x * 2", "x * 3")); importlib.reload(mod)',
        ["step"],
        "__main__.k (a closure)",
        "its code",
    ),
    "another module": (
        'Path("other.py").write_text("from mod import step"); import other;'
        'edit(("x * 2", "x * 3")); importlib.reload(mod)',
        ["step"],
        "other.step",
        "its code",
    ),
    "a module that was imported again": (
        'step = mod.step; edit(("x * 2", "x * 3")); del sys.modules["mod"]; import mod',
        ["step"],
        "__main__.step",
        "its code",
    ),
}


@pytest.mark.parametrize("name", EDITED)
def test_it_names_what_is_stale_who_holds_it_and_how_it_differs(name, tmp_path):
    code, names, holder, words = EDITED[name]
    said = run(code, tmp_path)
    assert said["word"] == "STALE" and [row[0] for row in said["stale"]] == names, said
    assert any(holder in row[2] for row in said["stale"]) and any(words in row[1] for row in said["stale"]), said


def test_the_way_out_knows_what_a_reload_would_leave(tmp_path):
    alone = run('edit(("x * 2", "x * 3"))', tmp_path)["stale"][0][3]
    held = run('from mod import step; edit(("x * 2", "x * 3"))', tmp_path)["stale"][0][3]
    assert "restart" in alone and "leave the others" not in alone and "leave the others" in held


def test_bytecode_of_the_same_size_and_second_is_named_since_no_restart_would_help(tmp_path):
    code = (
        "os.utime(file, (1e9, 1e9)); importlib.reload(mod); edit(('x * 2', 'x * 3')); os.utime(file, (1e9, 1e9));"
        "importlib.reload(mod)"
    )
    said = run(code, tmp_path, PYTHONDONTWRITEBYTECODE="")
    assert [row[0] for row in said["stale"]] == ["step"] and ".pyc" in said["stale"][0][3]
    assert list((tmp_path / "__pycache__").glob("mod.*"))  # it only says so


@pytest.mark.parametrize(
    "text, edit, name",
    [
        ("from dataclasses import dataclass\n@dataclass\nclass C:\n    a: int = 1\n", ('"= 1"', '"= 2"'), "C.a"),
        ("import dataclasses as d\n@d.dataclass(slots=True)\nclass C:\n    a: int = 1\n", ('"= 1"', '"= 2"'), "C.a"),
        ("from typing import NamedTuple\nclass C(NamedTuple):\n    a: int = 1\n", ('"= 1"', '"= 1  # one"'), None),
        ("import enum\nclass C(enum.Enum):\n    A = 1\n", ('"= 1"', '"= 1  # one"'), None),
        ("COUNT = 0\ndef f():\n    global COUNT\n    COUNT += 1\nf()\n", ('"+= 1"', '"+= 1  # one"'), None),
        ("COUNT = 0\nfor COUNT in range(3): pass\n", ('"pass"', '"pass  # one"'), None),
        ("def f(): return 1\ndel f\n", ('"del"', '"  \\ndel"'), None),
        ("if 1:\n    def f(): return 1\nelse:\n    def f(): return 2\n", ('"return 1"', '"return 1  # one"'), None),
        ("def f(x: int) -> int: return x\n", ('"int: return"', '"int:  return"'), None),
        ("def __getattr__(name): raise AttributeError(name)\n", ('"name)"', '"name) "'), None),
    ],
)  # fmt: skip
def test_generated_code_and_values_that_programs_change_are_no_false_alarm(text, edit, name, tmp_path):
    said = run(f"edit(({edit[0]}, {edit[1]}))", tmp_path, text=text)
    assert [row[0] for row in said["stale"]] == ([name] if name else []), said


HEAVY = """
import torch, numpy, transformers, matplotlib.pyplot, labkit, labkit.train, labkit.checks, labkit.display, labkit.course
from transformers import GPT2LMHeadModel
assert doctor.loaded(), doctor.loaded()
found = doctor.loaded("labkit", "json", "accelerate", mod)
assert found and found.functions > 500, found
"""


def test_the_labs_own_imports_are_no_false_alarm(tmp_path):
    assert run(HEAVY, tmp_path)["word"] == "FRESH"


def test_what_it_cannot_judge_is_inconclusive_and_what_is_not_loaded_is_named():
    assert doctor.loaded("math").word == "INCONCLUSIVE" and not doctor.loaded("math")
    assert "no Python source" in repr(doctor.loaded("math"))
    assert "rewrite" in repr(doctor.loaded(__name__))  # pytest rewrites this very file
    with pytest.raises(ValueError, match=r"no\.such.*not loaded in this process"):
        doctor.loaded("no.such")


@pytest.mark.parametrize("many", [90, 300])
def test_of_many_edited_functions_and_instances_each_has_its_holders(many, tmp_path):
    text = (
        "".join(f"def f{i}():\n    return {i}\n" for i in range(many))
        + "class C:\n    def g(self):\n        return 0\n"
    )
    code = (
        f"f = [getattr(mod, 'f' + str(i)) for i in range({many})]; cs = [mod.C() for _ in range(500)]\n"
        "file.write_text(file.read_text().replace('return ', 'return 1'))\n"
    )
    said = run(code, tmp_path, text=text)["stale"]
    assert len(said) == many + 1
    for name, _, holders, _ in said:
        assert f"mod.{name}" in holders and any(h.startswith(("__main__.f[", "__main__.cs[")) for h in holders), name


def test_a_package_without_code_is_inconclusive_when_it_is_named(tmp_path):
    (tmp_path / "bare").mkdir()
    code = "import bare; found = doctor.loaded('bare'); assert not found and found.word == 'INCONCLUSIVE', found"
    assert run(code, tmp_path)["word"] == "FRESH"


def test_a_report_travels_from_a_worker():
    found = doctor.loaded("json")
    assert pickle.loads(pickle.dumps(found)) == found and repr(found).startswith("FRESH")


def copies(folder):
    """A checkout with a fix, and an installed copy without."""
    for name in ("checkout/lossbox", "checkout/notebooks", "site/lossbox", "site/lossbox-1.0.dist-info"):
        (folder / name).mkdir(parents=True)
    (folder / "checkout/pyproject.toml").write_text("")
    (folder / "checkout/lossbox/__init__.py").write_text("def f():\n    return 2\n")
    (folder / "site/lossbox/__init__.py").write_text("def f():\n    return 1\n")
    (folder / "site/lossbox-1.0.dist-info/METADATA").write_text("")


ASK = "import lossbox; from labkit import doctor; found = doctor.loaded(*{}); print(found.word); print(found)"


@pytest.mark.parametrize("names", [(), ("lossbox",)])
@pytest.mark.parametrize(
    "here, path, other, word",
    [
        ("checkout/notebooks", ["site"], "checkout", "pip install -e"),
        ("checkout", ["site"], "site", "pip uninstall"),
        ("checkout/notebooks", ["checkout"], "", ""),
        ("checkout", ["checkout"], "", ""),
        ("site", ["site"], "", ""),
    ],
)
def test_of_two_copies_it_says_which_one_runs_and_what_differs(here, path, other, word, names, tmp_path):
    copies(tmp_path)
    paths = os.pathsep.join([*(str(tmp_path / p) for p in path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", ASK.format(names)],
        cwd=tmp_path / here,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=100,
    )
    if not other:
        assert done.stdout.startswith("FRESH"), done.stdout + done.stderr
        return
    assert done.stdout.startswith("STALE") and word in done.stdout and "different in f" in done.stdout, done
    assert f"{other}/lossbox/__init__.py): this copy does not run" in done.stdout or here == other or other == "site"


def command(*names, folder, path=""):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)]) if path else str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "labkit", "doctor", "--loaded", *names],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_the_command_answers_for_a_new_process_and_says_that_it_cannot_see_a_kernel(tmp_path):
    copies(tmp_path)
    done = command(folder=tmp_path / "checkout/notebooks", path=tmp_path / "site")
    assert done.returncode == 1 and "lossbox" in done.stdout and "print(labkit.doctor.loaded())" in done.stdout
    clean = command("lossbox", folder=tmp_path / "checkout/notebooks", path=tmp_path / "checkout")
    assert clean.returncode == 0 and 'loaded("lossbox")' in clean.stdout and "another process" in clean.stdout
    asked = command("lossbox", "--json", folder=tmp_path / "checkout/notebooks", path=tmp_path / "site")
    assert json.loads(asked.stdout)["stale"][0]["module"] == "lossbox"
    lost = command("nowhere", folder=tmp_path)
    assert lost.returncode == 2 and lost.stderr == "labkit doctor: nowhere: a process started here would not find it\n"


def test_the_command_imports_nothing(tmp_path):
    (tmp_path / "loud.py").write_text("raise SystemExit('imported')")
    assert command("loud", folder=tmp_path).returncode == 0


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
    alone = code("def f(x):\n    if x:\n        return math.exp(x)\n    return 0")
    assert same(
        alone,
        compile(
            "import math\ndef f(x):\n    if x:\n        return math.exp(x)\n    return 0", "f.py", "exec"
        ).co_consts[2],
    )


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
        "print(step(1), meter.read(), cached(1), inner())\nfound = labkit.doctor.loaded('mod')",
        "print(sorted({h for s in found.stale for h in s.holders}))",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    with course.own_kernel() as kernel:
        quiet = ["--IPKernelApp.log_level=ERROR"]
        resources = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(book, kernel_name=kernel, resources=resources, extra_arguments=quiet).execute()
    said = ["".join(output.get("text", "") for output in cell.outputs) for cell in book.cells]
    assert said[0].startswith("FRESH") and said[3].startswith("FRESH"), said
    assert said[5] == "3 44 11 8\n"  # autoreload reached the first two
    assert said[6] == "['__main__.cached', '__main__.inner']\n"
