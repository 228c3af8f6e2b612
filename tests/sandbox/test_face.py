"""The sandbox as others see it: light, and its errors travel."""

import subprocess
import sys
import textwrap

from children import ROOT


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
