"""The sandbox in a notebook's kernel."""

import subprocess
import sys
import textwrap

import psutil
from children import ROOT, gone, posix

CELLS = [
    """
import time
from labkit import sandbox
sandbox.server.PRELOAD = ()
class Probe:
    pass
factor = 2
def train(n):
    for i in range(n):
        yield i * factor
        time.sleep(0.01)
def broken():
    yield Probe()
    raise ValueError("as planned")  # here
sandbox.run(train, 3).events
""",
    """
run = sandbox.run(broken)
print(type(run.events[0]) is Probe, run.outcome.signature, "# here" in run.outcome.traceback)
""",
    """
run = sandbox.run(train, 1_000_000, on_event=lambda event: print("go", flush=True) if event == 6 else None)
print(run.outcome.signature, run.events == list(range(0, 2 * len(run.events), 2)))
""",
    "sandbox.run(train, 2).events",
]


@posix
def test_in_a_notebook_kernel_cells_travel_and_an_interrupt_stops_the_child():
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(ROOT))
    try:
        kernel = psutil.Process(manager.provisioner.pid)
        assert execute(client, CELLS[0]) == "[0, 2, 4]"
        assert execute(client, CELLS[1]) == "True exception:ValueError True"
        text = execute(client, CELLS[2], on_go=manager.interrupt_kernel)
        assert text == "go stopped True"
        assert execute(client, CELLS[3]) == "[0, 2]"
        (server,) = kernel.children()
        assert server.children() == []
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
    assert gone([server.pid])


def execute(client, code, on_go=None):
    """Run a cell; its text output and its value, as one line."""
    lines = []

    def hook(message):
        content = message["content"]
        if message["msg_type"] == "stream":
            lines.append(content["text"].strip())
        elif message["msg_type"] == "execute_result":
            lines.append(content["data"]["text/plain"])
        if on_go and lines[-1:] == ["go"]:
            on_go()

    reply = client.execute_interactive(code, timeout=60, output_hook=hook)
    assert reply["content"]["status"] == "ok", reply
    return " ".join(filter(None, lines))


@posix
def test_importing_starts_nothing_warm_starts_the_server_and_a_run_brings_no_torch_into_the_caller():
    script = """
    import sys
    import labkit, psutil
    from labkit import sandbox
    from labkit.events import Step
    def look():
        import torch
        yield Step(1, loss=float(torch.ones(1)))
    children = psutil.Process().children
    print(children())
    sandbox.server.PRELOAD = ("torch",)
    labkit.warm()
    (server,) = children()
    print(sandbox.run(look)["loss"], children() == [server])
    print([name for name in ("torch", "numpy", "transformers", "IPython") if name in sys.modules])
    print(server.pid)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    *before, pid = done.stdout.splitlines()
    assert (before, done.stderr) == (["[]", "[1.0] True", "[]"], "")
    assert gone([int(pid)])
