"""The sandbox as others see it: light, and its errors travel."""

import ast
import pickle
import subprocess
import sys
import textwrap

import pytest
from children import ROOT, count

from labkit import sandbox


def test_neither_the_import_nor_a_run_brings_torch_into_the_caller():
    script = """
    import sys
    from labkit import sandbox
    from labkit.events import Step
    def look():
        import torch
        yield Step(1, loss=float(torch.ones(1)))
    sandbox.server.PRELOAD = ("torch",)
    assert sandbox.run(look)["loss"] == [1.0]
    print([name for name in ("torch", "numpy", "transformers", "IPython") if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_sandboxs_files_import_nothing_but_the_standard_library_cloudpickle_and_each_other():
    allowed = set(sys.stdlib_module_names) | {"labkit", "cloudpickle"}
    files = sorted((ROOT / "labkit/sandbox").glob("*.py"))
    assert {"child", "server", "worker"} <= {file.stem for file in files}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and not getattr(node, "level", 0):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                assert {n.split(".")[0] for n in names} <= allowed, (file.name, names)


def test_the_sandboxs_error_survives_pickling(bare):
    bare.setattr(sys, "executable", sys.executable + "-is-not-here")
    with pytest.raises(sandbox.SandboxError, match="could not start a process") as caught:
        sandbox.run(count, 1)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.args, str(copy)) == (sandbox.SandboxError, caught.value.args, str(caught.value))
