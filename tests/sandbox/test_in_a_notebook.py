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
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(cwd=str(ROOT))
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        kernel = psutil.Process(manager.provisioner.pid)  # type: ignore[union-attr]
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


@posix
def test_importing_starts_nothing_and_warm_starts_the_server_that_runs_are_forked_from():
    script = """
    import labkit, psutil
    children = psutil.Process().children
    from labkit import sandbox
    print(children())
    sandbox.server.PRELOAD = ()
    labkit.warm()
    (server,) = children()
    print(sandbox.run(abs, -3).events, children() == [server], server.pid, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    *before, pid = done.stdout.split()
    assert before == ["[]", "[3]", "True"], done
    assert gone([int(pid)])


def execute(client, code, on_go=None):
    """Run a cell; its text output and its value, as one line."""
    message = client.execute(code)
    lines = []
    while True:
        reply = client.get_iopub_msg(timeout=60)
        if reply["parent_header"].get("msg_id") != message:
            continue
        kind, content = reply["msg_type"], reply["content"]
        if kind == "stream":
            lines.append(content["text"].strip())
            if on_go and lines[-1] == "go":
                on_go()
        elif kind == "execute_result":
            lines.append(content["data"]["text/plain"])
        elif kind == "error":
            raise AssertionError("\n".join(content["traceback"]))
        elif kind == "status" and content["execution_state"] == "idle":
            return " ".join(filter(None, lines))
