"""Imports flow one way. Read off the syntax trees, so nothing needs to be imported."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "labkit"
DRAW = {"matplotlib", "ipywidgets", "anywidget", "IPython"}
DRAWING_ROOMS = {"dashboard", "figure", "controls", "quiz", "source", "notebook", "segments", "tables"}
DRAWING_ROOMS |= {"tables", "recorded"}
LIGHT = {
    "events",
    "verdicts",
    "sandbox",
    "signature",
    "doctor",
    "course",
    "allocator",
    "recordings",
    "memory",
    "__init__",
    "__main__",
}


def files():
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        yield room, path, ast.parse(path.read_text())


def imports(tree, top_level_only):
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            yield from (
                [base] if node.level == 0 else [f".{base}".rstrip("."), *(f".{a.name}" for a in node.names)]
            )


def test_nothing_that_computes_imports_anything_that_draws():
    for room, path, tree in files():
        if room in DRAWING_ROOMS or room in {"__init__", "_widget"}:
            continue
        bad = [
            i
            for i in imports(tree, top_level_only=False)
            if i.split(".")[0] in DRAW or i.lstrip(".") in DRAWING_ROOMS
        ]
        assert not bad, f"{path.name} imports {bad}"


def test_the_light_rooms_import_no_torch_at_module_level():
    for room, path, tree in files():
        if room in LIGHT:
            bad = [
                i for i in imports(tree, top_level_only=True) if i.split(".")[0] in {"torch", "transformers"}
            ]
            assert not bad, f"{path} imports {bad} at module level"


def test_checks_know_nothing_of_the_labs_own_trainer():
    for room, path, tree in files():
        if room == "checks":
            bad = {i.lstrip(".") for i in imports(tree, top_level_only=False)} & {
                "train",
                "grads",
                "rollout",
                "policy",
                "loss",
            }
            assert not bad, f"{path} imports {bad}"


def test_importing_labkit_and_its_command_loads_neither_torch_nor_matplotlib():
    code = (
        "import labkit, labkit.__main__, labkit.sandbox, labkit.course, labkit.doctor, sys;"
        "print(sorted({'torch', 'transformers', 'matplotlib', 'IPython', 'papermill'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_every_public_name_is_there_and_an_unknown_one_lists_them():
    import labkit

    for name in labkit.__all__:
        assert getattr(labkit, name) is not None, name
    try:
        labkit.wacth  # noqa: B018
    except AttributeError as error:
        assert "watch" in str(error)
    else:
        raise AssertionError("a misspelt name must raise")


def test_the_package_speaks_without_a_buggy_switch():
    for _, path, tree in files():
        names = {
            a.arg
            for n in ast.walk(tree)
            if isinstance(n, ast.FunctionDef)
            for a in [*n.args.args, *n.args.kwonlyargs]
        }
        assert not {"buggy", "bug", "broken"} & names, path
